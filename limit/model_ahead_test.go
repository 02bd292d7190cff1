package limit

import "math"

// ahead is how many units the room says would be served before w if it came now and
// nobody after it: its own tenant's and those of higher classes as they are, of
// other tenants and users what starts before w by their tags, and what lower classes
// are guaranteed meanwhile.
func (m *model) ahead(w *modelWaiter) int64 {
	all := m.aheadInClass(w)
	above := m.units(func(o *modelWaiter) bool { return o.class > w.class })
	if share := m.shares[w.class]; share > 0 && above > 0 {
		all = min(all+above, (all+max(1, float64(w.units)))/share)
	} else {
		all += above
	}
	for class := range w.class {
		if share := m.shares[class]; share < 1 {
			all += min(m.units(func(o *modelWaiter) bool { return o.class == class }), all*share/(1-share))
		}
	}
	return int64(math.Round(all))
}

// aheadInClass is the same of the priority of w.
func (m *model) aheadInClass(w *modelWaiter) float64 {
	tenants, users, tw, uw := m.levels(w)
	units := m.aheadInTenant(w)
	start := tenants.tag(w.tenant) + units/tw
	for tenant, f := range tenants.flows {
		if tenant != w.tenant && f.waits > 0 {
			_, weight := m.weightsOf(w.user, tenant)
			units += m.startsBefore(start, f, weight, m.oneOf(w.class, w.user, tenant), func(o *modelWaiter) bool {
				return o.class == w.class && o.user == w.user && o.tenant == tenant
			})
		}
	}
	start = users.tag(w.user) + units/uw
	for user, f := range users.flows {
		if user != w.user && f.waits > 0 {
			weight, _ := m.weightsOf(user, "")
			next := m.users[modelUser{w.class, user}].next()
			units += m.startsBefore(start, f, weight, m.oneOf(w.class, user, next), func(o *modelWaiter) bool {
				return o.class == w.class && o.user == user
			})
		}
	}
	return units
}

// aheadInTenant is the same of the tenant of w.
func (m *model) aheadInTenant(w *modelWaiter) float64 {
	switch {
	case m.order == EDF:
		return m.units(func(o *modelWaiter) bool { return o.name(true) == w.name(true) && o.by() <= w.by() })
	case m.newestOf(w):
		return 0
	}
	return m.units(func(o *modelWaiter) bool { return o.name(true) == w.name(true) })
}

// startsBefore is how many of a flow's units are served before a tag: no more than
// it has waiting, of which first, the number of a waiter, goes whole.
func (m *model) startsBefore(tag float64, f *modelFlow, weight float64, first int, of func(*modelWaiter) bool) float64 {
	ahead := tag - f.tag
	if ahead < 0 || ahead == 0 && m.newestFirst() {
		return 0
	}
	return min(m.units(of), ahead*weight+float64(m.waiting[first].units))
}

// units adds up what waits of some.
func (m *model) units(of func(*modelWaiter) bool) (sum float64) {
	for i := range m.waiting {
		if of(&m.waiting[i]) {
			sum += float64(m.waiting[i].units)
		}
	}
	return sum
}

// tag is a flow's, or where it would start if it came now.
func (l *modelLevel) tag(name string) float64 {
	if f := l.flows[name]; f != nil {
		return f.tag
	}
	return l.now
}
