package room

import "math/bits"

// reasons tells whose order turns when the newest goes first. One tenant's flood,
// or its deadlines that nobody could meet, would otherwise turn the order of all
// the others, whose short queues are served in time as they are.
//
// So among a tenant's own waiters the newest goes first only if the tenant has
// given a reason since the newest goes first at all, in this phase: if it had too
// many waiting, if one of its own left, ran out of time, or would have come too
// late. What is left to the whole room is whose turn it is among tenants with equal
// tags, which those who are few cannot lose for long.
//
// The mark of a tenant is its newest waiter's, so it costs no memory and goes with
// the last of them. One who comes back to an empty queue is known by its name if
// it was the last to give a reason.
type reasons struct {
	phase uint16 // counts, from 1; when it wraps, marks of 65,535 phases ago count again
	last  uint64 // who gave the last reason: the hashes of its names, as one
}

// newestFirst reports whether the newest of a tenant's waiters goes first now.
func (r *Room) newestFirst(tenant uint32) bool {
	switch {
	case r.order == LIFO:
		return true
	case !r.NewestFirst():
		return false
	}
	back := r.tenants.all[tenant].back
	return back == nil || back.phase == r.standing.phase
}

// reason marks a tenant.
func (r *Room) reason(tenant uint32) {
	if back := r.tenants.all[tenant].back; back != nil {
		back.phase = r.standing.phase
	}
	r.standing.last = r.names(tenant)
}

// inherit hands the mark on to w, which becomes the newest of a tenant.
func (r *Room) inherit(tenant uint32, w *Waiter) {
	w.phase = 0
	if back := r.tenants.all[tenant].back; back != nil {
		w.phase = back.phase
	} else if r.standing.last == r.names(tenant) {
		w.phase = r.standing.phase
	}
}

// names is a tenant's name and its user's as one hash.
func (r *Room) names(tenant uint32) uint64 {
	t := &r.tenants.all[tenant]
	return joined(r.users.all[t.in].hash, t.hash)
}

func joined(user, tenant uint64) uint64 { return bits.RotateLeft64(user, 32) ^ tenant }
