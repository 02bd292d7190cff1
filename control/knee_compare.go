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

// minArm is how much of an arm has to have finished.
const minArm = 3

// contrast compares the middle one of three arms with its neighbours. It returns the
// elasticity e of useful throughput and its variance. The variance covers the
// scatter of single jobs only. ok is false if there is nothing to compare.
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
	// do not move. The mean grows by one per cent of what is whole.
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

// inWords says what an elasticity means. Below 0 there was less throughput with more
// concurrency, by chance or because the backend thrashes.
func inWords(e float64) string {
	if e < 0 {
		return fmt.Sprintf("1%% more concurrency, %.2f%% less throughput", -e)
	}
	return fmt.Sprintf("1%% more concurrency, %.2f%% more throughput", e)
}

// clipAt is where a service time is cut off, in medians.
const clipAt = 4

// credit adds samples to the arms in which their work was admitted. Work that was
// admitted while nothing was compared is in none.
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
	if !(s.Concurrency <= mostInside) { // NaN too
		return
	}
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

// gap is what is known about the distance, in ln, between the limit and the best
// one. It is a Kalman filter with the elasticity as its measurement.
type gap struct {
	variance float64 // of the distance
	noise    float64 // how many times as noisy measurements are as they seem

	last, lastVariance float64 // the measurement before
}

// The constants of the filter.
const (
	curvature = 0.7   // how fast elasticity falls with ln n: 0.5 to 1 by the universal scalability law, a step for a pool
	openGap   = 0.15  // the variance of the distance when nothing is known
	wander    = 0.002 // how much that grows between measurements
	surprise  = 3.0   // standard deviations from which on the best limit has moved
	largest   = 0.5   // step

	firstNoise, mostNoise = 3, 20
)

func newGap() gap { return gap{variance: openGap, noise: firstNoise} }

// reopen forgets how sure it was.
func (g *gap) reopen() { g.variance = max(g.variance, openGap) }

// learn updates the filter with a measurement and returns how far to move. Neighbouring
// jobs wait behind the same others, so measurements scatter more than single jobs
// suggest. How much more shows in how measurements in a row differ.
func (g *gap) learn(e, variance float64) (move float64) {
	if g.lastVariance > 0 {
		difference := e - g.last
		ratio := difference * difference / (variance + g.lastVariance)
		g.noise += 0.1 * (min(ratio, mostNoise) - g.noise)
		g.noise = max(1, g.noise)
	}
	g.last, g.lastVariance = e, variance
	expected := g.variance*curvature*curvature + variance*g.noise
	if excess := e*e - surprise*surprise*expected; excess > 0 {
		g.variance = min(openGap, g.variance+excess/(curvature*curvature))
	}
	gain := g.variance * curvature / (g.variance*curvature*curvature + variance*g.noise)
	g.variance = (1-gain*curvature)*g.variance + wander
	return min(max(gain*e, -largest), largest)
}
