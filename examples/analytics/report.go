package main

import (
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/internal/hist"
	"github.com/weir-go/weir/internal/loadgen"
	"github.com/weir-go/weir/internal/testbed/chart"
)

// result is what came out of a run.
type result struct {
	setup
	plan     *plan
	lanes    []*lane
	wavePods []podCounts // during the wave
	counts   counts
}

// introduce says what runs, before the first figure.
func introduce(out io.Writer, p *plan, capacity map[string]float64) {
	fmt.Fprintf(out, "\n%-8s %9s %16s %10s %10s\n", "caller", "deadline", "database can do", "calm", "wave")
	for _, c := range callers {
		r := p.rates[c.name]
		fmt.Fprintf(out, "%-8s %9s %14.1f/s %8.1f/s %8.1f/s\n", c.name, p.patienceOf(c), capacity[c.name], r, r*c.wave)
	}
	fmt.Fprintf(out, "\nIn the wave, from second %.0f for %.0f s, the second pod's charts read three times the rows.\n", (p.warm + p.calm).Seconds(), p.wave.Seconds())
}

// figures are those of one caller in a stretch of time.
type figures struct {
	loadgen.Tally
	refused, door hist.Histogram
	void, seconds int
}

// between adds up a stretch. Seconds in which the load left too late say nothing, and are left out.
func (l *lane) between(from, to time.Duration) (f figures) {
	for i := int(from / time.Second); i < int(to/time.Second); i++ {
		t := l.meter.Second(i)
		if f.seconds++; t.Void() {
			f.void++
			continue
		}
		f.Tally.Add(&t)
		f.refused.Add(&l.refused[i].all)
		f.door.Add(&l.refused[i].door)
	}
	return f
}

// inTime is the share of calls that were answered before their deadline.
func (f *figures) inTime() float64 { return float64(f.OK) / float64(max(1, f.Offered)) }

// latency is what a share q of the calls that were not refused did not exceed. Those that
// ran out of time count with the caller's whole patience.
func (f *figures) latency(q float64) string {
	if f.Admitted.Count() == 0 {
		return "-"
	}
	return short(f.Admitted.Bound(q))
}

func short(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// print writes the figures of a run.
func (r *result) print(out io.Writer) {
	p := r.plan
	fmt.Fprintf(out, "\n%s: %s\n", r.name, r.about)
	fmt.Fprintf(out, "  %-8s | calm: in time     p95 | wave: in time     p95  refused  p99 of refusals (at the door) | after: in time\n", "")
	void, seconds := 0, 0
	for _, l := range r.lanes {
		calm, wave, after := l.between(p.warm, p.warm+p.calm), l.between(p.warm+p.calm, p.warm+p.calm+p.wave), l.between(p.warm+p.calm+p.wave, p.warm+p.calm+p.wave+p.end)
		fmt.Fprintf(out, "  %-8s | %13.3f %7s | %13.3f %7s %8d %16s %13s | %14.3f\n", l.name, calm.inTime(), calm.latency(0.95), wave.inTime(), wave.latency(0.95),
			wave.Refused, short(wave.refused.Bound(0.99)), short(wave.door.Bound(0.99)), after.inTime())
		void += calm.void + wave.void + after.void
		seconds += calm.seconds + wave.seconds + after.seconds
	}
	if void > 0 {
		fmt.Fprintf(out, "  %d of %d seconds are void and left out: this machine was too busy to send on time\n", void, seconds)
	}
	r.printPods(out)
	for _, l := range r.lanes {
		var reasons []string
		for reason, n := range l.reasons {
			reasons = append(reasons, fmt.Sprintf("%s %d", strings.ToLower(reason), n))
		}
		if slices.Sort(reasons); len(reasons) > 0 {
			fmt.Fprintf(out, "  %s: %s\n", l.name, strings.Join(reasons, ", "))
		}
	}
}

// printPods says which pod got what in the wave, and what Envoy's retries met in the whole run.
func (r *result) printPods(out io.Writer) {
	first, second := r.wavePods[0], r.wavePods[1]
	fmt.Fprintf(out, "  in the wave the slow pod got %.2f of the calls and refused %d, the other one %d\n",
		float64(second.Calls)/float64(max(1, first.Calls+second.Calls)), second.Refused, first.Refused)
	if retries := r.counts.pods[0].Retries + r.counts.pods[1].Retries; retries > 0 {
		fmt.Fprintf(out, "  Envoy tried %d refused calls again, %d of them on the same pod, %d with success; the retry budget kept it from %d\n", retries,
			r.counts.pods[0].SameAgain+r.counts.pods[1].SameAgain, r.counts.envoy["cluster.pods.upstream_rq_retry_success"], r.counts.envoy["cluster.pods.upstream_rq_retry_overflow"])
	}
	for _, g := range r.counts.weir {
		fmt.Fprintf(out, "  the limit of gate %s at the end: %d\n", g.Name, g.Limit)
	}
}

// warnOfDrift says when the load no longer fits the database: others used the machine before, or do now.
func warnOfDrift(out io.Writer, before, now float64) {
	if share := now / before; share < 0.75 || share > 1.33 {
		fmt.Fprintf(out, "  this run says little: the database can do %.1f reports a second now, and could do %.1f when the load was measured out\n", now, before)
	}
}

// every is how much time a point of a plot stands for.
const every = 2

// draw writes the run's plot into a folder that is there: what was answered in time, how late, and what was refused, by caller.
func (r *result) draw(folder string) error {
	p := r.plan
	styles := map[string]string{"api": "default", "charts": "aimd", "reports": "oracle"} // blue, orange, green
	inTime := chart.Panel{Title: "answered in time", Unit: " %"}
	latency := chart.Panel{Title: "p95 of calls that were not refused; a time-out counts with the whole deadline", Unit: " ms", Log: true}
	refused := chart.Panel{Title: "refused, each second"}
	d := &chart.Drawing{Title: r.name + ": " + r.about, Axis: "time, s", To: math.Floor((p.warm + p.calm + p.wave + p.end).Seconds())}
	d.About = fmt.Sprintf("reports come ten times as often from %.0f s to %.0f s, and one pod's charts cost three times as much", (p.warm + p.calm).Seconds(), (p.warm + p.calm + p.wave).Seconds())
	for _, l := range r.lanes {
		var shares, tails, no []float64
		for at := 0.0; at < d.To; at += every {
			f := l.between(time.Duration(at)*time.Second, time.Duration(min(at+every, d.To))*time.Second)
			share := 100 * f.inTime()
			if f.Offered == 0 && len(shares) > 0 {
				share = shares[len(shares)-1]
			}
			shares = append(shares, share)
			tails = append(tails, f.Admitted.Bound(0.95).Seconds()*1000)
			no = append(no, float64(f.Refused)/every)
		}
		style := styles[l.name]
		inTime.Curves = append(inTime.Curves, chart.Curve{Values: shares, Style: style})
		latency.Curves = append(latency.Curves, chart.Curve{Values: tails, Style: style})
		refused.Curves = append(refused.Curves, chart.Curve{Values: no, Style: style})
		d.Legend = append(d.Legend, chart.Legend{Style: style, Text: fmt.Sprintf("%s, deadline %v", l.name, l.patience)})
	}
	d.Panels = []chart.Panel{inTime, latency, refused}
	return os.WriteFile(filepath.Join(folder, "analytics-"+r.name+".svg"), []byte(d.SVG()), 0o644)
}
