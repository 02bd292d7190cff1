package room

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func names(t *testing.T, r *Room, now time.Duration) (served []string) {
	t.Helper()
	for w := r.Next(now); w != nil; w = r.Next(now) {
		if !r.Remove(w) {
			t.Fatal("the next waiter was not in the room")
		}
		served = append(served, w.Owner.(string))
	}
	return served
}

func TestOrders(t *testing.T) {
	tests := []struct {
		order Order
		now   time.Duration
		want  []string
	}{
		{FIFO, time.Hour, []string{"a", "b", "c"}},
		{LIFO, 0, []string{"c", "b", "a"}},
		{Adaptive, Standing - 1, []string{"a", "b", "c"}},
		{Adaptive, Standing, []string{"c", "b", "a"}},
	}
	for _, tt := range tests {
		var r Room
		r.Configure(3, tt.order)
		for _, name := range []string{"a", "b", "c"} {
			if !r.Push(0, &Waiter{Expires: Never, Owner: name}) {
				t.Fatalf("no place for %s", name)
			}
		}
		if got := names(t, &r, tt.now); !slices.Equal(got, tt.want) {
			t.Errorf("order %d at %v: %v, want %v", tt.order, tt.now, got, tt.want)
		}
	}
}

// A queue that has drained is a new one, not a standing one.
func TestStandingStartsAnew(t *testing.T) {
	var r Room
	r.Configure(2, Adaptive)
	old := &Waiter{Owner: "old"}
	r.Push(0, old)
	r.Remove(old)
	r.Push(Standing, &Waiter{Owner: "a", Expires: Never})
	r.Push(Standing, &Waiter{Owner: "b", Expires: Never})
	if got := r.Next(Standing + 1).Owner; got != "a" {
		t.Errorf("%v goes first", got)
	}
}

func TestFull(t *testing.T) {
	var r Room
	if r.Push(0, &Waiter{}) {
		t.Error("the zero room took one")
	}
	r.Configure(2, FIFO)
	r.Push(0, &Waiter{})
	r.Push(0, &Waiter{})
	if !r.Full() || r.Push(0, &Waiter{}) {
		t.Error("a third got in")
	}
	r.Configure(1, FIFO)
	if r.Len() != 2 {
		t.Error("a smaller room threw somebody out")
	}
}

func TestRemoveTwice(t *testing.T) {
	var r Room
	r.Configure(1, FIFO)
	w := &Waiter{}
	r.Push(0, w)
	if !r.Remove(w) || r.Remove(w) || w.Queued() {
		t.Error("removed other than once")
	}
}

// TestExpiry holds the heap against sorting, while waiters leave from anywhere.
func TestExpiry(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var r Room
		r.Configure(50, FIFO)
		var in []*Waiter
		for range 50 {
			w := &Waiter{Expires: time.Duration(rng.IntN(30))}
			r.Push(0, w)
			in = append(in, w)
		}
		for len(in) > 0 {
			i := rng.IntN(len(in))
			if rng.IntN(2) == 0 {
				r.Remove(in[i])
				in = slices.Delete(in, i, i+1)
			} else {
				first := r.Expired(Never)
				r.Remove(first)
				in = slices.DeleteFunc(in, func(w *Waiter) bool { return w == first })
			}
			want := Never
			for _, w := range in {
				want = min(want, w.Expires)
			}
			if got := r.Expiry(); got != want || r.Len() != len(in) {
				t.Fatalf("next expiry %v of %d, want %v of %d", got, r.Len(), want, len(in))
			}
			if want > 0 && r.Expired(want-1) != nil {
				t.Fatal("somebody expired early")
			}
		}
	}
}
