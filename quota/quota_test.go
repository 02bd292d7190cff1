package quota

import (
	"context"
	"errors"
	"fmt"
	"math"
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
	var id Identity
	rule := r.Quota.settings.Load().ruleOf(&w, &id)
	key := string(rule.appendKey(nil, &id))
	return take(r, r.store, Request{Key: key, Windows: rule.Windows, Mode: DryRun, Debt: true}).Remaining
}

func everyUser(limits ...Window) []Rule { return []Rule{{User: Every, Windows: limits}} }

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
	want := weir.Rejection{Gate: "q", Rule: "user=*", Bucket: "q/user=alice", Reason: weir.ReasonQuota, Value: 2, Limit: 2, RetryAfter: 500 * ms, Retryable: true}
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

// A refusal names the bucket that would have been charged, wherever the buckets are. Its
// text, which strangers may see, does not.
func TestRefusalNamesItsBucket(t *testing.T) {
	for _, remote := range []bool{false, true} {
		var clock still
		store := &flaky{Store: newMemory(t, MemoryConfig{Now: clock.now})}
		cfg := Config{Name: "q", Now: clock.now, Queue: Queue{Len: 1, MaxWait: time.Hour}, OnStoreError: Closed,
			Rules: append(everyUser(Per(1, time.Second)), Rule{User: Named("mallory"), Blocked: true})}
		if remote {
			cfg.Store = store
		}
		r := &rig{newQuota(t, cfg), t, &clock}
		check := func(err error, reason weir.Reason, bucket string) {
			t.Helper()
			got := r.rejection(err)
			if got.Reason != reason || got.Bucket != bucket || strings.Contains(got.Error(), "alice") {
				t.Errorf("remote %v: %v of bucket %q, want %v of %q; %v", remote, got.Reason, got.Bucket, reason, bucket, got)
			}
		}
		r.admit(alice)
		check(r.refused(alice), weir.ReasonQuota, "q/user=alice")
		check(r.refused(of(alice, 9)), weir.ReasonTooLarge, "q/user=alice")
		check(r.refused(of(alice, -1)), weir.ReasonTooLarge, "q/user=alice")
		check(r.refused(weir.Work{User: "mallory"}), weir.ReasonBlocked, "")
		_, err := r.Peek(ctx, alice)
		check(err, weir.ReasonQuota, "q/user=alice")
		check(r.Predict(ctx, weir.Work{User: "alice", MaxWait: -1}), weir.ReasonQuota, "q/user=alice")
		if _, _, err := r.Arrive(alice, func(weir.Permit, error) {}); !errors.Is(err, weir.ErrWaiting) {
			t.Fatal(err)
		}
		_, _, err = r.Arrive(alice, nil)
		check(err, weir.ReasonQuota, "q/user=alice")
		if store.err = errors.New("down"); remote {
			check(r.refused(alice), weir.ReasonStore, "q/user=alice")
		}
		r.Close()
		check(r.refused(alice), weir.ReasonDraining, "")
	}
}

// Which of several windows refuses is said, also where they have the same burst.
func TestRefusalNamesItsWindow(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Window{Rate: 10, Burst: 2}, Window{Rate: 1, Burst: 2}, Window{Rate: 1, Burst: 4})})
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

