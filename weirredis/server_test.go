//go:build integration

package weirredis

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
	tls     *identity // nil without TLS

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
	s := &server{program: program, dir: t.TempDir(), addr: freeAddr(t)}
	s.launch(t, append([]string{"--port", s.port(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", s.dir}, options...))
	return s
}

// launch starts the server until the test ends.
func (s *server) launch(t testing.TB, args []string) {
	t.Helper()
	s.args, s.out = args, &said{}
	t.Cleanup(func() {
		if s.cmd.Process != nil { // also one that never answered
			s.kill(t)
		}
		if t.Failed() {
			t.Logf("%s said:\n%s", s.addr, s.out)
		}
	})
	s.start(t)
}

func (s *server) port() string {
	_, port, _ := net.SplitHostPort(s.addr)
	return port
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

// chosen is the server to run all tests against, instead of Redis and of Valkey.
var chosen = os.Getenv("WEIR_REDIS_SERVER")

// part returns the path of a server that was chosen, that scripts/parts installed, or
// that is the machine's own.
func part(t testing.TB, name string) string {
	t.Helper()
	if chosen != "" {
		return chosen
	}
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

// busAbove is how far above its own port a node of a cluster has that of the bus.
const busAbove = 10_000

// freeAddr returns an address where nobody listens, nor busAbove it: there a node of a
// cluster talks to the others, and Redis before 7.0 cannot be told otherwise.
func freeAddr(t testing.TB) string {
	t.Helper()
	for {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := l.Addr().String()
		bus, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", l.Addr().(*net.TCPAddr).Port+busAbove))
		l.Close()
		if err == nil {
			bus.Close()
			return addr
		}
	}
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

// patient is how long a connection may take where a test wants to hear what a server
// says: one that is not reached in time is no error of New.
const patient = 20 * time.Second

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
	c, err := s.dial()
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

func (s *server) dial() (net.Conn, error) {
	if s.tls != nil {
		return tls.Dial("tcp", s.addr, s.tls.trust())
	}
	return net.Dial("tcp", s.addr)
}

// before62 reports whether the server is Redis 6.0.
func (s *server) before62(t testing.TB) bool {
	t.Helper()
	return strings.Contains(s.ask(t, "INFO server"), "redis_version:6.0.")
}

// grant makes the user weir, who has the rights that the package's documentation lists
// and no others.
func (s *server) grant(t testing.TB, rights string) {
	t.Helper()
	channels := "resetchannels "
	if s.before62(t) {
		channels = "" // users have no channels yet
	}
	s.ask(t, "ACL SETUSER weir on >secret ~weir:* "+channels+"-@all "+rights)
}

// each runs a test against every server there is, or the one that was chosen.
func each(t *testing.T, test func(t *testing.T, start func(options ...string) *server)) {
	names := []string{"redis-server", "valkey-server"}
	if chosen != "" {
		names = []string{filepath.Base(chosen)}
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			program := part(t, name)
			test(t, func(options ...string) *server { return startProgram(t, program, options...) })
		})
	}
}
