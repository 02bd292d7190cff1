package room

import (
	"math"
	"time"
)

// Ahead estimates how many units would be served before w if it came now. Of work that
// comes later it counts that of higher classes, as much as came of late; see Crowd.
// What waits is exact for w's own tenant and for higher classes. For other tenants
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
	return int64(math.Round(min(r.otherClasses(cost(w), int(class), units), math.MaxInt64/2)))
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
	units, others := r.unitsBefore(l, f, 0, own, start), len(l.longest)-1
	looked, sum := min(others, most), 0.
	for k := range looked {
		sum += r.unitsBefore(l, f, 1+(2*k+1)*others/(2*looked), own, start)
	}
	if looked < others {
		sum *= float64(others) / most
	}
	return units + sum
}

// unitsBefore returns how many units of flow i, in a level's heap of loads, are served
// before a tag.
func (r *Room) unitsBefore(l *level, f *flows, i int, own uint32, before float64) float64 {
	flow := l.longest[i]
	ahead := before - l.tag(f.spots, flow)
	if flow == own || ahead < 0 || ahead == 0 && r.turned() {
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

// Above is Ahead in the best order of w's class: of that itself nothing is served before.
func (r *Room) Above(w *Waiter) int64 {
	if len(r.expiry) == 0 {
		return 0
	}
	class := int(max(0, min(w.Class, Classes-1)))
	return int64(math.Round(min(r.otherClasses(cost(w), class, 0), math.MaxInt64/2)))
}

// AheadOf estimates how many units would be served before one unit of a class that is
// last of its class. [Unwaiting] is behind all who wait, and all who come.
func (r *Room) AheadOf(class int) float64 {
	if len(r.expiry) == 0 {
		return 0
	}
	units := 1.
	if class >= 0 {
		units += float64(r.classes[class].units)
	}
	return r.otherClasses(1, class, units) - 1
}

// Unwaiting is the class of work that does not wait: it gets a slot if nobody waits.
const Unwaiting = -1

// otherClasses adds what waits in higher classes, what will come there meanwhile, and
// the shares that lower ones are guaranteed. units are those of the class itself.
func (r *Room) otherClasses(cost float64, class int, units float64) float64 {
	above := 0.
	for i := class + 1; i < Classes; i++ {
		above += float64(r.classes[i].units)
	}
	all := units + above
	if d := &r.standing.demand; !d.starves(class) {
		all /= 1 - min(d.above(class), starving)
	}
	if class < 0 {
		return all
	}
	if share := r.classes[class].share; share > 0 && all > units {
		all = min(all, (units+cost)/share)
	}
	for i := range class {
		if c := &r.classes[i]; c.n > 0 && c.share < 1 {
			all += min(float64(c.units), all*c.share/(1-c.share))
		}
	}
	return all
}

// Crowd estimates how many come to a class for each one of it that is served, and since
// when that is more than one. It is infinite if higher classes take all that is served: how
// long a class then waits does not follow from what waits now.
func (r *Room) Crowd(now time.Duration, class int) (times float64, lasted time.Duration) {
	s := &r.standing
	if len(r.expiry) == 0 || s.demand.fed[class+1] == s.from {
		return 1, 0
	}
	times = s.demand.crowd(class)
	if class >= 0 && r.classes[class].share > 0 {
		times = s.demand.rush(class)
	}
	return times, now - s.demand.fed[class+1]
}

// demand is what came of late, and what was served, by class and in units. Older counts
// fade as in standing. The first interval of a queue says nothing here either: a burst
// may be over.
type demand struct {
	came, went [Classes]float64
	served     float64                    // waiters
	fed        [Classes + 1]time.Duration // when all that came to a class could be served, by class + 1
}

// starving is the part of what is served that, if higher classes take it, may be all, as
// far as counts tell. Near the capacity it is that also if little comes to the others.
const starving = 0.95

// starves reports whether higher classes leave nothing for one, or for less than half of
// what comes to it.
func (d *demand) starves(class int) bool {
	return d.above(class) >= starving && (class < 0 || d.went[class] < d.came[class]/2)
}

// above returns which part of what is served goes to classes above one. That is what
// comes there. It is at most what was served of them: the rest was refused.
func (d *demand) above(class int) float64 {
	if d.served < fewest {
		return 0
	}
	came, went := 0., 0.
	for i := class + 1; i < Classes; i++ {
		came += d.came[i]
		went += d.went[i]
	}
	return min(came, went) / d.units()
}

// crowd is Room.Crowd for a class without a guarantee.
func (d *demand) crowd(class int) float64 {
	if d.starves(class) {
		return math.Inf(1)
	}
	return d.rush(class)
}

// rush is how many came to a class for each one of it that was served, as far as that is
// more than chance.
func (d *demand) rush(class int) float64 {
	if class < 0 || d.served < fewest {
		return 1
	}
	mean := d.units() / d.served
	more := d.came[class] - d.went[class] - 2*math.Sqrt(mean*(d.came[class]+d.went[class]))
	return 1 + max(0, more)/(d.went[class]+few*mean)
}

// few is so many served that a class counts as served at all.
const few = 4

func (d *demand) units() (sum float64) {
	for _, units := range d.went {
		sum += units
	}
	return sum
}

// endInterval closes an interval.
func (d *demand) endInterval(now time.Duration) {
	for class := Unwaiting; class < Classes; class++ {
		if d.crowd(class) == 1 {
			d.fed[class+1] = now
		}
	}
	d.served *= fading
	for i := range Classes {
		d.came[i] *= fading
		d.went[i] *= fading
	}
}
