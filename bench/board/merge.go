package board

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/weir-go/weir/sim"
)

// order sorts cells as the table shows them.
func order(cells []Cell) { orderBy(cells, Controllers) }

func orderBy(cells []Cell, columns []string) {
	slices.SortStableFunc(cells, func(a, b Cell) int {
		return cmp.Or(cmp.Compare(a.row, b.row), cmp.Compare(a.Backend, b.Backend), cmp.Compare(a.line, b.line),
			cmp.Compare(slices.Index(columns, a.Controller), slices.Index(columns, b.Controller)))
	})
}

// merged puts new cells in place of the old ones for the same figure and column,
// and drops old ones that the scenarios no longer have.
func merged(old, fresh []Cell) ([]Cell, error) {
	all := slices.Clone(fresh)
	type key struct {
		place
		controller string
	}
	known := map[key]bool{}
	for i := range fresh {
		known[key{fresh[i].place(), fresh[i].Controller}] = true
	}
	scenarios := map[string]*sim.Scenario{}
	for _, name := range Rows {
		s, err := sim.Load(name)
		if err != nil {
			return nil, fmt.Errorf("scoreboard: %w", err)
		}
		scenarios[name] = s
	}
	for _, c := range old {
		if !known[key{c.place(), c.Controller}] && c.find(scenarios[c.Scenario]) {
			all = append(all, c)
		}
	}
	order(all)
	return all, nil
}

// find sets where in the table the cell belongs, and reports false if nowhere.
func (c *Cell) find(s *sim.Scenario) bool {
	c.row = slices.Index(Rows, c.Scenario)
	if s == nil || !slices.Contains(s.On, c.Backend) {
		return false
	}
	for line := range s.Goals {
		g := &s.Goals[line]
		from, to := g.Stretch(s)
		if g.AppliesTo(c.Backend) && c.Metric == g.Metric && c.Class == g.Class && c.From == from.String() && c.To == to.String() {
			c.line = line
			return true
		}
	}
	return false
}
