package limit

import (
	"fmt"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/gate"
	"github.com/weir-go/weir/internal/room"
	"github.com/weir-go/weir/internal/window"
)

// Next returns when [Limiter.Step] is due, on the clock of Config.Now, and
// false if nothing is pending.
func (l *Limiter) Next() (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := min(l.tickAt, l.room.Expiry())
	return at, at != room.Never
}

// Step does what is due. Waiters whose time is up are refused, and a window
// that has ended goes to the controller. Calling it early does no harm. A
// limiter on the real clock does it by itself.
func (l *Limiter) Step() {
	now := l.front.Now()
	l.mu.Lock()
	l.timerAt = room.Never
	due := l.tickAt <= now && !l.closed
	if due {
		l.tickAt = room.Never // one at a time
	}
	answered := l.update(now)
	l.arm(now)
	l.mu.Unlock()
	answered.Deliver()
	if due {
		_ = l.deliver(l.tick())
	}
}

// deliver delivers the results of a change, with no lock held.
func (l *Limiter) deliver(c gate.Change, answered gate.Answers, err error) error {
	answered.Deliver()
	l.front.Changed(c)
	return err
}

// tick closes the window: measure, decide, apply. The controller and the signals
// are asked without the limiter's lock.
func (l *Limiter) tick() (gate.Change, gate.Answers, error) {
	l.sizer.Lock()
	defer l.sizer.Unlock()
	w, now := &l.sizer.Window, l.front.Now()
	l.mu.Lock()
	l.read(now, w)
	kept := control.Decision{Limit: l.limit, Signal: l.signal}
	l.mu.Unlock()
	window.Finish(w)

	d, problem := l.sizer.Ask(kept)
	return l.apply(now, d, func(c *gate.Change) {
		if w.Timed > 0 {
			l.median = w.Quantile(0.5)
		}
		if !d.Extend {
			l.window.Reset(now, l.inFlight())
		}
		c.Problem = problem
		l.schedule(now, d.Next)
	})
}

// read fills in the window.
func (l *Limiter) read(now time.Duration, w *control.Window) {
	l.window.Read(now, w)
	w.Limit, w.InFlight, w.Waiting = l.limit, l.inFlight(), int64(l.room.Len())
}

// Reconfigure replaces the settings while the limiter runs. What is in flight
// and what waits stays. A new controller starts from what the old one has
// learned, or from the present limit. A change of Name or Now is ignored, a
// closed limiter refuses, and a faulty configuration changes nothing.
func (l *Limiter) Reconfigure(cfg Config) error {
	next, err := cfg.compile()
	if err != nil {
		return err
	}
	return l.deliver(l.reconfigure(cfg, next))
}

func (l *Limiter) reconfigure(cfg Config, next control.Controller) (gate.Change, gate.Answers, error) {
	l.sizer.Lock()
	defer l.sizer.Unlock()
	l.mu.Lock()
	limit, closed := l.limit, l.closed
	l.mu.Unlock()
	if closed {
		return gate.Change{}, gate.Answers{}, l.errClosed()
	}
	first, err := l.sizer.Replace(next, cfg.Signals, limit)
	if err != nil {
		cfg.Name = l.Name()
		return gate.Change{}, gate.Answers{}, cfg.errStart(err)
	}
	now := l.front.Now()
	return l.apply(now, first, func(*gate.Change) {
		l.shiftDown(now)
		l.configure(cfg)
		l.window.Reset(now, l.inFlight())
		l.schedule(now, first.Next)
	})
}

// configure sets what needs no transition. The core is in the slow gear.
func (l *Limiter) configure(cfg Config) {
	l.controlledBy, l.fixed = l.sizer.Controller.Name(), l.sizer.IsFixed()
	l.room.Configure(gate.Places(cfg.Queue.Len, cfg.Queue.MaxWait, DefaultQueueLen), cfg.Queue.Order)
	before := l.parts
	l.parts = gate.NewParts(cfg.Queue.Shares, cfg.Queue.Weights.Users, cfg.Queue.Weights.Tenants)
	l.parts.Apply(&l.room, before)
	l.refuseOversize.Store(cfg.RefuseOversize)
	l.accounts.Forecast = gate.NewForecast(cfg.Queue.ByTime, l.accounts.Forecast, l.front.IsVirtual())
	l.refusalsStale = true
	l.maxWait.Store(int64(gate.Longest(cfg.Queue.MaxWait, DefaultMaxWait)))
	l.exempt.Configure(cfg.Exempt)
	l.front.SetHooks(&cfg.Hooks)
	l.front.FindLeaks(cfg.FindLeaks)
	l.observed = !l.fixed || !cfg.Hooks.Empty() || cfg.FindLeaks
}

