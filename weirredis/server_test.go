//go:build integration

package weirredis

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	cryptorand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testbed/freeport"
	"github.com/weir-go/weir/internal/testbed/process"
	"github.com/weir-go/weir/quota"
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
	process.Bind(s.cmd)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	s.done = done
	go func(cmd *exec.Cmd) {
		_ = cmd.Wait()
		close(done)
	}(s.cmd)
	// Listening is not enough: the port opens before the Unix socket. An answer says that
	// both are open. A server that wants TLS answers by closing.
	eventually(t, s.addr+" answers", func() bool {
		select {
		case <-done:
			t.Fatalf("%s ended at once:\n%s", s.program, s.out)
		default:
		}
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			return false
		}
		defer c.Close()
		if _, err := c.Write([]byte("PING\r\n")); err != nil {
			return false
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		_, err = c.Read(make([]byte, 1))
		return !errors.Is(err, os.ErrDeadlineExceeded)
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

// ports are those of this package's tests. A node of a cluster talks to the others on the
// port Bus above its own, and Redis before 7.0 has no setting for that. No other tests have
// ports in either range.
var ports = freeport.Range{First: 13_500, Size: 1_000, Bus: 10_000}

// freeAddr returns an address where nobody listens.
func freeAddr(t testing.TB) string {
	t.Helper()
	addr, err := ports.Addr()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// patience is how long a test waits for what has to come true. Only a fault takes so long, on any machine.
const patience = 3 * time.Minute

// eventually polls ok until it returns true, for as long as patience lasts.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// patient is how long a connection may take where a test wants to hear what a server
// says: one that is not reached in time is no error of New.
const patient = 20 * time.Second

// open makes a store with the longest deadline there is, and time to connect: most tests are not
// about that.
func open(t testing.TB, c Config) *Store {
	t.Helper()
	if c.Deadline == 0 {
		c.Deadline = 10 * time.Second
		c.DialTimeout = cmp.Or(c.DialTimeout, patient)
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
	_ = c.SetDeadline(time.Now().Add(patience))
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

// rights are those that the package's documentation lists.
const rights = "+eval +evalsha +get +set +pttl +time +info +ping +hello +client|setname"

func TestUser(t *testing.T) {
	each(t, func(t *testing.T, start func(...string) *server) {
		server := start()
		server.grant(t, rights)
		server.ask(t, "ACL SETUSER default off")
		s := open(t, Config{URL: "redis://weir:secret@" + server.addr})
		if r := takeOne(t, s, quota.Per(10, time.Second)); !r.OK || r.Remaining != 9 {
			t.Errorf("%+v", r)
		}
		if err := s.Refund(context.Background(), "k", []quota.Window{quota.Per(10, time.Second)}, 1); err != nil {
			t.Error(err)
		}
		if _, err := New(Config{Addrs: []string{server.addr}, Username: "weir", Password: "wrong", DialTimeout: patient}); err == nil ||
			!strings.Contains(err.Error(), "WRONGPASS") {
			t.Errorf("a wrong password: %v", err)
		}
		if _, err := New(Config{Addrs: []string{server.addr}, DialTimeout: patient}); err == nil || !strings.Contains(err.Error(), "NOAUTH") {
			t.Errorf("no password: %v", err)
		}
	})
}

// A password that is changed while the store is open is asked for by the next
// connection, and the one that is there goes on.
func TestPasswordChanges(t *testing.T) {
	t.Parallel() // it mostly waits
	server := startRedis(t)
	server.grant(t, rights)
	var password atomic.Value
	password.Store("secret")
	s := open(t, Config{
		Addrs: []string{server.addr}, Username: "weir", DialTimeout: 300 * time.Millisecond,
		PasswordFunc: func() (string, error) { return password.Load().(string), nil },
	})
	take := func() error {
		_, err := s.Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{vast}, Cost: 1})
		return err
	}
	eventually(t, "a decision", func() bool { return take() == nil })
	server.ask(t, "ACL SETUSER weir resetpass >changed")
	cut := func() {
		for range 8 { // the client has several connections
			server.ask(t, "CLIENT KILL TYPE normal SKIPME yes")
		}
	}
	cut()
	eventually(t, "the old password is refused", func() bool {
		err := take()
		if err == nil || !strings.Contains(err.Error(), "WRONGPASS") {
			return false
		}
		var e *Error
		if !errors.As(err, &e) || e.Charged() {
			t.Errorf("%v, want that nothing was charged", err)
		}
		return true
	})
	eventually(t, "the store is down", func() bool { return take() != nil && s.Stats().Down })
	password.Store("changed")
	eventually(t, "the new password is used", func() bool { return take() == nil })
}

// A right that is taken away is told by the error, and one that comes back is found.
func TestRightTakenAway(t *testing.T) {
	server := startRedis(t)
	server.grant(t, rights)
	s := open(t, Config{Addrs: []string{server.addr}, Username: "weir", Password: "secret"})
	takeOne(t, s, quota.Per(1000, time.Second))
	server.ask(t, "ACL SETUSER weir -set")
	take := func() error {
		_, err := s.Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{quota.Per(1000, time.Second)}, Cost: 1})
		return err
	}
	var e *Error
	if err := take(); !errors.As(err, &e) || e.Reason != Refused || e.Charged() {
		t.Errorf("%v, want that the server refuses", err)
	}
	eventually(t, "the store is down", func() bool { return take() != nil && s.Stats().Down })
	server.ask(t, "ACL SETUSER weir +set")
	eventually(t, "the store is up", func() bool { return take() == nil })
}

// A server that could drop buckets is refused, whether or not it is short of memory
// now, with a sentence that says what to set.
func TestEviction(t *testing.T) {
	for _, policy := range []string{"allkeys-lru", "volatile-lru", "allkeys-random", "volatile-ttl"} {
		server := startRedis(t, "--maxmemory-policy", policy)
		_, err := New(Config{Addrs: []string{server.addr}, DialTimeout: patient})
		if err == nil || !strings.Contains(err.Error(), "Set maxmemory-policy noeviction") || !strings.Contains(err.Error(), policy) {
			t.Errorf("%s: %v", policy, err)
		}
		if s, err := New(Config{Addrs: []string{server.addr}, AssumeNoEviction: true, DialTimeout: patient}); err != nil {
			t.Errorf("%s, assumed: %v", policy, err)
		} else {
			s.Close()
		}
	}
}

// A user who may not read the policy is told what to do about it.
func TestPolicyUnreadable(t *testing.T) {
	server := startRedis(t)
	server.grant(t, strings.ReplaceAll(rights, "+info ", ""))
	c := Config{Addrs: []string{server.addr}, Username: "weir", Password: "secret", Deadline: 10 * time.Second}
	if _, err := New(c); err == nil || !strings.Contains(err.Error(), "allow the user INFO") {
		t.Errorf("%v", err)
	}
	c.AssumeNoEviction = true
	takeOne(t, open(t, c), quota.Per(10, time.Second))
}

// A server that comes back with another policy stays down.
func TestComesBackUnfit(t *testing.T) {
	server := startRedis(t)
	s := open(t, Config{Addrs: []string{server.addr}, Deadline: 100 * time.Millisecond})
	server.kill(t)
	eventually(t, "the store is down", func() bool {
		_, err := s.Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{vast}, Cost: 1})
		return err != nil && s.Stats().Down
	})
	server.args = append(server.args, "--maxmemory-policy", "allkeys-lru")
	server.start(t)
	eventually(t, "the store says why", func() bool {
		st := s.Stats()
		return st.Down && errors.Is(st.Why, errUnfit)
	})
	server.ask(t, "CONFIG SET maxmemory-policy noeviction")
	eventually(t, "the store is up", func() bool { return !s.Stats().Down })
}

