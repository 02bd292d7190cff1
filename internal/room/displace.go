package room

// victim returns who has to go for w in a room that is full: the last of the tenant
// that has to give a place (loser). w counts as the last of its own tenant's. Where
// that is the one to go w is refused, unless its tenant's newest goes first: then
// its oldest goes. A nil victim means that w is refused, or has a place of its own
// if it has one by right (free). In a queue that stands a tenant has a reason to put
// its newest first as soon as it has to give a place.
func (r *Room) victim(w *Waiter, free bool) *Waiter {
	if r.standing.is {
		r.turn()
	}
	tenant, own := r.loser(w, free)
	if tenant == 0 || r.tenants.all[tenant].back == nil {
		return nil
	}
	r.crowded(tenant)
	if own && (free || !r.newestFirst(tenant)) {
		return nil
	}
	return r.last(tenant)
}

// loser returns which tenant has to give a place to w, and whether that is w's own:
// one of the lowest class below w's, or in w's own class the one with the greatest
// load, of the users first and then of that user's tenants.
func (r *Room) loser(w *Waiter, free bool) (tenant uint32, own bool) {
	losing := r.outranked(w)
	c := &r.classes[losing]
	if losing != int(w.Class) {
		return r.worstTenant(c.longest[0]), false
	}
	turn := r.turns + 1
	if r.NewestFirst() {
		turn = -turn
	}
	user := r.users.find(w.User, uint32(losing))
	if load := r.userLoad(user) + cost(w)/w.UserWeight; !c.mine(r.users.spots, user, load, turn, free) {
		return r.worstTenant(c.longest[0]), false
	}
	if user == 0 || r.users.spots[user].longest == 0 {
		return 0, true
	}
	inner := &r.inner[user]
	tenant = r.tenants.find(w.Tenant, user)
	if load := r.tenantLoad(tenant) + cost(w)/w.TenantWeight; !inner.mine(r.tenants.spots, tenant, load, turn, free) {
		return r.worstTenant(user), false
	}
	return tenant, true
}

func (r *Room) worstTenant(user uint32) uint32 { return r.inner[user].longest[0] }

// mine reports whether flow own, 0 if it is not known, is the one to go with a
// newcomer that makes its load so much. Whoever has one waiter only has none to
// spare, whatever it costs; where nobody has, it is a matter of whose turn would
// come last.
func (l *level) mine(fs []spot, own uint32, load float64, turn int32, free bool) bool {
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

// alike is by how much of themselves loads differ that are the same but for
// rounding.
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

// A flow's load says how much it has waiting for its weight: each waiter's cost by
// its weight, but 0 for a single waiter. Whoever has one waiter has the least that
// it can, so it has a load of none, and what that one costs counts against it when
// it is served.

// leastLoad is what rounding leaves of the load of more than one at least.
const leastLoad = 1. / maxWeight

// alone returns a user's waiter if it has one only.
func (r *Room) alone(user uint32) *Waiter {
	inner := &r.inner[user]
	if len(inner.longest) != 1 {
		return nil
	}
	return r.aloneOf(inner.longest[0])
}

// aloneOf returns a tenant's waiter if it has one only.
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

// Who has to go when a level is too full is the last of the flow with the
// greatest load, kept at the root of a heap. Among equal loads it is the flow
// whose turn comes last, so that among flows of one waiter each the last waiter is
// the last.

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

// unload takes flow i out: nobody of it waits.
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
