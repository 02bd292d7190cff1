package limit

import (
	"math"
	"slices"
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
	// tests of its own.
	expected func(id int) float64

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
	firsts         int     // those that came of whom nobody waited
	many           bool    // these alone come faster
	stands, newest bool
	recent         [2]float64 // came and served, as far as it counts
	hope           int        // how many have a chance while it stands
	turned         int
	deserted       bool          // somebody left of itself
	left           time.Duration // when
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
		*q = modelQueue{interval: q.interval, service: q.service, keep: q.keep, from: now, deserted: q.deserted, left: q.left}
	}
	m.look(now)
	q.came++
	q.cameOf[w.class]++

	w.expires, w.outOf = w.patience, "queue_timeout"
	if last := w.deadline; last > 0 {
		if last-median > now {
			last -= median
		}
		if last < w.expires {
			w.expires, w.outOf = last, "deadline"
		}
	}
	if why := m.inVain(now, w, rate, median); why != "" {
		m.turn()
		m.reason(&w)
		if m.order != Adaptive || m.inVain(now, w, rate, median) != "" {
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
func (m *model) inVain(now time.Duration, w modelWaiter, rate float64, median time.Duration) string {
	if rate == 0 || len(m.waiting) == 0 {
		return ""
	}
	ahead := m.ahead(&w)
	if ahead == 0 && !m.newestFirst() {
		return ""
	}
	turn := now + time.Duration(float64(ahead+w.units)/rate*float64(time.Second))
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
		q.cut[class] = q.intervals > 0 && !(float64(q.served-above) > 2*math.Sqrt(float64(q.served)))
		q.cameOf[class] = 0
	}
	q.many = q.intervals > 0 && !(float64(q.served-q.firsts) > 2*math.Sqrt(float64(q.served)))
	q.firsts = 0
	q.recent[0], q.recent[1] = .7*q.recent[0]+float64(q.came), .7*q.recent[1]+float64(q.served)
	q.hope = math.MaxInt
	certain := q.recent[0] - 2*math.Sqrt(q.recent[0]+q.recent[1])
	for k := 8; k < 1000 && q.recent[1] >= 1; k++ { // the least with a chance of no more than 1 in 100
		if math.Pow(q.recent[1]/certain, float64(k)) <= .01 && certain > q.recent[1] {
			q.hope = k
			break
		}
	}
	if drains && q.intervals > 0 {
		m.seen["drained"]++
	}
	q.newest = q.newest && (q.stands || q.intervals == 0)
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
		m.charge(&w)
		m.leave(i)
		m.correct(&w, float64(w.units)*(m.expected(w.id)-1))
		m.queue.served++
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
