package control

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// cut lowers the limit, of which from is ln, while most of what finishes is of no use. It returns why, or
// nothing if it does not cut. When good answers come again after none, a climb begins.
func (b *Belief) cut(w *Window, from float64) string {
	y := &b.yield
	spoiled := b.spoiled(w)
	y.good += credible(w.OK)
	y.bad += credible(w.Overload) + credible(w.Abandoned) + spoiled
	total := y.good + y.bad
	if total < cutCount {
		return ""
	}
	good, bad := y.good, y.bad
	if doubt := math.Sqrt(float64(total)) * cutDoubt / 2; total < 8*cutCount && good > 0 && math.Abs(float64(bad)-float64(total)/2) < doubt {
		return "" // count on
	}
	y.good, y.bad = 0, 0
	switch {
	case good > total*7/10:
		out := y.out
		y.cuts, y.out = 0, false
		if out && b.mode == tracking {
			b.mode, b.climb, b.try, b.idle = climbing, climb{}, 0, 0
			b.late = lateness{}
			b.warm = false
			if b.before.at > b.at && b.now-b.before.when < remembered {
				b.laws.recall(&b.before.laws)
			}
			b.laws.spread += anyLevel
			return "good answers again"
		}
		return ""
	case good > 0 && (bad <= total/2 || y.cuts >= mostCuts):
		return ""
	case b.now-b.lastCut < b.rest(w) && y.cuts > 0:
		return "" // what ends was admitted before the last cut, which was for that
	}
	// A step up that leads to this was too far. It is no outage, and where it led is no place to
	// come back to. Nor is a limit at which work spoils other work, nor a first one at which most was never of use.
	if b.mode == tracking || b.climb.rate == 0 {
		if spoiled <= w.Dropped() && b.proven {
			b.before.keep(b)
		}
		y.out = y.out || good == 0
	}
	y.cuts++
	b.lastCut = b.now
	b.learnAll()
	by := cutBy
	if w.Timed >= cutCount {
		by = min(max(by, b.pace.slower(w.Mean().Seconds())), mostCutBy)
	}
	inForce := math.Log(float64(b.limit())) // an experiment may be below what is believed best
	b.set(min(from, inForce) - by)
	if y.cuts == 1 { // one reason is one piece of evidence, however many cuts it takes
		b.around()
	}
	b.try = 0
	b.late.atLeast(min(cutLate, float64(bad)/float64(total)), lnAtLeast1(w.MeanInFlight))
	b.change.reset()
	b.restart()
	if good == 0 {
		return "nothing that finished was of use"
	}
	return "less than half of what finished was of use"
}

// cutUnfilled is cut for a window in which slots were free.
func (b *Belief) cutUnfilled(w *Window) string {
	from, mode := b.at, b.mode
	switch {
	case b.crowded(w):
		from = min(from, lnAtLeast1(w.MeanInFlight/kneeUsed))
	case w.MeanInFlight >= kneeUsed*float64(w.Limit):
	default:
		if w.OK > 0 && w.OK >= w.Dropped() { // what was counted before a time that does not count is of another trouble
			b.yield.good, b.yield.bad = 0, 0
		}
		return ""
	}
	reason := b.cut(w, from)
	if reason != "" && mode != tracking { // or it is cut itself that begins a climb
		b.track()
	}
	return reason
}

// hopeless reports whether most of what ends is of no use, with half of the slots in use or more. What is given up at its deadline leaves a slot
// free for a moment. Work that waits would take it, were it not refused because it could not be in time. So all the slots that help are in use.
func hopeless(w *Window) bool {
	return w.OK < w.Dropped() && w.MeanInFlight >= kneeUsed*float64(w.Limit)
}

