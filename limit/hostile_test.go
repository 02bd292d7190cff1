package limit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
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

// blocked is a controller whose Update does not return until it is let go.
type blocked struct{ let chan struct{} }

func (blocked) Name() string { return "blocked" }
func (blocked) Start() control.Decision {
	return control.Decision{Limit: 1, Next: 10 * ms}
}
func (s blocked) Update(*control.Window) control.Decision {
	<-s.let
	return control.Decision{Limit: 2, Next: time.Hour}
}

// A controller that does not return holds up nothing but its own decisions: work
// is admitted and refused, waiters expire, snapshots are taken, and the limiter
// closes.
func TestStuckController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := blocked{make(chan struct{})}
		l, err := limit.New(limit.Config{Controller: c, Queue: limit.Queue{MaxWait: 100 * ms}})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * ms)
		synctest.Wait() // it is stuck by now

		p, err := l.Admit(t.Context(), weir.Work{})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, err = l.Admit(t.Context(), weir.Work{})
		if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonQueueTimeout || time.Since(began) != 100*ms {
			t.Errorf("%v after %v, want queue_timeout after 100ms", err, time.Since(began))
		}
		if s := l.Snapshot(); s.Controller != "blocked" || s.InFlight != 1 || s.Limit != 1 {
			t.Errorf("%+v", s)
		}
		p.Done(weir.OK)
		close(c.let)
		synctest.Wait()
		if s := l.Snapshot(); s.Limit != 2 {
			t.Errorf("limit %d when it has come back, want 2", s.Limit)
		}
		l.Close()
	})
}

// However far off a controller wants to be asked again, the limiter does not spin.
func TestWindowWithoutEnd(t *testing.T) {
	for _, next := range []time.Duration{math.MaxInt64, math.MaxInt64 - 1, -math.MaxInt64} {
		c := &wild{next: control.Decision{Limit: 7, Next: next}}
		l, now := byHand(limit.Config{Controller: c})
		*now, _ = l.Next()
		l.Step()
		if at, due := l.Next(); due && at <= *now {
			t.Errorf("Next %v: due again at %v, at once", next, at)
		}
	}
}

// Every way to change a limiter, all at once with windows that end, signals that
// are nonsense and a controller that panics now and then: the limit stays in its
// range, nothing is lost, and all of it ends.
func TestEverythingAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := limit.New(limit.Config{Controller: &moody{}, Signals: liar{}, Queue: limit.Queue{Len: 8, MaxWait: 5 * ms}})
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for i, f := range []func(n int){
			func(n int) { _ = l.SetLimit(int64(n%9) - 1) },
			func(n int) {
				l.Restore(control.State{Limit: []float64{math.NaN(), math.Inf(1), -3, 1e300, 4}[n%5], Baseline: time.Duration(n - 50)})
			},
			func(n int) {
				k, _ := control.NewBelief(control.BeliefConfig{Max: 50})
				capped, _ := control.NewCapped(k, control.CapConfig{Window: ms})
				next := []control.Controller{&moody{}, capped, nil}[n%3]
				cfg := limit.Config{Controller: next, Signals: liar{}, Queue: limit.Queue{Len: 8, MaxWait: 5 * ms}}
				if next == nil {
					cfg.Limit = 3
				}
				if err := l.Reconfigure(cfg); err != nil && !errors.Is(err, weir.ErrClosed) {
					t.Error(err)
				}
			},
			func(int) { l.Save() },
			func(int) {
				if s := l.Snapshot(); s.Limit < 1 || s.Limit > limit.MaxLimit {
					t.Errorf("limit %d", s.Limit)
				}
			},
			func(n int) { work(t, l, n) },
			func(n int) { work(t, l, n) },
			func(n int) {
				if n == 90 {
					l.Close()
				}
			},
		} {
			all.Go(func() {
				for n := range 100 {
					f(n)
					time.Sleep(time.Duration(1+(n*7+i)%5) * ms / 2)
				}
			})
		}
		all.Wait()
		if err := l.Drain(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func work(t *testing.T, l *limit.Limiter, n int) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n%7)*ms)
	defer cancel()
	w := weir.Work{Cost: int64(n % 4), MaxWait: time.Duration(n%3) * ms}
	if n%2 == 0 {
		w.Deadline = time.Now().Add(time.Duration(n%5-1) * ms)
	}
	if p, err := l.Admit(ctx, w); err == nil {
		time.Sleep(ms)
		p.Done(weir.Outcome(n % 5))
	}
}

// moody panics, wants nonsense, and sometimes what is sensible.
type moody struct{ n int64 }

