package limit

import (
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/waiting"
)

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
