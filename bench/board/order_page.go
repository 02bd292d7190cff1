package board

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

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
	return fmt.Sprintf(orderReadme, orderTally(cells), missedOrder(cells), tableOf(cells, OrderColumns))
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
	rows := [][]string{{"column", "goals reached"}}
	for _, column := range OrderColumns {
		tuned, held := counts(cells, column)
		rows = append(rows, []string{column, (&count{tuned.reached + held.reached, tuned.goals + held.goals}).String()})
	}
	return align(rows)
}

// writeOrder puts the figures into a directory, as data and as a page.
func writeOrder(dir string, cells []Cell) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var data bytes.Buffer
	if err := WriteJSON(&data, cells); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "order.json"), data.Bytes(), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "order.md"), []byte(orderPage(cells)), 0o644)
}
