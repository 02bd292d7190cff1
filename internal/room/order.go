package room

// Order says which of a tenant's waiters goes first.
type Order uint8

// The orders.
const (
	Adaptive Order = iota // newest first while a queue stands, else oldest first
	FIFO                  // oldest first
	LIFO                  // newest first
	EDF                   // earliest deadline first, oldest first among equals
)

// The waiters of a tenant are a ring in order of arrival. The flow knows the
// newest, and the newest's next is the oldest.

// link puts w into its tenant's ring, and into its tree where deadlines count.
func (r *Room) link(w *Waiter) {
	t := &r.tenants.all[w.flow]
	r.inherit(w.flow, w)
	if t.back == nil {
		w.prev, w.next = w, w
	} else {
		w.prev, w.next = t.back, t.back.next
		w.prev.next, w.next.prev = w, w
	}
	if r.order == EDF {
		r.deadlines.insert(t.back, w)
	}
	t.back = w
}

// unlink is the reverse of link, for a waiter anywhere.
func (r *Room) unlink(w *Waiter) {
	if r.order == EDF {
		r.deadlines.remove(w)
	}
	t := &r.tenants.all[w.flow]
	switch {
	case w.next == w:
		t.back = nil
	case t.back == w:
		t.back = w.prev
		t.back.phase = w.phase
	}
	w.prev.next, w.next.prev = w.next, w.prev
	w.prev, w.next = nil, nil
}

// first returns which waiter of a tenant goes first.
func (r *Room) first(tenant uint32) *Waiter {
	back := r.tenants.all[tenant].back
	switch {
	case r.order == EDF:
		return r.deadlines.first(back)
	case r.newestFirst(tenant):
		return back
	}
	return back.next
}

// last returns which waiter of a tenant goes last.
func (r *Room) last(tenant uint32) *Waiter {
	back := r.tenants.all[tenant].back
	switch {
	case r.order == EDF:
		return r.deadlines.last(back)
	case r.newestFirst(tenant):
		return back.next
	}
	return back
}

// reorder changes the order while somebody may wait.
func (r *Room) reorder(order Order) {
	sorted := r.order == EDF
	r.order = order
	if (order == EDF) == sorted {
		return
	}
	r.deadlines = deadlines{}
	if order != EDF {
		return
	}
	for i := range r.tenants.all {
		back := r.tenants.all[i].back
		if back == nil {
			continue
		}
		var root *Waiter
		for w := back.next; ; w = w.next {
			r.deadlines.insert(root, w)
			if root = w; w == back {
				break
			}
		}
	}
}
