package control

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
)

// VegasConfig configures [NewVegas]. The zero value of a field means its
// default; the defaults are those of Netflix's VegasLimit inside its
// WindowedLimit.
type VegasConfig struct {
	// Initial is the first limit, clamped to Min and Max.
	Initial int64 `json:",omitempty" default:"20"`
	// Min and Max bound the limit.
	Min int64 `json:",omitempty" default:"1" min:"1"`
	Max int64 `json:",omitempty" default:"1000" max:"1073741824"`

	// Shortest queue in the upstream, in decimal logarithms of the limit; below it the limit grows.
	Alpha float64 `json:"alpha,omitempty" default:"3" min:"0.001" max:"1073741824"`
	// Longest queue, in the same unit; above it the limit shrinks.
	Beta float64 `json:"beta,omitempty" default:"6" min:"0.001" max:"1073741824"`
	// Backoff, if set, multiplies the limit instead of subtracting the logarithm.
	// It does so when the queue is longer than Beta or something was dropped.
	Backoff float64 `json:",omitempty" min:"0.000001" max:"0.999999"`
	// Weight of the new limit against the old.
	Smoothing float64 `json:"smoothing,omitempty" default:"1" min:"0.001" max:"1"`
	// The latency without load is learned anew after about three quarters of this times the limit of
	// observations.
	ProbeMultiplier int64 `json:"probe_multiplier,omitempty" default:"30" min:"1"`
	// Rand returns numbers in [0, 1) that keep several instances from probing
	// at the same time. Default: a generator of its own with a fixed seed.
	Rand func() float64 `json:"-"`

	// Take says which latency of the window counts.
	Take Aggregate `json:",omitempty" default:"mean" enum:"mean,min,percentile,each"`
	// Percentile is the one for AggregatePercentile, as a share.
	Percentile float64 `json:",omitempty" default:"0.95" min:"0.000001" max:"1"`
	// Window is how long to gather samples.
	Window time.Duration `json:",omitempty" default:"1s" min:"10ms"`
	// MinSamples is how many outcomes a window needs to be judged; a thinner
	// one is extended. AggregateEach needs none.
	MinSamples int64 `json:",omitempty" default:"10" min:"1"`
}

// Vegas estimates how much of the limit waits in the backend's queue, as limit × (1 −
// shortest latency / latency). It keeps that between Alpha and Beta. It is TCP Vegas
// as in Netflix's VegasLimit. With a queue of at most the logarithm of the limit it
// adds Beta; below Alpha it adds the logarithm. Above Beta, or after a drop, it
// subtracts the logarithm. (Upstream's comments speak of a square root, its README of
// steps of one; this is what its code does.)
//
// It assumes that work costs the same each time and that the shortest latency
// was seen without a queue. Where it fails:
//
//   - The shortest latency ratchets. Every ProbeMultiplier × limit observations the
//     current latency replaces it. Under lasting load that includes a queue. So the
//     estimate of the queue shrinks, the limit grows, and the next probe starts from
//     a longer queue.
//   - Work of different cost looks like a queue. With exponential service times and
//     [AggregateMin] it gives away about a fifth of the throughput, with AggregateEach
//     most of it.
//   - An observation that is shorter than the shortest so far only sets the new
//     shortest, even a drop. A backend that fails fast looks like a fast one.
//   - It adds a logarithm a window, so hundreds of slots take minutes.
type Vegas struct {
	bounded
	cfg        VegasConfig
	aggregator aggregator
	minRTT     time.Duration // 0: none yet
	jitter     float64       // in [0.5, 1)
	count      float64       // observations since the last probe
	why        string        // of the last step
	last       observation
}

// NewVegas returns a Vegas controller, or an error that names every field out of
// range.
func NewVegas(cfg VegasConfig) (*Vegas, error) {
	if cfg.Rand == nil {
		cfg.Rand = rand.New(rand.NewPCG(1, 2)).Float64
	}
	var f fault.List
	setting.Complete(&cfg, &f)
	checkBounds(&f, cfg.Min, cfg.Max)
	f.Check(cfg.Beta >= cfg.Alpha, fault.Path{"Beta"}, cfg.Beta, "must not be below alpha, which is %v", cfg.Alpha)
	if err := f.Err("control: vegas"); err != nil {
		return nil, err
	}
	t := aggregator{take: cfg.Take, percentile: cfg.Percentile, enough: cfg.MinSamples}
	v := &Vegas{bounded: newBounded("vegas", cfg.Initial, cfg.Min, cfg.Max, cfg.Window), cfg: cfg, aggregator: t}
	v.draw()
	return v, nil
}

// Update implements [Controller].
func (v *Vegas) Update(w *Window) Decision {
	fed, extend, why := v.aggregator.feed(w, v.step)
	if fed {
		why = fmt.Sprintf("%s: %v %v, shortest %v", v.why, v.aggregator, v.last.rtt, v.minRTT)
	}
	d := v.decide(why)
	d.Extend = extend
	return d
}

func (v *Vegas) step(o observation) {
	v.last = o
	if o.rtt <= 0 {
		v.why = "no latency"
		return
	}
	v.count++
	if product(product(v.jitter, float64(v.cfg.ProbeMultiplier)), v.limit) <= v.count {
		v.draw()
		v.minRTT, v.why = o.rtt, "probed"
		return
	}
	if v.minRTT == 0 || o.rtt < v.minRTT {
		v.minRTT, v.why = o.rtt, "a new shortest latency"
		return
	}
	var next float64
	if next, v.why = v.limitFor(o); next != v.limit {
		next = within(next, v.cfg.Min, v.cfg.Max)
		next = product(1-v.cfg.Smoothing, v.limit) + product(v.cfg.Smoothing, next)
		v.set(next) // a mean of two 15s may be 14.99
	}
}

// draw chooses when the next probe is due.
func (v *Vegas) draw() {
	v.count = 0
	v.jitter = 0.5 + 0.5*v.cfg.Rand()
	if !(v.jitter >= 0.5 && v.jitter < 1) { // NaN too
		v.jitter = 0.75
	}
}

// limitFor returns the limit that o calls for.
func (v *Vegas) limitFor(o observation) (float64, string) {
	queue := math.Ceil(product(v.limit, 1-float64(v.minRTT)/float64(o.rtt)))
	unit := logarithm(v.limit)
	switch {
	case o.drop:
		return v.decrease(unit), "dropped"
	case 2*o.inFlight < v.limit:
		return v.limit, "not in use"
	case queue <= unit:
		return v.limit + product(v.cfg.Beta, unit), "no queue"
	case queue < product(v.cfg.Alpha, unit):
		return v.limit + unit, "a short queue"
	case queue > product(v.cfg.Beta, unit):
		return v.decrease(unit), "a long queue"
	}
	return v.limit, "a fair queue"
}

func (v *Vegas) decrease(unit float64) float64 {
	if v.cfg.Backoff > 0 {
		return product(v.limit, v.cfg.Backoff)
	}
	return v.limit - unit
}

// logarithm is the decimal one of the whole limit, rounded down, at least 1.
// Counted, because math.Log10(1000) is a little below 3.
func logarithm(limit float64) float64 {
	n := 0
	for whole := int64(limit); whole >= 10; whole /= 10 {
		n++
	}
	return float64(max(1, n))
}

// Save implements [Saver].
func (v *Vegas) Save() State { return State{Limit: v.limit, Baseline: v.minRTT} }

// Restore implements [Saver].
func (v *Vegas) Restore(s State) {
	v.bounded.Restore(s)
	if s.Baseline > 0 {
		v.minRTT = s.Baseline
	}
}
