package quota

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
)

// rig is a gate on a clock that the test moves.
type rig struct {
	*Quota
	*testing.T
	clock *still
}

func newRig(t *testing.T, cfg Config) *rig {
	t.Helper()
	clock := &still{}
	cfg.Name, cfg.Now = "q", clock.now
	return &rig{newQuota(t, cfg), t, clock}
}

func newQuota(t testing.TB, cfg Config) *Quota {
	t.Helper()
	q, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	return q
}

func (r *rig) admit(w weir.Work) weir.Permit {
	r.Helper()
	p, err := r.TryAdmit(w)
	if err != nil {
		r.Fatalf("%+v: %v", w, err)
	}
	return p
}

func (r *rig) refused(w weir.Work) *weir.Rejection {
	r.Helper()
	_, err := r.TryAdmit(w)
	return r.rejection(err)
}

func (r *rig) rejection(err error) *weir.Rejection {
	r.Helper()
	got := weir.AsRejection(err)
	if got == nil {
		r.Fatalf("%v, want a rejection", err)
	}
	return got
}

// left is how many tokens the bucket of w has.
func (r *rig) left(w weir.Work) float64 {
	r.Helper()
	w.Cost = 0
	id := r.Quota.settings.Load().identify(w)
	rule := r.Quota.settings.Load().rules.find(&id)
	key := string(appendKey(nil, "q", rule, &id))
	return take(r, r.store, Take{Key: key, Limits: rule.limits, Mode: DryRun, Debt: true}).Remaining
}

func everyUser(limits ...Limit) []Rule { return []Rule{{User: Every, Limits: limits}} }

var (
	alice = weir.Work{User: "alice"}
	bob   = weir.Work{User: "bob"}
)

func of(w weir.Work, cost int64) weir.Work { w.Cost = cost; return w }

func TestQuota(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Per(2, time.Second))})
	r.admit(alice)
	r.admit(alice).Done(weir.OK)
	got := r.refused(alice)
	want := weir.Rejection{Gate: "q", Rule: "user=*", Reason: weir.ReasonQuota, Value: 2, Limit: 2, RetryAfter: 500 * ms, Retryable: true}
	if *got != want {
		t.Errorf("%+v, want %+v", *got, want)
	}
	r.admit(bob)
	r.clock.advance(500 * ms)
	r.admit(alice)
	if got := r.refused(of(bob, 3)); got.Reason != weir.ReasonTooLarge || got.Retryable || got.Value != 3 || got.Limit != 2 {
		t.Errorf("a cost above the burst: %+v", *got)
	}
	if got := r.refused(of(bob, -1)); got.Reason != weir.ReasonTooLarge {
		t.Errorf("a negative cost: %+v", *got)
	}
	if got := r.refused(of(bob, math.MaxInt64)); got.Reason != weir.ReasonTooLarge {
		t.Errorf("the greatest cost: %+v", *got)
	}
}

// Which of several windows refuses is said, also where they have the same burst.
func TestRefusalNamesItsWindow(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Limit{Rate: 10, Burst: 2}, Limit{Rate: 1, Burst: 2}, Limit{Rate: 1, Burst: 4})})
	r.admit(of(alice, 2))
	if got := r.refused(alice); got.Window != 2 || got.Limit != 2 || got.RetryAfter != time.Second {
		t.Errorf("%+v, want the second window's", *got)
	}
	if got := r.refused(of(bob, 3)); got.Window != 2 || got.Reason != weir.ReasonTooLarge || got.Limit != 2 {
		t.Errorf("%+v, want the last window that it is too large for", *got)
	}
	single := newRig(t, Config{Rules: everyUser(Per(1, time.Hour))})
	single.admit(alice)
	if got := single.refused(alice); got.Window != 0 {
		t.Errorf("%+v, want no window: there is one", *got)
	}
}

// S24: a rate of 5, a burst of 500, a cost of 560.
func TestDebt(t *testing.T) {
	r := newRig(t, Config{Debt: true, Rules: everyUser(Samples(5, 100, time.Second))})
	r.admit(of(alice, 560))
	if got := r.refused(alice); got.RetryAfter != 12*time.Second || got.Value != 560 || got.Remaining != -60 {
		t.Errorf("%+v", *got)
	}
	r.clock.advance(12*time.Second - ms)
	if got := r.refused(alice); got.RetryAfter != ms {
		t.Errorf("a millisecond before: %+v", *got)
	}
	r.clock.advance(ms)
	r.admit(alice)
}

