//go:build integration

package weirredis

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/quota"
)

// Two processes charge one bucket ahead of the server, as fast as their debts let them. Together they get what the quota gives, to the
// last token, and each asks the server 50 times a second at most.
func TestAheadOfAServer(t *testing.T) {
	t.Parallel() // it mostly waits
	each(t, func(t *testing.T, start func(options ...string) *server) {
		server := start()
		const rate, burst, size, callers = 1e6, 1e6, 1000, 8
		var stores []*Store
		var gates []*quota.Quota
		for range 2 {
			s := open(t, Config{Addrs: []string{server.addr}, Deadline: 10 * time.Second})
			g, err := quota.New(quota.Config{Name: "bytes", Store: s, OnStoreError: quota.Closed, Rules: []quota.Rule{{User: quota.Every, Windows: []quota.Window{{Rate: rate, Burst: burst}}}}})
			if err != nil {
				t.Fatal(err)
			}
			stores, gates = append(stores, s), append(gates, g)
		}
		w := weir.Work{User: "alice", Cost: size}
		var charged atomic.Int64
		var all sync.WaitGroup
		over, stood := make(chan struct{}), make(chan time.Duration, 1)
		go standstills(over, stood)
		begin := time.Now()
		for _, g := range gates {
			for range callers {
				all.Go(func() {
					for time.Since(begin) < 3*time.Second {
						_, a, err := g.AdmitAhead(t.Context(), w)
						if err != nil {
							t.Error(err)
							return
						}
						charged.Add(size)
						if a.Wait > 0 {
							<-time.After(a.Wait) // told when to come back, as a connection that is not read
						}
					}
				})
			}
		}
		all.Wait()
		passed := time.Since(begin)
		for i, g := range gates {
			g.Close()
			if n, most := stores[i].Stats().Decisions, uint64(passed/(20*time.Millisecond))+2; n > most || n < 2 {
				t.Errorf("%d decisions in %v, want at most %d", n, passed, most)
			}
		}
		look := &quota.Request{Key: "bytes/user=alice", Windows: []quota.Window{{Rate: rate, Burst: burst}}, Debt: true, Mode: quota.DryRun}
		d, err := stores[0].Decide(t.Context(), look)
		if err != nil {
			t.Fatal(err)
		}
		close(over)
		// What was charged and not told would still be there; what was told twice would be owed. While the machine stands still
		// the bucket is full, and nobody asks.
		gave, vain := burst+rate*time.Since(begin).Seconds(), rate*(<-stood).Seconds()
		if got := float64(charged.Load()) + d.Remaining; got > gave || got < (gave-vain)/2 {
			t.Errorf("%v charged and %v left, of %v that the quota has given, %v of it while nobody could ask", charged.Load(), d.Remaining, gave, vain)
		}
	})
}

// standstills adds up for how long this process was held up, until that is over.
func standstills(over <-chan struct{}, stood chan<- time.Duration) {
	const pause, late = 10 * time.Millisecond, 100 * time.Millisecond
	var sum time.Duration
	for {
		begin := time.Now()
		select {
		case <-over:
			stood <- sum
			return
		case <-time.After(pause):
			if d := time.Since(begin) - pause; d > late {
				sum += d
			}
		}
	}
}