// crowded reports whether those inside may be too many, though the limit has not been reached: more than a few are, and work takes
// longer than usual, or nobody knows how long it usually takes. Where the deadline is near, it cannot take much longer. So half of
// cusumStep is enough where most has been of no use for a while. Where nearly all is of no use and more are inside than
// usual, work need not be slower, only not faster: a backend that fails at its usual pace has as many inside as usual. After an
// outage it takes some service times to come back from such a cut. So it is made only where they are short.
func (b *Belief) crowded(w *Window) bool {
	if !(w.MeanInFlight >= crowd) || w.Timed == 0 || b.hurry() < 1 {
		return false
	}
	enough := cusumStep
	if b.useless > 0 && b.now-b.useless >= longUseless {
		enough /= 2
		if nearlyAll*w.OK < w.Dropped() && lnAtLeast1(w.MeanInFlight) >= b.pace.lnN+moreThanUsual {
			enough = 0
		}
	}
	return b.pace.seconds == 0 || b.pace.slower(w.Mean().Seconds()) >= enough
}

// spoiled is how much failed after as long in its slot as half of what does not fail takes. So it is with
// transactions that meet: fewer at once, and more of them succeed. What fails within a moment says nothing
// about the limit.
func (b *Belief) spoiled(w *Window) int64 {
	var slow, failed int64
	for _, s := range w.Samples {
		if s.Failed {
			failed++
			if b.long > 0 && s.Latency.Seconds() >= b.long/2 {
				slow++
			}
		}
	}
	return credible(w.Failed) * slow / max(1, failed)
}

// credible is a count within bounds. Beyond them somebody has counted wrongly, and sums would overflow.
func credible(n int64) int64 { return min(max(n, 0), mostInside) }

// rest is how long what was inside at a cut goes on ending.
func (b *Belief) rest(w *Window) time.Duration {
	if w.Timed == 0 && w.Failed > 0 {
		return time.Duration(b.long * float64(time.Second))
	}
	return w.Mean()
}

// The constants of a cut by belief, besides those of [Knee]'s.
const (
	cutDoubt = 1.5 // by how many standard deviations the useless has to be in the majority
	// By Little's law, work takes as much longer as more of it is inside. So where it takes longer than usual, a cut goes as
	// far as would make it usual again, down to 55 % at a time. Part of the time is of what was inside before
	// the last cut. If work itself has become slower, fewer inside make it no faster.
	mostCutBy = 0.6
	crowd     = 4 // inside: below that the next cuts would have nothing to do
	// Longer than a pause of a garbage collector, and shorter than people wait.
	longUseless = time.Second
	nearlyAll   = 10 // times as much of no use as of use
	// In ln, twice as many. With half of that a brown-out of five seconds was followed by refusals; with a third more a limit never came down.
	moreThanUsual = 0.75
	cutLate       = 0.3 // the share of late answers that is assumed at least, afterwards
)

// pace is how fast work usually is: the mean of about a minute in which most of what ended was of use.
type pace struct {
	ln      float64 // of the speed, in 1/s
	lnN     float64 // of the concurrency at which it was that
	seconds float64 // how long it was measured, up to paceKept
}

// paceKept is longer than it takes to find a slow-down, and shorter than people take to get used to one. In seconds.
const paceKept = 60

func (p *pace) add(mean, lnN, seconds float64) {
	if !(mean > 0 && seconds > 0) {
		return
	}
	p.seconds = min(paceKept, p.seconds+seconds)
	share := min(1, seconds/p.seconds)
	p.ln += (-math.Log(mean) - p.ln) * share
	p.lnN += (lnN - p.lnN) * share
}

// slower returns how much slower than usual work of the mean given is, in ln.
func (p *pace) slower(mean float64) float64 {
	if p.seconds == 0 || !(mean > 0) {
		return 0
	}
	return p.ln + math.Log(mean)
}

// presumedLate returns ln of the speed below which work is presumed late.
func (p *pace) presumedLate() float64 {
	if p.seconds == 0 {
		return math.Inf(-1)
	}
	return p.ln - lnPatience
}

// past is what was believed before the backend became slower.
type past struct {
	at    float64 // ln of the limit; 0 if there is none
	when  time.Duration
	laws  outline
	speed float64 // ln of the speed that was expected there
}

