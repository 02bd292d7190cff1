package board

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-go/weir/sim"
)

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
	rows := [][]string{{"column", "goals reached, tuned on", "goals reached, held out", "worst cell: goodput over the best fixed limit's"}}
	for _, controller := range Controllers {
		tuned, held := counts(cells, controller)
		if tuned.goals+held.goals > 0 {
			rows = append(rows, []string{controller, tuned.String(), held.String(), worst(cells, controller)})
		}
	}
	return align(rows)
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
		at := slices.IndexFunc(cells, func(o Cell) bool { return o.Controller == "oracle" && c.sameLine(&o) })
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
