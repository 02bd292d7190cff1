package gate

import (
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/room"
	"github.com/weir-go/weir/slot"
)

// person is answered by a callback, and notes it.
type person struct {
	Answer
	name   int
	called *[]int
}

func newPerson(name int, called *[]int) *person {
	p := &person{name: name, called: called}
	callBack(&p.Answer, func() {
		*p.called = append(*p.called, p.name)
		p.forget() // and may be used again at once
	})
	return p
}

func callBack(a *Answer, f func()) {
	front := &Front{}
	front.Init("t", nil)
	a.Call(front, &weir.Work{}, new(time.Duration), func(weir.Permit, error) { f() })
}

// Answers are delivered in the order in which they were added, but for those that
// were taken out again: against a slice, whatever is done.
func TestAnswers(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var list Answers
		var want, called []int
		people := make([]*person, 8)
		for i := range people {
			people[i] = newPerson(i, &called)
		}
		for range 40 {
			i := rng.IntN(len(people))
			switch in := slices.Index(want, i); {
			case rng.IntN(12) == 0:
				called = called[:0]
				list.Deliver()
				list = Answers{}
				if !slices.Equal(called, want) {
					t.Fatalf("seed %d: told %v, want %v", seed, called, want)
				}
				want = want[:0]
			case in < 0 && rng.IntN(4) == 0:
				if list.Remove(&people[i].Answer) {
					t.Fatalf("seed %d: %d was not in", seed, i)
				}
			case in < 0:
				list.Add(&people[i].Answer, weir.Permit{}, nil)
				want = append(want, i)
			default:
				if !list.Remove(&people[i].Answer) {
					t.Fatalf("seed %d: %d was in", seed, i)
				}
				want = slices.Delete(want, in, in+1)
			}
		}
	}
}

// A callback that panics keeps nobody else waiting.
func TestDeliverGoesOnAfterAPanic(t *testing.T) {
	var list Answers
	var called []int
	var first, third Answer
	callBack(&first, func() { panic("first") })
	callBack(&third, func() { panic("third") })
	second, fourth := newPerson(2, &called), newPerson(4, &called)
	for _, a := range []*Answer{&first, &second.Answer, &third, &fourth.Answer} {
		list.Add(a, weir.Permit{}, nil)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		list.Deliver()
	}()
	if !slices.Equal(called, []int{2, 4}) {
		t.Errorf("told %v, want 2 and 4", called)
	}
}

// Who is answered may be used again before the next one is told.
func TestReuseWhileDelivering(t *testing.T) {
	var list, second Answers
	var a, b Answer
	var order []int
	again := newPerson(1, &order)
	a.Block(new(time.Duration))
	callBack(&b, func() { second.Add(&again.Answer, weir.Permit{}, nil) })
	refused := &weir.Rejection{Reason: weir.ReasonLimit}
	list.Add(&b, weir.Permit{}, nil)
	list.Add(&again.Answer, weir.Permit{}, nil)
	list.Remove(&again.Answer)
	list.Add(&a, weir.Permit{}, refused)
	list.Deliver()
	<-a.ready
	if a.Refused != refused || len(order) != 0 {
		t.Errorf("%v, called %v", a.Refused, order)
	}
	second.Deliver()
	if a.forget(); len(order) != 1 || a.Refused != nil {
		t.Errorf("called %v, %v left", order, a.Refused)
	}
}

func TestBounds(t *testing.T) {
	for n, want := range map[int]int{0: 9, -1: 0, 5: 5} {
		if got := Places(n, -1, 9); got != want {
			t.Errorf("%d places for %d, want %d", got, n, want)
		}
		if got := Places(n, weir.NoWait, 9); got != 0 {
			t.Errorf("%d places for %d without a wait", got, n)
		}
	}
	for d, want := range map[time.Duration]time.Duration{0: time.Hour, -1: room.Never, 5: 5} {
		if got := Longest(d, time.Hour); got != want {
			t.Errorf("%v for %v, want %v", got, d, want)
		}
	}
}

