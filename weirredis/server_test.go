//go:build integration

package weirredis

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// server is a Redis or Valkey that a test started, on a free port of 127.0.0.1.
type server struct {
	program string
	args    []string
	dir     string
	addr    string

	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	out  *said
}

// said keeps what a server printed.
type said struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// startRedis starts a server that keeps nothing on disk. Options are as in
// redis.conf, with -- before their names; those of a test come last and win.
func startRedis(t testing.TB, options ...string) *server {
	t.Helper()
	return startProgram(t, part(t, "redis-server"), options...)
}

func startProgram(t testing.TB, program string, options ...string) *server {
	t.Helper()
	s := &server{program: program, dir: t.TempDir(), out: &said{}}
	s.addr = freeAddr(t)
	_, port, _ := net.SplitHostPort(s.addr)
	s.args = append([]string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", s.dir}, options...)
	s.start(t)
	t.Cleanup(func() {
		s.kill(t)
		if t.Failed() {
			t.Logf("%s said:\n%s", s.addr, s.out)
		}
	})
	return s
}

// start starts the server, again after kill, and waits until it accepts connections.
func (s *server) start(t testing.TB) {
	t.Helper()
	s.cmd = exec.Command(s.program, s.args...)
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	s.done = done
	go func(cmd *exec.Cmd) {
		_ = cmd.Wait()
		close(done)
	}(s.cmd)
	eventually(t, 10*time.Second, s.addr+" accepts connections", func() bool {
		select {
		case <-done:
			t.Fatalf("%s ended at once:\n%s", s.program, s.out)
		default:
		}
		c, err := net.Dial("tcp", s.addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

func (s *server) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
}

// kill ends the server without a farewell.
func (s *server) kill(t testing.TB) {
	t.Helper()
	s.signal(t, syscall.SIGKILL)
	<-s.done
}

// part returns the path of a server that scripts/parts installed, or of one of the
// machine's own.
func part(t testing.TB, name string) string {
	t.Helper()
	if path, err := filepath.Abs(filepath.Join("..", ".cache", "bin", name)); err == nil {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		if name == "valkey-server" {
			t.Skip("no valkey-server here")
		}
		t.Fatalf("no %s here: run scripts/parts", name)
	}
	return path
}

func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// eventually polls ok until it holds.
func eventually(t testing.TB, most time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(most); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", most, what)
		}
	}
}

// open makes a store with a generous deadline: most tests are not about that.
func open(t testing.TB, c Config) *Store {
	t.Helper()
	if c.Deadline == 0 {
		c.Deadline = 5 * time.Second
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// ask sends the server a command as redis-cli would, and returns what it said.
func (s *server) ask(t testing.TB, line string) string {
	t.Helper()
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprintf(c, "%s\r\n", line)
	buffer := make([]byte, 1<<20)
	n, err := c.Read(buffer)
	if err != nil {
		t.Fatalf("%s: %s: %v", s.addr, line, err)
	}
	if buffer[0] == '-' {
		t.Fatalf("%s: %s: %s", s.addr, line, buffer[:n])
	}
	return string(buffer[:n])
}

// each runs a test against every server there is.
func each(t *testing.T, test func(t *testing.T, start func(options ...string) *server)) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		t.Run(name, func(t *testing.T) {
			program := part(t, name)
			test(t, func(options ...string) *server { return startProgram(t, program, options...) })
		})
	}
}
