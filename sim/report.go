package sim

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weir-go/weir"
)

// Report is what came out of a scenario.
type Report struct {
	// Scenario is what was run, and Seeds are the seeds of the runs.
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

// newSpread returns the spread of some values, zero for none. The median of an
// even number is the lower of the two in the middle.
func newSpread(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	sorted := slices.Clone(values)
	sort.Float64s(sorted)
	return Spread{sorted[(len(sorted)-1)/2], sorted[0], sorted[len(sorted)-1]}
}

// Spread returns a metric over the seeds, without the runs that had nothing of what it is about. The goal
// says which, and over which stretch; its bounds do not matter. A stretch that no goal of the scenario
// has stands for the whole run.
func (r *Report) Spread(g Goal) Spread {
	m := g.metric()
	if m == nil {
		return Spread{}
	}
	var values []float64
	for _, run := range r.Runs {
		if run.measured(&g) {
			values = append(values, m.of(run, &g))
		}
	}
	return newSpread(values)
}

// GoalResult is a goal and what became of it.
type GoalResult struct {
	Goal   Goal
	Spread Spread
	// Measured says whether most of the runs had anything of what the goal is about. They have not if they
	// ended before its stretch, or if it is about answers and there was none.
	Measured bool
	// Reached says whether the median is within the bounds, and was measured. It is true for a
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
		s, measured := r.Spread(g), r.measured(&g)
		list = append(list, GoalResult{g, s, measured, g.Holds(s.Median) && (measured || !g.bounded())})
	}
	return list
}

// measured reports whether most of the runs had anything of what the goal is about.
func (r *Report) measured(g *Goal) bool {
	n := 0
	for _, run := range r.Runs {
		if run.measured(g) {
			n++
		}
	}
	return 2*n > len(r.Runs)
}

// measured reports whether the run had anything of what the goal is about. Shares of what came are 0
// where nothing came; there is no latency where nothing was answered.
func (r *Result) measured(g *Goal) bool {
	s := r.window(g)
	switch {
	case s.To <= s.From:
		return false
	case g.Class != "" && g.Metric == "wait_p99":
		return ofClass(func(c *ClassSummary) float64 { return float64(c.Admitted) })(r, g) > 0
	case g.Class != "" && (g.Metric == "p50" || g.Metric == "p99"):
		return ofClass(func(c *ClassSummary) float64 { return float64(c.P99) })(r, g) > 0
	case slices.Contains([]string{"p50", "p99", "p999", "late", "wasted"}, g.Metric):
		return s.Answered > 0
	}
	return true
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

// percent are the metrics that are shown in percent.
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
		s := r.Spread(Goal{Metric: f.name})
		fmt.Fprintf(w, "  %s\t%s\t(%s to %s)\n", f.label, Format(f.name, s.Median), Format(f.name, s.Min), Format(f.name, s.Max))
	}
	_ = w.Flush() // writing to a strings.Builder cannot fail
}

// Stretches is every figure over each stretch that a goal is about, as a table:
// a row a stretch, medians over the seeds.
func (r *Report) Stretches() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "  stretch")
	for _, f := range figures {
		fmt.Fprintf(w, "\t%s", f.name)
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
			g.Metric = f.name
			fmt.Fprintf(w, "\t%s", Format(f.name, r.Spread(g).Median))
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush() // writing to a strings.Builder cannot fail
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
	var withheld uint64
	for _, run := range r.Runs {
		withheld += run.Windows[0].Withheld
	}
	if withheld > 0 {
		fmt.Fprintf(b, "  not sent by clients:    %.0f a run\n", float64(withheld)/float64(len(r.Runs)))
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
		case !g.Goal.bounded():
		case g.Reached:
			verdict = "reached"
		default:
			verdict = "MISSED"
		}
		value, spread := Format(name, g.Spread.Median), fmt.Sprintf("(%s to %s)", Format(name, g.Spread.Min), Format(name, g.Spread.Max))
		if !g.Measured {
			value, spread = "nothing measured", ""
		}
		fmt.Fprintf(w, "  goal %s%s\t%v to %v\t%s\t%s\t%s\t%s\n", name, of, from, to, g.Goal.Bounds(), value, spread, verdict)
	}
	_ = w.Flush()
}

