package control

import (
	"fmt"
	"math"
	"time"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
)

// Gradient2Config configures [NewGradient2]. The zero value of a field means its
// default. The defaults are those of Netflix's Gradient2Limit inside its
// WindowedLimit where that has the field.
type Gradient2Config struct {
	// Initial is the first limit, clamped to Min and Max.
	Initial int64 `json:",omitempty" default:"20"`
	// Min and Max bound the limit.
	Min int64 `json:",omitempty" default:"20" min:"1"`
	Max int64 `json:",omitempty" default:"200" max:"1073741824"`

	// Weight of the new limit against the old.
	Smoothing float64 `json:"smoothing,omitempty" default:"0.2" min:"0.001" max:"1"`
	// How much may stand in the upstream's queue.
	Queue int64 `json:"queue,omitempty" default:"4" min:"1" max:"1073741824"`
	// Use the square root of the limit instead where that is more.
	RootQueue bool `json:"root_queue,omitempty" default:"false"`
	// Over how many observations the baseline latency is averaged.
	LongWindow int64 `json:"long_window,omitempty" default:"600" min:"1"`
	// How many times the baseline latency may be before the limit shrinks.
	Tolerance float64 `json:"tolerance,omitempty" default:"1.5" min:"1"`

	// How many times the latency at min the baseline may be at most. Not with shipped.
	Rise float64 `json:"rise,omitempty" default:"1.2" min:"1"`
	// After how many windows of too high latency the latency at min is measured anew. Each other window
	// takes half a window off the count. Not with shipped.
	Recheck int64 `json:"recheck,omitempty" default:"60" min:"1" max:"1000000"`
	// Behave as concurrency-limits ships it: the baseline follows any lasting load, and drops are ignored. For
	// comparison.
	Shipped bool `json:"shipped,omitempty" default:"false"`
	// Backoff multiplies the limit after a window with drops. Not with Shipped.
	Backoff float64 `json:",omitempty" default:"0.9" min:"0.000001" max:"0.999999"`

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

// Gradient2 compares latency with its own long-term average, the baseline. It
// multiplies the limit by Tolerance × baseline / latency, within a half and one,
// and adds room for a short queue. The result is smoothed. It is Netflix's
// Gradient2Limit with another baseline.
//
// # The baseline
//
// Upstream's baseline forgets: the average follows whatever lasts. After ten minutes of
// overload it takes overload for normal, and the limit returns to Max. Here the baseline
// is at most Rise times the floor. The floor is the latency measured with no more than
// Min in flight. The floor goes down a tenth of the way with every observation below it.
// It goes up only with observations that had at most Min in flight, so load cannot raise
// it.
//
// A backend that has become slower for good looks like overload at first: the limit
// shrinks. After Recheck windows of that the limit goes to Min. It stays there until the
// work admitted before has finished, and one window more, whose latency is the new
// floor. If the backend is slower, the baseline may rise to it. Then the limit grows
// again, by at most Smoothing × Queue a window. If it is overloaded, the floor is what
// it was. The same happens if the first observations all had more than Min in flight.
// The defaults begin to follow a slow-down after one to four minutes. Under lasting
// overload of a backend that answers within a window they cost two windows in 62.
//
// Exempt work can keep more than Min in flight. If in flight does not fall for 20
// windows, the measurement ends and the floor stays.
//
// Drops (timed out, refused by the backend, abandoned) multiply the limit by Backoff,
// and their window says nothing about the baseline. Upstream ignores drops, so a backend
// that fails fast looks healthy.
//
// # Assumptions, and where it fails
//
// Latency grows with the queue, Min in flight is no overload, and work costs the same
// each time. If latency stays mildly too high, the limit still rises to Queue / (1 −
// gradient). That is 20 for a gradient of 0.8, 40 for 0.9, 80 for 0.95. A backend that
// cannot take Min (20 by default) is overloaded for good. Where latency grows with
// concurrency without a queue (locks, cores that thrash) it stops too early. Where work
// differs much in cost it follows the mix.
type Gradient2 struct {
	bounded
	cfg        Gradient2Config
	aggregator aggregator

	long  float64 // the baseline, ns
	sum   float64 // of the first observations
	count int     // of them, up to warmUp
	floor float64 // latency with at most Min in flight, ns; 0: not known

	known    bool  // floor comes from at most Min in flight
	slow     bool  // the last step found latency above the baseline
	held     int64 // twice the windows in which latency kept the limit down, less the others
	checking bool  // the limit is Min, to measure the floor
	measured bool  // that is done
	stalled  int   // windows of it after which no less was in flight
	left     int64 // in flight at the end of the last one

	why  string // of the last step
	last observation
}

// NewGradient2 returns a Gradient2 controller, or an error that names every
// field out of range.
func NewGradient2(cfg Gradient2Config) (*Gradient2, error) {
	var f fault.List
	setting.Complete(&cfg, &f)
	checkBounds(&f, cfg.Min, cfg.Max)
	if err := f.Err("control: gradient2"); err != nil {
		return nil, err
	}
	t := aggregator{take: cfg.Take, percentile: cfg.Percentile, enough: cfg.MinSamples}
	return &Gradient2{bounded: newBounded("gradient2", cfg.Initial, cfg.Min, cfg.Max, cfg.Window), cfg: cfg, aggregator: t}, nil
}

// Update implements [Controller].
func (g *Gradient2) Update(w *Window) Decision {
	fed, extend, why := g.aggregator.feed(w, g.step)
	if fed {
		why = fmt.Sprintf("%s: %v %v, baseline %v", g.why, g.aggregator, g.last.rtt, time.Duration(g.long).Round(time.Microsecond))
		g.check(w)
	}
	d := g.decide(why)
	d.Extend = extend
	if g.checking {
		d.Limit = g.cfg.Min
	}
	return d
}

func (g *Gradient2) step(o observation) {
	g.last, g.slow = o, false
	switch {
	case g.checking:
		g.measure(o)
	case o.drop && !g.cfg.Shipped:
		g.set(product(g.limit, g.cfg.Backoff))
		g.why = "dropped"
	case o.rtt <= 0:
		g.why = "no latency"
	default:
		g.follow(o)
	}
}

// check decides when the floor is measured again, and when that is over.
func (g *Gradient2) check(w *Window) {
	if g.cfg.Shipped {
		return
	}
	if g.checking {
		if w.InFlight >= g.left {
			g.stalled++
		}
		g.left = w.InFlight
		g.checking = !g.measured && g.stalled <= mostStalled
		g.known = g.known || !g.checking
		return
	}
	if g.slow {
		g.held += 2
	} else {
		g.held = max(0, g.held-1)
	}
	if g.held >= 2*g.cfg.Recheck || g.count >= warmUp && !g.known {
		g.held, g.stalled, g.left = 0, 0, w.InFlight
		g.checking, g.measured = true, false
	}
}

// mostStalled is how many windows of a measurement may pass without less in flight
// at the end. Exempt work alone can keep more than Min in flight.
const mostStalled = 20

// measure sets the floor from work that had at most Min in flight. Work admitted
// before the limit went to Min waited behind more.
func (g *Gradient2) measure(o observation) {
	if o.inFlight > float64(g.cfg.Min) {
		g.why = "draining to measure"
		return
	}
	g.why = "measured at Min"
	switch {
	case o.rtt <= 0 || o.drop:
	case g.measured:
		g.approach(float64(o.rtt))
	default:
		g.floor = float64(o.rtt)
	}
	g.measured = true
}

func (g *Gradient2) follow(o observation) {
	short := float64(o.rtt)
	long := g.average(short)
	if !g.cfg.Shipped {
		long = g.bound(o, short, long)
	}
	if long/short > 2 {
		g.long = product(long, 0.95) // a baseline that is far too long comes down faster
	}
	if o.inFlight < g.limit/2 {
		g.why = "not in use"
		return
	}
	gradient := max(0.5, min(1, g.cfg.Tolerance*long/short))
	g.why = "latency fine, limit in use"
	if g.slow = gradient < 1; g.slow {
		g.why = "slower than the baseline"
	}
	next := product(g.limit, gradient) + g.queue()
	g.set(product(g.limit, 1-g.cfg.Smoothing) + product(next, g.cfg.Smoothing))
}

// average adds short to the baseline and returns it.
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

// warmUp is how many observations the baseline is a plain mean of.
const warmUp = 10

// bound updates the floor and keeps the baseline within Rise times that.
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

// approach moves the floor a tenth of the way.
func (g *Gradient2) approach(short float64) { g.floor += product(0.1, short-g.floor) }

func (g *Gradient2) queue() float64 {
	if g.cfg.RootQueue {
		return root(g.limit, float64(g.cfg.Queue))
	}
	return float64(g.cfg.Queue)
}

// root is the square root of the whole limit, rounded down, at least low.
func root(limit, low float64) float64 {
	return max(low, math.Trunc(math.Sqrt(math.Trunc(limit))))
}

// Save implements [Saver]. The baseline is the floor, unless Shipped.
func (g *Gradient2) Save() State {
	base := g.floor
	if g.cfg.Shipped {
		base = g.long
	}
	return State{Limit: g.limit, Baseline: time.Duration(base)}
}

// Restore implements [Saver].
func (g *Gradient2) Restore(s State) {
	g.bounded.Restore(s)
	if s.Baseline > 0 {
		g.long, g.floor = float64(s.Baseline), float64(s.Baseline)
		g.sum, g.count, g.known = 0, warmUp, true
	}
}
