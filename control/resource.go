package control

import (
	"math"
	"slices"
	"time"
)

// ResourceConfig configures [NewResource]. The zero value of a field means its
// default.
type ResourceConfig struct {
	// Signals names the readings to go by, which must be pressures. Empty means
	// all: name them where a gate has a reading in another unit too, such as
	// a lag.
	Signals []string
	// Initial is the first limit, clamped to Min and Max. Default 20.
	Initial int64
	// Min and Max bound the limit; Min is at least 1, because a limit of 0
	// admits nothing and learns nothing. Defaults 1 and 1000.
	Min, Max int64
	// Window is the time between decisions. Default 250 ms, at least 10 ms; no
	// shorter than the time the signals look back, or one overload is punished
	// several times.
	Window time.Duration
	// Growth is what the limit is multiplied by at most in one window. Range
	// (1, 2], default 1.1.
	Growth float64
	// Backoff is what the limit is multiplied by at least in one window. Range
	// (0, 1), default 0.5.
	Backoff float64
}

// Resource keeps the highest pressure among the window's readings at 1: twice
// as much processor, memory or whatever the signals measure as is wanted halves
// the limit, and below 1 the limit grows while it is reached. It is admission
// by load thresholds (refuse above 85 % processor or 90 % memory), with two
// differences: the signals carry the thresholds, and there is a limit to lower
// instead of a switch, which would refuse everything and then nothing in turn.
//
// In one window the limit is divided by the pressure, within Backoff and
// Growth. Windows in which no signal is known change nothing, nor do those in
// which the limit was not reached and the pressure is below 1, or in which
// nothing was in flight.
//
// It assumes that pressure follows what is in flight. So it is blind where
// that is not so: a backend that waits for I/O, locks or another service uses
// no processor, and the limit grows to Max while latency goes up. Processor
// shares cannot exceed the machine's: above 1/threshold they do not say how
// much too much there is. And a noisy neighbour that uses up the resource
// brings the limit to Min. Where the backend is what limits, put [Capped] around
// a controller that measures it.
type Resource struct {
	cfg   ResourceConfig
	limit float64
}

// NewResource returns a Resource controller, or an error that names every field
// out of range.
func NewResource(cfg ResourceConfig) (*Resource, error) {
	def(&cfg.Initial, 20)
	def(&cfg.Min, 1)
	def(&cfg.Max, 1000)
	def(&cfg.Window, 250*time.Millisecond)
	def(&cfg.Growth, 1.1)
	def(&cfg.Backoff, 0.5)
	cfg.Signals = slices.Clone(cfg.Signals)
	var f faults
	f.checkBounds(cfg.Min, cfg.Max)
	f.checkWindow("Window", cfg.Window)
	f.check(cfg.Growth > 1 && cfg.Growth <= 2, "Growth %v: must be in (1, 2]", cfg.Growth)
	f.check(cfg.Backoff > 0 && cfg.Backoff < 1, "Backoff %v: must be in (0, 1)", cfg.Backoff)
	if err := f.err("resource"); err != nil {
		return nil, err
	}
	r := &Resource{cfg: cfg}
	r.set(float64(cfg.Initial))
	return r, nil
}

// Name implements [Controller].
func (r *Resource) Name() string { return "resource" }

// Start implements [Controller].
func (r *Resource) Start() Decision {
	return Decision{Limit: int64(r.limit), Next: r.cfg.Window, Reason: "initial"}
}

// Update implements [Controller].
func (r *Resource) Update(w *Window) Decision {
	d := Decision{Next: r.cfg.Window}
	p, known := highest(w.Readings, r.cfg.Signals)
	used := max(w.MaxInFlight, w.InFlight)
	switch {
	case !known:
		d.Reason = "no signal is known"
	case used == 0:
		d.Reason = "idle"
	case p.Value > 1:
		r.set(r.limit * max(r.cfg.Backoff, 1/p.Value))
		d.Reason, d.Signal = p.over(), p.Name
	case used < int64(r.limit):
		d.Reason = "limit not reached"
	default:
		r.set(r.limit * min(r.cfg.Growth, 1/p.Value))
		d.Reason = "pressure fine, limit reached: " + p.over()
	}
	d.Limit = int64(r.limit)
	return d
}

// Save implements [Saver].
func (r *Resource) Save() State { return State{Limit: r.limit} }

// Restore implements [Saver].
func (r *Resource) Restore(s State) {
	if s.Limit >= 1 && !math.IsInf(s.Limit, 1) { // false for NaN too
		r.set(s.Limit)
	}
}

func (r *Resource) set(limit float64) {
	r.limit = within(limit, r.cfg.Min, r.cfg.Max)
}
