package live

import (
	"fmt"
	"strings"
)

// order writes part three.
func (r *Results) order(b *strings.Builder) {
	if len(r.Order) == 0 {
		return
	}
	fmt.Fprintf(b, `
## Who goes first

The gateway with a file, before %s (%s). First come only those that must not suffer, then all; the figures are of then. weir and fixed
are told who asks by headers, "%s" is not. Clients wait %v. p99: latency of what was not refused, in ms. share error: by how much of its
share by weight the class is off.

`, lawPool200.Name, lawPool200.String(), guardUntold, orderPatience)
	for _, row := range orderRows() {
		fmt.Fprintf(b, "- %s: %s\n", row.id, row.about)
	}
	fmt.Fprintf(b, "\n| row | guard | class | served | refused %% | p99 | alone | share error | goodput of all | goals |\n")
	fmt.Fprintf(b, "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, c := range r.Order {
		c.line(b)
	}
}

func (c *OrderCell) line(b *strings.Builder) {
	fmt.Fprintf(b, "| %s | %s | %s |", c.Row, c.Guard, c.Class)
	if len(c.Rounds) == 0 {
		fmt.Fprintf(b, " void |%s\n", strings.Repeat(" |", 6))
		return
	}
	for _, column := range []struct {
		verb string
		of   func(*OrderFigures) float64
	}{
		{"%.4f", served},
		{"%.1f", func(f *OrderFigures) float64 { return 100 * f.Refused }},
		{"%.0f", p99},
		{"%.0f", func(f *OrderFigures) float64 { return f.Alone }},
		{"%.3f", offShare},
		{"%.2f", func(f *OrderFigures) float64 { return f.Goodput }},
	} {
		fmt.Fprintf(b, " %s |", spread(c.figures(column.of), column.verb))
	}
	fmt.Fprintf(b, " %s |\n", verdicts(c.Goals))
}
