// Package control decides how large a gate's limit is: controllers compute it from what
// the gate measured.
//
// A [Controller] is pure. It reads no clock, starts no goroutine, and uses no
// randomness except what it was given. The gate calls Update once a window,
// with everything measured in that window, and applies the Decision. The same
// controller therefore runs unchanged in a service and in the simulator.
//
//   - [Belief], the default, weighs laws of how throughput depends on concurrency, by all
//     that it has seen. It has nothing to configure.
//   - [Knee] compares a little more concurrency with a little less. It has nothing to
//     configure either.
//   - [Fixed] keeps a number that somebody chose.
//   - [AIMD] adds one while latency is fine and cuts a share when it is not. It is
//     robust, but needs a latency threshold for each backend.
//   - [Vegas] keeps the backend's queue short. It infers the queue from the shortest
//     latency.
//   - [Gradient2] compares latency with its own long-term average, here with a floor
//     that load cannot raise.
//   - [Probe] tries a step up or down and keeps what made throughput greater.
//     [ProbePair] does so for a gate of reads and one of writes together.
//   - [LagMap] maps the lag of something behind the gate to a limit.
//   - [Drain] lets in a little less than was drained while that lag is too high.
//   - [Resource] keeps the highest pressure among the gate's signals at 1.
//   - [Capped] puts such a bound on any other controller.
package control

import (
	"math"
	"time"

	"github.com/weir-go/weir/internal/fault"
)

// Controller sets the limit of a gate. The gate calls Update from one goroutine
// at a time. Implementations keep their own state between calls and must not
// keep the Window.
type Controller interface {
	// Name is the controller's name in snapshots, metrics and config.
	Name() string
	// Start returns the first decision, before anything was measured. Next
	// says when the first window closes, 0 for never. The gate's New and Reconfigure
	// refuse a controller whose first decision makes no sense, such as a limit of 0.
	Start() Decision
	// Update is called at the end of each window.
	Update(w *Window) Decision
}

// Default returns a new controller that finds the limit by itself and needs no setting:
// a [Belief] with its defaults. Limiters without a limit or a controller of their own
// use it, in Go and in files.
func Default() Controller {
	belief, _ := NewBelief(BeliefConfig{}) // the defaults are no error
	return belief
}

// Saver is a Controller whose state can be kept over a restart.
type Saver interface {
	// Save returns the learned state; it must survive a JSON round trip.
	Save() State
	// Restore continues from saved state. It clamps a limit to its own bounds and
	// ignores values that make no sense.
	Restore(s State)
}

// State is what a controller has learned.
type State struct {
	// Limit is the limit in force, fractions included. [Belief] saves the best one: that in force may be an experiment.
	Limit float64 `json:"limit"`
	// Baseline is the controller's reference latency, 0 if it has none.
	Baseline time.Duration `json:"baseline_ns,omitempty"`
	// Laws is what [Belief] believes of the backend, in a form of its own. It is empty for
	// other controllers, and as long as nothing is known.
	Laws string `json:"laws,omitempty"`
}

// Successor is a Controller that can go on where another of its kind was. It keeps more
// than a [State] holds, so that new settings interrupt nothing.
type Successor interface {
	// Succeed takes over all that old has learned, within bounds of its own. It reports
	// false, and changes nothing, if old is of another kind.
	Succeed(old Controller) bool
}

// Thresholds is a Controller that goes by a lag between thresholds. A gate with a limit for
// each key gives single keys thresholds of their own with it.
type Thresholds interface {
	Controller
	// WithThresholds returns a new controller with the same settings but for these
	// thresholds. 0 means the same. The error names what is out of range.
	WithThresholds(target, critical float64) (Controller, error)
}

// Decision is what a controller wants.
type Decision struct {
	// Limit is the new limit, from 1 to 1<<30. On any other value a gate keeps the
	// last good limit and counts a fault.
	Limit int64
	// Fraction is what the limit of a key has beyond Limit in the mean, from 0 to below 1.
	// keyed.Pools give so many of the keys one slot more, in turn. Other gates ignore it.
	Fraction float64
	// Next is how long the next window should last, at least 1 ms: a gate uses 1 ms
	// for less. 0 means that the controller need not be called again.
	Next time.Duration
	// Extend adds the next window to this one. A controller asks for it when it has
	// too few samples to judge.
	Extend bool
	// Reason says in a few words why the limit changed, or why it did not.
	Reason string
	// Signal names the reading that binds the limit, empty if none does. The gate's
	// snapshot and its rejections show it.
	Signal string
	// Estimate is what the controller believes of the backend. The zero value means that it
	// believes nothing yet, or never does.
	Estimate Estimate
	// Probes is what the controller has tried so far. The zero value means that it is no [Probe].
	Probes Probes
}

