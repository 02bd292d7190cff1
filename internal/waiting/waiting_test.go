package waiting

import (
	"math/rand/v2"
	"slices"
	"testing"
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

func (p *person) Answered() {
	*p.called = append(*p.called, p.name)
	p.Forget() // and may be used again at once
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
			people[i] = &person{name: i, called: &called}
			people[i].Call(people[i])
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
	again := &person{name: 1, called: &order}
	again.Call(again)
	a.Block()
	b.Call(caller(func() { second.Add(&again.Answer, weir.Permit{}, nil) }))
	refused := &weir.Rejection{Reason: weir.ReasonLimit}
	list.Add(&b, weir.Permit{}, nil)
	list.Add(&again.Answer, weir.Permit{}, nil)
	list.Remove(&again.Answer)
	list.Add(&a, weir.Permit{}, refused)
	list.Deliver()
	<-a.Ready()
	if a.Refused != refused || len(order) != 0 {
		t.Errorf("%v, called %v", a.Refused, order)
	}
	second.Deliver()
	if a.Forget(); len(order) != 1 || a.Refused != nil {
		t.Errorf("called %v, %v left", order, a.Refused)
	}
}

type caller func()

func (c caller) Answered() { c() }

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
