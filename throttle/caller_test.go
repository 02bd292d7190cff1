package throttle

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
)

func mustCaller(t testing.TB, cfg CallerConfig) *Caller {
	t.Helper()
	if cfg.Random == nil {
		cfg.Random = func() float64 { return 0.9 } // above the share of a few failures
	}
	c, err := NewCaller(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var errOverload = &weir.Rejection{Gate: "far", Reason: weir.ReasonQueueFull, Retryable: true}

// A call that succeeds costs one allocation: the context that carries its permit.
func TestDoAllocatesOnce(t *testing.T) {
	c := mustCaller(t, CallerConfig{})
	ok := func(context.Context) error { return nil }
	n := testing.AllocsPerRun(100, func() { _ = c.Do(t.Context(), "a", weir.Work{}, false, ok) })
	if n > 1 {
		t.Errorf("%v allocations", n)
	}
}

// A call has three attempts at most, and the budget of its target is charged for two.
func TestDoTriesThrice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := mustCaller(t, CallerConfig{})
		n := 0
		err := c.Do(t.Context(), "a", weir.Work{}, false, func(context.Context) error { n++; return errOverload })
		if n != 3 || weir.AsRejection(err) != errOverload {
			t.Errorf("%d attempts, %v", n, err)
		}
		if s := c.Targets()[0]; s.RetriesLeft != 3 || s.Guard.Admitted != 3 {
			t.Errorf("%d retries left, %d sent; want 3 and 3", s.RetriesLeft, s.Guard.Admitted)
		}
	})
}

// Some errors end a call at once.
func TestDoEnds(t *testing.T) {
	for name, err := range map[string]error{
		"success":              nil,
		"not to be retried":    &weir.Rejection{Reason: weir.ReasonShed},
		"a fault of its own":   errors.New("no such row"),
		"not known to be safe": context.DeadlineExceeded,
	} {
		c := mustCaller(t, CallerConfig{})
		n := 0
		if got := c.Do(t.Context(), "a", weir.Work{}, false, func(context.Context) error { n++; return err }); n != 1 || !errors.Is(got, err) {
			t.Errorf("%s: %d attempts, %v", name, n, got)
		}
	}
}

// When the budget is used up nobody retries, however many attempts a call may have.
func TestDoWithinTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := mustCaller(t, CallerConfig{Guard: NoGuard})
		n := 0
		const calls = 1000
		for range calls {
			_ = c.Do(t.Context(), "a", weir.Work{}, true, func(context.Context) error { n++; return context.DeadlineExceeded })
			time.Sleep(10 * time.Millisecond)
		}
		if n > calls*11/10 || n < calls*105/100 {
			t.Errorf("%d attempts for %d calls, want 1.1 for each", n, calls)
		}
	})
}

// If a caller leaves during the back-off, the charge is refunded. If the back-off does not fit the deadline,
// the call does not wait.
func TestDoWhenTheCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := mustCaller(t, CallerConfig{Retry: Retry{Backoff: time.Minute, MaxBackoff: time.Minute}, Random: func() float64 { return 0.9 }})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		if err := c.Do(ctx, "a", weir.Work{}, true, func(context.Context) error { return errOverload }); weir.AsRejection(err) != errOverload {
			t.Errorf("%v, want what the last attempt said", err)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("left after %v", took)
		}
		if left := c.Targets()[0].RetriesLeft; left != 5 {
			t.Errorf("%d retries left: the charge did not come back", left)
		}
		began = time.Now()
		w := weir.Work{Deadline: time.Now().Add(30 * time.Second)}
		if err := c.Do(t.Context(), "a", w, true, func(context.Context) error { return errOverload }); err == nil || time.Since(began) != 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// Calls that this process refuses earn no retries. A call that is sent counts once.
