package room

import (
	"math"
	"time"
)

// standing tells a queue that stands, and only adds delay, from a burst, which is
// what a room is for, and decides when the newest goes first.
//
// CoDel (RFC 8289) takes a queue for a standing one when it has lasted for an
// interval. For a room that is too early: a burst that fits the deadlines of all
// its work may need many intervals to drain. So the first interval says nothing,
// and in each further one a queue stands unless it is draining: unless more have
// been served than came.
//
// A queue that stands is cut to Pace.Keep, and while all of it is one tenant's to
// those who have a chance (hopeful). It goes on standing when it is empty for a
// moment: so few may well be. When it is too long even so, when a newcomer finds no
// place or somebody's time is up, those that come go first (turn). They do in a
// burst as well once a newcomer could not be served in time in its turn: the slots
// go to those who can. The oldest goes first again when
// half of the queue is gone or an interval has drained it, so that near the
// capacity, where queues are long by chance and nobody needs to be given up, they
// remain in order.
//
// Somebody who leaves without a word was less patient than the gate knew. The
// others are presumably no more patient, so the newest goes first as long as that
// goes on, whether the queue stands or not: the oldest are those who are about to
// leave, and what is done for them is wasted. Who leaves before it has waited as
// long as the service takes is no such sign: it would have left before its answer
// even if it had gone first. Otherwise a flood of those that come and leave at
// once would get nothing done in order of arrival, and all of its share newest
// first.
//
// All this is found out for the whole room, but a tenant that has given no reason
// for it stays in order (order.go).
type standing struct {
	from            time.Duration // when the present interval began
	arrived, served int           // in it
	judged          bool          // an interval has ended since the room was empty
	is              bool
	crowds          crowds
	came, went      float64 // arrived and served, in this interval and fading ones before
	hope            int     // how many may wait while it is

	newest bool
	turned int // how many waited when newest first began

	deserted bool
	left     time.Duration // when the last one left

	reasons
}

func (s *standing) begin(now time.Duration) {
	*s = standing{from: now, deserted: s.deserted, left: s.left, reasons: s.reasons}
}

// lasts reports whether the judgement holds although the room is empty.
func (s *standing) lasts(now, interval time.Duration) bool {
	return s.is && now-s.from < 2*interval
}

// look brings the judgement up to now.
func (s *standing) look(now, interval time.Duration) {
	if s.deserted && now-s.left >= interval {
		s.deserted = false
	}
	if now-s.from < interval {
		return
	}
	s.is = s.judged && !draining(s.arrived, s.served)
	s.crowds.judge(s.judged, s.served)
	s.came, s.went = fading*s.came+float64(s.arrived), fading*s.went+float64(s.served)
	s.hope = hopeful(s.came, s.went)
	s.newest = s.newest && (s.is || !s.judged)
	s.judged, s.from, s.arrived, s.served = true, now, 0, 0
}

func (s *standing) turn(waiting int) {
	s.starts()
	s.newest, s.turned = true, waiting
}

func (s *standing) fallTo(waiting int) {
	if waiting <= s.turned/2 {
		s.newest = false
	}
}

func (s *standing) desert(now time.Duration) {
	s.starts()
	s.deserted, s.left = true, now
}

// starts is told that the newest goes first from now on, if it did not before.
func (s *standing) starts() {
	if !s.newest && !s.deserted {
		s.phase = max(1, s.phase+1)
	}
}

// draining reports whether more were served than came, by more than chance: a
// count varies by about its square root, and twice that is a sign.
func draining(arrived, served int) bool {
	more := served - arrived
	return more > 0 && more*more > 4*served
}

// fading is what a count is worth an interval later.
const fading = 0.7

// fewest is how many may wait at least: those that come in one batch.
const fewest = 8

// hopeful is how many waiters have a chance to be served, where arrived come
// while served are served and the newest goes first: whoever has k others before
// it gets to the front with the probability (served/arrived)^k of a random walk
// that comes back from there. Those with less than one chance in 100 wait in
// vain; they had better hear it now. What chance may have added to the counts
// does not count against them.
func hopeful(arrived, served float64) int {
	more := arrived - served - 2*math.Sqrt(arrived+served)
	if more <= 0 || served < 1 {
		return math.MaxInt
	}
	return max(fewest, int(math.Ceil(math.Log(100)/math.Log1p(more/served))))
}

// crowds tells whose queue it is that stands. A flood makes a queue stand that the
// others, who are served before it, have no part in: when their waiters are many
// for a moment, because the limit goes down or a few come together, these will be
// served, and cutting them would be refusing those that the gate has slots for.
//
// So a standing queue is cut for the priorities whose work, with all above it,
// comes faster than anything is served; and of it those are spared of whose user
// hardly anybody waits, unless those of whom nobody waits alone come faster than
// that: then the flood is many users with little each. Of users without a name it is
// each tenant. (If tenants counted, inventing them would turn a flood into many with
// little each, and the cut on everybody.)
type crowds struct {
	came   [Classes]int // in this interval, by class
	firsts int          // of those that a place was sought for, those of whom nobody waited
	class  [Classes]bool
	many   bool
}

// modest is how many of a user wait at least where it is part of a flood: two may
// come together.
const modest = 3

// answering counts the waiters, up to most, of whoever answers for w: its user, or
// its tenant if that has no name.
func (r *Room) answering(w *Waiter, most int) (n int) {
	if w.User == "" {
		return r.count(r.tenant(w), most)
	}
	user := r.users.find(w.User, uint32(max(0, min(w.Class, Classes-1))))
	if user == 0 {
		return 0
	}
	for _, tenant := range r.inner[user].longest {
		if n += r.count(tenant, most-n); n >= most {
			break
		}
	}
	return n
}

// meets is told of a newcomer that finds nobody of its own waiting, or some.
func (c *crowds) meets(nobody bool) {
	if nobody {
		c.firsts++
	}
}

// judge closes an interval in which so many were served.
func (c *crowds) judge(judged bool, served int) {
	above := 0
	for i := Classes - 1; i >= 0; i-- {
		above += c.came[i]
		c.class[i] = judged && !draining(above, served)
	}
	c.many = judged && !draining(c.firsts, served)
	c.came, c.firsts = [Classes]int{}, 0
}

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

// A queue that stands is cut to keep waiters: so many that near the capacity, at
// a load of .95, chance alone exceeds them once in 500 requests, and so few that
// they are soon served when the load falls back. It is a number and no time, for
// what chance does to a queue is a matter of numbers, whatever the gate's speed.
// A queue is watched for as long as that many take, and for CoDel's interval at
// least.
const (
	keep        = 64
	minInterval = 100 * time.Millisecond
	maxInterval = 10 * time.Second
)

// PaceAt is the pace of a gate whose slots come back at a rate, in units a second,
// and whose work takes so long. While the rate is not known, 0, a queue that stands
// keeps all its places: nobody is displaced on a guess.
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
// Each sample moves the estimate by a twentieth towards itself, which settles
// where half of the samples are above and half below.
type Service struct {
	estimate time.Duration
	samples  int // up to serviceMin
}

// serviceMin is how many samples make an estimate: fewer are a guess.
const serviceMin = 8

// Add takes a sample, which is not negative. Whether it is above or below is as
// good as tossed, and a processor that guesses wrong loses more time than all of
// this takes: so there is no branch.
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