// What is refused for ever is too large if it costs more than the burst, whatever is left. A gate that
// charges debts admits such work, so there the debt is the reason.
func TestRefusedForEver(t *testing.T) {
	slow := Window{Rate: MinRate, Burst: 10}
	for _, c := range []struct {
		debt       bool
		owed, cost int64
		want       weir.Reason
	}{
		{false, 0, 11, weir.ReasonTooLarge},
		{false, 50, 11, weir.ReasonTooLarge},
		{false, MaxTokens, 10, weir.ReasonQuota},
		{true, MaxTokens, 11, weir.ReasonQuota},
	} {
		r := newRig(t, Config{Debt: c.debt, Rules: everyUser(slow)})
		p := r.admit(of(alice, 0))
		p.SetCost("", c.owed)
		if got := r.refused(of(alice, c.cost)); got.Reason != c.want || got.Retryable || got.RetryAfter != 0 {
			t.Errorf("%+v: %+v", c, *got)
		}
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
		{Client: Named("batch"), Windows: []Window{Per(1, time.Hour)}},
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

// A refusal is the Rejection and the name of the bucket.
func TestRefusalAllocatesTwice(t *testing.T) {
	q := newQuota(t, Config{Name: "api", Rules: everyUser(Per(1, time.Hour))})
	q.Allow(alice)
	if n := testing.AllocsPerRun(1000, func() { _, _ = q.Admit(ctx, alice) }); n > 2 {
		t.Errorf("%v allocations in a refusal, want at most 2", n)
	}
}

func TestQuotaAllocatesNothing(t *testing.T) {
	q := newQuota(t, Config{Name: "api", Rules: append(kafka(), Rule{Tenant: Every, Route: Named("/x"), Windows: samples(10)})})
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
	q := newQuota(t, Config{Name: "q", Rules: everyUser(Window{Rate: 2000, Burst: 50}), Queue: Queue{Len: 20, MaxWait: 5 * ms}})
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
					if err := q.Reconfigure(Config{Rules: everyUser(Window{Rate: 1000, Burst: 50}), Queue: Queue{Len: 20, MaxWait: 5 * ms}}); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	const early = 0.001 // seconds: who would wait for less starts at once
	most := 50 + 2000*(time.Since(began).Seconds()+early)
	if s := q.Snapshot(); float64(spent) > most || s.InFlight != 0 || s.Waiting != 0 {
		t.Errorf("spent %d, no more than %.0f came; %+v", spent, most, s)
	}
}

// between is a store that calls something before it reserves tokens, or after it has
// and before anybody is told.
type between struct {
	Store
	first, then func()
}

func (b *between) Decide(ctx context.Context, t *Request) (Decision, error) {
	if t.Mode == Reserve && b.first != nil {
		b.first()
	}
	r, err := b.Store.Decide(ctx, t)
	if t.Mode == Reserve && b.then != nil {
		b.then()
	}
	return r, err
}

// A store that takes its time lets nobody start ahead of the rate.
func TestSlowStoreIsNotAhead(t *testing.T) {
	var clock still
	store := &between{Store: newMemory(t, MemoryConfig{Now: clock.now}), first: func() { clock.advance(40 * ms) }}
	r := &rig{newQuota(t, Config{Name: "q", Rules: []Rule{{Windows: []Window{Per(1, time.Second)}}}, Queue: Queue{Len: 9, MaxWait: -1}, Store: store, Now: clock.now}), t, &clock}
	r.admit(alice)
	for n := range 9 {
		if _, _, err := r.Arrive(alice, func(weir.Permit, error) {}); err != weir.ErrWaiting {
			t.Fatal(err)
		}
		if due := time.Duration(n+1) * time.Second; r.room.heap[n].due != due { // each is the last one so far
			t.Errorf("number %d starts at %v, its token comes back at %v", n, r.room.heap[n].due, due)
		}
	}
}

// Who has reserved tokens when the gate is closed gives them back.
func TestClosedWhileReserving(t *testing.T) {
	var clock still
	store := &between{Store: newMemory(t, MemoryConfig{Now: clock.now})}
	r := &rig{newQuota(t, Config{Name: "q", Rules: everyUser(Per(1, time.Second)), Queue: Queue{Len: 1}, Store: store, Now: clock.now}), t, &clock}
	store.then = r.Close
	r.admit(alice)
	if _, err := r.Admit(ctx, alice); r.rejection(err).Reason != weir.ReasonDraining {
		t.Errorf("%v, want that the gate is closing", err)
	}
	left := take(t, store, Request{Key: "q/user=alice", Windows: []Window{Per(1, time.Second)}, Debt: true, Mode: DryRun})
	if left.Remaining != 0 || r.Snapshot().Waiting != 0 {
		t.Errorf("%v left, want 0; %+v", left.Remaining, r.Snapshot())
	}
}

// Whose turn comes in the moment in which they give up has either the permit or the
// tokens back, never neither.
func TestGivingUpInTurn(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			var clock still
			r := &rig{newQuota(t, Config{Name: "q", Rules: everyUser(Per(1, time.Second)), Queue: Queue{Len: 1}, Now: clock.now}), t, &clock}
			r.admit(alice).Done(weir.OK)
			waiting, cancel := context.WithCancel(ctx)
			defer cancel()
			var wg sync.WaitGroup
			var err error
			wg.Go(func() { _, err = r.Admit(waiting, alice) })
			synctest.Wait()
			clock.advance(time.Second)
			cancel()
			r.Step()
			wg.Wait()
			want, held := 0., int64(1)
			if err != nil {
				want, held = 1, 0
			}
			if got := r.Snapshot().InFlight; r.left(alice) != want || got != held {
				t.Fatalf("%v: %v left, want %v; %d permits are out, want %d", err, r.left(alice), want, got, held)
			}
		})
	}
}

