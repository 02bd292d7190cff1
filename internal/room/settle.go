package room

import "math"

// Settle corrects what a tenant of a user in a class was charged, once it is known
// what its work has really taken: by units, which may be negative and need not be
// whole. It goes earlier
// or later for it from now on, by its weight. A user that has gone below virtual
// time starts there, and a class that nobody waits in has no account to settle.
func (r *Room) Settle(class int, user, tenant string, units float64) {
	if class < 0 || class >= Classes || units == 0 || math.IsNaN(units) {
		return
	}
	c := &r.classes[class]
	if c.n == 0 {
		return
	}
	by := max(-maxUnits, min(units, maxUnits))
	ofUser, ofTenant := 1., 1.
	if r.weights != nil {
		ofUser, ofTenant = r.weights(user, tenant)
	}
	u := r.users.find(user, uint32(class))
	if u != 0 && len(r.inner[u].longest) > 0 {
		inner := &r.inner[u]
		ofUser = inner.weight
		if t := r.tenants.find(tenant, u); t != 0 && r.tenants.all[t].back != nil {
			ofTenant = r.tenants.all[t].back.TenantWeight
		}
		r.correct(inner, &r.tenants, tenant, u, by/weight(ofTenant))
	}
	r.correct(&c.level, &r.users, user, uint32(class), by/weight(ofUser))
}

// correct moves the tag of the flow of that name.
func (r *Room) correct(l *level, f *flows, name string, in uint32, by float64) {
	i := f.find(name, in)
	if i == 0 {
		if by < 0 || f.idle >= r.memory() {
			return
		}
		if f == &r.users {
			i = r.user(name, int(in))
		} else {
			i = f.get(name, in, r.size)
		}
		f.idle++
		l.idle.push(f.spots, entry{l.now, r.take(), i}, r.memory())
	}
	e, heap := l.at(f.spots, i)
	e.tag = max(l.now, e.tag+by)
	heap.settle(f.spots, int(f.spots[i].ready-1))
	if f.spots[i].longest != 0 {
		l.weigh(f.spots, i, r.size)
	}
	r.sweep(l, f)
}

// Reweigh changes the weights of those that wait. How many units each is ahead of
// who goes next stays: charged by a small weight, they would be a debt for ages under
// a large one. weights is kept, and asked by Settle for who does not wait.
func (r *Room) Reweigh(weights func(user, tenant string) (userWeight, tenantWeight float64)) {
	r.weights = weights
	if weights == nil {
		return
	}
	for _, w := range r.expiry {
		ofTenant := w.TenantWeight
		w.UserWeight, w.TenantWeight = weights(w.User, w.Tenant)
		w.tidy()
		user := r.tenants.all[w.flow].in
		if inner := &r.inner[user]; r.tenants.all[w.flow].back == w {
			inner.rescale(r.tenants.spots, w.flow, ofTenant/w.TenantWeight)
		}
		if ofUser := r.inner[user].weight; ofUser > 0 {
			r.classes[w.Class].rescale(r.users.spots, user, ofUser/w.UserWeight)
		}
		r.inner[user].weight = w.UserWeight
		r.users.spots[user].load, r.tenants.spots[w.flow].load = 0, 0
	}
	for _, w := range r.expiry {
		user := r.tenants.all[w.flow].in
		if r.alone(user) == nil {
			r.users.spots[user].load += cost(w) / w.UserWeight
		}
		if r.aloneOf(w.flow) == nil {
			r.tenants.spots[w.flow].load += cost(w) / w.TenantWeight
		}
	}
	for i := range r.classes {
		c := &r.classes[i]
		c.reweigh(r.users.spots)
		for _, user := range c.longest {
			r.inner[user].reweigh(r.tenants.spots)
		}
	}
}

// rescale keeps the units that flow i, for which somebody waits, is ahead of who
// goes next when its weight changes; tags are units divided by weights. Who goes
// next stays.
func (l *level) rescale(fs []spot, i uint32, by float64) {
	if by == 1 {
		return
	}
	e, heap := l.at(fs, i)
	least := heap[0].tag
	e.tag = least + (e.tag-least)*by
	heap.settle(fs, int(fs[i].ready-1))
}

// reweigh makes the heap of loads anew.
func (l *level) reweigh(fs []spot) {
	for i := len(l.longest) - 1; i >= 0; i-- {
		l.sift(fs, i)
	}
}
