package control

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// naive is the posterior as the formulas say it: every law by itself, in full precision,
// with sums over all pairs of sizes.
type naive struct {
	weight, level [laws]float64
	spread        float64
}

func newNaive() *naive {
	n := &naive{spread: unknown}
	for i := range n.weight {
		n.weight[i] = usual[i/sizes] / sizes
	}
	return n
}

func (n *naive) normalise() {
	sum := 0.0
	for _, w := range n.weight {
		sum += w
	}
	for i := range n.weight {
		n.weight[i] /= sum
	}
}

func (n *naive) observe(lnN, speed, variance float64, mayStep bool) {
	student := func(off, variance float64) float64 {
		return math.Pow(1+off*off/(4*variance), -2.5) / math.Sqrt(variance)
	}
	evidence := func(more float64) (sum float64) {
		for i := range n.weight {
			sum += n.weight[i] * student(n.off(i, lnN, speed), n.spread+more+variance)
		}
		return sum
	}
	if mayStep && stepOdds*evidence(stepVariance) > evidence(0) {
		n.spread += stepVariance
	}
	for i := range n.weight {
		off := n.off(i, lnN, speed)
		n.weight[i] *= student(off, n.spread+variance)
		n.level[i] += off * n.spread / (n.spread + variance)
	}
	n.spread = 1 / (1/n.spread + 1/variance)
	n.normalise()
}

func (n *naive) off(i int, lnN, speed float64) float64 {
	return speed - n.level[i] - shape(i/sizes).lnSpeed(lnN-lnSize(i%sizes))
}

func (n *naive) wander(variance, odds float64) {
	before := n.weight
	side := variance / (2 * sizeStep * sizeStep)
	total := 0.0
	for d := -1000; d <= 1000; d++ {
		total += math.Exp(-sizeStep / jumpScale * math.Abs(float64(d)))
	}
	for i := range n.weight {
		s, at := i/sizes, i%sizes
		near := 0.0
		for j := range sizes {
			near += before[s*sizes+j] * math.Exp(-sizeStep/jumpScale*math.Abs(float64(j-at))) / total
		}
		stay := before[i]
		for _, next := range []int{max(0, at-1), min(sizes-1, at+1)} {
			stay += side * (before[s*sizes+next] - before[i])
		}
		n.weight[i] = (1-odds)*stay + odds*((1-jumpAnywhere)*near+jumpAnywhere*usual[s]/sizes)
	}
	n.normalise()
}

// The posterior is what brute force says, over any sequence of what can happen to it.
func TestPosteriorIsBayes(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 3))
		var p posterior
		p.forget()
		n := newNaive()
		truth, lnK, level := shape(r.IntN(int(shapes))), 1+5*r.Float64(), -8*r.Float64()
		for step := range 60 {
			switch r.IntN(4) {
			case 0:
				seconds := 3 * r.Float64()
				p.pass(seconds)
				n.spread = min(unknown, n.spread+levelDrift*seconds)
			case 1:
				variance, odds := 0.01*r.Float64(), 0.1*r.Float64()
				p.wander(variance, odds)
				n.wander(variance, odds)
			default:
				lnN := 7 * r.Float64()
				variance := 0.001 + 0.1*r.Float64()
				speed := level + truth.lnSpeed(lnN-lnK) + math.Sqrt(variance)*r.NormFloat64()
				if r.IntN(10) == 0 {
					level -= 0.7
				}
				mayStep := r.IntN(2) == 0
				p.observe(lnN, speed, variance, mayStep)
				n.observe(lnN, speed, variance, mayStep)
			}
			for i := range n.weight {
				if off := math.Abs(float64(p.weight[i]) - n.weight[i]); off > 1e-3+1e-2*n.weight[i] {
					t.Fatalf("seed %d, step %d: law %d has the weight %v, by brute force %v", seed, step, i, p.weight[i], n.weight[i])
				}
				if off := math.Abs(float64(p.level[i]) - n.level[i]); off > 1e-2 {
					t.Fatalf("seed %d, step %d: law %d has the level %v, by brute force %v", seed, step, i, p.level[i], n.level[i])
				}
			}
		}
	}
}