// keep remembers what is believed. In a slow-down that came by and by, or that is known already, the laws have learned how slow work
// is now. So the speed is at least that of the last minute, and of the alarm or cut before this one. Both were at
// other limits, and the laws say what they mean at this one.
func (p *past) keep(b *Belief) {
	stale := p.at == 0 || b.now-p.when >= remembered
	if !stale && b.at < p.at {
		return
	}
	here, _ := b.laws.speed(b.at)
	speed := here
	known := func(at, then float64) {
		there, _ := b.laws.speed(at)
		speed = max(speed, then+here-there)
	}
	if b.pace.seconds > 0 {
		known(b.pace.lnN, b.pace.ln)
	}
	if !stale {
		known(p.at, p.speed)
	}
	*p = past{at: b.at, when: b.now, laws: b.laws.outline(), speed: speed}
}

// review forgets a slow-down that has ended by and by, or was chance: work would be nearly as fast again at the limit of that
// time, a fifth slower at most. Where work is uneven, one alarm in a minute took back all that had been learned since the largest limit.
func (p *past) review(b *Belief) {
	if p.at == 0 || b.yield.cuts > 0 || b.yield.out || b.laws.spread > stepVariance {
		return
	}
	if speed, _ := b.laws.speed(p.at); speed > p.speed-cusumStep/2 {
		p.at = 0
	}
}

// cusum finds sudden changes: the sum of how much better a step explains the windows
// than the laws do, in nats, for a step down and up.
type cusum struct{ slower, faster float64 }

func (c *cusum) reset() { *c = cusum{} }

// The constants of sudden changes.
const (
	cusumStep  = 0.5 // in ln: what is looked for. Less is left to the drift of levels
	cusumAlarm = 150 // seconds between two false alarms, where windows are a second or less
	cusumMost  = 3.5 // from one window: it takes two
	shiftOdds  = 0.3 // that K has jumped too
	anyLevel   = 1   // the variance of levels afterwards
)

// add reports a change: -1 for slower, +1 for faster. Chance alone adds up to n nats in one of eⁿ windows. So where
// windows are short it takes more nats, or false alarms would come as often as windows do.
func (c *cusum) add(off, variance, seconds float64) int {
	alarm := math.Log(cusumAlarm / min(seconds, 1))
	nats := func(off float64) float64 { return min(cusumMost, cusumStep/variance*(off-cusumStep/2)) }
	c.slower = max(0, c.slower+nats(-off))
	c.faster = max(0, c.faster+nats(off))
	switch {
	case c.slower > alarm:
		return -1
	case c.faster > alarm:
		return 1
	}
	return 0
}

// shifted finds a sudden change of the backend, and returns what changed, or nothing.
func (b *Belief) shifted(w *Window) string {
	if b.now-b.arms[0].from < b.length()/2 || len(w.Samples) < shiftCount {
		return ""
	}
	var one stretch
	for _, s := range w.Samples {
		one.add(s, b.clip())
	}
	if one.n < shiftCount || b.laws.spread > stepVariance {
		return ""
	}
	lnN, speed, variance := one.seen()
	mean, apart := b.laws.speed(lnN)
	if speed > mean && one.cutShort() {
		b.change.faster = 0
		return ""
	}
	direction := b.change.add(speed-mean, b.noise*variance+apart+b.laws.spread, w.Elapsed.Seconds())
	if direction == 0 || direction > 0 && one.late > one.n/2 {
		return ""
	}
	b.change.reset()
	b.restart()
	b.try, b.lossAt = 0, 0
	if direction < 0 {
		b.before.keep(b)
		b.laws.wander(0, shiftOdds)
		if b.yield.cuts == 0 { // or the limit in force says nothing about what was best
			b.around()
		}
		b.laws.spread += anyLevel
		return "the backend became slower"
	}
	if b.before.at > b.at && b.now-b.before.when < remembered {
		b.laws.recall(&b.before.laws)
		b.set(b.before.at)
	} else {
		b.laws.wander(0, shiftOdds)
	}
	b.laws.spread += anyLevel
	b.before.at = 0
	return "the backend became faster"
}

