// Package rig has what benchmarks of real servers share. These are processes on cores of
// their own, what the kernel says of them, and clients that cost little.
package rig

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/weir-go/weir/internal/testbed/freeport"
	"github.com/weir-go/weir/internal/testbed/process"
)

// Process is a program that was started.
type Process struct{ *process.Process }

// Start starts a program: see [process.Start].
func Start(cmd *exec.Cmd) (*Process, error) {
	p, err := process.Start(filepath.Base(cmd.Path), cmd)
	return &Process{p}, err
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
	return p, p.Listening(ctx, addr)
}

// Usage is what the kernel says about a process.
type Usage struct {
	CPU            time.Duration
	Resident, Peak uint64 // bytes: now, and the most so far
}

// Usage is what the process has used so far.
func (p *Process) Usage() Usage { return usageOf(p.Pid()) }

// Ports are those of the servers that a benchmark starts.
var Ports = freeport.Range{First: 15_000, Size: 4_000}
