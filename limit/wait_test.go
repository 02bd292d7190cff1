package limit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/gate"
	"github.com/weir-go/weir/internal/room"
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

func (s *line) finish(n int) string {
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
	if got := s.finish(7); got != "critical2 critical4 priority(100)5 high3 normal1 background0 priority(-100)6" {
		t.Error(got)
	}
}

// A share is guaranteed and not more: of eight served while all wait one is
// background work.
func TestShareIsGuaranteed(t *testing.T) {
	s := newLine(t, Config{Queue: Queue{Shares: map[weir.Priority]float64{weir.Background: 0.125}}})
	for range 32 {
		s.come("b", weir.Work{Priority: weir.Background})
		s.come("h", weir.Work{Priority: weir.High})
	}
	got := s.finish(24)
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
	got := s.finish(12)
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
	got := s.finish(30)
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
	if got := s.finish(8); strings.Count(got, "a") != 4 {
		t.Errorf("alike: %s", got)
	}
	cfg := Config{Limit: 1, Queue: Queue{Weights: Weights{Users: map[string]float64{"a": 3}}}}
	if err := s.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	s.served = nil
	if got := s.finish(12); strings.Count(got, "a") != 9 {
		t.Errorf("3 to 1: %s", got)
	}
}

func TestEarliestDeadlineFirst(t *testing.T) {
	s := newLine(t, Config{Queue: Queue{Order: EDF}})
	for i, by := range []time.Duration{3, 0, 1, 2, 0} {
		w := weir.Work{}
		if by > 0 {
			w.Deadline = weir.VirtualEpoch.Add(by * time.Second)
		}
		s.come(fmt.Sprint(i), w)
	}
	if got := s.finish(5); got != "2 3 0 1 4" {
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
		s.finish(1)
		s.holds.SetCost("another", 100)
		s.holds.SetCost("t", tt.was)
		s.holds.SetCost("", tt.was) // said again it is no other
		if got := s.finish(8); got != tt.want {
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
	for name, rule := range map[string]string{"low": gate.RuleOutranked, "a2": gate.RuleUnfair, "a3": ""} {
		if r := s.gone[name]; r == nil || r.Reason != weir.ReasonQueueFull || r.Rule != rule || r.Value != 3 || r.Limit != 3 || !r.Retryable || r.RetryAfter <= 0 {
			t.Errorf("%s: %v", name, r)
		}
	}
	if got := s.finish(3); len(s.gone) != 3 || got != "urgent a1 b" {
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
		l.drain.Rate = 10 // five take 500 ms
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
		i := slices.IndexFunc(l.accounts.All, func(a gate.Account) bool { return a.Tenant == "a" })
		if i < 0 || l.accounts.All[i].Cost != 7 {
			t.Fatalf("traced %v: %+v", traced, l.accounts.All)
		}
		p.Done(weir.OK)
		p.SetCost("", 9)
		if a := l.accounts.All[i]; a.Cost != 7 {
			t.Errorf("traced %v: settled after Done: %+v", traced, a)
		}
	}
}

// Many of all kinds at once, from goroutines that leave as they like: everybody is
// answered, and nothing is lost.
func TestAllKindsFromManyGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := weir.Must(New(Config{Name: "t", Limit: 3, Queue: Queue{Len: 12, MaxWait: 40 * ms,
			Shares: map[weir.Priority]float64{weir.Background: 0.1}, Weights: Weights{Users: map[string]float64{"a": 2}}}}))
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
	place := l.front.Place()
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
		p, _ = l.front.Await(context.Background(), &w, &place.Answer, place)
		p.SetCost("", 3)
		p.Done(weir.OK)
	})
	if n > 0 {
		t.Errorf("%v allocations", n)
	}
}

const ms = time.Millisecond

// measured returns a full limiter with one waiting, slots that come back at 10 a
// second, and a median of 200 ms.
func measured(t *testing.T, order Order) (*Limiter, *time.Duration) {
	t.Helper()
	l, now := byHand(Config{Limit: 1, Queue: Queue{Len: 100, Order: order}})
	l.take(t, 1)
	l.enter(t, weir.Work{}, nil)
	l.drain.Rate, l.service = 10, usually(200*ms)
	return l, now
}