func TestRefusedHereEarnsNothing(t *testing.T) {
	for _, tt := range []struct {
		own  weir.Gate
		want int
	}{{closedGate{}, 0}, {&openGate{}, 9}} {
		c := mustCaller(t, CallerConfig{Budget: BudgetConfig{Floor: -1}, Limit: tt.own, Now: func() time.Duration { return 0 }})
		for range 98 {
			_ = c.Do(t.Context(), "a", weir.Work{}, true, func(context.Context) error { return nil })
		}
		if tt.want > 0 {
			call := c.Start("a", time.Time{}, true)
			call.Sent()
			call.Sent() // as the hundredth it would earn a tenth retry
		}
		if left := c.Targets()[0].RetriesLeft; left != tt.want {
			t.Errorf("%T: %d retries for 99 calls, want %d", tt.own, left, tt.want)
		}
	}
}

// Work that this process refuses is not tried again, and gives no result for the target.
func TestDoRefusedHere(t *testing.T) {
	c := mustCaller(t, CallerConfig{Limit: closedGate{}})
	n := 0
	err := c.Do(t.Context(), "a", weir.Work{}, true, func(context.Context) error { n++; return nil })
	if r := weir.AsRejection(err); n != 0 || r == nil || r.Gate != "own" {
		t.Errorf("%d attempts, %v", n, err)
	}
	if s := c.Targets()[0]; s.Guard.Admitted != 0 || s.RetriesLeft != 5 {
		t.Errorf("%+v", s)
	}
}

// A breaker that opens between two attempts ends the call. The attempt that it refuses is not charged.
func TestDoWhenTheGuardOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := mustCaller(t, CallerConfig{Guard: GuardBreaker, Breaker: BreakerConfig{Run: 2}, Retry: Retry{Attempts: 7}})
		n := 0
		err := c.Do(t.Context(), "a", weir.Work{}, true, func(context.Context) error { n++; return errOverload })
		if r := weir.AsRejection(err); n != 2 || r == nil || r.Rule != "open" || !errors.Is(err, errOverload) {
			t.Errorf("%d attempts, %v; want two, and then a refusal that says why it was a retry", n, err)
		}
		if left := c.Targets()[0].RetriesLeft; left != 4 {
			t.Errorf("%d retries left, want 4", left)
		}
	})
}

// Nested retries do not multiply: the budget allows each layer a tenth.
func TestRetriesInRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := mustCaller(t, CallerConfig{Guard: NoGuard})
		n := 0
		const calls = 1000
		for range calls {
			_ = c.Do(t.Context(), "a", weir.Work{}, true, func(ctx context.Context) error {
				return c.Do(ctx, "a", weir.Work{}, true, func(context.Context) error { n++; return context.DeadlineExceeded })
			})
			time.Sleep(10 * time.Millisecond)
		}
		if n > calls*125/100 || n < calls*11/10 {
			t.Errorf("%d attempts for %d calls, want 1.1 to 1.25 for each", n, calls)
		}
	})
}

// gateFunc is a gate that is a function.
type gateFunc func(context.Context) (weir.Permit, error)

func (f gateFunc) Admit(ctx context.Context, _ weir.Work) (weir.Permit, error) { return f(ctx) }

// rude is an error that panics in errors.Is and errors.As.
type rude struct{}

func (rude) Error() string { return "rude" }
func (rude) Is(error) bool { panic("asked") }

