package room

import (
	"hash/maphash"
)

// flow is what the room knows of a user, or of a tenant of one, besides its spot.
// Both take 40 bytes together: there may be as many flows as waiters.
type flow struct {
	hash  uint64  // of its name
	back  *Waiter // a tenant's newest waiter
	in    uint32  // a user's class; a tenant's user
	chain uint32  // the next in its bucket, or of the free ones
}

// spot is where a flow is in the heaps of its level. A move in a heap touches the
// spots of many other flows, so all spots are kept close together.
type spot struct {
	load   float64 // what it has waiting, by weight
	tagAt  uint32  // its index in level.ready, or in level.idle while nobody of it waits; plus 1
	loadAt uint32  // its index in level.longest, plus 1; 0 while nobody of it waits
}

// flows holds all users, or all tenants, in one slice with a chained hash table
// over it. Flow 0 is none. There is a flow for everybody who waits. There is also
// one for each that has been served and whose tag is still ahead (idle).
type flows struct {
	all     []flow
	spots   []spot
	buckets []uint32
	free    uint32
	n, idle int
}

// A name is known by a 64-bit hash with a secret key. Two names collide with a
// probability of 2^-64, and nobody can cause that on purpose.
var secret = maphash.MakeSeed()

func hash(name string) uint64 {
	if name == "" { // most have none
		return 0
	}
	return maphash.String(secret, name)
}

// find returns the flow of that name, 0 if there is none.
func (f *flows) find(name string, in uint32) uint32 {
	if f.n == 0 {
		return 0
	}
	return f.lookup(hash(name), in)
}

func (f *flows) lookup(hash uint64, in uint32) uint32 {
	if f.n == 0 {
		return 0
	}
	for i := f.buckets[f.bucket(hash, in)]; i != 0; i = f.all[i].chain {
		if at := &f.all[i]; at.hash == hash && at.in == in {
			return i
		}
	}
	return 0
}

// get is find, and makes the flow if there is none. most is the number of flows in a
// full room.
func (f *flows) get(name string, in uint32, most int) uint32 {
	hash := hash(name)
	if i := f.lookup(hash, in); i != 0 {
		return i
	}
	if len(f.all) == 0 {
		f.all, f.spots, f.buckets = make([]flow, 1, 2), make([]spot, 1, 2), make([]uint32, 2)
	}
	if f.n >= 4*len(f.buckets) {
		f.rehash()
	}
	i := f.free
	if i != 0 {
		f.free = f.all[i].chain
	} else {
		i = uint32(len(f.all))
		f.all = append(extend(f.all, most+1), flow{})
		f.spots = append(extend(f.spots, most+1), spot{})
	}
	bucket := &f.buckets[f.bucket(hash, in)]
	f.all[i] = flow{hash: hash, in: in, chain: *bucket}
	*bucket = i
	f.n++
	return i
}

func (f *flows) drop(i uint32) {
	at := &f.buckets[f.bucket(f.all[i].hash, f.all[i].in)]
	for *at != i {
		at = &f.all[*at].chain
	}
	*at = f.all[i].chain
	f.all[i], f.spots[i] = flow{chain: f.free}, spot{}
	f.free = i
	f.n--
}

func (f *flows) rehash() {
	old := f.buckets
	f.buckets = make([]uint32, 2*len(old))
	for _, i := range old {
		for i != 0 {
			at := &f.all[i]
			bucket := &f.buckets[f.bucket(at.hash, at.in)]
			i, at.chain, *bucket = at.chain, *bucket, i
		}
	}
}

func (f *flows) bucket(hash uint64, in uint32) uint64 {
	return (hash ^ uint64(in)*0x9e3779b97f4a7c15) >> 7 & uint64(len(f.buckets)-1)
}

// extend returns s with capacity for one more element. It doubles s, or extends
// a large s by a quarter. It does not go beyond most while that is enough.
func extend[T any](s []T, most int) []T {
	if len(s) < cap(s) {
		return s
	}
	size := max(4, 2*len(s))
	if len(s) > 1024 {
		size = len(s) + len(s)/4
	}
	if most > len(s) {
		size = min(size, most)
	}
	larger := make([]T, len(s), size)
	copy(larger, s)
	return larger
}

// tags is a heap of flows by their tags, with four children each. A flow's spot knows
// its place in the heap.
type tags []entry

// entry is a flow's tag. Among equal tags the lesser tie is served first.
type entry struct {
	tag  float64
	tie  int32
	flow uint32
}

func (e entry) before(o entry) bool {
	return e.tag < o.tag || e.tag == o.tag && e.tie < o.tie
}

const children = 4

func (h *tags) push(fs []spot, e entry, most int) {
	*h = append(extend(*h, most), e)
	fs[e.flow].tagAt = uint32(len(*h))
	h.up(fs, len(*h)-1)
}

// drop removes flow i.
func (h *tags) drop(fs []spot, i uint32) (e entry) {
	at, last := int(fs[i].tagAt-1), len(*h)-1
	e = (*h)[at]
	fs[i].tagAt = 0
	moved := (*h)[last]
	*h = (*h)[:last]
	if at < last {
		h.put(fs, at, moved)
		h.fix(fs, at)
	}
	return e
}

