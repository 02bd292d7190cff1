package board

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/sim"
)

// readme is docs/scoreboard/README.md: what the columns and figures are, and with
// what bounds to read them. The verbs are the tally, the plots, the misses and
// the table.
const readme = `# Scoreboard

How much useful work each limiter gets done, on every scenario and backend, in virtual time. Use it to compare limiters, and to see where the default fails.
[live.md](live.md) shows real servers, [peers.md](peers.md) shows limiters of other projects.

` + "`" + `make scoreboard` + "`" + ` writes this page. The same figures are in scoreboard.json, one object a cell, and the plots are in plots/. Each figure is
the median over the seeds, with the smallest and the largest in brackets. There are five seeds, or three where a run is long. A cross marks a missed goal.
The scenarios and backends are the files in scenarios/; each says what it is about.

%s
The limits and thresholds of the other columns, and ` + "`knee`" + `, were tuned on S1, S2, S3, S4, S7, S9 and S11, on the backends B1 to B4. All other cells are held out: nothing was changed for them.
"held_out" marks them in the files. The default, ` + "`belief`" + `, was compared on the whole board while it was written. For it only other seeds are held out.

The columns:

- **none**: no gate.
- **oracle**: the best fixed limit for this very scenario and backend, found by trying many limits and waits. While a queue stands, it serves the newest
  first. Where a goal is a part of what the oracle reaches, it is the best for that figure. It knows everything beforehand, but its limit never moves. So a
  limit that moves can be better.
- **fixed**: a limit tuned once for the backend.
- **aimd**: additive increase, multiplicative decrease, starting from 20. Its threshold is half the deadline of the backend.
- **default**: what a gate does when nobody configures it, the same for every backend. The last column is the limit it set: mean (smallest to largest).

S24 is about a quota, which stands before the gate of each column but none. It promises 500 requests at once and 5 a second, whatever the backend can do.
No column has a part in its goals, so they are not counted above.

The figures:

- **goodput** is good answers over what the capacity could have answered. **goodput_work** is the same by work.
- **settle** is the time until goodput stays at 0.95 of load or capacity, whichever is less (S7 and S8b: 0.9). Anything shorter than the time of 400
  requests is chance.
- **calm** is the time until less than 1 %% is refused. **refill** is the time until the cache answers 90 %%.
- **over_limit** is by how much an admission brought the backend over the limit, at most.
- **limit_rise** is the highest limit of the stretch over the one it began with.

A refusal costs nothing in virtual time, so the bound in S2 is 1.

What no fixed limit reaches:

- S3, calm: after a step back, the room still has work that newest-first left behind. It leaves when its longest wait is over.
- S4b: service times are exponential, and a fifth of the capacity is left. However short the wait, some requests need longer than their deadline inside a
  full backend: a tenth of them on B2, more on B4.
- S18: on B4, at 53 requests a second, filling an empty backend takes a second. What finishes in the first second began before it.

AIMD adds one slot a second and starts from 20. The 100 slots that B3 needs are 80 s away, longer than most runs.

The fixed limit on B1 serves in order of arrival. That refuses less near saturation (S9b), but under overload it costs a latency of half the deadline.
Newest first does the reverse.

## Who goes first

` + "`" + `make scoreboard-order` + "`" + ` writes order.md and order.json: priorities, fairness between users and tenants, exemption and nested calls, on B1 to B4.
` + "`" + `make scoreboard-order-peers` + "`" + ` writes order-peers.md: limiters of other projects that rank or share, in the same scenarios. The figures below contain none of
it. Work that names nobody is served as if there were no tenants and no priorities.

The columns there:

- **none**: no gate.
- **untold**: the default gate without knowing who asks: no tenant, user, priority, exemption or cost. It shows what not knowing costs.
- **fixed** and **default**: gates that know who asks.

All figures are measured from outside, by what comes to the gate and what it admits:

- **served** of a class: the part of what it offered that was answered in time, with all its calls.
- **refused**: refusals over attempts.
- **p99** of a class, beside what it has alone under the same gate with the same arrivals (` + "`" + `= 1.31 x` + "`" + `). 0 ms means that there was no
  latency to measure. **wait_p99** is the part spent in the wait room.
- **inversions**: admissions while work of a higher priority waited. What the lower priority is guaranteed does not count.
- **share_error**, **user_error**: how far one tenant, or one user, is off its max-min fair share by weight, as a part of that share. The one that is
  farthest off counts. The ideal divides what was admitted.
- **jain**: Jain's index over the tenants of a class, by the part of its work that each got done.
- **given**: a class's part of what was admitted.
- **slack**: what a class did of what the others left of the backend.
- **tasks**: tasks done over what the capacity allows.
- **behind**: nested calls that had to wait for slots of their own callers.
- **starved**: the longest time in which work of a class waited and none was admitted.

What no wait room reaches, and why:

- **A cost is slots, and seldom what is meant.** In S11c a request says that it takes fifty slots, and occupies one worker. The other slots stand idle
  while it runs. goodput_work is 0.04 to 0.63 under the fixed limit.
- **A full backend is slower.** On B2 and B4, requests inside slow each other down. At the limit with the most throughput, a full backend answers about three
  times slower than a half-empty one, whoever is admitted. p99 beside alone (S12, S13, S21) shows that, and not how long anybody waited. Compare wait_p99.
- **Nobody is interrupted.** Critical work that finds a full gate waits for the next slot. On B1 two handlers run to completion at a time, and it waits for
  those before it. Its p99 is 1.3 times that of having the machine to itself for 0.6 of the load (S12, fixed). Less needs idle slots: a gate that sheds
  background work from half of the load on brings 1.25 times, and leaves 44 %% of the rest undone.
- **The default limit has to climb** from the 50 slots that half of the load needed to the 100 of B3. Meanwhile the small tenants beside sixteen floods have
  fewer slots than they need, and 0.05 %% of them are refused (S13b).
- **Shares of time (S14c) are shares of slot time.** More slots may be given out than are worked on at once (B1; the default on B3). Then waiting inside
  counts as well.
- **Some requests are too long.** On B4 two or three requests in a thousand need longer than their deadline of 5 s inside a full backend, though nobody is
  refused. So served is not 1 there.
- **A long request keeps its core.** In S11d on B1, one request in a hundred is fifty times the others and runs to completion. It keeps one core of two for
  67 ms, and that is the p99 of the rest. A gate that learns the cost afterwards shares by cost, but nobody is interrupted.
- **Exempt work passes the gate, not the backend.** A limit may be above what the backend works on at once (default on B1 and B3). Then exempt work stands
  in the backend's queue.

## Over time

%s
## What the default misses

%s
## All figures

%s`

