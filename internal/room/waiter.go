package room

import (
	"math"
	"time"
)

// Waiter is one place in the room. Its owner embeds it, sets the exported
// fields, and points Owner back at itself. It must not change them while it waits.
type Waiter struct {
	// Expires is when the waiter has to leave unserved.
	Expires time.Duration
	// Units is what the waiter will take of the gate.
	Units int64
	// Arrived is set by Push.
	Arrived time.Duration
	// Owner is what the waiter stands for.
	Owner any
	// User answers for what it sends, and Tenant is one of those it sends for.
	// Those without a name are one.
	User, Tenant string
	// UserWeight and TenantWeight say what a user gets beside other users, and a
	// tenant beside others of its user. 0 means 1. The weight of a user is that of
	// whoever came last.
	UserWeight, TenantWeight float64
	// Deadline is by when it has to be done, for the order EDF; Never without one.
	Deadline time.Duration

	prev, next *Waiter // among those of its tenant

	// Class is its priority, from 0, which goes last, to Classes-1.
	Class int8
	phase uint16 // the newest of its tenant: see reasons

	heap int32  // index in the room's heap, plus 1; 0 while not in a room
	flow uint32 // its tenant's
	node uint32 // its place among the deadlines
}

// Queued reports whether the waiter is in a room.
func (w *Waiter) Queued() bool { return w.heap != 0 }

// Within these bounds sums neither overflow nor lose a waiter beside a large one.
const (
	maxUnits  = 1 << 40
	maxWeight = 1 << 10
)

// tidy brings what is out of range into it: a weight that is not a positive number
// counts as 1, others from 1/1024 to 1024, units up to 2^40.
func (w *Waiter) tidy() {
	w.Class = max(0, min(w.Class, Classes-1))
	w.Units = max(0, min(w.Units, maxUnits))
	w.UserWeight, w.TenantWeight = weight(w.UserWeight), weight(w.TenantWeight)
}

func weight(of float64) float64 {
	if of <= 0 || math.IsNaN(of) {
		return 1
	}
	return max(1./maxWeight, min(of, maxWeight))
}

// cost is what a waiter is charged. Nobody is served for nothing.
func cost(w *Waiter) float64 { return max(1, float64(w.Units)) }