// A probe that ends without a result gives its place back, however it ends, and no other place with it.
func TestProbesGiveTheirPlacesBack(t *testing.T) {
	do := func(fn func(ctx context.Context, leave func()) error) func(context.Context, func(), *Caller) {
		return func(ctx context.Context, leave func(), c *Caller) {
			_ = c.Do(ctx, "a", weir.Work{}, true, func(ctx context.Context) error { return fn(ctx, leave) })
		}
	}
	nothing := do(func(context.Context, func()) error {
		return errors.New("sent, although the own limit did not admit it")
	})
	leaves := func(ctx context.Context, leave func()) error { leave(); return ctx.Err() }
	admit := func(c *Caller) (weir.Permit, error) {
		call := c.Start("a", time.Time{}, false)
		return call.Gate().Admit(context.Background(), weir.Work{})
	}
	end := func(end func(weir.Permit)) func(context.Context, func(), *Caller) {
		return func(_ context.Context, _ func(), c *Caller) {
			if p, err := admit(c); err == nil {
				end(p)
			}
		}
	}
	for _, tt := range []struct {
		name  string
		own   func(ctx context.Context, leave func()) error // of the own limit; nil: it admits
		probe func(ctx context.Context, leave func(), c *Caller)
	}{
		{"panics", nil, do(func(ctx context.Context, _ func()) error { return panics(ctx) })},
		{"ends its goroutine", nil, do(func(context.Context, func()) error { runtime.Goexit(); return nil })},
		{"ends with an error that panics", nil, do(func(context.Context, func()) error { return rude{} })},
		{"its caller leaves", nil, do(leaves)},
		{"its caller had left before", nil, func(ctx context.Context, leave func(), c *Caller) { leave(); nothing(ctx, leave, c) }},
		{"calls again through the same guard, and its caller leaves", nil, func(ctx context.Context, leave func(), c *Caller) {
			_ = c.Do(ctx, "a", weir.Work{}, true, func(ctx context.Context) error {
				return c.Do(ctx, "a", weir.Work{}, true, func(ctx context.Context) error { return leaves(ctx, leave) })
			})
		}},
		{"the own limit refuses it", func(context.Context, func()) error { return &weir.Rejection{Gate: "own", Reason: weir.ReasonLimit} }, nothing},
		{"its caller leaves the own limit's room", leaves, nothing},
		{"the own limit panics", func(context.Context, func()) error { panic("own") }, nothing},
		{"is not sent", nil, end(weir.Permit.Cancel)},
		{"says nothing", nil, end(func(p weir.Permit) { p.Done(weir.NoSample) })},
		{"is given back thrice", nil, end(func(p weir.Permit) { p.Done(weir.Abandoned); p.Cancel(); p.Done(weir.Failed) })},
		{"is only asked about", nil, func(_ context.Context, _ func(), c *Caller) { c.Targets() }},
	} {
		var now time.Duration
		probing := false
		ctx, leave := context.WithCancel(t.Context())
		own := gateFunc(func(ctx context.Context) (weir.Permit, error) {
			if !probing || tt.own == nil {
				return weir.Permit{}, nil
			}
			return weir.Permit{}, tt.own(ctx, leave)
		})
		c := mustCaller(t, CallerConfig{Guard: GuardBreaker, Breaker: BreakerConfig{Run: 1, Probes: 1}, Limit: own,
			Retry: Retry{Attempts: 1}, Now: func() time.Duration { return now }})
		_ = c.Do(ctx, "a", weir.Work{}, true, func(context.Context) error { return errOverload })
		now, probing = 5*time.Second, true
		var group sync.WaitGroup
		group.Add(1)
		go func() { // not Go of the group, which must not panic
			defer group.Done()
			defer func() { _ = recover() }()
			tt.probe(ctx, leave, c)
		}()
		group.Wait()
		probing = false
		leave()
		if s := c.Targets()[0].Guard; s.Limit != 1 || s.InFlight != 0 {
			t.Errorf("a probe %s: %s, %d in flight; want it half-open", tt.name, s.LimitReason, s.InFlight)
			continue
		}
		p, err := admit(c)
		if err != nil {
			t.Errorf("a probe %s: its place is not free: %v", tt.name, err)
		}
		_, err = admit(c)
		if r := weir.AsRejection(err); r == nil || r.Rule != "half_open" || r.RetryAfter != 0 || !r.Retryable {
			t.Errorf("a probe %s: the only place is taken, and then %+v", tt.name, err)
		}
		if p.Done(weir.OK); c.Targets()[0].Guard.Limit != -1 {
			t.Errorf("a probe %s: %s after a good one", tt.name, c.Targets()[0].Guard.LimitReason)
		}
	}
}

