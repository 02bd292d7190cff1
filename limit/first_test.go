package limit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/waiting"
)

// line is a limiter of one slot, taken, and who has been served from its room, in
// order. Whoever is served gives the slot back at once when next is called.
type line struct {
	*Limiter
	t      *testing.T
	now    *time.Duration
	holds  weir.Permit
	served []string
	gone   map[string]*weir.Rejection
}

func newLine(t *testing.T, cfg Config) *line {
	cfg.Limit = max(1, cfg.Limit)
	l, now := byHand(cfg)
	s := &line{Limiter: l, t: t, now: now, gone: map[string]*weir.Rejection{}}
	var err error
	if s.holds, err = l.TryAdmit(weir.Work{Cost: cfg.Limit}); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *line) come(name string, w weir.Work) {
	s.t.Helper()
	_, _, err := s.Arrive(w, func(p weir.Permit, err error) {
		if err != nil {
			s.gone[name] = weir.AsRejection(err)
			return
		}
		s.holds = p
		s.served = append(s.served, name)
	})
	if err != weir.ErrWaiting {
		s.gone[name] = weir.AsRejection(err)
	}
}

func (s *line) serve(n int) string {
	for range n {
		s.holds.Done(weir.OK)
	}
	s.check(s.t)
	return strings.Join(s.served, " ")
}

func TestPriorityIsStrict(t *testing.T) {
	s := newLine(t, Config{})
	for i, p := range []weir.Priority{weir.Background, weir.Normal, weir.Critical, weir.High, weir.Critical, 100, -100} {
		s.come(fmt.Sprintf("%v%d", p, i), weir.Work{Priority: p, Tenant: "t"})
	}
	if got := s.serve(7); got != "critical2 critical4 priority(100)5 high3 normal1 background0 priority(-100)6" {
		t.Error(got)
	}
}

// A share is guaranteed and not more: of eight served while all wait one is
// background work.
func TestShareIsGuaranteed(t *testing.T) {
	s := newLine(t, Config{Queue: Queue{Shares: map[weir.Priority]float64{weir.Background: .125}}})
	for range 32 {
		s.come("b", weir.Work{Priority: weir.Background})
		s.come("h", weir.Work{Priority: weir.High})
	}
	got := s.serve(24)
	if n := strings.Count(got, "b"); n != 3 {
		t.Errorf("%d of 24 are background work: %s", n, got)
	}
}

// A tenant that sends a hundred times as much is served as much as the others.
func TestTenantsAreServedAlike(t *testing.T) {
	s := newLine(t, Config{Queue: Queue{Weights: Weights{Tenants: map[string]float64{"c": 2}}}})
	for range 100 {
		s.come("a", weir.Work{Tenant: "a"})
	}
	for range 8 {
		s.come("b", weir.Work{Tenant: "b"})
		s.come("c", weir.Work{Tenant: "c"})
	}
	got := s.serve(12)
	for name, want := range map[string]int{"a": 3, "b": 3, "c": 6} {
		if n := strings.Count(got, name); n != want {
			t.Errorf("%s was served %d times, want %d: %s", name, n, want, got)
		}
	}
}

// A user gains nothing by inventing tenants, nor by leaving itself out.
func TestInventedTenantsGainNothing(t *testing.T) {
	s := newLine(t, Config{Queue: Queue{Order: FIFO}})
	for i := range 40 {
		s.come("m", weir.Work{User: "mallory", Tenant: fmt.Sprint(i)})
		s.come("n", weir.Work{Tenant: fmt.Sprint(i)})
		s.come("a", weir.Work{User: "alice"})
	}
	got := s.serve(30)
	for _, name := range []string{"m", "n", "a"} {
		if n := strings.Count(got, name); n != 10 {
			t.Errorf("%s was served %d times, want 10: %s", name, n, got)
		}
	}
}

// Weights change while work waits.
func TestWeightsChangeLive(t *testing.T) {
	s := newLine(t, Config{})
	for range 20 {
		s.come("a", weir.Work{User: "a"})
		s.come("b", weir.Work{User: "b"})
	}
	if got := s.serve(8); strings.Count(got, "a") != 4 {
		t.Errorf("alike: %s", got)
	}
	cfg := Config{Limit: 1, Queue: Queue{Weights: Weights{Users: map[string]float64{"a": 3}}}}
	if err := s.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	s.served = nil
	if got := s.serve(12); strings.Count(got, "a") != 9 {
		t.Errorf("3 to 1: %s", got)
	}
}

