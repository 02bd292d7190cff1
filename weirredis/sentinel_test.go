//go:build integration

package weirredis

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
)

// pair is a master, its replica and a sentinel that watches them.
type pair struct{ master, replica, sentinel *server }

// sentinelRights are those that the package's documentation lists for a user at the
// sentinels.
const sentinelRights = "allchannels -@all +sentinel|sentinels +sentinel|get-master-addr-by-name +subscribe +unsubscribe +hello +ping"

// startPair starts them, with TLS throughout if id is not nil. Then the sentinel knows
// the user watch, and does not know weir.
func startPair(t *testing.T, id *identity) pair {
	t.Helper()
	var p pair
	options := []string{"--repl-diskless-sync-delay", "0"}
	start := func(more ...string) *server { return startRedis(t, append(options, more...)...) }
	if id != nil {
		options = append(options, "--tls-replication", "yes")
		start = func(more ...string) *server { return startTLS(t, id, append(options, more...)...) }
	}
	p.master = start()
	p.replica = start("--replicaof", "127.0.0.1", p.master.port())
	for _, n := range []*server{p.master, p.replica} {
		n.grant(t, rights+" +role")
	}
	// A sentinel looks for replicas at its start, and then after ten seconds.
	eventually(t, 10*time.Second, "the replica follows", func() bool {
		return strings.Contains(p.master.ask(t, "INFO replication"), "state=online")
	})
	p.sentinel = startSentinel(t, p.master, id, 1)
	return p
}

// startSentinel starts a sentinel that thinks a master gone after 300 ms, and gives it up
// when so many sentinels think so.
func startSentinel(t *testing.T, master *server, id *identity, quorum int) *server {
	t.Helper()
	s := &server{program: master.program, dir: t.TempDir(), addr: freeAddr(t), tls: id}
	config := fmt.Sprintf("bind 127.0.0.1\ndir %s\nsentinel monitor main 127.0.0.1 %s %d\n"+
		"sentinel down-after-milliseconds main 300\nsentinel failover-timeout main 3000\n", s.dir, master.port(), quorum)
	if id == nil {
		config += "port " + s.port() + "\n"
	} else {
		config += fmt.Sprintf("port 0\ntls-port %s\ntls-cert-file %s\ntls-key-file %s\ntls-ca-cert-file %s\ntls-auth-clients no\ntls-replication yes\n",
			s.port(), id.cert, id.key, id.cert)
		if !master.before62(t) { // sentinels have no users yet
			config += "user watch on >theirs " + sentinelRights + "\n"
		}
	}
	file := filepath.Join(s.dir, "sentinel.conf")
	writeFile(t, file, config)
	s.launch(t, []string{file, "--sentinel"})
	return s
}

// config is that of a store behind the sentinel.
func (p pair) config(t *testing.T, id *identity) Config {
	t.Helper()
	c := Config{
		Addrs: []string{p.sentinel.addr}, Sentinel: Sentinel{Master: "main"}, Username: "weir", Password: "secret",
		Deadline: time.Second, DialTimeout: time.Second,
	}
	if id != nil {
		c.TLS, c.Sentinel.TLS = id.trust(), id.trust()
		if !p.master.before62(t) {
			c.Sentinel.Username, c.Sentinel.Password = "watch", "theirs"
		}
	}
	return c
}

// A master that is killed is followed to where the sentinel says.
func TestSentinel(t *testing.T) {
	t.Parallel()
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		p := startPair(t, nil)
		c := p.config(t, nil)
		c.Sentinel.Master = "mian"
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), "No such master") {
			t.Errorf("a master that is not there: %v", err)
		}
		followed(t, p, p.config(t, nil))
	})
	t.Run("TLS", func(t *testing.T) {
		t.Parallel()
		id := certificate(t)
		p := startPair(t, id)
		c := p.config(t, id)
		c.Sentinel.Username, c.Sentinel.Password = c.Username, c.Password
		if _, err := New(c); !p.master.before62(t) && (err == nil || !strings.Contains(err.Error(), "WRONGPASS")) {
			t.Errorf("the password of the servers at the sentinel: %v", err)
		}
		c = p.config(t, id)
		c.URL, c.Addrs, c.Sentinel.TLS = "rediss://"+p.sentinel.addr+"?master_set=main", nil, nil
		servers, sentinels := c.Password, c.Sentinel.Password // which are asked for by whom they are for
		c.Password, c.PasswordFunc = "", func() (string, error) { return servers, nil }
		c.Sentinel.Password, c.Sentinel.PasswordFunc = "", func() (string, error) { return sentinels, nil }
		followed(t, p, c)
	})
}

// A sentinel that stands still is left for another: the store that was connected to it
// still follows the master.
func TestSentinelStandsStill(t *testing.T) {
	t.Parallel()
	p := startPair(t, nil)
	for range 2 {
		startSentinel(t, p.master, nil, 1)
	}
	eventually(t, 20*time.Second, "the sentinels know each other", func() bool {
		return strings.Contains(p.sentinel.ask(t, "INFO sentinel"), ",sentinels=3")
	})
	s := open(t, p.config(t, nil))
	takeOne(t, s, vast)
	p.sentinel.signal(t, syscall.SIGSTOP)
	takeOne(t, s, vast)
	p.master.kill(t)
	eventually(t, 30*time.Second, "a decision by the new master", func() bool {
		_, err := s.Take(context.Background(), &quota.Take{Key: "k", Limits: []quota.Limit{vast}, Cost: 1})
		return err == nil
	})
}

// followed kills the master and waits for decisions by the replica.
func followed(t *testing.T, p pair, c Config) {
	t.Helper()
	s := open(t, c)
	l := quota.Limit{Rate: 1e-9, Burst: 100}
	if r := takeOne(t, s, l); r.Remaining != 99 {
		t.Fatalf("%+v", r)
	}
	p.ready(t, "weir:{=k}")
	p.master.kill(t)
	var r quota.Result
	perhaps := 0 // charged to those who were not told
	eventually(t, 30*time.Second, "a decision by the new master", func() bool {
		var e *Error
		var err error
		r, err = s.Take(context.Background(), &quota.Take{Key: "k", Limits: []quota.Limit{l}, Cost: 1})
		if errors.As(err, &e) && e.Charged() {
			perhaps++
		}
		return err == nil
	})
	if left := math.Round(r.Remaining); left > 98 || left < float64(98-perhaps) {
		t.Errorf("%+v, want 98 left, less at most %d: what was charged before counts", r, perhaps)
	}
}

// ready waits until the replica has a key and could take over.
func (p pair) ready(t *testing.T, key string) {
	t.Helper()
	eventually(t, 10*time.Second, "the replica has it", func() bool {
		return strings.Contains(p.replica.ask(t, "EXISTS "+key), "1")
	})
	eventually(t, 15*time.Second, "the sentinel knows the replica", func() bool {
		return strings.Contains(p.sentinel.ask(t, "INFO sentinel"), "status=ok,address="+p.master.addr+",slaves=1")
	})
}
