package control

import (
	"fmt"
	"math"
	"time"

	"github.com/weir-go/weir/internal/fault"
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
	// Interval is how often lag is read. Default 5 s, at least 10 ms.
	Interval time.Duration

	// Signal is the name of the reading. Default: the first there is.
	Signal string
	// Hold is for how many intervals in a row the limit stays while lag is unknown;
	// then it goes to Safe. Default 3; -1 is none at all.
	Hold int
	// Safe is the limit while lag is unknown for longer. Range Min to Max,
	// default Min.
	Safe int64

	// Smoothing is the weight of the limit that lag calls for against the present
	// one. Range (0, 1], default 1: the limit goes there at once.
	Smoothing float64
	// MaxChange bounds how far the limit moves in one interval, as a share of
	// Max - Min. Range (0, 1], default 1: no bound.
	MaxChange float64
	// Hysteresis is the share of the present limit by which a new limit must differ
	// to be set. Min and Max are always set. Range [0, 1), default 0.
	Hysteresis float64
}

// LagMap maps the lag of something behind the gate (a consumer of a queue, a replica) to
// a limit. The limit is Max up to Target, Min from Critical on, and a straight line
// between, rounded down. It is the admission control that EvidentDB describes for its
// Kafka linearizer. There, work keeps its slot until it has been applied, and every
// database has a gate of its own.
//
// Lag comes from Window.Readings. The signal decides whether it is a sum over partitions
// or the worst of them. An unknown or infinite reading is not a lag of 0: the limit stays
// for Hold intervals, then goes to Safe. A negative lag is 0. (The description leaves
// these cases open, and how fractions are rounded.)
//
// # Assumptions, and where it fails
//
// Less in flight must mean less lag, within an interval or two.
//
//   - It knows no rate. The limit ends where the line crosses what the load makes of
//     it, not at Target. Take n gates that are always full, and work that keeps its
//     slot until it is applied. The slope is k = (Max − Min) / (Critical − Target).
//     Lag is n × limit. So the fixed point is a lag of
//     n × (Min + k × Critical) / (1 + n × k). At the defaults and n = 50 that is a lag
//     of 35,806, and 716 slots.
//   - The loop's gain is n × k, 0.011 × n at the defaults. Above 1 (from 91 gates on)
//     the limit swings for ever. Below, the swing shrinks by the gain with every
//     reading. If readings are an interval late, it shrinks only by the gain's root.
//   - Lag is a total: one noisy tenant shrinks every gate that reads it.
//
// Smoothing, MaxChange and Hysteresis damp the swing and are off by default. With a
// reading one interval late, Smoothing s keeps a loop stable up to a gain of 1/s. It
// damps fastest where (1 − s)² = 4·s·gain: 0.25 for a gain of 0.55.
type LagMap struct {
	adjusted
	cfg    LagMapConfig
	reader lagReader
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
	var f fault.List
	checkBounds(&f, cfg.Min, cfg.Max)
	f.Check(cfg.Initial >= 1, fault.Path{"initial"}, cfg.Initial, "must be at least 1")
	f.Check(cfg.Target >= 0, fault.Path{"target"}, cfg.Target, "must not be negative")
	f.Check(cfg.Critical > cfg.Target && !math.IsInf(cfg.Critical, 0), fault.Path{"critical"}, cfg.Critical, "must be above target %v, and finite", cfg.Target)
	checkWindow(&f, "interval", cfg.Interval)
	reader.check(&f, cfg.Min, cfg.Max)
	f.Check(cfg.Smoothing > 0 && cfg.Smoothing <= 1, fault.Path{"smoothing"}, cfg.Smoothing, "must be in (0, 1]")
	f.Check(cfg.MaxChange > 0 && cfg.MaxChange <= 1, fault.Path{"max_change"}, cfg.MaxChange, "must be in (0, 1]")
	f.Check(cfg.Hysteresis >= 0 && cfg.Hysteresis < 1, fault.Path{"hysteresis"}, cfg.Hysteresis, "must be in [0, 1)")
	if err := f.Err("control: lag"); err != nil {
		return nil, err
	}
	return &LagMap{adjusted: adjust("lag", cfg.Initial, cfg.Min, cfg.Max, cfg.Interval), cfg: cfg, reader: reader}, nil
}

