package limit

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// model is the gate as one would write it in ten minutes: lists, no fast path,
// everything looked up by walking. It says what must happen. Only what the gate
// has measured, how fast slots come back and how long work takes, it takes from
// the gate; that has tests of its own.
type model struct {
	limit  int64
	places int
	order  Order
	closed bool

	flying  map[int]int64 // cost charged by work id
	waiting []modelWaiter // oldest first
	queue   modelQueue
	modelFair

	// Who has to go among many is decided by rules that are held elsewhere: this
	// says who went.
	displaced func(w *modelWaiter) (out int, in bool)
	// How many times its cost work is charged in advance is a guess, which has
	// tests of its own. It is negative for work that has no account.
	expected func(id int) float64
	charged  map[int]int64 // by work id: the cost that its account has

	// What happened to each piece of work: "" while it waits.
	fate map[int]string
	// How often each rule of the wait room was in force.
	seen map[string]int
}

type modelWaiter struct {
	id                 int
	class              int
	user, tenant       string
	cost, units        int64
	patience, deadline time.Duration // 0: no deadline
	expires            time.Duration
	arrived            time.Duration
	outOf              string
}

// modelQueue is what is known of a queue since it began.
type modelQueue struct {
	interval       time.Duration
	service        time.Duration
	keep           int
	from           time.Duration
	intervals      int
	came, served   int
	cameOf         [4]int  // of those that came, by class
	cut            [4]bool // classes that come, with those above, faster than anything is served
	down           [2]int  // the lowest class that was served in turn, in this interval and in the one before; 4: none
	firsts         int     // those that came of whom nobody waited
	many           bool    // these alone come faster
	stands, newest bool
	recent         [2]float64 // came and served, as far as it counts
	hope           int        // how many have a chance while it stands
	demand         modelDemand
	turned         int
	deserted       bool          // somebody left of itself
	left           time.Duration // when
}

// modelDemand is what came and was served of late by class, in units, after the first interval.
type modelDemand struct {
	came, went [4]float64
	served     float64
	fed        [4]time.Duration // when a class last had nothing to complain of
}

// above is the part of what is served that goes to classes above one and was asked for there.
func (d *modelDemand) above(class int) float64 {
	if d.served < 8 {
		return 0
	}
	var came, above, went float64
	for i := range 4 {
		went += d.went[i]
		if i > class {
			came += d.came[i]
			above += d.went[i]
		}
	}
	return min(came, above) / went
}

// starves reports whether nearly all that is served is above a class, and little of its own.
func (d *modelDemand) starves(class int) bool {
	return d.above(class) >= 0.95 && d.went[class] < d.came[class]/2
}

// fares reports whether all that comes to a class is served, but for what is chance.
func (d *modelDemand) fares(class int) bool {
	if d.served < 8 {
		return true
	}
	var went float64
	for _, units := range d.went {
		went += units
	}
	excess := d.came[class] - d.went[class]
	return !d.starves(class) && excess <= 2*math.Sqrt(went/d.served*(d.came[class]+d.went[class]))
}

func (m *model) inFlight() (n int64) {
	for _, cost := range m.flying {
		n += cost
	}
	return n
}

// arrive reports whether the gate has taken a look at its room.
func (m *model) arrive(now time.Duration, w modelWaiter, waits bool, rate float64, median time.Duration) (looked bool) {
	busy := len(m.waiting) > 0
	full := busy && m.atAGlance(&w, len(m.waiting), m.places)
	switch {
	case w.cost < 0:
		m.fate[w.id] = "too_large"
		return false
	case m.closed:
		m.fate[w.id] = "draining"
	case !busy && m.inFlight()+min(w.cost, m.limit) <= m.limit:
		m.flying[w.id] = min(w.cost, m.limit)
		m.fate[w.id] = "admitted"
	case !waits:
		m.fate[w.id] = "limit"
		return !busy
	case full:
		m.fate[w.id] = m.noPlace() // at a glance
		return false
	default:
		m.wait(now, w, rate, median)
	}
	return true
}

