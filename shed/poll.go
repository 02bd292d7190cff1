package shed

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/signal"
)

// feed is one configuration's source of pressures and the last good one of it.
type feed struct {
	read   func() (value float64, signal string, ok bool)
	into   []control.Reading // for read alone
	latest atomic.Pointer[reading]

	poller *signal.Poller // nil on virtual time
	stop   chan struct{}  // ends the ticker
}

func newFeed(cfg *Config) *feed {
	f := &feed{}
	if cfg.Pressure != nil {
		f.read = func() (float64, string, bool) {
			v, ok := cfg.Pressure()
			return v, "", ok
		}
		return f
	}
	f.read = func() (float64, string, bool) {
		f.into = cfg.Signals.Readings(f.into[:0])
		return highest(f.into, cfg.Heed)
	}
	return f
}

// highest returns the highest known reading of those named, of all if none is.
func highest(readings []control.Reading, named []string) (value float64, name string, ok bool) {
	for _, r := range readings {
		if !r.Known || !sane(r.Value) || len(named) > 0 && !slices.Contains(named, r.Name) {
			continue
		}
		if !ok || r.Value > value {
			value, name, ok = r.Value, r.Name, true
		}
	}
	return value, name, ok
}

// sane reports whether v can be a pressure.
func sane(v float64) bool { return v >= 0 && !math.IsInf(v, 1) }

// take reads once and keeps what is good.
func (f *feed) take(now func() time.Duration) (float64, error) {
	began := now()
	v, name, ok := f.read()
	if !ok {
		return 0, signal.ErrNoValue
	}
	if sane(v) {
		f.latest.Store(&reading{value: v, signal: name, at: began})
	}
	return v, nil
}

// start begins to read. The lock is held. A reading runs in a goroutine of the
// poller's, which also sees to panics and to what hangs; the ticker is there for
// the time in which none arrives.
func (s *Shedder) start(cfg Config) error {
	f := newFeed(&cfg)
	if !s.virtual {
		read := func(context.Context) (float64, error) {
			v, err := f.take(s.clock)
			s.tick(f)
			return v, err
		}
		hooks := signal.Hooks{}
		if h := cfg.Hooks.Faulty; h != nil {
			hooks.Trouble = func(_ string, err error) { h(s.name, err.Error()) }
		}
		poller, err := signal.NewPoller(signal.Config{Hooks: hooks, Watches: []signal.Watch{{
			Signal: signal.Func("pressure", read), Interval: cfg.Interval, Hold: cfg.Hold, Timeout: cfg.Hold,
		}}})
		if err != nil {
			return fmt.Errorf("shed: gate %q: %w", s.name, err)
		}
		f.poller, f.stop = poller, make(chan struct{})
		go s.run(f, cfg.Interval)
	}
	s.feed = f
	return nil
}

// end ends the readings. One that hangs is not waited for.
func (f *feed) end() {
	if f.poller != nil {
		f.poller.Close()
		close(f.stop)
	}
}

// run ticks where no reading does, until f is no longer in use.
func (s *Shedder) run(f *feed, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-f.stop:
			return
		case <-ticker.C:
			if s.overdue(interval) {
				s.tick(f)
			}
		}
	}
}

// overdue reports whether a tick has been left out.
func (s *Shedder) overdue(interval time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock()-s.ticked >= 2*interval
}

// tick decides what holds until the next one.
func (s *Shedder) tick(f *feed) {
	s.mu.Lock()
	if s.feed != f { // it has been replaced
		s.mu.Unlock()
		return
	}
	now := s.clock()
	s.ticked = now
	from := s.core.level
	s.core.step(now, f.latest.Load(), &s.book)
	to := s.core.level
	v := s.publish(now)
	s.mu.Unlock()
	if h := v.hooks.LimitChanged; h != nil && from != to {
		h(s.name, Levels-int64(from), Levels-int64(to), v.why())
	}
}

// publish makes a verdict of what the core has decided. The lock is held.
func (s *Shedder) publish(now time.Duration) *verdict {
	c := &s.core
	v := &verdict{level: c.level, closed: s.closed, salt: s.salter.at(now), hooks: c.rules.Hooks, known: c.known}
	if c.last != nil {
		v.pressure, v.signal = c.last.value, c.last.signal
	}
	if s.closed {
		v.refusal[0] = &weir.Rejection{Gate: s.name, Reason: weir.ReasonDraining, Retryable: true}
		s.verdict.Store(v)
		return v
	}
	for class := range Classes {
		if Level(class*Users) >= c.level {
			break
		}
		v.refusal[class] = &weir.Rejection{
			Gate: s.name, Rule: "below " + c.level.String(), Reason: weir.ReasonShed, Signal: v.signal,
			Value: v.pressure, Limit: c.limit(class), RetryAfter: c.retry(now), Retryable: true,
		}
	}
	s.verdict.Store(v)
	return v
}

// Next returns when [Shedder.Step] is due, on the clock of Config.Now, and false
// if nothing is pending because the gate is closed.
func (s *Shedder) Next() (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.due, !s.closed
}

// Step reads the pressure and decides, if that is due. A gate on the real clock
// does it by itself.
func (s *Shedder) Step() {
	s.mu.Lock()
	now, f := s.clock(), s.feed
	if !s.virtual || s.closed || now < s.due {
		s.mu.Unlock()
		return
	}
	s.due = now + s.core.rules.Interval
	hooks := s.core.rules.Hooks
	s.mu.Unlock()
	if _, err := f.safely(s.clock); err != nil && hooks.Faulty != nil {
		hooks.Faulty(s.name, err.Error())
	}
	s.tick(f)
}

// safely is take on the caller's goroutine: a panic is an error.
func (f *feed) safely(now func() time.Duration) (v float64, err error) {
	defer func() {
		if r := recover(); r != nil {
			v, err = 0, fmt.Errorf("shed: the pressure panicked: %v", r)
		}
	}()
	v, err = f.take(now)
	if errors.Is(err, signal.ErrNoValue) {
		return 0, nil
	}
	return v, err
}
