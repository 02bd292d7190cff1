package room

import (
	"cmp"
	"math/bits"
	"slices"
)

// Order says which of a tenant's waiters is served first.
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

// first returns which waiter of a tenant is served first.
func (r *Room) first(tenant uint32) *Waiter {
	back := r.tenants.all[tenant].back
	switch {
	case r.order == EDF:
		return r.deadlines.first(back)
	case r.reversed(tenant):
		return back
	}
	return back.next
}

// last returns which waiter of a tenant is served last.
func (r *Room) last(tenant uint32) *Waiter {
	back := r.tenants.all[tenant].back
	switch {
	case r.order == EDF:
		return r.deadlines.last(back)
	case r.reversed(tenant):
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

// reasons says which tenants' order turns. If all turned, one tenant's flood, or its
// hopeless deadlines, would turn the order of all others. Their queues are short and
// served in time as they are.
//
// So within a tenant the newest is served first only if the tenant has given a reason in
// this phase. It had too many waiting, or one of its own gave up, expired, or would
// have been late. Between tenants with equal tags it is served first if enough of them
// give a reason in an interval. To find no place in a standing queue is one, too. Anybody
// can leave, send a short deadline, or send too much.
//
// A tenant is marked in its newest waiter. So the mark costs no memory, and ends with
// the last waiter. If a tenant comes back to an empty queue, its name is recognised,
// provided that it was the last to give a reason.
type reasons struct {
	phase  uint16   // counts, from 1; when it wraps, marks of 65,535 phases ago count again
	last   uint64   // who gave the last reason: the hashes of its names, as one
	givers []uint64 // who gave one in this interval, up to mostGivers
	many   bool     // they were enough
	before bool     // they were in the interval before
}

// mostGivers is how many have to give a reason at most, so that the order between tenants turns.
const mostGivers = 8

// countGiver counts that w's user has given a reason; its tenant, if the user has no name. Anybody can
// invent tenants. As many as an eighth of the waiters are enough, from two to eight, or all tenants that wait.
func (r *Room) countGiver(w *Waiter) {
	s, name := &r.standing.reasons, cmp.Or(hash(w.User), hash(w.Tenant))
	if len(s.givers) < mostGivers && !slices.Contains(s.givers, name) {
		s.givers = append(s.givers, name)
	}
	s.many = s.many || len(s.givers) >= max(2, min(len(r.expiry)/8, mostGivers, r.tenants.n-r.tenants.idle))
}

// endInterval forgets who gave a reason before the last interval.
func (s *reasons) endInterval() {
	s.givers, s.before, s.many = s.givers[:0], s.many, false
}

// turned reports whether the newest is served first among tenants with equal tags.
func (r *Room) turned() bool {
	return r.order == LIFO || r.NewestFirst() && (r.standing.many || r.standing.before)
}

// reversed reports whether the newest of a tenant's waiters is served first now.
func (r *Room) reversed(tenant uint32) bool {
	switch {
	case r.order == LIFO:
		return true
	case !r.NewestFirst():
		return false
	}
	back := r.tenants.all[tenant].back
	return back == nil || back.phase == r.standing.phase
}

// mark notes that a tenant has given a reason.
func (r *Room) mark(tenant uint32) {
	if back := r.tenants.all[tenant].back; back != nil {
		back.phase = r.standing.phase
		r.countGiver(back)
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

// deadlines holds the waiters of each tenant sorted by deadline, for the order
// EDF only. Each tenant has a treap (Seidel and Aragon 1996). The first waiter,
// the last, and any that leaves are found in O(log n) expected, whatever
// deadlines a client sends. All tenants' trees share one slice of nodes; node 0
// is none.
type deadlines struct {
	nodes []node
	free  uint32 // the first of a list through right
	dice  uint32
}

// node is a waiter's place in its tenant's tree. Deadlines are sorted from left
// to right, and rank falls from the root to the leaves.
type node struct {
	waiter          *Waiter
	units           int64 // of the tree below, itself included
	left, right, up uint32
	rank            uint32
}

// insert puts w behind all of the same deadline. It goes into the tree that
// other is in, or into a new one if other is nil.
func (d *deadlines) insert(other, w *Waiter) {
	i := d.add(w)
	w.node = i
	if other == nil {
		return
	}
	at := d.root(other)
	for {
		n := &d.nodes[at]
		n.units += w.Units
		side := &n.left
		if w.Deadline >= n.waiter.Deadline {
			side = &n.right
		}
		if *side == 0 {
			*side, d.nodes[i].up = i, at
			break
		}
		at = *side
	}
	for up := d.nodes[i].up; up != 0 && d.nodes[up].rank < d.nodes[i].rank; up = d.nodes[i].up {
		d.lift(i)
	}
}

// remove removes w from its tree. w sinks until it has at most one child, and that
// child takes its place.
func (d *deadlines) remove(w *Waiter) {
	i := w.node
	n := &d.nodes[i]
	for n.left != 0 && n.right != 0 {
		child := n.left
		if d.nodes[n.right].rank > d.nodes[n.left].rank {
			child = n.right
		}
		d.lift(child)
	}
	child, up := n.left+n.right, n.up
	if child != 0 {
		d.nodes[child].up = up
	}
	if up != 0 {
		*d.side(i) = child
	}
	for ; up != 0; up = d.nodes[up].up {
		d.nodes[up].units -= w.Units
	}
	*n = node{right: d.free}
	d.free, w.node = i, 0
}

// lift exchanges i with the node above it.
func (d *deadlines) lift(i uint32) {
	up := d.nodes[i].up
	n, above := &d.nodes[i], &d.nodes[up]
	if above.up != 0 {
		*d.side(up) = i
	}
	n.up, above.up = above.up, i
	var moved uint32
	if above.left == i {
		moved, above.left, n.right = n.right, n.right, up
	} else {
		moved, above.right, n.left = n.left, n.left, up
	}
	if moved != 0 {
		d.nodes[moved].up = up
	}
	n.units = above.units
	above.units = above.waiter.Units + d.nodes[above.left].units + d.nodes[above.right].units
}

// side is the link to i from the node above it. There must be one.
func (d *deadlines) side(i uint32) *uint32 {
	above := &d.nodes[d.nodes[i].up]
	if above.left == i {
		return &above.left
	}
	return &above.right
}

func (d *deadlines) root(w *Waiter) uint32 {
	i := w.node
	for d.nodes[i].up != 0 {
		i = d.nodes[i].up
	}
	return i
}

// first returns the waiter with the earliest deadline in w's tree.
func (d *deadlines) first(w *Waiter) *Waiter {
	i := d.root(w)
	for d.nodes[i].left != 0 {
		i = d.nodes[i].left
	}
	return d.nodes[i].waiter
}

// last returns the waiter with the latest deadline in w's tree.
func (d *deadlines) last(w *Waiter) *Waiter {
	i := d.root(w)
	for d.nodes[i].right != 0 {
		i = d.nodes[i].right
	}
	return d.nodes[i].waiter
}

// before returns the units in w's tree that are due no later than newcomer.
func (d *deadlines) before(w *Waiter, newcomer *Waiter) (units int64) {
	for i := d.root(w); i != 0; {
		n := &d.nodes[i]
		if newcomer.Deadline < n.waiter.Deadline {
			i = n.left
			continue
		}
		units += n.units - d.nodes[n.right].units
		i = n.right
	}
	return units
}

func (d *deadlines) add(w *Waiter) uint32 {
	if len(d.nodes) == 0 {
		d.nodes = make([]node, 1, 8)
	}
	d.dice += 0x9e3779b9 // the ranks are a scrambled count: the same in every run
	rank := d.dice
	rank = (rank ^ rank>>16) * 0x85ebca6b
	rank = (rank ^ rank>>13) * 0xc2b2ae35
	n := node{waiter: w, units: w.Units, rank: rank ^ rank>>16}
	i := d.free
	if i == 0 {
		d.nodes = append(d.nodes, n)
		return uint32(len(d.nodes) - 1)
	}
	d.free = d.nodes[i].right
	d.nodes[i] = n
	return i
}
