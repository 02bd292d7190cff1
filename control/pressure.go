package control

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
)

// CapConfig configures [NewCapped]. The zero value of a field means its
// default.
type CapConfig struct {
	// Signals names the readings to go by, which must be pressures. Empty means
	// all: name them where a gate has a reading in another unit too, such as
	// a lag.
	Signals []string `json:",omitempty"`
	// Min is the lowest cap.
	Min int64 `json:",omitempty" default:"1" min:"1"`
	// Window is how often the signals are read. The inner controller keeps its own windows.
	Window time.Duration `json:",omitempty" default:"50ms" min:"1ms"`
	// Memory is the time over which a peak of what was in flight is forgotten.
	// Default 1 s, at least Window. It should be no shorter than the slowest signal
	// needs to notice a change. Otherwise one overload counts several times.
	Memory time.Duration `json:",omitempty" min:"1ms"`
	// Growth is the most by which the cap is multiplied in one Memory, while the
	// pressure is below 1.
	Growth float64 `json:",omitempty" default:"2" min:"1.001" max:"10"`
}

// Capped is a controller with a cap on its limit. The cap is what was in flight, over the
// highest pressure among the window's readings. Signals speak of the past, so what was
// in flight is a peak that is forgotten over Memory. The smaller of cap and inner limit
// is the limit; if it is the cap, Decision.Signal names the signal.
//
// While no signal is above 1 the cap rises, by 1/pressure, and by Growth at most in one
// Memory. Above what the inner controller wants there is no cap, until the next pressure
// above 1. While no signal is known the cap rises by Growth. A poller keeps the last
// value for a while, so what is unknown after that is ignored. In one window the cap
// falls by half at most. It does not fall while nothing is in flight: the pressure then
// comes from other work.
//
// The inner controller is asked at the end of its own windows and sees the window as it
// was. Window.Limit is the limit that was in force, and Saturated the time at that limit.
// It must not grow because the cap was reached. So if its State.Limit grows in a window
// in which the cap was the limit, its former state is restored. For that it must be a
// [Saver]; another one may drift up behind the cap.
//
// Capped assumes that pressure follows what is in flight. Signals of the processor are
// blind to overload that only waits (I/O, locks, another service): there the inner
// controller works alone. Where other work uses up the resource, the cap goes down to
// Min, however little that helps.
type Capped struct {
	inner Controller
	saver Saver // inner, or nil
	cfg   CapConfig

	want  Decision      // inner's latest
	due   time.Duration // when inner is to be asked; never if negative
	began bool          // due is known

	cap   float64 // +Inf: none
	bound bool    // the cap was the limit at some time in inner's window
	level float64 // in flight: the peak, forgotten over Memory
	last  time.Duration
}

// NewCapped returns a controller that lets inner decide up to a cap. Its error
// names every field out of range.
func NewCapped(inner Controller, cfg CapConfig) (*Capped, error) {
	var f fault.List
	f.Require(inner != nil, nil, "there is no controller to cap")
	setting.Complete(&cfg, &f)
	cfg.Memory = cmp.Or(cfg.Memory, max(time.Second, cfg.Window))
	cfg.Signals = slices.Clone(cfg.Signals)
	f.Check(cfg.Memory >= cfg.Window, fault.Path{"Memory"}, cfg.Memory, "must not be below the window, which is %v", cfg.Window)
	if err := f.Err("control: capped"); err != nil {
		return nil, err
	}
	saver, _ := inner.(Saver)
	return &Capped{inner: inner, saver: saver, cfg: cfg, cap: math.Inf(1)}, nil
}

// Name implements [Controller]: it is the inner controller's.
func (c *Capped) Name() string { return c.inner.Name() }

// WithThresholds implements [Thresholds], with the same cap. It is an error if the inner controller
// has no thresholds.
func (c *Capped) WithThresholds(target, critical float64) (Controller, error) {
	inner, ok := c.inner.(Thresholds)
	if !ok {
		return nil, fault.Fault{Path: fault.Path{"Target"}, Problem: fmt.Sprintf("the controller %q has no thresholds", c.Name()), Instead: "leave it out"}
	}
	next, err := inner.WithThresholds(target, critical)
	if err != nil {
		return nil, err
	}
	return orError(NewCapped(next, c.cfg))
}

// Start implements [Controller].
func (c *Capped) Start() Decision {
	c.want, c.began = c.inner.Start(), false
	d := c.want
	d.Next = c.cfg.Window
	if c.want.Next > 0 {
		d.Next = min(d.Next, c.want.Next)
	}
	if c.cap < float64(d.Limit) { // started again: its state was restored
		d.Limit, d.Fraction = max(1, int64(c.cap)), 0
	}
	return d
}

