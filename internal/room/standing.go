package room

import (
	"math"
	"time"
)

// standing decides whether a queue stands, and when the newest is served first. A queue
// that stands only adds delay. A burst is what a room is for.
//
// By CoDel (RFC 8289) a queue stands if it has lasted for an interval. For a room
// that is too early: a burst may need many intervals to drain, and still meet all
// its deadlines. So the first interval says nothing. After each further one, a queue
// stands unless more were served in it than came.
//
// A queue that stands is cut to Pace.Keep. While all of it is one tenant's, it is cut
// to those that have a chance (promising). It still counts as standing when it is
// empty for a moment.
//
// The newest is served first when a standing queue is too long even so: a newcomer
// finds no place, or somebody's time is up. In a burst the newest is served first once
// a newcomer could not be served in time otherwise. So slots go to work that can still
// be done. The oldest is served first again when half of the queue is gone, or when an
// interval has drained it. So near the capacity, where queues are long by chance, the
// order stays.
//
// A waiter that gives up was less patient than the gate knew, and the others are
// probably no more patient. The oldest are about to leave, and serving them is waste.
// So the newest is served first for an interval after each that gives up. Leaving before
// the median service time does not count: no order would have answered it in time.
// Otherwise a flood of work that comes and leaves at once would turn every queue.
//
// All this is about the whole room. A tenant that has given no reason for it stays in
// order, and between tenants it takes enough of them (order.go).
type standing struct {
	from            time.Duration // when the present interval began
	arrived, served int           // in it
	judged          bool          // an interval has ended since the room was empty
	is              bool          // the queue stands
	flood           flood
	came, went      float64 // arrived and served up to the last judged interval, older ones fading
	promising       int     // how many may wait while it is
	demand          demand

	newest bool
	waited int // how many waited when newest first began

	impatient bool
	left      time.Duration // when the last one left

	reasons
}

func (s *standing) begin(now time.Duration) {
	*s = standing{from: now, impatient: s.impatient, left: s.left, reasons: s.reasons}
	for i := range s.demand.fed {
		s.demand.fed[i] = now
	}
}

// lasts reports whether the queue still counts as standing although it is empty.
func (s *standing) lasts(now, interval time.Duration) bool {
	return s.is && now-s.from < 2*interval
}

// judge decides anew once an interval is over.
func (s *standing) judge(now, interval time.Duration) {
	if s.impatient && now-s.left >= interval {
		s.impatient = false
	}
	if now-s.from < interval {
		return
	}
	s.is = s.judged && !draining(s.arrived, s.served)
	s.flood.endInterval(s.judged, s.served)
	s.demand.endInterval(now)
	s.came, s.went = fading*s.came+float64(s.arrived), fading*s.went+float64(s.served)
	s.promising = promising(s.came, s.went)
	s.newest = s.newest && (s.is || !s.judged)
	s.reasons.endInterval()
	s.judged, s.from, s.arrived, s.served = true, now, 0, 0
}

func (s *standing) putNewestFirst(waiting int) {
	s.starts()
	s.newest, s.waited = true, waiting
}

func (s *standing) fallTo(waiting int) {
	if waiting <= s.waited/2 {
		s.newest = false
	}
}

func (s *standing) gaveUp(now time.Duration) {
	s.starts()
	s.impatient, s.left = true, now
}

// starts begins a new phase if the newest was not served first before.
func (s *standing) starts() {
	if !s.newest && !s.impatient {
		s.phase, s.givers, s.many, s.before = max(1, s.phase+1), s.givers[:0], false, false
	}
}

// draining reports whether more were served than came, by more than chance. A
// count varies by about its square root, and twice that is a sign.
func draining(arrived, served int) bool {
	more := served - arrived
	return more > 0 && more*more > 4*served
}

// fading is what a count is worth an interval later.
const fading = 0.7

// fewest is how many may wait at least: those that come in one batch. A tenant with fewer
// waiters may take a place that a standing queue holds open ([Room.Push]).
const fewest = 8

// promising returns how many waiters have a chance of at least 1 in 100 to be served.
// Newcomers are served first, and `arrived` of them come while `served` are served. A
// waiter with k others in front reaches the front with probability (served/arrived)^k, as
// a random walk returns. The excess of arrivals is taken two standard deviations lower, in
// favour of the waiters.
func promising(arrived, served float64) int {
	more := arrived - served - 2*math.Sqrt(arrived+served)
	if more <= 0 || served < 1 {
		return math.MaxInt
	}
	return max(fewest, int(math.Ceil(math.Log(100)/math.Log1p(more/served))))
}

