package board

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/weir-go/weir/sim"
)

// orderRows are the scenario files of the board about who goes first, in order.
var orderRows = []string{"S11c", "S11d", "S12", "S12b", "S13", "S13b", "S13c", "S14", "S14b", "S14c", "S15", "S21", "S22", "S23"}

// orderColumns are its columns, in order:
//
//	none     no gate at all
//	untold   the default gate, which is not told who asks: no tenant, user,
//	         priority, exemption or cost, and nested calls are calls like any other
//	fixed    a limit tuned once for the backend, which is told
//	default  the default gate, which is told
var orderColumns = []string{"none", "untold", "fixed", "default"}

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
//
//go:embed order.md.tmpl
var orderReadme string

// orderPage is docs/scoreboard/order.md.
func orderPage(cells []Cell) string {
	return fmt.Sprintf(orderReadme, orderTally(cells), missed(cells, "fixed", "default"), table(cells, orderColumns))
}

func orderTally(cells []Cell) string { return plainTally(cells, orderColumns) }