// A deadline may lie further back than a Duration holds.
func TestLateByCenturies(t *testing.T) {
	var f Front
	for _, at := range []time.Time{{}, time.Unix(0, 0), time.Date(1600, 1, 1, 0, 0, 0, 0, time.UTC)} {
		at = at.Add(time.Nanosecond) // the zero time is no deadline
		_, refused := f.Bounds(&weir.Work{Deadline: at}, time.Second, true, time.Second)
		if refused == nil || refused.Reason != weir.ReasonDeadline || refused.Value <= 0 || strings.Contains(refused.Error(), "-") {
			t.Errorf("%v: %v", at, refused)
		}
	}
}

// Parts are applied to those that wait and to those to come, and are nobody else's
// to change.
func TestParts(t *testing.T) {
	shares, users := map[weir.Priority]float64{weir.Background: 0.5}, map[string]float64{"a": 3}
	parts := NewParts(shares, users, nil)
	users["a"], shares[weir.Background] = 100, 0
	var r room.Room
	r.Configure(100, room.FIFO)
	come := func(user string, class int8, n int) {
		for range n {
			r.Push(0, &room.Waiter{User: user, Class: class, Units: 1, Expires: room.Never})
		}
	}
	come("a", 1, 20)
	come("b", 1, 20)
	come("", 0, 20)
	parts.Apply(&r, nil)
	served := map[string]int{}
	for range 16 {
		w := r.Next(0)
		served[w.User]++
		r.Dequeue(w)
	}
	if served["a"] != 6 || served["b"] != 2 || served[""] != 8 {
		t.Errorf("served %v", served)
	}
	for name, want := range map[string]float64{"a": 3, "b": 1} {
		if user, tenant := parts.Weights(name, name); user != want || tenant != 1 {
			t.Errorf("%s: %v and %v", name, user, tenant)
		}
	}
}

func TestRules(t *testing.T) {
	by := &room.Waiter{Class: 1, User: "u", Tenant: "t"}
	for _, tt := range []struct {
		w    room.Waiter
		want string
	}{
		{room.Waiter{Class: 0, User: "u", Tenant: "t"}, RuleOutranked}, {room.Waiter{Class: 2}, RuleShare},
		{room.Waiter{Class: 1, User: "u"}, RuleUnfair}, {room.Waiter{Class: 1, Tenant: "t"}, RuleUnfair},
		{room.Waiter{Class: 1, User: "u", Tenant: "t"}, ""},
	} {
		if got := Rule(&tt.w, by); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

// A deadline from a message has no monotonic reading. The system's clock may have
// been set since the gate was made: then its epoch lies at the wrong time of day.
func TestDeadlineAfterTheClockWasSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Front
		f.Init("t", nil)
		f.epoch = f.epoch.Add(-time.Hour)
		now, left := 3*time.Second, time.Minute
		if got := f.Deadline(now, time.Now().Round(0).Add(left)); got != now+left {
			t.Errorf("a deadline in %v is at %v, seen from %v", left, got, now)
		}
		if got := f.Deadline(now, time.Unix(1<<40, 0)); got != room.Never {
			t.Errorf("a deadline far away is at %v", got)
		}
	})
}

func TestDrainRate(t *testing.T) {
	const ms = time.Millisecond
	type release struct {
		at     time.Duration
		units  int64
		wanted bool
	}
	tests := []struct {
		name     string
		releases []release
		want     float64 // a second
	}{
		{"nothing yet", nil, 0},
		{"too short an interval", []release{{99 * ms, 50, true}}, 0},
		{"too few", []release{{100 * ms, 3, true}}, 0},
		{"units, not permits", []release{{100 * ms, 4, true}}, 40},
		{"nobody was in want", []release{{100 * ms, 40, false}}, 0},
		{"somebody was, for a while", []release{{10 * ms, 1, true}, {100 * ms, 3, false}}, 40},
		{"want ends with its interval", []release{{100 * ms, 4, true}, {200 * ms, 400, false}}, 40},
		{"smoothed", []release{{100 * ms, 4, true}, {200 * ms, 14, true}}, 70},
	}
	for _, tt := range tests {
		var d Drain
		for _, r := range tt.releases {
			d.Finish(r.at, r.units, r.wanted)
		}
		if diff := d.Rate - tt.want; diff > 1e-9 || diff < -1e-9 {
			t.Errorf("%s: %v a second, want %v", tt.name, d.Rate, tt.want)
		}
	}
}

