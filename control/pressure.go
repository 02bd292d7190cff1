package control

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// CapConfig configures [NewCapped]. The zero value of a field means its
// default.
type CapConfig struct {
	// Signals names the readings to go by, which must be pressures. Empty means
	// all: name them where a gate has a reading in another unit too, such as
	// a lag.
	Signals []string
	// Min is the lowest cap. At least 1; default 1.
	Min int64
	// Window is the time between looks at the signals. Default 50 ms, at least
	// 1 ms. The inner controller keeps its own windows.
	Window time.Duration
	// Memory is the time over which a peak of what was in flight is forgotten.
	// Default 1 s, at least Window. It should be no shorter than the slowest
	// signal needs to notice a change: otherwise one overload is punished several
	// times.
	Memory time.Duration
	// Growth is what the cap is multiplied by at most in one Memory, while the
	// pressure is below 1. Range (1, 10], default 2.
	Growth float64
}

// Capped is a controller inside a cap. The cap is the limit that the highest
// pressure among the window's readings implies: what was in flight over that
// pressure, where what was in flight is a peak that is forgotten as slowly as
// the signals are, because they speak of the past. The smaller of the two is the
// limit, and where that is the cap, Decision.Signal names the signal.
//
// While no signal is above 1 the cap rises, by 1/pressure and at most Growth in
// one Memory, used or not, until it is above what the inner controller wants;
// then there is none until the next pressure above 1. It rises at Growth while
// no signal is known: a poller that loses a signal holds its last value for a
// while, so what is unknown by then is to be ignored. In one look it falls by
// half at most, and not at all while nothing is in flight: what presses then is
// not this gate's work.
//
// The inner controller is asked at the end of its own windows and sees the
// window as it was: Window.Limit is the limit that was in force, and Saturated
// the time at that limit. Growing on the grounds of saturation by the cap would
// be wrong; so if it comes out of a window in which the cap was the limit with
// a higher State.Limit than it went in with, it gets its former state back. For
// that it must be a [Saver]; one that is not may drift up behind the cap.
//
// It assumes that pressure follows what is in flight. Signals of the processor
// are blind to overload that only waits (I/O, locks, another service): there
// the inner controller works alone. Where somebody else uses up the resource the
// cap goes down to Min, however little that helps.
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

// NewCapped returns a controller that lets inner decide up to a cap, or an error
// that names every field out of range.
func NewCapped(inner Controller, cfg CapConfig) (*Capped, error) {
	def(&cfg.Min, 1)
	def(&cfg.Window, 50*time.Millisecond)
	def(&cfg.Memory, max(time.Second, cfg.Window))
	def(&cfg.Growth, 2)
	cfg.Signals = slices.Clone(cfg.Signals)
	var f faults
	f.check(inner != nil, "inner: there is no controller to cap")
	f.check(cfg.Min >= 1, "Min %d: must be at least 1", cfg.Min)
	f.check(cfg.Window >= time.Millisecond, "Window %v: must be at least 1ms", cfg.Window)
	f.check(cfg.Memory >= cfg.Window, "Memory %v: must not be below Window %v", cfg.Memory, cfg.Window)
	f.check(cfg.Growth > 1 && cfg.Growth <= 10, "Growth %v: must be in (1, 10]", cfg.Growth)
	if err := f.err("capped"); err != nil {
		return nil, err
	}
	saver, _ := inner.(Saver)
	return &Capped{inner: inner, saver: saver, cfg: cfg, cap: math.Inf(1)}, nil
}

// Name implements [Controller]: it is the inner controller's.
func (c *Capped) Name() string { return c.inner.Name() }

// Start implements [Controller].
func (c *Capped) Start() Decision {
	c.want, c.began = c.inner.Start(), false
	d := c.want
	d.Next = c.cfg.Window
	if c.want.Next > 0 {
		d.Next = min(d.Next, c.want.Next)
	}
	if c.cap < float64(d.Limit) { // started again: its state was restored
		d.Limit = max(1, int64(c.cap))
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

// inFlightSince is what was in flight since then: the mean over the work that has
// finished since, as each piece of it saw it, or what is now if that is more. A
// window that was extended begins earlier.
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
	undo := c.bound && c.saver != nil
	if undo {
		before = c.saver.Save()
	}
	want := c.inner.Update(w)
	if undo && c.saver.Save().Limit > before.Limit {
		c.saver.Restore(before)
		want.Limit = min(want.Limit, c.want.Limit)
		want.Reason = "not grown: the cap was the limit"
	}
	c.want = want
	c.due = c.after(w.Now)
	if !want.Extend {
		c.bound = false
	}
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
	if c.cap >= float64(max(1, c.want.Limit)) { // nonsense of inner's is for the gate to refuse
		c.cap = math.Inf(1)
		return d
	}
	c.bound = true
	d.Limit = max(1, int64(c.cap))
	d.Signal = p.Name
	d.Reason = fmt.Sprintf("capped, %s; inner limit %d", p.over(), c.want.Limit)
	return d
}

// Save implements [Saver]: what the inner controller learned, nothing of the
// cap.
func (c *Capped) Save() State {
	if c.saver == nil {
		return State{Limit: float64(c.want.Limit)}
	}
	return c.saver.Save()
}

// Restore implements [Saver]: it passes the state on to the inner controller.
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
	adjusted
	cfg ResourceConfig
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
	return &Resource{adjust("resource", cfg.Initial, cfg.Min, cfg.Max, cfg.Window), cfg}, nil
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
		why, by = p.over(), p.Name
	case used < int64(r.limit):
		why = "limit not reached"
	default:
		r.set(r.limit * min(r.cfg.Growth, 1/p.Value))
		why = "pressure fine, limit reached: " + p.over()
	}
	d := r.decide(why)
	d.Signal = by
	return d
}

// highest returns the known reading of the highest value: the signal that
// implies the smallest limit. Only those named count, or all if none is. What
// is no pressure (NaN, negative) is passed over. Of equals the first counts.
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

// over says of a pressure what it is.
func (r Reading) over() string { return fmt.Sprintf("%s at %.3g of what is wanted", r.Name, r.Value) }
