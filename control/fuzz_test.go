package control

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// newController makes a controller within bounds, or returns an error if its
// configuration does not allow them.
type newController func(initial, low, high int64, variant uint8) (Controller, error)

// controllers are those that FuzzControllers drives.
var controllers = map[string]newController{
	"aimd": func(initial, low, high int64, variant uint8) (Controller, error) {
		return NewAIMD(AIMDConfig{Initial: initial, Min: low, Max: high, Take: take(variant), DiscardThin: variant&8 != 0})
	},
	"vegas": func(initial, low, high int64, variant uint8) (Controller, error) {
		return NewVegas(VegasConfig{
			Initial: initial, Min: low, Max: high, Take: take(variant), MinSamples: 1, ProbeMultiplier: 1,
			Smoothing: 1 / float64(1+variant>>4), Backoff: float64(variant&8) / 16,
		})
	},
	"gradient2": func(initial, low, high int64, variant uint8) (Controller, error) {
		return NewGradient2(Gradient2Config{
			Initial: initial, Min: low, Max: high, Take: take(variant), MinSamples: 1,
			Shipped: variant&8 != 0, RootQueue: variant&16 != 0, Recheck: 1 + int64(variant>>5),
		})
	},
	"probe": func(initial, low, high int64, variant uint8) (Controller, error) {
		return NewProbe(ProbeConfig{Initial: initial, Min: low, Max: high, Step: 0.01 + float64(variant)/1000})
	},
	"probe read": func(initial, low, high int64, variant uint8) (Controller, error) {
		p, err := NewProbePair(ProbeConfig{Initial: initial, Min: low, Max: high, ReadRatio: (1 + float64(variant)) / 258})
		return two{p}, err
	},
	"knee": func(initial, low, high int64, _ uint8) (Controller, error) {
		return NewKnee(KneeConfig{Initial: initial, Min: low, Max: high})
	},
	"belief": func(initial, low, high int64, _ uint8) (Controller, error) {
		return NewBelief(BeliefConfig{Initial: initial, Min: low, Max: high})
	},
	"lag": func(initial, low, high int64, variant uint8) (Controller, error) {
		return NewLagMap(LagMapConfig{
			Initial: initial, Min: low, Max: high, Hold: int(variant%4) - 1,
			Smoothing: 1 / float64(1+variant>>6), MaxChange: 1 / float64(1+variant>>5), Hysteresis: float64(variant&16) / 32,
		})
	},
	"drain": func(initial, low, high int64, variant uint8) (Controller, error) {
		return NewDrain(DrainConfig{Initial: initial, Min: low, Max: high, Hold: int(variant%4) - 1, Target: 1 + float64(variant)})
	},
}

func take(variant uint8) Aggregate {
	return []Aggregate{AggregateMean, AggregateMin, AggregatePercentile, AggregateEach}[variant%4]
}

// two drives a pair by turns and answers with the limit that is further off.
type two struct{ *ProbePair }

func (two) Name() string { return "probe" }

func (p two) Start() Decision { return p.Read().Start() }

func (p two) Update(w *Window) Decision {
	d := p.Read().Update(w)
	if e := p.Write().Update(w); w.OK%2 == 0 {
		d = e
	}
	return d
}

// FuzzControllers feeds windows of every kind, sensible and not: the limit stays
// within its bounds, there is always a next window and a reason, nothing panics,
// and the same windows lead to the same decisions.
func FuzzControllers(f *testing.F) {
	f.Add(uint64(1), int64(20), int64(1), int64(1000), uint8(0), math.NaN())
	f.Add(uint64(2), int64(1), int64(1), int64(1), uint8(255), math.Inf(1))
	f.Add(uint64(3), int64(math.MaxInt64), int64(1<<30), int64(1<<30), uint8(3), -math.MaxFloat64)
	f.Add(uint64(4), int64(500), int64(10), int64(2000), uint8(42), 55_000.0)
	f.Fuzz(func(t *testing.T, seed uint64, initial, low, high int64, variant uint8, lag float64) {
		if low == 0 || high == 0 {
			return // the defaults, which differ
		}
		for name, make := range controllers {
			c, err := make(initial, low, high, variant)
			if err != nil {
				continue
			}
			again, err := make(initial, low, high, variant)
			if err != nil {
				t.Fatalf("%s: the second time: %v", name, err)
			}
			check(t, name, c.Start(), low, high)
			r := rand.New(rand.NewPCG(seed, 0))
			for range 50 {
				w := wild(r, lag)
				d := c.Update(w)
				check(t, name, d, low, high)
				if e := again.Update(w); e != d {
					t.Fatalf("%s: %+v and %+v from the same windows", name, d, e)
				}
				if r.IntN(8) == 0 {
					restart(t, c)
					restart(t, again)
				}
			}
		}
	})
}

