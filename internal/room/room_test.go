package room

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const ms = time.Millisecond

// newRoom has a pace of 100 ms and 4 places while a queue stands.
func newRoom(size int, order Order) *Room {
	r := new(Room)
	r.Configure(size, order)
	r.SetPace(Pace{Interval: 100 * ms, Keep: 4})
	return r
}

// nobody is a newcomer without a name.
var nobody = &Waiter{Class: 1}

// come lets n newcomers in, named by when they came, and returns the displaced.
func come(t *testing.T, r *Room, now time.Duration, n int) (displaced []time.Duration) {
	t.Helper()
	for range n {
		r.CountArrival(now, nobody)
		out, ok := r.Push(now, &Waiter{Expires: Never, Units: 1, Class: 1})
		if !ok {
			t.Fatalf("%v: no place", now)
		}
		if out != nil {
			displaced = append(displaced, out.Arrived)
		}
	}
	return displaced
}

func dequeue(r *Room, now time.Duration, n int) (served []time.Duration) {
	for range n {
		w := r.Next(now)
		if w == nil {
			return served
		}
		r.Dequeue(w)
		served = append(served, w.Arrived)
	}
	return served
}

func TestOrders(t *testing.T) {
	oldest, newest := []time.Duration{0, 1, 2}, []time.Duration{2, 1, 0}
	for order, want := range map[Order][]time.Duration{Adaptive: oldest, FIFO: oldest, LIFO: newest} {
		r := newRoom(3, order)
		for at := range time.Duration(3) {
			come(t, r, at, 1)
		}
		if got := dequeue(r, 3, 3); !slices.Equal(got, want) {
			t.Errorf("order %d: %v, want %v", order, got, want)
		}
	}
}

// standingRoom returns a room in which a queue of 4 stands since 200 ms: those of 0,
// 100, 110 and 200 ms wait.
func standingRoom(t *testing.T, order Order) *Room {
	r := newRoom(8, order)
	come(t, r, 0, 1)
	come(t, r, 100*ms, 1)
	come(t, r, 110*ms, 1)
	come(t, r, 200*ms, 1)
	return r
}

// A burst is in its first interval, however large it is.
func TestABurstIsServedInOrder(t *testing.T) {
	r := newRoom(8, Adaptive)
	come(t, r, 0, 7)
	come(t, r, 99*ms, 1)
	if !r.Full() {
		t.Error("8 of 8 wait, and there is room")
	}
	r.Expire(r.Oldest())
	come(t, r, 199*ms, 1)
	if got := dequeue(r, 199*ms, 1); got[0] != 0 {
		t.Errorf("%v goes first, before an interval has been judged", got)
	}
}

// Over a queue that stands the newest goes first once there is no place left,
// and the oldest, which would not be served any more, makes room.
func TestAStandingQueueTurns(t *testing.T) {
	r := standingRoom(t, Adaptive)
	if r.NewestFirst() || r.Full() {
		t.Error("it turned before it was too long, or would refuse a newcomer")
	}
	if got := come(t, r, 201*ms, 2); !slices.Equal(got, []time.Duration{0, 100 * ms}) {
		t.Errorf("displaced %v", got)
	}
	r = standingRoom(t, Adaptive)
	if r.Configure(4, Adaptive); r.Full() {
		t.Error("a newcomer would take the place of the oldest, and the room is full")
	}
	come(t, r, 201*ms, 2)
	if got := dequeue(r, 202*ms, 1); r.Len() != 3 || got[0] != 201*ms {
		t.Errorf("%d wait, %v went first", r.Len(), got)
	}
}

// Somebody whose time is up in a standing queue is as good a sign; in a burst it is
// none.
func TestExpiredTurns(t *testing.T) {
	stands, fifo, burst := standingRoom(t, Adaptive), standingRoom(t, FIFO), newRoom(8, Adaptive)
	come(t, burst, 0, 3)
	for _, r := range []*Room{stands, fifo, burst} {
		r.Expire(r.Oldest())
	}
	if !stands.NewestFirst() || fifo.NewestFirst() || burst.NewestFirst() {
		t.Errorf("newest first: stands %v, FIFO %v, burst %v", stands.NewestFirst(), fifo.NewestFirst(), burst.NewestFirst())
	}
}

