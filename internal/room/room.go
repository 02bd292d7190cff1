// Package room is the wait room of a gate: a bounded queue of waiters with an
// order and an expiry each, on explicit time. It holds no lock, starts no
// goroutine and wakes nobody: the gate does.
//
// Who goes next ([Room.Next]) and who has to go for want of a place
// ([Room.Push]) are decided here and nowhere else. Priority and fairness between
// tenants will live here too; today a room has one queue.
package room

import (
	"math"
	"time"
)

// Order says which end of the queue is served.
type Order uint8

// The orders.
const (
	Adaptive Order = iota // newest first while a queue stands, else oldest first
	FIFO                  // oldest first
	LIFO                  // newest first
	EDF                   // earliest deadline first
)

// Classes is how many classes of priority there are. Class 0 goes last.
const Classes = 4

// Never is the expiry of a waiter without one.
const Never = time.Duration(math.MaxInt64)

// Waiter is one place in the room. Its owner embeds it, sets the exported
// fields, and points Owner back at itself.
type Waiter struct {
	// Expires is when the waiter has to leave unserved.
	Expires time.Duration
	// Units is what the waiter will take of the gate.
	Units int64
	// Arrived is set by Push.
	Arrived time.Duration
	// Owner is what the waiter stands for.
	Owner any
	// Class is its priority, from 0 (goes last) to Classes-1.
	Class int8
	// User answers for what it sends; Tenant is one of those it sends for.
	User, Tenant string
	// UserWeight and TenantWeight are what they get in proportion; 0 means 1.
	UserWeight, TenantWeight float64
	// Deadline is by when it has to be done, for the order EDF.
	Deadline time.Duration

	prev, next *Waiter
	heap       int // index in the room's heap, plus 1; 0 while not in a room
}

// Queued reports whether the waiter is in a room.
func (w *Waiter) Queued() bool { return w.heap != 0 }

// Room is a wait room. The zero value has no places; set the size first.
//
// Who comes is counted by Knock and let in by Push. Who leaves is taken out by
// the method that says why: Serve, GiveUp, Expire, or Remove for any other
// reason; the room learns from the difference.
type Room struct {
	size     int
	order    Order
	pace     Pace
	standing standing

	front, back *Waiter // oldest, newest
	units       int64
	expiry      []*Waiter
}

// Configure sets the number of places and the order. Waiters beyond a smaller
// size stay; only newcomers are refused.
func (r *Room) Configure(size int, order Order) { r.size, r.order = max(0, size), order }

// SetPace says how fast the gate is, as far as anybody knows.
func (r *Room) SetPace(p Pace) { r.pace = p }

// Len returns how many wait.
func (r *Room) Len() int { return len(r.expiry) }

// Units returns what all that wait will take together.
func (r *Room) Units() int64 { return r.units }

// Size returns the number of places.
func (r *Room) Size() int { return r.size }

// Kept returns how many may wait while a queue stands.
func (r *Room) Kept() int {
	kept := r.size
	if r.order == Adaptive && r.pace.Keep > 0 {
		kept = min(kept, r.pace.Keep)
		if r.standing.is {
			kept = min(kept, r.standing.hope)
		}
	}
	return kept
}

// places is how many may wait now.
func (r *Room) places() int {
	if r.standing.is {
		return r.Kept()
	}
	return r.size
}

// NewestFirst reports whether the newest goes first now.
func (r *Room) NewestFirst() bool {
	return r.order == LIFO || r.order == Adaptive && (r.standing.newest || r.standing.deserted)
}

// Full reports whether a newcomer would be refused. It would not where the
// newest goes first, or would go first for it: then the oldest makes room.
func (r *Room) Full() bool {
	if len(r.expiry) < r.size {
		return false
	}
	turns := r.NewestFirst() || r.order == Adaptive && r.standing.is
	return r.size == 0 || !turns
}

// Turn is told that a newcomer could not be served in time at the back of the
// queue, and puts the newest first, if the order is Adaptive. It reports whether
// the newest goes first.
func (r *Room) Turn() bool {
	if r.order == Adaptive && !r.standing.newest {
		r.standing.turn(len(r.expiry))
	}
	return r.NewestFirst()
}

