package signal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Signal reads one figure.
type Signal interface {
	// Name is the signal's name in readings, snapshots and rejections.
	Name() string
	// Read measures. It returns a finite number that is not negative: a
	// pressure (1 is the most that is wanted), unless a controller agrees with
	// it on another unit. Errors that mean something to a [Poller]: one that
	// matches errors.ErrUnsupported (this machine will not have it) and
	// [ErrNoValue] (nothing yet). It should give up when ctx ends.
	Read(ctx context.Context) (float64, error)
}

// ErrNoValue is returned by a Read that has nothing to go by yet, which is no
// failure: a rate needs two readings, so the first has none, nor has the first
// after a counter went backwards.
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
// thresholds: scheduler latency, the container's CPU throttling, memory, and
// the heap against GOMEMLIMIT. Those that this machine does not have are told
// of once by the poller and then ignored.
func Default() []Signal {
	return []Signal{
		newSchedLatency(SchedLatencyConfig{}.withDefaults()),
		newThrottling(ThrottlingConfig{}.withDefaults()),
		newMemory(MemoryConfig{}.withDefaults()),
		newHeap(HeapConfig{}.withDefaults()),
	}
}

// source is a signal of this package. Several goroutines may read it, one after
// the other: what it remembers between readings is behind the mutex.
type source struct {
	name  string
	every time.Duration // how often it is worth reading

	mu      sync.Mutex
	measure func() (float64, error)
}

// Name implements [Signal].
func (s *source) Name() string { return s.name }

// Read implements [Signal]. It does not look at ctx: what it reads answers at
// once.
func (s *source) Read(context.Context) (float64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.measure()
	if err != nil {
		return 0, fmt.Errorf("signal: %s: %w", s.name, err)
	}
	return v, nil
}

// The intervals at which signals are read unless a [Watch] says otherwise.
const (
	fastInterval = 10 * time.Millisecond // the scheduler's: nanoseconds to read
	slowInterval = 100 * time.Millisecond
)

// unsupported says what is missing here.
func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errors.ErrUnsupported, fmt.Sprintf(format, args...))
}
