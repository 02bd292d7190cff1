package room

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func timeOf(n int) time.Duration { return time.Duration(n) }

// Nobody of a class is served before one above it, whoever comes.
func TestNoInversions(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 9))
	r := big(200)
	served := 0
	for now := range 50_000 {
		at := ms * timeOf(now)
		for range rng.IntN(3) {
			w := &Waiter{Class: int8(rng.IntN(Classes)), Tenant: string(rune('a' + rng.IntN(9))), Units: 1 + rng.Int64N(9), Expires: at + 300*ms}
			r.Knock(at, w)
			r.Push(at, w)
		}
		for w := r.Expired(at); w != nil; w = r.Expired(at) {
			r.Expire(w)
		}
		if w := r.Next(at); w != nil {
			for class, n := range r.ByClass() {
				if class > int(w.Class) && n > 0 {
					t.Fatalf("class %d is served while %d wait in class %d", w.Class, n, class)
				}
			}
			r.Serve(w)
			served++
		}
	}
	if served < 40_000 {
		t.Errorf("only %d were served", served)
	}
}

// While everybody has somebody waiting, classes get what they are guaranteed, to
// 1 %, and at no time more than that out of turn.
func TestGuaranteedShares(t *testing.T) {
	tests := []struct{ shares, want [Classes]float64 }{
		{[Classes]float64{}, [Classes]float64{0, 0, 0, 1}},
		{[Classes]float64{.1}, [Classes]float64{.1, 0, 0, .9}},
		{[Classes]float64{.05, .1, .2}, [Classes]float64{.05, .1, .2, .65}},
		{[Classes]float64{0, .3, 0, .5}, [Classes]float64{0, .3, 0, .7}},
		{[Classes]float64{1, 1}, [Classes]float64{.5, .5, 0, 0}},
		{[Classes]float64{math.NaN(), -1, math.Inf(1)}, [Classes]float64{0, 0, 1, 0}},
	}
	for _, tt := range tests {
		r := big(400)
		r.SetShares(tt.shares)
		rng := rand.New(rand.NewPCG(4, 4))
		var served [Classes]float64
		total := 0.
		for now := range 20_000 {
			at := ms * timeOf(now)
			for class := range int8(Classes) { // all send more than there is
				for range 2 {
					r.Knock(at, &Waiter{Class: class})
					r.Push(at, &Waiter{Class: class, Units: 1 + rng.Int64N(4), Expires: Never})
				}
			}
			w := r.Next(at)
			if w == nil {
				continue
			}
			r.Serve(w)
			total += cost(w)
			served[w.Class] += cost(w)
			for class, got := range served[:Classes-1] {
				if share := r.classes[class].share; tt.want[Classes-1] > 0 && got > share*total+1e-6 {
					t.Fatalf("shares %v: class %d got %v of %v", tt.shares, class, got, total)
				}
			}
		}
		for class, want := range tt.want {
			if got := served[class] / total; math.Abs(got-want) > .01*max(want, .05) {
				t.Errorf("shares %v: class %d got %.4f, want %.4f", tt.shares, class, got, want)
			}
		}
	}
}

// A class that nobody above stands in the way of has no guarantee to use up, and
// gathers none.
func TestGuaranteeCountsWhatIsContended(t *testing.T) {
	r := newRoom(100, FIFO)
	r.SetShares([Classes]float64{.5})
	come := func(class int8, n int) {
		for range n {
			r.Push(0, &Waiter{Class: class, Units: 1, Expires: Never})
		}
	}
	come(0, 50)
	for range 20 {
		r.Serve(r.Next(0))
	}
	come(3, 20)
	low := 0
	for range 10 {
		w := r.Next(0)
		if r.Serve(w); w.Class == 0 {
			low++
		}
	}
	if low != 5 {
		t.Errorf("%d of 10 were of the lower class with a share of a half", low)
	}
}
