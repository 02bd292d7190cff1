package signal

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/control"
)

// watch polls one signal. Its mutex is held for a few loads and stores, never
// while the signal is read or a hook runs.
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
	told                 trouble   // kinds that the hook has heard of
	down                 bool      // and of no recovery since
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
	// retryMissing is how often to ask for what this machine does not have: a
	// memory limit may be set later.
	retryMissing = time.Minute
	// forget is how long a signal must be well before the same kind of trouble
	// is news again.
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

// once reads and returns when to read again.
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
	w.took(began, v, err)

	if errors.Is(err, errors.ErrUnsupported) {
		return max(w.Interval, retryMissing)
	}
	return w.Interval
}

// read asks the signal, and takes a panic for an error.
func (w *watch) read(ctx context.Context) (v float64, err error) {
	defer func() {
		if r := recover(); r != nil {
			v, err = 0, fmt.Errorf("signal: %s panicked: %v", w.name, r)
		}
	}()
	return w.Signal.Read(ctx)
}

// took notes what a reading came to.
func (w *watch) took(began time.Time, v float64, err error) {
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
		err = fmt.Errorf("signal: %s read %v, which is no reading: it must be finite and not negative", w.name, v)
	case errors.Is(err, ErrNoValue):
	case errors.Is(err, errors.ErrUnsupported):
		w.failures++
		kind = missing
	case now.Sub(began) >= w.Timeout: // it gave up because it was told to
		w.failures++
		kind = hanging
	default:
		w.failures++
		kind = failing
	}
	tell := w.note(kind, err)
	recovered := kind == 0 && err == nil && w.down
	if recovered {
		w.down = false
	}
	w.mu.Unlock()
	w.tell(tell, recovered, err)
}

// overdue notes that the reading that began then has not returned in time.
func (w *watch) overdue(began time.Time) {
	w.mu.Lock()
	if !w.began.Equal(began) {
		w.mu.Unlock()
		return // it just has
	}
	err := fmt.Errorf("signal: %s has not answered for %v", w.name, w.Timeout)
	tell := w.note(hanging, err)
	w.mu.Unlock()
	w.tell(tell, false, err)
}

// note keeps trouble in mind and reports whether it is news.
func (w *watch) note(kind trouble, err error) bool {
	if kind == 0 {
		return false
	}
	w.err, w.kind, w.well = err, kind, time.Time{}
	if w.told&kind != 0 {
		return false
	}
	w.told |= kind
	w.down = true
	return true
}

// good takes a reading that can be used.
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
		w.told = 0
	}
}

func (w *watch) tell(trouble, recovered bool, err error) {
	switch {
	case w.closed.Load():
	case trouble && w.hooks.Trouble != nil:
		w.hooks.Trouble(w.name, err)
	case recovered && w.hooks.Recovered != nil:
		w.hooks.Recovered(w.name)
	}
}

// reading is what a controller is told.
func (w *watch) reading(now time.Time) control.Reading {
	w.mu.Lock()
	defer w.mu.Unlock()
	state, value := w.judge(now)
	return control.Reading{Name: w.name, Value: value, Known: state.known()}
}

// judge says what there is to go by.
func (w *watch) judge(now time.Time) (State, float64) {
	age := now.Sub(w.since)
	switch {
	case w.closed.Load():
		return Closed, 0
	case w.has && age <= w.Hold:
		if w.kind != 0 || age > w.Interval+w.Timeout {
			return Held, w.value
		}
		return Live, w.value
	case w.kind == missing:
		return Unsupported, 0
	case !w.has && age <= w.Hold:
		return Starting, 0
	case w.Then == Safe:
		return Safely, w.SafeValue
	}
	return Unknown, 0
}

func (s State) known() bool { return s == Live || s == Held || s == Safely }

func (w *watch) status(now time.Time) Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	state, value := w.judge(now)
	s := Status{
		Name: w.name, State: state, Value: value, Known: state.known(), Age: now.Sub(w.since),
		Reads: w.reads, Failures: w.failures, Bad: w.bad, Err: w.err,
	}
	if !w.began.IsZero() {
		s.Running = now.Sub(w.began)
	}
	return s
}
