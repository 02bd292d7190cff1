package sim

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weir-go/weir"
)

// Report is what came out of a scenario.
type Report struct {
	// Scenario is what was run, Seeds with which random numbers.
	Scenario *Scenario
	Seeds    []uint64
	// Capacity is the backend's full capacity in requests a second, Best the
	// concurrency that reaches it.
	Capacity float64
	Best     int
	// Runs are the results, one a seed.
	Runs []*Result
}

// Spread is a figure over the seeds.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// NewSpread returns the spread of some values, zero for none. The median of an
// even number is the lower of the two in the middle.
func NewSpread(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	sorted := slices.Clone(values)
	sort.Float64s(sorted)
	return Spread{sorted[(len(sorted)-1)/2], sorted[0], sorted[len(sorted)-1]}
}

// Spread returns a metric over the seeds. The goal says which, and over which
// stretch; its bounds are not looked at. A stretch that is no goal's of the
// scenario is taken to be the whole run.
func (r *Report) Spread(g Goal) Spread {
	m := g.metric()
	if m == nil {
		return Spread{}
	}
	values := make([]float64, len(r.Runs))
	for i, run := range r.Runs {
		values[i] = m.of(run, &g)
	}
	return NewSpread(values)
}

// GoalResult is a goal and what became of it.
type GoalResult struct {
	Goal   Goal
	Spread Spread
	// Reached says whether the median is within the bounds. It is true for a
	// goal without bounds.
	Reached bool
}

// Goals returns what became of the scenario's goals; those for other standard
// backends are left out.
func (r *Report) Goals() []GoalResult {
	var list []GoalResult
	for _, g := range r.Scenario.Goals {
		if !g.AppliesTo(r.Scenario.Backend.Name) {
			continue
		}
		s := r.Spread(g)
		list = append(list, GoalResult{g, s, g.Holds(s.Median)})
	}
	return list
}

// Reached reports whether every goal was reached.
func (r *Report) Reached() bool {
	for _, g := range r.Goals() {
		if !g.Reached {
			return false
		}
	}
	return true
}

// String is the report as a table: the whole run, then the goals.
func (r *Report) String() string {
	var b strings.Builder
	s := r.Scenario
	fmt.Fprintf(&b, "%s", s.Name)
	if s.About != "" {
		fmt.Fprintf(&b, ": %s", s.About)
	}
	fmt.Fprintf(&b, "\nbackend %s: %.4g requests/s at %d at once; %v; median of %d seeds (min to max)\n\n",
		r.backendName(), r.Capacity, r.Best, s.Duration(), len(r.Runs))
	r.writeFigures(&b)
	r.writeRefusals(&b)
	r.writeGoals(&b)
	return b.String()
}

func (r *Report) backendName() string {
	if n := r.Scenario.Backend.Name; n != "" {
		return n
	}
	return r.Scenario.Backend.Law
}

// figures are the rows of the table, in order.
var figures = []struct{ metric, label string }{
	{"goodput", "goodput / capacity"},
	{"goodput_work", "the same by work"},
	{"served", "goodput / offered"},
	{"p50", "latency p50"},
	{"p99", "latency p99"},
	{"p999", "latency p999"},
	{"refusal_p99", "refusal p99"},
	{"refused", "refused"},
	{"late", "late"},
	{"wasted", "wasted work"},
	{"attempts", "attempts / request"},
	{"limit_min", "limit min"},
	{"limit_mean", "limit mean"},
	{"limit_max", "limit max"},
	{"inside_mean", "inside mean"},
	{"inside_max", "inside max"},
	{"over_limit", "most over the limit"},
}

// percent are the metrics that are shown as such.
var percent = []string{"refused", "late", "wasted"}

// Format writes a value of a metric as people read it: with its unit, shares in
// per cent.
func Format(name string, v float64) string {
	if slices.Contains(percent, name) {
		return fmt.Sprintf("%.2f %%", 100*v)
	}
	m := findMetric(name)
	if m == nil {
		m = classMetric(name)
	}
	switch {
	case m == nil:
		return fmt.Sprintf("%.4g", v)
	case m.unit == "ms":
		return fmt.Sprintf("%.1f ms", v)
	case m.unit == "s":
		return fmt.Sprintf("%.2f s", v)
	}
	return fmt.Sprintf("%.3f", v)
}

func (r *Report) writeFigures(b *strings.Builder) {
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, f := range figures {
		s := r.Spread(Goal{Metric: f.metric})
		fmt.Fprintf(w, "  %s\t%s\t(%s to %s)\n", f.label, Format(f.metric, s.Median), Format(f.metric, s.Min), Format(f.metric, s.Max))
	}
	_ = w.Flush() // a strings.Builder takes everything
}

// Stretches is every figure over each stretch that a goal is about, as a table:
// a row a stretch, medians over the seeds.
func (r *Report) Stretches() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "  stretch")
	for _, f := range figures {
		fmt.Fprintf(w, "\t%s", f.metric)
	}
	fmt.Fprintln(w)
	seen := map[string]bool{}
	for _, g := range r.Scenario.Goals {
		from, to := g.Stretch(r.Scenario)
		name := fmt.Sprintf("%v-%v", from, to)
		if seen[name] {
			continue
		}
		seen[name] = true
		fmt.Fprintf(w, "  %s", name)
		for _, f := range figures {
			g.Metric = f.metric
			fmt.Fprintf(w, "\t%s", Format(f.metric, r.Spread(g).Median))
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush() // a strings.Builder takes everything
	return b.String()
}

// writeRefusals adds up the refusals of all runs by reason.
func (r *Report) writeRefusals(b *strings.Builder) {
	var counts [numReasons]uint64
	for _, run := range r.Runs {
		for reason, n := range run.Windows[0].Refused {
			counts[reason] += n
		}
	}
	for reason, n := range counts {
		if n > 0 {
			fmt.Fprintf(b, "  refused: %-14s %.0f a run\n", weir.Reason(reason), float64(n)/float64(len(r.Runs)))
		}
	}
}

func (r *Report) writeGoals(b *strings.Builder) {
	goals := r.Goals()
	if len(goals) == 0 {
		return
	}
	b.WriteString("\n")
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, g := range goals {
		from, to := g.Goal.Stretch(r.Scenario)
		name, of := g.Goal.Metric, ""
		if g.Goal.Class != "" {
			of = " of " + g.Goal.Class
		}
		verdict := ""
		switch {
		case g.Goal.Min == nil && g.Goal.Max == nil:
		case g.Reached:
			verdict = "reached"
		default:
			verdict = "MISSED"
		}
		fmt.Fprintf(w, "  goal %s%s\t%v to %v\t%s\t%s\t(%s to %s)\t%s\n", name, of, from, to, g.Goal.Bounds(),
			Format(name, g.Spread.Median), Format(name, g.Spread.Min), Format(name, g.Spread.Max), verdict)
	}
	_ = w.Flush()
}

// Took returns the real time that all runs took.
func (r *Report) Took() time.Duration {
	var d time.Duration
	for _, run := range r.Runs {
		d += run.Took
	}
	return d
}
