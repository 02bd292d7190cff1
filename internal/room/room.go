// Package room is the wait room of a gate: a bounded queue of waiters with an
// order and an expiry each, on explicit time. It holds no lock, starts no
// goroutine and wakes nobody: the gate does.
//
// Priority and fairness between tenants will live here too; today a room has
// one queue.
package room

import (
	"math"
	"time"
)

// Order says which end of the queue is served.
type Order uint8

// The orders.
const (
	FIFO     Order = iota // oldest first
	LIFO                  // newest first
	Adaptive              // newest first while a queue stands, else oldest first
)

// Standing is how long a room has to be occupied without a break before
// Adaptive takes the queue for a standing one. It is the interval of CoDel (RFC
// 8289): a queue that drains within it is a burst and does its job; one that
// does not only adds delay.
const Standing = 100 * time.Millisecond

// Never is the expiry of a waiter without one.
const Never = time.Duration(math.MaxInt64)

// Waiter is one place in the room. Its owner embeds it, sets the exported
// fields, and points Owner back at itself.
type Waiter struct {
	// Expires is when the waiter has to leave unserved.
	Expires time.Duration
	// Arrived is set by Push.
	Arrived time.Duration
	// Owner is what the waiter stands for.
	Owner any

	prev, next *Waiter
	heap       int // index in the room's heap, plus 1; 0 while not in a room
}

// Queued reports whether the waiter is in a room.
func (w *Waiter) Queued() bool { return w.heap != 0 }

// Room is a wait room. The zero value has no places; set the size first.
type Room struct {
	size     int
	order    Order
	occupied time.Duration // since when the room has not been empty

	front, back *Waiter // oldest, newest
	expiry      []*Waiter
}

// Configure sets the number of places and the order. Waiters beyond a smaller
// size stay; only newcomers are refused.
func (r *Room) Configure(size int, order Order) { r.size, r.order = max(0, size), order }

// Len returns how many wait.
func (r *Room) Len() int { return len(r.expiry) }

// Size returns the number of places.
func (r *Room) Size() int { return r.size }

// Full reports whether a newcomer would be refused.
func (r *Room) Full() bool { return len(r.expiry) >= r.size }

// Push puts w at the back, and reports false if the room is full.
func (r *Room) Push(now time.Duration, w *Waiter) bool {
	if r.Full() {
		return false
	}
	if r.front == nil {
		r.occupied = now
		r.front = w
	} else {
		r.back.next, w.prev = w, r.back
	}
	r.back = w
	w.Arrived = now
	r.push(w)
	return true
}

// Next returns the waiter to serve next, nil if nobody waits. It stays queued.
func (r *Room) Next(now time.Duration) *Waiter {
	if r.order == LIFO || r.order == Adaptive && now-r.occupied >= Standing {
		return r.back
	}
	return r.front
}

// Oldest returns the waiter that came first, nil if nobody waits.
func (r *Room) Oldest() *Waiter { return r.front }

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
	r.remove(w.heap - 1)
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