// K24: whom no rule matches is not limited. Exempt and blocked are what they say.
func TestWithoutLimit(t *testing.T) {
	r := newRig(t, Config{Rules: []Rule{
		{Client: Named("batch"), Limits: []Limit{Per(1, time.Hour)}},
		{User: Named("root"), Exempt: true},
		{Name: "banned", User: Named("eve"), Blocked: true},
	}})
	for range 3 {
		r.admit(of(alice, 30))
		r.admit(weir.Work{User: "root", Client: "batch"})
		r.admit(weir.Work{Client: "batch", User: "eve", Exempt: true})
	}
	if got := r.refused(weir.Work{User: "eve", Client: "batch"}); got.Reason != weir.ReasonBlocked || got.Rule != "banned" || got.Retryable {
		t.Errorf("%+v", *got)
	}
	r.admit(weir.Work{User: "alice", Client: "batch"})
	if s := r.Snapshot(); s.ExemptAdmitted != 9 || s.Admitted != 1 || s.Rejected[weir.ReasonBlocked] != 1 {
		t.Errorf("%+v", s)
	}
}

// What the work has really cost is settled, once, and Cancel gives all back.
func TestSettle(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Limit{Rate: .001, Burst: 100}, Limit{Rate: .001, Burst: 1000})})
	p := r.admit(of(alice, 10))
	p.SetCost("", 25)
	p.SetCost("another gate", 90)
	p.SetCost("q", 30)
	if got := r.left(alice); got != 70 {
		t.Errorf("%v left, want 70", got)
	}
	p.SetCost("", 5)
	p.Done(weir.OK)
	p.SetCost("", 50)
	p.Cancel()
	if got := r.left(alice); got != 95 {
		t.Errorf("%v left, want 95: settled after the end", got)
	}
	p = r.admit(of(alice, 50))
	p.SetCost("", 300)
	if got := r.left(alice); got != -205 {
		t.Errorf("%v left, want -205", got)
	}
	p.Cancel()
	p.Cancel()
	if got := r.left(alice); got != 95 {
		t.Errorf("%v left, want 95", got)
	}
	q := r.admit(of(alice, 50))
	q.SetCost("", -7)
	if got := r.left(alice); got != 95 {
		t.Errorf("%v left, want 95: a negative cost is none", got)
	}
	if s := r.Snapshot(); s.InFlight != 1 || s.Admitted != 2 || s.Outcomes[weir.OK] != 1 {
		t.Errorf("%+v", s)
	}
}

// In a chain, what a later gate refuses is given back.
func TestInAChain(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Per(10, time.Hour))})
	other := newRig(t, Config{Rules: []Rule{{Limits: []Limit{Per(1, time.Hour)}}}})
	gate := weir.All(r.Quota, other.Quota)
	for i := range 5 {
		p, err := gate.Admit(ctx, alice)
		if (err == nil) != (i == 0) {
			t.Errorf("%d: %v", i, err)
		}
		p.Done(weir.OK)
	}
	if got := r.left(alice); got != 9 {
		t.Errorf("%v left, want 9", got)
	}
}

// M60: rate 4, burst 2, ten at once: two go at once, then one every 250 ms.
func TestWaitersGoOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuota(t, Config{Name: "q", Rules: everyUser(Limit{Rate: 4, Burst: 2}), Queue: Queue{Len: 100, MaxWait: time.Minute}})
		began := time.Now()
		var mu sync.Mutex
		var at []time.Duration
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				p, err := q.Admit(ctx, alice)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				at = append(at, time.Since(began).Round(ms))
				mu.Unlock()
				p.Done(weir.OK)
			})
		}
		synctest.Wait()
		if s := q.Snapshot(); s.Waiting != 8 || s.Admitted != 2 { // M61
			t.Errorf("%+v", s)
		}
		wg.Wait()
		slices.Sort(at)
		for i, got := range at {
			if want := time.Duration(max(i-1, 0)) * 250 * ms; got != want {
				t.Errorf("number %d went after %v, want %v", i, got, want)
			}
		}
		if s := q.Snapshot(); s.Waiting != 0 || s.Admitted != 10 || len(s.Rejected) != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// M64: who gives up gives back, whatever the reason.