// Update implements [Controller].
func (c *Capped) Update(w *Window) Decision {
	c.begin(w)
	p, known := highest(w.Readings, c.cfg.Signals)
	c.follow(w, p, known)
	asked := c.due >= 0 && w.Now >= c.due
	if asked {
		c.ask(w)
	}
	return c.decide(w, p, asked)
}

// begin finds out when the first window began.
func (c *Capped) begin(w *Window) {
	if c.began {
		return
	}
	c.began = true
	c.last = max(c.last, w.Now-w.Elapsed)
	c.due = c.after(c.last)
}

// after is when inner is due if its window begins at t.
func (c *Capped) after(t time.Duration) time.Duration {
	if c.want.Next <= 0 {
		return -1
	}
	return t + c.want.Next
}

// follow moves the cap.
func (c *Capped) follow(w *Window, p Reading, known bool) {
	passed := min(max(0, w.Now-c.last), c.cfg.Memory)
	now := inFlightSince(c.last, w)
	c.last = w.Now
	c.level = max(now, now+(c.level-now)*math.Exp(-float64(passed)/float64(c.cfg.Memory)))
	limit := min(c.cap, float64(max(1, w.Limit)))
	switch {
	case known && p.Value > 1:
		if now == 0 {
			return
		}
		c.cap = min(limit, max(c.level/p.Value, limit/2, float64(c.cfg.Min)))
	default:
		rise := c.cfg.Growth
		if known && p.Value > 0 {
			rise = min(rise, 1/p.Value)
		}
		c.cap *= math.Pow(rise, float64(passed)/float64(c.cfg.Memory))
	}
}

// inFlightSince returns what was in flight since then. That is the mean concurrency of the
// work that has finished since, or what is in flight now if that is more.
// A window that was extended begins earlier.
func inFlightSince(then time.Duration, w *Window) float64 {
	var sum, n float64
	for _, s := range w.Samples {
		if s.Start+s.Latency > then {
			sum += s.Concurrency
			n++
		}
	}
	return max(float64(w.InFlight), sum/max(1, n))
}

// ask has the inner controller decide.
func (c *Capped) ask(w *Window) {
	var before State
	var undo func()
	if c.bound && c.saver != nil {
		before = c.saver.Save()
		undo = c.checkpoint(before)
	}
	want := c.inner.Update(w)
	if undo != nil && c.saver.Save().Limit > before.Limit {
		undo()
		want.Limit, want.Fraction, want.Estimate = min(want.Limit, c.want.Limit), c.want.Fraction, c.want.Estimate
		want.Reason = "does not grow: the cap was the limit"
	}
	c.want = want
	c.due = c.after(w.Now)
	if !want.Extend {
		c.bound = false
	}
}

// checkpoint returns what brings back what inner knows now.
func (c *Capped) checkpoint(state State) (undo func()) {
	if b, ok := c.inner.(*Belief); ok {
		return b.checkpoint() // a state is less than a belief: many would blur it
	}
	return func() { c.saver.Restore(state) }
}

// decide puts the two together.
func (c *Capped) decide(w *Window, p Reading, asked bool) Decision {
	d := c.want
	// Between inner's windows the gate goes on measuring.
	d.Extend = c.due >= 0 && (!asked || c.want.Extend)
	d.Next = c.cfg.Window
	if c.due >= 0 {
		d.Next = min(d.Next, max(time.Millisecond, c.due-w.Now))
	}
	if c.cap >= float64(max(1, c.want.Limit)) { // the gate refuses a limit that makes no sense
		c.cap = math.Inf(1)
		return d
	}
	c.bound = true
	d.Limit, d.Fraction = max(1, int64(c.cap)), 0
	d.Signal = p.Name
	d.Reason = fmt.Sprintf("capped: %s; inner limit %d", p.pressure(), c.want.Limit)
	return d
}

// Save implements [Saver]: the inner controller's state, without the cap.
func (c *Capped) Save() State {
	if c.saver == nil {
		return State{Limit: float64(c.want.Limit)}
	}
	return c.saver.Save()
}

// Succeed implements [Successor]. The cap of an old Capped with the same signals stays, whatever the inner
// controllers are: without it, all that waits would start in the middle of an overload.
func (c *Capped) Succeed(old Controller) bool {
	s, ok := c.inner.(Successor)
	learned := ok && s.Succeed(inside(old))
	was, ok := old.(*Capped)
	if !ok || !slices.Equal(c.cfg.Signals, was.cfg.Signals) {
		return learned
	}
	if !learned {
		c.Restore(was.Save())
	}
	c.cap, c.bound = max(was.cap, float64(c.cfg.Min)), was.bound
	c.level, c.last = was.level, was.last
	return true
}