func TestDrainWaitIsBounded(t *testing.T) {
	tests := []struct {
		rate  float64
		ahead float64
		want  time.Duration
	}{
		{0, 100, time.Second}, {10, 0, 100 * time.Millisecond}, {10, 4, 500 * time.Millisecond},
		{1e6, 0, 10 * time.Millisecond}, {1, 29, 30 * time.Second}, {1, 30, 30 * time.Second}, {1e-300, 1 << 62, 30 * time.Second},
	}
	for _, tt := range tests {
		if got := Wait(tt.ahead, tt.rate, 0, 0); got != tt.want {
			t.Errorf("%v a second, %v ahead: %v, want %v", tt.rate, tt.ahead, got, tt.want)
		}
	}
}

// Names have the same places in every run on virtual time, and elsewhere in none.
func TestHashOfNames(t *testing.T) {
	a, b, c, d := NewHash(true), NewHash(true), NewHash(false), NewHash(false)
	if a.String("acme") != b.String("acme") || c.String("acme") == d.String("acme") || a.String("acme") == a.String("emca") {
		t.Error("a hash of virtual time is not fixed, or one of a real clock is")
	}
	for _, h := range []Hash{a, c} {
		low, high := map[uint64]bool{}, map[uint64]bool{}
		for i := range 4096 {
			name := "Tenant-" + strconv.Itoa(i)
			if h.String(name) != h.Bytes([]byte(name)) {
				t.Fatalf("%s: its bytes have another hash", name)
			}
			low[h.String(name)%512], high[h.String(name)>>55] = true, true
		}
		if len(low) < 500 || len(high) < 500 { // of places with eight names on average, one in 3,000 is empty
			t.Errorf("4,096 names have %d lower and %d upper places of 512", len(low), len(high))
		}
	}
}

// How long a tenant's work takes is remembered of the last two of those whose names
// fall on one place, and taken for the median of whoever is not known.
func TestGuessesOfTime(t *testing.T) {
	b := NewForecast(true, nil, false)
	if got := b.Expect("u", "t"); got != 1 {
		t.Errorf("of a stranger %v medians are expected", got)
	}
	b.learn("u", "t", 4)
	b.learn("u", "t", 12)
	if got := b.Expect("u", "t"); got != 5 {
		t.Errorf("after 4 and 12 medians %v are expected, want 5", got)
	}
	if b.Expect("t", "u") != 1 || b.Expect("u", "") != 1 || b.Expect("v", "t") != 1 {
		t.Error("another is taken for it")
	}
	var neighbours []string
	place, _ := b.find("u", "t")
	for i := 0; len(neighbours) < 2; i++ {
		if other, _ := b.find(strconv.Itoa(i), "t"); other == place {
			neighbours = append(neighbours, strconv.Itoa(i))
		}
	}
	for range 3 { // in turn, two do not displace each other
		b.learn(neighbours[0], "t", 2)
		b.learn("u", "t", 5)
	}
	if first, second := b.Expect(neighbours[0], "t"), b.Expect("u", "t"); first != 2 || second != 5 {
		t.Errorf("of two on one place %v and %v medians are expected, want 2 and 5", first, second)
	}
	b.learn(neighbours[1], "t", 3)
	if stays, older := b.Expect("u", "t"), b.Expect(neighbours[0], "t"); stays != 5 || older != 1 {
		t.Errorf("beside a third %v and %v medians are expected, want 5, and 1 of the one learned of before", stays, older)
	}
	for i := range 20 * len(b.guesses) {
		b.learn("u", time.Duration(i).String(), 2)
	}
	if got := b.Expect("u", "t"); got != 1 {
		t.Errorf("of one that others have displaced %v medians are expected", got)
	}
	if NewForecast(true, b, false) != b || NewForecast(false, b, false) != nil {
		t.Error("a change of other settings forgets what is known, or it is not off")
	}
}

