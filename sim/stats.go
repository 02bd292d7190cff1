package sim

import (
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/hist"
)

// numReasons has room for every weir.Reason.
const numReasons = 16

// span of the time series: bins are at least this wide, and there are at most
// about maxBins of them.
const (
	minBin  = 10 * time.Millisecond
	maxBins = 6000
)

// statistics gathers what happens in a run: sums over windows, and series over
// time.
type statistics struct {
	windows []*window // the whole run first

	binWidth time.Duration
	bin      bin
	bins     []bin

	columnWidth time.Duration
	columnEnd   time.Duration
	columnHist  hist.Histogram
	columns     []column

	capacity gauge // requests a second
	inside   gauge
	limit    gauge
	power    gauge // seconds of work a second
	backlog  gauge // of the consumer
	drain    gauge // batches a second that it can apply
	mean     float64
	full     func(scale float64) float64
}

// bin is a short stretch of the run.
type bin struct {
	offered, attempts, good, late, refused uint32
	inside, limit                          int32
	hits                                   uint32
}

// column is what the plot needs that bins do not have.
type column struct{ p50, p99 time.Duration }

// window sums up one stretch of a run.
type window struct {
	from, to time.Duration

	offered, attempts, admitted, answered uint64
	good, late, abandoned, gaveUp         uint64
	refused                               [numReasons]uint64
	hits, withheld                        uint64
	work, wasted, over                    float64
	latency, wait, refusal                hist.Histogram
	capacity, power, inside, limit        level
	backlog, drain                        level
	applied                               uint64

	inversions uint64 // these two only where classes are counted separately
	classes    []tally
}

// gauge is a value over time; level is what a window keeps of it.
type gauge struct {
	value float64
	at    time.Duration
}

type level struct {
	sum      float64 // value × seconds
	span     float64
	min, max float64
}

// newStatistics: full is the capacity at a scale, mean the usual work of a
// request in seconds.
func newStatistics(end time.Duration, columns int, windows []*window, mean float64, full func(float64) float64) *statistics {
	s := &statistics{
		windows:     append([]*window{{from: 0, to: never}}, windows...),
		binWidth:    max(minBin, end/maxBins),
		columnWidth: max(1, end/time.Duration(columns)),
		columnHist:  hist.New(5),
		mean:        mean,
		full:        full,
	}
	s.columnEnd = s.columnWidth
	for _, w := range s.windows {
		w.latency, w.wait, w.refusal = hist.New(7), hist.New(5), hist.New(5)
	}
	s.capacity.value, s.power.value = full(1), full(1)*mean
	return s
}

func (w *window) holds(t time.Duration) bool { return w.from <= t && t < w.to }

func (s *statistics) each(t time.Duration, f func(*window)) {
	for _, w := range s.windows {
		if w.holds(t) {
			f(w)
		}
	}
}

func (s *statistics) offered(t time.Duration) {
	s.bin.offered++
	s.each(t, func(w *window) { w.offered++ })
}

func (s *statistics) attempted(t time.Duration) {
	s.bin.attempts++
	s.each(t, func(w *window) { w.attempts++ })
}

func (s *statistics) admitted(t, waited time.Duration) {
	s.each(t, func(w *window) {
		w.admitted++
		w.wait.Record(waited)
	})
}

func (s *statistics) refused(t, after time.Duration, r weir.Reason) {
	s.bin.refused++
	s.each(t, func(w *window) {
		w.refused[min(int(r), numReasons-1)]++
		w.refusal.Record(after)
	})
}

func (s *statistics) gaveUp(t time.Duration)    { s.each(t, func(w *window) { w.gaveUp++ }) }
func (s *statistics) abandoned(t time.Duration) { s.each(t, func(w *window) { w.abandoned++ }) }

func (s *statistics) answered(t, latency time.Duration, work float64, good bool) {
	if good {
		s.bin.good++
	} else {
		s.bin.late++
	}
	s.columnHist.Record(latency)
	s.each(t, func(w *window) {
		w.answered++
		w.work += work
		w.latency.Record(latency)
		if good {
			w.good++
		} else {
			w.late++
			w.wasted += work
		}
	})
}

// withheld is an attempt that its client's own process did not send.
func (s *statistics) withheld(t time.Duration) { s.each(t, func(w *window) { w.withheld++ }) }

// hit is a request that found its answer in the cache.
func (s *statistics) hit(t time.Duration) {
	s.bin.hits++
	s.each(t, func(w *window) { w.hits++ })
}

// setCapacity: what is left of the backend, and what a request is in units of
// the usual one.
func (s *statistics) setCapacity(t time.Duration, scale, work float64) {
	s.advance(&s.capacity, t, func(w *window) *level { return &w.capacity })
	s.advance(&s.power, t, func(w *window) *level { return &w.power })
	s.capacity.value, s.power.value = s.full(scale)/work, s.full(scale)*s.mean
}

// overLimit is an admission that brought the backend so much over the limit.
func (s *statistics) overLimit(t time.Duration, by float64) {
	s.each(t, func(w *window) { w.over = max(w.over, by) })
}

func (s *statistics) setInside(t time.Duration, n int) {
	s.advance(&s.inside, t, func(w *window) *level { return &w.inside })
	s.inside.value = float64(n)
}