// flood finds out whose queue it is that stands. A flood is work that arrives faster than
// it is served. All other work still gets its slots, even if much waits for a moment;
// cutting it too would leave slots empty.
//
// So the cut applies to a priority unless clearly more is served than arrives in it and
// all above it. It does not apply either if lower work had its turn in this interval or
// the one before: then nobody of this priority waited. What is served is counted, and one
// that is low and long may take the time of a thousand that are high and short. Users with hardly anybody waiting are spared, unless there are too many
// such first waiters by the same measure. In that case the flood is many users with
// little each. A user without a name counts by tenant. Users with a name do not, because
// anybody can invent tenants.
type flood struct {
	came   [Classes]int  // in this interval, by class
	firsts int           // newcomers whose user had nobody waiting
	turned int           // classes from the lowest that had its turn in this interval up; 0: none
	before int           // the same in the interval before
	class  [Classes]bool // is cut
	many   bool          // the flood is many users with little each
}

// floodFrom: a user with this many waiters is part of a flood. Two may come together.
const floodFrom = 3

// answering counts the waiters of w's user, up to most; of its tenant, if the user has
// no name.
func (r *Room) answering(w *Waiter, most int) (n int) {
	if w.User == "" {
		return r.waiters(r.findTenant(w), most)
	}
	user := r.users.find(w.User, uint32(max(0, min(w.Class, Classes-1))))
	if user == 0 {
		return 0
	}
	for _, tenant := range r.inner[user].longest {
		if n += r.waiters(tenant, most-n); n >= most {
			break
		}
	}
	return n
}

// countFirst counts a newcomer if it is the first: nobody of its user waits.
func (c *flood) countFirst(first bool) {
	if first {
		c.firsts++
	}
}

// endInterval closes an interval in which so many were served.
func (c *flood) endInterval(judged bool, served int) {
	above := 0
	for i := Classes - 1; i >= 0; i-- {
		above += c.came[i]
		c.class[i] = judged && !draining(above, served) && Classes-i >= max(c.turned, c.before)
	}
	c.many = judged && !draining(c.firsts, served)
	c.came, c.firsts, c.turned, c.before = [Classes]int{}, 0, 0, c.turned
}

// hadItsTurn notes that one of a class is served because nobody above it waits. With a guarantee
// that is no sign: its places may keep those above it out.
func (c *flood) hadItsTurn(class int) { c.turned = max(c.turned, Classes-class) }

// Pace is what the room has to know of the gate's speed to tell a standing queue
// from a burst.
type Pace struct {
	// Interval is how long a queue is watched before it is judged.
	Interval time.Duration
	// Service is how long work takes once it has a slot; 0 while that is unknown.
	Service time.Duration
	// Keep is how many may wait at most while a queue stands; 0 means as many as
	// there are places.
	Keep int
}

// At most `keep` may wait in a standing queue. That is many enough: near the
// capacity, at a load of 0.95, chance alone exceeds it once in 500 requests. It
// is few enough to be served soon when the load falls back. It is a number and
// not a time. The effect of chance on a queue depends on numbers, whatever the
// gate's speed. A queue is watched for as long as serving that many takes, and for
// CoDel's interval at least.
const (
	keep        = 64
	minInterval = 100 * time.Millisecond
	maxInterval = 10 * time.Second
)

// PaceAt is the pace of a gate. Slots come back at a rate, in units a second, and
// work takes the time service. While the rate is not known, 0, a queue that stands
// has all its places: nobody is displaced on a guess.
func PaceAt(rate float64, service time.Duration) Pace {
	if rate == 0 {
		return Pace{Interval: minInterval, Service: service}
	}
	interval := maxInterval
	if s := keep / rate; s < maxInterval.Seconds() {
		interval = max(minInterval, time.Duration(s*float64(time.Second)))
	}
	return Pace{Interval: interval, Service: service, Keep: keep}
}

// Service estimates the median time that work takes, from admission to answer.
// Each sample moves the estimate by a twentieth towards itself. The estimate
// comes to rest where half of the samples are above and half below.
type Service struct {
	estimate time.Duration
	samples  int // up to serviceMin
}

// serviceMin is how many samples make an estimate: fewer are a guess.
const serviceMin = 8

// Add takes a sample, which is not negative. Whether it is above or below is as
// good as random, and a wrong branch prediction costs more than all of this. So
// the step has no branch.
func (s *Service) Add(sample time.Duration) {
	if s.samples < serviceMin {
		if s.samples++; s.samples == 1 {
			s.estimate = sample
		}
	}
	step := time.Duration(uint64(s.estimate)/20) + 1
	above, below := (s.estimate-sample)>>63, (sample-s.estimate)>>63 // all bits, or none
	s.estimate += step&above - step&below
}

// Median returns the estimate, 0 while there is none.
func (s *Service) Median() time.Duration {
	if s.samples < serviceMin {
		return 0
	}
	return s.estimate
}