func TestWaitersGiveBack(t *testing.T) {
	for name, c := range map[string]struct {
		leave  func(*Quota, context.CancelFunc)
		reason weir.Reason
	}{
		"cancelled": {func(_ *Quota, cancel context.CancelFunc) { cancel() }, weir.ReasonCanceled},
		"closed":    {func(q *Quota, _ context.CancelFunc) { q.Close() }, weir.ReasonDraining},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rejected := 0
				q := newQuota(t, Config{Name: "q", Rules: everyUser(Limit{Rate: .01, Burst: 1}), Queue: Queue{Len: 1, MaxWait: -1},
					Hooks: weir.Hooks{Rejected: func(weir.Work, *weir.Rejection) { rejected++ }}})
				if _, err := q.Admit(ctx, alice); err != nil {
					t.Fatal(err)
				}
				waiting, cancel := context.WithCancel(ctx)
				defer cancel()
				var wg sync.WaitGroup
				wg.Go(func() {
					if _, err := q.Admit(waiting, alice); weir.AsRejection(err) == nil || weir.AsRejection(err).Reason != c.reason {
						t.Errorf("%v, want %v", err, c.reason)
					}
				})
				synctest.Wait()
				c.leave(q, cancel)
				wg.Wait()
				r := take(t, q.store, Take{Key: "q/user=alice", Limits: []Limit{{Rate: .01, Burst: 1}}, Debt: true, Mode: DryRun})
				if math.Abs(r.Remaining) > 1e-3 || rejected != 1 || q.Snapshot().Waiting != 0 {
					t.Errorf("%v left, want 0; %d rejected; %+v", r.Remaining, rejected, q.Snapshot())
				}
			})
		})
	}
}

// Who would have to wait too long is refused at once, with the wait, and takes
// nothing.
func TestPatience(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Limit{Rate: .1, Burst: 1}), Queue: Queue{Len: 10, MaxWait: 15 * time.Second}})
	r.admit(alice)
	for name, w := range map[string]weir.Work{
		"by itself":   {User: "alice", MaxWait: 9 * time.Second},
		"by deadline": {User: "alice", Deadline: VirtualEpoch.Add(9 * time.Second)},
		"not at all":  {User: "alice", MaxWait: weir.NoWait},
	} {
		if _, err := r.Admit(ctx, w); r.rejection(err).RetryAfter != 10*time.Second || r.left(alice) != 0 {
			t.Errorf("%s: %v, %v left", name, err, r.left(alice))
		}
	}
	if got := r.refused(weir.Work{User: "alice", Deadline: VirtualEpoch.Add(-1)}); got.Reason != weir.ReasonDeadline {
		t.Errorf("too late: %+v", *got)
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := r.Admit(done, bob); r.rejection(err).Reason != weir.ReasonCanceled || !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// An event loop waits without a goroutine, on a clock of its own.
func TestArrive(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Limit{Rate: 1, Burst: 1}), Queue: Queue{Len: 2, MaxWait: time.Minute}})
	var woken []error
	wake := func(p weir.Permit, err error) {
		woken = append(woken, err)
		if err == nil && !p.Live() {
			t.Error("woken without a permit")
		}
	}
	if p, _, err := r.Arrive(alice, wake); err != nil || !p.Live() {
		t.Fatal(err)
	}
	_, first, err := r.Arrive(alice, wake)
	if err != weir.ErrWaiting {
		t.Fatal(err)
	}
	_, second, err := r.Arrive(alice, wake)
	if err != weir.ErrWaiting {
		t.Fatal(err)
	}
	if _, _, err := r.Arrive(alice, wake); r.rejection(err).Reason != weir.ReasonQueueFull || r.rejection(err).RetryAfter != 3*time.Second {
		t.Errorf("%v", err)
	}
	if at, ok := r.Next(); !ok || at != time.Second {
		t.Errorf("the next is due at %v, %v", at, ok)
	}
	r.clock.advance(time.Second - ms)
	if r.Step(); len(woken) != 0 {
		t.Error("woken too early")
	}
	r.clock.advance(ms)
	if r.Step(); len(woken) != 1 || first.Cancel() {
		t.Errorf("woken: %v", woken)
	}
	if !second.Cancel() || second.Cancel() || r.left(alice) != 0 {
		t.Errorf("%v left after one has left, want 0", r.left(alice))
	}
	if _, _, err := r.Arrive(alice, wake); err != weir.ErrWaiting {
		t.Fatal(err)
	}
	if r.Close(); len(woken) != 2 || r.rejection(woken[1]).Reason != weir.ReasonDraining {
		t.Errorf("closed: %v", woken)
	}
	if _, ok := r.Next(); ok {
		t.Error("something is due in a closed gate")
	}
	if got := r.refused(bob); got.Reason != weir.ReasonDraining {
		t.Errorf("%+v", *got)
	}
	if err := r.Reconfigure(Config{}); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
}

