package sim

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// textColumns is how wide the charts are.
const textColumns = 72

// Plot draws the first run over time, as text: offered load against goodput and
// capacity, the latency of admitted work, the limit against the concurrency in
// the backend, and refusals.
func (r *Report) Plot() string {
	if len(r.Runs) == 0 || len(r.Runs[0].bins) == 0 {
		return ""
	}
	s := r.Series(0, textColumns)
	var b strings.Builder
	chart(&b, "requests/s: . offered, # good, - capacity", 12, []line{
		{'-', s.Capacity}, {'.', s.Offered}, {'#', s.Good},
	})
	chart(&b, "latency of admitted, ms: * p99, + p50", 8, []line{{'*', s.P99}, {'+', s.P50}})
	chart(&b, "concurrency: = limit, o inside the backend", 8, []line{{'=', s.Limit}, {'o', s.Inside}})
	end := time.Duration(len(r.Runs[0].bins)) * r.Runs[0].binWidth
	fmt.Fprintf(&b, "%11s0%*s\n", "", len(s.Good)-1, end.Round(time.Millisecond))
	return b.String()
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
