//go:build integration

package weirredis

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
)

// A lease whose time ends while the server's answer about more is on its way makes no
// place for another beside it: the bound would count it once, and it be spent twice.
func TestLeaseOfASlowServer(t *testing.T) {
	const tokens = 20
	l := quota.Limit{Rate: 100, Burst: 200}
	server := startRedis(t)
	slow := startSlowly(t, server)
	w := &sharers{}
	w.now.Store(1e12)
	for _, c := range []Config{
		{Addrs: []string{slow.addr}, Lease: Lease{Tokens: tokens, For: 20 * time.Millisecond}},
		{Addrs: []string{server.addr}},
	} {
		c.Now = func() time.Time { return time.UnixMicro(w.now.Load()) }
		s := open(t, c)
		s.clock = w.now.Load
		w.stores = append(w.stores, s)
	}
	leases := w.stores[0].leases
	left := func() float64 {
		r, err := w.stores[1].Take(context.Background(), &quota.Take{Key: "k", Limits: []quota.Limit{l}, Mode: quota.DryRun})
		if err != nil {
			t.Fatal(err)
		}
		return r.Remaining
	}
	slow.delay.Store(int64(300 * time.Millisecond))
	var wait sync.WaitGroup
	for n := range 3 {
		before := left()
		wait.Go(func() { w.take(t, 0, 1, l) })
		eventually(t, 5*time.Second, "the server has decided", func() bool { return left() < before })
		if lent := 200 - left() - float64(n+1); lent > tokens {
			t.Errorf("%v tokens lent to one process, at most %d", lent, tokens)
		}
		w.now.Add(1) // so that the bucket fills by next to nothing, and yet For is over
		leases.sweep(time.UnixMicro(w.now.Load()).Add(time.Minute))
	}
	wait.Wait()
}
