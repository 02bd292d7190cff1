package control

import (
	"math"
	"time"
)

// ascend is Update during a climb.
func (b *Belief) ascend(w *Window, saturated bool) Decision {
	switch {
	case b.mode == settling && saturated:
		b.mode = climbing
		if reason := b.cut(w, b.at); reason != "" { // what has ended was admitted before, so it is no count
			b.land(math.Inf(-1), b.at)
			return b.decide(reason)
		}
		return b.decide("waiting for a step to take effect")
	case b.mode == settling:
		b.mode = climbing
		return b.decide("not in full use")
	case !saturated && b.climb.rate == 0:
		return b.decide("not in full use")
	}
	if b.climb.rate == 0 && !b.climb.warm {
		b.climb.warm, b.mode = true, settling
		b.learnOrigin()
		return b.decide("counting")
	}
	lnN := lnAtLeast1(w.MeanInFlight)
	if reason := b.cut(w, b.at); reason != "" {
		b.count(w, lnN)
		b.land(math.Inf(-1), b.at)
		return b.decide(reason)
	}
	good := float64(w.OK)
	if b.still != 0 || good < climbLeast || good < surelyCount && w.Elapsed < surelyWait || w.Elapsed < min(w.Mean(), patience) {
		return b.extend("counting")
	}
	rate := good / w.Elapsed.Seconds()
	if b.climb.rate > 0 {
		if d, done := b.judge(w, rate, lnN, saturated); done {
			return d
		}
	} else {
		b.laws.spread += originDoubt
		if b.slowedDown(w, lnN) { // the laws forget their level, and nothing is left to climb for
			b.laws.wander(0, shiftOdds)
			b.laws.spread += anyLevel
			b.count(w, lnN)
			b.land(math.Inf(-1), b.at)
			return b.decide("the backend became slower")
		}
		b.count(w, lnN)
		if b.laws.above(b.at+stepUp/2) < worthClimbing {
			b.land(math.Inf(-1), b.at)
			g := b.laws.gist()
			return b.decide("known from few inside: " + g.inWords())
		}
	}
	if b.at >= math.Log(float64(b.cfg.Max)) {
		b.land(math.Inf(-1), b.at)
		return b.decide("the limit is at its largest")
	}
	b.climb = climb{rate: rate, count: good, lnN: lnN, from: b.at, warm: true, vain: b.climb.vain}
	b.mode = settling
	b.set(b.at + stepUp)
	return b.decide("throughput follows: a step up")
}

// The constants of a climb by belief, besides those of [Knee]'s.
const (
	worthClimbing = 0.2             // how likely the best limit has to be more than half a step above
	surelyCount   = 40              // completions to count; what they say is believed for long
	surelyWait    = 2 * time.Second // how long to wait for them. But a count lasts at least as long as work takes, or only the quick would be in it
	benefit       = 0.3             // what a step gets for the doubt: laws with a soft edge bring more than they seem to
	surelySlower  = 3               // by how many standard deviations a first count has to be below what is expected
	countVariance = 0.01            // of a count besides chance: a step up lets in a wave of young work

	// Before a hot row or a lock, more than a few inside get less done. From a hundred on that may be the same for
	// all: whoever looks only there sees no reason to try less. And what was let in too far takes long to end.
	// So the climb begins below a high first limit. From the default, 20, it sees enough on its way.
	highFirst  = 64
	firstShare = 8
)

func lnAtLeast1(x float64) float64 {
	if !(x >= 1) { // NaN too
		return 0
	}
	return math.Log(min(x, mostInside))
}

// count lets the laws see a count of what has finished.
func (b *Belief) count(w *Window, lnN float64) {
	done := float64(w.OK + w.Dropped())
	if done < 1 || w.Elapsed <= 0 {
		return
	}
	b.pass()
	b.laws.observe(lnN, countedSpeed(w, lnN), 1/done+countVariance, false)
}

// countedSpeed is ln of the speed of work by what has finished. What is inside is counted by its cost, and so is
// what has finished: of work that costs 10 a tenth as many pieces get through.
func countedSpeed(w *Window, lnN float64) float64 {
	done := max(w.Cost, w.OK+w.Dropped())
	return math.Log(float64(done)/w.Elapsed.Seconds()) - lnN
}

// judge decides whether the last step was worth it. done is false if it was and
// there is another one to take.
func (b *Belief) judge(w *Window, rate, lnN float64, saturated bool) (d Decision, done bool) {
	c := &b.climb
	apart := lnN - c.lnN
	if apart < 0.1 { // the demand has gone: nothing learned
		b.set(c.from) // the bounds may be others by now
		c.rate = 0
		if c.vain++; c.vain > mostVain {
			b.land(math.Inf(-1), b.at)
		}
		return b.decide("not in full use"), true
	}
	if !saturated && b.hurry() == 1 {
		// That the step was enough for now says nothing about the next one. Where stretches are longer, a step
		// too far would cost seconds. So would a sudden change, which the laws do not look for in a climb.
		b.mode, *c = climbing, climb{vain: c.vain + 1}
		return b.decide("not in full use: high enough for now"), true
	}
	if !saturated {
		b.try = 0
		b.track()
		b.around()
		b.restart()
		return b.decide("not in full use: high enough"), true
	}
	e := math.Log(max(rate, 1e-9)/c.rate) / apart
	scatter := math.Sqrt(1/max(1, float64(w.OK))+1/max(1, c.count)) / apart
	if c.again < mostAgain && math.Abs(e-worthIt) < unsure*scatter {
		c.again++
		return b.extend("counting"), true
	}
	b.count(w, lnN)
	if e < worthIt {
		bottom, top := c.from, b.at
		if e < -scatter { // only what is clearly worse says that less would be better
			bottom = math.Inf(-1)
		}
		b.set(c.from + max(0, min(1, e+benefit))*(b.at-c.from))
		b.land(bottom, top)
		return b.decide(inWords(e) + ": high enough"), true
	}
	return Decision{}, false
}

