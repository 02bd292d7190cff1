//go:build unix

// Package process runs servers beside a program: for tests, benchmarks and examples.
package process

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Process is a server that was started. Whoever starts it stops it.
type Process struct {
	// End is the signal that Stop sends first. Default SIGTERM.
	End os.Signal

	name  string
	cmd   *exec.Cmd
	said  tail
	ended chan struct{} // closed when it has
	err   error         // how, once ended is closed
}

// Find returns the first file that matches a pattern, as of [filepath.Glob], below the folder where the
// program runs or below one around it. It is empty if there is none.
func Find(pattern string) string {
	dir, err := os.Getwd()
	for err == nil {
		if found, _ := filepath.Glob(filepath.Join(dir, pattern)); len(found) > 0 {
			return found[0]
		}
		if dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	return ""
}

// Within is how long a server may take until it is ready, on a slow machine.
const Within = 5 * time.Minute

// Bind prepares a command for a server. It runs in a process group of its own, so that Ctrl-C reaches only the
// program that starts it, which stops its servers in order. On Linux it ends with that program in any case.
func Bind(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	endWith(cmd.SysProcAttr)
}

// Start starts a server, with [Bind]. What it prints is kept for errors, but
// for its standard output if cmd says where that goes. Where cmd says so for its standard error, that goes there as well.
func Start(name string, cmd *exec.Cmd) (*Process, error) {
	p := &Process{End: syscall.SIGTERM, name: name, cmd: cmd, ended: make(chan struct{})}
	if cmd.Stderr == nil {
		cmd.Stderr = &p.said
	} else {
		cmd.Stderr = io.MultiWriter(&p.said, cmd.Stderr)
	}
	if cmd.Stdout == nil {
		cmd.Stdout = &p.said
	}
	Bind(cmd)
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// Pid is the process's identifier.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Listening returns when the server accepts connections at addr. On an error it stops the server.
func (p *Process) Listening(ctx context.Context, addr string) error {
	return p.Until(ctx, "listen at "+addr, func() bool {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return false
		}
		c.Close()
		return true
	})
}

// Until returns when ready says so, which it asks every 20 ms. It fails if the server ends, if ctx
// does, or after [Within]; then it stops the server. The error says that the server does not do
// what is named.
func (p *Process) Until(ctx context.Context, what string, ready func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, Within)
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for !ready() {
		var err error
		select {
		case <-again.C:
			continue
		case <-p.ended:
			err = p.Alive()
		case <-ctx.Done():
			err = fmt.Errorf("%s does not %s: %w%s", p.name, what, ctx.Err(), &p.said)
		}
		p.Stop()
		return err
	}
	return nil
}

// Said is the last that the process printed, ready to be appended to an error.
func (p *Process) Said() string { return p.said.String() }

// Alive is an error if the process has ended. It says what the process printed last.
func (p *Process) Alive() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s ended by itself: %v%s", p.name, p.err, &p.said)
	default:
		return nil
	}
}

// Stop ends the process: by the signal End, and by SIGKILL if it does not heed that for 20 s. It
// returns when the process has ended. Stopping it twice, or a nil one, does nothing.
func (p *Process) Stop() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Signal(p.End) // it may have ended by itself
	kill := time.AfterFunc(20*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	<-p.ended
}

// tail keeps the last of what a process printed.
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