// inside returns the controller that a cap is put on, or the controller itself.
func inside(c Controller) Controller {
	for {
		capped, ok := c.(*Capped)
		if !ok {
			return c
		}
		c = capped.inner
	}
}

// Restore implements [Saver]: it restores the inner controller.
func (c *Capped) Restore(s State) {
	if c.saver != nil {
		c.saver.Restore(s)
	}
}

// ResourceConfig configures [NewResource]. The zero value of a field means its
// default.
type ResourceConfig struct {
	// Signals names the readings to go by, which must be pressures. Empty means
	// all: name them where a gate has a reading in another unit too, such as
	// a lag.
	Signals []string `json:",omitempty"`
	// Initial is the first limit, clamped to Min and Max.
	Initial int64 `json:",omitempty" default:"20"`
	// Min and Max bound the limit; Min is at least 1, because a limit of 0
	// admits nothing and learns nothing.
	Min int64 `json:",omitempty" default:"1" min:"1"`
	Max int64 `json:",omitempty" default:"1000" max:"1073741824"`
	// Window is the time between decisions. It should be no shorter than the time that
	// the signals look back. Otherwise one overload counts several times.
	Window time.Duration `json:",omitempty" default:"250ms" min:"10ms"`
	// Largest factor on the limit in one window.
	Growth float64 `json:"growth,omitempty" default:"1.1" min:"1.001" max:"2"`
	// Backoff is the least by which the limit is multiplied in one window.
	Backoff float64 `json:",omitempty" default:"0.5" min:"0.000001" max:"0.999999"`
}

// Resource keeps the highest pressure among the window's readings at 1. In each window it
// divides the limit by the pressure, within Backoff and Growth. Below 1 the limit grows
// only while it is reached. While no signal is known or nothing is in flight, it stays.
//
// This is admission by load thresholds, such as 85 % processor or 90 % memory, with two
// differences. The signals have the thresholds. And there is a limit to lower, instead of
// a switch that would refuse everything, then nothing.
//
// It assumes that pressure follows what is in flight. A backend that waits for I/O, locks
// or another service uses no processor. Then the limit grows to Max while latency goes
// up. The share of the processor ends at 1/threshold: beyond, it does not say how much is
// too much. A noisy neighbour that uses up the resource brings the limit to Min. Where
// the backend is the bottleneck, put [Capped] around a controller that measures it.
type Resource struct {
	bounded
	cfg ResourceConfig
}

// NewResource returns a Resource controller, or an error that names every field
// out of range.
func NewResource(cfg ResourceConfig) (*Resource, error) {
	var f fault.List
	setting.Complete(&cfg, &f)
	checkBounds(&f, cfg.Min, cfg.Max)
	cfg.Signals = slices.Clone(cfg.Signals)
	if err := f.Err("control: resource"); err != nil {
		return nil, err
	}
	return &Resource{newBounded("resource", cfg.Initial, cfg.Min, cfg.Max, cfg.Window), cfg}, nil
}

// Update implements [Controller].
func (r *Resource) Update(w *Window) Decision {
	p, known := highest(w.Readings, r.cfg.Signals)
	used := max(w.MaxInFlight, w.InFlight)
	why, by := "", ""
	switch {
	case !known:
		why = "no signal is known"
	case used == 0:
		why = "idle"
	case p.Value > 1:
		r.set(r.limit * max(r.cfg.Backoff, 1/p.Value))
		why, by = p.pressure(), p.Name
	case used < int64(r.limit):
		why = "limit not reached"
	default:
		r.set(r.limit * min(r.cfg.Growth, 1/p.Value))
		why = "limit reached, " + p.pressure()
	}
	d := r.decide(why)
	d.Signal = by
	return d
}

// highest returns the highest known reading: the signal that implies the smallest limit.
// Only those named count, or all if none is. Readings that are no pressure (NaN,
// negative) do not count. Of equals it returns the first.
func highest(readings []Reading, named []string) (r Reading, known bool) {
	for _, next := range readings {
		if len(named) > 0 && !slices.Contains(named, next.Name) {
			continue
		}
		if next.Known && next.Value >= 0 && (!known || next.Value > r.Value) {
			r, known = next, true
		}
	}
	return r, known
}

// pressure describes the reading as a pressure.
func (r Reading) pressure() string { return fmt.Sprintf("signal %s at %.3g", r.Name, r.Value) }