// A server out of memory refuses, and the buckets it has stay as they are.
func TestOutOfMemory(t *testing.T) {
	server := startRedis(t, "--maxmemory", "100mb")
	s := open(t, Config{Addrs: []string{server.addr}})
	takeOne(t, s, vast)
	server.ask(t, "CONFIG SET maxmemory 1")
	_, err := s.Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{vast}, Cost: 1})
	var e *Error
	if !errors.As(err, &e) || e.Reason != Refused || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("%v, want out of memory", err)
	}
	server.ask(t, "CONFIG SET maxmemory 100mb")
	if r := takeOne(t, s, vast); r.Remaining != vast.Burst-2 {
		t.Errorf("%+v, want 2 charged", r)
	}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	startRedis(t, "--unixsocket", path)
	if r := takeOne(t, open(t, Config{URL: "unix://" + path}), quota.Per(10, time.Second)); !r.OK {
		t.Errorf("%+v", r)
	}
}

// identity is a certificate for 127.0.0.1 that vouches for itself, and its key.
type identity struct {
	cert, key string // files
	pool      *x509.CertPool
}

func (id *identity) trust() *tls.Config { return &tls.Config{RootCAs: id.pool} }

func certificate(t *testing.T) *identity {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), cryptorand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redis"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(cryptorand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	id := &identity{cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem"), pool: x509.NewCertPool()}
	cert := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	writeFile(t, id.cert, cert)
	writeFile(t, id.key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
	id.pool.AppendCertsFromPEM([]byte(cert))
	return id
}

