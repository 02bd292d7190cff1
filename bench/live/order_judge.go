package live

import "slices"

// judgeOrder compares the cells of part three with their goals, and puts them in
// the order of the rows.
func (r *Results) judgeOrder() {
	var sorted []*OrderCell
	for _, row := range orderRows() {
		for _, guard := range row.guards {
			for i := range row.classes {
				if cell := r.ordered(row.id, guard, row.classes[i].name); cell != nil {
					cell.judge(row.classes[i].goals)
					sorted = append(sorted, cell)
				}
			}
		}
	}
	r.Order = sorted
}

// ordered finds a cell of part three, nil if it was not measured.
func (r *Results) ordered(row, guard, class string) *OrderCell {
	for _, c := range r.Order {
		if c.Row == row && c.Guard == guard && c.Class == class {
			return c
		}
	}
	return nil
}

func (c *OrderCell) judge(goals []orderGoal) {
	c.Goals = nil
	for _, g := range goals {
		if len(c.Rounds) > 0 {
			c.Goals = append(c.Goals, g.judge(c))
		}
	}
}

func (g *orderGoal) judge(c *OrderCell) Verdict {
	v := c.figures(g.value)
	verdict := Verdict{What: g.what, Median: median(v), Min: v[0], Max: v[len(v)-1], Bound: g.bound, AtMost: g.most, Every: g.every}
	figure := verdict.Median
	if g.every {
		figure = verdict.Max
	}
	verdict.Reached = figure >= g.bound
	if g.most {
		verdict.Reached = figure <= g.bound
	}
	return verdict
}

// figures returns a figure of each round, in ascending order.
func (c *OrderCell) figures(of func(*OrderFigures) float64) []float64 {
	var all []float64
	for i := range c.Rounds {
		all = append(all, of(&c.Rounds[i]))
	}
	slices.Sort(all)
	return all
}
