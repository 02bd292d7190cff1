package live

import (
	"cmp"
	_ "embed"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/bench/internal/rig"
)

// Results are all figures of a run of the scoreboard.
type Results struct {
	Machine    machine     `json:"machine"`
	Measured   string      `json:"measured"` // the day
	Rounds     int         `json:"rounds"`   // that were completed
	Pace       float64     `json:"pace"`
	Capacities []Capacity  `json:"capacities"`
	Yield      []yieldCost `json:"yield_cost"`
	Cells      []*cell     `json:"cells"`

	Order []orderCell `json:"order,omitempty"`
}

// machine is where the figures come from.
type machine struct {
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	Arch   string `json:"arch"`
	// Apart says that generator and system under test had a core each.
	Apart bool `json:"apart"`
}

// Capacity is what the sweep of one round found.
type Capacity struct {
	Backend   string  `json:"backend"`
	Round     int     `json:"round"`
	Rate      float64 `json:"requests_per_s"`
	Clients   int     `json:"clients"`
	RequestUS float64 `json:"request_cpu_us"`
	RefusalUS float64 `json:"refusal_cpu_us"`
	Foreign   float64 `json:"foreign"` // share of the core that others used
}

// yieldCost is what a request to a handler that does nothing costs.
type yieldCost struct {
	Guard     string  `json:"guard"`
	Round     int     `json:"round"`
	RequestUS float64 `json:"request_cpu_us"`
	Rate      float64 `json:"requests_per_s"`
	Foreign   float64 `json:"foreign"` // share of the core that others used
}

// cell is one stage of one row on one backend under one guard.
type cell struct {
	Part    string `json:"part"`
	Row     string `json:"row"`
	Stage   string `json:"stage"`
	Index   int    `json:"index"` // of the stage in its row
	Backend string `json:"backend"`
	Guard   string `json:"guard"`

	samples[figures]

	goals []goal
	order int
}

// samples are the figures of a cell, one for each round.
type samples[F any] struct {
	Void   int           `json:"void"` // runs without a figure
	Rounds []F           `json:"rounds"`
	Goals  []kit.Verdict `json:"goals,omitempty"`
}

// add adds those of a run.
func (s *samples[F]) add(f F, void bool) {
	if void {
		s.Void++
		return
	}
	s.Rounds = append(s.Rounds, f)
}

// over returns a figure over the rounds, text the same as text.
func (s *samples[F]) over(of func(*F) float64) kit.Spread { return over(s.Rounds, of) }

func (s *samples[F]) text(verb string, of func(*F) float64) string {
	return kit.Text(s.over(of), verb)
}

func newResults(plan Plan) *Results {
	return &Results{
		Machine:  machine{Cores: runtime.NumCPU(), Kernel: rig.Kernel(), Go: runtime.Version(), Arch: runtime.GOARCH},
		Measured: time.Now().UTC().Format(time.DateOnly), Pace: plan.Pace,
	}
}

// cell finds the cell of a stage and a guard, or adds it.
func (r *Results) cell(s *staged, index int, guard string) *cell {
	for _, c := range r.Cells {
		if c.Part == s.part && c.Row == s.row.ID && c.Index == index && c.Backend == s.backend && c.Guard == guard {
			return c
		}
	}
	stage := &s.row.Stages[index]
	c := &cell{
		Part: s.part, Row: s.row.ID, Stage: stage.Name, Index: index, Backend: s.backend, Guard: guard,
		goals: stage.Goals, order: len(r.Cells),
	}
	r.Cells = append(r.Cells, c)
	return c
}

func over[F any](rounds []F, of func(*F) float64) kit.Spread {
	all := make([]float64, len(rounds))
	for i := range rounds {
		all[i] = of(&rounds[i])
	}
	return kit.SpreadOf(all)
}

// judge compares all cells with their goals.
func (r *Results) judge() {
	r.judgeOrder()
	slices.SortStableFunc(r.Cells, func(a, b *cell) int {
		return cmp.Or(cmp.Compare(slices.Index(parts, a.Part), slices.Index(parts, b.Part)), cmp.Compare(a.Row, b.Row),
			cmp.Compare(a.Backend, b.Backend), cmp.Compare(a.Index, b.Index), cmp.Compare(a.order, b.order))
	})
	for _, c := range r.Cells {
		c.Goals = nil
		for _, g := range c.goals {
			if v, ok := g.judge(c, r.fixed(c)); ok {
				c.Goals = append(c.Goals, v)
			}
		}
	}
}

// fixed is the cell of the best fixed limit beside c.
func (r *Results) fixed(c *cell) *cell { return r.beside(c, guardFixed) }

// beside is the cell of a guard for the stage of c.
func (r *Results) beside(c *cell, guard string) *cell {
	for _, o := range r.Cells {
		if o.Guard == guard && o.Part == c.Part && o.Row == c.Row && o.Index == c.Index && o.Backend == c.Backend {
			return o
		}
	}
	return &cell{}
}