func (m *model) wait(now time.Duration, w modelWaiter, rate float64, median time.Duration) {
	q := &m.queue
	q.interval, q.service, q.keep = 100*time.Millisecond, median, 0
	if rate > 0 {
		q.interval = min(max(q.interval, time.Duration(64/rate*float64(time.Second))), 10*time.Second)
		q.keep = 64
	}
	if len(m.waiting) == 0 && !(q.stands && now < q.from+2*q.interval) {
		*q = modelQueue{interval: q.interval, service: q.service, keep: q.keep, from: now, down: [2]int{4, 4}, deserted: q.deserted, left: q.left, demand: modelDemand{fed: [4]time.Duration{now, now, now, now}}}
	}
	m.look(now)
	q.came++
	q.cameOf[w.class]++
	if q.intervals > 0 {
		q.demand.came[w.class] += max(1, float64(w.units))
	}

	w.expires, w.outOf = w.patience, "queue_timeout"
	if last := w.deadline; last > 0 {
		if last-median > now {
			last -= median
		}
		if last < w.expires {
			w.expires, w.outOf = last, "deadline"
		}
	}
	if why := m.inVain(now, w, rate, median, m.ahead(&w)); why != "" {
		anyway := m.inVain(now, w, rate, median, m.withOthers(&w, 0)) != "" // in any order of its class
		if anyway {
			m.seen["late in any order"]++
		} else {
			m.turn()
			m.reason(&w)
		}
		if anyway || m.order != Adaptive || m.inVain(now, w, rate, median, m.ahead(&w)) != "" {
			m.fate[w.id] = why
			m.seen["refused on arrival: "+why]++
			return
		}
	}
	places := m.places
	if q.cut[w.class] && (q.many || m.answering(&w) >= 3) {
		places = m.size()
	}
	m.meets(&w)
	if len(m.waiting) >= places {
		if m.places > 0 && q.stands {
			m.turn()
		}
		out, in := 0, m.places > 0 && m.newestFirst() // the oldest goes, or the newcomer
		if m.places > 0 && m.displaced != nil {
			out, in = m.displaced(&w)
		}
		if q.stands && out >= 0 {
			m.reason(&m.waiting[out])
		} else if q.stands && m.waits(&w) {
			m.reason(&w)
		}
		if !in {
			if m.places > 0 && q.stands {
				m.giver(&w)
			}
			m.fate[w.id] = m.noPlace()
			return
		}
		if out >= 0 {
			m.seen["displaced"]++
			m.fate[m.waiting[out].id] = "queue_full"
			m.leave(out)
		}
	}
	m.enter(w)
}

func (m *model) meets(w *modelWaiter) {
	if m.answering(w) == 0 {
		m.queue.firsts++
	}
}

// answering counts the waiters of w's user, or of its tenant if that has no name.
func (m *model) answering(w *modelWaiter) (n int) {
	for i := range m.waiting {
		o := &m.waiting[i]
		if o.class == w.class && o.user == w.user && (w.user != "" || o.tenant == w.tenant) {
			n++
		}
	}
	return n
}

// size is how many may wait now.
func (m *model) size() int {
	if q := &m.queue; m.order == Adaptive && q.stands && q.keep > 0 {
		for _, w := range m.waiting { // one tenant's work only is cut to what has a chance
			if first := m.waiting[0]; w.class != first.class || w.user != first.user || w.tenant != first.tenant {
				return min(m.places, q.keep)
			}
		}
		return min(m.places, q.keep, q.hope)
	}
	return m.places
}

// noPlace is why work finds no place to wait: without a room, for want of a slot.
func (m *model) noPlace() string {
	if m.places == 0 {
		return "limit"
	}
	return "queue_full"
}

