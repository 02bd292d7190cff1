package limit

import (
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/room"
	"github.com/weir-go/weir/internal/waiting"
	"github.com/weir-go/weir/internal/window"
)

// idleWindow is the length of the windows of an observed limiter whose
// controller wants none: they only keep the expected service time current.
const idleWindow = time.Second

// schedule sets the end of the present window.
func (l *Limiter) schedule(now, length time.Duration) {
	switch {
	case length > 0:
		l.tickAt = now + min(length, room.Never-now)
	case l.observed:
		l.tickAt = now + idleWindow
	default:
		l.tickAt = room.Never
	}
	l.arm(now)
}

// Next returns when [Limiter.Step] is due, on the clock of Config.Now, and
// false if nothing is pending.
func (l *Limiter) Next() (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := min(l.tickAt, l.room.Expiry())
	return at, at != room.Never
}

// Step does what is due: waiters whose time is up are refused, and a window
// that has ended goes to the controller. Calling it early does no harm. A
// limiter on the real clock does it by itself.
func (l *Limiter) Step() {
	now := l.now()
	l.mu.Lock()
	l.armed = room.Never
	due := l.tickAt <= now && !l.closed
	if due {
		l.tickAt = room.Never // one at a time
	}
	answered := l.settle(now)
	l.arm(now)
	l.mu.Unlock()
	answered.Deliver()
	if due {
		changed, answered, problem := l.tick()
		answered.Deliver()
		changed.tell(l)
		l.faulty(problem)
	}
}

// tick closes the window: measure, decide, apply. The controller and the signals
// are asked without the limiter's lock. The problem is the first nonsense that
// came of it, empty if there was none.
func (l *Limiter) tick() (change, answers, string) {
	l.control.Lock()
	defer l.control.Unlock()
	w := &l.reading
	now := l.now()
	l.mu.Lock()
	l.read(now, w)
	l.mu.Unlock()

	window.Finish(w)
	d, problem := l.ask(w)

	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return change{}, answers{}, ""
	}
	if w.Timed > 0 {
		l.median = w.Quantile(0.5)
	}
	if !d.Extend {
		l.window.Reset(now, l.inFlight())
		l.refusedBefore += uint64(w.Refused)
	}
	if problem != "" {
		if l.faults++; l.faults > 1 {
			problem = "" // told once
		}
	}
	changed := l.setLimit(now, d)
	l.schedule(now, d.Next)
	return changed, l.settle(now), problem
}

// read fills in the window.
func (l *Limiter) read(now time.Duration, w *control.Window) {
	l.window.Read(now, w)
	w.Limit, w.InFlight, w.Waiting = l.limit, l.inFlight(), int64(l.room.Len())
	w.Refused = int64(l.count.unserved() - l.refusedBefore)
}

// arm sets the timer for what is due next. It is not moved back when that turns
// out to be later: a call of Step for nothing is cheaper than moving the timer
// with every waiter that leaves.
func (l *Limiter) arm(now time.Duration) {
	if l.clock != nil {
		return
	}
	next := min(l.tickAt, l.room.Expiry())
	if l.closed && l.room.Len() == 0 {
		next = room.Never
	}
	if next >= l.armed {
		return
	}
	l.armed = next
	if l.timer == nil {
		l.timer = time.AfterFunc(next-now, l.Step)
		return
	}
	l.timer.Reset(next - now)
}

// ask has the controller decide, and takes its word only where that makes
// sense. What does not is named; the limit then stays what it is.
func (l *Limiter) ask(w *control.Window) (d control.Decision, problem string) {
	defer func() {
		if r := recover(); r != nil {
			d, problem = l.keep(w), fmt.Sprintf("controller %q panicked: %v", l.controlledBy, r)
		}
	}()
	w.Readings = w.Readings[:0]
	if l.signals != nil {
		w.Readings = l.signals.Readings(w.Readings)
	}
	d = l.controller.Update(w)
	switch {
	case d.Limit < 1 || d.Limit > MaxLimit:
		problem = fmt.Sprintf("controller %q wants a limit of %d: it must be from 1 to %d", l.controlledBy, d.Limit, MaxLimit)
	case d.Next < 0:
		problem = fmt.Sprintf("controller %q wants a window of %v: it must not be negative", l.controlledBy, d.Next)
	case d.Next > 0 && d.Next < shortestWindow:
		d.Next = shortestWindow
	}
	if problem != "" {
		d = l.keep(w)
	}
	return d, problem
}

// shortestWindow bounds how often a controller can ask to be called: shorter
// windows would cost more than they tell.
const shortestWindow = time.Millisecond

// keep is the decision to change nothing, for want of a better one.
func (l *Limiter) keep(w *control.Window) control.Decision {
	return control.Decision{Limit: w.Limit, Next: idleWindow, Reason: "kept: the controller failed"}
}

// faulty tells of nonsense.
func (l *Limiter) faulty(problem string) {
	if h := l.hooks.Load(); problem != "" && h.Faulty != nil {
		h.Faulty(l.name, problem)
	}
}

// Reconfigure takes up new settings while the limiter runs. What is in flight
// and what waits stays; a new controller starts from what the old one has
// learned, or from the present limit. A change of Name or Now is ignored, a
// closed limiter refuses, and a faulty configuration changes nothing.
func (l *Limiter) Reconfigure(cfg Config) error {
	if err := cfg.validate(); err != nil {
		return err
	}
	changed, answered, err := l.reconfigure(cfg, cfg.controller())
	answered.Deliver()
	changed.tell(l)
	return err
}

