//go:build integration

package weirredis

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
)

// rights are those that the package's documentation lists.
const rights = "+eval +evalsha +get +set +pttl +time +info +ping +hello +client|setname"

func TestUser(t *testing.T) {
	each(t, func(t *testing.T, start func(...string) *server) {
		server := start()
		server.ask(t, "ACL SETUSER weir on >secret ~weir:* resetchannels -@all "+rights)
		server.ask(t, "ACL SETUSER default off")
		s := open(t, Config{URL: "redis://weir:secret@" + server.addr})
		if r := takeOne(t, s, quota.Per(10, time.Second)); !r.OK || r.Remaining != 9 {
			t.Errorf("%+v", r)
		}
		if err := s.Give(context.Background(), "k", []quota.Limit{quota.Per(10, time.Second)}, 1); err != nil {
			t.Error(err)
		}
		if _, err := New(Config{Addrs: []string{server.addr}, Username: "weir", Password: "wrong"}); err == nil ||
			!strings.Contains(err.Error(), "WRONGPASS") {
			t.Errorf("a wrong password: %v", err)
		}
		if _, err := New(Config{Addrs: []string{server.addr}}); err == nil || !strings.Contains(err.Error(), "NOAUTH") {
			t.Errorf("no password: %v", err)
		}
	})
}

// A right that is taken away is told by the error, and one that comes back is found.
func TestRightTakenAway(t *testing.T) {
	server := startRedis(t)
	server.ask(t, "ACL SETUSER weir on >secret ~weir:* resetchannels -@all "+rights)
	s := open(t, Config{Addrs: []string{server.addr}, Username: "weir", Password: "secret"})
	takeOne(t, s, quota.Per(1000, time.Second))
	server.ask(t, "ACL SETUSER weir -set")
	take := func() error {
		_, err := s.Take(context.Background(), &quota.Take{Key: "k", Limits: []quota.Limit{quota.Per(1000, time.Second)}, Cost: 1})
		return err
	}
	var e *Error
	if err := take(); !errors.As(err, &e) || e.Reason != Refused || e.Charged() {
		t.Errorf("%v, want that the server refuses", err)
	}
	eventually(t, 5*time.Second, "the store is down", func() bool { return take() != nil && s.Stats().Down })
	server.ask(t, "ACL SETUSER weir +set")
	eventually(t, 5*time.Second, "the store is up", func() bool { return take() == nil })
}

// A server that could drop buckets is refused, whether or not it is short of memory
// now, with a sentence that says what to set.
func TestEviction(t *testing.T) {
	for _, policy := range []string{"allkeys-lru", "volatile-lru", "allkeys-random", "volatile-ttl"} {
		server := startRedis(t, "--maxmemory-policy", policy)
		_, err := New(Config{Addrs: []string{server.addr}})
		if err == nil || !strings.Contains(err.Error(), "set maxmemory-policy noeviction") || !strings.Contains(err.Error(), policy) {
			t.Errorf("%s: %v", policy, err)
		}
		if s, err := New(Config{Addrs: []string{server.addr}, AssumeNoEviction: true}); err != nil {
			t.Errorf("%s, assumed: %v", policy, err)
		} else {
			s.Close()
		}
	}
}

// A user who may not read the policy is told what to do about it.
func TestPolicyUnreadable(t *testing.T) {
	server := startRedis(t)
	server.ask(t, "ACL SETUSER weir on >secret ~weir:* resetchannels -@all "+strings.ReplaceAll(rights, "+info ", ""))
	c := Config{Addrs: []string{server.addr}, Username: "weir", Password: "secret", Deadline: time.Second}
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
	eventually(t, 5*time.Second, "the store is down", func() bool {
		_, err := s.Take(context.Background(), &quota.Take{Key: "k", Limits: []quota.Limit{vast}, Cost: 1})
		return err != nil && s.Stats().Down
	})
	server.args = append(server.args, "--maxmemory-policy", "allkeys-lru")
	server.start(t)
	eventually(t, 5*time.Second, "the store says why", func() bool {
		st := s.Stats()
		return st.Down && errors.Is(st.Why, errUnfit)
	})
	server.ask(t, "CONFIG SET maxmemory-policy noeviction")
	eventually(t, 5*time.Second, "the store is up", func() bool { return !s.Stats().Down })
}

// A server out of memory refuses, and the buckets it has stay as they are.
func TestOutOfMemory(t *testing.T) {
	server := startRedis(t, "--maxmemory", "100mb")
	s := open(t, Config{Addrs: []string{server.addr}})
	takeOne(t, s, vast)
	server.ask(t, "CONFIG SET maxmemory 1mb")
	_, err := s.Take(context.Background(), &quota.Take{Key: "k", Limits: []quota.Limit{vast}, Cost: 1})
	var e *Error
	if !errors.As(err, &e) || e.Reason != Refused || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("%v, want out of memory", err)
	}
	server.ask(t, "CONFIG SET maxmemory 100mb")
	if r := takeOne(t, s, vast); r.Remaining != vast.Burst-2 {
		t.Errorf("%+v, want 2 charged", r)
	}
}

func TestTLS(t *testing.T) {
	cert, key, pool := certificate(t)
	server := startRedis(t)
	server.kill(t)
	server.args = append(server.args, "--tls-port", server.args[1], "--port", "0",
		"--tls-cert-file", cert, "--tls-key-file", key, "--tls-auth-clients", "no")
	server.start(t)
	s := open(t, Config{URL: "rediss://" + server.addr, TLS: &tls.Config{RootCAs: pool}})
	if r := takeOne(t, s, quota.Per(10, time.Second)); !r.OK {
		t.Errorf("%+v", r)
	}
	strict := open(t, Config{URL: "rediss://" + server.addr, DialTimeout: 300 * time.Millisecond})
	if st := strict.Stats(); !st.Down || st.Why == nil || !strings.Contains(st.Why.Error(), "certificate") {
		t.Errorf("a certificate that nobody vouches for: %+v", st)
	}
}

// certificate makes a certificate for 127.0.0.1 that vouches for itself.
func certificate(t *testing.T) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redis"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	pool = x509.NewCertPool()
	for name, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return cert, key, pool
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	startRedis(t, "--unixsocket", path)
	if r := takeOne(t, open(t, Config{URL: "unix://" + path}), quota.Per(10, time.Second)); !r.OK {
		t.Errorf("%+v", r)
	}
}