// No attempt follows an attempt that was not sent, whatever its answer.
func TestDecideOfWhatWasNotSent(t *testing.T) {
	c := mustCaller(t, CallerConfig{})
	refused := Answer{Outcome: weir.Overload, Unstarted: true}
	call := c.Start("a", time.Time{}, true)
	if _, stop := call.Decide(refused); stop != StopRefused {
		t.Errorf("the first attempt: %q", stop)
	}
	call.Sent()
	if _, stop := call.Decide(refused); stop != Again {
		t.Fatalf("%q", stop)
	}
	if _, stop := call.Decide(refused); stop != StopRefused {
		t.Errorf("the second attempt: %q", stop)
	}
	if call.End(); c.Targets()[0].RetriesLeft != 5 {
		t.Errorf("%d retries left: the one that was not sent is not given back", c.Targets()[0].RetriesLeft)
	}
}

// The own limit stands behind the guard: work that the guard refuses does not ask it.
func TestOwnLimitIsBehindTheGuard(t *testing.T) {
	own := &openGate{}
	c := mustCaller(t, CallerConfig{Guard: GuardBreaker, Breaker: BreakerConfig{Run: 1}, Limit: own, Retry: Retry{Attempts: 1}})
	for range 3 {
		_ = c.Do(t.Context(), "a", weir.Work{}, true, func(context.Context) error { return errOverload })
	}
	if own.asked != 1 {
		t.Errorf("the own limit was asked %d times, want once: before the breaker opened", own.asked)
	}
}

// openGate admits everything, and counts.
type openGate struct{ asked int }

func (g *openGate) Admit(context.Context, weir.Work) (weir.Permit, error) {
	g.asked++
	return weir.Permit{}, nil
}

// A panic goes on, and the permit is given back.
func TestDoPanics(t *testing.T) {
	for _, kind := range []Guard{GuardThrottle, GuardBreaker, NoGuard} {
		c := mustCaller(t, CallerConfig{Guard: kind})
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			_ = c.Do(t.Context(), "a", weir.Work{}, true, panics)
		}()
		if s := c.Targets()[0]; s.Guard.InFlight != 0 {
			t.Errorf("guard %d: %d in flight", kind, s.Guard.InFlight)
		}
	}
}

// The attempt's number is in the work.
func TestDoCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []int
		c := mustCaller(t, CallerConfig{Hooks: weir.Hooks{Admitted: func(_ string, w weir.Work, _ time.Duration) { seen = append(seen, w.Attempt) }}})
		_ = c.Do(t.Context(), "a", weir.Work{Attempt: 7}, true, func(context.Context) error { return errOverload })
		if fmt.Sprint(seen) != "[0 1 2]" {
			t.Errorf("attempts %v", seen)
		}
	})
}

// Of a hundred thousand targets, the configured number is kept, and the oldest are evicted.
func TestTargetsAreBounded(t *testing.T) {
	var now time.Duration
	c := mustCaller(t, CallerConfig{Targets: 100, Now: func() time.Duration { return now }})
	for i := range 100_000 {
		if i%10 == 0 { // one that is in use all the time
			call := c.Start("busy", time.Time{}, false)
			call.Sent()
			call.Decide(Answer{Outcome: weir.Overload, Unstarted: true})
			call.End()
			p, err := call.Gate().Admit(t.Context(), weir.Work{})
			if err == nil {
				p.Done(weir.Overload)
			}
		}
		c.Start(fmt.Sprint("host-", i), time.Time{}, false)
	}
	list := c.Targets()
	if len(list) != 100 || len(c.targets) != 100 || c.Evicted() != 100_001-100 {
		t.Fatalf("%d targets, %d in the table, %d forgotten", len(list), len(c.targets), c.Evicted())
	}
	if list[0].Target != "host-99999" || list[99].Target != "host-99901" {
		t.Errorf("from %s to %s", list[0].Target, list[99].Target)
	}
	for _, s := range list {
		if s.Target == "busy" && s.Guard.Rejected[weir.ReasonThrottled] == 0 {
			t.Errorf("what was known of the busy one is gone: %+v", s.Guard)
		}
	}
}