func TestEarliestDeadlineFirst(t *testing.T) {
	s := newLine(t, Config{Queue: Queue{Order: EDF}})
	for i, by := range []time.Duration{3, 0, 1, 2, 0} {
		w := weir.Work{}
		if by > 0 {
			w.Deadline = VirtualEpoch.Add(by * time.Second)
		}
		s.come(fmt.Sprint(i), w)
	}
	if got := s.serve(5); got != "2 3 0 1 4" {
		t.Error(got)
	}
}

// Work that turns out to cost more than it said goes without until the others have
// had as much, and less than it said is made good.
func TestCostIsSettledAgainstTheShare(t *testing.T) {
	for _, tt := range []struct {
		said, was int64
		want      string
	}{
		{1, 4, "a b b b b a b a b"},
		{4, 1, "a b a b a b a b a"},
		{4, 4, "a b b b b a b a b"},
		{1, -4, "a b a b a b a b a"}, // no cost is below nothing
	} {
		s := newLine(t, Config{Limit: 4})
		s.come("a", weir.Work{Tenant: "a", Cost: tt.said})
		for range 9 {
			s.come("b", weir.Work{Tenant: "b"})
			s.come("a", weir.Work{Tenant: "a"})
		}
		if err := s.SetLimit(1); err != nil { // so that each goes alone, and counts as said
			t.Fatal(err)
		}
		s.serve(1)
		s.holds.SetCost("another", 100)
		s.holds.SetCost("t", tt.was)
		s.holds.SetCost("", tt.was) // said again it is no other
		if got := s.serve(8); got != tt.want {
			t.Errorf("said %d, was %d: %s, want %s", tt.said, tt.was, got, tt.want)
		}
	}
}

// Those who lose their place hear it, and by what.
func TestDisplacedHearWhy(t *testing.T) {
	s := newLine(t, Config{Queue: Queue{Len: 3, Order: FIFO}})
	s.come("low", weir.Work{Priority: weir.Background})
	s.come("a1", weir.Work{Tenant: "a"})
	s.come("a2", weir.Work{Tenant: "a"})
	s.come("urgent", weir.Work{Priority: weir.High})
	s.come("b", weir.Work{Tenant: "b"})
	s.come("a3", weir.Work{Tenant: "a"})
	for name, rule := range map[string]string{"low": waiting.RuleOutranked, "a2": waiting.RuleUnfair, "a3": ""} {
		if r := s.gone[name]; r == nil || r.Reason != weir.ReasonQueueFull || r.Rule != rule || r.Value != 3 || r.Limit != 3 || !r.Retryable || r.RetryAfter <= 0 {
			t.Errorf("%s: %v", name, r)
		}
	}
	if got := s.serve(3); len(s.gone) != 3 || got != "urgent a1 b" {
		t.Errorf("%s; gone: %v", got, s.gone)
	}
}

// Heavy work whose turn it is gets its slots: what is lighter of its priority waits
// behind it, even beside free slots, and when it leaves they are used at once.
func TestHeavyWorkIsNotStarved(t *testing.T) {
	l, _ := byHand(Config{Limit: 4})
	out := l.take(t, 4)
	var served []string
	come := func(name string, w weir.Work) weir.Waiter {
		return l.enter(t, w, func(p weir.Permit, err error) {
			served = append(served, name)
			out = append(out, p)
		})
	}
	come("heavy", weir.Work{Tenant: "h", Cost: 3})
	quits := come("quits", weir.Work{Tenant: "q", Cost: 4})
	for i := range 6 {
		come(fmt.Sprint(i), weir.Work{Tenant: fmt.Sprint(i)})
	}
	for _, p := range out[:2] {
		p.Done(weir.OK)
	}
	if l.check(t); len(served) != 0 || l.inFlight() != 2 {
		t.Fatalf("served past the heavy one: %v", served)
	}
	if _, err := l.TryAdmit(weir.Work{Priority: weir.Critical}); err == nil {
		t.Error("past the room")
	}
	urgent, _, err := l.Arrive(weir.Work{Priority: weir.High}, nil)
	if err != nil {
		t.Errorf("behind work of a lower priority: %v", err)
	}
	out[2].Done(weir.OK)
	urgent.Done(weir.OK)
	if l.check(t); strings.Join(served, " ") != "heavy" {
		t.Errorf("served %v", served)
	}
	if quits.Cancel(); l.room.Len() != 6 {
		t.Errorf("%d wait", l.room.Len())
	}
	out[3].Done(weir.OK)
	if l.check(t); strings.Join(served, " ") != "heavy 0" {
		t.Errorf("served %v", served)
	}
}

