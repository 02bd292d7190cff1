package room

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