// Probes is what a [Probe] has tried so far. The counts begin with the controller.
type Probes struct {
	// Up and Down are the probes that have ended, UpKept and DownKept those that finished more
	// than the size before. A part of their step is kept.
	Up, UpKept, Down, DownKept uint64
	// Nudged counts the pools that a probe moved by one, because rounding would have left them.
	Nudged uint64
	// Stable is the size between probes, of both pools together. It has a fraction.
	Stable float64
	// Throughput is what was finished in a second in the last stable tick before a probe, and
	// Probed in the last probe that has ended.
	Throughput, Probed float64
}

// Estimate is what [Belief] believes of the backend.
type Estimate struct {
	// Shape is the likeliest of [Shapes], and Size is its size: of a pool, how many places
	// it has. Shape is empty if there is no estimate.
	Shape string
	Size  float64
	// Best is the limit that is worth most, by all that is believed. The best concurrency is
	// between Low and High with a probability of 0.95. Best may be outside: below Low because
	// of late work, or on either side because of the bounds of the limit.
	Best, Low, High float64
	// Loss is the part of throughput, from 0 to 1, that is probably lost because the limit
	// in force is not really the best. Experiments are in it. Under a cap it is about the
	// limit that the controller wants.
	Loss float64
}

// Window is what a gate measured since the last decision (or over several
// windows, after an Extend).
type Window struct {
	// Now is the gate's clock at the end of the window, Elapsed its length.
	Now, Elapsed time.Duration

	// Limit was in force. InFlight is in flight right now. MaxInFlight is the most
	// that any sampled work saw in flight right after its own admission.
	Limit, InFlight, MaxInFlight int64
	// MeanInFlight is the mean over Elapsed.
	MeanInFlight float64
	// Waiting is the work in the wait room right now.
	Waiting int64
	// Saturated is the part of Elapsed without room for more work. Either no
	// slot was free, or work waited beside free slots that its cost did not fit
	// into.
	Saturated time.Duration

	// Admitted counts grants.
	Admitted int64
	// OK, Failed, Overload and Abandoned count outcomes. Latency is only known
	// of OK, Overload and Abandoned.
	OK, Failed, Overload, Abandoned int64

	// Latencies are the most recent service times of OK, Overload and Abandoned work
	// in ascending order. There are at most the gate's sample size of them.
	Latencies []time.Duration
	// LatencySum adds the service times of all Timed outcomes, also those
	// that Latencies had no room for.
	LatencySum time.Duration
	Timed      int64
	// Cost is what all Timed outcomes cost together, in the unit of Limit. Work that costs more than the
	// limit counts as the limit at its admission. 0 means that each costs 1.
	Cost int64

	// Samples are what finished, Failed work included, in that order. If there are
	// more than the gate's sample size, they are an even share.
	Samples []Sample

	// Readings are what the gate's signals say now.
	Readings []Reading

	// Within is set by a gate with one limit for each of many keys, where those that hold
	// most are to shrink first (keyed.Config.LargestFirst). Of what they hold now, held is
	// how many units would remain if none held more than the limit. all is the most that
	// they held together, at the end of this window or of the one in which the controller
	// asked before. A reading may be as old as that. The first call visits all keys, so a
	// controller asks only when it decides.
	Within func(limit int64) (held, all float64)
}

// Sample is one piece of work that has finished.
type Sample struct {
	// Start is when it was admitted, on the clock of Window.Now.
	Start time.Duration
	// Latency is its service time.
	Latency time.Duration
	// Concurrency is the mean in flight over its life, itself included. Work counts as
	// much as it costs.
	Concurrency float64
	// Good reports whether it finished OK: not failed, late, refused below or
	// abandoned.
	Good bool
	// Failed reports whether it failed. How long that took says nothing about how
	// fast the backend is, but for as long a slot was used in vain.
	Failed bool
}