// A rate that changes keeps tokens and debts; a rule that is added changes the key.
func TestReconfigure(t *testing.T) {
	r := newRig(t, Config{Debt: true, Rules: []Rule{{User: Named("userA"), Limits: samples(10)}}})
	w := weir.Work{User: "userA", Client: "client6"}
	r.admit(of(w, 10))
	set := func(rules ...Rule) {
		t.Helper()
		if err := r.Reconfigure(Config{Name: "other", Debt: true, Rules: rules}); err != nil {
			t.Fatal(err)
		}
	}
	set(Rule{User: Named("userA"), Limits: samples(2)}) // K29
	if got := r.left(w); got != 22 {
		t.Errorf("%v left, want 22", got)
	}
	r.admit(of(w, 122))
	r.refused(w)
	set(Rule{User: Named("userA"), Limits: samples(2)}, Rule{User: Named("userA"), Client: Named("client6"), Limits: samples(11)}) // P10
	r.admit(w)
	r.refused(weir.Work{User: "userA", Client: "client7"})
	set(Rule{User: Every, Limits: samples(50)}) // the same bucket, by another rule
	if got := r.refused(w); got.RetryAfter != 2*time.Second || got.Rule != "user=*" {
		t.Errorf("%+v, want the debt of 100 at 50/s", *got)
	}
	before := r.Rules()
	if err := r.Reconfigure(Config{Rules: []Rule{{}}, Mode: DryRun}); err == nil || len(r.Rules()) != len(before) {
		t.Errorf("%v, %v", err, r.Rules())
	}
}

// Rules alone can be changed; the rest stays, and all of it if a rule is faulty.
func TestSetRules(t *testing.T) {
	r := newRig(t, Config{Debt: true, Rules: everyUser(Limit{Rate: 1, Burst: .5}), Queue: Queue{Len: 3}})
	r.admit(of(alice, 10))
	rules := append(everyUser(Limit{Rate: 2, Burst: .5}), Rule{Name: "root", User: Named("root"), Exempt: true}, Rule{User: Named("eve"), Blocked: true})
	if err := r.SetRules(rules); err != nil {
		t.Fatal(err)
	}
	if got := r.refused(alice); got.RetryAfter != 4750*ms {
		t.Errorf("%+v, want the debt of 9.5 at 2/s", *got)
	}
	if s := r.Quota.settings.Load(); s.places != 3 || !s.debt || len(r.Rules()) != 3 {
		t.Errorf("%+v", s)
	}
	if err := r.SetRules(append(rules, rules[0])); err == nil || !strings.Contains(err.Error(), `gate "q": Rules[3]`) || len(r.Rules()) != 3 {
		t.Errorf("%v, %v", err, r.Rules())
	}
	for w, want := range map[weir.Work]string{alice: "user=* q/user=alice", {User: "root"}: "root ", {User: "eve"}: "user=eve "} {
		if rule, key := r.Key(w); rule+" "+key != want {
			t.Errorf("%v: %q, %q, want %q", w.User, rule, key, want)
		}
	}
	if err := r.SetRules(nil); err != nil {
		t.Fatal(err)
	}
	if rule, key := r.Key(alice); rule != "" || key != "" {
		t.Errorf("%q, %q without rules", rule, key)
	}
	r.admit(alice)
	if r.Close(); !errors.Is(r.SetRules(rules), ErrClosed) {
		t.Error("a closed gate takes rules")
	}
}