// Somebody who could not be served in time is a sign in a burst too, for as long
// as it is one. It costs nobody a place.
func TestTurnInABurst(t *testing.T) {
	r, fifo := newRoom(8, Adaptive), newRoom(8, FIFO)
	come(t, r, 0, 6)
	come(t, fifo, 0, 6)
	if !r.PreferNewest(nobody) || fifo.PreferNewest(nobody) {
		t.Error("it did not turn, or FIFO did")
	}
	if got := come(t, r, 100*ms, 1); got != nil || !r.NewestFirst() {
		t.Errorf("displaced %v, newest first %v", got, r.NewestFirst())
	}
	r.standing.served += 9
	if r.Next(200 * ms); r.NewestFirst() {
		t.Error("it has drained for an interval, and the newest goes first")
	}
}

func TestWhatTurnsBack(t *testing.T) {
	r := standingRoom(t, Adaptive)
	r.PreferNewest(nobody)
	if dequeue(r, 201*ms, 1); !r.NewestFirst() {
		t.Error("back with 3 of 4 waiting")
	}
	if dequeue(r, 201*ms, 1); r.NewestFirst() {
		t.Error("half of the queue is gone, and the newest goes first")
	}

	r = standingRoom(t, Adaptive)
	r.PreferNewest(nobody)
	r.Remove(r.Oldest())
	come(t, r, 202*ms, 1)
	for at := 210 * ms; at < 300*ms; at += 10 * ms { // more served than come
		r.standing.served += 3
	}
	if r.Next(300 * ms); r.NewestFirst() || r.places() != 8 {
		t.Error("the queue drains, and the newest goes first, or places are missing")
	}
}

// A queue that comes back after the room was empty for a while is a new one. One
// that was empty for a moment only goes on.
func TestStandingStartsAnew(t *testing.T) {
	for at, anew := range map[time.Duration]bool{200 * ms: false, 399 * ms: false, 400 * ms: true} {
		r := standingRoom(t, Adaptive)
		dequeue(r, 200*ms, 4)
		come(t, r, at, 8)
		if r.NewestFirst() == anew || (r.Len() == 8) != anew {
			t.Errorf("%v: newest first %v, %d wait", at, r.NewestFirst(), r.Len())
		}
	}
}

// Those without a chance to be served do not wait, but a batch always may, and
// nobody is given up for what may be chance.
func TestChances(t *testing.T) {
	tests := []struct {
		arrived, served float64
		want            int
	}{
		{0, 0, math.MaxInt}, {50, 0, math.MaxInt}, {50, 0.9, math.MaxInt}, {100, 100, math.MaxInt}, {130, 100, math.MaxInt},
		{140, 100, 54}, {1e6, 9e5, 45}, {1e6, 5e5, 8}, {1e6, 7e5, 14}, {1e6, 1, 8}, {200, 100, 10}, {40, 20, 23},
	}
	for _, tt := range tests {
		if got := promising(tt.arrived, tt.served); got != tt.want {
			t.Errorf("%g came, %g were served: %d, want %d", tt.arrived, tt.served, got, tt.want)
		}
	}
}

// In a lasting overload the oldest are soon told that it is not their turn.
func TestOverloadKeepsFewWaiting(t *testing.T) {
	r := newRoom(1000, Adaptive)
	r.SetPace(Pace{Interval: 100 * ms, Keep: 64})
	var longest time.Duration
	for at := time.Duration(0); at < time.Second; at += ms { // 4 come while one is served
		for range 4 {
			r.CountArrival(at, nobody)
			out, ok := r.Push(at, &Waiter{Expires: Never, Units: 1, Class: 1})
			if !ok {
				t.Fatalf("%v: no place", at)
			}
			if out != nil && at > 900*ms {
				longest = max(longest, at-out.Arrived)
			}
		}
		dequeue(r, at, 1)
	}
	if r.Len() > 8 || longest == 0 || longest > 10*ms {
		t.Errorf("%d wait, some of them %v before they are displaced", r.Len(), longest)
	}
}

