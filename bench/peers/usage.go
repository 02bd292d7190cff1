package peers

import (
	"math"
	"time"

	"github.com/weir-go/weir/sim"
)

// usage is the share of the backend that is busy, over time: what a process
// that is its own backend would read as the usage of its processors.
type usage struct {
	best   float64
	phases []sim.Phase // one run through them
	loses  bool        // workers with its capacity; otherwise as many are busy, with less to show

	inside int
	at     time.Duration
	busy   float64 // seconds, since the run began
}

func newUsage(e *Env) *usage {
	b := &e.Scenario.Backend.Backend
	return &usage{best: float64(e.Best), phases: e.Scenario.Phases, loses: b.Law == "pool" && b.Loses != "speed"}
}

// add notes that so many more are in the backend from now on.
func (u *usage) add(now time.Duration, n int) {
	u.advance(now)
	u.inside += n
}

// advance brings busy up to now.
func (u *usage) advance(now time.Duration) {
	for u.at < now {
		capacity, until := u.phase(u.at)
		until = min(until, now)
		available := u.best
		if u.loses {
			available = math.Max(1, math.Round(capacity*u.best))
		}
		u.busy += math.Min(1, float64(u.inside)/available) * (until - u.at).Seconds()
		u.at = until
	}
}

// phase returns the capacity at a time and when that may change.
func (u *usage) phase(at time.Duration) (float64, time.Duration) {
	var total, end time.Duration
	for _, p := range u.phases {
		total += time.Duration(p.For)
	}
	start := at - at%max(1, total)
	for _, p := range u.phases {
		if end += time.Duration(p.For); at-start < end {
			if p.Capacity > 0 {
				return p.Capacity, start + end
			}
			return 1, start + end
		}
	}
	return 1, at + time.Second
}

// reading is a processor's usage as aegis and go-zero read it: in thousandths,
// as a moving average that keeps .95 of the old at each tick.
type reading struct {
	of    *usage
	every time.Duration

	next  time.Duration
	busy  float64 // at the last tick
	value float64
}

const readingDecay = .95

// now brings the reading up to the time.
func (r *reading) now(t time.Duration) int64 {
	if r.next == 0 {
		r.next = r.every
	}
	for r.next <= t {
		r.of.advance(r.next)
		used := 1000 * (r.of.busy - r.busy) / r.every.Seconds()
		r.busy = r.of.busy
		r.value = math.Trunc(readingDecay*r.value + (1-readingDecay)*used)
		r.next += r.every
	}
	return int64(r.value)
}
