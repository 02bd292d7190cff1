package quota

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
)

// remote is a store as if on another machine: a Memory that answers after a while.
type remote struct {
	*Memory
	delay time.Duration
	fails bool

	mu          sync.Mutex
	most, asked int
}

func (r *remote) Decide(ctx context.Context, req *Request) (Decision, error) {
	r.mu.Lock()
	r.asked++
	r.most = max(r.most, r.asked)
	r.mu.Unlock()
	time.Sleep(r.delay)
	r.mu.Lock()
	r.asked--
	r.mu.Unlock()
	if r.fails {
		return Decision{}, errors.New("the store is down")
	}
	return r.Memory.Decide(ctx, req)
}

// batcher is a remote store that takes several requests at once.
type batcher struct{ *remote }

func (b batcher) DecideAll(ctx context.Context, all []*Request) ([]Decision, []error) {
	decisions, errs := make([]Decision, len(all)), make([]error, len(all))
	for i, r := range all {
		decisions[i], errs[i] = b.remote.Decide(ctx, r)
	}
	return decisions, errs
}

// about are charges of one token each.
func about(descriptors ...string) (all []Charge) {
	for _, d := range descriptors {
		all = append(all, Charge{Work: weir.Work{Descriptor: d}, Tokens: 1})
	}
	return all
}

// several runs a test with a Memory and with remote stores, in a bubble.
func several(t *testing.T, list []Rule, do func(t *testing.T, q *Quota)) {
	for _, name := range []string{"memory", "remote", "batches"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := Config{Name: "q", Rules: list}
				m, err := NewMemory(MemoryConfig{})
				if err != nil {
					t.Fatal(err)
				}
				switch name {
				case "remote":
					cfg.Store = &remote{Memory: m}
				case "batches":
					cfg.Store = batcher{&remote{Memory: m}}
				}
				q, err := New(cfg)
				if err != nil {
					t.Fatal(err)
				}
				do(t, q)
			})
		})
	}
}

func perHour(pattern string, n float64) Rule {
	return Rule{Descriptor: Match(pattern), Windows: []Window{Per(n, time.Hour)}}
}

// What one refuses is taken from none. The figures are those after what was given back.
func TestChargeAll(t *testing.T) {
	several(t, []Rule{perHour("a=*", 5), perHour("b=*", 2), {Descriptor: "free=*", Exempt: true}, {Descriptor: "no=*", Blocked: true}}, func(t *testing.T, q *Quota) {
		ctx := t.Context()
		left := func(d string) float64 {
			a, _ := q.Peek(ctx, weir.Work{Descriptor: d})
			return a.Remaining
		}
		for range 2 {
			if all := about("a=1", "b=1", "free=1", "none=1"); !q.ChargeAll(ctx, all) || !all[2].Answer.Free || !all[3].Answer.Free || all[3].Answer.Rule != "" {
				t.Fatalf("%+v", all)
			}
		}
		all := about("a=1", "b=1", "a=2")
		if q.ChargeAll(ctx, all) || all[0].Refused != nil || all[2].Refused != nil || all[1].Refused == nil {
			t.Fatalf("%+v", all)
		}
		if r := all[1].Refused; r.Reason != weir.ReasonQuota || r.RetryAfter != 30*time.Minute || r.Rule != "descriptor=b=*" {
			t.Errorf("%+v", r)
		}
		if all[0].Answer.Remaining != 3 || left("a=1") != 3 || all[2].Answer.Remaining < 4 || left("a=2") != 5 {
			t.Errorf("a request that was refused has taken tokens: %v of 3, %v of 3, %v of 5", all[0].Answer.Remaining, left("a=1"), left("a=2"))
		}
		if all := about("a=1", "no=1"); q.ChargeAll(ctx, all) || all[1].Refused.Reason != weir.ReasonBlocked || left("a=1") != 3 {
			t.Errorf("%+v", all)
		}
		// One that stands alone refuses nothing, and takes nothing.
		all = about("a=1", "b=1")
		all[1].Alone = true
		if !q.ChargeAll(ctx, all) || all[1].Refused == nil || left("a=1") != 2 || left("b=1") != 0 {
			t.Errorf("%+v", all)
		}
		if s := q.Snapshot(); s.Rejected[weir.ReasonQuota] != 1 || s.Rejected[weir.ReasonBlocked] != 1 || s.Admitted != 5 {
			t.Errorf("%+v", s)
		}
	})
}

// What is charged into debt stays charged when another refuses.
func TestChargeAllKeepsDebt(t *testing.T) {
	several(t, []Rule{perHour("a=*", 5), perHour("b=*", 1)}, func(t *testing.T, q *Quota) {
		all := about("a=1", "b=1")
		all[0].Debt, all[1].Tokens = true, 2
		ok := q.ChargeAll(t.Context(), all)
		if a, _ := q.Peek(t.Context(), weir.Work{Descriptor: "a=1"}); ok || all[0].Refused != nil || all[0].Answer.Remaining != 4 || a.Remaining != 4 {
			t.Errorf("%v, %+v, %v left", ok, all, a.Remaining)
		}
	})
}

