package keyed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

func newGate(t *testing.T, cfg Config) *Gate {
	t.Helper()
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// Waiters leave when their time is up, on the second, and when their context ends.
func TestWaitersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, Config{Limit: 1, Queue: Queue{MaxWait: 3 * time.Second}})
		defer g.Close()
		p := take(t, g, tenant("a"))
		start := time.Now()
		cancelled, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		leave := func(ctx context.Context, w weir.Work, want weir.Reason, after time.Duration) {
			wg.Go(func() {
				_, err := g.Admit(ctx, w)
				if r := weir.AsRejection(err); r == nil || r.Reason != want || time.Since(start) != after {
					t.Errorf("%v after %v, want %v after %v", err, time.Since(start), want, after)
				}
			})
		}
		leave(t.Context(), tenant("a"), weir.ReasonQueueTimeout, 3*time.Second)
		leave(t.Context(), weir.Work{Tenant: "a", MaxWait: time.Second}, weir.ReasonQueueTimeout, time.Second)
		leave(t.Context(), weir.Work{Tenant: "a", MaxWait: weir.NoWait}, weir.ReasonLimit, 0)
		leave(t.Context(), weir.Work{Tenant: "a", Deadline: start.Add(1500 * ms)}, weir.ReasonDeadline, 1500*ms)
		leave(cancelled, tenant("a"), weir.ReasonDeadline, 2*time.Second)
		wg.Wait()
		p.Done(weir.OK)
		if s := g.Snapshot(); s.Waiting != 0 || s.InFlight != 0 || s.Rejected[weir.ReasonQueueTimeout] != 2 {
			t.Errorf("%+v", s)
		}
	})
}

// The highest priority goes first, then users take turns.
func TestWhoGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, Config{Limit: 1})
		defer g.Close()
		p := take(t, g, tenant("a"))
		var order []string
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, w := range []weir.Work{
			{Op: "background", Priority: weir.Background}, {Op: "x1", User: "x"}, {Op: "x2", User: "x"},
			{Op: "y1", User: "y"}, {Op: "critical", Priority: 100},
		} {
			w.Tenant = "a"
			wg.Go(func() {
				p, err := g.Admit(t.Context(), w)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				order = append(order, w.Op)
				mu.Unlock()
				p.Done(weir.OK)
			})
			synctest.Wait()
		}
		if n := g.Snapshot().WaitingByClass; len(n) != 3 || n[weir.Background] != 1 || n[weir.Normal] != 3 || n[weir.Critical] != 1 {
			t.Errorf("waiting by class: %v", n)
		}
		p.Done(weir.OK)
		wg.Wait()
		if got := fmt.Sprint(order); got != "[critical x1 y1 x2 background]" {
			t.Error(got)
		}
	})
}

// A gate on the real clock asks its controller by itself, and stops when closed.
func TestTicksByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lag := &lagging{lag: 55_000}
		g := newGate(t, Config{Controller: weir.Must(control.NewLagMap(control.LagMapConfig{})), Signals: lag})
		time.Sleep(5*time.Second + 1)
		if s := g.Snapshot(); s.Limit != 505 {
			t.Errorf("%+v", s)
		}
		if err := g.Reconfigure(Config{Limit: 3}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if s := g.Snapshot(); s.Limit != 3 || s.Controller != "fixed" {
			t.Errorf("%+v", s)
		}
		g.Close()
		if err := g.Reconfigure(Config{Limit: 3}); !errors.Is(err, limit.ErrClosed) {
			t.Error(err)
		}
	})
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t, Config{Name: "g", Limit: 1})
		p, q := take(t, g, tenant("a")), take(t, g, weir.Work{Tenant: "b", Exempt: true})
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := g.Admit(t.Context(), tenant("a")); weir.AsRejection(err).Reason != weir.ReasonDraining {
				t.Error(err)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.Drain(ctx); err == nil || err.Error() != `keyed: gate "g": 2 still in flight: context deadline exceeded` {
			t.Error(err)
		}
		refused(t, g, tenant("c"), weir.ReasonDraining)
		time.AfterFunc(time.Second, func() { p.Done(weir.OK); q.Done(weir.OK) })
		if err := g.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}

// Work inside a permit of the same gate takes no second slot.
func TestNested(t *testing.T) {
	g := newGate(t, Config{Limit: 1})
	defer g.Close()
	err := weir.Do(t.Context(), g, tenant("a"), func(ctx context.Context) error {
		return weir.Do(ctx, g, tenant("a"), func(context.Context) error { return nil })
	})
	if err != nil || g.Snapshot().InFlight != 0 {
		t.Error(err)
	}
}

// Many goroutines on few keys, with idle keys evicted all the time and the limit
// on the move: no key ever has more at work than the largest limit, everything
// comes back, and nobody waits for ever.
func TestStress(t *testing.T) {
	const goroutines, most, spread = 16, 3, 40
	cfg := Config{Limit: most, MaxKeys: 24, Queue: Queue{Len: 12, MaxWait: -1}, Overrides: map[string]Override{"k1": {Limit: 1}}}
	g := newGate(t, cfg)
	defer g.Close()
	var working [spread]atomic.Int64
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for n := range goroutines {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(n), 1))
			for range 400 {
				key := rng.IntN(spread)
				p, err := stressAdmit(g, rng, fmt.Sprint("k", key))
				if err != nil {
					continue
				}
				admitted.Add(1)
				if n := working[key].Add(1); n > most {
					t.Errorf("%d at work for key %d", n, key)
				}
				if rng.IntN(4) == 0 {
					p.Sample(weir.OK)
				}
				working[key].Add(-1)
				if rng.IntN(8) == 0 {
					p.Cancel()
				}
				p.Done(weir.OK)
				p.Done(weir.OK)
			}
		})
	}
	wg.Go(func() {
		for i := range 60 {
			next := cfg
			next.Limit = 1 + int64(i)%most
			if err := g.Reconfigure(next); err != nil {
				t.Error(err)
			}
			g.Usage(3)
		}
	})
	wg.Wait()
	u := g.Usage(0)
	if u.InFlight != 0 || u.Waiting != 0 || u.Busy != 0 || u.Keys > 24 || u.Evicted == 0 || admitted.Load() == 0 {
		t.Errorf("%+v, %d admitted", u, admitted.Load())
	}
}

func stressAdmit(g *Gate, rng *rand.Rand, key string) (weir.Permit, error) {
	w := weir.Work{Tenant: key, Cost: int64(rng.IntN(3))}
	switch rng.IntN(4) {
	case 0:
		return g.TryAdmit(w)
	case 1:
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.IntN(200))*time.Microsecond)
		defer cancel()
		return g.Admit(ctx, w)
	case 2:
		answer := make(chan weir.Permit, 1)
		p, waiter, err := g.Arrive(w, func(p weir.Permit, _ error) { answer <- p })
		if err != weir.ErrWaiting {
			return p, err
		}
		if rng.IntN(2) == 0 && waiter.Cancel() {
			return p, err
		}
		if p = <-answer; !p.Live() {
			return p, errors.New("refused later")
		}
		return p, nil
	}
	w.MaxWait = time.Duration(1+rng.IntN(300)) * time.Microsecond
	return g.Admit(context.Background(), w)
}
