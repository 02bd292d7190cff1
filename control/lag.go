package control

import (
	"cmp"
	"fmt"
	"math"
	"sort"
	"time"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
)

// LagMapConfig configures [NewLagMap]. The zero value of a field means its
// default; the defaults are EvidentDB's.
type LagMapConfig struct {
	// Min and Max are the limits at Critical lag and at Target lag.
	Min int64 `json:",omitempty" default:"10" min:"1"`
	Max int64 `json:",omitempty" default:"1000" max:"1073741824"`
	// Initial is the limit until lag is known, clamped to Min and Max. Default
	// Max.
	Initial int64 `json:",omitempty" min:"1"`

	// The signal with the lag as its value. Required in a file. In Go, empty means the first reading.
	Signal string `json:"signal,omitempty" example:"behind"`
	// Up to this lag, the limit is max.
	Target float64 `json:"target,omitempty" default:"10000" min:"0.000001"`
	// From this lag on, the limit is min. Above target.
	Critical float64 `json:"critical,omitempty" default:"100000" min:"0.000001"`
	// How often the limit is set anew, by the newest reading of the lag.
	Interval time.Duration `json:",omitempty" default:"5s" min:"10ms"`
	// How many intervals the limit stays while the lag is unknown. 0 means the default.
	Hold int `json:"hold,omitempty" default:"3" min:"0" minus1:"none"`
	// The limit while the lag is unknown for longer (default: min).
	Safe int64 `json:"safe,omitempty" min:"1" example:"10"`
	// Weight of the limit that the lag implies against the present one.
	Smoothing float64 `json:"smoothing,omitempty" default:"1" min:"0.001" max:"1"`
	// How far the limit moves at most in one interval, as a share of max − min.
	MaxChange float64 `json:"max_change,omitempty" default:"1" min:"0.001" max:"1"`
	// The limit changes only if the new one differs by at least this share of the present one.
	Hysteresis float64 `json:"hysteresis,omitempty" default:"0" min:"0" max:"0.999"`
}

// LagMap maps the lag of something behind the gate (a consumer of a queue, a replica) to
// a limit. The limit is Max up to Target, Min from Critical on, and a straight line
// between, rounded down. It is the admission control that EvidentDB describes for its
// Kafka linearizer. There, work keeps its slot until it has been applied, and every
// database has a gate of its own.
//
// Lag comes from Window.Readings. The signal decides whether it is a sum over partitions
// or the worst of them. An unknown or infinite reading is not a lag of 0: the limit stays
// for Hold intervals, then goes to Safe. A negative lag is 0. (The description says nothing
// of these cases, nor how fractions are rounded.)
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
//   - Lag is a total: one noisy tenant shrinks every gate that reads it. A gate for many
//     tenants can shrink those first that hold most: keyed.Config.LargestFirst. Then the
//     limit also swings less, and never to Min while a cut of the largest is enough.
//
// Smoothing, MaxChange and Hysteresis damp the swing and are off by default. With a
// reading one interval late, Smoothing s keeps a loop stable up to a gain of 1/s. It
// damps fastest where (1 − s)² = 4·s·gain: 0.25 for a gain of 0.55.
type LagMap struct {
	bounded
	cfg    LagMapConfig
	reader lagReader
}

// NewLagMap returns a LagMap controller, or an error that names every field out
// of range.
func NewLagMap(cfg LagMapConfig) (*LagMap, error) {
	var f fault.List
	setting.Complete(&cfg, &f)
	cfg.Initial, cfg.Safe = cmp.Or(cfg.Initial, cfg.Max), cmp.Or(cfg.Safe, cfg.Min)
	checkBounds(&f, cfg.Min, cfg.Max)
	f.Check(cfg.Critical > cfg.Target, fault.Path{"Critical"}, cfg.Critical, "must be above the target, which is %v", cfg.Target)
	reader := lagReader{signal: cfg.Signal, hold: cfg.Hold, safe: cfg.Safe}
	reader.check(&f, cfg.Min, cfg.Max)
	if err := f.Err("control: lag"); err != nil {
		return nil, err
	}
	return &LagMap{bounded: newBounded("lag", cfg.Initial, cfg.Min, cfg.Max, cfg.Interval), cfg: cfg, reader: reader}, nil
}