// judge takes the figure in each round in which both cells have one.
func (g *goal) judge(c, fixed *cell) (kit.Verdict, bool) {
	var values []float64
	for i := range c.Rounds {
		for j := range fixed.Rounds {
			if fixed.Rounds[j].Round == c.Rounds[i].Round {
				values = append(values, g.Value(&c.Rounds[i], &fixed.Rounds[j]))
			}
		}
	}
	if len(values) == 0 {
		return kit.Verdict{}, false
	}
	return g.Judge(kit.SpreadOf(values)), true
}

// Write judges the results and writes them under dir as NAME.md and NAME.json.
func (r *Results) Write(dir, name string) error {
	r.judge()
	data, err := kit.JSON(r, " ")
	if err != nil {
		return err
	}
	return kit.Write(dir, map[string][]byte{name + ".json": data, name + ".md": []byte(r.Markdown())})
}

//go:embed live.md.tmpl
var intro string

// Markdown is the report as people read it.
func (r *Results) Markdown() string {
	var b strings.Builder
	if len(r.Order) > 0 && len(r.Cells)+len(r.Yield) == 0 {
		r.orderMarkdown(&b)
		return b.String()
	}
	target, name := "scoreboard-live", "live"
	if r.withEnvoy() {
		target, name = "scoreboard-live-envoy", "live-envoy"
	}
	fmt.Fprintf(&b, intro, target, name, r.Machine.Cores, r.Machine.Arch, r.Machine.Kernel, r.Machine.Go, r.Measured, r.Rounds, r.Pace, r.together())
	r.voids(&b)
	r.part(&b, partServer, "## A limiter inside the server\n\nweirhttp stands around the handler. GOMAXPROCS is 1 unless a row says otherwise.\n")
	r.yield(&b)
	r.part(&b, partGateway, "## A proxy before the server\n\nweir is `weir run --upstream URL` without further flags. fixed is `weir run --limit` with the backend's best concurrency. none is Go's ReverseProxy.\nfailsafe-go is the same inside its adaptive limiter, at its defaults or with its queueing. The backends keep working for clients that left:\n")
	r.summary(&b)
	r.behindEnvoy(&b)
	r.order(&b)
	return b.String()
}

// voids names the runs that were given up, and the references that others disturbed.
func (r *Results) voids(b *strings.Builder) {
	var names []string
	name := func(void bool, format string, args ...any) {
		if void {
			names = append(names, fmt.Sprintf(format, args...))
		}
	}
	for _, c := range r.Capacities {
		name(c.Foreign > foreignAbove, "capacity of %s in round %d, and all that refers to it", c.Backend, c.Round+1)
	}
	for _, y := range r.Yield {
		name(y.Foreign > foreignAbove, "cost of the yield in round %d, %s", y.Round+1, y.Guard)
	}
	for _, c := range r.Cells {
		name(c.Void > 0, "%s %s on %s, %s (%d)", c.Row, c.Stage, c.Backend, c.Guard, c.Void)
	}
	for _, c := range r.Order {
		name(c.Void > 0, "%s, %s of %s (%d)", c.Row, c.Class, c.Guard, c.Void)
	}
	if len(names) == 0 {
		fmt.Fprintf(b, "\nNo run was void in the end.\n")
		return
	}
	fmt.Fprintf(b, "\nRuns that were still void after their repeats: %s.\n", strings.Join(names, "; "))
}

func (r *Results) part(b *strings.Builder, part, title string) {
	if !slices.ContainsFunc(r.Cells, func(c *cell) bool { return c.Part == part }) {
		return
	}
	fmt.Fprintf(b, "\n%s\n", title)
	if part == partServer {
		r.capacities(b)
	} else {
		for _, u := range upstreams() {
			fmt.Fprintf(b, "- %s: %s\n", u.law.Name, u.law.String())
		}
	}
	table := kit.Table{{"row", "on", "guard", "goodput", "p99", "refusal p99", "refused %", "wasted %", "limit", "inside", "core", "goals"}}
	for _, c := range r.Cells {
		if c.Part == part {
			table = append(table, c.line(len(table[0])))
		}
	}
	b.WriteString("\n" + table.Plain(kit.Rule(len(table[0]))))
}

func (r *Results) capacities(b *strings.Builder) {
	fmt.Fprintf(b, "Capacities, found by a closed loop in each round:\n\n")
	for _, found := range kit.Groups(r.Capacities, func(c *Capacity) string { return c.Backend }) {
		text := func(verb string, of func(*Capacity) float64) string { return kit.Text(over(found, of), verb) }
		fmt.Fprintf(b, "- %s: %s requests/s with %s clients", found[0].Backend, text("%.0f", func(c *Capacity) float64 { return c.Rate }),
			text("%.0f", func(c *Capacity) float64 { return float64(c.Clients) }))
		refusal := func(c *Capacity) float64 { return c.RefusalUS }
		if over(found, refusal).Median > 0 {
			fmt.Fprintf(b, "; CPU µs: %s a request, %s a refusal", text("%.0f", func(c *Capacity) float64 { return c.RequestUS }), text("%.1f", refusal))
		}
		fmt.Fprintln(b)
	}
}