// addLimit is a change of the limit of one of the gateways.
func (s *statistics) addLimit(t time.Duration, by int64) {
	s.advance(&s.limit, t, func(w *window) *level { return &w.limit })
	s.limit.value += float64(by)
}

// advance adds to each window what a gauge was since it was last advanced.
func (s *statistics) advance(g *gauge, t time.Duration, of func(*window) *level) {
	for _, w := range s.windows {
		from, to := max(g.at, w.from), min(t, w.to)
		if from >= to {
			continue
		}
		l := of(w)
		if l.span == 0 {
			l.min, l.max = g.value, g.value
		}
		seconds := (to - from).Seconds()
		l.sum += float64(g.value * seconds)
		l.span += seconds
		l.min, l.max = min(l.min, g.value), max(l.max, g.value)
	}
	g.at = t
}

func (s *statistics) advanceAll(t time.Duration) {
	s.advance(&s.capacity, t, func(w *window) *level { return &w.capacity })
	s.advance(&s.power, t, func(w *window) *level { return &w.power })
	s.advance(&s.inside, t, func(w *window) *level { return &w.inside })
	s.advance(&s.limit, t, func(w *window) *level { return &w.limit })
	s.advance(&s.backlog, t, func(w *window) *level { return &w.backlog })
	s.advance(&s.drain, t, func(w *window) *level { return &w.drain })
}

// setBacklog: how many batches the consumer has before it.
func (s *statistics) setBacklog(t time.Duration, n int) {
	s.advance(&s.backlog, t, func(w *window) *level { return &w.backlog })
	s.backlog.value = float64(n)
}

// setDrain: how many batches a second the consumer applies.
func (s *statistics) setDrain(t time.Duration, rps float64) {
	s.advance(&s.drain, t, func(w *window) *level { return &w.drain })
	s.drain.value = rps
}

// applied is a batch that the consumer has applied.
func (s *statistics) applied(t time.Duration) { s.each(t, func(w *window) { w.applied++ }) }

func (s *statistics) closeBin(t time.Duration) {
	s.bin.inside, s.bin.limit = int32(s.inside.value), int32(s.limit.value)
	s.bins = append(s.bins, s.bin)
	s.bin = bin{}
	if t >= s.columnEnd {
		s.closeColumn()
	}
}

func (s *statistics) closeColumn() {
	s.columns = append(s.columns, column{s.columnHist.Quantile(0.5), s.columnHist.Quantile(0.99)})
	s.columnHist.Reset()
	s.columnEnd += s.columnWidth
}

func (s *statistics) finish(t time.Duration) {
	s.advanceAll(t)
	if s.columnHist.Count() > 0 {
		s.closeColumn()
	}
	for _, w := range s.windows {
		w.to = min(w.to, t)
	}
}

func (l *level) mean() float64 {
	if l.span == 0 {
		return 0
	}
	return l.sum / l.span
}

// Series is one run over time, in columns of the same width.
type Series struct {
	// Width is how long a column lasts.
	Width time.Duration
	// Offered are new requests a second and Good good answers a second;
	// Capacity is what the backend could have done.
	Offered, Good, Capacity []float64
	// Limit and Inside are the limit and the concurrency in the backend.
	Limit, Inside []float64
	// P50 and P99 are the latencies in ms of what was answered in the column, 0
	// where nothing was.
	P50, P99 []float64
}

// Series returns a run, by its number from 0, in at most n columns. The
// latencies are no finer than [Options.Columns].
func (r *Report) Series(run, n int) *Series {
	res := r.Runs[run]
	n = min(n, len(res.bins))
	s := &Series{}
	if n == 0 {
		return s
	}
	s.Width = time.Duration(len(res.bins)) * res.binWidth / time.Duration(n)
	for c := range n {
		from, to := c*len(res.bins)/n, (c+1)*len(res.bins)/n
		var sum struct{ offered, good, inside, limit float64 }
		for _, b := range res.bins[from:to] {
			sum.offered += float64(b.offered)
			sum.good += float64(b.good)
			sum.inside += float64(b.inside)
			sum.limit += float64(b.limit)
		}
		bins := float64(to - from)
		seconds := bins * res.binWidth.Seconds()
		s.Offered = append(s.Offered, sum.offered/seconds)
		s.Good = append(s.Good, sum.good/seconds)
		s.Inside = append(s.Inside, sum.inside/bins)
		s.Limit = append(s.Limit, sum.limit/bins)
		s.Capacity = append(s.Capacity, r.capacityAt(res, time.Duration(from+to)*res.binWidth/2))
		var col column
		if len(res.columns) > 0 {
			col = res.columns[min(c*len(res.columns)/n, len(res.columns)-1)]
		}
		s.P50, s.P99 = append(s.P50, millis(col.p50)), append(s.P99, millis(col.p99))
	}
	return s
}

// capacityAt is the capacity in force, in requests a second.
func (r *Report) capacityAt(run *Result, t time.Duration) float64 {
	for _, s := range run.spans {
		if s.from <= t && t < s.to {
			return r.Capacity * r.Scenario.Backend.capacityLeft(s.capacity) / s.work
		}
	}
	return r.Capacity
}