// Save returns what the controller has learned, for [Limiter.Restore] after a
// restart, and false if it learns nothing.
func (l *Limiter) Save() (control.State, bool) { return l.sizer.Save() }

// Restore gives the controller what an earlier run has learned. A controller that
// learns nothing ignores it.
func (l *Limiter) Restore(state control.State) {
	_ = l.change("restored", func() (int64, bool) { return l.sizer.Restore(state) })
}

// SetLimit changes the limit by hand. If it grows, waiters start at once. If it
// shrinks, nothing is revoked, and nothing is granted until less than the new
// limit is in flight. A controller goes on from there with its next decision.
func (l *Limiter) SetLimit(n int64) error {
	if n < 1 || n > MaxLimit {
		return fmt.Errorf("limit: gate %q: limit %d: must be from 1 to %d", l.Name(), n, MaxLimit)
	}
	return l.change("set", func() (int64, bool) {
		if l.sizer.IsFixed() {
			l.sizer.Controller = control.Fixed(n)
		} else {
			l.sizer.Restore(control.State{Limit: float64(n)})
		}
		return n, true
	})
}

// change changes the limit between two windows. decide runs with the sizer locked
// and returns the new limit, or false to leave it.
func (l *Limiter) change(reason string, decide func() (int64, bool)) error {
	return l.deliver(l.changed(reason, decide))
}

func (l *Limiter) changed(reason string, decide func() (int64, bool)) (gate.Change, gate.Answers, error) {
	l.sizer.Lock()
	defer l.sizer.Unlock()
	limit, ok := decide()
	if !ok {
		return gate.Change{}, gate.Answers{}, nil
	}
	return l.apply(l.front.Now(), control.Decision{Limit: limit, Reason: reason}, func(*gate.Change) {})
}

// apply carries out a decision. Before that it does what else needs the lock.
func (l *Limiter) apply(now time.Duration, d control.Decision, first func(*gate.Change)) (gate.Change, gate.Answers, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return gate.Change{}, gate.Answers{}, l.errClosed()
	}
	c := gate.Change{From: l.limit, To: gate.ClampLimit(d.Limit), Reason: d.Reason}
	first(&c)
	l.estimate, l.probes = d.Estimate, d.Probes
	if l.signal != d.Signal {
		l.signal, l.reason, l.refusalsStale = d.Signal, d.Reason, true
	}
	if c.From != c.To {
		l.resize(now, c.To)
		l.reason, l.refusalsStale = d.Reason, true
	}
	return c, l.update(now), nil
}

// schedule sets the end of the present window.
func (l *Limiter) schedule(now, length time.Duration) {
	switch {
	case length > 0:
		l.tickAt = gate.After(now, length)
	case l.observed:
		l.tickAt = now + gate.IdleWindow
	default:
		l.tickAt = room.Never
	}
	l.arm(now)
}

// arm sets the timer for what is due next. It does not go back when the next
// event turns out to be later. A needless call of Step is cheaper than a new
// timer for every waiter that leaves.
func (l *Limiter) arm(now time.Duration) {
	next := min(l.tickAt, l.room.Expiry())
	if l.closed && l.room.Len() == 0 {
		next = room.Never
	}
	if !l.front.Timed() || next >= l.timerAt {
		return
	}
	l.timerAt = next
	if l.timer == nil {
		l.timer = time.AfterFunc(next-now, l.Step)
		return
	}
	l.timer.Reset(next - now)
}

func (l *Limiter) errClosed() error {
	return fmt.Errorf("limit: gate %q: %w", l.Name(), weir.ErrClosed)
}