// inVain says why w cannot be served in time, if anything is known of it.
func (m *model) inVain(now time.Duration, w modelWaiter, rate float64, median time.Duration, ahead int64) string {
	if rate == 0 || len(m.waiting) == 0 {
		return ""
	}
	if ahead == 0 && !m.newestFirst() {
		return ""
	}
	turn := now + time.Duration(float64(ahead+w.units)/rate*float64(time.Second))
	if d := &m.queue.demand; d.fed[w.class] != m.queue.from && m.shares[w.class] == 0 && d.starves(w.class) {
		turn += now - d.fed[w.class]
		m.seen["starved"]++
	}
	switch {
	case turn > w.patience:
		return "queue_timeout"
	case w.deadline > 0 && turn+median > w.deadline:
		return "deadline"
	}
	return ""
}

func (m *model) newestFirst() bool {
	if m.order != Adaptive {
		return m.order == LIFO
	}
	return m.queue.newest || m.queue.deserted
}

func (m *model) turn() {
	if q := &m.queue; m.order == Adaptive && !q.newest {
		m.newPhase()
		q.newest, q.turned = true, len(m.waiting)
		m.seen["turned"]++
	}
}

// look judges the queue when an interval is over.
func (m *model) look(now time.Duration) {
	q := &m.queue
	q.deserted = q.deserted && now-q.left < q.interval
	if now-q.from < q.interval {
		return
	}
	drains := float64(q.served-q.came) > 2*math.Sqrt(float64(q.served))
	q.stands = q.intervals > 0 && !drains
	above := 0
	for class := 3; class >= 0; class-- {
		above += q.cameOf[class]
		q.cut[class] = q.intervals > 0 && !(float64(q.served-above) > 2*math.Sqrt(float64(q.served))) && class <= min(q.down[0], q.down[1])
		q.cameOf[class] = 0
	}
	q.down = [2]int{4, q.down[0]}
	q.many = q.intervals > 0 && !(float64(q.served-q.firsts) > 2*math.Sqrt(float64(q.served)))
	q.firsts = 0
	q.recent[0], q.recent[1] = 0.7*q.recent[0]+float64(q.came), 0.7*q.recent[1]+float64(q.served)
	q.hope = math.MaxInt
	certain := q.recent[0] - 2*math.Sqrt(q.recent[0]+q.recent[1])
	for k := 8; k < 1000 && q.recent[1] >= 1; k++ { // the least with a chance of no more than 1 in 100
		if math.Pow(q.recent[1]/certain, float64(k)) <= 0.01 && certain > q.recent[1] {
			q.hope = k
			break
		}
	}
	if drains && q.intervals > 0 {
		m.seen["drained"]++
	}
	q.newest = q.newest && (q.stands || q.intervals == 0)
	m.givers, m.many, m.before = nil, false, m.many
	d := &q.demand
	for class := range 4 {
		if d.fares(class) {
			d.fed[class] = now
		}
	}
	d.served *= 0.7
	for class := range 4 {
		d.came[class] *= 0.7
		d.went[class] *= 0.7
	}
	q.intervals, q.from, q.came, q.served = q.intervals+1, now, 0, 0
}

func (m *model) leave(i int) {
	w := m.waiting[i]
	m.waiting = slices.Delete(m.waiting, i, i+1)
	m.part(&w)
	if 2*len(m.waiting) <= m.queue.turned || len(m.waiting) == 0 {
		m.queue.newest = false
	}
}

// settle lets expired waiters go and serves the others in order.
func (m *model) settle(now time.Duration) {
	for i := 0; i < len(m.waiting); {
		if w := m.waiting[i]; w.expires > now {
			i++
		} else {
			m.fate[w.id] = w.outOf
			if m.queue.stands {
				m.turn()
				m.reason(&w)
			}
			m.leave(i)
		}
	}
	for len(m.waiting) > 0 {
		m.look(now)
		i := m.next()
		w := m.waiting[i]
		cost := min(w.cost, m.limit)
		if m.inFlight()+cost > m.limit {
			return
		}
		highest := 0
		for _, o := range m.waiting {
			highest = max(highest, o.class)
		}
		if w.class == highest && m.shares[w.class] == 0 {
			m.queue.down[0] = min(m.queue.down[0], w.class)
		}
		m.charge(&w)
		m.leave(i)
		if times := m.expected(w.id); times >= 0 {
			m.correct(&w, float64(cost)*times-float64(w.units)) // the room has charged the units
		}
		m.charged[w.id] = cost
		if m.queue.served++; m.queue.intervals > 0 {
			m.queue.demand.served++
			m.queue.demand.went[w.class] += max(1, float64(w.units))
		}
		m.flying[w.id] = cost
		m.fate[w.id] = "admitted"
	}
}