// Update implements [Controller].
func (l *LagMap) Update(w *Window) Decision {
	lag, name, known := l.reader.read(w)
	why := fmt.Sprintf("lag %.0f", lag)
	if known {
		l.move(l.at(lag))
	} else {
		l.limit, why = l.reader.without(l.limit)
	}
	d := l.decide(why)
	if d.Limit < l.cfg.Max {
		d.Signal = name
	}
	return d
}

// at returns the limit that the lag calls for.
func (l *LagMap) at(lag float64) float64 {
	low, high := float64(l.cfg.Min), float64(l.cfg.Max)
	lag = min(max(lag, l.cfg.Target), l.cfg.Critical)
	// The product comes first: for whole numbers it is exact. A quotient that is a
	// whole number is exact, too.
	return math.Floor(low + product(high-low, l.cfg.Critical-lag)/(l.cfg.Critical-l.cfg.Target))
}

// move moves the limit towards the one wanted, as far as the damping allows.
func (l *LagMap) move(wanted float64) {
	low, high := float64(l.cfg.Min), float64(l.cfg.Max)
	if wanted > low && wanted < high && math.Abs(wanted-l.limit) < l.cfg.Hysteresis*l.limit {
		return
	}
	step := product(l.cfg.Smoothing, wanted-l.limit)
	most := l.cfg.MaxChange * (high - low)
	l.set(l.limit + min(max(step, -most), most))
}

// DrainConfig configures [NewDrain]. The zero value of a field means its
// default.
type DrainConfig struct {
	// Min and Max bound the limit. Defaults 10 and 1000.
	Min, Max int64
	// Initial is the first limit, clamped to Min and Max. Default Max.
	Initial int64
	// Target is the most lag that is wanted, in the signal's unit. Default 10,000,
	// positive.
	Target float64
	// Threshold is the share of Target from which on the limit follows what
	// was drained. Range (0, 1], default 0.5.
	Threshold float64
	// Interval is how often lag is read. Default 5 s, at least 10 ms.
	Interval time.Duration

	// Fudge is the share of what was drained that is let in at Threshold. Range
	// (0, 1], default 0.95.
	Fudge float64
	// Decay multiplies that for every further Threshold × Target of lag. Range
	// (0, 1], default 0.5.
	Decay float64
	// Adder and Multiplier say how the limit grows below Threshold, in an Interval:
	// (limit + Adder) × Multiplier. Adder is in slots, by default a hundredth of Max,
	// at least 1. Default of Multiplier: 1.05.
	Adder      float64
	Multiplier float64
	// PerWork is how many slots of the limit a piece of drained work takes. Default
	// 1; see [Drain].
	PerWork float64

	// Signal, Hold and Safe are as in [LagMapConfig].
	Signal string
	Hold   int
	Safe   int64
}