// While waiters leave of themselves the newest goes first, in a burst too, and
// an interval longer.
func TestImpatience(t *testing.T) {
	r := newRoom(8, Adaptive)
	come(t, r, 0, 2)
	w := r.Oldest()
	if !r.GiveUp(10*ms, w) || r.GiveUp(10*ms, w) || !r.NewestFirst() {
		t.Error("somebody left once, and the oldest goes first")
	}
	dequeue(r, 11*ms, 1) // an empty room does not make the others patient
	come(t, r, 12*ms, 1)
	come(t, r, 109*ms, 1)
	if got := dequeue(r, 109*ms, 1); got[0] != 109*ms {
		t.Errorf("%v goes first", got)
	}
	if r.Next(110 * ms); r.NewestFirst() {
		t.Error("nobody has left for an interval, and the newest goes first")
	}
}

// Who leaves before it has waited as long as work takes would have left before its
// answer in any order.
func TestWhoLeavesAtOnceTurnsNothing(t *testing.T) {
	r := newRoom(8, Adaptive)
	r.SetPace(Pace{Interval: 100 * ms, Service: 10 * ms})
	come(t, r, 0, 3)
	if !r.GiveUp(9*ms, r.Oldest()) || r.NewestFirst() {
		t.Error("somebody left at once, and the newest goes first")
	}
	if !r.GiveUp(10*ms, r.Oldest()) || !r.NewestFirst() {
		t.Error("somebody left who had waited long enough, and the oldest goes first")
	}
}

func TestDraining(t *testing.T) {
	tests := []struct {
		arrived, served int
		want            bool
	}{
		{0, 0, false}, {0, 4, false}, {0, 5, true}, {100, 100, false}, {200, 100, false},
		{80, 100, false}, {79, 100, true}, {375, 400, false}, {359, 400, true},
	}
	for _, tt := range tests {
		if got := draining(tt.arrived, tt.served); got != tt.want {
			t.Errorf("%d came, %d were served: %v", tt.arrived, tt.served, got)
		}
	}
}

// Nobody is displaced on a guess: without a pace a standing queue has all places.
func TestUnknownPace(t *testing.T) {
	r := standingRoom(t, Adaptive)
	r.SetPace(Pace{Interval: 100 * ms})
	if got := come(t, r, 201*ms, 4); got != nil || r.Kept() != 8 {
		t.Errorf("displaced %v, kept %d", got, r.Kept())
	}
}

func TestFull(t *testing.T) {
	for _, order := range []Order{Adaptive, FIFO, LIFO} {
		r := newRoom(0, order)
		if _, ok := r.Push(0, &Waiter{}); ok || !r.Full() {
			t.Errorf("order %d: a room without places took one", order)
		}
		r.Configure(2, order)
		come(t, r, 0, 2)
		r.CountArrival(0, nobody)
		w := &Waiter{Class: 1}
		out, ok := r.Push(1, w)
		if lifo := order == LIFO; r.Full() == lifo || ok != lifo || (out != nil) != lifo || w.Queued() != lifo {
			t.Errorf("order %d: full %v, a third got in: %v, for %v", order, r.Full(), ok, out)
		}
		r.Configure(1, order)
		if r.Len() != 2 {
			t.Errorf("order %d: a smaller room threw somebody out", order)
		}
	}
}

func TestUnits(t *testing.T) {
	r := newRoom(3, FIFO)
	a, b := &Waiter{Units: 3}, &Waiter{Units: 5}
	r.Push(0, a)
	r.Push(0, b)
	r.Remove(a)
	r.Remove(a)
	if r.Units() != 5 {
		t.Errorf("%d units wait", r.Units())
	}
}

func TestRemoveTwice(t *testing.T) {
	r := newRoom(1, FIFO)
	w := &Waiter{Class: 1}
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
