package control

import (
	"math"
	"time"
)

// rung is a limit that may be chosen.
type rung struct {
	limit int64
	ln    float64
	at    at
}

// ladder are the limits that are weighed: whole numbers, from ten on at most a tenth apart. The last is 13,957: a larger
// limit is reached by a climb or by hand only, and left with the first decision after it.
var ladder = rungs()

func rungs() (ladder []rung) {
	for n := int64(1); float64(n) < math.Exp(lnSize(sizes)); n += max(1, n/10) {
		ln := math.Log(float64(n))
		ladder = append(ladder, rung{n, ln, locate(ln)})
	}
	return ladder
}

// nearest returns the first rung that is not below a limit.
func nearest(ln float64) int {
	low, high := 0, len(ladder)-1
	for low < high {
		if mid := (low + high) / 2; ladder[mid].ln < ln-1e-9 {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

// reach is how many rungs down are weighed at a time, a factor of three. reachUp is the same
// up, from ten on less than a factor of two: a limit far too high does more harm.
const (
	reach   = 12
	reachUp = 6
)

// negligible is the weight of laws that are left out.
const negligible = 1e-4

// scale weighs limits: what a limit is worth in the mean of what is believed, and how
// much it would tell.
type scale struct {
	n      int
	law    [laws]uint16
	weight [laws]float32
	ahead  [laws]float32 // the speed that the law expects of the stretch under way
	most   [laws]float32 // the worth of the best limit, by this law
	top    [laws]float32 // the worth of the limit that is best in the mean, by this law
	here   [laws]float32 // ln speed where lateness was seen
	level  [laws]float32

	late  bool
	worth [65]float32 // ln of the part in time, by ln of the ratio of residence times

	presumedLate float32 // ln of the speed below which work is presumed late

	aheadMean, aheadVariance float64
	pending                  float64 // variance of the observation to come
}

func (b *Belief) newScale() (s scale) {
	under := locate(math.Log(float64(b.limit())))
	sum := float32(0)
	for i, w := range b.laws.weight {
		if w < negligible {
			continue
		}
		k := s.n
		s.law[k], s.weight[k], s.level[k] = uint16(i), w, b.laws.level[i]
		s.ahead[k] = b.laws.level[i] + under.lnSpeed(i)
		s.most[k] = float32(math.Inf(-1))
		sum += w
		s.n++
	}
	var squares float64
	for k := range s.n {
		s.weight[k] /= sum
		s.aheadMean += float64(s.weight[k] * s.ahead[k])
	}
	for k := range s.n {
		d := float64(s.ahead[k]) - s.aheadMean
		squares += float64(s.weight[k]) * d * d
	}
	s.aheadVariance = squares
	s.pending = b.noise*b.raw + b.laws.spread
	s.weighLateness(b)
	return s
}

func (s *scale) weighLateness(b *Belief) {
	s.presumedLate = float32(math.Inf(-1))
	if b.laws.spread < unknown/2 { // or levels say nothing yet
		s.presumedLate = float32(b.pace.presumedLate())
	}
	share := b.late.share()
	if s.late = share > 0.005; !s.late {
		return
	}
	seen := locate(b.late.lnN / b.late.n)
	for k := range s.n {
		s.here[k] = seen.lnSpeed(int(s.law[k]))
	}
	for i := range s.worth {
		ratio := math.Exp(float64(i-32) / 8)
		s.worth[i] = float32(math.Log(max(1e-3, 1-math.Pow(share, 1/ratio))))
	}
}

// weigh returns the mean worth of a limit, and the variance of what would be seen there.
func (s *scale) weigh(r *rung) (worth, variance float64) {
	var sum, seen, squares, with float32
	base := float32((1 - price) * r.ln)
	for k := range s.n {
		w := s.weight[k]
		c := r.at.lnSpeed(int(s.law[k]))
		u := base + c + s.punctual(k, c)
		s.most[k] = max(s.most[k], u)
		sum += w * u
		v := s.level[k] + c - float32(s.aheadMean)
		seen += w * v
		squares += w * v * v
		with += w * v * (s.ahead[k] - float32(s.aheadMean))
	}
	variance = float64(squares - seen*seen)
	variance -= float64(with*with) / (s.aheadVariance + s.pending)
	return float64(sum), max(0, variance)
}

// inTime is ln of the part in time where work takes e^lnRatio times as long as it was seen to.
func (s *scale) inTime(lnRatio float32) float32 {
	x := min(max(lnRatio*8+32, 0), 64)
	i := min(int(x), 63)
	return s.worth[i] + (x-float32(i))*(s.worth[i+1]-s.worth[i])
}

// compareWith takes the limit that gain compares with.
func (s *scale) compareWith(best *rung) {
	for k := range s.n {
		s.top[k] = s.by(k, best)
	}
}

// by is what a limit is worth by one law.
func (s *scale) by(k int, r *rung) float32 {
	c := r.at.lnSpeed(int(s.law[k]))
	return float32((1-price)*r.ln) + c + s.punctual(k, c)
}

// punctual is ln of the part in time by one law, where it has work slow down by e^lnSlower: of what is said to be late, and of
// what is presumed to be.
func (s *scale) punctual(k int, lnSlower float32) float32 {
	worth := presumedPrice * min(0, s.level[k]+lnSlower-s.presumedLate)
	if s.late {
		worth += s.inTime(s.here[k] - lnSlower)
	}
	return worth
}

// Whoever names no deadline has one: neither people nor programs wait for ever. It is not known, but it is some
// multiple of what they usually wait. Where five of fifty workers are left, a hundred inside get as much done as
// ten. Without this price nothing speaks against the hundred.
const (
	lnPatience    = 1.386 // ln 4. No shape takes more than four times as long at its best as alone
	presumedPrice = 0.2   // in per cent of throughput, for each per cent that work takes longer than that
)

// gain is what it would bring in the mean to know which of two limits is worth more, this one or the
// best. Only laws by which this one is worth more count, each with the difference.
func (s *scale) gain(r *rung) (worth float64) {
	for k := range s.n {
		if more := s.by(k, r) - s.top[k]; more > 0 {
			worth += float64(s.weight[k] * more)
		}
	}
	return worth
}

// choose sets the best limit by what is believed, and if tries, the one to try next.
func (b *Belief) choose(tries bool, bottom, top float64) {
	s := b.newScale()
	center := nearest(math.Log(float64(b.limit())))
	lowest, highest := nearest(max(bottom, math.Log(float64(b.cfg.Min)))), nearest(min(top, math.Log(float64(b.cfg.Max))))
	lowest = min(lowest, highest)
	center = min(max(center, lowest), highest)
	var worths, variances [reach + reachUp + 1]float64
	from, to, best := 0, 0, 0
	for range 4 {
		from, to = max(lowest, center-reach), min(highest, center+reachUp)
		best = from
		for i := from; i <= to; i++ {
			worths[i-from], variances[i-from] = s.weigh(&ladder[i])
			if worths[i-from] > worths[best-from] {
				best = i
			}
		}
		if tries || best > from && best < to || best == center {
			break
		}
		center = best
	}
	b.set(ladder[best].ln)
	b.try, b.lossAt = ladder[best].limit, 0
	if !tries {
		return
	}
	value := worths[best-from]
	hurry := b.hurry()
	lasts := 2 + 12*hurry
	mostLoss := 0.08 + 0.04*hurry
	most := math.Inf(-1)
	s.compareWith(&ladder[best])
	for i := from; i <= to; i++ {
		loss := value - worths[i-from]
		if loss > mostLoss || i < best && b.full < 2 {
			continue
		}
		curiosity := min(mostCurious, lasts*s.gain(&ladder[i]))
		if v := curiosity*math.Log1p(variances[i-from]/(b.noise*b.raw))/2 - loss; v > most {
			most, b.try = v, ladder[i].limit
		}
	}
	b.swing(worths[:], from, to, best)
	b.lookBelow(from, best)
}

// perfect is the worth, in the mean, of choosing the best limit that was weighed when it is
// known which law holds.
func (s *scale) perfect() (worth float64) {
	for k := range s.n {
		worth += float64(s.weight[k] * s.most[k])
	}
	return worth
}

// weighLoss finds out what the limit in force is expected to lose.
func (b *Belief) weighLoss() {
	s := b.newScale()
	here := nearest(math.Log(float64(b.limit())))
	var worth float64
	for i := max(0, here-reach); i <= min(len(ladder)-1, here+reach); i++ {
		if w, _ := s.weigh(&ladder[i]); i == here {
			worth = w
		}
	}
	b.loss, b.lossAt = s.perfect()-worth, b.limit()
}

// A nat of knowledge about a limit is worth what it would bring to know whether that limit is the
// better one. It counts for two stretches where stretches are long, and for fourteen where they are
// short. It is at most mostCurious, in ln of throughput. So no limit is tried that is not better by some law
// that is believed: one far above a pool would tell much of its shape, and change nothing.
// An experiment may cost 8 to 12 % of throughput while it lasts.
const mostCurious = 0.2

// swing tries a limit a fifth above the best one, and the next time one a fifth below. It does
// so where stretches are long and tell little, and none is worth an experiment. A hundred answers cannot
// tell two limits apart, but what many stretches say on either side adds up, and costs little.
func (b *Belief) swing(worths []float64, from, to, best int) {
	if off := nearest(math.Log(float64(b.try))) - best; b.hurry() >= 0.5 || b.noise*b.raw < tellsLittle || b.full < 2 || off > 1 || off < -1 {
		return
	}
	b.up = !b.up
	i := best - 2
	if b.up {
		i = best + 2
	}
	if i >= from && i <= to && worths[best-from]-worths[i-from] < mostSwing {
		b.try = ladder[i].limit
	}
}

// lookBelow tries half of the best limit for a moment if nothing was seen that far down. Laws that were only seen at more can be
// wrong about less, and sure of it. While caches were cold, work among many was slow. By the time few were inside they were warm,
// and that looked like cores that thrash. Such a belief sees no reason to try less. Caches are cold in the first climb too, so
// after a while it does not count as a look. The look is no experiment that was weighed: it may lose half of the throughput of a
// stretch. So it is rare.
func (b *Belief) lookBelow(from, best int) {
	if !b.warm && b.now-b.landed > warmBy {
		b.warm, b.laws.lowest = true, math.Inf(1)
	}
	i, far := max(from, nearest(ladder[best].ln-math.Ln2)), ladder[best].ln-farDown
	if ladder[i].ln > far || b.laws.lowest <= far || b.try != ladder[best].limit || b.full < 2 || b.hurry() < 0.5 ||
		b.noise*b.raw > tellsMuch || b.now-b.looked < max(lookRest, (b.looked-b.landed)/2) {
		return
	}
	b.try, b.looked = ladder[i].limit, b.now
}

// The constants of a look below.
const (
	farDown   = 0.45             // in ln: what counts as seen far down. It is less than ln 2, because work from before the look is inside too
	tellsMuch = 0.02             // the variance of an observation. Up to it, half the throughput is five deviations
	warmBy    = 30 * time.Second // after a climb, all that was cold is warm
	lookRest  = time.Second      // after a climb, and between two looks at first. Each rest is half as long again as the one before
)

// The constants of a swing.
const (
	mostSwing   = 0.03   // the loss that it may cost, expected by the laws
	tellsLittle = 0.0045 // the variance of an observation. Below it, three deviations are less than a fifth, and one stretch shows a swing
)