// startTLS starts a server that speaks nothing but TLS, with its own nodes too.
func startTLS(t *testing.T, id *identity, options ...string) *server {
	t.Helper()
	program := part(t, "redis-server")
	needTLS(t, program)
	s := &server{program: program, dir: t.TempDir(), addr: freeAddr(t), tls: id}
	s.launch(t, append([]string{
		"--port", "0", "--tls-port", s.port(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", s.dir,
		"--tls-cert-file", id.cert, "--tls-key-file", id.key, "--tls-ca-cert-file", id.cert, "--tls-auth-clients", "no",
	}, options...))
	return s
}

// needTLS skips the test if the server was built without.
func needTLS(t *testing.T, program string) {
	t.Helper()
	if chosen == "" {
		return // Debian's has it, and nothing may hide that a test does not run
	}
	if answer := startProgram(t, program).ask(t, "CONFIG GET tls-port"); !strings.Contains(answer, "tls-port") {
		t.Skip("this server was built without TLS")
	}
}

func TestTLS(t *testing.T) {
	id := certificate(t)
	server := startTLS(t, id)
	s := open(t, Config{URL: "rediss://" + server.addr, TLS: id.trust()})
	if r := takeOne(t, s, quota.Per(10, time.Second)); !r.OK {
		t.Errorf("%+v", r)
	}
	strict := open(t, Config{URL: "rediss://" + server.addr, DialTimeout: patient})
	if st := strict.Stats(); !st.Down || st.Why == nil || !strings.Contains(st.Why.Error(), "certificate") {
		t.Errorf("a certificate that nobody vouches for: %+v", st)
	}
}

// All nodes of a cluster are asked over TLS, by their own names.
func TestClusterTLS(t *testing.T) {
	t.Parallel()
	id := certificate(t)
	nodes := startCluster(t, func(o ...string) *server { return startTLS(t, id, append(o, "--tls-cluster", "yes")...) })
	s := open(t, Config{URL: "rediss://weir:secret@" + nodes[0].addr, TLS: id.trust()})
	asked := map[*server]bool{}
	for i := range 50 {
		key := fmt.Sprint(i)
		eventually(t, "a decision", func() bool {
			r, err := s.Decide(context.Background(), &quota.Request{Key: key, Windows: []quota.Window{quota.Per(10, time.Second)}, Cost: 1})
			return err == nil && r.OK
		})
		asked[nodeOf(nodes, key)] = true
	}
	if len(asked) != len(nodes) {
		t.Errorf("%d nodes of %d were asked", len(asked), len(nodes))
	}
}