// WithThresholds implements [Thresholds].
func (l *LagMap) WithThresholds(target, critical float64) (Controller, error) {
	cfg := l.cfg
	cfg.Target, cfg.Critical = cmp.Or(target, cfg.Target), cmp.Or(critical, cfg.Critical)
	return orError(NewLagMap(cfg))
}

// orError keeps a nil pointer from becoming a Controller that is not nil.
func orError[C Controller](c C, err error) (Controller, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Update implements [Controller].
func (l *LagMap) Update(w *Window) Decision {
	lag, name, known := l.reader.read(w)
	why := fmt.Sprintf("lag %.0f", lag)
	if known {
		l.approach(l.wanted(lag, w))
		why += beyond(w, int64(l.limit), lag)
	} else {
		l.limit, why = l.reader.without(l.limit)
	}
	return l.decideBy(name, why)
}

// wanted returns the limit that the lag calls for. Where the keys that hold most shrink
// first, it is the largest limit that the lag left under it allows. What keys hold beyond
// the limit is on its way out: it is no reason to shrink the others, too.
func (l *LagMap) wanted(lag float64, w *Window) float64 {
	if w.Within == nil {
		return l.limitFor(lag)
	}
	return float64(levelOf(l.cfg.Min, l.cfg.Max, func(limit int64) bool {
		_, part := partWithin(w, limit, lag)
		return float64(limit) <= l.limitFor(part)
	}))
}

// partWithin returns what keys hold up to the limit, and the part of the lag that this is.
func partWithin(w *Window, limit int64, lag float64) (held, part float64) {
	held, all := w.Within(limit)
	if held >= all {
		return held, lag
	}
	return held, product(lag, held/all)
}

// beyond says how much of the lag is of keys that hold more than the limit, if that is known.
func beyond(w *Window, limit int64, lag float64) string {
	if w.Within == nil {
		return ""
	}
	_, part := partWithin(w, limit, lag)
	return fmt.Sprintf(", %.0f of it beyond the limit", lag-part)
}

// levelOf returns the largest number from low to high for which ok holds. If it does not hold
// for a number, it must not hold for a larger one. low is returned if it holds for none.
func levelOf(low, high int64, ok func(int64) bool) int64 {
	return low + int64(sort.Search(int(high-low), func(i int) bool { return !ok(low + 1 + int64(i)) }))
}

// limitFor returns the limit that the lag calls for.
func (l *LagMap) limitFor(lag float64) float64 {
	low, high := float64(l.cfg.Min), float64(l.cfg.Max)
	lag = min(max(lag, l.cfg.Target), l.cfg.Critical)
	// The product comes first: for whole numbers it is exact. A quotient that is a
	// whole number is exact, too.
	return math.Floor(low + product(high-low, l.cfg.Critical-lag)/(l.cfg.Critical-l.cfg.Target))
}

// approach moves the limit towards the one wanted, as far as the damping allows.
func (l *LagMap) approach(wanted float64) {
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
	// Min and Max bound the limit.
	Min int64 `json:",omitempty" default:"10" min:"1"`
	Max int64 `json:",omitempty" default:"1000" max:"1073741824"`
	// Initial is the first limit, clamped to Min and Max. Default Max.
	Initial int64 `json:",omitempty" min:"1"`

	// The signal with the lag as its value. Required in a file. In Go, empty means the first reading.
	Signal string `json:"signal,omitempty" example:"behind"`
	// Lag that should not be exceeded.
	Target float64 `json:"target,omitempty" default:"10000" min:"0.000001"`
	// From this share of target on, the limit follows what was drained.
	Threshold float64 `json:"threshold,omitempty" default:"0.5" min:"0.001" max:"1"`
	// How often the limit is set anew, by the newest reading of the lag.
	Interval time.Duration `json:",omitempty" default:"5s" min:"10ms"`
	// Share of what was drained that is admitted at the threshold.
	Fudge float64 `json:"fudge,omitempty" default:"0.95" min:"0.001" max:"1"`
	// Factor on that for every threshold × target of lag above.
	Decay float64 `json:"decay,omitempty" default:"0.5" min:"0.001" max:"1"`
	// Slots added in an interval below the threshold (default: a hundredth of max).
	Adder float64 `json:"adder,omitempty" min:"0" max:"1073741824" example:"10"`
	// Factor on the limit in an interval below the threshold.
	Multiplier float64 `json:"multiplier,omitempty" default:"1.05" min:"1" max:"10"`
	// How many slots a piece of drained work stands for.
	PerWork float64 `json:"per_work,omitempty" default:"1" min:"0.000001" max:"1073741824"`
	// How many intervals the limit stays while the lag is unknown. 0 means the default.
	Hold int `json:"hold,omitempty" default:"3" min:"0" minus1:"none"`
	// The limit while the lag is unknown for longer (default: min).
	Safe int64 `json:"safe,omitempty" min:"1" example:"10"`
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
// The limit has a fraction, which keyed.Pools share out ([Decision].Fraction). So fifty keys
// with two or three slots each follow the lag as finely as one gate with a hundred.
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
	bounded
	cfg    DrainConfig
	reader lagReader
}

// NewDrain returns a Drain controller, or an error that names every field out of
// range.
func NewDrain(cfg DrainConfig) (*Drain, error) {
	var f fault.List
	setting.Complete(&cfg, &f)
	cfg.Initial, cfg.Safe = cmp.Or(cfg.Initial, cfg.Max), cmp.Or(cfg.Safe, cfg.Min)
	cfg.Adder = cmp.Or(cfg.Adder, float64(cfg.Max)/100)
	checkBounds(&f, cfg.Min, cfg.Max)
	reader := lagReader{signal: cfg.Signal, hold: cfg.Hold, safe: cfg.Safe}
	reader.check(&f, cfg.Min, cfg.Max)
	if err := f.Err("control: drain"); err != nil {
		return nil, err
	}
	return &Drain{bounded: newBounded("drain", cfg.Initial, cfg.Min, cfg.Max, cfg.Interval), cfg: cfg, reader: reader}, nil
}

// WithThresholds implements [Thresholds]. A Drain has no critical lag.
func (d *Drain) WithThresholds(target, critical float64) (Controller, error) {
	var f fault.List
	f.Check(critical == 0, fault.Path{"Critical"}, critical, "leave it 0: drain has a target only")
	if err := f.Err("control: drain"); err != nil {
		return nil, err
	}
	cfg := d.cfg
	cfg.Target = cmp.Or(target, cfg.Target)
	return orError(NewDrain(cfg))
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
	decision := d.decideBy(name, why)
	_, decision.Fraction = math.Modf(d.limit)
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
	case d.overfull(w):
		return fmt.Sprintf("lag %.0f, %d in flight is worked off first", lag, w.InFlight)
	}
	busy := float64(w.LatencySum) / float64(w.Elapsed)
	d.set(min(d.limit, d.wanted(busy, lag, w)))
	return fmt.Sprintf("lag %.0f, the drain kept %.0f slots busy", lag, busy) + beyond(w, int64(d.limit), lag)
}