// Summary is what one run was over one stretch of time.
type Summary struct {
	// From and To are the stretch.
	From time.Duration `json:"from_ns"`
	To   time.Duration `json:"to_ns"`

	// Offered counts new requests, Attempts these and their retries.
	Offered  uint64 `json:"offered"`
	Attempts uint64 `json:"attempts"`
	// Admitted counts grants; Answered what the backend finished, Good what of
	// it came in time to a client that was still there.
	Admitted uint64 `json:"admitted"`
	Answered uint64 `json:"answered"`
	Good     uint64 `json:"good"`
	// Refused counts refusals by reason, GaveUp clients that left the wait
	// room, Abandoned clients that left while the backend worked for them.
	Refused   map[weir.Reason]uint64 `json:"refused,omitempty"`
	GaveUp    uint64                 `json:"gave_up,omitempty"`
	Abandoned uint64                 `json:"abandoned,omitempty"`

	// Capacity is the backend's mean capacity, Goodput the rate of Good, both
	// in requests a second; Ratio is the one over the other.
	Capacity float64 `json:"capacity_rps"`
	Goodput  float64 `json:"goodput_rps"`
	Ratio    float64 `json:"goodput"`
	// RefusedShare is refusals over attempts. LateShare is the share of answers
	// that were errors or no use any more, and WastedShare that of the work that
	// went into them.
	RefusedShare float64 `json:"refused_share"`
	LateShare    float64 `json:"late_share"`
	WastedShare  float64 `json:"wasted_share"`
	// WorkRatio is the same as Ratio by work: good work over what the backend
	// could have done.
	WorkRatio float64 `json:"goodput_work"`
	// Withheld counts attempts that the client's own process did not send. They are not among
	// Attempts, nor among Refused.
	Withheld uint64 `json:"withheld,omitempty"`
	// Hits counts requests that a cache answered, which are not among Offered.
	Hits uint64 `json:"hits,omitempty"`
	// These are set for scenarios with goals about them. Classes are the classes of requests.
	// Inversions is how often a request was let in while one of a higher priority waited.
	// ShareError is for the tenant farthest from its max-min fair share: by how much of that share
	// it is off. UserError is the same for users.
	Classes    []ClassSummary `json:"classes,omitempty"`
	Inversions uint64         `json:"inversions,omitempty"`
	UserError  float64        `json:"user_error,omitempty"`
	ShareError float64        `json:"share_error,omitempty"`
	// OverLimit is the most by which an admission brought the backend over the limit in force. It
	// is above 0 only if slots of abandoned work are given back at once.
	OverLimit float64 `json:"over_limit,omitempty"`

	// P50, P99 and P999 are the latencies of admitted work, from the moment its
	// attempt was meant to be sent to the backend's answer. WaitP99 is the time
	// in the wait room of it, RefusalP99 the time until a refusal.
	P50        time.Duration `json:"p50_ns"`
	P99        time.Duration `json:"p99_ns"`
	P999       time.Duration `json:"p999_ns"`
	WaitP99    time.Duration `json:"wait_p99_ns"`
	RefusalP99 time.Duration `json:"refusal_p99_ns"`

	// Limit is the limit of the gate that bounds the concurrency of the first class, summed over
	// the gateways. It is that of one key where the gate has one limit for each, and 0 where each
	// pool finds its own. Inside is the concurrency in the backend.
	Limit  Level `json:"limit"`
	Inside Level `json:"inside"`
	// Backlog is what the scenario's consumer had before it. Applied is the part of what it could have
	// applied that it did. Both are 0 without a consumer.
	Backlog Level   `json:"backlog,omitzero"`
	Applied float64 `json:"applied,omitempty"`
}

// Level is a value over time.
type Level struct {
	Min  float64 `json:"min"`
	Mean float64 `json:"mean"`
	Max  float64 `json:"max"`
}

func (w *window) summary() Summary {
	s := Summary{
		From: w.from, To: w.to,
		Offered: w.offered, Attempts: w.attempts, Admitted: w.admitted,
		Answered: w.answered, Good: w.good, GaveUp: w.gaveUp, Abandoned: w.abandoned,
		Capacity: w.capacity.mean(),
		P50:      w.latency.Quantile(0.5), P99: w.latency.Quantile(0.99), P999: w.latency.Quantile(0.999),
		WaitP99: w.wait.Quantile(0.99), RefusalP99: w.refusal.Quantile(0.99),
		Limit: w.limit.public(), Inside: w.inside.public(),
	}
	var refused uint64
	for _, n := range w.refused {
		refused += n
	}
	s.Refused = byReason(&w.refused)
	s.Goodput = share(float64(w.good), (w.to - w.from).Seconds())
	s.Ratio = share(s.Goodput, s.Capacity)
	s.RefusedShare = share(float64(refused), float64(w.attempts))
	s.LateShare = share(float64(w.late), float64(w.answered))
	s.WastedShare = share(w.wasted, w.work)
	s.WorkRatio = share(share(w.work-w.wasted, (w.to-w.from).Seconds()), w.power.mean())
	s.Hits, s.OverLimit, s.Withheld = w.hits, w.over, w.withheld
	s.Backlog, s.Applied = w.backlog.public(), share(float64(w.applied), float64(w.drain.mean()*(w.to-w.from).Seconds()))
	return s
}

