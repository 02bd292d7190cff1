// Package window gathers what a gate's controller looks at: counters and a
// bounded sample of latencies, from one decision to the next.
package window

import (
	"slices"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
)

// Size is how many latencies a window keeps; when more come in, the most recent
// ones count. It bounds memory, and the time to sort them.
const Size = 512

// Window gathers samples. It is not safe for concurrent use: the gate's lock
// guards it. The zero value is empty and starts at 0.
type Window struct {
	start     time.Duration
	saturated time.Duration // closed intervals
	since     time.Duration // start of the open interval
	open      bool

	maxInFlight int64
	admitted    int64
	outcomes    [5]int64

	latencies []time.Duration // a ring once it has Size elements
	next      int
	sum       time.Duration
	timed     int64

	samples []control.Sample // likewise
	oldest  int

	area  uint64        // in flight, integrated over time, in units × ns
	level int64         // in flight
	drawn time.Duration // up to when area is
	first uint64        // area at start
}

// Area returns the integral of what was in flight up to now. It overflows after
// a while, which its differences survive.
func (w *Window) Area(now time.Duration) uint64 {
	return w.area + uint64(w.level)*uint64(max(0, now-w.drawn))
}

// Level notes that from now on n is in flight.
func (w *Window) Level(now time.Duration, n int64) {
	w.area = w.Area(now)
	w.level, w.drawn = max(0, n), max(w.drawn, now)
}

// Admit counts a grant that brought the in-flight count to n.
func (w *Window) Admit(n int64) {
	w.admitted++
	w.maxInFlight = max(w.maxInFlight, n)
}

// Sample counts the outcome of work that began at start. area is
// what Area grew by over its life. A failed answer's latency goes into the
// samples only, and that of an outcome that is no sample nowhere.
func (w *Window) Sample(o weir.Outcome, start, latency time.Duration, area uint64) {
	if int(o) >= len(w.outcomes) {
		return
	}
	w.outcomes[o]++
	if o == weir.NoSample {
		return
	}
	w.keep(control.Sample{Start: start, Latency: latency, Concurrency: w.mean(latency, area), Good: o == weir.OK})
	if o == weir.Failed {
		return
	}
	w.sum += latency
	w.timed++
	if len(w.latencies) < Size {
		w.latencies = append(w.latencies, latency)
		return
	}
	w.latencies[w.next] = latency
	w.next = (w.next + 1) % Size
}

func (w *Window) keep(s control.Sample) {
	if len(w.samples) < Size {
		w.samples = append(w.samples, s)
		return
	}
	w.samples[w.oldest] = s
	w.oldest = (w.oldest + 1) % Size
}

// mean is the mean in flight over a life of that length.
func (w *Window) mean(latency time.Duration, area uint64) float64 {
	if latency <= 0 {
		return float64(max(1, w.level))
	}
	return float64(area) / float64(latency)
}

// Saturated notes that from now on no slot is free, or that one is.
func (w *Window) Saturated(now time.Duration, saturated bool) {
	if saturated == w.open {
		return
	}
	if w.open {
		w.saturated += max(0, now-w.since)
	}
	w.open, w.since = saturated, now
}

// Read fills in what was gathered up to now. The latencies are copied and still
// unsorted: Sort them once the gate's lock has been released.
func (w *Window) Read(now time.Duration, into *control.Window) {
	saturated := w.saturated
	if w.open {
		saturated += max(0, now-w.since)
	}
	into.Now, into.Elapsed = now, max(0, now-w.start)
	into.Saturated = saturated
	into.MeanInFlight = float64(w.level)
	if into.Elapsed > 0 {
		into.MeanInFlight = float64(w.Area(now)-w.first) / float64(into.Elapsed)
	}
	into.MaxInFlight = w.maxInFlight
	into.Admitted = w.admitted
	into.OK, into.Failed = w.outcomes[weir.OK], w.outcomes[weir.Failed]
	into.Overload, into.Abandoned = w.outcomes[weir.Overload], w.outcomes[weir.Abandoned]
	into.Latencies = append(into.Latencies[:0], w.latencies...)
	into.LatencySum, into.Timed = w.sum, w.timed
	into.Samples = append(append(into.Samples[:0], w.samples[w.oldest:]...), w.samples[:w.oldest]...)
}

// Sort brings the latencies of a window that was Read into ascending order.
func Sort(into *control.Window) { slices.Sort(into.Latencies) }

// Reset starts a new window at now. inFlight is what it starts with.
func (w *Window) Reset(now time.Duration, inFlight int64) {
	w.start, w.since, w.saturated = now, now, 0
	w.first = w.Area(now)
	w.maxInFlight = inFlight
	w.admitted = 0
	w.outcomes = [5]int64{}
	w.latencies, w.next = w.latencies[:0], 0
	w.sum, w.timed = 0, 0
	w.samples, w.oldest = w.samples[:0], 0
}
