package control

import (
	"fmt"
	"math"
	"time"
)

// LagMapConfig configures [NewLagMap]. The zero value of a field means its
// default; the defaults are EvidentDB's.
type LagMapConfig struct {
	// Min and Max are the limits at Critical lag and at Target lag. Defaults
	// 10 and 1000.
	Min, Max int64
	// Initial is the limit until lag is known, clamped to Min and Max. Default
	// Max.
	Initial int64
	// Target is the lag up to which the limit is Max, in the signal's unit.
	// Default 10,000; for a target of 0 write a small positive number.
	Target float64
	// Critical is the lag from which on the limit is Min. Default 100,000;
	// above Target.
	Critical float64
	// Interval is how often lag is looked at. Default 5 s, at least 10 ms.
	Interval time.Duration

	// Signal is the name of the reading. Default: the first there is.
	Signal string
	// Hold is how many intervals in a row lag may be unknown before the limit
	// goes to Safe; until then it stays. Default 3; -1 is none at all.
	Hold int
	// Safe is the limit while lag is unknown for longer. Range Min to Max,
	// default Min.
	Safe int64

	// Smoothing is the weight of the limit that lag calls for against the
	// present one. Range (0, 1], default 1: go there at once.
	Smoothing float64
	// MaxChange bounds how far the limit moves in one interval, as a share of
	// Max - Min. Range (0, 1], default 1: no bound.
	MaxChange float64
	// Hysteresis is by which share of the present limit another one must differ
	// to be worth a change; Min and Max always are. Range [0, 1), default 0.
	Hysteresis float64
}

// LagMap reads the limit off the lag of something behind the gate (a consumer
// of a queue, a replica): Max up to Target, Min from Critical on, a straight line
// between, rounded down and never below Min. It is the admission control that
// EvidentDB describes for its Kafka linearizer, where work keeps its slot until
// it has been applied, and every database has a gate of its own.
//
// Lag comes from Window.Readings; whether it is a sum over partitions or the
// worst of them is for the signal to decide. A reading that is not known, no
// number or infinite is no lag of 0: the limit stays for Hold intervals, then
// goes to Safe. A negative lag is 0. (The description leaves open what happens
// then, and how fractions are rounded.)
//
// It assumes that limit and lag belong together: that less in flight means less
// lag, within an interval or two. Where it fails:
//
//   - It knows no rate. It settles where the line crosses what the load makes of
//     it, not at Target. With n gates that are always full, and work that keeps its
//     slot until it is applied, lag is n × limit, and with the slope k = (Max − Min)
//     / (Critical − Target) the fixed point is a lag of n × (Min + k × Critical) /
//     (1 + n × k): at the defaults and n = 50, 35,806 and 716 slots.
//   - The loop's gain is n × k, 0.011 × n at the defaults. Above 1 (from 91 gates
//     on) it swings for ever, whether readings are late or not; below, the swing
//     shrinks by the gain with every reading, or only by the gain's root if
//     readings are an interval late.
//   - Lag is a total: one noisy tenant shrinks every gate that reads it.
//
// Smoothing, MaxChange and Hysteresis damp the swing and are off by default.
// Smoothing s keeps a loop with a reading one interval late stable up to a gain
// of 1/s, and settles it fastest where (1 − s)² = 4·s·gain: 0.25 for a gain of
// 0.55.
type LagMap struct {
	cfg    LagMapConfig
	reader lagReader
	limit  float64
}

// NewLagMap returns a LagMap controller, or an error that names every field out
// of range.
func NewLagMap(cfg LagMapConfig) (*LagMap, error) {
	def(&cfg.Min, 10)
	def(&cfg.Max, 1000)
	def(&cfg.Initial, cfg.Max)
	def(&cfg.Target, 10_000)
	def(&cfg.Critical, 100_000)
	def(&cfg.Interval, 5*time.Second)
	def(&cfg.Hold, 3)
	def(&cfg.Safe, cfg.Min)
	def(&cfg.Smoothing, 1)
	def(&cfg.MaxChange, 1)
	reader := lagReader{signal: cfg.Signal, hold: cfg.Hold, safe: cfg.Safe}
	var f faults
	f.checkBounds(cfg.Min, cfg.Max)
	f.check(cfg.Initial >= 1, "Initial %d: must be at least 1", cfg.Initial)
	f.check(cfg.Target >= 0, "Target %v: must not be negative", cfg.Target)
	f.check(cfg.Critical > cfg.Target && !math.IsInf(cfg.Critical, 0), "Critical %v: must be above Target %v, and finite", cfg.Critical, cfg.Target)
	f.checkWindow("Interval", cfg.Interval)
	reader.check(&f, cfg.Min, cfg.Max)
	f.check(cfg.Smoothing > 0 && cfg.Smoothing <= 1, "Smoothing %v: must be in (0, 1]", cfg.Smoothing)
	f.check(cfg.MaxChange > 0 && cfg.MaxChange <= 1, "MaxChange %v: must be in (0, 1]", cfg.MaxChange)
	f.check(cfg.Hysteresis >= 0 && cfg.Hysteresis < 1, "Hysteresis %v: must be in [0, 1)", cfg.Hysteresis)
	if err := f.err("lag"); err != nil {
		return nil, err
	}
	return &LagMap{cfg: cfg, reader: reader, limit: within(float64(cfg.Initial), cfg.Min, cfg.Max)}, nil
}

// Name implements [Controller].
func (l *LagMap) Name() string { return "lag" }

// Start implements [Controller].
func (l *LagMap) Start() Decision {
	return Decision{Limit: int64(l.limit), Next: l.cfg.Interval, Reason: "initial"}
}

// Update implements [Controller].
func (l *LagMap) Update(w *Window) Decision {
	d := Decision{Next: l.cfg.Interval}
	lag, name, known := l.reader.read(w)
	if known {
		l.move(l.at(lag))
		d.Reason = fmt.Sprintf("lag %.0f", lag)
	} else {
		l.limit, d.Reason = l.reader.without(l.limit)
	}
	d.Limit = int64(l.limit)
	if d.Limit < l.cfg.Max {
		d.Signal = name
	}
	return d
}

// at returns the limit that the lag calls for.
func (l *LagMap) at(lag float64) float64 {
	low, high := float64(l.cfg.Min), float64(l.cfg.Max)
	part := (lag - l.cfg.Target) / (l.cfg.Critical - l.cfg.Target)
	return math.Floor(low + product(high-low, 1-min(max(part, 0), 1)))
}

// move goes towards the limit wanted, as far as the damping lets it.
func (l *LagMap) move(wanted float64) {
	low, high := float64(l.cfg.Min), float64(l.cfg.Max)
	if wanted > low && wanted < high && math.Abs(wanted-l.limit) < l.cfg.Hysteresis*l.limit {
		return
	}
	step := product(l.cfg.Smoothing, wanted-l.limit)
	most := l.cfg.MaxChange * (high - low)
	l.limit = within(l.limit+min(max(step, -most), most), l.cfg.Min, l.cfg.Max)
}

// Save implements [Saver].
func (l *LagMap) Save() State { return State{Limit: l.limit} }

// Restore implements [Saver].
func (l *LagMap) Restore(s State) {
	if s.Limit >= 1 { // false for NaN too
		l.limit = within(s.Limit, l.cfg.Min, l.cfg.Max)
	}
}
