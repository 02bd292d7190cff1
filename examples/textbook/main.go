// Command textbook is what introductions to admission control teach, as one program. It has rate,
// concurrency, load and priority gates in a row, a bounded queue, and a client that cooperates. Their
// code and their numbers are often wrong in the same places. So the program computes both, theirs and
// those of weir, and prints them beside each other.
//
// It runs in virtual time, by the gates that services use, and prints the same in every run.
// docs/explain/textbook.md tells what the numbers mean.
package main

import (
	"fmt"
	"io"
	"os"
	"text/tabwriter"
)

func main() { textbook(os.Stdout) }

// textbook prints all tables.
func textbook(w io.Writer) {
	for i, chapter := range []func() table{
		rate, concurrency, priorities, row, queue, firstStep, lastingOverload, outage, retries,
	} {
		if i > 0 {
			fmt.Fprintln(w)
		}
		chapter().print(w)
	}
}

// table is a title, a head and rows.
type table struct {
	title string
	rows  [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t table) print(w io.Writer) {
	fmt.Fprintln(w, t.title)
	columns := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range t.rows {
		for i, cell := range row {
			if i > 0 {
				fmt.Fprint(columns, "\t")
			}
			fmt.Fprint(columns, cell)
		}
		fmt.Fprintln(columns)
	}
	columns.Flush() // what it writes to is what main writes to
}
