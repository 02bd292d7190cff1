package control

import (
	"encoding/hex"
	"fmt"
	"math"
)

// posterior is how much each law is believed, given all that was seen. Every law has
// the level that fits it best: ln of the speed of work that is alone, in 1/s. Levels are
// followed by one Kalman filter, whose gain is the same for all laws. So laws differ
// by what they say about other concurrencies only.
//
// It holds what a limiter needs in 2.5 KB. Its methods allocate nothing.
type posterior struct {
	weight [laws]float32 // sum to 1
	level  [laws]float32
	spread float64 // the variance of each level
	lowest float64 // ln of the least concurrency that was observed
}

// The constants of a posterior.
const (
	unknown    = 1e4  // the variance of a level that nothing is known about
	levelDrift = 4e-4 // how much the variance of a level grows a second: 2 % in a second, 15 % in a minute

	// The tails of an observation are those of Student's t with 4 degrees, (1+x²/4)^-2.5.
	// One stretch in a hundred has a garbage collection in it, which must not refute a law.
	freedom = 4

	mostLn = 50 // of what is observed, either way; more is a fault of whoever measured

	stepOdds     = 0.02 // how likely a step of the level is before the next observation
	stepVariance = 0.25 // of such a step: by half, or to twice as much

	jumpScale    = 0.7 // ln of how far K jumps, if it jumps: to a half or to twice as much
	jumpAnywhere = 0.2 // the part of jumps that may end at any law

	recallDoubt = 0.01 // the odds that K has jumped since an outline was taken
)

// forget returns to what is believed before anything was seen.
func (p *posterior) forget() {
	for i := range p.weight {
		p.weight[i] = float32(usual[i/sizes] / sizes)
		p.level[i] = 0
	}
	p.spread = unknown
	p.lowest = math.Inf(1)
}

// lean multiplies the belief in each law by what the prior says of the distance of its best
// concurrency from lnN.
func (p *posterior) lean(lnN float64, prior func(distance float64) float64) {
	for i := range p.weight {
		p.weight[i] *= float32(prior(lnBest(i) - lnN))
	}
	p.normalise()
}

// normalise makes the weights sum to 1. If no law can be believed, or one of the weights
// is no number, it begins anew.
func (p *posterior) normalise() {
	sum := 0.0
	for _, w := range p.weight {
		sum += float64(w)
	}
	if !(sum > 1e-30 && sum < math.MaxFloat32) {
		p.forget()
		return
	}
	scale := float32(1 / sum)
	for i := range p.weight {
		p.weight[i] *= scale
	}
}

// observe learns that work at the concurrency e^lnN has the speed e^speed, with the
// variance given. If the odds of a sudden change explain it better than the laws do,
// and mayStep allows it, all levels move. It reports whether they did. excess is the
// square by which the speed was off what was expected, less what is known about the level.
func (p *posterior) observe(lnN, speed, variance float64, mayStep bool) (excess float64, stepped bool) {
	if !(math.Abs(lnN) < mostLn && math.Abs(speed) < mostLn && variance > 0 && variance < unknown) { // NaN too
		return 0, false
	}
	p.lowest = min(p.lowest, lnN)
	here := locate(lnN)
	var off, fit, stepFit [laws]float32
	total := p.spread + variance
	narrow, wide := float32(1/(freedom*total)), float32(1/(freedom*(total+stepVariance)))
	var evidence, stepEvidence float64
	for i := range off {
		off[i] = float32(speed) - p.level[i] - here.lnSpeed(i)
		square := off[i] * off[i]
		fit[i] = p.weight[i] * tail(square*narrow)
		stepFit[i] = p.weight[i] * tail(square*wide)
		evidence += float64(fit[i])
		stepEvidence += float64(stepFit[i])
	}
	evidence /= math.Sqrt(total)
	stepEvidence /= math.Sqrt(total + stepVariance)
	if mayStep && stepOdds*stepEvidence > evidence {
		fit, stepped = stepFit, true
		p.spread += stepVariance
	}
	gain := float32(p.spread / (p.spread + variance))
	for i := range off {
		p.weight[i] = fit[i]
		p.level[i] += gain * off[i]
	}
	p.normalise()
	for i := range off {
		excess += float64(p.weight[i] * off[i] * off[i])
	}
	excess = max(0, excess-p.spread)
	p.spread *= variance / (p.spread + variance)
	return excess, stepped
}

// tail is Student's t with 4 degrees, without its factor.
func tail(x float32) float32 {
	x++
	return float32(1 / (float64(x*x) * math.Sqrt(float64(x))))
}

// pass lets time pass: capacity drifts.
func (p *posterior) pass(seconds float64) {
	p.spread = min(unknown, p.spread+levelDrift*seconds)
}

