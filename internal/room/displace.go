package room

// victim returns who has to go for w in a room that is full: the last of the
// lowest class below w's, or in w's own class the last of whoever has the greatest
// load, of the users first and then of that user's tenants. A newcomer counts as
// the last of its own tenant's. Where it would be the one to go it is refused,
// unless the newest goes first: then its tenant's oldest goes. A nil victim means
// that w is refused.
func (r *Room) victim(w *Waiter, newest bool) *Waiter {
	losing := r.outranked(w)
	c := &r.classes[losing]
	if losing != int(w.Class) {
		return r.last(r.worstTenant(c.longest[0]))
	}
	user := r.users.find(w.User, uint32(losing))
	units := float64(w.Units)
	if !c.mine(r.users.spots, user, units/w.UserWeight, newest) {
		return r.last(r.worstTenant(c.longest[0]))
	}
	if user == 0 || r.users.spots[user].longest == 0 {
		return nil
	}
	inner := &r.inner[user]
	tenant := r.tenants.find(w.Tenant, user)
	if !inner.mine(r.tenants.spots, tenant, units/w.TenantWeight, newest) {
		return r.last(r.worstTenant(user))
	}
	if newest && tenant != 0 && r.tenants.all[tenant].back != nil {
		return r.last(tenant)
	}
	return nil
}

func (r *Room) worstTenant(user uint32) uint32 { return r.inner[user].longest[0] }

// mine reports whether flow own, 0 if it is not known, would have the greatest
// load of the level with that much more. Among equals a newcomer to its flow is
// the last to come, and so the last to go if the newest goes first.
func (l *level) mine(fs []spot, own uint32, more float64, newest bool) bool {
	if len(l.longest) == 0 || l.longest[0] == own {
		return true
	}
	waits := own != 0 && fs[own].longest != 0
	if waits {
		more += fs[own].load
	}
	worst := fs[l.longest[0]].load
	if !waits && newest {
		return more > worst*(1+alike)
	}
	return more >= worst*(1-alike)
}

// alike is by how much of themselves loads differ that are the same but for
// rounding.
const alike = 1e-9

// newcomer reports whether nobody else of w's tenant waits.
func (r *Room) newcomer(w *Waiter) bool {
	user := r.users.find(w.User, uint32(w.Class))
	tenant := r.tenants.find(w.Tenant, user)
	return tenant == 0 || r.tenants.all[tenant].back == nil
}