// A target may be evicted while calls to it are in flight. Those calls end as usual, and later calls start with
// an empty history.
func TestTargetsForgottenInUse(t *testing.T) {
	for _, cfg := range []CallerConfig{{Targets: 1}, {Targets: 1, Guard: GuardBreaker, Breaker: BreakerConfig{Run: 1}}} {
		c := mustCaller(t, cfg)
		call := c.Start("old", time.Time{}, true)
		p, err := call.Gate().Admit(t.Context(), weir.Work{})
		if err != nil {
			t.Fatal(err)
		}
		call.Sent()
		c.Start("new", time.Time{}, true)
		p.Done(weir.Overload)
		if _, stop := call.Decide(Answer{Outcome: weir.Overload}); stop != Again {
			t.Errorf("guard %d: %q", cfg.Guard, stop)
		}
		call.End()
		again := c.Start("old", time.Time{}, true)
		if _, err := again.Gate().Admit(t.Context(), weir.Work{}); err != nil {
			t.Errorf("guard %d: what was forgotten counts: %v", cfg.Guard, err)
		}
		if s := c.Targets(); len(s) != 1 || s[0].RetriesLeft != 5 {
			t.Errorf("guard %d: %+v", cfg.Guard, s)
		}
	}
}

// Many goroutines call more targets than are kept.
func TestTargetsStorm(t *testing.T) {
	c := mustCaller(t, CallerConfig{Targets: 4, Retry: Retry{Backoff: time.Millisecond, MaxBackoff: time.Millisecond}})
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			for j := range 200 {
				_ = c.Do(t.Context(), fmt.Sprint("host-", (i+j)%16), weir.Work{}, true, func(context.Context) error {
					if j%20 == 0 {
						return errOverload
					}
					return nil
				})
			}
		})
	}
	callers.Wait()
	if list := c.Targets(); len(list) != 4 {
		t.Errorf("%d targets", len(list))
	}
	for _, s := range c.Targets() {
		if s.Guard.InFlight != 0 {
			t.Errorf("%s: %d in flight", s.Target, s.Guard.InFlight)
		}
	}
}

// A clock jumps during a call. The deadline of the call is on that clock.
func TestCallerClockJumps(t *testing.T) {
	now := time.Hour
	c := mustCaller(t, CallerConfig{Now: func() time.Duration { return now }})
	for _, tt := range []struct {
		name string
		to   time.Duration
		want Stop
	}{
		{"stands still", time.Hour, Again},
		{"beyond the deadline", 2 * time.Hour, StopLate},
		{"to the end of time", math.MaxInt64, StopLate},
		{"back", 0, Again},
		{"before the beginning", -time.Hour, Again},
		{"to the beginning of time", math.MinInt64 / 2, Again},
	} {
		now = time.Hour
		call := c.Start(tt.name, weir.VirtualEpoch.Add(time.Hour+time.Minute), true)
		call.Sent()
		now = tt.to
		if _, stop := call.Decide(Answer{Outcome: weir.Overload}); stop != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, stop, tt.want)
		}
		call.End()
	}
}

// BenchmarkCall measures a call that succeeds. The goal is 300 ns and one allocation.
func BenchmarkCall(b *testing.B) {
	c := mustCaller(b, CallerConfig{})
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		call := c.Start("a", time.Time{}, false)
		p, err := call.Gate().Admit(ctx, weir.Work{})
		if err != nil {
			b.Fatal(err)
		}
		call.Sent()
		p.Done(weir.OK)
		call.End()
	}
}

// Sending allocates nothing.
func TestCallAllocations(t *testing.T) {
	for _, kind := range []Guard{GuardThrottle, GuardBreaker, NoGuard} {
		c := mustCaller(t, CallerConfig{Guard: kind})
		c.Start("a", time.Time{}, false)
		n := testing.AllocsPerRun(100, func() {
			call := c.Start("a", time.Time{}, false)
			p, err := call.Gate().Admit(context.Background(), weir.Work{})
			if err != nil {
				t.Fatal(err)
			}
			call.Sent()
			p.Done(weir.OK)
			call.End()
		})
		if n > 0 {
			t.Errorf("guard %d: %v allocations for a call", kind, n)
		}
	}
}