// limitPage is docs/scoreboard/README.md.
func limitPage(cells []Cell) string {
	return fmt.Sprintf(readme, Tally(cells), gallery(), missed(cells, "default"), table(cells, controllers))
}

// limitTally is what the command says in the end.
func limitTally(cells []Cell) string {
	return Tally(cells) + "\ngoals reached: " + reached(cells, "default")
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

// reached says in a line how many goals a column reached.
func reached(cells []Cell, controller string) string {
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
	for _, controller := range controllers {
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
	best := oracles(cells)
	least, text := 0.0, ""
	for i := range cells {
		c := &cells[i]
		reference := best[c.place()]
		if c.Controller != controller || !strings.HasPrefix(c.Metric, "goodput") || reference == nil || reference.Median == 0 {
			continue
		}
		if ratio := c.Median / reference.Median; text == "" || ratio < least {
			least, text = ratio, fmt.Sprintf("%.3f: %s on %s, %s", ratio, c.Scenario, c.Backend, c.what())
		}
	}
	return text
}

// oracles are the cells of the oracle.
func oracles(cells []Cell) map[place]*Cell {
	all := map[place]*Cell{}
	for i := range cells {
		if c := &cells[i]; c.Controller == "oracle" {
			all[c.place()] = c
		}
	}
	return all
}

// missed lists the goals that columns miss, with what they reach instead and what the
// best fixed limit does.
func missed(cells []Cell, columns ...string) string {
	var b strings.Builder
	best := oracles(cells)
	for i := range cells {
		c := &cells[i]
		if !slices.Contains(columns, c.Controller) || c.Reached == nil || *c.Reached {
			continue
		}
		who := c.Scenario + " on " + c.Backend
		if len(columns) > 1 {
			who += ", " + c.Controller
		}
		fmt.Fprintf(&b, "- %s, %s: %s, goal %s", who, c.what(), strings.TrimSuffix(c.figure(), " ✗"), c.Goal)
		if o := best[c.place()]; o != nil {
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
	return cmp.Or(b.String(), "Nothing.\n")
}

// Table is the board as text that is Markdown as well: a line for each scenario,
// backend and metric, a column for each controller, and the limit that the default
// one set. A figure that misses its goal is marked with a cross.
func (b *board) Table(cells []Cell) string { return table(cells, b.Columns) }

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