// overfull reports whether more is in flight than the limit allows: of the mean key, or of
// any where those that hold most shrink first.
func (d *Drain) overfull(w *Window) bool {
	if w.Within == nil {
		return float64(w.InFlight) > math.Ceil(d.limit)
	}
	held, _ := w.Within(int64(math.Ceil(d.limit)))
	now, _ := w.Within(math.MaxInt64)
	return held < now
}

// wanted is what the limit should not exceed above the threshold. Where the keys that hold
// most shrink first, a limit leaves a part of the lag. wanted is then the largest limit, with a fraction, under
// which all keys hold no more than that part allows.
func (d *Drain) wanted(busy, lag float64, w *Window) float64 {
	if w.Within == nil || w.MeanInFlight <= 0 {
		return d.cfg.shrink(busy, lag)
	}
	now, _ := w.Within(math.MaxInt64)
	keys := now / w.MeanInFlight
	// spare is how much more all keys may hold than they would under a limit.
	spare := func(limit int64) float64 {
		held, part := partWithin(w, limit, lag)
		return product(keys, d.cfg.shrink(busy, part)) - held
	}
	level := levelOf(d.cfg.Min, d.cfg.Max, func(limit int64) bool { return spare(limit) >= 0 })
	wanted, rest, lack := float64(level), spare(level), spare(level+1)
	if rest > 0 && lack < 0 {
		wanted += rest / (rest - lack)
	}
	return wanted
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
	f.Check(l.safe >= low && l.safe <= high, fault.Path{"Safe"}, l.safe, "must be from the least limit, %d, to the largest, %d", low, high)
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