// Reading is what a signal says.
type Reading struct {
	// Name is the signal's.
	Name string
	// Value is what was measured, in the unit that the signal and the
	// controller agree on. For [Resource] and [Capped] it is a pressure, where
	// 1 is the most that is wanted. For [LagMap] it is a count of messages.
	Value float64
	// Known is false if the signal was never read, has failed, or is too old.
	Known bool
}

// Source hands out readings. Package signal has one that polls.
type Source interface {
	// Readings appends the newest readings to into. It must not block: gates
	// call it at the end of each window.
	Readings(into []Reading) []Reading
}

// Dropped counts the outcomes that are signs of too much.
func (w *Window) Dropped() int64 { return w.Overload + w.Abandoned }

// Quantile returns the p-quantile of Latencies by rank. That is the element at
// floor(n·p + 0.5) − 1 of the ascending list, clamped to the list. It is 0 for
// an empty list. p is in (0, 1].
func (w *Window) Quantile(p float64) time.Duration {
	n := len(w.Latencies)
	if n == 0 {
		return 0
	}
	i := int(float64(n)*p+0.5) - 1
	return w.Latencies[min(max(i, 0), n-1)]
}

// Mean returns the mean service time, 0 if nothing was timed.
func (w *Window) Mean() time.Duration {
	if w.Timed == 0 {
		return 0
	}
	return w.LatencySum / time.Duration(w.Timed)
}

// Saturation is the share of the window during which no slot was free, 0 to 1.
func (w *Window) Saturation() float64 {
	if w.Elapsed <= 0 {
		return 0
	}
	return min(1, float64(w.Saturated)/float64(w.Elapsed))
}

// Fixed keeps a limit that somebody chose. It assumes that the backend's capacity is
// known and stays what it is. If the limit is too high, work queues in the backend. If
// it is too low, work is refused that could have been done.
type Fixed int64

// Name implements [Controller].
func (Fixed) Name() string { return "fixed" }

// Start implements [Controller].
func (f Fixed) Start() Decision { return Decision{Limit: max(1, int64(f)), Reason: "fixed"} }

// Update implements [Controller]. It never changes anything.
func (f Fixed) Update(*Window) Decision { return f.Start() }

// bounded is a limit that a controller moves within bounds, once a window.
type bounded struct {
	name      string
	low, high int64
	window    time.Duration
	limit     float64
}

// newBounded returns a bounded limit that begins at initial.
func newBounded(name string, initial, low, high int64, window time.Duration) bounded {
	return bounded{name, low, high, window, within(float64(initial), low, high)}
}

// Name implements [Controller].
func (b *bounded) Name() string { return b.name }

// Start implements [Controller].
func (b *bounded) Start() Decision { return b.decide("initial") }

// Save implements [Saver].
func (b *bounded) Save() State { return State{Limit: b.limit} }

// Restore implements [Saver].
func (b *bounded) Restore(s State) {
	if s.Limit >= 1 { // false for NaN too
		b.set(s.Limit)
	}
}

func (b *bounded) set(limit float64) { b.limit = within(limit, b.low, b.high) }

func (b *bounded) decide(reason string) Decision {
	return Decision{Limit: int64(b.limit), Next: b.window, Reason: reason}
}

// decideBy is decide for a limit that a signal binds below the largest.
func (b *bounded) decideBy(signal, reason string) Decision {
	d := b.decide(reason)
	if d.Limit < b.high {
		d.Signal = signal
	}
	return d
}

// The tags of a configuration's fields give defaults and bounds: see internal/setting. A field
// with a key in its json tag is a setting of files too, in a group named after the controller.
// The other fields are what files say of a limit whatever its controller.

// checkBounds checks Max against Min.
func checkBounds(f *fault.List, low, high int64) {
	f.Check(high >= low, fault.Path{"Max"}, high, "must not be below the least limit, which is %d", low)
}

// within clamps x to the bounds. NaN becomes low.
func within(x float64, low, high int64) float64 {
	if math.IsNaN(x) {
		return float64(low)
	}
	return min(max(x, float64(low)), float64(high))
}

// product is x·y, rounded. Without the conversion some processors fuse the product with
// the sum it is part of. A limit would then depend on the machine.
func product(x, y float64) float64 { return float64(x * y) }
