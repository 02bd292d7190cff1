package live

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Write judges the results and writes them under dir as NAME.md and NAME.json.
func (r *Results) Write(dir, name string) error {
	r.judge()
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, name+".json"), append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name+".md"), []byte(r.Markdown()), 0o644)
}

const intro = `# Live scoreboard

Written by ` + "`make scoreboard-live`" + `; live.json has every figure of every round. Real servers on loopback: the system under test is a process pinned to
one core, load generator and backends are pinned to the other. Open loop, Poisson arrivals, latency from the time a request was due; clients close
their connection when their patience ends. Figures are the median over the rounds, with the least and the largest in brackets. A run is void, and
repeated, if more than 2 %% of the sends were late or others used more than 5 %% of the core under test.

%d cores (%s), %s, %s; %s; %d rounds at pace %.2g.
%s
goodput: answers in time over what the capacity in force could have answered. p99: latency of what was not refused, in ms. refusal p99: latency of
the refusals, in ms. wasted: share of the backend's work that nobody waited for. limit: mean over the stage, least and largest. inside: the most
requests inside the backend. core: share of its core that the system under test used. Guards: none; fixed, the fewest slots that got
95 %% of the capacity (proxies: the backend's best concurrency), with a wait room; weir, all defaults; + signal, capped by the scheduler's latency; no
room, fixed without a wait room; without yield, weirhttp.WithYield(false).
`

// Markdown is the report as people read it.
func (r *Results) Markdown() string {
	var b strings.Builder
	if len(r.Order) > 0 && len(r.Cells)+len(r.Yield) == 0 {
		r.orderMarkdown(&b)
		return b.String()
	}
	fmt.Fprintf(&b, intro, r.Machine.Cores, r.Machine.Arch, r.Machine.Kernel, r.Machine.Go, r.Measured, r.Rounds, r.Pace, r.together())
	r.voids(&b)
	r.part(&b, partServer, "## A limiter inside the server\n\nweirhttp around the handler, GOMAXPROCS 1 where nothing else is said.\n")
	r.yield(&b)
	r.part(&b, partGateway, "## A proxy before the server\n\n`weir run --upstream URL` with no other word, `weir run --limit` with the backend's best concurrency (fixed), and Go's\nReverseProxy alone (none) or inside failsafe-go's adaptive limiter, at its defaults and with its queueing. Backends that keep working for clients\nthat left:\n")
	r.summary(&b)
	r.order(&b)
	return b.String()
}

// voids names the runs that were given up, and the references that others disturbed.
func (r *Results) voids(b *strings.Builder) {
	var names []string
	for _, c := range r.Capacities {
		if c.Foreign > ForeignAbove {
			names = append(names, fmt.Sprintf("capacity of %s in round %d, and all that refers to it", c.Backend, c.Round+1))
		}
	}
	for _, y := range r.Yield {
		if y.Foreign > ForeignAbove {
			names = append(names, fmt.Sprintf("cost of the yield in round %d, %s", y.Round+1, y.Guard))
		}
	}
	for _, c := range r.Cells {
		if c.Void > 0 {
			names = append(names, fmt.Sprintf("%s %s on %s, %s (%d)", c.Row, c.Stage, c.Backend, c.Guard, c.Void))
		}
	}
	for _, c := range r.Order {
		if c.Void > 0 {
			names = append(names, fmt.Sprintf("%s, %s of %s (%d)", c.Row, c.Class, c.Guard, c.Void))
		}
	}
	if len(names) == 0 {
		fmt.Fprintf(b, "\nNo run stayed void.\n")
		return
	}
	fmt.Fprintf(b, "\nRuns that stayed void: %s.\n", strings.Join(names, "; "))
}

