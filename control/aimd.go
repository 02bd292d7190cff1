package control

import (
	"fmt"
	"math"
	"time"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
)

// AIMDConfig configures [NewAIMD]. The zero value of a field means its default.
//
// Netflix's concurrency-limits runs it, inside its WindowedLimit, with Min 20, Max 200,
// Take [AggregateMean] and DiscardThin. Klaviyo describes its metrics service with a
// Window of 3 s and a Threshold of your own.
type AIMDConfig struct {
	// Initial is the first limit, clamped to Min and Max.
	Initial int64 `json:",omitempty" default:"20"`
	// Min and Max bound the limit. Min is at least 1: a limit of 0 admits
	// nothing, sees no samples, and would stay there for ever.
	Min int64 `json:",omitempty" default:"1" min:"1"`
	Max int64 `json:",omitempty" default:"1000" max:"1073741824"`

	// Threshold is the latency above which the window counts as overloaded.
	// Set it to about half of what your clients wait.
	Threshold time.Duration `json:",omitempty" default:"5s" min:"1ns"`
	// Take says which latency of the window is compared with Threshold.
	Take Aggregate `json:",omitempty" default:"percentile" enum:"mean,min,percentile,each"`
	// Percentile is the one for AggregatePercentile, as a share.
	Percentile float64 `json:",omitempty" default:"0.95" min:"0.000001" max:"1"`
	// Backoff multiplies the limit on overload.
	Backoff float64 `json:",omitempty" default:"0.9" min:"0.5" max:"0.999999"`

	// Window is how long to gather samples.
	Window time.Duration `json:",omitempty" default:"1s" min:"10ms"`
	// MinSamples is how many outcomes a window needs to be judged. A window with fewer
	// is extended, so that its drops are not lost. AggregateEach needs none.
	MinSamples int64 `json:",omitempty" default:"10" min:"1"`
	// DiscardThin discards windows of fewer than MinSamples, with their drops, as
	// Netflix's WindowedLimit does.
	DiscardThin bool `json:",omitempty"`
}

// AIMD adds one to the limit, or multiplies it by Backoff and rounds down. It adds after
// a window in which latency was fine and at least half of the limit was used. It cuts
// after a window with latency above the threshold, or in which anything was dropped
// (timed out, refused by the backend, or abandoned). This is AIMDLimit of Netflix's
// concurrency-limits. It sees one latency for each window, the most in flight, and
// whether anything was dropped.
//
// It differs from upstream in two ways. The minimum is 1, and Initial is clamped to the
// bounds. A window of nothing but drops counts; upstream's Go port freezes there.
//
// It assumes that the threshold fits the backend: the limit ends where latency touches
// the threshold, not where throughput is best. It climbs by one a window, so hundreds of
// slots take minutes ([AggregateEach] climbs by one a sample). It judges only windows of
// MinSamples outcomes. So with a few requests a second an Initial that is too high stays
// too high. An idle service with one slow call shrinks too.
type AIMD struct {
	bounded
	cfg        AIMDConfig
	aggregator aggregator
	why        verdict // of the last step
	last       observation
}

// verdict is what AIMD made of an observation.
type verdict int

const (
	unused verdict = iota
	grown
	tooSlow
	tooMuch
)

// NewAIMD returns an AIMD controller, or an error that names every field out of
// range.
func NewAIMD(cfg AIMDConfig) (*AIMD, error) {
	var f fault.List
	setting.Complete(&cfg, &f)
	checkBounds(&f, cfg.Min, cfg.Max)
	if err := f.Err("control: aimd"); err != nil {
		return nil, err
	}
	t := aggregator{take: cfg.Take, percentile: cfg.Percentile, enough: cfg.MinSamples, discard: cfg.DiscardThin}
	return &AIMD{bounded: newBounded("aimd", cfg.Initial, cfg.Min, cfg.Max, cfg.Window), cfg: cfg, aggregator: t}, nil
}

// Update implements [Controller].
func (a *AIMD) Update(w *Window) Decision {
	fed, extend, why := a.aggregator.feed(w, a.step)
	if fed {
		why = a.reason(w)
	}
	d := a.decide(why)
	d.Extend = extend
	return d
}

func (a *AIMD) step(o observation) {
	a.last = o
	switch {
	case o.drop || o.rtt > a.cfg.Threshold:
		a.why = tooSlow
		if o.drop {
			a.why = tooMuch
		}
		a.set(math.Trunc(product(a.limit, a.cfg.Backoff)))
	case 2*o.inFlight >= a.limit:
		a.why = grown
		a.set(a.limit + 1)
	default:
		a.why = unused
	}
}

func (a *AIMD) reason(w *Window) string {
	switch a.why {
	case tooMuch:
		return fmt.Sprintf("%d dropped", w.Dropped())
	case tooSlow:
		return fmt.Sprintf("%v %v over %v", a.aggregator, a.last.rtt, a.cfg.Threshold)
	case grown:
		return "latency fine, limit in use"
	}
	return fmt.Sprintf("not in use: %.0f of %.0f", a.last.inFlight, a.limit)
}

// Restore implements [Saver].
func (a *AIMD) Restore(s State) {
	a.bounded.Restore(s)
	a.limit = math.Trunc(a.limit)
}