// Do tells the gates the outcome by AnswerOf and by the context.
func TestDoTellsTheGates(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		end  func(context.Context) (context.Context, context.CancelFunc)
		want weir.Outcome
	}{
		{"success", nil, nil, weir.OK},
		{"a fault of its own", errors.New("no such row"), nil, weir.Failed},
		{"overload", errOverload, nil, weir.Overload},
		{"a quota of the target's", &weir.Rejection{Reason: weir.ReasonQuota, Retryable: true}, nil, weir.OK},
		{"no connection", &net.OpError{Op: "dial", Err: errors.New("connection refused")}, nil, weir.Overload},
		{"the caller left", errors.New("interrupted"), context.WithCancel, weir.Abandoned},
		{"out of time", errors.New("interrupted"), func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			return ctx, func() { <-ctx.Done(); cancel() }
		}, weir.Overload},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := mustCaller(t, CallerConfig{Retry: Retry{Attempts: 1}})
				ctx, end := t.Context(), func() {}
				if tt.end != nil {
					ctx, end = tt.end(ctx)
				}
				_ = c.Do(ctx, "a", weir.Work{}, true, func(context.Context) error { end(); return tt.err })
				if got := c.Targets()[0].Guard.Outcomes; len(got) != 1 || got[tt.want] != 1 {
					t.Errorf("the guard was told %v, want one %v", got, tt.want)
				}
			})
		})
	}
}

// In a handler, a back-off has to fit the deadline of the request that came in.
func TestDoInAHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := mustCaller(t, CallerConfig{Retry: Retry{Backoff: time.Minute, MaxBackoff: time.Minute}})
		ctx := weir.WithReceived(t.Context(), weir.Work{Deadline: time.Now().Add(30 * time.Second)})
		began := time.Now()
		if err := c.Do(ctx, "a", weir.Work{}, true, func(context.Context) error { return errOverload }); err == nil || time.Since(began) != 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// The gates are told the deadline: that of the context, of the work, or of the request that is handled, whichever comes
// first. fn has to end by it.
func TestDoHasOneDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := func(d time.Duration) time.Time { return time.Now().Add(d) }
		for name, tt := range map[string]struct {
			ctx, work, request time.Duration // 0: none
			want               time.Duration
		}{
			"none":           {0, 0, 0, 0},
			"of the context": {time.Second, 0, 0, time.Second},
			"of the work":    {time.Minute, time.Second, 0, time.Second},
			"alone":          {0, time.Second, 0, time.Second},
			"no later":       {time.Second, time.Minute, 0, time.Second},
			"of the request": {time.Minute, time.Minute, time.Second, time.Second},
		} {
			own := &tellsDeadline{}
			c := mustCaller(t, CallerConfig{Limit: own})
			ctx, w := t.Context(), weir.Work{}
			if tt.request > 0 {
				ctx = weir.WithReceived(ctx, weir.Work{Deadline: in(tt.request)})
			}
			if tt.ctx > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, tt.ctx)
				defer cancel()
			}
			if tt.work > 0 {
				w.Deadline = in(tt.work)
			}
			var until time.Time
			err := c.Do(ctx, "a", w, false, func(ctx context.Context) error {
				until, _ = ctx.Deadline()
				return nil
			})
			var want time.Time
			if tt.want > 0 {
				want = in(tt.want)
			}
			if err != nil || !own.deadline.Equal(want) || !until.Equal(want) {
				t.Errorf("%s: %v, the gate was told %v and fn %v, want %v", name, err, own.deadline, until, want)
			}
		}
	})
}

// tellsDeadline is a gate that remembers the deadline of the last work.
type tellsDeadline struct{ deadline time.Time }

func (g *tellsDeadline) Admit(_ context.Context, w weir.Work) (weir.Permit, error) {
	g.deadline = w.Deadline
	return weir.Permit{}, nil
}
