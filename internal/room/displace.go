package room

// victim returns who loses its place to w in a full room. It is the last waiter of the
// tenant that has to give one (loser). If that is w's own tenant, w itself is refused,
// unless the tenant's newest goes first: then its oldest loses. nil means that w is
// refused. If free, it means that w takes a place kept open for small tenants. In a
// standing queue, a tenant that has to give a place has a reason to put its newest first.
func (r *Room) victim(w *Waiter, free bool) *Waiter {
	if r.standing.is {
		r.turn()
	}
	tenant, own := r.loser(w, free)
	if tenant == 0 || r.tenants.all[tenant].back == nil {
		return nil
	}
	r.reasonIfStanding(tenant)
	if own && (free || !r.newestFirst(tenant)) {
		return nil
	}
	return r.last(tenant)
}

// loser returns which tenant has to give a place to w, and whether that is w's own.
// It is a tenant of the class that losingClass names. In that class, the user with the
// greatest load for its weight loses. Of that user's tenants, the one with the greatest
// load does.
func (r *Room) loser(w *Waiter, free bool) (tenant uint32, own bool) {
	losing := r.losingClass(w)
	c := &r.classes[losing]
	if losing != int(w.Class) {
		return r.worstTenant(c.longest[0]), false
	}
	turn := r.turns + 1
	if r.NewestFirst() {
		turn = -turn
	}
	user := r.users.find(w.User, uint32(losing))
	if load := r.userLoad(user) + cost(w)/w.UserWeight; !c.mustGo(r.users.spots, user, load, turn, free) {
		return r.worstTenant(c.longest[0]), false
	}
	if user == 0 || r.users.spots[user].longest == 0 {
		return 0, true
	}
	inner := &r.inner[user]
	tenant = r.tenants.find(w.Tenant, user)
	if load := r.tenantLoad(tenant) + cost(w)/w.TenantWeight; !inner.mustGo(r.tenants.spots, tenant, load, turn, free) {
		return r.worstTenant(user), false
	}
	return tenant, true
}

func (r *Room) worstTenant(user uint32) uint32 { return r.inner[user].longest[0] }

// mustGo reports whether flow own has to give a place, if a newcomer raises its load
// to load. own is 0 if the flow is unknown. A flow with one waiter has none to spare,
// whatever that one costs. Where all are like that, the flow whose turn comes last
// must give.
func (l *level) mustGo(fs []spot, own uint32, load float64, turn int32, free bool) bool {
	if len(l.longest) == 0 || l.longest[0] == own {
		return true
	}
	worst := l.longest[0]
	switch {
	case own != 0 && fs[own].longest != 0:
		return load >= fs[worst].load*(1-alike)
	case fs[worst].load > 0:
		return false
	}
	newcomer := entry{l.tag(fs, own), turn, own}
	return free || l.ready[fs[worst].ready-1].before(newcomer)
}

// alike is the part by which equal loads may differ through rounding.
const alike = 1e-9

// count counts a tenant's waiters, up to most.
func (r *Room) count(tenant uint32, most int) (n int) {
	if tenant == 0 || most <= 0 {
		return 0
	}
	back := r.tenants.all[tenant].back
	for at := back; at != nil && n < most; n++ {
		if at = at.next; at == back {
			at = nil
		}
	}
	return n
}

// A flow's load is the cost of its waiters, each divided by its weight. For a single
// waiter it is 0: one waiter is the least that a flow can have, and its cost is charged
// when it is served.

// leastLoad is the least load of more than one waiter, whatever rounding does.
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
	if user == 0 || r.users.spots[user].longest == 0 {
		return 0
	}
	if w := r.alone(user); w != nil {
		return cost(w) / w.UserWeight
	}
	return r.users.spots[user].load
}

// tenantLoad is a tenant's load, with a single waiter counted; 0 is nobody.
func (r *Room) tenantLoad(tenant uint32) float64 {
	if tenant == 0 || r.tenants.spots[tenant].longest == 0 {
		return 0
	}
	if w := r.aloneOf(tenant); w != nil {
		return cost(w) / w.TenantWeight
	}
	return r.tenants.spots[tenant].load
}

// The flow with the greatest load has to give a place when the room is full, so it
// stands at the root of a heap. Among equal loads it is the flow whose turn comes
// last.

// worse reports whether a would have to go before b.
func (l *level) worse(fs []spot, a, b uint32) bool {
	if fs[a].load != fs[b].load {
		return fs[a].load > fs[b].load
	}
	return l.ready[fs[b].ready-1].before(l.ready[fs[a].ready-1])
}

// weigh puts flow i where it belongs after its load or its tag has changed.
func (l *level) weigh(fs []spot, i uint32, most int) {
	if fs[i].longest == 0 {
		l.longest = append(extend(l.longest, most), i)
		fs[i].longest = uint32(len(l.longest))
	}
	if len(l.longest) > 1 {
		l.sift(fs, int(fs[i].longest-1))
	}
}

// unload removes flow i from the heap, because nobody of it waits.
func (l *level) unload(fs []spot, i uint32) {
	at, last := int(fs[i].longest-1), len(l.longest)-1
	fs[i].longest, fs[i].load = 0, 0
	moved := l.longest[last]
	l.longest = l.longest[:last]
	if at < last {
		l.longest[at] = moved
		fs[moved].longest = uint32(at + 1)
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
	fs[flow].longest = uint32(i + 1)
}
