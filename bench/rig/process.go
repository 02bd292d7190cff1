// Package rig has what benchmarks of real servers share: processes on cores of
// their own, what the kernel says of them, and clients that cost little.
package rig

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Process is a program that was started.
type Process struct {
	Cmd  *exec.Cmd
	said tail
}

// Start starts a program. What it says on its standard error, and on its standard
// output unless that goes elsewhere, is kept for errors.
func Start(cmd *exec.Cmd) (*Process, error) {
	p := &Process{Cmd: cmd}
	cmd.Stderr = &p.said
	if cmd.Stdout == nil {
		cmd.Stdout = &p.said
	}
	return p, cmd.Start()
}

// Stop ends the process: by SIGTERM, and by SIGKILL if it does not heed that.
func (p *Process) Stop() {
	_ = p.Cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	kill := time.AfterFunc(5*time.Second, func() { _ = p.Cmd.Process.Kill() })
	defer kill.Stop()
	_ = p.Cmd.Wait() // whatever it says, the measurement is over
}

// Usage is what the process has used so far.
func (p *Process) Usage() Usage { return UsageOf(p.Cmd.Process.Pid) }

// Said is the last that the process said, ready to be appended to an error.
func (p *Process) Said() string { return p.said.String() }

// Listening returns when the process accepts connections at addr.
func (p *Process) Listening(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			return c.Close()
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("does not listen at %s: %w%s", addr, err, p.Said())
		}
	}
}

// FreeAddr returns a loopback address that nobody listens on.
func FreeAddr() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return ln.Addr().String(), ln.Close()
}

// tail keeps the last few hundred bytes that a process said.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailLen = 2048

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if extra := len(t.buf) - tailLen; extra > 0 {
		t.buf = append(t.buf[:0], t.buf[extra:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if said := bytes.TrimSpace(t.buf); len(said) > 0 {
		return "; it said:\n" + string(said)
	}
	return ""
}
