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