// A limit that becomes slower forgives nothing, not even to those who are idle.
func TestReconfigureForgivesNothing(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Limit{Rate: 10, Burst: 100})})
	r.admit(of(alice, 100))
	if err := r.Reconfigure(Config{Rules: everyUser(Limit{Rate: 1, Burst: 100})}); err != nil {
		t.Fatal(err)
	}
	r.clock.advance(11 * time.Second)
	r.memory.Purge()
	if got := r.left(alice); math.Abs(got-11) > 1e-6 {
		t.Errorf("%v left, want 11", got)
	}
}

// What was charged by a rule that has changed is settled by the limits of now.
func TestSettleAfterAChange(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Limit{Rate: 1, Burst: 10})})
	p := r.admit(of(alice, 10))
	for _, burst := range []float64{50, 100} {
		if err := r.Reconfigure(Config{Rules: everyUser(Limit{Rate: .001, Burst: burst}, Limit{Rate: .001, Burst: 7})}); err != nil {
			t.Fatal(err)
		}
	}
	r.clock.advance(10 * time.Second)
	p.SetCost("", 60)
	if got := r.left(alice); math.Abs(got+49.99) > 1e-6 {
		t.Errorf("%v left, want 0.01 at the new rate, and 50 less", got)
	}
	r.clock.advance(1e6 * time.Second)
	p.Cancel()
	if got := r.left(weir.Work{User: "alice"}); got != 7 {
		t.Errorf("%v left, want 7: the second window is full", got)
	}
}

func TestPermissiveTellsTheWait(t *testing.T) {
	r := newRig(t, Config{Debt: true, Mode: Permissive, Rules: everyUser(Samples(10, 10, time.Second))})
	for i, want := range []time.Duration{0, 8 * time.Second, 17 * time.Second} {
		d, err := r.Charge(ctx, of(alice, 90))
		if err != nil || !d.OK || d.Wait != want || d.Rule != "user=*" || len(d.Limits) != 1 {
			t.Errorf("%d: %+v, %v, want a wait of %v", i, d, err, want)
		}
	}
	r.admit(of(alice, 10))
	if d, err := r.Peek(ctx, alice); err == nil || d.OK || d.Wait != 18*time.Second {
		t.Errorf("%+v, %v", d, err)
	}
	if s := r.Snapshot(); s.Admitted != 4 || len(s.Rejected) != 0 {
		t.Errorf("%+v", s)
	}
}

