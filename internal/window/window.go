// Package window gathers what a gate's controller needs from one decision to
// the next: counters and a bounded sample of latencies.
package window

import (
	"slices"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
)

// Size is how many latencies and how many samples a window keeps. It keeps the
// most recent latencies, and an even share of the samples. It bounds memory, and
// the time to sort them.
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
	next      uint
	sum       time.Duration
	timed     int64
	cost      int64 // of the timed

	samples []control.Sample // one of every each that came
	each    uint             // 0 means 1
	skip    uint             // so many more before the next is kept

	area  uint64        // in flight, integrated over time, in units × ns
	level int64         // in flight
	drawn time.Duration // up to when area is
	first uint64        // area at start
}

// Area returns the integral of what was in flight up to now. It overflows after
// a while, which its differences survive.
func (w *Window) Area(now time.Duration) uint64 {
	if now <= w.drawn { // as a rule: Level has just been called
		return w.area
	}
	return w.area + uint64(w.level)*uint64(now-w.drawn)
}

// Latest is now, or when the level last changed if that was up to a second later. Callers read their clock before
// they wait for the gate's lock, so the time under it steps back. A life that ends before what Area has counted would
// seem short, and in more company than the limit lets in. A clock that steps back further is another one.
func (w *Window) Latest(now time.Duration) time.Duration {
	if late := w.drawn - now; late > 0 && late < time.Second {
		return w.drawn
	}
	return now
}

// Level sets what is in flight from now on.
func (w *Window) Level(now time.Duration, n int64) {
	if now > w.drawn {
		w.area += uint64(w.level) * uint64(now-w.drawn)
		w.drawn = now
	}
	w.level = max(0, n)
}

// Admit counts a grant that brought the in-flight count to n.
func (w *Window) Admit(n int64) {
	w.admitted++
	w.maxInFlight = max(w.maxInFlight, n)
}

// Sample counts the outcome of work that began at start. area is what Area grew by
// over its life. A failed answer's latency goes into the samples only, and that of
// an outcome that is no sample nowhere. Sample reports whether the latency tells
// how long work takes.
func (w *Window) Sample(o weir.Outcome, start, latency time.Duration, cost int64, area uint64) (timed bool) {
	if int(o) >= len(w.outcomes) {
		return false
	}
	w.outcomes[o]++
	if o == weir.NoSample {
		return false
	}
	if latency <= 0 {
		area = uint64(max(1, w.level)) // of one nanosecond
	}
	if s := w.nextSample(); s != nil {
		s.Start, s.Latency, s.Good, s.Failed = start, latency, o == weir.OK, o == weir.Failed
		s.Concurrency = float64(int64(area)) // Finish divides it by the latency
	}
	if o == weir.Failed {
		return false
	}
	w.sum += latency
	w.timed++
	w.cost += max(1, cost)
	if len(w.latencies) < Size {
		w.latencies = append(w.latencies, latency)
		return true
	}
	w.latencies[w.next] = latency
	w.next = (w.next + 1) % Size
	return true
}

// nextSample returns where the next sample goes, nil if it is not kept. When the
// window is full, every second sample is dropped, and from then on half as many are
// kept. The most recent ones alone would be wrong: long work ends late, so they are
// not like the rest.
func (w *Window) nextSample() *control.Sample {
	if w.skip > 0 {
		w.skip--
		return nil
	}
	if len(w.samples) == Size {
		for i := range Size / 2 {
			w.samples[i] = w.samples[2*i]
		}
		w.samples = w.samples[:Size/2]
		w.each = 2 * max(1, w.each)
	}
	w.skip = max(1, w.each) - 1
	w.samples = append(w.samples, control.Sample{})
	return &w.samples[len(w.samples)-1]
}

// Saturated sets whether no slot is free from now on.
func (w *Window) Saturated(now time.Duration, saturated bool) {
	if saturated == w.open {
		return
	}
	now = w.Latest(now)
	w.Level(now, w.level) // no change that comes later is before this one
	if w.open {
		w.saturated += max(0, now-w.since)
	}
	w.open, w.since = saturated, now
}

// Read fills in what was gathered up to now. The latencies are copied and still
// unsorted: Sort them once the gate's lock has been released.
func (w *Window) Read(now time.Duration, into *control.Window) {
	now = w.Latest(now)
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
	into.LatencySum, into.Timed, into.Cost = w.sum, w.timed, w.cost
	into.Samples = append(into.Samples[:0], w.samples...)
}

// Finish completes a window that was Read: what takes its time is done without
// the gate's lock.
func Finish(into *control.Window) {
	slices.Sort(into.Latencies)
	for i := range into.Samples {
		s := &into.Samples[i]
		s.Concurrency /= float64(max(1, s.Latency))
	}
}

// Reset starts a new window at now. inFlight is what it starts with.
func (w *Window) Reset(now time.Duration, inFlight int64) {
	now = w.Latest(now)
	w.start, w.since, w.saturated = now, now, 0
	w.first = w.Area(now)
	w.maxInFlight = inFlight
	w.admitted = 0
	w.outcomes = [5]int64{}
	w.latencies, w.next = w.latencies[:0], 0
	w.sum, w.timed, w.cost = 0, 0, 0
	w.samples, w.each, w.skip = w.samples[:0], 0, 0
}