// Drain sets the limit by lag and by what was drained. Below the threshold the limit
// grows. Above it, the limit is a little less than what the backend did in the last
// interval. The further lag is above, the less it is. It is MongoDB's flow control,
// which issues tickets by the second, made to set a number of slots.
//
// The service times of what finished in an interval, over the interval, are how many
// slots the drain has kept busy. The limit is computed from that. Lag is in the unit of
// its reading.
//
// It differs from MongoDB's in three ways. Above the threshold the limit never grows.
// Below it, the limit grows only if at least half of it was used. So an idle gate does
// not save up a burst. While more is in flight than the limit, nothing is admitted, so
// the limit does not go down further.
//
// While lag is unknown, the limit stays and then goes to Safe, as in [LagMap].
//
// # Assumptions, and where it fails
//
// Work must keep its slot until it is drained, so that what finishes is what was
// drained. All gates together let in at most Initial each before the first reading. Once
// that burst is worked off, lag stays below 1.1 × Target, with readings every 5 s, 5 s
// late.
//
//   - The limit is a saw-tooth. From peak to peak it is 30 % of its mean with 20
//     gates, and all of it with 280. A late reading makes it cut for lag that has
//     already gone. MongoDB says of its own scheme that it oscillates.
//   - With n gates before one drain, all grow by Adder in an interval. Two intervals of
//     that must fit between Threshold and 1.1 × Target. At the defaults that is so up
//     to some 280 gates.
//   - If work releases its slot before it is drained, for instance once it is
//     published, what finishes is what was admitted. Then only Decay pulls against
//     lag, and lag exceeds Target by what demand can add in two intervals.
type Drain struct {
	adjusted
	cfg    DrainConfig
	reader lagReader
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
	var f fault.List
	checkBounds(&f, cfg.Min, cfg.Max)
	f.Check(cfg.Initial >= 1, fault.Path{"initial"}, cfg.Initial, "must be at least 1")
	f.Check(cfg.Target > 0 && !math.IsInf(cfg.Target, 0), fault.Path{"target"}, cfg.Target, "must be positive and finite")
	f.Check(cfg.Threshold > 0 && cfg.Threshold <= 1, fault.Path{"threshold"}, cfg.Threshold, "must be in (0, 1]")
	checkWindow(&f, "interval", cfg.Interval)
	f.Check(cfg.Fudge > 0 && cfg.Fudge <= 1, fault.Path{"fudge"}, cfg.Fudge, "must be in (0, 1]")
	f.Check(cfg.Decay > 0 && cfg.Decay <= 1, fault.Path{"decay"}, cfg.Decay, "must be in (0, 1]")
	f.Check(cfg.Adder > 0 && cfg.Adder <= mostLimit, fault.Path{"adder"}, cfg.Adder, "must be positive and at most %d", int64(mostLimit))
	f.Check(cfg.Multiplier >= 1 && cfg.Multiplier <= 10, fault.Path{"multiplier"}, cfg.Multiplier, "must be from 1 to 10")
	f.Check(cfg.PerWork > 0 && cfg.PerWork <= mostLimit, fault.Path{"per_work"}, cfg.PerWork, "must be positive and at most %d", int64(mostLimit))
	reader.check(&f, cfg.Min, cfg.Max)
	if err := f.Err("control: drain"); err != nil {
		return nil, err
	}
	return &Drain{adjusted: adjust("drain", cfg.Initial, cfg.Min, cfg.Max, cfg.Interval), cfg: cfg, reader: reader}, nil
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
	decision := d.decide(why)
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
		d.set(d.cfg.grow(d.limit))
		return fmt.Sprintf("lag %.0f below %.0f", lag, threshold)
	case w.Elapsed <= 0:
		return "a window of no length: limit kept"
	case float64(w.InFlight) > d.limit:
		return fmt.Sprintf("lag %.0f, %d in flight is worked off first", lag, w.InFlight)
	}
	busy := float64(w.LatencySum) / float64(w.Elapsed)
	d.set(min(d.limit, d.cfg.shrink(busy, lag)))
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

// lagReader reads lag from a window's readings, and decides the limit while it is
// unknown.
type lagReader struct {
	signal  string // empty: the first reading
	hold    int    // intervals for which unknown lag leaves the limit; negative: none
	safe    int64  // the limit after that
	unknown int    // intervals in a row
}

func (l lagReader) check(f *fault.List, low, high int64) {
	f.Check(l.hold >= -1, fault.Path{"hold"}, l.hold, "must be at least 1, or -1 for none")
	f.Check(l.safe >= low && l.safe <= high, fault.Path{"safe"}, l.safe, "must be from min %d to max %d", low, high)
}

// read returns the lag and the name of the signal, and whether it is known.
// Negative lag is 0: somebody has committed beyond the end.
func (l *lagReader) read(w *Window) (lag float64, name string, known bool) {
	for _, r := range w.Readings {
		if l.signal != "" && r.Name != l.signal {
			continue
		}
		known = r.Known && !math.IsNaN(r.Value) && !math.IsInf(r.Value, 0)
		if known {
			l.unknown = 0
		}
		return max(0, r.Value), r.Name, known
	}
	return 0, l.signal, false
}

// without returns the limit while lag is unknown, and why.
func (l *lagReader) without(limit float64) (float64, string) {
	if l.unknown < l.hold {
		l.unknown++
		return limit, fmt.Sprintf("lag unknown for %d of %d intervals: limit kept", l.unknown, l.hold)
	}
	return float64(l.safe), fmt.Sprintf("lag unknown for more than %d intervals: safe limit %d", max(0, l.hold), l.safe)
}