// Peek takes nothing and counts nothing.
func TestPeek(t *testing.T) {
	heard := 0
	r := newRig(t, Config{Rules: append(everyUser(Per(5, time.Hour)), Rule{User: Named("root"), Exempt: true}, Rule{User: Named("eve"), Blocked: true}),
		Hooks: weir.Hooks{Admitted: func(string, weir.Work, time.Duration) { heard++ }, Rejected: func(weir.Work, *weir.Rejection) { heard++ }}})
	for range 3 {
		if d, err := r.Peek(ctx, of(alice, 5)); err != nil || !d.OK || d.Remaining != 5 || d.Free || d.Key != "q/user=alice" || len(r.Limits(d.Rule)) != 1 {
			t.Errorf("%+v, %v", d, err)
		}
		if d, err := r.Peek(ctx, of(alice, 6)); r.rejection(err).Reason != weir.ReasonTooLarge || d.Wait != Never {
			t.Errorf("%+v, %v", d, err)
		}
		if d, err := r.Peek(ctx, weir.Work{User: "root"}); err != nil || !d.Free || !d.OK {
			t.Errorf("%+v, %v", d, err)
		}
		if d, err := r.Peek(ctx, weir.Work{User: "eve"}); r.rejection(err).Reason != weir.ReasonBlocked || d.OK || d.Rule != "user=eve" {
			t.Errorf("%+v, %v", d, err)
		}
	}
	if r.Limits("user=root") != nil || r.Limits("nobody") != nil {
		t.Error("an exempt rule has limits")
	}
	if s := r.Snapshot(); s.Admitted+s.ExemptAdmitted != 0 || len(s.Rejected) != 0 || heard != 0 || r.memory.Stats().Keys != 0 {
		t.Errorf("%+v, heard %d, %+v", s, heard, r.memory.Stats())
	}
	if d, err := r.Charge(ctx, of(alice, 5)); err != nil || d.Remaining != 0 {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := r.Charge(ctx, alice); r.rejection(err).Reason != weir.ReasonQuota || heard != 2 {
		t.Errorf("%v, heard %d", err, heard)
	}
}

// flaky is a store that can be made to fail.
type flaky struct {
	Store
	err error
}

func (f *flaky) Take(ctx context.Context, t *Take) (Result, error) {
	if f.err != nil {
		return Result{}, f.err
	}
	return f.Store.Take(ctx, t)
}

func (f *flaky) Give(ctx context.Context, key string, limits []Limit, tokens float64) error {
	if f.err != nil {
		return f.err
	}
	return f.Store.Give(ctx, key, limits, tokens)
}

func TestStoreFails(t *testing.T) {
	down := errors.New("the store is down")
	for _, c := range []struct {
		on       OnStoreError
		admitted int
	}{{Local, 3}, {Open, 10}, {Closed, 0}} {
		var clock still
		store := &flaky{Store: newMemory(t, MemoryConfig{Now: clock.now})}
		r := &rig{newQuota(t, Config{Name: "q", Rules: everyUser(Per(3, time.Hour)), Store: store, OnStoreError: c.on, Now: clock.now}), t, &clock}
		r.admit(alice).Cancel()
		held := r.admit(of(alice, 3))
		r.refused(alice)
		store.err = down
		admitted := 0
		var last weir.Permit
		for range 10 {
			p, err := r.TryAdmit(alice)
			if err == nil {
				admitted++
				last = p
			} else if c.on == Closed && (!errors.Is(err, down) || r.rejection(err).Reason != weir.ReasonStore || !r.rejection(err).Retryable) {
				t.Errorf("%v", err)
			}
		}
		if admitted != c.admitted || r.Faults().StoreErrors != 10 {
			t.Errorf("%v: %d let through, want %d; %+v", c.on, admitted, c.admitted, r.Faults())
		}
		last.Cancel() // goes back where it came from
		if c.on == Local {
			r.admit(alice)
		}
		held.Cancel()
		if r.Faults().LostGives != 1 {
			t.Errorf("%+v, want one give lost", r.Faults())
		}
		store.err = nil
		if got := r.left(alice); got != 0 {
			t.Errorf("%v: %v left in the store, want 0", c.on, got)
		}
	}
}

func TestHooksOfAQuota(t *testing.T) {
	var told []string
	tell := func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }
	r := newRig(t, Config{Rules: everyUser(Per(1, time.Second)), Queue: Queue{Len: 1}, Hooks: weir.Hooks{
		Admitted: func(gate string, w weir.Work, waited time.Duration) { tell("admitted %s %s %v", gate, w.User, waited) },
		Rejected: func(w weir.Work, r *weir.Rejection) { tell("rejected %s %v", w.User, r.Reason) },
		Done:     func(gate string, o weir.Outcome, service time.Duration) { tell("done %s %v %v", gate, o, service) },
	}})
	p := r.admit(alice)
	r.refused(alice)
	r.clock.advance(100 * ms)
	p.Sample(weir.OK)
	p.Done(weir.Failed)
	if _, _, err := r.Arrive(alice, func(p weir.Permit, _ error) { p.Done(weir.Failed) }); err != weir.ErrWaiting {
		t.Fatal(err)
	}
	r.clock.advance(900 * ms)
	r.Step()
	want := "admitted q alice 0s, rejected alice quota, done q ok 100ms, admitted q alice 900ms, done q failed 0s"
	if got := strings.Join(told, ", "); got != want {
		t.Errorf("told %s\nwant %s", got, want)
	}
	if s := r.Snapshot(); s.Outcomes[weir.OK] != 1 || s.Outcomes[weir.Failed] != 1 || s.InFlight != 0 || s.Kind != "quota" {
		t.Errorf("%+v", s)
	}
}

