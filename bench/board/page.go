package board

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-go/weir/bench/kit"
	"github.com/weir-go/weir/sim"
)

// readme is docs/scoreboard/README.md: what the columns and figures are, and with
// what bounds to read them. The verbs are the tally, the plots, the misses and
// the table.
const readme = `# Scoreboard

How much useful work each limiter gets done, on every scenario and backend, in virtual time. Use it to compare limiters, and to see where the default fails.
[live.md](live.md) has real servers, [peers.md](peers.md) limiters of other projects.

` + "`" + `make scoreboard` + "`" + ` writes this page. The same figures are in scoreboard.json, one object a cell, and the plots in plots/. Each figure is
the median over the seeds (five, three where a run is long), with the least and the largest in brackets. A cross marks a missed goal. The scenarios and
backends are the files in scenarios/; each says what it is about.

%s
Tuned on are S1, S2, S3, S4, S7, S9 and S11 on B1 to B4: the default was changed to do better on them. All others are held out: nothing was changed for them.
"held_out" marks them in the files.

The columns:

- **none**: no gate.
- **oracle**: the best fixed limit for the very scenario and backend. A sweep over limits and waits finds it, newest first while a queue stands. Where a goal
  is a part of what the oracle reaches, it is the best for that figure. It knows everything beforehand and keeps its slots. But it is fixed, and a limit that
  moves can be better.
- **fixed**: a limit tuned once for the backend.
- **aimd**: threshold at half the deadline of the backend, starting from 20.
- **default**: what a gate does when nobody configures it, the same for every backend. The last column is the limit it set: mean (least to largest).

S24 is about a quota, which stands before the gate of each column but none. It promises 500 at once and 5 a second, whatever the backend can do. Its goals
are not counted above: no column has a part in them.

The figures:

- **goodput** is good answers over the capacity in force, **goodput_work** the same by work.
- **settle** is the time until goodput stays at 0.95 (S7 and S8b: 0.9) of load or capacity, whichever is less. It cannot tell less than the time of 400 requests from chance.
- **calm** is the time until less than 1 %% is refused, **refill** the time until the cache answers 90 %%.
- **over_limit** is the most by which an admission brought the backend over the
  limit.
- **limit_rise** is the highest limit of the stretch over the one it began with.

A refusal costs nothing in virtual time, so the bound in S2 is 1.

What no fixed limit reaches:

- After a step back (S3 calm) the room still has work that newest-first left behind, until its longest wait is over.
- Exponential service times at a fifth of the capacity (S4b). A tenth of the requests on B2, and more on B4, need longer than their deadline inside a
  full backend, however short the wait.
- On B4, 53 requests a second, filling an empty backend takes a second (S18): what finishes in the first second was begun before it.

AIMD adds one slot a second and starts from 20. The 100 that B3 needs are 80 s away, longer than most runs.

The fixed limit on B1 serves in order of arrival. That refuses less near saturation (S9b), but costs a latency of half the deadline under overload. Newest first does the reverse.

## Who goes first

` + "`" + `make scoreboard-order` + "`" + ` writes order.md and order.json: priorities, fairness between users and tenants, exemption and nested calls, on B1 to B4.
` + "`" + `make scoreboard-order-peers` + "`" + ` writes order-peers.md: other projects' limiters that rank or share, in the same scenarios. None of it is among the figures
below: work that names nobody is served as if there were no tenants and no priorities.

The columns there are none (no gate), untold (the default gate, not told who asks: what it costs to know nothing), fixed and default (both told). All figures are measured
from outside, by what comes to the gate and what it admits:

- **served** of a class: of what was offered in the stretch, what was answered in time, with all its calls.
- **refused**: refusals over attempts.
- **p99** of a class, beside what it has alone under the same gate with the same arrivals (` + "`" + `= 1.31 x` + "`" + `). A latency of 0 ms means that there was none to measure. **wait_p99** is the part spent in the wait room.
- **inversions**: admissions while work of a higher priority waited. What the lower one is guaranteed does not count.
- **share_error**, **user_error**: how far the tenant, or the user, that is farthest from its max-min fair share by weight is off, as a part of that share. The ideal divides what was admitted.
- **jain**: Jain's index over the tenants of a class, by the part that was done of what each offered.
- **given**: a class's part of what was admitted.
- **slack**: what a class did of what the others left of the backend.
- **tasks**: tasks done over what capacity allows.
- **behind**: nested calls that had to wait for slots of their own callers.
- **starved**: the longest time in which a class had work waiting and none was admitted.

What no wait room reaches, and why:

- **A cost is slots, and seldom what is meant.** Where a request says that it takes fifty slots and occupies one worker (S11c), the other slots stand idle while it runs. goodput_work is 0.04 to 0.63 under the fixed
  limit.
- **A full backend is slower.** Where requests inside slow each other down (B2, B4), a full backend answers about three times slower than a half-empty one, at the limit with the most
  throughput, whoever is admitted. p99 beside alone (S12, S13, S21) shows that, and not how long anybody waited; compare wait_p99.
- **Nobody is interrupted.** Critical work that finds a full gate waits for the next slot. On B1, where two handlers run to completion at a time, it waits for those before
  it. p99 is 1.3 times that of having the machine to itself for 0.6 of the load (S12, fixed). Less needs slots that stand idle. A gate that sheds background work from
  half of the load on brings 1.25 times and leaves 44 %% of the rest undone.
- **The default limit has to climb,** from the 50 slots that half of the load needed to the 100 of B3. Meanwhile the small tenants beside sixteen floods wait for fewer slots
  than they need, and 0.05 %% of them are refused (S13b).
- **Shares of time (S14c) are shares of slot time.** Where more slots are given out than are worked on at once (B1; the default on B3), waiting inside counts as well.
- **Some requests are too long.** On B4 two or three requests in a thousand need longer than their deadline of 5 s inside a full backend, though nobody is refused. So served there is not 1.
- **A long request keeps its core.** Where a request in a hundred is fifty times the others and runs to completion (S11d on B1), it keeps one core of two for 67 ms. That is the p99 of the rest. A gate that is told
  the cost afterwards shares by cost, but nobody is interrupted.
- **Exempt work passes the gate, not the backend.** Behind a limit above what the backend works on at once (default on B1 and B3) it stands in the backend's queue.

## Over time

%s
## What the default misses

%s
## All figures

%s`

