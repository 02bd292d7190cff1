package quota

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

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