func TestNestedWorkIsPaidFor(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Per(1, time.Hour))})
	p := r.admit(alice)
	inner, err := r.Admit(weir.WithPermit(ctx, r.Quota, p), alice)
	if err != nil || r.left(alice) != 0 {
		t.Errorf("%v, %v left", err, r.left(alice))
	}
	inner.Done(weir.OK)
}

func TestBadConfig(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Mode: Reserve}, "Mode reserve: must be Strict or Permissive"},
		{Config{Queue: Queue{Len: -1}}, "Queue.Len -1"},
		{Config{Mode: Permissive, Queue: Queue{Len: 1}}, "nothing waits in a Permissive gate"},
		{Config{OnStoreError: 7}, "OnStoreError 7"},
		{Config{Name: "api", Rules: []Rule{{}}}, `quota: gate "api": Rules[0] (all): Limits`},
	} {
		if _, err := New(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	_, err := New(Config{Mode: Reserve, Queue: Queue{Len: -1}, Rules: []Rule{{}, {Exempt: true, Blocked: true}}})
	if n := strings.Count(err.Error(), "\n"); n < 4 {
		t.Errorf("%v: want every fault", err)
	}
}

func TestQuotaAllocatesNothing(t *testing.T) {
	q := newQuota(t, Config{Name: "api", Rules: append(kafka(), Rule{Tenant: Every, Route: Named("/x"), Limits: samples(10)})})
	for _, w := range []weir.Work{{User: "userA", Client: "client1"}, {User: "userB", Client: "client9"}, {User: "x", Client: "y"}} {
		if n := testing.AllocsPerRun(1000, func() {
			if p, err := q.Admit(ctx, w); err == nil {
				p.SetCost("", 0)
				p.Done(weir.OK)
			}
		}); n != 0 {
			t.Errorf("%+v: %v allocations", w, n)
		}
	}
}

// Many at once, waiting, leaving, settling, while rules change: no token is spent
// twice, and everybody gets an answer.
func TestCrowd(t *testing.T) {
	q := newQuota(t, Config{Name: "q", Rules: everyUser(Limit{Rate: 2000, Burst: 50}), Queue: Queue{Len: 20, MaxWait: 5 * ms}})
	began := time.Now()
	var mu sync.Mutex
	spent := 0
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				limited, cancel := context.WithTimeout(ctx, time.Duration(i%7)*ms)
				p, err := q.Admit(limited, of(alice, 2))
				cancel()
				if err != nil {
					continue
				}
				cost := i % 3
				p.SetCost("", int64(cost))
				if i%5 == 0 {
					cost = 0
					p.Cancel()
				}
				p.Done(weir.OK)
				mu.Lock()
				spent += cost
				mu.Unlock()
				if g == 0 && i%20 == 0 {
					if err := q.Reconfigure(Config{Rules: everyUser(Limit{Rate: 1000, Burst: 50}), Queue: Queue{Len: 20, MaxWait: 5 * ms}}); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	const early = .001 // seconds: who would wait for less starts at once
	most := 50 + 2000*(time.Since(began).Seconds()+early)
	if s := q.Snapshot(); float64(spent) > most || s.InFlight != 0 || s.Waiting != 0 {
		t.Errorf("spent %d, no more than %.0f came; %+v", spent, most, s)
	}
}

// A gate that counts requests is not settled by what they have cost elsewhere, but by who
// means it.
func TestFixedCost(t *testing.T) {
	cfg := Config{Name: "q", Rules: []Rule{{Limits: []Limit{{Rate: 1, Burst: 100}}}}, Cost: func(weir.Work) int64 { return 1 }, Fixed: true, Now: func() time.Duration { return 0 }}
	q, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	left := func() float64 {
		d, err := q.Peek(context.Background(), weir.Work{})
		if err != nil {
			t.Fatal(err)
		}
		return d.Remaining
	}
	p, err := q.TryAdmit(weir.Work{Cost: 50})
	if err != nil {
		t.Fatal(err)
	}
	if p.SetCost("", 30); left() != 99 {
		t.Errorf("%v left, want 99", left())
	}
	if p.SetCost("q", 30); left() != 70 {
		t.Errorf("%v left, want 70", left())
	}
	cfg.Fixed = false
	if err := q.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	if p.SetCost("", 20); left() != 80 {
		t.Errorf("%v left, want 80", left())
	}
}