// byReason names the counts that are not 0; nil if all are.
func byReason(counts *[numReasons]uint64) map[weir.Reason]uint64 {
	var m map[weir.Reason]uint64
	for r, n := range counts {
		if n > 0 {
			if m == nil {
				m = map[weir.Reason]uint64{}
			}
			m[weir.Reason(r)] = n
		}
	}
	return m
}

func (l *level) public() Level { return Level{l.min, l.mean(), l.max} }

// share is a over b, 0 if there is no b.
func share(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}

// metric is a figure that a goal can be about. Those with a label are the rows of the table.
type metric struct {
	name, unit, label, text string
	of                      func(*Result, *Goal) float64
}

// figures are the metrics of the table, in order.
var figures = slices.DeleteFunc(slices.Clone(metrics), func(m metric) bool { return m.label == "" })

func ofSummary(f func(*Summary) float64) func(*Result, *Goal) float64 {
	return func(r *Result, g *Goal) float64 { return f(r.window(g)) }
}

func millis(d time.Duration) float64 { return float64(d) / 1e6 }

var metrics = []metric{
	{"goodput", "", "goodput / capacity", "good answers over what the backend's capacity allows", ofSummary(func(s *Summary) float64 { return s.Ratio })},
	{"goodput_work", "", "the same by work", "the same by work: that of good answers over what the backend could have done", ofSummary(func(s *Summary) float64 { return s.WorkRatio })},
	{"served", "", "goodput / offered", "good answers over new requests", ofSummary(func(s *Summary) float64 { return share(float64(s.Good), float64(s.Offered)) })},
	{"p50", "ms", "latency p50", "median latency of admitted work", ofSummary(func(s *Summary) float64 { return millis(s.P50) })},
	{"p99", "ms", "latency p99", "99th percentile of it", ofSummary(func(s *Summary) float64 { return millis(s.P99) })},
	{"p999", "ms", "latency p999", "99.9th percentile of it", ofSummary(func(s *Summary) float64 { return millis(s.P999) })},
	{"refusal_p99", "ms", "refusal p99", "99th percentile of the time until a refusal", ofSummary(func(s *Summary) float64 { return millis(s.RefusalP99) })},
	{"refused", "", "refused", "refusals over attempts", ofSummary(func(s *Summary) float64 { return s.RefusedShare })},
	{"late", "", "late", "share of answers that were errors, or came too late or to nobody", ofSummary(func(s *Summary) float64 { return s.LateShare })},
	{"wasted", "", "wasted work", "share of the backend's work that went into these", ofSummary(func(s *Summary) float64 { return s.WastedShare })},
	{"attempts", "", "attempts / request", "attempts for each new request", ofSummary(func(s *Summary) float64 { return share(float64(s.Attempts), float64(s.Offered)) })},
	{"withheld", "", "", "attempts that the client's own process did not send, for each new request", ofSummary(func(s *Summary) float64 { return share(float64(s.Withheld), float64(s.Offered)) })},
	{"limit_min", "", "limit min", "lowest limit", ofSummary(func(s *Summary) float64 { return s.Limit.Min })},
	{"limit_mean", "", "limit mean", "mean limit", ofSummary(func(s *Summary) float64 { return s.Limit.Mean })},
	{"limit_max", "", "limit max", "highest limit", ofSummary(func(s *Summary) float64 { return s.Limit.Max })},
	{"inside_mean", "", "inside mean", "mean concurrency in the backend", ofSummary(func(s *Summary) float64 { return s.Inside.Mean })},
	{"inside_max", "", "inside max", "highest concurrency in the backend", ofSummary(func(s *Summary) float64 { return s.Inside.Max })},
	{"over_limit", "", "most over the limit", "the most by which an admission brought the backend over the limit", ofSummary(func(s *Summary) float64 { return s.OverLimit })},
	{"limit_rise", "", "", "highest limit of the stretch over the one it began with", (*Result).limitRise},
	{"settle", "s", "", "time from the start of the stretch until goodput holds the level (0.95 by default) of offered load or capacity, whichever is less", (*Result).settle},
	{"calm", "s", "", "time from the start of the stretch until refusals stay below the level (0.01 by default) of attempts", (*Result).calm},
	{"refill", "s", "", "time from the start of the stretch until a cache answers at least the level (0.9 by default) of requests", (*Result).refill},
}

