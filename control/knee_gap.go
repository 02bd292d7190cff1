package control

// gap is what is known about the distance, in ln, between the limit and the best
// one: a Kalman filter with the elasticity as its measurement.
type gap struct {
	variance float64 // of the distance
	noise    float64 // how many times as noisy measurements are as they look

	last, lastVariance float64 // the measurement before
}

// The filter's constants: the price of concurrency, below which elasticity a
// slot is not worth having; how fast elasticity falls with ln n around the knee
// (0.5 to 1 for the universal scalability law, a step for a pool); what is
// believed of the distance when nothing is known, and how far it wanders from
// one measurement to the next; from how many standard deviations on a measurement
// says that the best limit has moved; the largest step.
const (
	price     = 0.045
	curvature = 0.7
	openGap   = 0.15
	wander    = 0.002
	surprise  = 3.0
	largest   = 0.5

	firstNoise, mostNoise = 3, 20
)

func newGap() gap { return gap{variance: openGap, noise: firstNoise} }

// reopen forgets how sure it was.
func (g *gap) reopen() { g.variance = max(g.variance, openGap) }

// learn takes a measurement and returns how far to move. Neighbouring jobs wait
// behind the same others, so measurements scatter more than single jobs say; how
// much more shows in how measurements in a row differ.
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