// limitPage is docs/scoreboard/README.md.
func limitPage(cells []Cell) string {
	return fmt.Sprintf(readme, Tally(cells), gallery(), Missed(cells, "default"), table(cells, Controllers))
}

// limitTally is what the command says in the end.
func limitTally(cells []Cell) string {
	return Tally(cells) + "\ngoals reached: " + Reached(cells, "default")
}

// gallery shows the plots.
func gallery() string {
	var b strings.Builder
	for i := range plots {
		p := &plots[i]
		fmt.Fprintf(&b, "![%s on %s: %s](plots/%s.svg)\n\n", p.row, p.backend, p.about, p.name())
	}
	return b.String()
}

// Reached says in a line how many goals a column reached.
func Reached(cells []Cell, controller string) string {
	tuned, held := counts(cells, controller)
	return fmt.Sprintf("tuned %d of %d, held-out %d of %d", tuned.reached, tuned.goals, held.reached, held.goals)
}

// count is how many of some goals were reached.
type count struct{ reached, goals int }

func (c *count) add(reached bool) {
	c.goals++
	if reached {
		c.reached++
	}
}

func (c *count) String() string {
	if c.goals == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d", c.reached, c.goals)
}

// Tally says for each column how many of its goals it reached: those of the
// scenarios and backends that the default was tuned on, and those held out. The
// worst cell is the one with the least goodput beside the best fixed limit's.
func Tally(cells []Cell) string {
	rows := kit.Table{{"column", "goals reached, tuned on", "goals reached, held out", "worst cell: goodput over the best fixed limit's"}}
	for _, controller := range Controllers {
		tuned, held := counts(cells, controller)
		if tuned.goals+held.goals > 0 {
			rows = append(rows, []string{controller, tuned.String(), held.String(), worst(cells, controller)})
		}
	}
	return rows.Padded()
}

// quotaRow is the scenario about a quota, in which columns have no part: its goals are
// none of theirs.
const quotaRow = "S24"