// fix brings the entry at i to where it belongs.
func (h tags) fix(fs []spot, i int) {
	if !h.up(fs, i) {
		h.down(fs, i)
	}
}

func (h tags) up(fs []spot, i int) (moved bool) {
	e := h[i]
	for i > 0 {
		parent := (i - 1) / children
		if !e.before(h[parent]) {
			break
		}
		h.put(fs, i, h[parent])
		i, moved = parent, true
	}
	if moved {
		h.put(fs, i, e)
	}
	return moved
}

func (h tags) down(fs []spot, i int) {
	e, from := h[i], i
	for {
		first := children*i + 1
		if first >= len(h) {
			break
		}
		least := first
		for child := first + 1; child < min(first+children, len(h)); child++ {
			if h[child].before(h[least]) {
				least = child
			}
		}
		if !h[least].before(e) {
			break
		}
		h.put(fs, i, h[least])
		i = least
	}
	if i != from {
		h.put(fs, i, e)
	}
}

func (h tags) put(fs []spot, i int, e entry) {
	h[i] = e
	fs[e.flow].tagAt = uint32(i + 1)
}

// A flow's load is the cost of its waiters, each divided by its weight. For a single
// waiter it is 0: one waiter is the least that a flow can have, and its cost counts when
// it is served.

// leastLoad is the smallest load of two or more waiters: rounding must not make it 0,
// which means one waiter.
const leastLoad = 1. / maxWeight

// alone returns the waiter of a user that has only one.
func (r *Room) alone(user uint32) *Waiter {
	inner := &r.inner[user]
	if len(inner.longest) != 1 {
		return nil
	}
	return r.aloneOf(inner.longest[0])
}

// aloneOf returns the waiter of a tenant that has only one.
func (r *Room) aloneOf(tenant uint32) *Waiter {
	if back := r.tenants.all[tenant].back; back != nil && back.next == back {
		return back
	}
	return nil
}

// userLoad is a user's load, with a single waiter counted; 0 is nobody.
func (r *Room) userLoad(user uint32) float64 {
	if user == 0 || r.users.spots[user].loadAt == 0 {
		return 0
	}
	if w := r.alone(user); w != nil {
		return cost(w) / w.UserWeight
	}
	return r.users.spots[user].load
}

// tenantLoad is a tenant's load, with a single waiter counted; 0 is nobody.
func (r *Room) tenantLoad(tenant uint32) float64 {
	if tenant == 0 || r.tenants.spots[tenant].loadAt == 0 {
		return 0
	}
	if w := r.aloneOf(tenant); w != nil {
		return cost(w) / w.TenantWeight
	}
	return r.tenants.spots[tenant].load
}

// The flow with the greatest load has to give a place when the room is full, so it
// stands at the root of a heap. Among equal loads it is the flow that is served last.

// worse reports whether a would have to give a place before b.
func (l *level) worse(fs []spot, a, b uint32) bool {
	if fs[a].load != fs[b].load {
		return fs[a].load > fs[b].load
	}
	return l.ready[fs[b].tagAt-1].before(l.ready[fs[a].tagAt-1])
}

// fixLoad puts flow i where it belongs after its load or its tag has changed.
func (l *level) fixLoad(fs []spot, i uint32, most int) {
	if fs[i].loadAt == 0 {
		l.longest = append(extend(l.longest, most), i)
		fs[i].loadAt = uint32(len(l.longest))
	}
	if len(l.longest) > 1 {
		l.sift(fs, int(fs[i].loadAt-1))
	}
}

// unload removes flow i from the heap, because nobody of it waits.
func (l *level) unload(fs []spot, i uint32) {
	at, last := int(fs[i].loadAt-1), len(l.longest)-1
	fs[i].loadAt, fs[i].load = 0, 0
	moved := l.longest[last]
	l.longest = l.longest[:last]
	if at < last {
		l.longest[at] = moved
		fs[moved].loadAt = uint32(at + 1)
		l.sift(fs, at)
	}
}

func (l *level) sift(fs []spot, i int) {
	moved := l.longest[i]
	for i > 0 {
		parent := (i - 1) / children
		if !l.worse(fs, moved, l.longest[parent]) {
			break
		}
		l.set(fs, i, l.longest[parent])
		i = parent
	}
	for {
		first := children*i + 1
		if first >= len(l.longest) {
			break
		}
		worst := first
		for child := first + 1; child < min(first+children, len(l.longest)); child++ {
			if l.worse(fs, l.longest[child], l.longest[worst]) {
				worst = child
			}
		}
		if !l.worse(fs, l.longest[worst], moved) {
			break
		}
		l.set(fs, i, l.longest[worst])
		i = worst
	}
	l.set(fs, i, moved)
}

func (l *level) set(fs []spot, i int, flow uint32) {
	l.longest[i] = flow
	fs[flow].loadAt = uint32(i + 1)
}

// rebuild makes the heap of loads anew.
func (l *level) rebuild(fs []spot) {
	for i := len(l.longest) - 1; i >= 0; i-- {
		l.sift(fs, i)
	}
}