// FuzzBelief feeds sequences of windows, some sensible and some not. What is believed stays a
// belief: weights that are none sum to 1, no number is lost, and sense comes back.
func FuzzBelief(f *testing.F) {
	f.Add(uint64(1), []byte{0, 1, 2, 3, 4, 5, 6, 7}, 30.0)
	f.Add(uint64(2), []byte{2, 2, 2, 2, 9, 9, 9, 0, 0, 0, 3}, math.NaN())
	f.Add(uint64(3), []byte{4, 4, 4, 1, 1, 1, 5, 5}, math.Inf(1))
	f.Fuzz(func(t *testing.T, seed uint64, script []byte, lag float64) {
		c, err := NewBelief(BeliefConfig{})
		if err != nil {
			t.Fatal(err)
		}
		g := worldOf(c, 30)
		g.random = rand.New(rand.NewPCG(seed, 1))
		for _, what := range script[:min(len(script), 60)] {
			switch what % 8 {
			case 0:
				g.resize(1 + int(what)/4)
			case 1:
				g.failing = !g.failing
			case 2:
				g.demand = int64(what / 8)
			case 3:
				g.now += time.Duration(what) * time.Second
			case 4:
				w := wild(g.random, lag)
				c.Update(w)
				c.now = g.now // the clock was wrong once
			case 5:
				restart(t, c)
			case 6:
				g.good = func(life time.Duration) bool { return life < time.Duration(what)*ms }
			}
			for range 3 {
				g.window()
			}
			believable(t, c)
		}
	})
}

// believable checks all that a belief holds.
func believable(t *testing.T, b *Belief) {
	t.Helper()
	sum := 0.0
	for i, w := range b.laws.weight {
		sum += float64(w)
		if level := float64(b.laws.level[i]); !(w >= 0 && math.Abs(level) < 1000) {
			t.Fatalf("law %d has the weight %v and the level %v", i, w, level)
		}
	}
	for _, x := range []float64{b.at, b.noise, b.raw, b.laws.spread, b.mean, b.long, b.mid, b.pace.ln, b.pace.seconds, b.loss, b.late.share(), b.change.slower, b.change.faster, b.climb.rate} {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			t.Fatalf("no number: %+v", *b)
		}
	}
	if d := b.decide("-"); math.Abs(sum-1) > 1e-3 || d.Estimate != (Estimate{}) && !sensible(d.Estimate) {
		t.Fatalf("the weights sum to %v, and it says %+v", sum, d)
	}
}

func check(t *testing.T, name string, d Decision, low, high int64) {
	t.Helper()
	if d.Limit < low || d.Limit > high || d.Next <= 0 || d.Reason == "" {
		t.Fatalf("%s: %+v; bounds %d and %d", name, d, low, high)
	}
}

// restart saves the state and takes it up again, by way of JSON.
func restart(t *testing.T, c Controller) {
	t.Helper()
	s, ok := c.(Saver)
	if !ok {
		return
	}
	b, err := json.Marshal(s.Save())
	if err != nil {
		t.Fatalf("%s: %v", c.Name(), err)
	}
	var state State
	if err := json.Unmarshal(b, &state); err != nil {
		t.Fatalf("%s: %v", c.Name(), err)
	}
	s.Restore(state)
}

// wild makes a window of numbers that are zero, small, huge or negative.
func wild(r *rand.Rand, lag float64) *Window {
	n := func() int64 {
		switch r.IntN(8) {
		case 0:
			return 0
		case 1:
			return math.MaxInt64
		case 2:
			return -r.Int64N(1000)
		case 3:
			return r.Int64()
		}
		return r.Int64N(2000)
	}
	length := func() time.Duration { return time.Duration(n()) }
	w := &Window{
		Now: length(), Elapsed: length(), Limit: n(), InFlight: n(), MaxInFlight: n(), Waiting: n(), Saturated: length(),
		Admitted: n(), OK: n(), Failed: n(), Overload: n(), Abandoned: n(), LatencySum: length(), Timed: n(),
	}
	if r.IntN(2) == 0 {
		w.Overload, w.Abandoned = 0, 0
	}
	for range r.IntN(20) {
		w.Latencies = append(w.Latencies, length())
		w.Samples = append(w.Samples, Sample{Start: length(), Latency: length(), Concurrency: odd(r, lag), Good: r.IntN(3) > 0, Failed: r.IntN(9) == 0})
	}
	slices.Sort(w.Latencies)
	for range r.IntN(3) {
		w.Readings = append(w.Readings, Reading{Name: "lag", Value: odd(r, lag), Known: r.IntN(4) > 0})
	}
	return w
}

// odd is a number of any kind.
func odd(r *rand.Rand, given float64) float64 {
	all := []float64{given, 0, -1, 1, 12_345, 1e300, -1e300, math.NaN(), math.Inf(1), math.Inf(-1), math.SmallestNonzeroFloat64}
	return all[r.IntN(len(all))]
}

// The names are those that policies and configurations choose by.
func TestNames(t *testing.T) {
	words := map[string]string{"probe read": "probe"}
	for key, make := range controllers {
		c, err := make(20, 1, 1000, 0)
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		want := key
		if word, ok := words[key]; ok {
			want = word
		}
		if c.Name() != want {
			t.Errorf("%s calls itself %q, want %q", key, c.Name(), want)
		}
	}
	p := pair(t, ProbeConfig{})
	if r, w := p.Read().Name(), p.Write().Name(); r != "probe" || w != "probe" {
		t.Errorf("a pair calls its controllers %q and %q", r, w)
	}
}
