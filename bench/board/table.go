package board

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/weir-go/weir/sim"
)

// WriteJSON writes one object a cell, as a list, one a line.
func WriteJSON(w io.Writer, cells []Cell) error {
	for i, c := range cells {
		data, err := json.Marshal(c)
		if err != nil {
			return err
		}
		open := ",\n"
		if i == 0 {
			open = "[\n"
		}
		if _, err := fmt.Fprintf(w, "%s%s", open, data); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, "\n]\n")
	return err
}

// Table is the board as text that is Markdown as well: a line for each scenario,
// backend and metric, a column for each controller, and the limit that the default
// one set. A figure that misses its goal is marked with a cross.
func Table(cells []Cell) string { return tableOf(cells, Controllers) }

// tableOf is Table for a board with other columns.
func tableOf(cells []Cell, columns []string) string {
	heads := append([]string{"scenario", "on", "metric", "goal"}, columns...)
	rows := [][]string{append(heads, "limit of default")}
	for i := 0; i < len(cells); {
		first := cells[i]
		row := []string{first.Scenario, first.Backend, first.what(), first.Goal}
		row = append(row, make([]string, len(columns)+1)...)
		for ; i < len(cells) && cells[i].sameLine(&first); i++ {
			row[4+slices.Index(columns, cells[i].Controller)] = cells[i].figure()
			if cells[i].Controller == "default" {
				row[len(row)-1] = cells[i].limits()
			}
		}
		rows = append(rows, row)
	}
	return align(rows)
}

func (c *Cell) sameLine(o *Cell) bool {
	return c.row == o.row && c.Backend == o.Backend && c.line == o.line
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

// align pads the columns.
func align(rows [][]string) string {
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, text := range row {
			width[i] = max(width[i], utf8.RuneCountInString(text))
		}
	}
	var b strings.Builder
	for n, row := range rows {
		for i, text := range row {
			fmt.Fprintf(&b, "| %s%s ", text, strings.Repeat(" ", width[i]-utf8.RuneCountInString(text)))
		}
		b.WriteString("|\n")
		if n == 0 {
			for _, w := range width {
				b.WriteString("| " + strings.Repeat("-", w) + " ")
			}
			b.WriteString("|\n")
		}
	}
	return b.String()
}