// Looking at the right places, it finds the shape and the size of any law.
func TestPosteriorFindsTheLaw(t *testing.T) {
	for s := range shapes {
		for _, size := range []float64{3, 40, 2000} {
			r := rand.New(rand.NewPCG(uint64(s), 1))
			var p posterior
			p.forget()
			for i := range 400 {
				lnN := math.Log(size) + []float64{-1, -0.3, 0.5, 1.2}[i%4]
				if lnN < 0 {
					continue
				}
				p.wander(0.001, recallDoubt)
				p.observe(lnN, 2+s.lnSpeed(lnN-math.Log(size))+0.05*r.NormFloat64(), 0.0025, true)
			}
			g := p.gist()
			best := size * math.Exp(bestZ[s])
			if g.shape != s || g.low > best*1.1 || g.high < best/1.1 || g.high > 2*g.low {
				t.Errorf("shape %d of %v: found %q (%v to %v, best %v)", s, size, g.inWords(), g.low, g.high, best)
			}
		}
	}
}

// The table says what the formulas say.
func TestLawTable(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 5))
	for range 20_000 {
		law, lnN := r.IntN(laws), lnLargest*r.Float64()
		want := shape(law / sizes).lnSpeed(lnN - lnSize(law%sizes))
		if got := float64(locate(lnN).lnSpeed(law)); math.Abs(got-want) > 6e-3 {
			t.Fatalf("law %d at %v: %v, want %v", law, lnN, got, want)
		}
	}
	for _, lnN := range []float64{-5, 0, 1e9, math.Inf(1), math.Inf(-1)} {
		for law := range laws {
			if got := float64(locate(lnN).lnSpeed(law)); !(got <= 0 && got > -50) {
				t.Fatalf("law %d at %v: %v", law, lnN, got)
			}
		}
	}
}

// Work never becomes faster with more inside, and the best concurrency is where one per cent
// more brings as much as it costs.
func TestLaws(t *testing.T) {
	for s := range shapes {
		for lnZ := -6.0; lnZ < 9; lnZ += 0.01 {
			if s.lnSpeed(lnZ+0.01) > s.lnSpeed(lnZ)+1e-12 {
				t.Fatalf("shape %d becomes faster at %v", s, lnZ)
			}
		}
		worth := func(lnZ float64) float64 { return (1-price)*lnZ + s.lnSpeed(lnZ) }
		if at := bestZ[s]; worth(at) < worth(at-0.02) || worth(at) < worth(at+0.02) || at < -1 || at > most*sizeStep {
			t.Errorf("shape %d: best at %v", s, at)
		}
	}
	if top := ladder[len(ladder)-1].limit; top < 10_000 || top > 14_000 {
		t.Errorf("limits up to %d are weighed; the default bound is 10,000, and the reference says 14,000", top)
	}
	sum := 0.0
	for _, u := range usual {
		sum += u
	}
	if math.Abs(sum-1) > 1e-9 {
		t.Errorf("the shapes share %v", sum)
	}
}

// An outline keeps what matters, and what is none is refused.
func TestOutline(t *testing.T) {
	var p, q posterior
	p.forget()
	p.lean(math.Log(50), func(d float64) float64 { return math.Exp(-d * d * 20) })
	o := p.outline()
	var again outline
	if !again.parse(o.String()) || again != o {
		t.Fatalf("%q became %q", o.String(), again.String())
	}
	q.forget()
	q.recall(&again)
	a, b := p.gist(), q.gist()
	if a.shape != b.shape || math.Abs(math.Log(a.low/b.low)) > 0.35 || math.Abs(math.Log(a.high/b.high)) > 0.35 {
		t.Errorf("%v became %v", a.inWords(), b.inWords())
	}
	for _, bad := range []string{"", "x", "00", o.String()[2:], o.String() + "00", "000000000000000000000000000000"} {
		if again.parse(bad) {
			t.Errorf("%q is taken for an outline", bad)
		}
	}
	if again != o {
		t.Errorf("an outline that cannot be read changed it")
	}
}