// enter brings work that has to wait. told, if not nil, hears the answer.
func (l *Limiter) enter(t *testing.T, w weir.Work, told func(weir.Permit, error)) weir.Waiter {
	t.Helper()
	if told == nil {
		told = func(weir.Permit, error) {}
	}
	_, place, err := l.Arrive(w, told)
	if err != weir.ErrWaiting {
		t.Fatalf("not queued: %v", err)
	}
	return place
}

// With one in front and 10 a second it is a newcomer's turn after 200 ms, and it
// would be done after 400 ms, as a rule.
func TestNobodyWaitsInVain(t *testing.T) {
	const start = 50 * ms
	by := func(d time.Duration) time.Time { return weir.VirtualEpoch.Add(start + d) }
	tests := []struct {
		name         string
		work         weir.Work
		forget       func(*Limiter)
		reason       weir.Reason // none: it waits
		value, limit float64
	}{
		{"time enough", weir.Work{Deadline: by(400 * ms), MaxWait: 200 * ms}, nil, 0, 0, 0},
		{"a deadline too near", weir.Work{Deadline: by(399 * ms)}, nil, weir.ReasonDeadline, 0.4, 0.399},
		{"a wait too short", weir.Work{MaxWait: 199 * ms}, nil, weir.ReasonQueueTimeout, 0.2, 0.199},
		{"units, not waiters", weir.Work{Cost: 2, MaxWait: 199 * ms}, nil, weir.ReasonQueueTimeout, 0.2, 0.199},
		{"the rate is unknown", weir.Work{Deadline: by(ms)}, func(l *Limiter) { l.drain.Rate = 0 }, 0, 0, 0},
		{"the rate is old", weir.Work{Deadline: by(ms)}, func(l *Limiter) { l.drain.Known = -time.Hour }, 0, 0, 0},
		{"the service is unknown", weir.Work{Deadline: by(200 * ms)}, func(l *Limiter) { l.service = room.Service{} }, 0, 0, 0},
		{"nobody in front", weir.Work{Deadline: by(ms)}, func(l *Limiter) { l.room.Remove(l.room.Oldest()) }, 0, 0, 0},
	}
	for _, tt := range tests {
		l, now := measured(t, FIFO)
		*now = start
		if tt.forget != nil {
			tt.forget(l)
		}
		_, _, err := l.Arrive(tt.work, func(weir.Permit, error) {})
		if tt.reason == 0 {
			if err != weir.ErrWaiting {
				t.Errorf("%s: %v", tt.name, err)
			}
			continue
		}
		r := weir.AsRejection(err)
		if r == nil || r.Reason != tt.reason || r.Value != tt.value || r.Limit != tt.limit || !r.Retryable || r.RetryAfter <= 0 {
			t.Errorf("%s: %v", tt.name, err)
		}
		if late := tt.reason == weir.ReasonDeadline; errors.Is(err, context.DeadlineExceeded) != late {
			t.Errorf("%s: cause %v", tt.name, r.Cause)
		}
	}
}

// Where the newest may go first, a newcomer that would be late in its turn does.
func TestWhoWouldBeLateGoesFirst(t *testing.T) {
	l, now := measured(t, Adaptive)
	var first string
	w := weir.Work{Deadline: weir.VirtualEpoch.Add(350 * ms)}
	l.enter(t, w, func(weir.Permit, error) { first = "newest" })
	*now = 50 * ms
	if err := l.SetLimit(2); err != nil || first != "newest" {
		t.Errorf("%v, went first: %q", err, first)
	}
	l.enter(t, weir.Work{}, nil)
	_, _, err := l.Arrive(weir.Work{Deadline: weir.VirtualEpoch.Add(349 * ms)}, func(weir.Permit, error) {})
	if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonDeadline {
		t.Errorf("too late even so: %v", err)
	}
}

