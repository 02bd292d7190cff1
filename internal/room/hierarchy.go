package room

import "math"

// The hierarchy is waiters of tenants of users of classes. What a waiter changes
// at one level it changes at those above.

// next returns the tenant that goes next in a class that somebody waits in.
func (r *Room) next(class int) uint32 {
	return r.inner[r.classes[class].ready[0].flow].ready[0].flow
}

// head returns who goes next in a class that somebody waits in.
func (r *Room) head(class int) *Waiter { return r.first(r.next(class)) }

// enter adds w to its tenant, that to its user, and that to its class. Among equal
// tags newcomers go behind, or before the others where the newest goes first, as
// it does among a tenant's waiters; not though where so many pass through that the
// room cannot remember them, or those who come back would never have a turn. It
// reports whether nobody waited of whoever answers for it (see answering).
func (r *Room) enter(w *Waiter) (first bool) {
	c, turn := &r.classes[w.Class], r.take()
	user := r.user(w.User, int(w.Class))
	w.flow = r.tenants.get(w.Tenant, user, r.size)
	ofUser, ofTenant := r.userLoad(user), r.tenantLoad(w.flow)
	r.link(w)
	if r.NewestFirst() && r.users.idle+r.tenants.idle < r.memory() {
		turn = -turn
	}
	inner := &r.inner[user]
	r.join(inner, &r.tenants, w.flow, ofTenant+cost(w)/w.TenantWeight, turn)
	inner.weight = w.UserWeight
	r.join(&c.level, &r.users, user, ofUser+cost(w)/w.UserWeight, turn)
	c.n++
	c.units += w.Units
	r.units += w.Units
	if w.User != "" {
		return ofUser == 0
	}
	return ofTenant == 0
}

// user returns the user of that name in a class, known or new.
func (r *Room) user(name string, class int) uint32 {
	i := r.users.get(name, uint32(class), r.size)
	if int(i) == len(r.inner) {
		r.inner = append(extend(r.inner, cap(r.users.spots)), level{})
	} else if len(r.inner) == 0 {
		r.inner = make([]level, i+1, cap(r.users.spots))
	}
	return i
}

// take draws the next turn among equal tags.
func (r *Room) take() int32 {
	if r.turns++; r.turns == math.MaxInt32 {
		r.turns = 1
	}
	return r.turns
}

// memory is how many users, and how many tenants, the room remembers of whom nobody
// waits.
func (r *Room) memory() int { return max(64, r.size) }

// join is told of a flow's newcomer, and what its load is then if it is not alone.
func (r *Room) join(l *level, f *flows, i uint32, load float64, turn int32) {
	at := &f.spots[i]
	if at.longest != 0 {
		at.load = load
	} else {
		if at.ready != 0 {
			f.idle--
		}
		l.join(f.spots, i, turn, r.size)
	}
	l.weigh(f.spots, i, r.size)
}

// charge enters that w is served.
func (r *Room) charge(w *Waiter) {
	if !w.Queued() {
		return
	}
	r.account(w)
	units, turn := cost(w), r.take()
	r.usual.add(units)
	behind := credit * float64(r.usual)
	user := r.tenants.all[w.flow].in
	r.inner[user].charge(r.tenants.spots, w.flow, units/w.TenantWeight, turn, behind)
	r.classes[w.Class].charge(r.users.spots, user, units/w.UserWeight, turn, behind)
}

// leave is the reverse of enter.
func (r *Room) leave(w *Waiter) {
	c, user, tenant := &r.classes[w.Class], r.tenants.all[w.flow].in, w.flow
	inner := &r.inner[user]
	r.unlink(w)
	load, last := 0., r.tenants.all[tenant].back == nil
	if !last && r.aloneOf(tenant) == nil {
		load = max(leastLoad, r.tenants.spots[tenant].load-cost(w)/w.TenantWeight)
	}
	r.part(inner, &r.tenants, tenant, load, last)
	load, last = 0, len(inner.longest) == 0
	if !last && r.alone(user) == nil {
		load = max(leastLoad, r.users.spots[user].load-cost(w)/w.UserWeight)
	}
	r.part(&c.level, &r.users, user, load, last)
	c.units -= w.Units
	r.units -= w.Units
	c.n--
}

// part is told that a waiter has left a flow, and what its load is now. It takes
// the flow out of its level if that was its last. Its tag is kept while it is ahead
// of virtual time: whoever came back before that would otherwise go before its turn.
// To forget one that is not ahead changes nothing.
func (r *Room) part(l *level, f *flows, i uint32, load float64, gone bool) {
	at := &f.spots[i]
	if !gone {
		at.load = load
		l.weigh(f.spots, i, r.size)
		r.sweep(l, f) // if it was served, its tag may have passed that of one nobody waits of
		return
	}
	l.unload(f.spots, i)
	e := l.ready.drop(f.spots, i)
	switch {
	case len(l.ready) == 0:
		r.forget(f, i)
	case e.tag > l.now && f.idle < r.memory():
		l.idle.push(f.spots, e, r.memory())
		f.idle++
	default:
		r.forget(f, i)
		l.now = max(l.now, min(e.tag, l.ready[0].tag)) // as if the forgotten tag were past
	}
	r.sweep(l, f)
}

// sweep forgets those with nobody waiting that virtual time has passed. A level in
// which nobody waits has no memory.
func (r *Room) sweep(l *level, f *flows) {
	passed := l.now
	if len(l.longest) == 0 {
		passed, l.now = math.Inf(1), 0
	}
	for len(l.idle) > 0 && l.idle[0].tag <= passed {
		e := l.idle.drop(f.spots, l.idle[0].flow)
		f.idle--
		r.forget(f, e.flow)
	}
}

// forget gives up a flow. A user's level is used again by another, but what many
// tenants have made it grow to is given back.
func (r *Room) forget(f *flows, i uint32) {
	f.drop(i)
	if f == &r.users && max(cap(r.inner[i].ready), cap(r.inner[i].idle)) > 64 {
		r.inner[i] = level{}
	}
}