// What makes no sense does not stick.
func TestPosteriorForgetsNonsense(t *testing.T) {
	odd := []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e300, -1e300, 0}
	for _, lnN := range odd {
		for _, speed := range odd {
			var p posterior
			p.forget()
			p.observe(lnN, speed, 0.01, true)
			p.wander(0.01, 0.01)
			for range 30 {
				p.observe(3, -2, 0.01, true)
			}
			mean, variance := p.speed(3)
			if !(math.Abs(mean+2) < 0.1) || !(variance < 1) {
				t.Errorf("after %v at %v: %v, %v", speed, lnN, mean, variance)
			}
		}
	}
}

// The worth of a limit is its mean over all laws, by brute force: with formulas for tables, and
// without leaving any law out. What is expected to be lost is the mean of what each law loses.
func TestWorthIsAMean(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 5))
		b, err := NewBelief(BeliefConfig{})
		if err != nil {
			t.Fatal(err)
		}
		b.Restore(State{Limit: 3 + 200*r.Float64()})
		lnK := b.at + r.NormFloat64()/2
		for range 15 {
			lnN := b.at + r.NormFloat64()/3
			b.laws.observe(lnN, shape(seed%uint64(shapes)).lnSpeed(lnN-lnK)-3, 0.01, false)
		}
		if seed%2 == 0 {
			b.late.atLeast(0.3*r.Float64(), b.at)
		}
		s := b.newScale()
		here := nearest(math.Log(float64(b.limit())))
		worths := map[int]float64{}
		for i := max(0, here-reach); i <= here+reach; i++ {
			worths[i], _ = s.weigh(&ladder[i])
			var want float64
			for law, w := range b.laws.weight {
				want += float64(w) * worthBy(b, law, ladder[i].ln)
			}
			if math.Abs(worths[i]-want) > 0.02 {
				t.Fatalf("seed %d: %d slots are worth %v, by brute force %v", seed, ladder[i].limit, worths[i], want)
			}
		}
		best := &ladder[here+2]
		s.compareWith(best)
		for i := here; i <= here+reachUp; i++ {
			var want float64
			for law, w := range b.laws.weight {
				want += float64(w) * max(0, worthBy(b, law, ladder[i].ln)-worthBy(b, law, best.ln))
			}
			if got := s.gain(&ladder[i]); math.Abs(got-want) > 0.01 {
				t.Fatalf("seed %d: to know of %d slots brings %v, by brute force %v", seed, ladder[i].limit, got, want)
			}
		}
		b.weighLoss()
		var lost float64
		for law, w := range b.laws.weight {
			best := math.Inf(-1)
			for i := range worths {
				best = max(best, worthBy(b, law, ladder[i].ln))
			}
			lost += float64(w) * (best - worthBy(b, law, ladder[here].ln))
		}
		if math.Abs(b.loss-lost) > 0.02 {
			t.Errorf("seed %d: %v is expected to be lost, by brute force %v", seed, b.loss, lost)
		}
	}
}

// worthBy is what a limit is worth by one law.
func worthBy(b *Belief, law int, lnN float64) float64 {
	s, lnK := shape(law/sizes), lnSize(law%sizes)
	worth := (1-price)*lnN + s.lnSpeed(lnN-lnK)
	if share := b.late.share(); share > 0.005 {
		slower := math.Exp(s.lnSpeed(b.late.lnN/b.late.n-lnK) - s.lnSpeed(lnN-lnK))
		worth += math.Log(max(1e-3, 1-math.Pow(share, 1/slower)))
	}
	return worth
}

// What the limit in force is expected to lose is weighed with what is believed now, whatever chose that limit.
func TestLossIsThatOfNow(t *testing.T) {
	b := newBelief(t, BeliefConfig{})
	g, said := worldOf(b, 30), 0
	g.decided = func(d Decision) {
		if b.mode != tracking {
			return
		}
		now := *b
		now.weighLoss()
		if want := 1 - math.Exp(-max(0, now.loss)); math.Abs(d.Estimate.Loss-want) > 0.005 {
			t.Errorf("at %v, %s: %.3f said to be lost, and not %.3f", g.now, d.Reason, d.Estimate.Loss, want)
		}
		said++
	}
	g.run(30 * time.Second)
	g.resize(60)
	g.run(10 * time.Second)
	if said < 100 {
		t.Errorf("said %d times", said)
	}
}
