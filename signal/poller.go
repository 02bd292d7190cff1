package signal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
)

// Config configures [NewPoller].
type Config struct {
	// Watches are the signals to poll, each with its settings. At least one;
	// names must differ.
	Watches []Watch
	// Hooks are called as things happen.
	Hooks Hooks
}

// Watch is a signal and how to poll it. The zero value of a field but Signal
// means its default.
type Watch struct {
	// Signal is what to read. It belongs to one poller.
	Signal Signal
	// Interval is the time from the end of one reading to the next. At least
	// 1 ms; default 100 ms, and 10 ms for the scheduler's signals.
	Interval time.Duration `min:"1ms"`
	// Timeout is how long a reading may take: then its context ends, and it
	// counts as hanging until it returns. Default: Hold.
	Timeout time.Duration `min:"1ns"`
	// Hold is how long the last good value is used when readings fail, hang or are
	// no numbers. Its age counts from the start of its reading. At least Interval;
	// default ten times that, and no less than 1 s.
	Hold time.Duration
	// Fallback is the value to use after that, finite and above 0. Use one above
	// 1 where working blind is worse than working less. Default 0: the signal is
	// ignored, and controllers go by the others. A signal that this machine does
	// not have is always ignored.
	Fallback float64 `min:"0"`
	// Smooth is the time constant of an exponential average over the readings.
	// Default 0: none.
	Smooth time.Duration `min:"0s"`
}

// Hooks are called by a poller as things happen, on its own goroutines and under no lock.
// Each may be nil. They must not panic.
type Hooks struct {
	// Trouble follows the first useless reading of each kind: not supported here, an
	// error, no number, no answer within the Timeout. It is called again for the same
	// kind only after a minute of good readings.
	Trouble func(signal string, err error)
	// Recovered follows the first good reading after a Trouble.
	Recovered func(signal string)
}

// Poller polls signals, each in a goroutine of its own, and keeps the newest value of
// each. A signal that hangs delays neither the other signals nor callers of Readings. A
// signal is read once at a time, so a reading that never returns costs one goroutine.
type Poller struct {
	watches []*watch
	cancel  context.CancelFunc
	closed  atomic.Bool
}

// NewPoller starts polling. Close ends it. The error names every setting out of
// range.
func NewPoller(cfg Config) (*Poller, error) {
	var f fault.List
	f.Require(len(cfg.Watches) > 0, fault.Path{"Watches"}, "there is no signal to poll")
	names := map[string]bool{}
	p := &Poller{watches: make([]*watch, 0, len(cfg.Watches))}
	for i, c := range cfg.Watches {
		at := fault.Path{"Watches"}.Index(i)
		if c.Signal == nil {
			f.Require(false, at, "there is no Signal")
			continue
		}
		name := c.Signal.Name()
		f.Require(name != "", at, "the signal's name is empty")
		f.Require(!names[name], at, "another signal is called %q, too", name)
		names[name] = true
		c = c.withDefaults()
		f.AddError(fault.Path{"Watches", name}, c.check())
		p.watches = append(p.watches, &watch{Watch: c, name: name, hooks: cfg.Hooks, closed: &p.closed})
	}
	if err := f.Err("signal: poller"); err != nil {
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
		c.Interval = cmp.Or(c.Interval, s.every)
	}
	c.Interval = cmp.Or(c.Interval, slowInterval)
	c.Hold = cmp.Or(c.Hold, max(time.Second, 10*c.Interval))
	c.Timeout = cmp.Or(c.Timeout, c.Hold)
	return c
}

// Check returns what is wrong with the settings, which [NewPoller] would refuse.
func (c Watch) Check() error {
	c = c.withDefaults()
	return c.check()
}

func (c *Watch) check() error {
	var f fault.List
	setting.Complete(c, &f)
	f.Check(c.Hold >= c.Interval, fault.Path{"Hold"}, c.Hold, "must not be below the interval %v", c.Interval)
	return f.Err("signal")
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

// Close ends the polling; every signal is unknown from then on. It does not wait for
// readings that hang.
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
	// Running is how long the present reading has taken, 0 if none is under way.
	Running time.Duration
	// Reads counts readings that have returned; of these Failures returned an
	// error and Bad NaN, an infinite or a negative number.
	Reads, Failures, Bad uint64
	// Err is the latest trouble, nil if the last reading was good.
	Err error
}

// State says where a signal's value comes from. Metrics use these words.
type State string

// The states.
const (
	Starting    State = "starting"    // never read well so far
	Fresh       State = "live"        // the last reading
	Stale       State = "held"        // the last good one: readings fail, hang or are late
	Fallback    State = "safe"        // nothing good for longer than Hold: Watch.Fallback
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

// watch polls one signal. Its mutex is never locked while the signal is read or a hook
// runs.
type watch struct {
	Watch
	name   string
	hooks  Hooks
	closed *atomic.Bool

	mu    sync.Mutex
	value float64
	has   bool      // there was a good reading
	since time.Time // when the last good reading began, or the poller was made
	began time.Time // when the present reading began; zero if none is under way

	reads, failures, bad uint64
	err                  error
	kind                 trouble   // of err
	reported             trouble   // kinds that were reported to the hook
	down                 bool      // trouble was reported, and no recovery since
	well                 time.Time // the first good reading of an unbroken run; zero if broken
}

// trouble is a set of kinds of readings that are of no use.
type trouble uint8

const (
	missing  trouble = 1 << iota // not on this machine
	failing                      // an error
	nonsense                     // no number
	hanging                      // no answer
)

const (
	// retryMissing is how often to read what this machine does not have: a memory
	// limit may be set later.
	retryMissing = time.Minute
	// forget is how long readings must be good before the same kind of trouble is
	// reported again.
	forget = time.Minute
)

// run polls until ctx ends.
func (w *watch) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(w.once(ctx))
	}
}

