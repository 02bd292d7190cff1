package sim

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Plot draws the first run over time, as text: offered load against goodput and
// capacity, the latency of admitted work, the limit against the concurrency in
// the backend, and refusals.
func (r *Report) Plot() string {
	if len(r.Runs) == 0 || len(r.Runs[0].bins) == 0 {
		return ""
	}
	run := r.Runs[0]
	s := run.columnSeries(r.Capacity)
	var b strings.Builder
	chart(&b, "requests/s: . offered, # good, - capacity", 12, []line{
		{'-', s.capacity}, {'.', s.offered}, {'#', s.good},
	})
	chart(&b, "latency of admitted, ms: * p99, + p50", 8, []line{{'*', s.p99}, {'+', s.p50}})
	chart(&b, "concurrency: = limit, o inside the backend", 8, []line{{'=', s.limit}, {'o', s.inside}})
	end := time.Duration(len(run.bins)) * run.binWidth
	fmt.Fprintf(&b, "%11s0%*s\n", "", len(s.good)-1, end.Round(time.Millisecond))
	return b.String()
}

// series are what the plot shows, one value a column.
type series struct {
	offered, good, capacity, limit, inside, p50, p99 []float64
}

func (r *Result) columnSeries(capacity float64) *series {
	s := &series{}
	n := min(columns, len(r.bins))
	for c := range n {
		from, to := c*len(r.bins)/n, (c+1)*len(r.bins)/n
		var offered, good, inside, limit float64
		for _, b := range r.bins[from:to] {
			offered += float64(b.offered)
			good += float64(b.good)
			inside += float64(b.inside)
			limit += float64(b.limit)
		}
		bins := float64(to - from)
		seconds := bins * r.binWidth.Seconds()
		s.offered = append(s.offered, offered/seconds)
		s.good = append(s.good, good/seconds)
		s.inside = append(s.inside, inside/bins)
		s.limit = append(s.limit, limit/bins)
		s.capacity = append(s.capacity, capacity*r.capacityAt(time.Duration(from)*r.binWidth))
		var col column
		if len(r.columns) > 0 {
			col = r.columns[min(c*len(r.columns)/n, len(r.columns)-1)]
		}
		s.p50, s.p99 = append(s.p50, millis(col.p50)), append(s.p99, millis(col.p99))
	}
	return s
}

func (r *Result) capacityAt(t time.Duration) float64 {
	for _, s := range r.spans {
		if s.from <= t && t < s.to {
			return s.capacity
		}
	}
	return 1
}

// line is a series and the mark it is drawn with; later lines cover earlier
// ones.
type line struct {
	mark   byte
	values []float64
}

// chart draws lines on a common scale from 0.
func chart(b *strings.Builder, title string, height int, lines []line) {
	top := 0.0
	for _, l := range lines {
		for _, v := range l.values {
			top = math.Max(top, v)
		}
	}
	fmt.Fprintf(b, "%s\n", title)
	if top == 0 {
		fmt.Fprintf(b, "%10s (nothing)\n\n", "")
		return
	}
	rows := make([][]byte, height)
	for i := range rows {
		rows[i] = []byte(strings.Repeat(" ", len(lines[0].values)))
	}
	for _, l := range lines {
		for x, v := range l.values {
			y := int(math.Round(v / top * float64(height-1)))
			rows[height-1-y][x] = l.mark
		}
	}
	for i, row := range rows {
		label := ""
		if i == 0 || i == height-1 || i == height/2 {
			label = fmt.Sprintf("%.4g", top*float64(height-1-i)/float64(height-1))
		}
		fmt.Fprintf(b, "%10s|%s\n", label, strings.TrimRight(string(row), " "))
	}
	b.WriteByte('\n')
}