// usually is the service of work that takes d.
func usually(d time.Duration) (s room.Service) {
	for range 8 {
		s.Add(d)
	}
	return s
}

// Before anything is measured there is no estimate. A shedder must not take a guess for one.
func TestNoEstimateOfTheWait(t *testing.T) {
	l, _ := byHand(Config{Limit: 1})
	l.take(t, 1)
	l.enter(t, weir.Work{}, nil)
	if w := l.Snapshot().Wait; w != 0 {
		t.Errorf("%v with nothing measured", w)
	}
	l.service = usually(300 * ms)
	if w := l.Snapshot().Wait; w != 600*ms {
		t.Errorf("%v behind one that waits and one that runs, of 300 ms each; want 600 ms", w)
	}
}

// keep is how many of a queue that stands may wait.
const keep = 64

// The oldest hears at once when it has lost its place for good, and to how many.
func TestDisplaced(t *testing.T) {
	l, now := byHand(Config{Limit: 1})
	l.take(t, 1)
	l.drain.Rate = 640
	var r *weir.Rejection
	l.enter(t, weir.Work{}, func(_ weir.Permit, err error) { r = weir.AsRejection(err) })
	for range keep - 2 {
		l.enter(t, weir.Work{}, nil)
	}
	for range 2 {
		*now += 100 * ms
		l.drain.Known = *now
		l.Step()
	}
	l.enter(t, weir.Work{}, nil)
	if r != nil {
		t.Fatalf("displaced with a place left: %v", r)
	}
	l.enter(t, weir.Work{}, nil)
	if r == nil || r.Reason != weir.ReasonQueueFull || r.Value != keep || r.Limit != keep || !r.Retryable {
		t.Errorf("%v", r)
	}
	if s := l.Snapshot(); s.Waiting != keep || s.Rejected[weir.ReasonQueueFull] != 1 {
		t.Errorf("%d wait, %v", s.Waiting, s.Rejected)
	}
}

// What failed fast says nothing about how long work takes.
func TestServiceCountsAnswers(t *testing.T) {
	l, now := byHand(Config{Limit: 1, Hooks: weir.Hooks{Done: func(string, weir.Outcome, time.Duration) {}}})
	for _, o := range weir.Outcomes() {
		l.service = room.Service{}
		for range 8 {
			p := l.take(t, 1)[0]
			*now += 10 * ms
			p.Done(o)
		}
		want := 10 * ms
		if o == weir.Failed || o == weir.NoSample {
			want = 0
		}
		if got := l.service.Median(); got != want {
			t.Errorf("%v: %v, want %v", o, got, want)
		}
	}
}

func TestUnknownOrder(t *testing.T) {
	for order := range EDF + 2 {
		_, err := New(Config{Name: "t", Limit: 1, Queue: Queue{Order: order}})
		if (err != nil) != (order > EDF) {
			t.Errorf("order %d: %v", order, err)
		}
	}
}

// All that is wrong is said at once, with where it is and what is allowed.
func TestQueueFaults(t *testing.T) {
	q := Queue{
		Order: EDF + 1,
		Shares: map[weir.Priority]float64{weir.Background: math.NaN(), weir.Normal: -0.1, weir.High: 0.6, weir.Critical: 0.5,
			weir.Critical + 1: 0.1, weir.Background - 1: 0.1},
		Weights: Weights{
			Users:   map[string]float64{"zero": 0, "good": 1, "negative": -1, "huge": math.Inf(1)},
			Tenants: map[string]float64{"": math.NaN(), strings.Repeat("x", 10<<10): MaxWeight, "heavy": MaxWeight * 2},
		},
	}
	_, err := New(Config{Name: "t", Limit: -1, Queue: q})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		"Limit: -1", "Queue.Order: 4",
		`Queue.Shares["priority(-2)"]: no such`, "Queue.Shares.background: NaN", "Queue.Shares.normal: -0.1", `Queue.Shares["priority(3)"]: no such`,
		"Queue.Shares: 1.1 will", `Users.zero: 0`, `Users.negative: -1`, `Users.huge: +Inf`, `Tenants[""]: NaN`, `Tenants.heavy: 2000 will not do; must be from 0.001 to 1000`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s is missing in:\n%v", want, err)
		}
	}
	if n := strings.Count(err.Error(), "\n"); n != 12 {
		t.Errorf("%d lines more than one:\n%v", n, err)
	}
}

