package control

import (
	"fmt"
	"math"
	"time"
)

// DrainConfig configures [NewDrain]. The zero value of a field means its
// default.
type DrainConfig struct {
	// Min and Max bound the limit. Defaults 10 and 1000.
	Min, Max int64
	// Initial is the first limit, clamped to Min and Max. Default Max.
	Initial int64
	// Target is the lag that is not to be exceeded, in the signal's unit.
	// Default 10,000, positive.
	Target float64
	// Threshold is the share of Target from which on the limit follows what
	// was drained. Range (0, 1], default 0.5.
	Threshold float64
	// Interval is how often lag is looked at. Default 5 s, at least 10 ms.
	Interval time.Duration

	// Fudge is the share of what was drained that is let in at Threshold.
	// Range (0, 1], default 0.95.
	Fudge float64
	// Decay is what that is multiplied by for every Threshold × Target of lag
	// above. Range (0, 1], default 0.5.
	Decay float64
	// Adder and Multiplier say how the limit grows below Threshold, in an
	// Interval: (limit + Adder) × Multiplier. Defaults a hundredth of Max, at
	// least 1, and 1.05; Adder is in slots.
	Adder      float64
	Multiplier float64
	// PerWork is how many slots of the limit a piece of drained work stands
	// for. Default 1; see [Drain].
	PerWork float64

	// Signal, Hold and Safe are as in [LagMapConfig].
	Signal string
	Hold   int
	Safe   int64
}

// Drain sets the limit by lag and by what was drained: below the threshold it
// grows, above it, it is what the backend got through in the last interval, a
// little less, and less still the further lag is above. It is MongoDB's flow
// control, which hands out tickets by the second, made to set a number of slots.
//
// The units: work that finished in an interval times the time each piece held its
// slot, divided by the interval, is how many slots the drain has kept busy. That
// is the base, in slots, as the limit is. Lag is in whatever unit its reading has.
//
// Three departures: above the threshold the limit never grows; below it, it grows
// only if at least half of it was used, so an idle gate does not save up a burst;
// and while more is in flight than the limit, nothing is admitted, so the limit is
// not lowered further for a lag that is only being worked off.
//
// Lag that is unknown is held, then made safe, as in [LagMap].
//
// It assumes that work keeps its slot until it is drained, so that what finishes
// is what was drained. With readings every 5 s, 5 s late, lag then stays below 1.1
// × Target once the first burst is worked off: what all gates let in before the
// first reading tells, at most Initial each. Where it fails:
//
//   - The limit is a saw-tooth, from peak to peak 30 % of its mean with 20 gates
//     and all of it with 280: a late reading makes it cut for lag that has already
//     gone. MongoDB says of its own scheme that it oscillates.
//   - With n gates before one drain, all grow by Adder in an interval: two
//     intervals of that must fit between Threshold and 1.1 × Target. At the
//     defaults that is so up to some 280 gates.
//   - If work gives its slot back before it is drained, say once it is published,
//     what finishes is what was let in. Then only Decay pulls against lag, and
//     Target is overshot by what demand can add in two intervals.
type Drain struct {
	cfg    DrainConfig
	reader lagReader
	limit  float64
}

