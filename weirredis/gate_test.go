//go:build integration

package weirredis

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/quota"
)

func newGate(t *testing.T, s *Store, onError quota.OnStoreError) *quota.Quota {
	t.Helper()
	gate, err := quota.New(quota.Config{
		Name: "api", Store: s, OnStoreError: onError,
		Rules: []quota.Rule{{User: quota.Every, Limits: []quota.Limit{quota.Per(10, time.Hour), quota.Per(100, 24*time.Hour)}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { gate.Close() })
	return gate
}

func admit(t *testing.T, gate *quota.Quota, n int) (admitted []weir.Permit, last *weir.Rejection) {
	t.Helper()
	for range n {
		p, err := gate.Admit(context.Background(), weir.Work{User: "alice"})
		if err == nil {
			admitted = append(admitted, p)
		} else if !errors.As(err, &last) {
			t.Fatal(err)
		}
	}
	return admitted, last
}

// Gates of the same name in several processes share their buckets, and what is given
// back in one can be used in another.
func TestGatesShare(t *testing.T) {
	addr := startRedis(t).addr
	a := newGate(t, open(t, Config{Addrs: []string{addr}}), quota.Closed)
	b := newGate(t, open(t, Config{Addrs: []string{addr}}), quota.Closed)
	first, _ := admit(t, a, 6)
	second, refused := admit(t, b, 6)
	if len(first)+len(second) != 10 || refused == nil || refused.Reason != weir.ReasonQuota {
		t.Fatalf("%d and %d let through, want 10 in all; %v", len(first), len(second), refused)
	}
	first[0].Cancel()
	for i := range first[1:] {
		first[1+i].Done(weir.OK)
	}
	if again, _ := admit(t, b, 2); len(again) != 1 {
		t.Errorf("%d let through after one was given back, want 1", len(again))
	}
}

// Without the server, a gate does as it was told.
func TestGateWithoutServer(t *testing.T) {
	server := startRedis(t)
	for _, c := range []struct {
		onError quota.OnStoreError
		want    int
	}{{quota.Local, 10}, {quota.Open, 30}, {quota.Closed, 0}} {
		s := open(t, Config{Addrs: []string{server.addr}, Deadline: 2 * time.Second, Prefix: "p:"})
		gate := newGate(t, s, c.onError)
		server.kill(t)
		through, refused := admit(t, gate, 30)
		if len(through) != c.want {
			t.Errorf("%v: %d let through without a server, want %d", c.onError, len(through), c.want)
		}
		if c.onError == quota.Closed && (refused == nil || refused.Reason != weir.ReasonStore || !errors.Is(refused, ErrUnavailable)) {
			t.Errorf("refused with %v, want why the store cannot tell", refused)
		}
		if n := gate.Faults().StoreErrors; n != 30 {
			t.Errorf("%v: %d errors of the store are told of, want 30", c.onError, n)
		}
		server.start(t)
		eventually(t, 10*time.Second, "the store is up", func() bool { return !s.Stats().Down })
		if through, _ := admit(t, gate, 12); len(through) != 10 {
			t.Errorf("%v: %d let through by the server, want 10", c.onError, len(through))
		}
		server.ask(t, "FLUSHALL")
	}
}

// A server that answers late opens no gate that is open without it: whoever keeps the
// process busy could make its answers late. One that says nothing for a second does.
func TestOpenGateWithLateServer(t *testing.T) {
	server := startRedis(t)
	slow := startSlowly(t, server)
	s := open(t, Config{Addrs: []string{slow.addr}, Deadline: 50 * time.Millisecond})
	gate := newGate(t, s, quota.Open)
	eventually(t, 10*time.Second, "an answer in time", func() bool {
		_, err := s.Take(t.Context(), &quota.Take{Key: "other", Limits: []quota.Limit{vast}, Cost: 1})
		return err == nil
	})
	slow.delay.Store(int64(100 * time.Millisecond))
	if through, refused := admit(t, gate, 30); len(through) != 10 || refused == nil {
		t.Errorf("%d let through by a server that is late, want 10 by buckets of the process; %v", len(through), refused)
	}
	server.signal(t, syscall.SIGSTOP)
	defer server.signal(t, syscall.SIGCONT)
	eventually(t, 10*time.Second, "the gate opens", func() bool {
		through, _ := admit(t, gate, 5)
		return len(through) == 5
	})
}