// A cost that is known afterwards is at least one unit, and none uses up its tenant's share
// for good.
func TestCostsAreBounded(t *testing.T) {
	var p Pool[int]
	p.Init(nil, 1, 1)
	use := 0
	ticket := p.Issue(&use)
	var a Accounts
	a.Open(ticket, 0, "u", "t", 3)
	for _, tt := range []struct{ said, counts int64 }{
		{7, 7}, {0, 1}, {math.MinInt64, 1}, {1 << 30, 1 << 30}, {1<<30 + 1, 1 << 30}, {math.MaxInt64, 1 << 30},
	} {
		if a.SetCost(nil, ticket, tt.said); a.Of(ticket).Cost != tt.counts {
			t.Errorf("a cost of %d counts as %d, want %d", tt.said, a.Of(ticket).Cost, tt.counts)
		}
	}
	if p.Recall(ticket, &use); a.Of(ticket) != nil || a.SetCost(nil, ticket, 5) {
		t.Error("work that has ended is charged")
	}
}

// A pool makes no more berths than are in use at once, by chunks, and each of them
// is told apart by its number.
func TestPool(t *testing.T) {
	var p Pool[int]
	p.Init(nil, 1, 1)
	for round := range 3 {
		var tickets []slot.Ticket
		for i := range berthChunk + 1 {
			tickets = append(tickets, p.Issue(&i))
		}
		for i, ticket := range tickets {
			if b := p.At(ticket); b.Use != i || b.ID()%2 != 1 {
				t.Fatalf("berth %d is used for %d, want %d", b.ID(), b.Use, i)
			}
			var use int
			if sampled, ok := p.Recall(ticket, &use); use != i || sampled || !ok {
				t.Fatalf("recalled %d, %v, %v", use, sampled, ok)
			}
			if _, ok := p.Recall(ticket, &use); ok {
				t.Fatal("recalled twice")
			}
		}
		if len(p.chunks) != 2 {
			t.Fatalf("round %d: %d chunks", round, len(p.chunks))
		}
	}
}

const ms = time.Millisecond

// Work with a deadline leaves when the median service no longer fits before it.
func TestLeavesWhenTooLittleIsLeft(t *testing.T) {
	tests := []struct {
		deadline, patience, want time.Duration
		outOf                    weir.Reason
	}{
		{time.Second, 2 * time.Second, 800 * ms, weir.ReasonDeadline},
		{time.Second, 700 * ms, 700 * ms, weir.ReasonQueueTimeout},
		{200 * ms, time.Second, 200 * ms, weir.ReasonDeadline}, // too little from the outset
		{201 * ms, time.Second, 1 * ms, weir.ReasonDeadline},
		{room.Never, time.Second, time.Second, weir.ReasonQueueTimeout},
		{room.Never, room.Never, room.Never, weir.ReasonQueueTimeout},
	}
	for _, tt := range tests {
		var w Waiter
		w.expireBy(0, Bounds{tt.patience, tt.deadline}, 200*ms)
		if w.Expires != tt.want || w.ExpiresWith != tt.outOf {
			t.Errorf("%v: until %v, %v", tt, w.Expires, w.ExpiresWith)
		}
	}
}

func TestDrainRateGoesStale(t *testing.T) {
	var d Drain
	d.Finish(100*time.Millisecond, 4, true) // 40 a second: four intervals of 4 take 400 ms
	for at, want := range map[time.Duration]float64{100 * ms: 40, 1500 * ms: 40, 1500*time.Millisecond + 1: 0} {
		if got := d.Current(at); got != want {
			t.Errorf("%v a second at %v, want %v", got, at, want)
		}
	}
}

