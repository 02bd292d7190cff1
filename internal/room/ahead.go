package room

import (
	"math"
)

// Ahead estimates how many units would be served before w if it came now and
// nobody after it. What is in front of it at its own tenant, and in higher
// classes, is exact; what other tenants and users get meanwhile is computed from
// their tags for up to 32 of them, and from a sample of 32 if there are more.
func (r *Room) Ahead(w *Waiter) int64 {
	if len(r.expiry) == 0 {
		return 0
	}
	class := max(0, min(w.Class, Classes-1))
	c := &r.classes[class]
	units := 0.
	if c.n > 0 {
		user := r.users.find(w.User, uint32(class))
		if user != 0 {
			units = r.within(w, user)
		}
		start := c.tag(r.users.spots, user) + units/weight(w.UserWeight)
		units += r.sample(&c.level, &r.users, user, start)
	}
	return int64(math.Round(min(r.otherClasses(w, int(class), units), math.MaxInt64/2)))
}

// within is how many units of the same user would be served before w.
func (r *Room) within(w *Waiter, user uint32) float64 {
	inner, units := &r.inner[user], 0.
	tenant := r.tenants.find(w.Tenant, user)
	if tenant != 0 {
		units = r.queue(w, tenant)
	}
	start := inner.tag(r.tenants.spots, tenant) + units/weight(w.TenantWeight)
	return units + r.sample(inner, &r.tenants, tenant, start)
}

// queue is how many units of the same tenant would be served before w.
func (r *Room) queue(w *Waiter, tenant uint32) float64 {
	back := r.tenants.all[tenant].back
	switch {
	case back == nil || r.newestFirst(tenant):
		return 0
	case r.order == EDF:
		return float64(r.deadlines.before(back, w))
	}
	return r.tenantLoad(tenant) * back.TenantWeight
}

// sample sums what the flows of a level but own have waiting that starts before a
// tag. Who has most is always among those it looks at.
func (r *Room) sample(l *level, f *flows, own uint32, start float64) float64 {
	const most = 32
	if len(l.longest) == 0 {
		return 0
	}
	units, others := r.served(l, f, 0, own, start), len(l.longest)-1
	looked, sum := min(others, most), 0.
	for k := range looked {
		sum += r.served(l, f, 1+(2*k+1)*others/(2*looked), own, start)
	}
	if looked < others {
		sum *= float64(others) / most
	}
	return units + sum
}

// served is how many of its units the flow at i of a level's heap of loads is
// served before a tag.
func (r *Room) served(l *level, f *flows, i int, own uint32, before float64) float64 {
	flow := l.longest[i]
	ahead := before - l.tag(f.spots, flow)
	if flow == own || ahead < 0 || ahead == 0 && r.NewestFirst() {
		return 0
	}
	var weight, load float64
	tenant := flow
	if f == &r.users {
		inner := &r.inner[flow]
		weight, load, tenant = inner.weight, r.userLoad(flow), inner.ready[0].flow
	}
	w := r.first(tenant)
	if f == &r.tenants {
		weight, load = w.TenantWeight, r.tenantLoad(flow)
	}
	return min(load*weight, ahead*weight+cost(w))
}

// otherClasses adds what higher classes have waiting, and what lower ones are
// guaranteed meanwhile.
func (r *Room) otherClasses(w *Waiter, class int, units float64) float64 {
	above := 0.
	for i := class + 1; i < Classes; i++ {
		above += float64(r.classes[i].units)
	}
	all := units + above
	if share := r.classes[class].share; share > 0 && above > 0 {
		all = min(all, (units+cost(w))/share)
	}
	for i := range class {
		if c := &r.classes[i]; c.n > 0 && c.share < 1 {
			all += min(float64(c.units), all*c.share/(1-c.share))
		}
	}
	return all
}

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