// modes is a store that keeps how it was asked.
type modes struct {
	*Memory
	asked []Mode
}

func (m *modes) Decide(ctx context.Context, r *Request) (Decision, error) {
	m.asked = append(m.asked, r.Mode)
	return m.Memory.Decide(ctx, r)
}

func (m *modes) DecideAll(ctx context.Context, all []*Request) ([]Decision, []error) {
	decisions, errs := make([]Decision, len(all)), make([]error, len(all))
	for i, r := range all {
		decisions[i], errs[i] = m.Decide(ctx, r)
	}
	return decisions, errs
}

// Who is known to be over one quota takes nothing from the others, not even for a moment.
func TestChargeAllAsksTheEmptyFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := NewMemory(MemoryConfig{})
		if err != nil {
			t.Fatal(err)
		}
		store := &modes{Memory: m}
		q, err := New(Config{Name: "q", Rules: []Rule{perHour("a=*", 5), perHour("b=*", 1)}, Store: store})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second finds out
			q.ChargeAll(t.Context(), about("b=1"))
		}
		store.asked = nil
		if q.ChargeAll(t.Context(), about("a=1", "b=1")) || slices.Contains(store.asked[1:], Strict) || store.asked[len(store.asked)-1] != DryRun {
			t.Errorf("asked as %v, want the empty one first and the other without a charge", store.asked)
		}
	})
}

// Tokens of 0 only ask, and negative ones give back. With Debt all is charged.
func TestChargeAllTokens(t *testing.T) {
	several(t, []Rule{perHour("a=*", 10)}, func(t *testing.T, q *Quota) {
		charge := func(tokens int64, debt bool) (bool, float64) {
			all := about("a=1")
			all[0].Tokens, all[0].Debt = tokens, debt
			ok := q.ChargeAll(t.Context(), all)
			return ok, all[0].Answer.Remaining
		}
		for i, step := range []struct {
			tokens int64
			debt   bool
			ok     bool
			left   float64
		}{
			{0, false, true, 10}, {10, false, true, 0}, {0, false, true, 0}, {1, false, false, 0}, {1 << 32, false, false, 0},
			{25, true, false, -25}, {0, false, false, -25}, {1, false, false, -25}, {-5, false, false, -20},
			{-1 << 40, false, true, 10}, {-3, false, true, 10}, {4, true, true, 6}, {0, true, true, 6},
		} {
			if ok, left := charge(step.tokens, step.debt); ok != step.ok || left != step.left {
				t.Errorf("step %d, %+v: %v, %v left", i, step, ok, left)
			}
		}
	})
}

// What gives tokens back does so only if no other refuses; with Debt all is charged and given.
func TestChargeAllGivesLast(t *testing.T) {
	several(t, []Rule{perHour("a=*", 10), perHour("b=*", 1)}, func(t *testing.T, q *Quota) {
		charge := func(a, b int64, debt bool) (bool, [2]float64) {
			all := about("a=1", "b=1")
			all[0].Tokens, all[1].Tokens, all[0].Debt, all[1].Debt = a, b, debt, debt
			ok := q.ChargeAll(t.Context(), all)
			var left [2]float64
			for i, d := range []string{"a=1", "b=1"} {
				now, _ := q.Peek(t.Context(), weir.Work{Descriptor: d})
				if left[i] = now.Remaining; left[i] != all[i].Answer.Remaining {
					t.Errorf("%+v: the answer says %v of %v", all, all[i].Answer.Remaining, left[i])
				}
			}
			return ok, left
		}
		for i, step := range []struct {
			a, b int64
			debt bool
			ok   bool
			left [2]float64
		}{
			{8, 1, false, true, [2]float64{2, 0}},
			{-3, 1, false, false, [2]float64{2, 0}},
			{1, -1, false, true, [2]float64{1, 1}},
			{-3, 1, false, true, [2]float64{4, 0}},
			{5, 2, true, false, [2]float64{-1, -2}},
			{-2, 1, true, false, [2]float64{1, -3}},
		} {
			if ok, left := charge(step.a, step.b, step.debt); ok != step.ok || left != step.left {
				t.Errorf("step %d, %+v: %v, %v left", i, step, ok, left)
			}
		}
	})
}

// A caller may bring a limit along: it counts in place of every rule.
func TestChargeAllWindows(t *testing.T) {
	several(t, []Rule{{Descriptor: "a=1", Blocked: true}}, func(t *testing.T, q *Quota) {
		all := about("a=1", "a=2")
		for i := range all {
			all[i].Windows = []Window{Per(1, time.Hour)}
		}
		if !q.ChargeAll(t.Context(), all) || q.ChargeAll(t.Context(), all) || all[0].Refused.RetryAfter != time.Hour {
			t.Errorf("%+v", all)
		}
		all[0].Windows = []Window{{}}
		if q.ChargeAll(t.Context(), all[:1]) || all[0].Refused.Reason != weir.ReasonBlocked {
			t.Errorf("a window that is none: %+v", all)
		}
	})
}

