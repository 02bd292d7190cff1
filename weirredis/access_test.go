//go:build integration

package weirredis

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
)

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
		if err := s.Give(context.Background(), "k", []quota.Limit{quota.Per(10, time.Second)}, 1); err != nil {
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
	server := startRedis(t)
	server.grant(t, rights)
	var password atomic.Value
	password.Store("secret")
	s := open(t, Config{
		Addrs: []string{server.addr}, Username: "weir", DialTimeout: 300 * time.Millisecond,
		PasswordFunc: func() (string, error) { return password.Load().(string), nil },
	})
	take := func() error {
		_, err := s.Take(context.Background(), &quota.Take{Key: "k", Limits: []quota.Limit{vast}, Cost: 1})
		return err
	}
	takeOne(t, s, vast)
	server.ask(t, "ACL SETUSER weir resetpass >changed")
	cut := func() {
		for range 8 { // the client has several connections
			server.ask(t, "CLIENT KILL TYPE normal SKIPME yes")
		}
	}
	cut()
	eventually(t, 5*time.Second, "the old password is refused", func() bool {
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
	eventually(t, 5*time.Second, "the store is down", func() bool { return take() != nil && s.Stats().Down })
	password.Store("changed")
	eventually(t, 5*time.Second, "the new password is used", func() bool { return take() == nil })
}

// A right that is taken away is told by the error, and one that comes back is found.
func TestRightTakenAway(t *testing.T) {
	server := startRedis(t)
	server.grant(t, rights)
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
		_, err := New(Config{Addrs: []string{server.addr}, DialTimeout: patient})
		if err == nil || !strings.Contains(err.Error(), "set maxmemory-policy noeviction") || !strings.Contains(err.Error(), policy) {
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
	server.ask(t, "CONFIG SET maxmemory 1")
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

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	startRedis(t, "--unixsocket", path)
	if r := takeOne(t, open(t, Config{URL: "unix://" + path}), quota.Per(10, time.Second)); !r.OK {
		t.Errorf("%+v", r)
	}
}
