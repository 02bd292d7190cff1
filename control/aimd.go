package control

import (
	"fmt"
	"math"
	"time"
)

// AIMDConfig configures [NewAIMD]. The zero value of a field means its default.
type AIMDConfig struct {
	// Initial is the first limit, clamped to Min and Max. Default 20.
	Initial int64
	// Min and Max bound the limit; Min is at least 1, because a limit of 0
	// admits nothing, sees no samples, and would stay there for ever.
	// Defaults 1 and 1000.
	Min, Max int64

	// Threshold is the latency above which the window counts as overloaded.
	// Default 5 s; set it to about half of what your clients wait.
	Threshold time.Duration
	// Percentile of the window's latencies is compared with Threshold.
	// Range (0, 1], default 0.95.
	Percentile float64
	// Backoff is what the limit is multiplied by on overload. Range [0.5, 1),
	// default 0.9.
	Backoff float64

	// Window is how long to gather samples. Default 1 s, at least 10 ms.
	Window time.Duration
	// MinSamples is how many outcomes a window needs to be judged; a thinner
	// one is extended, not thrown away, so that its drops are not lost.
	// Default 10.
	MinSamples int64
}

// AIMD adds one to the limit after a window in which latency was fine and at
// least half of the limit was used, and multiplies the limit by Backoff after a
// window whose latency percentile exceeded the threshold or in which anything
// was dropped (timed out, refused below, or abandoned). It is the algorithm of
// Netflix's concurrency-limits AIMDLimit, fed window aggregates as in Klaviyo's
// variant: the percentile, the highest in-flight, whether anything was dropped.
//
// Two departures: the minimum is 1 and Initial is clamped to the bounds; and a
// window of nothing but drops counts (upstream's Go port freezes there).
//
// It assumes that the threshold fits the backend: it settles where latency
// touches the threshold, not where throughput is best. It climbs by one a
// window, so a backend that wants hundreds of slots waits minutes for them; and
// it judges only windows of MinSamples outcomes, so before a backend of a few
// requests a second an Initial that is too high stays too high. An idle service
// with one slow call shrinks too.
type AIMD struct {
	cfg   AIMDConfig
	limit int64
}

// NewAIMD returns an AIMD controller, or an error that names every field out of
// range.
func NewAIMD(cfg AIMDConfig) (*AIMD, error) {
	def(&cfg.Initial, 20)
	def(&cfg.Min, 1)
	def(&cfg.Max, 1000)
	def(&cfg.Threshold, 5*time.Second)
	def(&cfg.Percentile, 0.95)
	def(&cfg.Backoff, 0.9)
	def(&cfg.Window, time.Second)
	def(&cfg.MinSamples, 10)
	var f faults
	f.check(cfg.Min >= 1, "Min %d: must be at least 1", cfg.Min)
	f.check(cfg.Max >= cfg.Min, "Max %d: must not be below Min %d", cfg.Max, cfg.Min)
	f.check(cfg.Threshold > 0, "Threshold %v: must be positive", cfg.Threshold)
	f.check(cfg.Percentile > 0 && cfg.Percentile <= 1, "Percentile %v: must be in (0, 1]", cfg.Percentile)
	f.check(cfg.Backoff >= 0.5 && cfg.Backoff < 1, "Backoff %v: must be in [0.5, 1)", cfg.Backoff)
	f.check(cfg.Window >= 10*time.Millisecond, "Window %v: must be at least 10ms", cfg.Window)
	f.check(cfg.MinSamples >= 1, "MinSamples %d: must be at least 1", cfg.MinSamples)
	if err := f.err("aimd"); err != nil {
		return nil, err
	}
	return &AIMD{cfg: cfg, limit: min(max(cfg.Initial, cfg.Min), cfg.Max)}, nil
}

// Name implements [Controller].
func (a *AIMD) Name() string { return "aimd" }

// Start implements [Controller].
func (a *AIMD) Start() Decision {
	return Decision{Limit: a.limit, Next: a.cfg.Window, Reason: "initial"}
}

// Update implements [Controller].
func (a *AIMD) Update(w *Window) Decision {
	d := Decision{Limit: a.limit, Next: a.cfg.Window}
	dropped := w.Dropped()
	latency := w.Quantile(a.cfg.Percentile)
	switch {
	case w.OK+dropped < a.cfg.MinSamples:
		d.Extend = true
		d.Reason = fmt.Sprintf("%d samples, %d needed", w.OK+dropped, a.cfg.MinSamples)
		return d
	case dropped > 0:
		a.limit = int64(float64(a.limit) * a.cfg.Backoff)
		d.Reason = fmt.Sprintf("%d dropped", dropped)
	case latency > a.cfg.Threshold:
		a.limit = int64(float64(a.limit) * a.cfg.Backoff)
		d.Reason = fmt.Sprintf("p%g %v over %v", math.Round(1000*a.cfg.Percentile)/10, latency, a.cfg.Threshold)
	case 2*w.MaxInFlight >= a.limit:
		a.limit++
		d.Reason = "latency fine, limit in use"
	default:
		d.Reason = fmt.Sprintf("not in use: %d of %d", w.MaxInFlight, a.limit)
	}
	a.limit = min(max(a.limit, a.cfg.Min), a.cfg.Max)
	d.Limit = a.limit
	return d
}

// Save implements [Saver].
func (a *AIMD) Save() State { return State{Limit: float64(a.limit)} }

// Restore implements [Saver].
func (a *AIMD) Restore(s State) {
	if s.Limit >= 1 { // false for NaN too
		a.limit = min(max(int64(min(s.Limit, float64(a.cfg.Max))), a.cfg.Min), a.cfg.Max)
	}
}