func (*moody) Name() string { return "moody" }
func (*moody) Start() control.Decision {
	return control.Decision{Limit: 4, Next: ms}
}
func (m *moody) Update(*control.Window) control.Decision {
	m.n++
	switch m.n % 4 {
	case 0:
		panic(m.n)
	case 1:
		return control.Decision{Limit: -m.n, Next: ms}
	}
	return control.Decision{Limit: 1 + m.n%9, Next: ms, Extend: m.n%2 == 0}
}

// liar is a source that hands out what is no number, more of it each time, and
// panics.
type liar struct{}

func (liar) Readings(into []control.Reading) []control.Reading {
	if len(into) > 0 {
		panic("called with readings")
	}
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 1e308} {
		into = append(into, control.Reading{Name: "liar", Value: v, Known: true})
	}
	return into
}

// Work whose context is done is refused, also if it does not wait.
func TestDoneContextWithoutWait(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, w := range []weir.Work{{MaxWait: weir.NoWait}, {MaxWait: weir.NoWait, Cost: 2}, {MaxWait: weir.NoWait, Exempt: true}, {}} {
		l := weir.Must(limit.New(limit.Config{Limit: 2}))
		_, err := l.Admit(ctx, w)
		if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonCanceled || l.Snapshot().InFlight != 0 {
			t.Errorf("%+v: %v, %d in flight", w, err, l.Snapshot().InFlight)
		}
		l.Close()
	}
}

// A fixed limit has no windows. It tells those it refuses how long work has taken lately.
func TestRetryAfterOfAFixedLimit(t *testing.T) {
	l, now := byHand(limit.Config{Limit: 1})
	for range 12 {
		p, err := l.TryAdmit(weir.Work{})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = l.TryAdmit(weir.Work{}) // somebody wants it
		*now += 20 * time.Second
		p.Done(weir.OK)
	}
	if _, err := l.TryAdmit(weir.Work{}); err != nil {
		t.Fatal(err)
	}
	_, err := l.TryAdmit(weir.Work{})
	if r := weir.AsRejection(err); r == nil || r.RetryAfter < 15*time.Second || r.RetryAfter > 25*time.Second {
		t.Errorf("%v, want a time of about 20 s", err)
	}
}

// A stranger that leaves its waits, or sends too much, delays nobody else. Single users have 500 ms. They
// want half of the gate, and all of it now and then.
func TestAStrangerDelaysNobody(t *testing.T) {
	for _, tt := range []struct {
		name    string
		every   time.Duration // one request of the stranger
		tenants int
		leaves  bool
	}{
		{"waits", 50 * time.Millisecond, 1, false},
		{"leaves", 50 * time.Millisecond, 1, true},
		{"leaves, with ten tenants", 50 * time.Millisecond, 10, true},
		{"floods", 4 * time.Millisecond, 1, false},
		{"floods and leaves", 4 * time.Millisecond, 1, true},
	} {
		asked, lost := strangerBeside(t, tt.every, tt.tenants, tt.leaves)
		t.Logf("the stranger %s: %.2f %% of the users' requests are refused", tt.name, 100*float64(lost)/float64(asked))
		if lost > asked/100 {
			t.Errorf("the stranger %s: %d of the users' %d requests are refused", tt.name, lost, asked)
		}
	}
}

func strangerBeside(t *testing.T, every time.Duration, tenants int, leaves bool) (asked, lost int64) {
	synctest.Test(t, func(t *testing.T) {
		l := weir.Must(limit.New(limit.Config{Name: "api", Limit: 4}))
		dice := rand.New(rand.NewPCG(1, 2))
		var users, refused atomic.Int64
		var all sync.WaitGroup
		ask := func(ctx context.Context, user, tenant string, of *atomic.Int64) {
			takes := time.Duration(15+dice.IntN(10)) * time.Millisecond
			all.Go(func() {
				p, err := l.Admit(ctx, weir.Work{User: user, Tenant: tenant})
				if err != nil {
					of.Add(1)
					return
				}
				time.Sleep(takes)
				p.Done(weir.OK)
			})
		}
		one := func() {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			time.AfterFunc(time.Second, cancel)
			ask(ctx, fmt.Sprint("user", users.Add(1)), "", &refused)
		}
		const tick = time.Millisecond
		for now := tick; now < 2*time.Minute; now += tick {
			time.Sleep(tick)
			if dice.Float64() < 120*tick.Seconds() {
				one()
			}
			if now%(4*time.Second) == 0 {
				for range 60 {
					one()
				}
			}
			if now%every == 0 {
				ctx, cancel := context.WithCancel(t.Context())
				if leaves {
					time.AfterFunc(25*time.Millisecond, cancel)
				} else {
					time.AfterFunc(time.Minute, cancel)
				}
				ask(ctx, "stranger", fmt.Sprint(int(now/every)%tenants), new(atomic.Int64))
			}
		}
		all.Wait()
		asked, lost = users.Load(), refused.Load()
	})
	return asked, lost
}