// A permit that has ended changes nothing for whoever holds its place now.
func TestSettleAfterTheEnd(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Per(100, time.Hour))})
	for range 20 { // as many as it takes that a place is used again, in each part
		old := r.admit(of(alice, 1))
		old.Done(weir.OK)
		next := r.admit(of(alice, 2))
		before := r.left(alice)
		old.SetCost("", 50)
		old.SetCost("q", 50)
		if got := r.left(alice); got != before {
			t.Fatalf("%v left, want %v as before", got, before)
		}
		next.Cancel()
		if got := r.left(alice); got != before+2 {
			t.Fatalf("%v left, want what was charged back: %v", got, before+2)
		}
	}
}

// Work is settled in the windows that it was charged in, not in one that came later.
func TestSettleLeavesNewWindowsAlone(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Per(100, time.Hour))})
	old := r.admit(of(alice, 5))
	if err := r.SetRules(everyUser(Per(100, time.Hour), Per(7, time.Hour))); err != nil {
		t.Fatal(err)
	}
	r.admit(of(alice, 4))
	for _, settle := range []func(){func() { old.SetCost("", 6) }, old.Cancel} {
		if settle(); r.left(alice) != 3 {
			t.Errorf("%v left, want 3 in the window that came later", r.left(alice))
		}
	}
}

// flaky is a store that can be made to fail.
type flaky struct {
	Store
	err error
}

func (f *flaky) Decide(ctx context.Context, t *Request) (Decision, error) {
	if f.err != nil {
		return Decision{}, f.err
	}
	return f.Store.Decide(ctx, t)
}

func (f *flaky) Refund(ctx context.Context, key string, limits []Window, tokens float64) error {
	if f.err != nil {
		return f.err
	}
	return f.Store.Refund(ctx, key, limits, tokens)
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
		if r.Faults().Unsettled != 1 {
			t.Errorf("%+v, want one give lost", r.Faults())
		}
		store.err = nil
		if got := r.left(alice); got != 0 {
			t.Errorf("%v: %v left in the store, want 0", c.on, got)
		}
	}
}

// leaving is a store whose caller leaves while it is asked.
type leaving struct {
	Store
	leave context.CancelFunc
}

func (l *leaving) Decide(context.Context, *Request) (Decision, error) {
	l.leave()
	return Decision{}, errors.New("the caller has left")
}

// A caller that leaves is no failure of the store, and gets in nowhere.
func TestCallerLeavesTheStore(t *testing.T) {
	for _, on := range []OnStoreError{Local, Open, Closed} {
		ctx, leave := context.WithCancel(t.Context())
		q := newQuota(t, Config{Name: "q", Rules: everyUser(Per(3, time.Hour)), Store: &leaving{newMemory(t, MemoryConfig{}), leave}, OnStoreError: on})
		_, err := q.Admit(ctx, alice)
		if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonCanceled || q.Faults().StoreErrors != 0 {
			t.Errorf("%v: %v; %+v", on, err, q.Faults())
		}
	}
}

// A store that is busy lets a flood through no gate, whatever is to be done if it
// fails.
func TestStoreIsBusy(t *testing.T) {
	for on, want := range map[OnStoreError]int{Local: 3, Open: 3, Closed: 0} {
		var clock still
		store := &flaky{Store: newMemory(t, MemoryConfig{Now: clock.now}), err: fmt.Errorf("full: %w", ErrBusy)}
		r := &rig{newQuota(t, Config{Name: "q", Rules: everyUser(Per(3, time.Hour)), Store: store, OnStoreError: on, Now: clock.now}), t, &clock}
		admitted := 0
		for range 10 {
			if _, err := r.TryAdmit(alice); err == nil {
				admitted++
			}
		}
		if admitted != want || r.Faults().StoreErrors != 10 {
			t.Errorf("%v: %d let through, want %d; %+v", on, admitted, want, r.Faults())
		}
	}
}