// Both the end of the wait and that of the service after it have to come in time. What
// comes at the last moment does.
func TestBoundsAllow(t *testing.T) {
	const now = time.Minute
	tests := []struct {
		patience, deadline, wait, service time.Duration // the first two seen from now
		want                              bool
	}{
		{10 * ms, room.Never - now, 10 * ms, time.Hour, true},
		{10 * ms, room.Never - now, 10*ms + 1, 0, false},
		{room.Never - now, 10 * ms, 10 * ms, 0, true},
		{room.Never - now, 10 * ms, 7 * ms, 3 * ms, true},
		{room.Never - now, 10 * ms, 7 * ms, 3*ms + 1, false},
		{room.Never - now, 10 * ms, 0, 10*ms + 1, false},
		{10 * ms, 20 * ms, 10 * ms, 10 * ms, true},
		{10 * ms, 20 * ms, 11 * ms, 9 * ms, false},
		{10 * ms, 20 * ms, 10 * ms, 11 * ms, false},
		{0, 0, 0, 0, true},
	}
	for _, tt := range tests {
		until := Bounds{Patience: now + tt.patience, Deadline: now + tt.deadline}
		if got := until.allow(now, tt.wait, tt.service); got != tt.want {
			t.Errorf("%+v: %t", tt, got)
		}
	}
}

// A share keeps whole places only. The shares are the same afterwards.
func TestPushWhole(t *testing.T) {
	tests := []struct {
		share  float64
		size   int
		placed bool // background work, where others have every place
	}{
		{0, 4, false}, {0.2, 4, false}, {0.25, 4, true}, {0.5, 4, true},
		{0.5, 1, false}, {0.4, 2, false}, {0.5, 2, true},
	}
	for _, tt := range tests {
		parts := NewParts(map[weir.Priority]float64{weir.Background: tt.share}, nil, nil)
		var r room.Room
		r.Configure(tt.size, room.FIFO)
		parts.Apply(&r, nil)
		come := func(class weir.Priority) (*room.Waiter, bool) {
			return parts.pushWhole(&r, 0, &room.Waiter{Class: int8(class.Class()), Units: 1, Expires: room.Never})
		}
		for i := range tt.size {
			if out, ok := come(weir.Critical); out != nil || !ok {
				t.Fatalf("%+v: waiter %d: %v, %v", tt, i, out, ok)
			}
		}
		out, ok := come(weir.Background)
		if ok != tt.placed || (out != nil) != tt.placed {
			t.Errorf("%+v: placed %v, in the place of %v", tt, ok, out)
		}
		if ok || tt.share == 0 || tt.size == 1 {
			continue
		}
		if out, ok := r.Push(0, &room.Waiter{Units: 1, Expires: room.Never}); !ok || out == nil {
			t.Errorf("%+v: the share is lost", tt)
		}
	}
}

// exempt is exempt work of a gate with a clock of its own.
type exempt struct {
	*testing.T
	Exempt
	now     time.Duration
	drained int
}

func newExempt(t *testing.T, most int64) *exempt {
	e := &exempt{T: t}
	front := &Front{}
	front.Init("t", func() time.Duration { return e.now })
	e.Init(front, func() { e.drained++ })
	e.Configure(most)
	return e
}

func (e *exempt) admit(want weir.Reason) weir.Permit {
	e.Helper()
	p, r := e.Admit(e.now)
	if r != nil && r.Reason != want || r == nil && want != 0 || p.Live() != (want == 0) {
		e.Fatalf("%v, live %v, want %v", r, p.Live(), want)
	}
	return p
}

func (e *exempt) counts(inFlight int64, admitted uint64) {
	e.Helper()
	if n, all := e.Read(); n != inFlight || all != admitted {
		e.Errorf("%d in flight, %d admitted, want %d and %d", n, all, inFlight, admitted)
	}
}