func (l *Limiter) reconfigure(cfg Config, next control.Controller) (change, answers, error) {
	l.control.Lock()
	defer l.control.Unlock()
	if s, ok := next.(control.Saver); ok {
		s.Restore(l.learned())
	}
	first := next.Start()
	first.Reason = "configured"

	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return change{}, answers{}, errClosed(l.name)
	}
	l.controller, l.signals = next, cfg.Signals
	l.shiftDown(now)
	l.configure(cfg)
	l.window.Reset(now, l.inFlight())
	l.refusedBefore = l.count.unserved()
	l.schedule(now, first.Next)
	changed := l.setLimit(now, first)
	return changed, l.settle(now), nil
}

// configure takes up the settings that need no transition. The core is in the
// slow gear.
func (l *Limiter) configure(cfg Config) {
	l.controlledBy = l.controller.Name()
	l.room.Configure(waiting.Places(cfg.Queue.Len, DefaultQueueLen), cfg.Queue.Order)
	l.parts = cfg.Queue.settings().Parts()
	l.parts.Apply(&l.room)
	l.refuseOversize.Store(cfg.RefuseOversize)
	l.byTime = newByTime(cfg.Queue.ByTime, l.byTime)
	l.resized = true
	l.maxWait.Store(int64(waiting.Longest(cfg.Queue.MaxWait, DefaultMaxWait)))
	l.exempt.configure(cfg.Exempt)
	hooks := cfg.Hooks
	l.hooks.Store(&hooks)
	l.findLeaks.Store(cfg.FindLeaks)
	_, fixed := l.controller.(control.Fixed)
	l.observed = !fixed || !hooks.Empty() || cfg.FindLeaks
}

// learned returns what the controller has learned, or else the present limit.
// The control lock is held.
func (l *Limiter) learned() control.State {
	if s, ok := l.controller.(control.Saver); ok {
		return s.Save()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return control.State{Limit: float64(l.limit)}
}

// Save returns what the controller has learned, for [Limiter.Restore] after a
// restart, and false if it learns nothing.
func (l *Limiter) Save() (control.State, bool) {
	l.control.Lock()
	defer l.control.Unlock()
	if s, ok := l.controller.(control.Saver); ok {
		return s.Save(), true
	}
	return control.State{}, false
}

// Restore takes up what an earlier run has learned. A controller that learns
// nothing ignores it.
func (l *Limiter) Restore(state control.State) {
	_ = l.apply("restored", func() (int64, bool) {
		s, ok := l.controller.(control.Saver)
		if !ok {
			return 0, false
		}
		s.Restore(state)
		return l.controller.Start().Limit, true
	})
}

// SetLimit changes the limit by hand. If it grows, waiters start at once; if it
// shrinks, nothing is revoked, and nothing is granted until less than the new
// limit is in flight. A controller goes on from there with its next decision.
func (l *Limiter) SetLimit(n int64) error {
	if n < 1 || n > MaxLimit {
		return fmt.Errorf("limit: gate %q: limit %d: must be from 1 to %d", l.name, n, MaxLimit)
	}
	return l.apply("set", func() (int64, bool) {
		if _, ok := l.controller.(control.Fixed); ok {
			l.controller = control.Fixed(n)
		} else if s, ok := l.controller.(control.Saver); ok {
			s.Restore(control.State{Limit: float64(n)})
		}
		return n, true
	})
}

// apply changes the limit outside the rhythm of the windows. decide runs with
// the control lock held and returns the new limit, or false to leave it.
func (l *Limiter) apply(reason string, decide func() (int64, bool)) error {
	changed, answered, err := l.decided(reason, decide)
	answered.Deliver()
	changed.tell(l)
	return err
}

func (l *Limiter) decided(reason string, decide func() (int64, bool)) (change, answers, error) {
	l.control.Lock()
	defer l.control.Unlock()
	limit, ok := decide()
	if !ok {
		return change{}, answers{}, nil
	}
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return change{}, answers{}, errClosed(l.name)
	}
	changed := l.setLimit(now, control.Decision{Limit: limit, Reason: reason})
	return changed, l.settle(now), nil
}

// setLimit applies a decision under the lock.
func (l *Limiter) setLimit(now time.Duration, d control.Decision) change {
	limit := clampLimit(d.Limit)
	c := change{from: l.limit, to: limit, reason: d.Reason}
	if l.signal != d.Signal {
		l.signal, l.reason, l.resized = d.Signal, d.Reason, true
	}
	if c.from != c.to {
		l.resize(now, limit)
		l.reason = d.Reason
		l.resized = true
	}
	return c
}

// change is a change of the limit that the hook has yet to hear of, once no lock
// is held.
type change struct {
	from, to int64
	reason   string
}

func (c change) tell(l *Limiter) {
	if h := l.hooks.Load(); h.LimitChanged != nil && c.from != c.to {
		h.LimitChanged(l.name, c.from, c.to, c.reason)
	}
}

func errClosed(name string) error {
	return fmt.Errorf("limit: gate %q: %w", name, ErrClosed)
}

// ErrClosed is the error of changing a limiter that has been closed. Work is
// refused with a Rejection for [weir.ReasonDraining] instead.
var ErrClosed = errors.New("closed")