// stills are the times in which nothing of what was inside ended for long: the longest of them, which is forgotten by and by, and when the
// last one ended.
type stills struct{ longest, last time.Duration }

// resumed reports whether work ends again in the window, after none of what was inside had ended for so long that the backend stood still. That
// is longer than the longest service time that counts. It is also more than twice as long as lately, because work may end in batches.
// It says nothing about the limit. If most of it took long before that already, it is heavy, or the backend is slow. In a climb
// two service times are long: its counts are few, and each is believed for long. But windows are as long, so that less than
// some six may not be seen. newest is how long the newest part of the window
// is, and carried how much had ended before that.
func (b *Belief) resumed(w *Window, newest time.Duration, carried int64) bool {
	switch {
	case ended(w) > carried:
	case w.MeanInFlight >= crowd:
		b.still = cmp.Or(b.still, b.now-newest)
		return false
	default: // what was inside has left without an outcome, as upgraded connections do
		b.still = 0
		return false
	}
	from, clip := b.still, b.clip()
	b.still = 0
	still := b.now - newest - from
	if b.mode != tracking {
		t := b.turnover
		if carried > 0 {
			pieces := float64(carried) / float64(max(1, ended(w)))
			t.add(w, w.Elapsed-newest-still, pieces)
		}
		clip = min(clip, stillInClimb*max(b.mean, t.takes()))
	}
	if from == 0 || clip == 0 || still.Seconds() <= clip {
		return false
	}
	usual := time.Duration(float64(b.stills.longest) * math.Exp(-max(0, (b.now-b.stills.last).Seconds())/remembered.Seconds()))
	b.stills = stills{longest: max(still, usual), last: b.now}
	if still <= oftenStill*usual {
		return false
	}
	inside, heavy := 0, 0
	for _, s := range w.Samples {
		if s.Start < from+still {
			inside++
			if (s.Latency - still - newest).Seconds() > clip {
				heavy++
			}
		}
	}
	return 2*heavy <= inside
}

const (
	// oftenStill is how many times as long as it usually does a backend has to stand still before that counts.
	oftenStill = 2
	// stillInClimb is after how many service times it counts in a climb.
	stillInClimb = 2
	// straddlesFor is for how long work may end that began before. What takes longer than its clip as well is cut off
	// there anyway, and one old stream after the other would hide all else.
	straddlesFor = time.Second
)

// turnover is how long slots were in use for what has ended, by its cost. While much of what has begun has not ended, that says more than the
// time of what has, which is short work.
type turnover struct{ slots, ended float64 }

// add takes a part of a window, in which so much of what has ended in it had ended already.
func (t *turnover) add(w *Window, lasted time.Duration, part float64) {
	t.slots += max(0, w.MeanInFlight*lasted.Seconds())
	t.ended += part * float64(max(w.Cost, ended(w)))
	if fade := originKept / t.ended; fade < 1 {
		t.slots, t.ended = t.slots*fade, t.ended*fade
	}
}

// takes is how many seconds that is for each.
func (t *turnover) takes() float64 { return t.slots / max(1, t.ended) }

// ended is how much has ended in a window.
func ended(w *Window) int64 { return w.OK + w.Dropped() + w.Failed }

// straddles reports whether work has ended in the window that was admitted before the process or the backend stood still. How
// long it took says nothing about the limit. By a clock that has gone back, it began in the future.
func (b *Belief) straddles(w *Window) bool {
	if b.woke == 0 || b.now-b.woke > max(straddlesFor, time.Duration(b.clip()*float64(time.Second))) {
		return false
	}
	return slices.ContainsFunc(w.Samples, func(s Sample) bool { return s.Start < b.woke || s.Start > b.now+clockLead })
}

// suspended is how much later than planned a window may end, besides three times its length.
// What was measured while the process stood still is about the process.
const suspended = 500 * time.Millisecond

// clockLead is how long after the end of its window work may have begun: a gate looks at its clock before it closes a window.
const clockLead = 50 * time.Millisecond