// counts counts the goals of a column: of what it was tuned on, and the rest.
func counts(cells []Cell, controller string) (tuned, held count) {
	for i := range cells {
		c := &cells[i]
		switch {
		case c.Controller != controller || c.Reached == nil || c.Scenario == quotaRow:
		case c.HeldOut:
			held.add(*c.Reached)
		default:
			tuned.add(*c.Reached)
		}
	}
	return tuned, held
}

// worst finds the cell of a column with the least goodput over the oracle's.
func worst(cells []Cell, controller string) string {
	best := map[place]float64{} // of the oracle
	for i := range cells {
		if cells[i].Controller == "oracle" {
			best[cells[i].place()] = cells[i].Median
		}
	}
	least, text := 0.0, ""
	for i := range cells {
		c := &cells[i]
		reference := best[c.place()]
		if c.Controller != controller || !strings.HasPrefix(c.Metric, "goodput") || reference == 0 {
			continue
		}
		if ratio := c.Median / reference; text == "" || ratio < least {
			least, text = ratio, fmt.Sprintf("%.3f: %s on %s, %s", ratio, c.Scenario, c.Backend, c.what())
		}
	}
	return text
}

// Missed lists the goals that a column misses, with what it reaches instead and
// what the best fixed limit does.
func Missed(cells []Cell, controller string) string {
	var b strings.Builder
	for i := range cells {
		c := &cells[i]
		if c.Controller != controller || c.Reached == nil || *c.Reached {
			continue
		}
		fmt.Fprintf(&b, "- %s on %s, %s: %s, goal %s", c.Scenario, c.Backend, c.what(), sim.Format(c.Metric, c.Median), c.Goal)
		at := slices.IndexFunc(cells, func(o Cell) bool { return o.Controller == "oracle" && c.place() == o.place() })
		if at >= 0 {
			o := &cells[at]
			fmt.Fprintf(&b, "; the best fixed limit: %s", sim.Format(o.Metric, o.Median))
			if o.Reached != nil && !*o.Reached {
				b.WriteString(", a miss too")
			}
		}
		if c.HeldOut {
			b.WriteString("; held out")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// Table is the board as text that is Markdown as well: a line for each scenario,
// backend and metric, a column for each controller, and the limit that the default
// one set. A figure that misses its goal is marked with a cross.
func (b *Board) Table(cells []Cell) string { return table(cells, b.Columns) }

func table(cells []Cell, columns []string) string {
	all := kit.Table{slices.Concat([]string{"scenario", "on", "metric", "goal"}, columns, []string{"limit of default"})}
	for i := 0; i < len(cells); {
		first := cells[i]
		row := make([]string, len(all[0]))
		copy(row, []string{first.Scenario, first.Backend, first.what(), first.Goal})
		for ; i < len(cells) && cells[i].place() == first.place(); i++ {
			row[4+slices.Index(columns, cells[i].Controller)] = cells[i].figure()
			if cells[i].Controller == "default" {
				row[len(row)-1] = cells[i].limits()
			}
		}
		all = append(all, row)
	}
	return all.Padded()
}

// what names the metric with its stretch.
func (c *Cell) what() string {
	if c.Class != "" {
		return c.Metric + " of " + c.Class + " " + c.From + "-" + c.To
	}
	return c.Metric + " " + c.From + "-" + c.To
}

func (c *Cell) figure() string {
	text := fmt.Sprintf("%s (%s-%s)", sim.Format(c.Metric, c.Median), bare(c.Metric, c.Min), bare(c.Metric, c.Max))
	if c.fine() {
		text = fmt.Sprintf("%.4f (%.4f-%.4f)", c.Median, c.Min, c.Max)
	}
	if c.Alone != nil && *c.Alone > 0 {
		text += fmt.Sprintf(" = %.2f x", c.Median / *c.Alone)
	}
	if c.Reached != nil && !*c.Reached {
		text += " ✗"
	}
	return text
}

// limits is the limit over the cell's stretch.
func (c *Cell) limits() string {
	return fmt.Sprintf("%.0f (%.0f-%.0f)", c.Limit.Mean, c.Limit.Min, c.Limit.Max)
}

// bare is a figure without its unit.
func bare(metric string, v float64) string {
	text, _, _ := strings.Cut(sim.Format(metric, v), " ")
	return text
}