// line is the cell's row of the table.
func (c *cell) line(columns int) []string {
	line := make([]string, columns)
	copy(line, []string{c.Row + " " + c.Stage, c.Backend, c.Guard, "void"})
	if len(c.Rounds) == 0 {
		return line
	}
	mid := func(verb string, of func(*figures) float64) string { return fmt.Sprintf(verb, c.over(of).Median) }
	copy(line[3:], []string{
		c.text("%.2f", func(f *figures) float64 { return f.Goodput }),
		c.text("%.0f", func(f *figures) float64 { return f.P99 }),
		mid("%.0f", func(f *figures) float64 { return f.RefusalP99 }),
		mid("%.1f", func(f *figures) float64 { return 100 * f.Refused }),
		mid("%.1f", func(f *figures) float64 { return 100 * f.Wasted }),
		c.limit(),
		mid("%.0f", func(f *figures) float64 { return float64(f.Inside) }),
		mid("%.2f", func(f *figures) float64 { return f.Core }),
		verdicts(c.Goals),
	})
	return line
}

// limit is the mean over the rounds, with the least and the largest; empty where
// there was none.
func (c *cell) limit() string {
	most := c.over(func(f *figures) float64 { return float64(f.LimitMost) }).Max
	if most == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f (%.0f–%.0f)", c.over(func(f *figures) float64 { return f.LimitMean }).Median,
		c.over(func(f *figures) float64 { return float64(f.LimitLeast) }).Min, most)
}

func verdicts(goals []kit.Verdict) string {
	var all []string
	for i := range goals {
		all = append(all, goals[i].String())
	}
	return strings.Join(all, "; ")
}

func (r *Results) yield(b *strings.Builder) {
	if len(r.Yield) == 0 {
		return
	}
	fmt.Fprintf(b, "\n### What the yield costs where it does not pay\n\nA handler answers at once, to 32 clients in a closed loop. CPU µs a request, and requests/s:\n\n")
	costs := kit.Groups(r.Yield, func(y *yieldCost) string { return y.Guard })
	slices.SortFunc(costs, func(a, b []yieldCost) int { return cmp.Compare(a[0].Guard, b[0].Guard) })
	for _, one := range costs {
		fmt.Fprintf(b, "- %s: %s µs, %s/s\n", one[0].Guard, kit.Text(over(one, func(y *yieldCost) float64 { return y.RequestUS }), "%.1f"),
			kit.Text(over(one, func(y *yieldCost) float64 { return y.Rate }), "%.0f"))
	}
}

// summary compares the proxies over all their cells: goodput as a share of the
// best fixed limit's in the same round.
func (r *Results) summary(b *strings.Builder) {
	head := "\nOver all cells, goodput as a share of the best fixed limit's in the same round:\n\n"
	for _, guard := range slices.Concat(proxyGuards, envoyGuards) {
		where, below := "", 0
		var shares []float64
		for _, c := range r.Cells {
			if c.Part != partGateway || c.Guard != guard || guard == guardFixed {
				continue
			}
			v, ok := (&goal{Value: ofFixed}).judge(c, r.fixed(c))
			if !ok {
				continue
			}
			if where == "" || v.Median < slices.Min(shares) {
				where = c.Row + " " + c.Stage + " on " + c.Backend
			}
			if v.Median < 0.5 {
				below++
			}
			shares = append(shares, v.Median)
		}
		if len(shares) == 0 {
			continue
		}
		slices.Sort(shares)
		fmt.Fprintf(b, "%s- %s: worst %.2f (%s), median %.2f; %d of %d cells under half\n", head, guard, shares[0], where, kit.SpreadOf(shares).Median, below, len(shares))
		head = ""
	}
}

func (r *Results) withEnvoy() bool {
	return slices.ContainsFunc(r.Cells, func(c *cell) bool { return c.Guard == guardAsked })
}

// behindEnvoy compares the gateway that an Envoy asks with the gateway by itself.
func (r *Results) behindEnvoy(b *strings.Builder) {
	if !r.withEnvoy() {
		return
	}
	b.WriteString("\nEnvoy has its adaptive concurrency filter, set as its documentation does. Behind Envoy, weir is its external processor: two processes on the core of one.\n")
	head := "Goodput behind Envoy, less that of weir by itself in the same round:\n\n"
	for _, c := range r.Cells {
		if c.Guard != guardAsked || len(c.Rounds) == 0 {
			continue
		}
		g := goal{kit.Goal{What: "goodput − weir's", Bound: -0.05}, func(f, own *figures) float64 { return f.Goodput - own.Goodput }}
		if v, ok := g.judge(c, r.beside(c, guardWeir)); ok {
			fmt.Fprintf(b, "%s- %s %s on %s: %s\n", head, c.Row, c.Stage, c.Backend, v.String())
			head = ""
		}
	}
}