// wander lets ln K move by chance with the variance given, and jump with the odds given.
func (p *posterior) wander(variance, odds float64) {
	side := float32(min(0.25, variance/(2*sizeStep*sizeStep)))
	decay := float32(math.Exp(-sizeStep / jumpScale))
	near := float32(odds*(1-jumpAnywhere)) * (1 - decay) / (1 + decay)
	for s := range shapes {
		w := (*[sizes]float32)(p.weight[int(s)*sizes:])
		anywhere := float32(odds*jumpAnywhere*usual[s]) / sizes
		before := *w
		var jumped [sizes]float32 // before, convolved with decay^|distance|
		var left, right float32
		for i := range sizes {
			j := sizes - 1 - i
			jumped[i] += left + before[i]
			jumped[j] += right
			left = (left + before[i]) * decay
			right = (right + before[j]) * decay
		}
		for i := range sizes {
			down, up := before[max(0, i-1)], before[min(sizes-1, i+1)]
			w[i] = float32(1-odds)*(before[i]+side*(down-2*before[i]+up)) + near*jumped[i] + anywhere
		}
	}
	p.normalise()
}

// speed returns what is expected at a concurrency: the mean of ln speed, and the variance
// by which the laws disagree.
func (p *posterior) speed(lnN float64) (mean, variance float64) {
	here := locate(lnN)
	var sum, squares float64
	for i, w := range p.weight {
		v := float64(p.level[i] + here.lnSpeed(i))
		sum += float64(w) * v
		squares += float64(w) * v * v
	}
	return sum, max(0, squares-sum*sum)
}

// above returns how likely the best concurrency is above e^lnN.
func (p *posterior) above(lnN float64) float64 {
	sum := 0.0
	for i, w := range p.weight {
		if lnBest(i) > lnN {
			sum += float64(w)
		}
	}
	return sum
}

// gist is what is believed, in short.
type gist struct {
	shape     shape   // the likeliest
	size      float64 // its K
	low, high float64 // nineteen twentieths of the belief in the best concurrency lie between
}

func (p *posterior) gist() (g gist) {
	var share, mean [shapes]float64
	var best [sizes + most]float64 // the belief, by the best concurrency
	for i, w := range p.weight {
		s := shape(i / sizes)
		share[s] += float64(w)
		mean[s] += float64(w) * lnSize(i%sizes)
		best[min(len(best)-1, max(0, int(lnBest(i)/sizeStep+0.5)))] += float64(w)
	}
	for s := range shapes {
		if share[s] > share[g.shape] {
			g.shape = s
		}
	}
	g.size = math.Exp(mean[g.shape] / share[g.shape])
	below := 0.0
	for i, w := range best {
		if below < 0.025 {
			g.low = math.Exp(lnSize(i))
		}
		if below < 0.975 {
			g.high = math.Exp(lnSize(i))
		}
		below += w
	}
	return g
}

// most is by how many sizes the best concurrency can be above K.
const most = 10

// inWords is what is believed, for people.
func (g *gist) inWords() string {
	return fmt.Sprintf(shapeWords[g.shape]+"; 95 %% sure the best limit is between %.0f and %.0f", g.size, g.low, g.high)
}

// outline is a belief in fifteen bytes: for each shape, its share of the belief, and the mean
// of ln K and its standard deviation. It outlives a change of the backend, and a restart.
// Levels are not in it: they are those of their time.
type outline [3 * int(shapes)]uint8

// The units of an outline.
const (
	shareUnit  = 1.0 / 255
	sizeUnit   = lnLargest / 255
	spreadUnit = 1.0 / 64
)

func (p *posterior) outline() (o outline) {
	for s := range int(shapes) {
		var share, mean, square float64
		for i, w := range p.weight[s*sizes : (s+1)*sizes] {
			share += float64(w)
			mean += float64(w) * lnSize(i)
			square += float64(w) * lnSize(i) * lnSize(i)
		}
		if share <= 0 {
			continue
		}
		mean /= share
		deviation := math.Sqrt(max(0, square/share-mean*mean))
		o[3*s] = uint8(share/shareUnit + 0.5)
		o[3*s+1] = uint8(mean/sizeUnit + 0.5)
		o[3*s+2] = uint8(min(255, deviation/spreadUnit+0.5))
	}
	return o
}

// recall believes an outline. Levels stay.
func (p *posterior) recall(o *outline) {
	for i := range p.weight {
		part := o[3*(i/sizes):]
		share, mean := float64(part[0])*shareUnit, float64(part[1])*sizeUnit
		deviation := max(sizeStep/2, float64(part[2])*spreadUnit)
		z := (lnSize(i%sizes) - mean) / deviation
		p.weight[i] = float32(share / deviation * math.Exp(-z*z/2))
	}
	p.normalise()
	p.wander(0, recallDoubt)
}

// String writes an outline for a state that is saved.
func (o *outline) String() string { return hex.EncodeToString(o[:]) }

// parse reads what String wrote, and reports whether it is an outline.
func (o *outline) parse(text string) bool {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(o) {
		return false
	}
	share := byte(0)
	for s := range int(shapes) {
		share |= b[3*s]
	}
	if share == 0 {
		return false
	}
	copy(o[:], b)
	return true
}
