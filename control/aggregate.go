package control

import (
	"fmt"
	"math"
	"time"
)

// Aggregate says which of a window's latencies stands for it in [AIMD], [Vegas] and
// [Gradient2].
type Aggregate string

const (
	// AggregateMean is the mean service time, in whole nanoseconds, rounded down:
	// what Netflix's WindowedLimit hands on by default.
	AggregateMean Aggregate = "mean"
	// AggregateMin is the shortest: the least disturbed by work that differs in
	// cost, and the last to show a queue.
	AggregateMin Aggregate = "min"
	// AggregatePercentile is the Percentile of the configuration, by rank; see
	// [Window.Quantile].
	AggregatePercentile Aggregate = "percentile"
	// AggregateEach makes a step for every sample of the window, in the order in
	// which they finished. Netflix's limits do so without a WindowedLimit. If there
	// are very many samples, a window keeps an even share. A sample's mean
	// concurrency stands for what was in flight when it started. Samples do not
	// tell failed work from dropped work. If anything was dropped in the window,
	// all samples that are not good count as drops, else none does.
	AggregateEach Aggregate = "each"
)

// observation is what an algorithm sees of a window or of a sample.
type observation struct {
	rtt      time.Duration
	inFlight float64
	drop     bool
}

// aggregator makes observations of windows.
type aggregator struct {
	take       Aggregate
	percentile float64
	enough     int64 // outcomes that a window needs
	discard    bool  // thinner ones instead of extending them
}

// feed calls step with every observation of w. If there is none it reports false,
// why, and whether to extend the window.
func (t aggregator) feed(w *Window, step func(observation)) (fed, extend bool, why string) {
	if t.take == AggregateEach {
		drops := w.Dropped() > 0
		for _, s := range w.Samples {
			if s.Good || drops {
				step(observation{rtt: s.Latency, inFlight: s.Concurrency, drop: !s.Good})
				fed = true
			}
		}
		return fed, false, "no samples"
	}
	if n := w.OK + w.Dropped(); n < t.enough {
		return false, !t.discard, fmt.Sprintf("%d samples, %d needed", n, t.enough)
	}
	step(observation{rtt: t.latency(w), inFlight: float64(w.MaxInFlight), drop: w.Dropped() > 0})
	return true, false, ""
}

// latency returns the latency that stands for w.
func (t aggregator) latency(w *Window) time.Duration {
	switch t.take {
	case AggregateMean:
		return w.Mean()
	case AggregateMin:
		if len(w.Latencies) > 0 {
			return w.Latencies[0]
		}
		return 0
	default:
		return w.Quantile(t.percentile)
	}
}

// String names the latency in reasons: mean, min, p95.
func (t aggregator) String() string {
	switch t.take {
	case AggregatePercentile:
		return fmt.Sprintf("p%g", math.Round(1000*t.percentile)/10)
	case AggregateEach:
		return "latency"
	}
	return string(t.take)
}
