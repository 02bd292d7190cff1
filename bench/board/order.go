package board

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/weir-go/weir/bench/kit"
	"github.com/weir-go/weir/sim"
)

// OrderRows are the scenario files of the board about who goes first, in order.
var OrderRows = []string{"S11c", "S11d", "S12", "S12b", "S13", "S13b", "S13c", "S14", "S14b", "S14c", "S15", "S21", "S22", "S23"}

// OrderColumns are its columns, in order:
//
//	none     no gate at all
//	untold   the default gate, which is not told who asks: no tenant, user,
//	         priority, exemption or cost, and nested calls are calls like any other
//	fixed    a limit tuned once for the backend, which is told
//	default  the default gate, which is told
var OrderColumns = []string{"none", "untold", "fixed", "default"}

// fillOrder runs the group under each column, and what its goals compare with: a
// class when it is alone, under the same column.
func (g *group) fillOrder(ctx context.Context, opts *Options) ([]Cell, error) {
	var cells []Cell
	for _, column := range OrderColumns {
		if !opts.Controllers.Has(column) {
			continue
		}
		s, simOpts, err := g.under(column)
		if err != nil {
			return nil, err
		}
		simOpts.Seeds = opts.Seeds
		r, err := sim.Run(ctx, s, simOpts)
		if err != nil {
			return nil, err
		}
		if opts.Report != nil {
			opts.Report(g.backend, column, r)
		}
		for _, goal := range g.scenario.Goals {
			if !goal.AppliesTo(g.backend) {
				continue
			}
			c, err := g.beside(ctx, goal, s, simOpts, column, r)
			if err != nil {
				return nil, err
			}
			cells = append(cells, c)
		}
	}
	return cells, nil
}

// beside is a cell whose goal may be relative to what a class has when it is
// alone.
func (g *group) beside(ctx context.Context, goal sim.Goal, s *sim.Scenario, opts sim.Options, column string, r *sim.Report) (Cell, error) {
	if goal.TimesAlone == nil {
		return g.cell(goal, column, r), nil
	}
	report, err := sim.Run(ctx, s.Only(goal.Class, goal.AloneAt), opts)
	if err != nil {
		return Cell{}, err
	}
	alone := report.Spread(goal).Median
	c := g.cell(goal.Beside(alone), column, r)
	c.Alone = &alone
	c.Goal = fmt.Sprintf("<= %g x alone", *goal.TimesAlone)
	return c, nil
}

// under is the scenario as a column runs it.
func (g *group) under(column string) (*sim.Scenario, sim.Options, error) {
	var opts sim.Options
	named := column
	if column == "untold" || column == "default" {
		named = "none"
	}
	s, err := g.scenario.With(g.backend, named)
	if err != nil {
		return nil, opts, err
	}
	if column == "untold" || column == "default" {
		s, err = s.WithPolicy(DefaultPolicy())
	}
	opts.Anonymous = column == "untold"
	return s, opts, err
}

// fine reports whether what matters of the figure is in its fourth digit.
func (c *Cell) fine() bool {
	switch c.Metric {
	case "served", "given":
		return c.Class != ""
	case "share_error", "user_error":
		return true
	}
	return false
}

// fineBounds writes a goal's bounds as exactly as it has them.
func fineBounds(g *sim.Goal) string {
	var parts []string
	if g.Min != nil {
		parts = append(parts, fmt.Sprintf(">= %g", *g.Min))
	}
	if g.Max != nil {
		parts = append(parts, fmt.Sprintf("<= %g", *g.Max))
	}
	return strings.Join(parts, ", ")
}

// orderReadme heads docs/scoreboard/order.md. The verbs are the tally, what is
// missed and the table.
const orderReadme = `# Who goes first

Written by ` + "`make scoreboard-order`" + `; the same figures are in order.json, one object a cell. Virtual time; each figure is the median over the seeds,
with the least and the largest in brackets. A cross marks a missed goal. The scenarios are the files in scenarios/, with what each is about; README.md
says how to read the figures.

%s
## What is missed

%s
## All figures

%s`

// orderPage is docs/scoreboard/order.md.
func orderPage(cells []Cell) string {
	return fmt.Sprintf(orderReadme, orderTally(cells), missedOrder(cells), table(cells, OrderColumns))
}

// missedOrder lists the goals that the columns which are told who asks miss.
func missedOrder(cells []Cell) string {
	var text string
	for i := range cells {
		c := &cells[i]
		if !slices.Contains([]string{"fixed", "default"}, c.Controller) || c.Reached == nil || *c.Reached {
			continue
		}
		text += fmt.Sprintf("- %s on %s, %s, %s: %s, goal %s\n", c.Scenario, c.Backend, c.Controller, c.what(), strings.TrimSuffix(c.figure(), " ✗"), c.Goal)
	}
	if text == "" {
		return "Nothing.\n"
	}
	return text
}

// orderTally says for each column how many of its goals it reached.
func orderTally(cells []Cell) string {
	rows := kit.Table{{"column", "goals reached"}}
	for _, column := range OrderColumns {
		tuned, held := counts(cells, column)
		rows = append(rows, []string{column, (&count{tuned.reached + held.reached, tuned.goals + held.goals}).String()})
	}
	return rows.Padded()
}