func TestExemptApplies(t *testing.T) {
	for most, want := range map[int64]bool{0: true, 5: true, -1: false, -7: false} {
		e := newExempt(t, most)
		if got := e.Applies(&weir.Work{Exempt: true}); got != want || e.Applies(&weir.Work{}) {
			t.Errorf("a cap of %d: %v", most, got)
		}
	}
	if e := newExempt(t, 0); e.most.Load() != DefaultExempt {
		t.Errorf("the cap is %d", e.most.Load())
	}
}

// Each permit counts until it ends, once; one that is cancelled was never admitted.
func TestExemptCounts(t *testing.T) {
	e := newExempt(t, 2)
	first, second := e.admit(0), e.admit(0)
	e.counts(2, 2)
	e.admit(weir.ReasonLimit)
	first.Cancel()
	first.Cancel()
	first.Done(weir.OK)
	e.counts(1, 1)
	third := e.admit(0)
	e.counts(2, 2)
	second.Sample(weir.OK)
	e.counts(2, 2)
	second.Done(weir.OK)
	second.Done(weir.OK)
	second.Cancel()
	e.counts(1, 2)
	third.SetCost("", 9)
	third.Done(weir.OK)
	e.counts(0, 2)
	if e.drained != 0 {
		t.Error("drained, but not closed")
	}
}

// A cap that shrinks ends nothing. What is in flight above it keeps others out.
func TestExemptCapShrinks(t *testing.T) {
	e := newExempt(t, 3)
	permits := []weir.Permit{e.admit(0), e.admit(0), e.admit(0)}
	e.Configure(1)
	for _, p := range permits {
		_, r := e.Admit(e.now)
		if r == nil || r.Limit != 1 || r.Rule != "exempt" || !r.Retryable {
			t.Errorf("%+v", r)
		}
		p.Done(weir.OK)
	}
	e.admit(0)
	e.counts(1, 4)
}

// The refusal is shared until it is old, or the cap has changed.
func TestExemptRefusalIsShared(t *testing.T) {
	e := newExempt(t, 1)
	e.admit(0)
	refuse := func() *weir.Rejection {
		_, r := e.Admit(e.now)
		return r
	}
	first := refuse()
	e.now += RefreshEvery - 1
	if refuse() != first {
		t.Error("made anew too early")
	}
	e.now++
	second := refuse()
	if second == first {
		t.Error("still the old one")
	}
	e.Configure(1)
	if refuse() == second {
		t.Error("still that of the settings before")
	}
}

// Once it is closed, newcomers are refused, and the gate hears of every end.
func TestExemptCloses(t *testing.T) {
	e := newExempt(t, 2)
	first, second := e.admit(0), e.admit(0)
	e.Close()
	e.admit(weir.ReasonDraining)
	first.Done(weir.OK)
	second.Cancel()
	second.Cancel()
	if e.counts(0, 1); e.drained != 2 {
		t.Errorf("the gate has heard of %d ends, want 2", e.drained)
	}
}

// A hook hears of each end or sample once, with the time since the start.
func TestExemptTellsOnce(t *testing.T) {
	e := newExempt(t, 2)
	var told []time.Duration
	e.front.SetHooks(&weir.Hooks{Done: func(_ string, _ weir.Outcome, d time.Duration) { told = append(told, d) }})
	sampled, ended, cancelled := e.admit(0), weir.Permit{}, weir.Permit{}
	e.now += 3 * ms
	sampled.Sample(weir.OK)
	sampled.Sample(weir.OK)
	e.now += 4 * ms
	ended = e.admit(0)
	sampled.Done(weir.OK)
	cancelled = e.admit(0)
	e.now += 5 * ms
	ended.Done(weir.OK)
	cancelled.Cancel()
	if want := []time.Duration{3 * ms, 5 * ms}; !slices.Equal(told, want) {
		t.Errorf("told of %v, want %v", told, want)
	}
}
