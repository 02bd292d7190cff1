package quota

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

func TestPermissiveTellsTheWait(t *testing.T) {
	r := newRig(t, Config{Debt: true, Mode: Permissive, Rules: everyUser(Samples(10, 10, time.Second))})
	for i, want := range []time.Duration{0, 8 * time.Second, 17 * time.Second} {
		d, err := r.Charge(ctx, of(alice, 90))
		if err != nil || !d.OK || d.Wait != want || d.Rule != "user=*" || len(d.Windows) != 1 {
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

// Clients of both kinds charge one bucket: who is refused adds nothing to what the
// others have to wait for. Whatever the gate's own mode is. Permits give back what they hold.
func TestAdmitInAModeOfItsOwn(t *testing.T) {
	for _, own := range []Mode{Strict, Permissive} {
		r := newRig(t, Config{Debt: true, Mode: own, Rules: everyUser(Samples(10, 10, time.Second))})
		var last weir.Permit
		for i, step := range []struct {
			mode Mode
			ok   bool
			wait time.Duration
		}{
			{Strict, true, 0},
			{Strict, true, 0}, // leaves a debt of 80
			{Strict, false, 8 * time.Second},
			{Permissive, true, 17 * time.Second},
			{Strict, false, 17 * time.Second},
			{Reserve, false, 17 * time.Second},
		} {
			p, d, err := r.AdmitIn(ctx, step.mode, of(alice, 90))
			if d.OK != step.ok || d.Wait != step.wait || (err == nil) != step.ok {
				t.Errorf("%v, %d: %+v, %v, want %+v", own, i, d, err, step)
			}
			if rej := weir.AsRejection(err); rej != nil && rej.RetryAfter != step.wait {
				t.Errorf("%v, %d: %v, want %v", own, i, rej, step.wait)
			}
			if d.Key != "q/user=alice" {
				t.Errorf("%v, %d: key %q", own, i, d.Key)
			}
			if err == nil {
				last = p
			} else if p.Live() {
				t.Errorf("%v, %d: a refusal with a permit", own, i)
			}
		}
		last.SetCost("", 10)
		if d, _ := r.Peek(ctx, alice); d.Wait != 9*time.Second {
			t.Errorf("%v: %+v, want 90 tokens of debt", own, d)
		}
		last.Cancel()
		if d, _ := r.Peek(ctx, alice); d.Wait != 8*time.Second {
			t.Errorf("%v: %+v, want 80 tokens of debt", own, d)
		}
		if s := r.Snapshot(); s.Admitted != 2 || s.Rejected[weir.ReasonQuota] != 3 {
			t.Errorf("%v: %+v", own, s)
		}
	}
}

// Peek takes nothing and counts nothing.
func TestPeek(t *testing.T) {
	heard := 0
	r := newRig(t, Config{Rules: append(everyUser(Per(5, time.Hour)), Rule{User: Named("root"), Exempt: true}, Rule{User: Named("eve"), Blocked: true}),
		Hooks: weir.Hooks{Admitted: func(string, weir.Work, time.Duration) { heard++ }, Rejected: func(weir.Work, *weir.Rejection) { heard++ }}})
	for range 3 {
		if d, err := r.Peek(ctx, of(alice, 5)); err != nil || !d.OK || d.Remaining != 5 || d.Free || d.Cost != 5 || d.Key != "q/user=alice" || len(r.Windows(d.Rule)) != 1 {
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
	if r.Windows("user=root") != nil || r.Windows("nobody") != nil {
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

// Predict is about what only time brings back, and about what never comes.
func TestPredict(t *testing.T) {
	blocked := append(everyUser(Per(2, time.Second)), Rule{User: Named("mallory"), Blocked: true})
	for _, test := range []struct {
		name   string
		cfg    Config
		taken  int64
		w      weir.Work
		reason weir.Reason // 0 for nothing
	}{
		{"there are tokens", Config{Rules: blocked}, 1, weir.Work{User: "alice"}, 0},
		{"there are none", Config{Rules: blocked}, 2, weir.Work{User: "alice"}, weir.ReasonQuota},
		{"too much", Config{Rules: blocked}, 0, weir.Work{User: "alice", Cost: 3}, weir.ReasonTooLarge},
		{"a debt", Config{Rules: blocked, Debt: true}, 3, weir.Work{User: "alice", Cost: 3}, weir.ReasonQuota},
		{"blocked", Config{Rules: blocked}, 0, weir.Work{User: "mallory"}, weir.ReasonBlocked},
		{"exempt", Config{Rules: blocked}, 2, weir.Work{User: "mallory", Exempt: true}, 0},
		{"permissive", Config{Rules: blocked, Mode: Permissive}, 9, weir.Work{User: "alice"}, 0},
		{"permissive, blocked", Config{Rules: blocked, Mode: Permissive}, 0, weir.Work{User: "mallory"}, weir.ReasonBlocked},
		{"may wait", Config{Rules: blocked, Queue: Queue{Len: 1}}, 2, weir.Work{User: "alice"}, 0},
		{"does not wait", Config{Rules: blocked, Queue: Queue{Len: 1}}, 2, weir.Work{User: "alice", MaxWait: weir.NoWait}, weir.ReasonQuota},
		{"cannot wait so long", Config{Rules: blocked, Queue: Queue{Len: 1, MaxWait: time.Millisecond}}, 2, weir.Work{User: "alice"}, weir.ReasonQuota},
		{"too late anyway", Config{Rules: blocked}, 2, weir.Work{User: "alice", Deadline: weir.VirtualEpoch.Add(-time.Second)}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, test.cfg)
			if test.taken > 0 {
				r.admit(weir.Work{User: "alice", Cost: test.taken})
			}
			before := r.Snapshot()
			got := r.Predict(ctx, test.w)
			switch {
			case got == nil && test.reason != 0, got != nil && got.Reason != test.reason:
				t.Errorf("got %v, want %v", got, test.reason)
			}
			after := r.Snapshot()
			if after.Admitted != before.Admitted || after.ExemptAdmitted != before.ExemptAdmitted || len(after.Rejected) != 0 {
				t.Errorf("counted: %+v, before %+v", after, before)
			}
		})
	}
}

// A store on another machine is not asked; what it said a moment ago counts.
func TestPredictAsksNobodyElse(t *testing.T) {
	clock := &still{}
	store := &elsewhere{flaky: flaky{Store: newMemory(t, MemoryConfig{Now: clock.now})}}
	rules := append(everyUser(Per(1, time.Second)), Rule{User: Named("eve"), Blocked: true})
	q := newQuota(t, Config{Name: "q", Now: clock.now, Store: store, Rules: rules})
	if r := q.Predict(ctx, weir.Work{User: "eve"}); r == nil || r.Reason != weir.ReasonBlocked {
		t.Errorf("%v, want blocked", r)
	}
	for range 2 {
		if r := q.Predict(ctx, alice); r != nil {
			t.Errorf("%v, and nobody was refused", r)
		}
		_, _ = q.TryAdmit(alice)
	}
	clock.advance(300*time.Millisecond + 1)
	if r := q.Predict(ctx, alice); r == nil || r.RetryAfter != 700*time.Millisecond || r.Reason != weir.ReasonQuota {
		t.Errorf("%+v, want 700ms", r)
	}
	clock.advance(700 * time.Millisecond)
	if r := q.Predict(ctx, alice); r != nil || store.asked != 2 {
		t.Errorf("%v a second later; the store was asked %d times, want 2", r, store.asked)
	}
	_, _ = q.TryAdmit(of(alice, 2))
	if r := q.Predict(ctx, alice); r != nil {
		t.Errorf("%v, and only larger work was refused", r)
	}
	if r := q.Predict(ctx, of(alice, 2)); r == nil || r.Reason != weir.ReasonTooLarge {
		t.Errorf("%v, want too large", r)
	}
	full := newQuota(t, Config{Name: "full", Now: clock.now, Rules: everyUser(Per(1, time.Hour))})
	_, _ = full.TryAdmit(alice)
	if _, err := weir.All(full, q).Admit(ctx, alice); !weir.AsRejection(err).Retryable {
		t.Errorf("%v, want when to come back", err)
	}
}

// Quotas that hold together, by user, by route and for all: who comes back when told
// is let in, and who comes a millisecond sooner is not.
func TestStackedQuotasTellWhenToComeBack(t *testing.T) {
	clock := &still{}
	gate := func(name string, r Rule, debt bool) weir.Gate {
		return newQuota(t, Config{Name: name, Rules: []Rule{r}, Debt: debt, Now: clock.now})
	}
	all := weir.All(
		gate("user", Rule{User: Every, Windows: []Window{Per(2, time.Second), Per(20, time.Minute)}}, false),
		gate("route", Rule{Route: Every, Windows: []Window{Per(3, time.Second)}}, true),
		gate("all", Rule{Windows: []Window{{Rate: 1.5, Burst: 9}}}, false),
	).(weir.TryAdmitter)
	random := rand.New(rand.NewPCG(24, 1))
	told := map[string]int{}
	for range 20_000 {
		w := weir.Work{User: string(rune('a' + random.IntN(3))), Op: string(rune('x' + random.IntN(2))), Cost: 1 + random.Int64N(2)}
		p, err := all.TryAdmit(w)
		if err == nil {
			p.Done(weir.OK)
			clock.advance(time.Duration(random.Int64N(int64(time.Second))))
			continue
		}
		r := weir.AsRejection(err)
		told[r.Gate]++
		if r.Reason != weir.ReasonQuota || r.RetryAfter < time.Millisecond {
			t.Fatalf("%+v: %v", w, err)
		}
		clock.advance(r.RetryAfter - time.Millisecond - time.Microsecond)
		if _, err := all.TryAdmit(w); err == nil && r.RetryAfter > time.Millisecond {
			t.Fatalf("%+v got in before its time: %v", w, r)
		}
		clock.advance(time.Millisecond + time.Microsecond)
		if _, err := all.TryAdmit(w); err != nil {
			t.Fatalf("%+v was told %v, and then %v", w, r, err)
		}
	}
	for _, name := range []string{"user", "route", "all"} {
		if told[name] == 0 {
			t.Errorf("%s never spoke: %v", name, told)
		}
	}
}

// elsewhere is a store on another machine, and counts what it is asked.
type elsewhere struct {
	flaky
	asked int
}

func (e *elsewhere) Decide(ctx context.Context, t *Request) (Decision, error) {
	e.asked++
	return e.flaky.Decide(ctx, t)
}

// What is left is told without another question, of what was heard lately.
func TestLast(t *testing.T) {
	clock := &still{}
	store := &elsewhere{flaky: flaky{Store: newMemory(t, MemoryConfig{Now: clock.now})}}
	rules := append(everyUser(Per(5, time.Hour)), Rule{User: Named("root"), Exempt: true}, Rule{User: Named("eve"), Blocked: true})
	q := newQuota(t, Config{Name: "q", Now: clock.now, Store: store, Rules: rules, OnStoreError: Open})
	for _, w := range []weir.Work{alice, bob, {User: "root"}, {User: "eve"}, {Exempt: true}} {
		if d, ok := q.Last(ctx, w); ok {
			t.Errorf("of %+v, which has never come, it tells %+v", w, d)
		}
	}
	for left := 4.; left >= 0; left-- {
		if _, err := q.TryAdmit(alice); err != nil {
			t.Fatal(err)
		}
		if d, ok := q.Last(ctx, alice); !ok || d.Remaining != left || d.Rule != "user=*" || d.Key != "q/user=alice" || len(d.Windows) != 1 {
			t.Errorf("%+v, %v, want %v left", d, ok, left)
		}
	}
	if _, err := q.TryAdmit(alice); err == nil {
		t.Fatal("admitted for nothing")
	}
	if d, ok := q.Last(ctx, alice); !ok || d.OK || d.Wait != 12*time.Minute {
		t.Errorf("after a refusal %+v, %v", d, ok)
	}
	if store.asked != 6 {
		t.Errorf("asked %d times, want 6", store.asked)
	}
	if _, ok := q.Last(ctx, bob); ok {
		t.Error("another is taken for her")
	}
	clock.advance(time.Second)
	if _, ok := q.Last(ctx, alice); ok {
		t.Error("what was heard a second ago counts")
	}
	store.err = errors.New("gone")
	if _, err := q.TryAdmit(bob); err != nil {
		t.Fatal(err)
	}
	if d, ok := q.Last(ctx, bob); ok {
		t.Errorf("it tells %+v, and the store was gone", d)
	}
}

// What is left after a correction means the same for the next work, wherever the buckets are. Work that was refused is not
// refused again without asking, once tokens have come back.
func TestLastIsAboutTheNext(t *testing.T) {
	some := func(r *rig) weir.Permit { return r.admit(of(alice, 5)) }
	refused := func(r *rig) weir.Permit {
		p := r.admit(of(alice, 20))
		if _, err := r.TryAdmit(alice); err == nil {
			t.Error("admitted for nothing")
		}
		return p
	}
	for name, f := range map[string]struct {
		debt bool
		do   func(*rig) weir.Permit
		cost []int64 // is settled in these steps
		want Decision
	}{
		"a debt":            {true, some, []int64{30}, Decision{Wait: 30 * time.Minute, Remaining: -10}},
		"a debt, paid back": {true, some, []int64{30, 3}, Decision{OK: true, Remaining: 17}},
		"all is gone":       {false, some, []int64{20}, Decision{Wait: 3 * time.Minute}},
		"refused":           {false, refused, []int64{5}, Decision{OK: true, Remaining: 15}},
		"refused, and more": {false, refused, []int64{30}, Decision{Wait: 33 * time.Minute, Remaining: -10}},
	} {
		for _, remote := range []bool{false, true} {
			clock := &still{}
			cfg := Config{Name: "q", Now: clock.now, Debt: f.debt, Rules: everyUser(Per(20, time.Hour))}
			if remote {
				cfg.Store = &elsewhere{flaky: flaky{Store: newMemory(t, MemoryConfig{Now: clock.now})}}
			}
			r := &rig{newQuota(t, cfg), t, clock}
			p := f.do(r)
			for _, cost := range f.cost {
				p.SetCost("", cost)
			}
			if a, ok := r.Last(ctx, alice); !ok || a.Decision != f.want {
				t.Errorf("%s, remote %v: %+v, %v, want %+v", name, remote, a.Decision, ok, f.want)
			}
			if no := r.Predict(ctx, alice); f.want.OK && no != nil {
				t.Errorf("%s, remote %v: refused without asking: %v", name, remote, no)
			}
		}
	}
}

// What is left follows the cost that is settled, wherever the buckets are, and no other bucket.
func TestLastAfterSettling(t *testing.T) {
	for _, remote := range []bool{false, true} {
		clock := &still{}
		cfg := Config{Name: "q", Now: clock.now, Debt: true, Rules: everyUser(Per(20, time.Hour))}
		store := &elsewhere{flaky: flaky{Store: newMemory(t, MemoryConfig{Now: clock.now})}}
		if remote {
			cfg.Store = store
		}
		r := &rig{newQuota(t, cfg), t, clock}
		left := func(w weir.Work) float64 {
			a, _ := r.Last(ctx, w)
			return a.Remaining
		}
		r.admit(bob)
		p := r.admit(of(alice, 5))
		for _, step := range []struct{ cost, left float64 }{{30, -10}, {3, 17}, {0, 20}} {
			if p.SetCost("", int64(step.cost)); left(alice) != step.left {
				t.Errorf("remote %v: cost %v: %v left, want %v", remote, step.cost, left(alice), step.left)
			}
		}
		p.SetCost("", 5)
		if _, err := r.Reset(ctx, alice); err != nil {
			t.Fatal(err)
		}
		if p.Cancel(); left(alice) != 20 {
			t.Errorf("remote %v: %v left of 20 after all was given back", remote, left(alice))
		}
		if left(bob) != 19 || remote && store.asked != 3 {
			t.Errorf("remote %v: %v left of another's 20; asked %d times, want 3", remote, left(bob), store.asked)
		}
	}
}

// Of many buckets the last of each place is remembered, and a rule with fewer windows
// than the answer was about says nothing.
func TestLastIsBounded(t *testing.T) {
	clock := &still{}
	store := &flaky{Store: newMemory(t, MemoryConfig{Now: clock.now})}
	two := everyUser(Per(100, time.Hour), Per(5, time.Hour))
	q := newQuota(t, Config{Name: "q", Now: clock.now, Store: store, Rules: two})
	known := 0
	for i := range 5000 {
		_, _ = q.TryAdmit(weir.Work{User: fmt.Sprint(i)})
	}
	for i := range 5000 {
		if _, ok := q.Last(ctx, weir.Work{User: fmt.Sprint(i)}); ok {
			known++
		}
	}
	if most := len(q.recent.places); known > most || known < most/2 {
		t.Errorf("%d are known, of at most %d", known, most)
	}
	placeOf := func(user string) uint64 { return q.recent.hash("q/user="+user) >> 1 % uint64(len(q.recent.places)) }
	p, _ := q.TryAdmit(weir.Work{User: "4999"})
	other := weir.Work{User: "5000"}
	for i := 5001; placeOf(other.User) != placeOf("4999"); i++ {
		other.User = fmt.Sprint(i)
	}
	_, _ = q.TryAdmit(other)
	p.SetCost("", 3)
	if d, ok := q.Last(ctx, other); !ok || d.Remaining != 4 || d.Window != 1 {
		t.Errorf("after another's correction it tells %+v, %v, want 4 left of 5", d, ok)
	}
	p, _ = q.TryAdmit(weir.Work{User: "4999"})
	if err := q.SetRules(everyUser(Per(100, time.Hour))); err != nil {
		t.Fatal(err)
	}
	p.Cancel()
	if d, ok := q.Last(ctx, weir.Work{User: "4999"}); ok {
		t.Errorf("it tells of a window that is gone: %+v", d)
	}
}

// A Memory is asked, at whatever time.
func TestLastOfAMemory(t *testing.T) {
	r := newRig(t, Config{Rules: []Rule{{User: Named("alice"), Windows: []Window{Per(5, time.Hour)}}}})
	if d, ok := r.Last(ctx, alice); !ok || d.Remaining != 5 {
		t.Errorf("%+v, %v", d, ok)
	}
	if _, ok := r.Last(ctx, bob); ok {
		t.Error("it tells of work that no rule matches")
	}
}

// A debt of any size is forgiven in all windows, of whom it is and of nobody else, and
// what was there before is told.
func TestReset(t *testing.T) {
	limits := []Window{Per(10, time.Second), Per(1000, time.Hour), PerCalendar(5000, Day, nil)}
	for _, debt := range []int64{0, 3, 900_000_000_000_000, 1 << 62} {
		r := newRig(t, Config{Rules: everyUser(limits...)})
		r.admit(bob)
		p := r.admit(alice)
		p.SetCost("", debt)
		p.Done(weir.OK)
		was := r.left(alice)
		d, err := r.Reset(ctx, alice)
		if err != nil || d.Key != "q/user=alice" || d.Rule != "user=*" || len(d.Windows) != 3 || d.Remaining != was || d.OK != (was >= 0) {
			t.Errorf("%d: %v %+v, want that it held %v", debt, err, d, was)
		}
		if got := r.left(alice); got != 10 {
			t.Errorf("%d: %v left, want 10", debt, got)
		}
		if got := r.left(bob); got != 9 {
			t.Errorf("%v left to bob, want 9", got)
		}
		hash := r.memory.hash.String(d.Key)
		for i, l := range limits {
			if b, _, _, _ := r.memory.shard(hash).table.Load().find(windowID(hash, i)).read(); b.tokens != l.Burst {
				t.Errorf("%d: window %d holds %v of %v", debt, i+1, b.tokens, l.Burst)
			}
		}
		if _, err := r.Reset(ctx, alice); err != nil || r.left(alice) != 10 {
			t.Errorf("once more: %v, %v left, want 10", err, r.left(alice))
		}
	}
}

// Who has no bucket is told why.
func TestResetOfNobody(t *testing.T) {
	r := newRig(t, Config{Rules: []Rule{
		{User: Named("root"), Exempt: true}, {User: Named("eve"), Blocked: true}, {User: Named("alice"), Windows: []Window{Per(1, time.Hour)}},
	}})
	for part, w := range map[string]weir.Work{
		"no rule matches": bob, "root exempts": {User: "root"}, "eve blocks": {User: "eve"}, "the work is exempt": {User: "alice", Exempt: true},
	} {
		if _, err := r.Reset(ctx, w); !errors.Is(err, ErrNoBucket) || !strings.Contains(err.Error(), part) || !strings.Contains(err.Error(), `gate "q"`) {
			t.Errorf("%+v: %v, want %q", w, err, part)
		}
	}
	r.Close()
	if _, err := r.Reset(ctx, alice); !errors.Is(err, weir.ErrClosed) || !errors.Is(err, ErrNotFilled) {
		t.Errorf("%v, want %v", err, weir.ErrClosed)
	}
}

// Whom the store had no place for has nothing that could be filled, and is not told that
// it was; whoever comes new to a store where nobody shares is full, which is fine.
func TestResetWithoutAPlace(t *testing.T) {
	var clock still
	m := crowded(t, &clock)
	r := &rig{newQuota(t, Config{Name: "q", Rules: everyUser(Window{Rate: 0.001, Burst: 10}), Store: m, Now: clock.now}), t, &clock}
	if _, err := r.Reset(ctx, alice); err != nil {
		t.Errorf("nobody shares yet: %v", err)
	}
	r.admit(of(alice, 4))
	if _, err := r.Reset(ctx, alice); !errors.Is(err, ErrNoBucket) || !strings.Contains(err.Error(), "MaxKeys") {
		t.Errorf("%v, want that there is no place", err)
	}
	if got := r.left(bob); got != 6 {
		t.Errorf("%v left of what is shared, want 6", got)
	}
}

// What stands in for a store is filled with it; while the store cannot tell, that is said.
func TestResetWithAStore(t *testing.T) {
	var clock still
	down := errors.New("the store is down")
	store := &flaky{Store: newMemory(t, MemoryConfig{Now: clock.now})}
	r := &rig{newQuota(t, Config{Name: "q", Rules: everyUser(Per(3, time.Hour)), Store: store, Now: clock.now}), t, &clock}
	r.admit(of(alice, 3))
	r.refused(alice)
	store.err = down
	r.admit(of(alice, 3)) // by the one that stands in
	r.refused(alice)
	if _, err := r.Reset(ctx, alice); !errors.Is(err, down) || !errors.Is(err, ErrNotFilled) {
		t.Errorf("%v, want %v", err, down)
	}
	r.refused(alice)
	store.err = nil
	if r.Predict(ctx, alice) == nil {
		t.Error("alice was refused just now, which is not remembered")
	}
	if d, err := r.Reset(ctx, alice); err != nil || d.Remaining != 0 || !d.OK {
		t.Errorf("%v %+v", err, d)
	}
	if rej := r.Predict(ctx, alice); rej != nil {
		t.Errorf("a full bucket is taken for empty: %v", rej)
	}
	if last, ok := r.Last(ctx, alice); !ok || last.Remaining != 3 {
		t.Errorf("%v %+v, want 3 left", ok, last)
	}
	r.admit(of(alice, 3))
	store.err = down
	r.admit(of(alice, 3))
	store.err = nil
	r.Quota.store = &giveless{store}
	if _, err := r.Reset(ctx, alice); !errors.Is(err, errLost) || !strings.Contains(err.Error(), "repeat the reset") {
		t.Errorf("%v, want %v", err, errLost)
	}
}

// giveless is a store that loses what is given.
type giveless struct{ Store }

var errLost = errors.New("lost on the way")

func (g *giveless) Refund(_ context.Context, _ string, _ []Window, _ float64) error { return errLost }

// Who waits keeps its time, and gives nothing back that would be too much.
func TestResetWhileSomebodyWaits(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Per(1, time.Second)), Queue: Queue{Len: 2, MaxWait: 5 * time.Second}})
	r.admit(alice)
	woken := 0
	_, place, err := r.Arrive(alice, func(weir.Permit, error) { woken++ })
	if !errors.Is(err, weir.ErrWaiting) {
		t.Fatal(err)
	}
	if d, err := r.Reset(ctx, alice); err != nil || d.Remaining != -1 || r.left(alice) != 1 {
		t.Errorf("%v %+v, %v left, want 1", err, d, r.left(alice))
	}
	place.Cancel()
	if got := r.left(alice); got != 1 || woken != 0 {
		t.Errorf("%v left after one gave up, want 1", got)
	}
}
