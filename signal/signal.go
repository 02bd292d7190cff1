// Package signal measures how loaded the process and its machine are. A [Signal] reads one
// figure. A [Poller] keeps the newest figure of each signal for a controller.
//
// A signal's value is a pressure: what was measured over the most that is wanted. 1 is
// the threshold, 0.5 half of it, 3 three times too much. So pressures of different things
// can be compared, and the highest one binds. The controllers that use them
// ([control.Capped], [control.Resource]) need nothing else. A signal for one controller
// may have another unit, such as a count of messages for control.LagMap; make it with
// [Func].
//
// What to use:
//
//   - [NewSchedLatency]: goroutines wait for a processor. The first choice for
//     handlers that compute: it moves within tens of milliseconds, and sees what an
//     in-flight count does not.
//   - [NewRunnable]: goroutines that wait right now, on Go 1.26 and later.
//   - [NewCPU]: processor time used. It is late, and it cannot exceed the machine, so
//     it hardly says how much is too much.
//   - [NewThrottling]: the container's CPU quota stops the process.
//   - [NewMemory]: memory of the container, or of the machine.
//   - [NewHeap]: live heap against GOMEMLIMIT, before collecting takes over.
//   - [NewPSI]: Linux's stall times for cpu, io and memory.
//   - [NewGoroutines]: a bound on their number.
//   - [Func]: anything else.
//
// [Default] is a choice of these that does little harm anywhere. No signal of the
// processor says anything about a backend that waits for a disk, a lock or another
// service. Signals protect this process; a controller finds the limit of the backend.
//
// A reading of the run time's own figures costs nanoseconds, one of files tens of
// microseconds: go test -bench Read ./signal.
//
// Where the kernel or the platform has no such figure, Read returns an error that matches
// errors.ErrUnsupported. The poller reports it once and continues with the others.
package signal

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
)

// Signal reads one figure.
type Signal interface {
	// Name is the signal's name in readings, snapshots and rejections.
	Name() string
	// Read measures. It returns a finite number that is not negative. The number is a
	// pressure (1 is the most that is wanted), unless a controller expects another
	// unit. A [Poller] knows two errors: one that matches errors.ErrUnsupported (this
	// machine does not have it), and [ErrNoValue] (nothing yet). It should return when
	// ctx ends.
	Read(ctx context.Context) (float64, error)
}

// ErrNoValue is the error of a Read that has no value yet. That is no failure: a rate
// needs two readings, also after a counter went backwards.
var ErrNoValue = errors.New("signal: no value yet")

// Func makes a signal of a function. The function is called by one goroutine
// at a time if the signal belongs to one [Poller].
func Func(name string, read func(ctx context.Context) (float64, error)) Signal {
	return function{name, read}
}

type function struct {
	name string
	read func(context.Context) (float64, error)
}

func (f function) Name() string { return f.name }

func (f function) Read(ctx context.Context) (float64, error) {
	if f.read == nil {
		return 0, fmt.Errorf("signal: %s: no function to read it", f.name)
	}
	return f.read(ctx)
}

// Default returns signals that make sense in every process, with their default
// thresholds. They are scheduler latency, the container's CPU throttling, memory, and
// the heap against GOMEMLIMIT. The poller reports once which of them this machine does
// not have, and ignores those.
func Default() []Signal {
	var all []Signal
	add := func(s Signal, err error) {
		if err == nil { // as ever with the defaults
			all = append(all, s)
		}
	}
	add(NewSchedLatency(SchedLatencyConfig{}))
	add(NewThrottling(ThrottlingConfig{}))
	add(NewMemory(MemoryConfig{}))
	add(NewHeap(HeapConfig{}))
	return all
}

// The intervals at which signals are read unless a [Watch] says otherwise.
const (
	fastInterval = 10 * time.Millisecond // the scheduler's: nanoseconds to read
	slowInterval = 100 * time.Millisecond
)

// source is a signal of this package. Several goroutines may read it; the mutex guards
// what it remembers between readings.
type source struct {
	name  string
	every time.Duration // how often it is worth reading

	mu      sync.Mutex
	measure func() (float64, error)
}

// Name implements [Signal].
func (s *source) Name() string { return s.name }

// Read implements [Signal]. It ignores ctx: what it reads answers at once.
func (s *source) Read(context.Context) (float64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.measure()
	if err != nil {
		return 0, fmt.Errorf("signal: %s: %w", s.name, err)
	}
	return v, nil
}

// span measures the growth of two counters over a sliding span of time, however often
// they are read. It compares a reading with the youngest one that is at least that old,
// or with the oldest there is.
type span struct {
	over  time.Duration
	marks []mark // oldest first
}

type mark struct {
	at   time.Time
	a, b uint64
}

// marksASpan bounds what a span remembers.
const marksASpan = 32

// growth is what the counters grew by.
type growth struct {
	elapsed time.Duration
	a, b    float64
}

// next returns the growth up to a reading, or ErrNoValue if there is nothing to compare
// it with. That is so for the first reading, if no time has passed, or if a counter
// went backwards because the process moved to another group. That starts a new span.
func (s *span) next(at time.Time, a, b uint64) (growth, error) {
	now := mark{at, a, b}
	if n := len(s.marks); n > 0 {
		if last := s.marks[n-1]; a < last.a || b < last.b || at.Before(last.at) {
			s.marks = s.marks[:0]
		}
	}
	if len(s.marks) == 0 {
		s.marks = append(s.marks, now)
		return growth{}, ErrNoValue
	}
	old := 0
	for old+1 < len(s.marks) && at.Sub(s.marks[old+1].at) >= s.over {
		old++
	}
	s.marks = slices.Delete(s.marks, 0, old)
	base, last := s.marks[0], s.marks[len(s.marks)-1]
	elapsed := at.Sub(base.at)
	if elapsed <= 0 {
		return growth{}, ErrNoValue
	}
	if at.Sub(last.at) >= s.over/marksASpan {
		s.marks = append(s.marks, now)
	}
	return growth{elapsed, float64(a - base.a), float64(b - base.b)}, nil
}

// unsupported is the error of something that this machine does not have.
func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errors.ErrUnsupported, fmt.Sprintf(format, args...))
}

// complete fills in the defaults of a signal's configuration, and returns what is wrong with it.
func complete(name string, cfg any) error {
	var f fault.List
	setting.Complete(cfg, &f)
	return f.Err("signal: " + name)
}

// sane reports whether v can be a reading.
func sane(v float64) bool { return v >= 0 && !math.IsInf(v, 1) }