func TestQueueLimitsAreAllowed(t *testing.T) {
	q := Queue{Shares: map[weir.Priority]float64{weir.Background: 0.1, weir.Normal: 0.2, weir.High: 0.7},
		Weights: Weights{Users: map[string]float64{"a": MinWeight}, Tenants: map[string]float64{"b": MaxWeight}}}
	l, err := New(Config{Limit: 1, Queue: q})
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// The weights are the limiter's own: changing the map afterwards changes nothing.
func TestWeightsAreCopied(t *testing.T) {
	users := map[string]float64{"a": 3}
	l, _ := byHand(Config{Limit: 1, Queue: Queue{Weights: Weights{Users: users, Tenants: map[string]float64{"x": 2}}}})
	users["a"] = -1
	tests := []struct {
		user, tenant string
		uw, tw       float64
	}{{"a", "x", 3, 2}, {"a", "", 3, 1}, {"", "x", 1, 2}, {"b", "y", 1, 1}}
	for _, tt := range tests {
		if uw, tw := l.parts.Weights(tt.user, tt.tenant); uw != tt.uw || tw != tt.tw {
			t.Errorf("%q, %q: %v and %v", tt.user, tt.tenant, uw, tw)
		}
	}
}

// Who waits for what the whole limit is charged what it takes in its turn, if the limit has grown meanwhile.
func TestSharesAfterTheLimitGrew(t *testing.T) {
	serve := func(limit int64) (order []string) {
		l, _ := byHand(Config{Limit: limit, Queue: Queue{MaxWait: -1, Order: FIFO}})
		in := l.take(t, int(limit))
		for i := range 24 {
			w := weir.Work{User: "light", Cost: 1}
			if i%8 == 0 {
				w = weir.Work{User: "heavy", Cost: 8}
			}
			l.enter(t, w, func(p weir.Permit, _ error) { order, in = append(order, w.User), append(in, p) })
		}
		if err := l.SetLimit(8); err != nil {
			t.Fatal(err)
		}
		for len(in) > 0 {
			p := in[0]
			in = in[1:]
			p.Done(weir.OK)
		}
		return order
	}
	if grown, want := serve(1), serve(8); len(want) != 24 || !slices.Equal(grown, want) {
		t.Errorf("after the limit grew the order is %v, want %v", grown, want)
	}
}

// A debt is forgotten where weights change, because it goes by those of before. No other change forgets it.
func TestDebtAfterAReload(t *testing.T) {
	for _, test := range []struct {
		name        string
		weights     Weights
		least, most int // turns of others
	}{
		{"the same weights", Weights{}, 17, 23},
		{"another weight", Weights{Users: map[string]float64{"debtor": 2}}, 0, 3},
	} {
		cfg := Config{Name: "t", Limit: 1, Now: func() time.Duration { return 0 }, Queue: Queue{MaxWait: -1, Order: FIFO}}
		l := weir.Must(New(cfg))
		in, served := l.take(t, 1)[0], ""
		ask := func(user string) {
			l.enter(t, weir.Work{User: user}, func(p weir.Permit, _ error) { in, served = p, user })
		}
		ask("debtor")
		for range 50 {
			ask("other")
		}
		in.Done(weir.OK)
		in.SetCost("", 20)
		in.Done(weir.OK)
		cfg.Queue.Len, cfg.Queue.Weights = 100, test.weights
		if err := l.Reconfigure(cfg); err != nil {
			t.Fatal(err)
		}
		ask("debtor")
		turns := 0
		for ; served != "debtor"; turns++ {
			in.Done(weir.OK)
		}
		if turns < test.least || turns > test.most {
			t.Errorf("%s: %d turns of others before the debtor's, want %d to %d", test.name, turns, test.least, test.most)
		}
	}
}

// What a waiter is known by.
func TestWaiterStandsForItsWork(t *testing.T) {
	l, now := byHand(Config{Limit: 2, Queue: Queue{Weights: Weights{Users: map[string]float64{"u": 4}}}})
	*now = 3 * ms
	l.take(t, 2)
	l.enter(t, weir.Work{Priority: 9, User: "u", Tenant: "t", Cost: 5, Deadline: weir.VirtualEpoch.Add(50 * ms)}, nil)
	w := l.room.Next(*now)
	if w.Class != 3 || w.User != "u" || w.Tenant != "t" || w.UserWeight != 4 || w.TenantWeight != 1 || w.Units != 2 || w.Deadline != 50*ms {
		t.Errorf("%+v", w)
	}
	s := l.Snapshot()
	if len(s.WaitingByClass) != 1 || s.WaitingByClass[weir.Critical] != 1 {
		t.Errorf("%v", s.WaitingByClass)
	}
}

// A full room is no reason to refuse, without a look, work that may go before
// those who are in it.
func TestWhoIsRefusedWithoutTheLock(t *testing.T) {
	l, _ := byHand(Config{Limit: 1, Queue: Queue{Len: 1, Order: FIFO}})
	l.take(t, 1)
	l.enter(t, weir.Work{}, nil)
	tests := []struct {
		work weir.Work
		want bool
	}{
		{weir.Work{}, true}, {weir.Work{Priority: weir.Background}, true}, {weir.Work{Op: "o", Client: "c"}, true},
		{weir.Work{Priority: weir.High}, false}, {weir.Work{Tenant: "t"}, false}, {weir.Work{User: "u"}, false},
	}
	for _, tt := range tests {
		if got := l.refuseByWord(&tt.work, true) != nil; got != tt.want {
			t.Errorf("%+v: refused at a glance: %v", tt.work, got)
		}
		if l.refuseByWord(&tt.work, false) == nil {
			t.Errorf("%+v: looks for a slot where there is none", tt.work)
		}
	}
}

// A cost above the limit runs alone, or is refused at once where that is asked
// for; and when the limit shrinks below what waits, that runs alone in any case.
func TestOversize(t *testing.T) {
	for _, refuse := range []bool{false, true} {
		l, _ := byHand(Config{Limit: 4, RefuseOversize: refuse})
		p, err := l.TryAdmit(weir.Work{Cost: math.MaxInt64})
		if r := weir.AsRejection(err); refuse {
			if r == nil || r.Reason != weir.ReasonTooLarge || r.Limit != 4 || r.Retryable {
				t.Errorf("%v", err)
			}
			p = l.take(t, 1)[0]
		} else if err != nil || l.inFlight() != 4 {
			t.Errorf("%v, %d in flight", err, l.inFlight())
		}
		held := l.take(t, int(4-l.inFlight()))
		_, err = l.TryAdmit(weir.Work{Cost: 5})
		if r := weir.AsRejection(err); refuse != (r != nil && r.Reason == weir.ReasonTooLarge) {
			t.Errorf("when it is full: %v", err)
		}
		for _, other := range held {
			other.Done(weir.OK)
		}
		admitted := false
		l.enter(t, weir.Work{Cost: 4}, func(weir.Permit, error) { admitted = true })
		if err := l.SetLimit(2); err != nil {
			t.Fatal(err)
		}
		if p.Done(weir.OK); !admitted || l.inFlight() != 2 {
			t.Errorf("admitted %v, %d in flight", admitted, l.inFlight())
		}
	}
	l, _ := byHand(Config{Controller: &listener{}, RefuseOversize: true})
	_, err := l.TryAdmit(weir.Work{Cost: 2})
	if r := weir.AsRejection(err); r == nil || r.Retryable {
		t.Errorf("the limit may never grow to it: %v", err)
	}
}

// Work that must not wait does not, whoever asks: by its own word, or by the queue's.
func TestArriveWithoutWaiting(t *testing.T) {
	for _, tt := range []struct {
		queue Queue
		work  weir.Work
	}{{Queue{}, weir.Work{MaxWait: weir.NoWait}}, {Queue{MaxWait: weir.NoWait}, weir.Work{}}, {Queue{Len: 5, MaxWait: weir.NoWait}, weir.Work{MaxWait: time.Hour}}} {
		l, _ := byHand(Config{Limit: 1, Queue: tt.queue})
		l.take(t, 1)
		_, w, err := l.Arrive(tt.work, func(weir.Permit, error) { t.Error("woken") })
		if r := weir.AsRejection(err); w != nil || r == nil || r.Reason != weir.ReasonLimit || l.Snapshot().Waiting != 0 {
			t.Errorf("%+v: %v, %v, %d wait", tt, w, err, l.Snapshot().Waiting)
		}
	}
}

// Who loses its place to a share that is guaranteed to others hears so.
func TestDisplacedByAShare(t *testing.T) {
	l, _ := byHand(Config{Limit: 1, Queue: Queue{Len: 2, Order: FIFO, Shares: map[weir.Priority]float64{weir.Background: 0.5}}})
	l.take(t, 1)
	var r *weir.Rejection
	l.enter(t, weir.Work{Priority: weir.High}, nil)
	l.enter(t, weir.Work{Priority: weir.High}, func(_ weir.Permit, err error) { r = weir.AsRejection(err) })
	l.enter(t, weir.Work{Priority: weir.Background}, nil)
	if r == nil || r.Rule != gate.RuleShare || r.Reason != weir.ReasonQueueFull {
		t.Errorf("%v", r)
	}
}

// A refusal says how many may wait at that moment, not how many might when the
// shared refusals were last made.
func TestRefusalsOfAQueueThatStands(t *testing.T) {
	s := newLine(t, Config{Queue: Queue{MaxWait: -1}})
	says := map[float64]int{}
	for i := range 120 { // four come a second, and one in three and a half is served
		*s.now += 250 * time.Millisecond
		s.Step()
		if i%14 == 13 {
			s.holds.Done(weir.OK)
		}
		s.come(fmt.Sprint(i), weir.Work{MaxWait: time.Hour})
		s.come("lower", weir.Work{Priority: weir.Background, MaxWait: time.Hour})
		kept := float64(s.room.Kept())
		r := s.gone["lower"]
		delete(s.gone, "lower")
		if r == nil {
			continue
		}
		says[kept]++
		fresh := i%14 == 13 // a rate measured just now is told within refreshEvery
		if r.Reason != weir.ReasonQueueFull || r.Value != kept || r.Limit != kept || r.RetryAfter != gate.MaxWait && !fresh {
			t.Errorf("%v: %v; %v may wait", *s.now, r, kept)
		}
	}
	if says[keep] == 0 || says[8] == 0 {
		t.Errorf("refused so often by how many may wait: %v", says)
	}
}

// Where the word alone is enough to refuse, a cost that never fits is still called too large.
func TestOversizeAtAGlance(t *testing.T) {
	l, _ := byHand(Config{Limit: 2, RefuseOversize: true})
	l.take(t, 2)
	for cost, want := range map[int64]weir.Reason{0: weir.ReasonLimit, 1: weir.ReasonLimit, 2: weir.ReasonLimit, 5: weir.ReasonTooLarge} {
		if _, err := l.TryAdmit(weir.Work{}); weir.AsRejection(err) == nil || l.shared.Attention.Load()&noSlot == 0 {
			t.Fatalf("%v: the word does not say that it is full", err)
		}
		_, err := l.TryAdmit(weir.Work{Cost: cost})
		if r := weir.AsRejection(err); r == nil || r.Reason != want {
			t.Errorf("a cost of %d: %v, want %v", cost, err, want)
		}
	}
}