// Whoever is first of its priority is first in line: no estimate refuses it,
// whatever waits below. Among equals it is as before.
func TestVainGoesByWhatIsAhead(t *testing.T) {
	tests := []struct {
		name    string
		work    weir.Work
		refused bool
	}{
		{"behind five", weir.Work{Tenant: "a"}, true},
		{"another tenant behind few", weir.Work{Tenant: "b"}, false},
		{"above all", weir.Work{Priority: weir.High, MaxWait: 1}, false},
		{"below all", weir.Work{Priority: weir.Background}, true},
	}
	for _, tt := range tests {
		l, _ := byHand(Config{Limit: 1, Queue: Queue{Order: FIFO}})
		l.take(t, 1)
		for range 5 {
			l.enter(t, weir.Work{Tenant: "a"}, nil)
		}
		l.drain.rate = 10 // five take 500 ms
		if tt.work.MaxWait == 0 {
			tt.work.MaxWait = 400 * ms
		}
		_, _, err := l.Arrive(tt.work, func(weir.Permit, error) {})
		r := weir.AsRejection(err)
		if (err != weir.ErrWaiting) != tt.refused || tt.refused && r.Reason != weir.ReasonQueueTimeout {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// What work has cost counts as long as its permit is held, also where the leak finder
// stands between the two.
func TestSettlesWhileHeld(t *testing.T) {
	for _, traced := range []bool{false, true} {
		l, _ := byHand(Config{Limit: 1, FindLeaks: traced})
		first, err := l.TryAdmit(weir.Work{})
		if err != nil {
			t.Fatal(err)
		}
		var p weir.Permit
		l.enter(t, weir.Work{Tenant: "a"}, func(got weir.Permit, _ error) { p = got })
		first.Done(weir.OK)
		p.SetCost("", 7)
		i := slices.IndexFunc(l.accounts, func(a account) bool { return a.tenant == "a" })
		if i < 0 || l.accounts[i].cost != 7 {
			t.Fatalf("traced %v: %+v", traced, l.accounts)
		}
		p.Done(weir.OK)
		p.SetCost("", 9)
		if a := l.accounts[i]; a.cost != 7 {
			t.Errorf("traced %v: settled after Done: %+v", traced, a)
		}
	}
}

// Many of all kinds at once, from goroutines that leave as they like: everybody is
// answered, and nothing is lost.
func TestAllKindsFromManyGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := weir.Must(New(Config{Name: "t", Limit: 3, Queue: Queue{Len: 12, MaxWait: 40 * ms,
			Shares: map[weir.Priority]float64{weir.Background: .1}, Weights: Weights{Users: map[string]float64{"a": 2}}}}))
		var wg sync.WaitGroup
		for g := range 40 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(g), 3))
				for range 50 {
					w := who(rng.Uint32())
					w.Cost, w.Exempt = rng.Int64N(5), rng.IntN(9) == 0
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.Int64N(60))*ms)
					if p, err := l.Admit(ctx, w); err == nil {
						time.Sleep(time.Duration(rng.Int64N(5)) * ms)
						p.SetCost("", rng.Int64N(20))
						p.Done(weir.OK)
					} else if weir.AsRejection(err) == nil {
						t.Error(err)
					}
					cancel()
				}
			})
		}
		wg.Wait()
		l.check(t)
		if s := l.Snapshot(); s.InFlight != 0 || s.Waiting != 0 || s.Exempt != 0 || s.WaitingByClass != nil {
			t.Errorf("%+v", s)
		}
		if err := l.Drain(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// The way through the room allocates nothing for work of any kind.
func TestWaitingAllocatesNothing(t *testing.T) {
	l := weir.Must(New(Config{Name: "t", Limit: 1}))
	defer l.Close()
	w := weir.Work{Priority: weir.High, User: "u", Tenant: "t"}
	place := l.place()
	n := testing.AllocsPerRun(200, func() {
		p, err := l.TryAdmit(weir.Work{})
		if err != nil {
			t.Fatal(err)
		}
		_, queued, err := l.arrive(context.Background(), &w, place)
		if err != nil || !queued {
			t.Fatal(queued, err)
		}
		p.Done(weir.OK)
		<-place.Ready()
		place.Permit.SetCost("", 3)
		place.Permit.Done(weir.OK)
	})
	if n > 0 {
		t.Errorf("%v allocations", n)
	}
}