// crowded is Turn for what is a sign in a standing queue only.
func (r *Room) crowded() bool {
	if r.standing.is {
		return r.Turn()
	}
	return r.NewestFirst()
}

// Knock counts a newcomer that finds no free slot, whether it will get a place or
// not.
func (r *Room) Knock(now time.Duration) {
	if len(r.expiry) == 0 && !r.standing.lasts(now, r.pace.Interval) {
		r.standing.begin(now)
	}
	r.standing.look(now, r.pace.Interval)
	r.standing.arrived++
}

// Push puts w at the back, and reports false if the room is full. Where the
// newest goes first and there is no place, the oldest is displaced: all that
// come later would be served before it. It is out of the room already.
func (r *Room) Push(now time.Duration, w *Waiter) (displaced *Waiter, ok bool) {
	if len(r.expiry) >= r.places() {
		if r.size == 0 || !r.crowded() {
			return nil, false
		}
		displaced = r.front
		r.Remove(displaced)
	}
	if r.front == nil {
		r.front = w
	} else {
		r.back.next, w.prev = w, r.back
	}
	r.back = w
	w.Arrived = now
	r.units += w.Units
	r.push(w)
	return displaced, true
}

// Next returns the waiter to serve next, nil if nobody waits. It stays queued.
func (r *Room) Next(now time.Duration) *Waiter {
	if r.front == nil {
		return nil
	}
	r.standing.look(now, r.pace.Interval)
	if r.NewestFirst() {
		return r.back
	}
	return r.front
}

// Oldest returns the waiter that came first, nil if nobody waits.
func (r *Room) Oldest() *Waiter { return r.front }

// Serve takes out w, whose turn it is.
func (r *Room) Serve(w *Waiter) {
	r.Remove(w)
	r.standing.served++
}

// GiveUp takes out w, which leaves of itself, and reports false if it was not in.
func (r *Room) GiveUp(now time.Duration, w *Waiter) bool {
	if !w.Queued() {
		return false
	}
	if now-w.Arrived >= r.pace.Service {
		r.standing.desert(now)
	}
	return r.Remove(w)
}

// Expire takes out w, whose time is up.
func (r *Room) Expire(w *Waiter) {
	r.crowded()
	r.Remove(w)
}

// Remove takes w out, and reports false if it was not in.
func (r *Room) Remove(w *Waiter) bool {
	if !w.Queued() {
		return false
	}
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		r.front = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		r.back = w.prev
	}
	w.prev, w.next = nil, nil
	r.units -= w.Units
	r.remove(w.heap - 1)
	r.standing.fallTo(len(r.expiry))
	return true
}

// Expired returns a waiter whose time is up, nil if there is none. It stays
// queued.
func (r *Room) Expired(now time.Duration) *Waiter {
	if len(r.expiry) == 0 || r.expiry[0].Expires > now {
		return nil
	}
	return r.expiry[0]
}

// Expiry returns when the next waiter expires, Never if none does.
func (r *Room) Expiry() time.Duration {
	if len(r.expiry) == 0 {
		return Never
	}
	return r.expiry[0].Expires
}

// Ahead estimates how many units would be served before w if it came now.
func (r *Room) Ahead(*Waiter) int64 {
	if r.NewestFirst() {
		return 0
	}
	return r.units
}

// SetShares gives classes a guaranteed minimum share of what is served.
func (r *Room) SetShares([Classes]float64) {}

// Settle corrects what a tenant of a user was charged by units, which may be
// negative.
func (r *Room) Settle(class int, user, tenant string, units int64) {}

// Reweigh changes the weights of those that wait.
func (r *Room) Reweigh(weights func(user, tenant string) (userWeight, tenantWeight float64)) {}

// ByClass returns how many wait by class.
func (r *Room) ByClass() (n [Classes]int) {
	for _, w := range r.expiry {
		n[w.Class&(Classes-1)]++
	}
	return n
}
