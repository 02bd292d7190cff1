// Package rig has what benchmarks of real servers share: processes on cores of
// their own, what the kernel says of them, and clients that cost little.
package rig

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/weir-go/weir/internal/freeport"
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

// StartWeir starts the gateway's binary on one processor, and returns when it accepts
// connections at addr. The text of a configuration may be empty.
func StartWeir(ctx context.Context, binary, addr, config string, flags ...string) (*Process, error) {
	if config != "" {
		dir, err := os.MkdirTemp("", "weir-bench")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir) // read once it listens
		file := filepath.Join(dir, "weir.yaml")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			return nil, err
		}
		flags = append(flags, "--config", file)
	}
	return StartListening(ctx, addr, binary, append([]string{"run"}, flags...)...)
}

// StartListening starts a program on one processor, and returns when it accepts
// connections at addr.
func StartListening(ctx context.Context, addr, program string, args ...string) (*Process, error) {
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	p, err := Start(cmd)
	if err != nil {
		return nil, err
	}
	if err := p.listening(ctx, addr); err != nil {
		p.Stop()
		return nil, fmt.Errorf("%s: %w", cmd, err)
	}
	return p, nil
}

// Stop ends the process: by SIGTERM, and by SIGKILL if it does not heed that.
func (p *Process) Stop() {
	_ = p.Cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	kill := time.AfterFunc(5*time.Second, func() { _ = p.Cmd.Process.Kill() })
	defer kill.Stop()
	_ = p.Cmd.Wait() // whatever it says, the measurement is over
}

// Usage is what the kernel says about a process.
type Usage struct {
	CPU  time.Duration
	Peak uint64 // resident bytes
}

// Usage is what the process has used so far.
func (p *Process) Usage() Usage { return usageOf(p.Cmd.Process.Pid) }

// Said is the last that the process said, ready to be appended to an error.
func (p *Process) Said() string { return p.said.String() }

// listening returns when the process accepts connections at addr.
func (p *Process) listening(ctx context.Context, addr string) error {
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

// Ports are those of the servers that a benchmark starts.
var Ports = freeport.Range{First: 15_000, Size: 4_000}

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