// Metrics returns the names a [Goal] can use, with what each means.
func Metrics() map[string]string {
	return texts(slices.Concat(metrics, lagMetrics, between))
}

func texts(list []metric) map[string]string {
	m := make(map[string]string, len(list))
	for _, d := range list {
		m[d.name] = d.text
		if d.unit != "" {
			m[d.name] += ", " + d.unit
		}
	}
	return m
}

func findMetric(name string) *metric {
	for _, list := range [][]metric{metrics, lagMetrics, between} {
		for i := range list {
			if list[i].name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// metric is the metric of the goal, nil if there is no metric of that name.
func (g *Goal) metric() *metric {
	if g.Class != "" {
		return classMetric(g.Metric)
	}
	return findMetric(g.Metric)
}

// The metrics settle, calm and refill are judged over windows of this many
// requests, so that chance moves them by a few per cent only. A window is at least
// this long.
const (
	settleRequests = 400
	settleWindow   = 200 * time.Millisecond
)

// settle finds when goodput begins to hold its level, over a window and over the rest of the
// stretch. It is at most the length of the stretch, which also stands for never.
func (r *Result) settle(g *Goal) float64 {
	s := r.window(g)
	level := cmp.Or(g.Level, 0.95)
	target := math.Min(share(float64(s.Offered), (s.To-s.From).Seconds()), s.Capacity)
	return r.firstSurplus(s, target, func(b *bin) float64 {
		return float64(b.good) - level*target*r.binWidth.Seconds()
	})
}

// calm finds when refusals begin to stay below their level, over a window and over the rest of the
// stretch.
func (r *Result) calm(g *Goal) float64 {
	s := r.window(g)
	level := cmp.Or(g.Level, 0.01)
	rate := share(float64(s.Attempts), (s.To - s.From).Seconds())
	return r.firstSurplus(s, rate, func(b *bin) float64 {
		return level*float64(b.attempts) - float64(b.refused)
	})
}

// refill finds when the cache begins to answer its share.
func (r *Result) refill(g *Goal) float64 {
	s := r.window(g)
	level := cmp.Or(g.Level, 0.9)
	rate := share(float64(s.Offered+s.Hits), (s.To - s.From).Seconds())
	return r.firstSurplus(s, rate, func(b *bin) float64 {
		return float64(b.hits) - level*float64(b.hits+b.offered)
	})
}

// limitRise compares the highest limit with that at the start of a stretch.
func (r *Result) limitRise(g *Goal) float64 {
	s := r.window(g)
	before := max(0, int(s.From/r.binWidth)-1)
	if before >= len(r.bins) {
		return 0
	}
	return share(s.Limit.Max, float64(r.bins[before].limit))
}

// firstSurplus returns the time from the start of a stretch to the first bin with a surplus that stays.
// The sum of the surplus from there on is not negative, over a window and over the rest.
func (r *Result) firstSurplus(s *Summary, rate float64, surplus func(*bin) float64) float64 {
	from, to := int(s.From/r.binWidth), min(int(s.To/r.binWidth), len(r.bins))
	length := max(settleWindow, time.Duration(share(settleRequests, rate)*1e9))
	width := max(1, min(int(length/r.binWidth), to-from))
	sums := make([]float64, max(0, to-from)+1) // of the bins before
	for i := range to - from {
		sums[i+1] = sums[i] + surplus(&r.bins[from+i])
	}
	const rounding = 1e-6
	rest := sums[len(sums)-1]
	for i := 0; i+width < len(sums); i++ {
		if sums[i+width]-sums[i] >= -rounding && rest-sums[i] >= -rounding {
			return float64(i) * r.binWidth.Seconds()
		}
	}
	return max(0, s.To-s.From).Seconds()
}

// textColumns is how wide the charts are.
const textColumns = 72

// Plot draws the first run over time, as text. It shows offered load against goodput and capacity,
// and the latency of admitted work. It also shows the limit against the concurrency in the backend,
// and refusals.
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