// NewDrain returns a Drain controller, or an error that names every field out of
// range.
func NewDrain(cfg DrainConfig) (*Drain, error) {
	def(&cfg.Min, 10)
	def(&cfg.Max, 1000)
	def(&cfg.Initial, cfg.Max)
	def(&cfg.Target, 10_000)
	def(&cfg.Threshold, 0.5)
	def(&cfg.Interval, 5*time.Second)
	def(&cfg.Fudge, 0.95)
	def(&cfg.Decay, 0.5)
	def(&cfg.Adder, max(1, float64(cfg.Max)/100))
	def(&cfg.Multiplier, 1.05)
	def(&cfg.PerWork, 1)
	def(&cfg.Hold, 3)
	def(&cfg.Safe, cfg.Min)
	reader := lagReader{signal: cfg.Signal, hold: cfg.Hold, safe: cfg.Safe}
	var f faults
	f.checkBounds(cfg.Min, cfg.Max)
	f.check(cfg.Initial >= 1, "Initial %d: must be at least 1", cfg.Initial)
	f.check(cfg.Target > 0 && !math.IsInf(cfg.Target, 0), "Target %v: must be positive and finite", cfg.Target)
	f.check(cfg.Threshold > 0 && cfg.Threshold <= 1, "Threshold %v: must be in (0, 1]", cfg.Threshold)
	f.checkWindow("Interval", cfg.Interval)
	f.check(cfg.Fudge > 0 && cfg.Fudge <= 1, "Fudge %v: must be in (0, 1]", cfg.Fudge)
	f.check(cfg.Decay > 0 && cfg.Decay <= 1, "Decay %v: must be in (0, 1]", cfg.Decay)
	f.check(cfg.Adder > 0 && cfg.Adder <= mostLimit, "Adder %v: must be positive and at most %d", cfg.Adder, int64(mostLimit))
	f.check(cfg.Multiplier >= 1 && cfg.Multiplier <= 10, "Multiplier %v: must be from 1 to 10", cfg.Multiplier)
	f.check(cfg.PerWork > 0 && cfg.PerWork <= mostLimit, "PerWork %v: must be positive and at most %d", cfg.PerWork, int64(mostLimit))
	reader.check(&f, cfg.Min, cfg.Max)
	if err := f.err("drain"); err != nil {
		return nil, err
	}
	return &Drain{cfg: cfg, reader: reader, limit: within(float64(cfg.Initial), cfg.Min, cfg.Max)}, nil
}

// Name implements [Controller].
func (d *Drain) Name() string { return "drain" }

// Start implements [Controller].
func (d *Drain) Start() Decision {
	return Decision{Limit: int64(d.limit), Next: d.cfg.Interval, Reason: "initial"}
}

// Update implements [Controller].
func (d *Drain) Update(w *Window) Decision {
	lag, name, known := d.reader.read(w)
	var why string
	if known {
		why = d.follow(lag, w)
	} else {
		d.limit, why = d.reader.without(d.limit)
	}
	decision := Decision{Limit: int64(d.limit), Next: d.cfg.Interval, Reason: why}
	if decision.Limit < d.cfg.Max {
		decision.Signal = name
	}
	return decision
}

func (d *Drain) follow(lag float64, w *Window) string {
	threshold := d.cfg.Threshold * d.cfg.Target
	switch {
	case lag < threshold && 2*float64(w.MaxInFlight) < d.limit:
		return fmt.Sprintf("lag %.0f below %.0f, not in use: %d of %d", lag, threshold, w.MaxInFlight, int64(d.limit))
	case lag < threshold:
		d.limit = within(d.cfg.grow(d.limit), d.cfg.Min, d.cfg.Max)
		return fmt.Sprintf("lag %.0f below %.0f", lag, threshold)
	case w.Elapsed <= 0:
		return "a window of no length: held"
	case float64(w.InFlight) > d.limit:
		return fmt.Sprintf("lag %.0f, %d in flight is worked off first", lag, w.InFlight)
	}
	busy := float64(w.LatencySum) / float64(w.Elapsed)
	d.limit = within(min(d.limit, d.cfg.shrink(busy, lag)), d.cfg.Min, d.cfg.Max)
	return fmt.Sprintf("lag %.0f, the drain kept %.0f slots busy", lag, busy)
}

// grow is what the limit becomes below the threshold.
func (cfg *DrainConfig) grow(limit float64) float64 {
	return product(limit+cfg.Adder, cfg.Multiplier)
}

// shrink is what it becomes above, given how many slots the drain kept busy.
func (cfg *DrainConfig) shrink(busy, lag float64) float64 {
	threshold := cfg.Threshold * cfg.Target
	return busy * cfg.PerWork * math.Pow(cfg.Decay, (lag-threshold)/threshold) * cfg.Fudge
}

// Save implements [Saver].
func (d *Drain) Save() State { return State{Limit: d.limit} }

// Restore implements [Saver].
func (d *Drain) Restore(s State) {
	if s.Limit >= 1 { // false for NaN too
		d.limit = within(s.Limit, d.cfg.Min, d.cfg.Max)
	}
}
