package control

import (
	"math"
	"time"
)

// climb is the way up from a limit that is far too low: steps that are paid for
// in throughput. Throughput is counted, not inferred: a step of four fifths shows
// in few completions, and a count is not fooled by the wave of young work that
// the step lets in.
type climb struct {
	rate  float64 // of good answers before the step, per second; 0 at the start
	count float64 // that it was counted from
	lnN   float64 // ln of the mean in flight before the step
	from  float64 // the limit before the step, in ln
	looks int     // how often the verdict was put off
	warm  bool    // the first count begins with slots that are all in use
	vain  int     // steps that nobody used
}

// The climb's constants: the step in ln; how long it takes to take effect, in
// service times; the elasticity a step has to show; completions to count, without
// how many there is nothing to compare, and how long to wait for them; how often
// an unsure verdict is put off, and how unsure; steps in vain.
const (
	stepUp    = 0.6
	settleFor = 1.2
	worthIt   = 0.41

	climbCount = 15
	climbLeast = 4
	climbWait  = time.Second
	mostLooks  = 3
	unsure     = 1.5
	mostVain   = 2
)

// ascend is Update during a climb.
func (k *Knee) ascend(w *Window, saturated bool) Decision {
	switch {
	case k.mode == settling && saturated:
		k.mode = climbing
		return k.decide("a step up settles")
	case k.mode == settling:
		k.mode = climbing
		return k.decide("not in full use")
	case !saturated && k.climb.rate == 0:
		return k.decide("not in full use")
	}
	if k.climb.rate == 0 && !k.climb.warm {
		k.climb.warm, k.mode = true, settling
		return k.decide("counting")
	}
	if reason := k.cut(w); reason != "" {
		k.track()
		k.restart(w.Now)
		return k.decide(reason)
	}
	good := float64(w.OK)
	if good < climbLeast || good < climbCount && w.Elapsed < climbWait {
		return k.lookAgain("counting")
	}
	rate, lnN := good/w.Elapsed.Seconds(), math.Log(max(1, w.MeanInFlight))
	if k.climb.rate > 0 {
		if d, done := k.judge(w, rate, lnN, saturated); done {
			return d
		}
	}
	k.climb = climb{rate: rate, count: good, lnN: lnN, from: k.at, warm: true, vain: k.climb.vain}
	k.at += stepUp
	k.mode = settling
	return k.decide("throughput follows: a step up")
}

// judge decides whether the last step was worth it. done is false if it was and
// there is another one to take.
func (k *Knee) judge(w *Window, rate, lnN float64, saturated bool) (d Decision, done bool) {
	c := &k.climb
	apart := lnN - c.lnN
	if apart < 0.1 { // the demand has gone: nothing learned
		k.at, c.rate = c.from, 0
		if c.vain++; c.vain > mostVain {
			k.settle(w.Now)
		}
		return k.decide("not in full use"), true
	}
	e := math.Log(max(rate, 1e-9)/c.rate) / apart
	scatter := math.Sqrt(1/max(1, float64(w.OK))+1/max(1, c.count)) / apart
	if saturated && c.looks < mostLooks && math.Abs(e-worthIt) < unsure*scatter {
		c.looks++
		return k.lookAgain("counting"), true
	}
	switch {
	case e < worthIt, !saturated && e-scatter < worthIt:
		k.at = c.from + max(0, min(1, e))*(k.at-c.from)
		k.settle(w.Now)
		return k.decide(inWords(e) + ": high enough"), true
	case !saturated:
		k.settle(w.Now)
		return k.decide("not in full use: high enough"), true
	}
	return Decision{}, false
}

// settle ends a climb.
func (k *Knee) settle(now time.Duration) {
	k.track()
	k.restart(now)
}

// lookAgain goes on counting.
func (k *Knee) lookAgain(reason string) Decision {
	d := k.decide(reason)
	d.Extend = true
	return d
}
