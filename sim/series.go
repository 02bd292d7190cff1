package sim

import "time"

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
			return r.Capacity * r.Scenario.Backend.left(s.capacity) / s.work
		}
	}
	return r.Capacity
}
