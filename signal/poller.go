package signal

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/control"
)

// Config configures [NewPoller].
type Config struct {
	// Watches are the signals to poll, each with its settings. At least one;
	// names must differ.
	Watches []Watch
	// Hooks are told what happens.
	Hooks Hooks
}

// Watch is a signal and how to poll it. The zero value of a field but Signal
// means its default.
type Watch struct {
	// Signal is what to read. It belongs to one poller.
	Signal Signal
	// Interval is the time from the end of one reading to the next. At least
	// 1 ms; default 100 ms, and 10 ms for the scheduler's signals.
	Interval time.Duration
	// Timeout is how long a reading may take: then its context ends, and it
	// counts as hanging until it returns. Default: Hold.
	Timeout time.Duration
	// Hold is how long the last good value stands in when readings fail, hang
	// or are no numbers. Its age counts from the start of its reading. At
	// least Interval; default ten times that, and no less than 1 s.
	Hold time.Duration
	// Then says what holds after that. Default [Ignore]. A signal that this
	// machine does not have is always ignored.
	Then Policy
	// SafeValue is the value with [Safe]: finite, not negative.
	SafeValue float64
	// Smooth is the time constant of an exponential average over the readings.
	// Default 0: none.
	Smooth time.Duration
}

// Policy is what a poller says of a signal that has had no good reading for
// longer than Hold.
type Policy uint8

// The policies.
const (
	// Ignore reports the signal as unknown: controllers go by the others.
	Ignore Policy = iota
	// Safe reports Watch.SafeValue. Use a value above 1 where working blind is
	// worse than working less.
	Safe
)

// Hooks are called by a poller as things happen, on goroutines of its own and
// with no lock held. Each may be nil. They must not panic.
type Hooks struct {
	// Trouble follows the first reading that is of no use, once for each kind:
	// not supported here, an error, no number, no answer within the Timeout. It
	// is told again only after the signal was well for a minute.
	Trouble func(signal string, err error)
	// Recovered follows the first good reading after a Trouble.
	Recovered func(signal string)
}

// Poller polls signals, each in a goroutine of its own, and keeps the newest
// value of each. A signal that hangs delays nobody: neither the other signals
// nor who asks for Readings. It is never asked twice at a time, so a reading
// that never returns costs one goroutine.
type Poller struct {
	watches []*watch
	cancel  context.CancelFunc
	closed  atomic.Bool
}

// NewPoller starts polling. Close ends it. The error names every setting out of
// range.
func NewPoller(cfg Config) (*Poller, error) {
	var f faults
	f.check(len(cfg.Watches) > 0, "Watches: there is no signal to poll")
	names := map[string]bool{}
	p := &Poller{watches: make([]*watch, 0, len(cfg.Watches))}
	for i, c := range cfg.Watches {
		if c.Signal == nil {
			f.check(false, "Watches[%d]: no Signal", i)
			continue
		}
		name := c.Signal.Name()
		f.check(name != "", "Watches[%d]: the signal's name is empty", i)
		f.check(!names[name], "Watches[%d]: another signal is named %q too", i, name)
		names[name] = true
		c = c.withDefaults()
		if err := c.validate(); err != nil {
			f.check(false, "Watches[%d] (%s): %w", i, name, err)
		}
		p.watches = append(p.watches, &watch{Watch: c, name: name, hooks: cfg.Hooks, closed: &p.closed})
	}
	if err := f.err("poller"); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	now := time.Now()
	for _, w := range p.watches {
		w.since = now
		go w.run(ctx)
	}
	return p, nil
}

func (c Watch) withDefaults() Watch {
	if s, ok := c.Signal.(*source); ok {
		def(&c.Interval, s.every)
	}
	def(&c.Interval, slowInterval)
	def(&c.Hold, max(time.Second, 10*c.Interval))
	def(&c.Timeout, c.Hold)
	return c
}

func (c *Watch) validate() error {
	var f faults
	f.check(c.Interval >= time.Millisecond, "Interval %v: must be at least 1ms", c.Interval)
	f.check(c.Timeout > 0, "Timeout %v: must be positive", c.Timeout)
	f.check(c.Hold >= c.Interval, "Hold %v: must not be below the Interval %v", c.Hold, c.Interval)
	f.check(c.Then <= Safe, "Then %d: must be Ignore or Safe", c.Then)
	f.check(sane(c.SafeValue), "SafeValue %v: must be finite and not negative", c.SafeValue)
	f.check(c.Then == Safe || c.SafeValue == 0, "SafeValue %v: only used with Then: Safe", c.SafeValue)
	f.check(c.Smooth >= 0, "Smooth %v: must not be negative", c.Smooth)
	return errors.Join(f...)
}

// Readings implements [control.Source]. It never blocks, and allocates only to
// grow into.
func (p *Poller) Readings(into []control.Reading) []control.Reading {
	now := time.Now()
	for _, w := range p.watches {
		into = append(into, w.reading(now))
	}
	return into
}

// Snapshot returns the state of each signal, in the order of Config.Watches.
func (p *Poller) Snapshot() []Status {
	now := time.Now()
	all := make([]Status, 0, len(p.watches))
	for _, w := range p.watches {
		all = append(all, w.status(now))
	}
	return all
}

// Close ends the polling; every signal is unknown from then on. It does not
// wait: a reading that hangs ends when it returns.
func (p *Poller) Close() {
	p.closed.Store(true)
	p.cancel()
}

// Status is the state of a signal.
type Status struct {
	// Name is the signal's.
	Name string
	// State says what Value is.
	State State
	// Value and Known are what Readings hands out.
	Value float64
	Known bool
	// Age is the time since the last good reading began, or since the poller
	// was made if there was none.
	Age time.Duration
	// Running is how long the present reading has taken so far, 0 if none is
	// under way.
	Running time.Duration
	// Reads counts readings that have returned; of these Failures returned an
	// error and Bad NaN, an infinite or a negative number.
	Reads, Failures, Bad uint64
	// Err is the latest trouble, nil if the last reading was good.
	Err error
}

// State says what stands behind a signal's value.
type State string

// The states.
const (
	Starting    State = "starting"    // never read well so far
	Live        State = "live"        // the last reading
	Held        State = "held"        // the last good one: readings fail, hang or are late
	Safely      State = "safe"        // nothing good for longer than Hold: SafeValue
	Unknown     State = "unknown"     // nothing good for longer than Hold: ignored
	Unsupported State = "unsupported" // not on this machine: ignored
	Closed      State = "closed"      // the poller is closed
)

// String is the status in one line.
func (s Status) String() string {
	text := fmt.Sprintf("%s %s", s.Name, s.State)
	if s.Known {
		text += fmt.Sprintf(" %.3g", s.Value)
	}
	if s.Err != nil {
		text += fmt.Sprintf(" (%v)", s.Err)
	}
	return text
}