func (r *Results) part(b *strings.Builder, part, title string) {
	if !slices.ContainsFunc(r.Cells, func(c *Cell) bool { return c.Part == part }) {
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
	fmt.Fprintf(b, "\n| row | on | guard | goodput | p99 | refusal p99 | refused %% | wasted %% | limit | inside | core | goals |\n")
	fmt.Fprintf(b, "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, c := range r.Cells {
		if c.Part == part {
			c.line(b)
		}
	}
}

func (r *Results) capacities(b *strings.Builder) {
	fmt.Fprintf(b, "Capacities, found by a closed loop in each round:\n\n")
	var names []string
	for _, c := range r.Capacities {
		if !slices.Contains(names, c.Backend) {
			names = append(names, c.Backend)
		}
	}
	for _, name := range names {
		var rate, clients, request, refusal []float64
		for _, c := range r.Capacities {
			if c.Backend == name {
				rate, clients = append(rate, c.Rate), append(clients, float64(c.Clients))
				request, refusal = append(request, c.RequestUS), append(refusal, c.RefusalUS)
			}
		}
		fmt.Fprintf(b, "- %s: %s requests/s with %s clients", name, spread(rate, "%.0f"), spread(clients, "%.0f"))
		if median(slices.Sorted(slices.Values(refusal))) > 0 {
			fmt.Fprintf(b, "; CPU µs: %s a request, %s a refusal", spread(request, "%.0f"), spread(refusal, "%.1f"))
		}
		fmt.Fprintln(b)
	}
}

// spread is the median with the extremes.
func spread(v []float64, verb string) string {
	if len(v) == 0 {
		return "-"
	}
	v = slices.Sorted(slices.Values(v))
	mid, low, high := fmt.Sprintf(verb, median(v)), fmt.Sprintf(verb, v[0]), fmt.Sprintf(verb, v[len(v)-1])
	if low == high {
		return mid
	}
	return fmt.Sprintf("%s (%s–%s)", mid, low, high)
}

func (c *Cell) line(b *strings.Builder) {
	fmt.Fprintf(b, "| %s %s | %s | %s |", c.Row, c.Stage, c.Backend, c.Guard)
	if len(c.Rounds) == 0 {
		fmt.Fprintf(b, " void |%s\n", strings.Repeat(" |", 8))
		return
	}
	mid := func(verb string, of func(*Figures) float64) {
		fmt.Fprintf(b, " "+verb+" |", median(c.figures(of)))
	}
	fmt.Fprintf(b, " %s |", spread(c.figures(func(f *Figures) float64 { return f.Goodput }), "%.2f"))
	fmt.Fprintf(b, " %s |", spread(c.figures(func(f *Figures) float64 { return f.P99 }), "%.0f"))
	mid("%.0f", func(f *Figures) float64 { return f.RefusalP99 })
	mid("%.1f", func(f *Figures) float64 { return 100 * f.Refused })
	mid("%.1f", func(f *Figures) float64 { return 100 * f.Wasted })
	c.limit(b)
	mid("%.0f", func(f *Figures) float64 { return float64(f.Inside) })
	mid("%.2f", func(f *Figures) float64 { return f.Core })
	fmt.Fprintf(b, " %s |\n", verdicts(c.Goals))
}

func (c *Cell) limit(b *strings.Builder) {
	most := c.figures(func(f *Figures) float64 { return float64(f.LimitMost) })
	if most[len(most)-1] == 0 {
		fmt.Fprintf(b, " |")
		return
	}
	mean := c.figures(func(f *Figures) float64 { return f.LimitMean })
	least := c.figures(func(f *Figures) float64 { return float64(f.LimitLeast) })
	fmt.Fprintf(b, " %.0f (%.0f–%.0f) |", median(mean), least[0], most[len(most)-1])
}

func verdicts(goals []Verdict) string {
	var all []string
	for _, v := range goals {
		relation, mark, figure := "≥", "✗", v.Median
		if v.Every {
			figure = v.Max
		}
		if v.AtMost {
			relation = "≤"
		}
		if v.Reached {
			mark = "✓"
		}
		all = append(all, fmt.Sprintf("%s %.3g %s %.3g %s", v.What, figure, relation, v.Bound, mark))
	}
	return strings.Join(all, "; ")
}

func (r *Results) yield(b *strings.Builder) {
	if len(r.Yield) == 0 {
		return
	}
	fmt.Fprintf(b, "\n### What the yield costs where it does not pay\n\nA handler that answers at once, 32 clients in a closed loop, CPU µs a request and requests/s:\n\n")
	var names []string
	for _, y := range r.Yield {
		if !slices.Contains(names, y.Guard) {
			names = append(names, y.Guard)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		var cpu, rate []float64
		for _, y := range r.Yield {
			if y.Guard == name {
				cpu, rate = append(cpu, y.RequestUS), append(rate, y.Rate)
			}
		}
		fmt.Fprintf(b, "- %s: %s µs, %s/s\n", name, spread(cpu, "%.1f"), spread(rate, "%.0f"))
	}
}

// summary compares the proxies over all their cells: goodput as a share of the
// best fixed limit's in the same round.
func (r *Results) summary(b *strings.Builder) {
	first := true
	for _, guard := range proxyGuards {
		worst, where := 0.0, ""
		var shares []float64
		below := 0
		for _, c := range r.Cells {
			if c.Part != partGateway || c.Guard != guard || guard == guardFixed {
				continue
			}
			v, ok := (&Goal{Value: ofFixed}).judge(c, r.fixed(c))
			if !ok {
				continue
			}
			if where == "" || v.Median < worst {
				worst, where = v.Median, c.Row+" "+c.Stage+" on "+c.Backend
			}
			if v.Median < 0.5 {
				below++
			}
			shares = append(shares, v.Median)
		}
		if len(shares) == 0 {
			continue
		}
		if first {
			fmt.Fprintf(b, "\nOver all cells, goodput as a share of the best fixed limit's in the same round:\n\n")
			first = false
		}
		slices.Sort(shares)
		fmt.Fprintf(b, "- %s: worst %.2f (%s), median %.2f; %d of %d cells under half\n", guard, worst, where, median(shares), below, len(shares))
	}
}
