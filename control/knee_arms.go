package control

import (
	"fmt"
	"math"
	"time"
)

// arm is a stretch of time with one limit, and what was admitted in it.
type arm struct {
	from, to time.Duration // to is 0 for the one under way
	at       float64       // ln of the middle limit then
	n        float64       // how much of it has finished
	lnN      float64       // sum of ln of the mean concurrency over each life
	cost     float64       // sum of service times, each cut off, in seconds
	cost2    float64       // of their squares
	whole    float64       // of those that were not cut off
	good     float64       // of what was in time
	goodCost float64       // sum of the service times of what was good, cut off too
}

// clipAt is where a service time is cut off, in medians.
const clipAt = 4

// credit adds samples to the arms in which their work was admitted, if it was in
// any: what was admitted while nothing was compared is in none.
func credit(arms []arm, samples []Sample, clip float64) {
	for _, s := range samples {
		i := len(arms) - 1
		for i >= 0 && s.Start < arms[i].from {
			i--
		}
		if i >= 0 && (arms[i].to == 0 || s.Start < arms[i].to) {
			arms[i].add(s, clip)
		}
	}
}

func (a *arm) add(s Sample, clip float64) {
	full := max(1e-9, s.Latency.Seconds())
	cost := full
	if clip > 0 {
		cost = min(full, clip)
	}
	a.n++
	a.lnN += math.Log(max(1e-3, s.Concurrency))
	a.cost += cost
	a.cost2 += cost * cost
	if cost == full {
		a.whole += cost
	}
	if s.Good {
		a.good++
		a.goodCost += cost
	}
}

// minArm is how much of an arm has to have finished.
const minArm = 3

// inWords says what an elasticity means. A comparison that finds less throughput
// above than below, which is chance or a backend that thrashes, says less.
func inWords(e float64) string {
	if e < 0 {
		return fmt.Sprintf("1%% more concurrency, %.2f%% less throughput", -e)
	}
	return fmt.Sprintf("1%% more concurrency, %.2f%% more throughput", e)
}

// contrast compares the middle one of three arms with its neighbours: the
// elasticity e of useful throughput, and the variance of that as far as it comes
// from the scatter of single jobs. ok is false where there is nothing to compare.
func contrast(a, b, c *arm) (e, variance float64, ok bool) {
	if min(a.n, b.n, c.n) < minArm {
		return 0, 0, false
	}
	apart := b.lnN/b.n - (a.lnN/a.n+c.lnN/c.n)/2
	all := sum(a, b, c)
	good := all.good / all.n
	if math.Abs(apart) < 0.02 || good == 0 || all.whole == 0 {
		return 0, 0, false
	}
	// If all jobs inside become slower by one per cent, those that are cut off
	// do not move: the mean grows by one per cent of what is whole.
	unit := all.whole / all.n
	cost := (b.cost/b.n - (a.cost/a.n+c.cost/c.n)/2) / unit
	gain := (b.good/b.n - (a.good/a.n+c.good/c.n)/2) / good
	e = 1 + (gain-cost)/apart

	mean := all.cost / all.n
	scatter := (all.cost2/all.n-mean*mean)/(unit*unit) + (1-good)/good - 2*(all.goodCost/all.n-mean*good)/(unit*good)
	variance = max(1e-6, scatter) * (1/b.n + (1/a.n+1/c.n)/4) / (apart * apart)
	return e, variance, true
}

func sum(arms ...*arm) (s arm) {
	for _, a := range arms {
		s.n += a.n
		s.cost += a.cost
		s.cost2 += a.cost2
		s.whole += a.whole
		s.good += a.good
		s.goodCost += a.goodCost
	}
	return s
}

// The arms: how far they are from the middle in ln, and how long they last, in
// service times, at least and at most.
const (
	ditherBy   = 0.2
	armFor     = 6.0
	armAtLeast = 100 * time.Millisecond
	armAtMost  = 4 * time.Second
	armEnough  = 8
)

// dither ends the arm under way if it has lasted long enough, and learns from
// the three before it: by then nearly all that was admitted in them has ended.
func (k *Knee) dither(w *Window) Decision {
	last := &k.arms[len(k.arms)-1]
	lasted := w.Now - last.from
	long := clampDuration(armFor*k.mean, armAtLeast, armAtMost)
	if lasted < armAtMost && (last.n < armEnough || lasted < long) {
		return k.decide("comparing")
	}
	reason := "comparing"
	if n := len(k.arms); n >= 4 {
		a, b, c := &k.arms[n-4], &k.arms[n-3], &k.arms[n-2]
		if e, variance, ok := contrast(a, b, c); ok {
			// What was measured holds for where the limit was then.
			moved := k.at - (a.at+2*b.at+c.at)/4
			move := k.gap.learn(e-price-curvature*moved, variance)
			k.at += move
			k.shift.move(move * min(max(e, 0), 1))
			reason = inWords(e)
		}
		copy(k.arms, k.arms[n-3:])
		k.arms = k.arms[:3]
	}
	k.arms[len(k.arms)-1].to = w.Now
	k.high = !k.high
	k.arms = append(k.arms, arm{from: w.Now, at: k.at})
	return k.decide(reason)
}

// pauseAtMost is how long the limit may be out of use, in arms, before what comes
// next is compared with nothing that was before: the load is another one.
const pauseAtMost = 2

// pause drops the arm under way, in which not all slots were in use, and all of
// them if it lasts.
func (k *Knee) pause(now time.Duration) {
	k.shift.broken()
	last := len(k.arms) - 1
	if k.idle == 0 {
		k.idle = now
	}
	if now-k.idle > pauseAtMost*clampDuration(armFor*k.mean, armAtLeast, armAtMost) {
		k.restart(now)
		return
	}
	k.arms[last] = arm{from: now, at: k.at}
}

func (k *Knee) restart(now time.Duration) {
	k.arms = append(k.arms[:0], arm{from: now, at: k.at})
}
