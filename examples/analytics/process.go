package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/weir-go/weir/internal/freeport"
)

// ports are those of the servers that the command starts.
var ports = freeport.Range{First: 19_000, Size: 3_000}

// process is a server that the command started, and stops.
type process struct {
	name  string
	cmd   *exec.Cmd
	end   os.Signal // which it heeds
	said  tail
	ended chan struct{} // closed when it has
	err   error         // how, once ended is closed
}

// startWithin is how long a server may take until it listens, on a slow machine.
const startWithin = 2 * time.Minute

// start starts a server and returns when it accepts connections at addr. It runs in a process group
// of its own, so that Ctrl-C reaches the command alone, which stops its servers in order.
func start(ctx context.Context, name, addr string, cmd *exec.Cmd) (*process, error) {
	p := &process{name: name, cmd: cmd, end: syscall.SIGTERM, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.said, &p.said
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	started(cmd.Process.Pid)
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	if err := p.listens(ctx, addr); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

func (p *process) listens(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		if c, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
			return c.Close()
		}
		select {
		case <-again.C:
		case <-p.ended:
			return p.alive()
		case <-ctx.Done():
			return fmt.Errorf("%s does not listen at %s: %w%s", p.name, addr, ctx.Err(), &p.said)
		}
	}
}

// alive is an error if the process has ended.
func (p *process) alive() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s ended by itself: %v%s", p.name, p.err, &p.said)
	default:
		return nil
	}
}

// stop ends the process: as it likes to be told, and by SIGKILL if it does not heed that.
func (p *process) stop() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Signal(p.end) // it may have ended by itself
	kill := time.AfterFunc(20*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	<-p.ended
}

// started is told the process identifier of each server; a test looks whether any is left.
var started = func(pid int) {}

// tail keeps the last of what a process said, for errors.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailLen = 2 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if extra := len(t.buf) - tailLen; extra > 0 {
		t.buf = append(t.buf[:0], t.buf[extra:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if said := bytes.TrimSpace(t.buf); len(said) > 0 {
		return "; it said:\n" + string(said)
	}
	return ""
}