// once reads, and returns the time until the next reading.
func (w *watch) once(ctx context.Context) time.Duration {
	began := time.Now()
	w.mu.Lock()
	w.began = began
	w.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, w.Timeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			w.overdue(began)
		}
	})
	v, err := w.read(ctx)
	stop()
	w.record(began, v, err)

	if errors.Is(err, errors.ErrUnsupported) {
		return max(w.Interval, retryMissing)
	}
	return w.Interval
}

// read reads the signal, and makes an error of a panic.
func (w *watch) read(ctx context.Context) (v float64, err error) {
	defer func() {
		if r := recover(); r != nil {
			v, err = 0, fmt.Errorf("signal: %s panicked: %v", w.name, r)
		}
	}()
	return w.Signal.Read(ctx)
}

// record updates the state with the result of a reading.
func (w *watch) record(began time.Time, v float64, err error) {
	now := time.Now()
	w.mu.Lock()
	w.began = time.Time{}
	w.reads++
	kind := trouble(0)
	switch {
	case err == nil && sane(v):
		w.good(began, v)
	case err == nil:
		w.bad++
		kind = nonsense
		err = fmt.Errorf("signal: %s read %v: a reading must be finite and not negative", w.name, v)
	case errors.Is(err, ErrNoValue):
	case errors.Is(err, errors.ErrUnsupported):
		w.failures++
		kind = missing
	case now.Sub(began) >= w.Timeout: // it returned because its context ended
		w.failures++
		kind = hanging
	default:
		w.failures++
		kind = failing
	}
	news := w.fail(kind, err)
	recovered := kind == 0 && err == nil && w.down
	if recovered {
		w.down = false
	}
	w.mu.Unlock()
	w.report(news, recovered, err)
}

// overdue records that the reading that began then has not returned in time.
func (w *watch) overdue(began time.Time) {
	w.mu.Lock()
	if !w.began.Equal(began) {
		w.mu.Unlock()
		return // it has returned just now
	}
	err := fmt.Errorf("signal: %s has not answered for %v", w.name, w.Timeout)
	news := w.fail(hanging, err)
	w.mu.Unlock()
	w.report(news, false, err)
}

// fail records trouble, and returns whether to report it.
func (w *watch) fail(kind trouble, err error) bool {
	if kind == 0 {
		return false
	}
	w.err, w.kind, w.well = err, kind, time.Time{}
	if w.reported&kind != 0 {
		return false
	}
	w.reported |= kind
	w.down = true
	return true
}

// good records a reading that can be used.
func (w *watch) good(began time.Time, v float64) {
	passed := began.Sub(w.since)
	if w.has && w.Smooth > 0 && passed <= w.Hold {
		v = w.value + (v-w.value)*-math.Expm1(-float64(passed)/float64(w.Smooth))
	}
	w.value, w.has, w.since = v, true, began
	w.err, w.kind = nil, 0
	switch {
	case w.well.IsZero():
		w.well = began
	case began.Sub(w.well) >= forget:
		w.reported = 0
	}
}

// report calls the hooks.
func (w *watch) report(trouble, recovered bool, err error) {
	switch {
	case w.closed.Load():
	case trouble && w.hooks.Trouble != nil:
		w.hooks.Trouble(w.name, err)
	case recovered && w.hooks.Recovered != nil:
		w.hooks.Recovered(w.name)
	}
}

// reading is what a controller gets.
func (w *watch) reading(now time.Time) control.Reading {
	w.mu.Lock()
	defer w.mu.Unlock()
	state, value := w.current(now)
	return control.Reading{Name: w.name, Value: value, Known: state.known()}
}

func (w *watch) status(now time.Time) Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	state, value := w.current(now)
	s := Status{
		Name: w.name, State: state, Value: value, Known: state.known(), Age: now.Sub(w.since),
		Reads: w.reads, Failures: w.failures, Bad: w.bad, Err: w.err,
	}
	if !w.began.IsZero() {
		s.Running = now.Sub(w.began)
	}
	return s
}

// current returns the value to use now, and where it comes from.
func (w *watch) current(now time.Time) (State, float64) {
	age := now.Sub(w.since)
	switch {
	case w.closed.Load():
		return Closed, 0
	case w.has && age <= w.Hold:
		if w.kind != 0 || age > w.Interval+w.Timeout {
			return Stale, w.value
		}
		return Fresh, w.value
	case w.kind == missing:
		return Unsupported, 0
	case !w.has && age <= w.Hold:
		return Starting, 0
	case w.Fallback > 0:
		return Fallback, w.Fallback
	}
	return Unknown, 0
}

func (s State) known() bool { return s == Fresh || s == Stale || s == Fallback }
