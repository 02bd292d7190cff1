package room

import (
	"math"
)

// Ahead estimates how many units would be served before w if it came now and nobody
// after it. It is exact for w's own tenant and for higher classes. For other tenants
// and users it is computed from their tags, for a sample of 32 if there are more.
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

// within returns how many units of the same user would be served before w.
func (r *Room) within(w *Waiter, user uint32) float64 {
	inner, units := &r.inner[user], 0.
	tenant := r.tenants.find(w.Tenant, user)
	if tenant != 0 {
		units = r.queue(w, tenant)
	}
	start := inner.tag(r.tenants.spots, tenant) + units/weight(w.TenantWeight)
	return units + r.sample(inner, &r.tenants, tenant, start)
}

// queue returns how many units of the same tenant would be served before w.
func (r *Room) queue(w *Waiter, tenant uint32) float64 {
	back := r.tenants.all[tenant].back
	switch {
	case back == nil || r.reversed(tenant):
		return 0
	case r.order == EDF:
		return float64(r.deadlines.before(back, w))
	}
	return r.tenantLoad(tenant) * back.TenantWeight
}

// sample estimates the units waiting in other flows that start before tag start. The flow with most waiting is always in the sample.
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

// served returns how many units of flow i, in a level's heap of loads, are served
// before a tag.
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

// otherClasses adds what waits in higher classes, and the shares that lower ones are
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