// Different limits that callers bring along for one descriptor share no bucket, nor one with a rule. In a shared bucket the
// faster would fill it for the slower, and the smaller would empty it for the larger.
func TestChargeAllWindowsApart(t *testing.T) {
	slow := Window{Rate: 1e-6, Burst: 3}
	several(t, []Rule{{Descriptor: "a=1", Windows: []Window{slow}}}, func(t *testing.T, q *Quota) {
		given := [][]Window{
			nil, // the rule's
			{slow},
			{{Rate: 1e-6 * (1 + 1e-12), Burst: 3}},
			{{Rate: 1e6, Burst: 3}},
			{{Rate: 1e-6, Burst: 2}},
			{slow, {Rate: 1e6, Burst: 3}},
			{PerCalendar(3, Month, nil)},
			{PerCalendar(3, Month, time.FixedZone("there", 0))},
		}
		for round := range 4 {
			for i, windows := range given {
				all := about("a=1")
				all[0].Windows = windows
				want := true
				for _, w := range windows {
					want = want && (w.Rate > 1 || round < int(w.Burst))
				}
				if windows == nil {
					want = round < 3
				}
				if q.ChargeAll(t.Context(), all) != want {
					t.Errorf("round %d: windows %d, %v: %v, want %v", round, i, windows, !want, want)
				}
			}
			time.Sleep(ms)
		}
	})
}

// A remote store is asked about all at the same time.
func TestChargeAllAsksAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := NewMemory(MemoryConfig{})
		if err != nil {
			t.Fatal(err)
		}
		store := &remote{Memory: m, delay: time.Second}
		q, err := New(Config{Name: "q", Store: store, Rules: []Rule{perHour("a=*", 1)}, OnStoreError: Closed})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if !q.ChargeAll(t.Context(), about("a=1", "a=2", "a=3")) || time.Since(began) != time.Second || store.most != 3 {
			t.Errorf("%v, %d at once", time.Since(began), store.most)
		}
		store.fails = true
		all := about("a=4", "a=5")
		if q.ChargeAll(t.Context(), all) || all[0].Refused.Reason != weir.ReasonStore {
			t.Errorf("a store that fails: %+v", all)
		}
	})
}

// Who is over one limit, and asks on and on, takes nothing from another.
func TestChargeAllFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := NewMemory(MemoryConfig{})
		if err != nil {
			t.Fatal(err)
		}
		q, err := New(Config{Name: "q", Store: &remote{Memory: m, delay: 100 * time.Millisecond}, Rules: []Rule{perHour("user=*", 1), perHour("all=*", 5)}})
		if err != nil {
			t.Fatal(err)
		}
		if !q.ChargeAll(t.Context(), about("all=1", "user=a")) || q.ChargeAll(t.Context(), about("all=1", "user=a")) {
			t.Fatal("the first is refused, or the second is not")
		}
		var flood sync.WaitGroup
		for range 30 {
			flood.Go(func() {
				for range 10 {
					if q.ChargeAll(t.Context(), about("all=1", "user=a")) {
						t.Error("the flood is let in")
					}
				}
			})
		}
		for i, user := range []string{"user=b", "user=c", "user=d", "user=e"} {
			time.Sleep(150 * time.Millisecond) // in the flood, of 2 s
			if all := about("all=1", user); !q.ChargeAll(t.Context(), all) || int(all[0].Answer.Remaining+0.01) != 3-i {
				t.Errorf("%s: %v, %v left, want %d", user, all[0].Refused, all[0].Answer.Remaining, 3-i)
			}
		}
		flood.Wait()
	})
}

// Whoever asks at the same time, no more is admitted than there is.
func TestChargeAllTogether(t *testing.T) {
	several(t, []Rule{perHour("a=*", 40), perHour("b=*", 60)}, func(t *testing.T, q *Quota) {
		var admitted [2]int
		var mu sync.Mutex
		var callers sync.WaitGroup
		for i := range 100 {
			callers.Go(func() {
				all := about("a=1", "b=1")[i%2:]
				if q.ChargeAll(context.Background(), all) {
					mu.Lock()
					admitted[i%2]++
					mu.Unlock()
				}
			})
		}
		callers.Wait()
		for d, taken := range map[string]int{"a=1": admitted[0], "b=1": admitted[0] + admitted[1]} {
			of := map[string]int{"a=1": 40, "b=1": 60}[d]
			if a, _ := q.Peek(t.Context(), weir.Work{Descriptor: d}); taken > of || a.Remaining != float64(of-taken) {
				t.Errorf("%s: %d of %d were admitted, and %v are left", d, taken, of, a.Remaining)
			}
		}
	})
}
