package quota

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

// Foretell is about what only time brings back, and about what never comes.
func TestForetell(t *testing.T) {
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
		{"too late anyway", Config{Rules: blocked}, 2, weir.Work{User: "alice", Deadline: VirtualEpoch.Add(-time.Second)}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, test.cfg)
			if test.taken > 0 {
				r.admit(weir.Work{User: "alice", Cost: test.taken})
			}
			before := r.Snapshot()
			got := r.Foretell(ctx, test.w)
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
func TestForetellAsksNobodyElse(t *testing.T) {
	clock := &still{}
	store := &elsewhere{flaky: flaky{Store: newMemory(t, MemoryConfig{Now: clock.now})}}
	rules := append(everyUser(Per(1, time.Second)), Rule{User: Named("eve"), Blocked: true})
	q := newQuota(t, Config{Name: "q", Now: clock.now, Store: store, Rules: rules})
	if r := q.Foretell(ctx, weir.Work{User: "eve"}); r == nil || r.Reason != weir.ReasonBlocked {
		t.Errorf("%v, want blocked", r)
	}
	for range 2 {
		if r := q.Foretell(ctx, alice); r != nil {
			t.Errorf("%v, and nobody was refused", r)
		}
		_, _ = q.TryAdmit(alice)
	}
	clock.advance(300*time.Millisecond + 1)
	if r := q.Foretell(ctx, alice); r == nil || r.RetryAfter != 700*time.Millisecond || r.Reason != weir.ReasonQuota {
		t.Errorf("%+v, want 700ms", r)
	}
	clock.advance(700 * time.Millisecond)
	if r := q.Foretell(ctx, alice); r != nil || store.asked != 2 {
		t.Errorf("%v a second later; the store was asked %d times, want 2", r, store.asked)
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
		gate("user", Rule{User: Every, Limits: []Limit{Per(2, time.Second), Per(20, time.Minute)}}, false),
		gate("route", Rule{Route: Every, Limits: []Limit{Per(3, time.Second)}}, true),
		gate("all", Rule{Limits: []Limit{{Rate: 1.5, Burst: 9}}}, false),
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