func (m *model) cancelWaiter(now time.Duration, id int) {
	i := slices.IndexFunc(m.waiting, func(w modelWaiter) bool { return w.id == id })
	if now-m.waiting[i].arrived >= m.queue.service {
		m.newPhase()
		m.queue.deserted, m.queue.left = true, now
		m.reason(&m.waiting[i])
		m.seen["deserted"]++
	} else {
		m.seen["left early"]++
	}
	m.leave(i)
	m.fate[id] = "gone"
}

func TestModel(t *testing.T) {
	seeds, steps := 400, 150
	if testing.Short() {
		seeds = 50
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(uint64(seed), 7))
		p := newPair(t, rng.Int64N(6)+1, rng.IntN(6), Order(seed%3))
		for range steps {
			p.step(rng.Uint32(), rng.Uint32())
		}
		if seed%2 == 0 {
			p.close()
			p.compare()
			for range 20 {
				p.step(rng.Uint32(), rng.Uint32())
			}
		}
	}
}

// Queues that last need more coming than going, for longer, and sometimes the
// reverse. The model counts what that brings into force.
func TestModelOfQueuesThatLast(t *testing.T) {
	seeds := 24
	if testing.Short() {
		seeds = 8
	}
	rush := []uint32{0, 1, 2, 3, 4, 0, 1, 2, 6, 7, 8, 9, 10, 11, 14, 12} // see step
	calm := []uint32{0, 7, 8, 9, 10, 11, 14, 7}
	seen := map[string]int{}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(uint64(seed), 8))
		p := newPair(t, rng.Int64N(6)+1, []int{5, 40, 200}[seed%3], Adaptive)
		p.m.seen, p.tick = seen, time.Millisecond/2
		ops := len(rush) - seed%2 // without the last nobody leaves
		for range 600 {
			p.step(rush[rng.IntN(ops)], rng.Uint32())
		}
		for range 300 {
			p.step(calm[rng.IntN(len(calm))], rng.Uint32())
		}
	}
	for _, rule := range []string{"displaced", "turned", "drained", "deserted", "left early",
		"refused on arrival: deadline", "refused on arrival: queue_timeout"} {
		if seen[rule] == 0 {
			t.Errorf("%s: never", rule)
		}
	}
}

// all makes an operation of each three bytes: that of step, or the end of the gate.
func (p *pair) all(data []byte, step func(op, arg uint32)) {
	for ; len(data) >= 3; data = data[3:] {
		if data[0] == 255 {
			p.close()
			p.compare()
			continue
		}
		step(uint32(data[0]), uint32(data[1])|uint32(data[2])<<8)
	}
}

func FuzzModel(f *testing.F) {
	f.Add([]byte{3, 4, 0})
	f.Add([]byte{1, 4, 0, 0, 9, 0, 0, 9, 0, 0, 9, 0, 255, 0, 0, 7, 0, 0, 0, 9, 0, 255, 0, 0, 14, 9, 0})
	f.Add([]byte{1, 1, 1, 0, 0, 0, 9, 0, 1, 1, 6, 3, 7, 7, 13, 0, 14, 9})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 3 || len(data) > 600 {
			return
		}
		p := newPair(t, int64(data[0]%8)+1, int(data[1]%8), Order(data[2]%3))
		p.all(data[3:], p.step)
	})
}

