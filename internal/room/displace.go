package room

// victim returns the waiter that loses its place to w. nil: nobody does; w is refused, or
// if spare takes a place held open for small tenants. If w's own tenant must give, w is
// refused, unless its newest is served first: then its oldest loses. In a standing queue
// this turns the room and marks the losing tenant.
func (r *Room) victim(w *Waiter, spare bool) *Waiter {
	if r.standing.is {
		r.putNewestFirst()
	}
	tenant, own := r.loser(w, spare)
	if tenant == 0 || r.tenants.all[tenant].back == nil {
		return nil
	}
	r.markIfStanding(tenant)
	if own && (spare || !r.reversed(tenant)) {
		return nil
	}
	return r.last(tenant)
}

// loser returns which tenant has to give a place to w, and whether that is w's own.
// It is a tenant of the class that losingClass names. In that class, the user with the
// greatest load loses. Of that user's tenants, the one with the greatest load does.
func (r *Room) loser(w *Waiter, spare bool) (tenant uint32, own bool) {
	losing := r.losingClass(w)
	c := &r.classes[losing]
	if losing != int(w.Class) {
		return r.worstTenant(c.longest[0]), false
	}
	tie := r.ties + 1
	if r.newcomersFirst() {
		tie = -tie
	}
	user := r.users.find(w.User, uint32(losing))
	if load := r.userLoad(user) + cost(w)/w.UserWeight; !c.mustGive(r.users.spots, user, load, tie, spare) {
		return r.worstTenant(c.longest[0]), false
	}
	if user == 0 || r.users.spots[user].loadAt == 0 {
		return 0, true
	}
	inner := &r.inner[user]
	tenant = r.tenants.find(w.Tenant, user)
	if load := r.tenantLoad(tenant) + cost(w)/w.TenantWeight; !inner.mustGive(r.tenants.spots, tenant, load, tie, spare) {
		return r.worstTenant(user), false
	}
	return tenant, true
}

func (r *Room) worstTenant(user uint32) uint32 { return r.inner[user].longest[0] }

// losingClass returns the class that has to give a place to w. It is the lowest class
// below w's that has more than its reserved places. If w's class has fewer than those,
// classes above it count too. If there is no such class, it is w's own.
func (r *Room) losingClass(w *Waiter) int {
	own := int(w.Class)
	below := own
	if r.classes[own].n < r.reserved(own) {
		below = Classes
	}
	for i := range below {
		if i != own && r.classes[i].n > r.reserved(i) {
			return i
		}
	}
	return own
}

// reserved returns how many places only this class may fill: its share of them. At least 1, if
// a place is left when each class with a share has one. Otherwise low classes would withhold a
// small room from all above them.
func (r *Room) reserved(class int) int {
	share, places := r.classes[class].share, r.places()
	n := int(share * float64(places))
	if n > 0 || share == 0 {
		return n
	}
	all := 0
	for i := range r.classes {
		if s := r.classes[i].share; s > 0 {
			all += max(1, int(s*float64(places)))
		}
	}
	if all < places {
		return 1
	}
	return 0
}

// mustGive reports whether flow own has to give a place, if a newcomer raises its load
// to load. own is 0 if the flow is unknown. A flow with one waiter has none to spare,
// whatever that one costs. Where all are like that, the flow that is served last must
// give a place, unless there is a spare one.
func (l *level) mustGive(fs []spot, own uint32, load float64, tie int32, spare bool) bool {
	if len(l.longest) == 0 || l.longest[0] == own {
		return true
	}
	worst := l.longest[0]
	switch {
	case own != 0 && fs[own].loadAt != 0:
		return load >= fs[worst].load*(1-alike)
	case fs[worst].load > 0:
		return false
	}
	newcomer := entry{l.tag(fs, own), tie, own}
	return spare || l.ready[fs[worst].tagAt-1].before(newcomer)
}

// alike is the part by which equal loads may differ through rounding.
const alike = 1e-9

// waiters counts a tenant's waiters, up to most.
func (r *Room) waiters(tenant uint32, most int) (n int) {
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
