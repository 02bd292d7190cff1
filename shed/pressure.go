package shed

import (
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

// LoadOf returns the load of another gate as a pressure: what is in flight and what waits,
// over the limit. It is unknown while the gate has no limit, and for one with a limit for each key, such as
// keyed.Pools: one key may be full while all others are idle. For keyed.Adaptive it is over the sum of the limits of
// all known keys.
//
// A gate whose work may wait is at 1 whenever its slots are taken. That is no overload,
// and a controller needs it to find the limit. Before such a gate use thresholds above 1,
// for instance 1.5 for background (half as much waits as may run) to 5 for critical. Or
// use [WaitOf].
func LoadOf(gate weir.Snapshotter) func() (float64, bool) {
	return func() (float64, bool) {
		s := gate.Snapshot()
		if s.Limit < 1 || s.PerKey {
			return 0, false
		}
		return float64(s.InFlight+s.Waiting) / float64(s.Limit), true
	}
}

// WaitOf returns the wait before another gate as a pressure. It is how long a newcomer is
// expected to wait, over the most that is wanted (DAGOR: 20 ms). It is unknown if most is
// not above 0, and while work waits at a gate that gives no estimate. A limit.Limiter gives none before it
// has measured something, and the gates of package keyed never give one.
func WaitOf(gate weir.Snapshotter, most time.Duration) func() (float64, bool) {
	return func() (float64, bool) {
		s := gate.Snapshot()
		switch {
		case most <= 0:
			return 0, false
		case s.Waiting == 0:
			return 0, true // whatever is estimated, nobody waits
		case s.Wait == 0:
			return 0, false
		}
		return float64(s.Wait) / float64(most), true
	}
}

// feed is the source of pressures of one configuration, and its last good one.
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
		return highestOf(f.into, cfg.Heed)
	}
	return f
}

// end ends the readings, without waiting for one that hangs.
func (f *feed) end() {
	if f.poller != nil {
		f.poller.Close()
		close(f.stop)
	}
}

// poll is next on the caller's goroutine: a panic is an error.
func (f *feed) poll(now func() time.Duration) (v float64, err error) {
	defer func() {
		if r := recover(); r != nil {
			v, err = 0, fmt.Errorf("shed: the pressure panicked: %v", r)
		}
	}()
	v, err = f.next(now)
	if errors.Is(err, signal.ErrNoValue) {
		return 0, nil
	}
	return v, err
}

// next reads once and keeps a good reading.
func (f *feed) next(now func() time.Duration) (float64, error) {
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

// highestOf returns the highest known reading of those named, of all if none is.
func highestOf(readings []control.Reading, named []string) (value float64, name string, ok bool) {
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