// lying is a store that says the same to everybody.
type lying struct {
	Store
	says, reserves Decision
}

func (l *lying) Decide(_ context.Context, t *Request) (Decision, error) {
	if t.Mode == Reserve {
		return l.reserves, nil
	}
	return l.says, nil
}

// What cannot be true counts as a store that fails.
func TestStoreLies(t *testing.T) {
	short := Decision{Wait: 10 * time.Millisecond}
	for _, lie := range []lying{
		{says: Decision{Window: 1, Wait: time.Second}}, {says: Decision{Window: -1}}, {says: Decision{OK: true, Window: 9}},
		{says: Decision{OK: true, Remaining: math.NaN()}}, {says: Decision{Remaining: math.Inf(1), Wait: time.Second}},
		{says: Decision{Wait: -time.Second}}, {says: Decision{Wait: math.MinInt64}},
		{says: short, reserves: Decision{OK: true, Wait: Never}}, {says: short, reserves: Decision{OK: true, Wait: time.Hour}},
	} {
		var clock still
		q := newQuota(t, Config{
			Name: "q", Rules: everyUser(Per(3, time.Hour)), Store: &lie, OnStoreError: Closed, Now: clock.now,
			Queue: Queue{Len: 1, MaxWait: time.Second},
		})
		_, place, err := q.Arrive(alice, func(weir.Permit, error) {})
		if r := weir.AsRejection(err); place != nil || r == nil || r.Reason != weir.ReasonStore || q.Faults().StoreErrors == 0 {
			t.Errorf("%+v: %v, %+v; want that the store is at fault", lie, err, q.Faults())
		}
		if _, err := q.Peek(t.Context(), alice); lie.says != short && weir.AsRejection(err).Reason != weir.ReasonStore {
			t.Errorf("%+v: a look: %v", lie, err)
		}
	}
}

// What the work has really cost is settled, once, and Cancel gives all back.
func TestSettle(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Window{Rate: 0.001, Burst: 100}, Window{Rate: 0.001, Burst: 1000})})
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

// No more is settled than was charged: a cost beyond MaxTokens is MaxTokens.
func TestSettleTheGreatestCost(t *testing.T) {
	r := newRig(t, Config{Debt: true, Rules: everyUser(Per(100, time.Hour))})
	p := r.admit(of(alice, 2*MaxTokens))
	for range 2 {
		p.SetCost("", 60)
		if got := r.left(alice); got != 40 {
			t.Errorf("%v left, want 40", got)
		}
		p.SetCost("", math.MaxInt64)
	}
	if p.Cancel(); r.left(alice) != 100 {
		t.Errorf("%v left, want 100", r.left(alice))
	}
}

// In a chain, what a later gate refuses is given back.
func TestInAChain(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Per(10, time.Hour))})
	other := newRig(t, Config{Rules: []Rule{{Windows: []Window{Per(1, time.Hour)}}}})
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

// What was charged by a rule that has changed is settled by the limits of now.
func TestSettleAfterAChange(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Window{Rate: 1, Burst: 10})})
	p := r.admit(of(alice, 10))
	for _, burst := range []float64{50, 100} {
		if err := r.Reconfigure(Config{Rules: everyUser(Window{Rate: 0.001, Burst: burst}, Window{Rate: 0.001, Burst: 7})}); err != nil {
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

// A gate that counts requests is not settled by what they have cost elsewhere, but by who
// means it.
func TestFixedCost(t *testing.T) {
	cfg := Config{Name: "q", Rules: []Rule{{Windows: []Window{{Rate: 1, Burst: 100}}}}, Cost: func(weir.Work) int64 { return 1 }, Fixed: true, Now: func() time.Duration { return 0 }}
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

// keyOf is the rule that counts for w, and the key of its bucket.
func keyOf(q *Quota, w weir.Work) (rule, key string) {
	a, _ := q.Peek(ctx, w)
	return a.Rule, a.Key
}