// Work of all priorities, users and tenants, of all costs, with weights, shares
// and orders that change on the way, against the model. It counts which rules
// were in force.
func TestModelOfAllKinds(t *testing.T) {
	seeds := 160
	if testing.Short() {
		seeds = 40
	}
	seen := map[string]int{}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(uint64(seed), 9))
		p := newPair(t, rng.Int64N(6)+1, rng.IntN(9), Order(seed%4))
		p.m.seen = seen
		if seed%3 > 0 {
			p.tick /= 5 // most that come have to wait
		}
		for range 250 {
			p.stepMixed(rng.Uint32(), rng.Uint32())
		}
		if seed%5 == 0 {
			p.close()
			p.compare()
			for range 20 {
				p.stepMixed(rng.Uint32(), rng.Uint32())
			}
		}
	}
	for _, rule := range []string{"displaced", "out of turn", "outranked", "another user", "another tenant", "settled", "charged by time",
		"refused on arrival: deadline", "refused on arrival: queue_timeout", "late in any order"} {
		if seen[rule] == 0 {
			t.Errorf("%s: never", rule)
		}
	}
}

// The same with queues that last, which keep fewer places.
func TestModelOfAllKindsThatLast(t *testing.T) {
	seeds := 12
	if testing.Short() {
		seeds = 8
	}
	rush := []uint32{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 6, 7, 8, 9, 14, 16, 12}
	calm := []uint32{0, 7, 8, 9, 10, 11, 14, 7}
	seen := map[string]int{}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(uint64(seed), 10))
		p := newPair(t, rng.Int64N(6)+1, []int{15, 60, 200}[seed%3], Adaptive)
		p.m.seen, p.tick, p.patient = seen, time.Millisecond/2, true
		ops := len(rush) - seed%2 // without the last nobody leaves
		for range 700 {
			p.stepMixed(rush[rng.IntN(ops)], rng.Uint32())
		}
		for range 200 {
			p.stepMixed(calm[rng.IntN(len(calm))], rng.Uint32())
		}
	}
	for _, rule := range []string{"displaced", "outranked", "another user", "another tenant", "deserted", "drained",
		"higher work to come", "starved"} {
		if seen[rule] == 0 {
			t.Errorf("%s: never", rule)
		}
	}
}

func FuzzModelOfAllKinds(f *testing.F) {
	f.Add([]byte{3, 4, 0})
	f.Add([]byte{1, 5, 1, 0, 9, 0, 0, 80, 19, 0, 0, 9, 255, 0, 0, 16, 0, 9, 7, 1, 1, 19, 4, 1})
	f.Add([]byte{1, 5, 1, 0, 0, 0, 0, 9, 1, 1, 7, 3, 2, 8, 80, 19, 4, 1, 16, 0, 9, 7, 1, 1, 14, 9, 9})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 3 || len(data) > 600 {
			return
		}
		p := newPair(t, int64(data[0]%8)+1, int(data[1]%12), Order(data[2]%4))
		p.all(data[3:], p.stepMixed)
	})
}

// ahead is how many units the room says would be served before w if it came now: its own
// tenant's and those of higher classes as they are, of other tenants and users what starts
// before w by their tags, what comes to higher classes meanwhile, and what lower classes
// are guaranteed.
func (m *model) ahead(w *modelWaiter) int64 { return m.withOthers(w, m.aheadInClass(w)) }

// withOthers adds to what is ahead in w's class what is ahead in others.
func (m *model) withOthers(w *modelWaiter, own float64) int64 {
	all := own + m.units(func(o *modelWaiter) bool { return o.class > w.class })
	if part := m.queue.demand.above(w.class); !m.queue.demand.starves(w.class) {
		if all /= 1 - min(part, 0.95); part > 0 {
			m.seen["higher work to come"]++
		}
	}
	if share := m.shares[w.class]; share > 0 && all > own {
		all = min(all, (own+max(1, float64(w.units)))/share)
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
	if ahead < 0 || ahead == 0 && m.turned() {
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