// slowedDown reports whether a first count is far below what the laws expect after they saw few inside, and work is
// slower than usual. So it is when a backend loses capacity while slots are free.
func (b *Belief) slowedDown(w *Window, lnN float64) bool {
	done := float64(w.OK + w.Dropped())
	expected, apart := b.laws.speed(lnN)
	off := countedSpeed(w, lnN) - expected
	return off < -surelySlower*math.Sqrt(apart+b.laws.spread+1/done+countVariance) &&
		b.pace.slower(w.Mean().Seconds()) >= cusumStep
}

// extend counts on in the next window.
func (b *Belief) extend(reason string) Decision {
	d := b.decide(reason)
	d.Extend = true
	return d
}

// track ends a climb.
func (b *Belief) track() {
	if b.mode != tracking {
		b.mode, b.landed, b.looked = tracking, b.now, b.now
	}
}

// land ends a climb at the limit between bottom and top, in ln, that is best by the laws.
func (b *Belief) land(bottom, top float64) {
	b.track()
	b.around()
	b.choose(false, bottom, top)
	b.restart()
}

// seeOrigin gathers how fast work is while slots are free.
func (b *Belief) seeOrigin(w *Window) {
	if w.Dropped()+w.Failed > w.OK || w.MeanInFlight > originUsed*float64(w.Limit) {
		return
	}
	if b.origin.n == 0 {
		b.origin.from = b.now
	}
	b.origin.fade(min(1, originKept/(1+b.origin.n+b.origin.failed)))
	b.origin.ended += float64(max(w.Cost, w.OK+w.Dropped())) // in the unit of slots
	b.origin.slots += w.MeanInFlight * w.Elapsed.Seconds()
	for _, s := range w.Samples {
		b.origin.add(s, b.clip())
	}
}

// learnOrigin believes what was seen with few inside, and reports whether there was enough of it.
func (b *Belief) learnOrigin() bool {
	o := b.origin
	b.origin = outset{}
	if o.n < 1 || (b.now-o.from).Seconds() < originFor*b.mean {
		return false
	}
	lnN, speed, variance := o.seen()
	b.pass()
	b.laws.observe(lnN, speed, b.noise*variance, false)
	return true
}

// endIdle is called when all slots are in use again. Between two bursts work was lighter than in
// them, by chance, and a law would be made of that. So only a long time counts.
func (b *Belief) endIdle() {
	if b.now-b.idle > max(longIdle, time.Duration(longIdleFor*b.mean*float64(time.Second))) {
		b.learnOrigin()
	}
	b.origin = outset{}
}

// outset is what was seen from the moment on at which work began to arrive.
type outset struct {
	stretch
	ended float64 // the cost of what has ended
	slots float64 // for how long slots were in use meanwhile, in seconds, all together
}

func (o *outset) fade(keep float64) {
	o.stretch.fade(keep)
	o.ended *= keep
	o.slots *= keep
}

// seen is that of a stretch, if not all that began has ended. What has ended is short work then, however long work is, so its
// times say too little. The time of slots for each that has ended says too much, because work under way has a part in it. If
// all work is alike, the first is right. If it is exponential, the second is: total time on test over failures (Epstein
// and Sobel, Life testing, 1953). The scatter of work tells how near it is to either. A few jobs do not show that, so it is taken for
// exponential at first. Over longer, windows with few inside are chosen, in which more ends than began. So the second only ever adds
// to the time of work.
func (o *outset) seen() (lnN, speed, variance float64) {
	jobs := o.n + o.failed
	scatter := (jobs*o.scatter() + supposed) / (jobs + supposed - 1)
	lnN, speed, variance = o.seenBy(scatter)
	if o.slots > 0 && o.ended > 0 {
		speed += min(1, scatter) * min(0, math.Log(o.ended/o.slots)-speed)
	}
	return lnN, speed, variance
}

// What is seen with few inside counts after so many service times. Ten of them would be safer, but where
// work takes half a second, the slots are all in use by then.
const (
	originFor  = 2.0
	supposed   = 2.0 // jobs that speak for exponential times
	originKept = 200 // jobs; older ones fade

	// The part of the limit that may be inside. A mean of all that is seen on the way up would be
	// the speed at no concurrency at all.
	originUsed = 0.5

	originDoubt = 0.1 // the variance of the level until the first count: that was another time

	longIdle    = 10 * time.Second
	longIdleFor = 40.0 // service times
)
