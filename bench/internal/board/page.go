package board

import (
	"cmp"
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/sim"
)

// readme is docs/scoreboard/README.md: what the columns and figures are, and with
// what bounds to read them. The verbs are the tally, the plots, the misses and
// the table.
//
//go:embed readme.md.tmpl
var readme string

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

// Tally says for each column how many of its goals it reached. It counts those that the
// default was tuned on apart from those held out. The worst cell is the one with the
// least goodput beside the best fixed limit's.
func Tally(cells []Cell) string {
	rows := kit.Table{{"column", "goals reached, tuned on", "goals reached, held out", seedsDiffer, "worst cell: goodput over the best fixed limit's"}}
	for _, controller := range controllers {
		tuned, held := counts(cells, controller)
		if tuned.goals+held.goals > 0 {
			rows = append(rows, []string{controller, tuned.String(), held.String(), disputed(cells, controller), worst(cells, controller)})
		}
	}
	return rows.Padded()
}

// plainTally says for each of some columns how many of its goals it reached.
func plainTally(cells []Cell, columns []string) string {
	rows := kit.Table{{"column", "goals reached", seedsDiffer}}
	for _, column := range columns {
		tuned, held := counts(cells, column)
		if all := (count{tuned.reached + held.reached, tuned.goals + held.goals}); all.goals > 0 {
			rows = append(rows, []string{column, all.String(), disputed(cells, column)})
		}
	}
	return rows.Padded()
}

const seedsDiffer = "goals that some seeds reach and others miss"

// disputed counts the goals of a column that some seeds reach and others miss. The median reaches
// some of them, and with other seeds it would be others.
func disputed(cells []Cell, column string) string {
	n := 0
	for i := range cells {
		c := &cells[i]
		if c.Controller != column || c.Reached == nil || c.Scenario == quotaRow {
			continue
		}
		if goal := (sim.Goal{Min: c.AtLeast, Max: c.AtMost}); goal.Holds(c.Min) != goal.Holds(c.Max) {
			n++
		}
	}
	return strconv.Itoa(n)
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

// Table is the board as text that is Markdown as well. It has a line for each scenario,
// backend and metric, and a column for each controller. Another column is the limit that
// the default one set. A figure that misses its goal is marked with a cross.
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
