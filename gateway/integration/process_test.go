//go:build integration

package integration

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/gateway/internal/await"
)

// process is a server that a test started.
type process struct {
	name string
	cmd  *exec.Cmd
	out  *tail
	done chan struct{} // closed when it has ended
	err  error         // how, once done is closed
}

// start runs a program in a process group of its own and waits until it accepts
// connections at addr. The end of the test ends the group.
func start(t *testing.T, addr, dir, program string, args ...string) *process {
	t.Helper()
	p := &process{name: filepath.Base(program), cmd: exec.Command(program, args...), out: &tail{}, done: make(chan struct{})}
	p.cmd.Dir = dir
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() { p.stop(t) })
	eventually(t, 10*time.Second, p.name+" accepts connections at "+addr, func() bool {
		select {
		case <-p.done:
			t.Fatalf("%s ended at once: %v\n%s", p.name, p.err, p.out)
		default:
		}
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return p
}

func (p *process) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatalf("%s: %v: %v", p.name, sig, err)
	}
}

// wait waits until the process has ended and returns how.
func (p *process) wait(t *testing.T, most time.Duration) error {
	t.Helper()
	select {
	case <-p.done:
		return p.err
	case <-time.After(most):
		t.Fatalf("%s still runs after %v\n%s", p.name, most, p.out)
		return nil
	}
}

// stop ends the process group, kindly first.
func (p *process) stop(t *testing.T) {
	group := -p.cmd.Process.Pid
	select {
	case <-p.done:
	default:
		if err := syscall.Kill(group, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Errorf("%s: %v", p.name, err)
		}
		select {
		case <-p.done:
		case <-time.After(3 * time.Second):
		}
	}
	syscall.Kill(group, syscall.SIGKILL) // whoever of the group is left
	<-p.done
	if t.Failed() {
		t.Logf("%s said:\n%s", p.name, p.out)
	}
}

// eventually polls ok until it holds.
func eventually(t *testing.T, most time.Duration, what string, ok func() bool) {
	t.Helper()
	await.That(t, most, what, ok)
}

// freeAddr returns a loopback address that nobody listens on.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// part returns the path of an installed server.
func part(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", ".cache", "bin", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s is missing: run scripts/parts, or make test, which does (%v)", name, err)
	}
	return path
}

// tail keeps the last of what a process printed.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (w *tail) Write(b []byte) (int, error) {
	const most = 8 << 10
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = append(w.buf, b...)
	if len(w.buf) > most {
		w.buf = w.buf[len(w.buf)-most:]
	}
	return len(b), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.buf)
}
