package gate

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/room"
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
		p.Forget() // and may be used again at once
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

// Who is answered may be used again before the next one is told.
func TestReuseWhileDelivering(t *testing.T) {
	var list, second Answers
	var a, b Answer
	var order []int
	again := newPerson(1, &order)
	a.Block()
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
	if a.Forget(); len(order) != 1 || a.Refused != nil {
		t.Errorf("called %v, %v left", order, a.Refused)
	}
}

func TestBounds(t *testing.T) {
	for n, want := range map[int]int{0: 9, -1: 0, 5: 5} {
		if got := Places(n, 9); got != want {
			t.Errorf("%d places for %d, want %d", got, n, want)
		}
	}
	for d, want := range map[time.Duration]time.Duration{0: time.Hour, -1: room.Never, 5: 5} {
		if got := Longest(d, time.Hour); got != want {
			t.Errorf("%v for %v, want %v", got, d, want)
		}
	}
}

// Parts are applied to those that wait and to those to come, and are nobody else's
// to change.
func TestParts(t *testing.T) {
	q := Queue{Shares: map[weir.Priority]float64{weir.Background: .5}, Users: map[string]float64{"a": 3}}
	parts := q.Parts()
	q.Users["a"], q.Shares[weir.Background] = 100, 0
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
	parts.Apply(&r)
	served := map[string]int{}
	for range 16 {
		w := r.Next(0)
		served[w.User]++
		r.Serve(w)
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
		ahead int64
		want  time.Duration
	}{
		{0, 100, time.Second}, {10, 0, 100 * time.Millisecond}, {10, 4, 500 * time.Millisecond},
		{1e6, 0, 10 * time.Millisecond}, {1, 29, 30 * time.Second}, {1, 30, 30 * time.Second}, {1e-300, 1 << 62, 30 * time.Second},
	}
	for _, tt := range tests {
		if got := Wait(tt.ahead, tt.rate); got != tt.want {
			t.Errorf("%v a second, %d ahead: %v, want %v", tt.rate, tt.ahead, got, tt.want)
		}
	}
}

// How long a tenant's work takes is remembered of the last of those whose names
// fall on one place, and taken for the median of whoever is not known.
func TestGuessesOfTime(t *testing.T) {
	b := NewForecast(true, nil)
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
	for i := range 10 * len(b.guesses) {
		b.learn("u", time.Duration(i).String(), 2)
	}
	if got := b.Expect("u", "t"); got != 1 {
		t.Errorf("of one that others have displaced %v medians are expected", got)
	}
	if NewForecast(true, b) != b || NewForecast(false, b) != nil {
		t.Error("a change of other settings forgets what is known, or it is not off")
	}
}

// A pool makes no more berths than are in use at once, by chunks, and each of them
// is told apart by its number.
func TestPool(t *testing.T) {
	var p Pool[int]
	p.Init(nil, 1, 1)
	for round := range 3 {
		var permits []weir.Permit
		for i := range berthChunk + 1 {
			permits = append(permits, p.Issue(&i))
		}
		for i, permit := range permits {
			if b := p.At(permit); b.Use != i || b.ID()%2 != 1 {
				t.Fatalf("berth %d is used for %d, want %d", b.ID(), b.Use, i)
			}
			var use int
			if sampled, ok := p.Recall(permit, &use); use != i || sampled || !ok {
				t.Fatalf("recalled %d, %v, %v", use, sampled, ok)
			}
			if _, ok := p.Recall(permit, &use); ok {
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
