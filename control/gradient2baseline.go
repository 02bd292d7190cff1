package control

// The baseline of Gradient2: the long-term average, and the floor it is tied to.

// warmUp is how many observations the baseline is a plain mean of.
const warmUp = 10

// check counts the windows until the floor is measured anew, and those that it
// takes.
func (g *Gradient2) check() {
	g.measured = false
	if g.cfg.Shipped {
		return
	}
	if g.checking > 0 {
		g.checking--
		return
	}
	if g.slow {
		g.held += 2
	} else {
		g.held = max(0, g.held-1)
	}
	if g.held >= 2*g.cfg.Recheck || g.count >= warmUp && !g.known {
		g.held, g.checking = 0, 2
	}
}

// measure sees to the windows at Min. The floor is the second one's latency.
func (g *Gradient2) measure(o observation) {
	g.why = "draining to measure"
	if g.checking > 1 {
		return
	}
	g.why, g.known = "measured at Min", true
	switch {
	case o.rtt <= 0 || o.drop:
	case g.measured:
		g.approach(float64(o.rtt))
	default:
		g.floor, g.measured = float64(o.rtt), true
	}
}

// approach moves the floor a tenth of the way.
func (g *Gradient2) approach(short float64) { g.floor += product(0.1, short-g.floor) }

// average takes short into the baseline and returns it.
func (g *Gradient2) average(short float64) float64 {
	if g.count < warmUp {
		g.count++
		g.sum += short
		g.long = g.sum / float64(g.count)
		return g.long
	}
	weight := 2 / float64(g.cfg.LongWindow+1)
	g.long = product(g.long, 1-weight) + product(short, weight)
	return g.long
}

// bound keeps the baseline within Rise times the floor, which it brings up to
// date.
func (g *Gradient2) bound(o observation, short, long float64) float64 {
	low := o.inFlight <= float64(g.cfg.Min)
	g.known = g.known || low
	switch {
	case g.floor == 0:
		g.floor = short
	case short < g.floor, low:
		g.approach(short)
	}
	g.long = min(long, product(g.cfg.Rise, g.floor))
	return g.long
}
