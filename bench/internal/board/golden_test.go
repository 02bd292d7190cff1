package board

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-go/weir/bench/internal/kit"
)

// The committed pages are what the committed figures say: to write them again
// changes nothing.
func TestCommittedPages(t *testing.T) {
	for _, b := range []*board{Limits, order, lags} {
		dir := t.TempDir()
		committed, err := b.Read(docs)
		if err != nil {
			t.Fatal(err)
		}
		cells, err := b.merged(committed)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Write(dir, cells); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{b.page, b.data} {
			want, err := os.ReadFile(filepath.Join(docs, name))
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("docs/scoreboard/%s is not what its figures say", name)
			}
		}
	}
}

// Other pages repeat what the default reaches on the committed board. The rows that begin with a
// limit far too high, or in which work makes other work fail, are apart there.
func TestPagesAboutTheBoard(t *testing.T) {
	cells, err := Limits.Read(docs)
	if err != nil {
		t.Fatal(err)
	}
	var shares []float64
	best := oracles(cells)
	for _, c := range cells {
		apart := strings.HasPrefix(c.Scenario, "first-") || strings.HasPrefix(c.Scenario, "conflict")
		if o := best[c.place()]; c.Controller == "default" && strings.HasPrefix(c.Metric, "goodput") && !apart && o != nil && o.Median > 0 {
			shares = append(shares, c.Median/o.Median)
		}
	}
	tuned, held := counts(cells, "default")
	goodput := kit.SpreadOf(shares)
	for _, tt := range [][2]string{
		{"benchmarks.md", fmt.Sprintf("| weir, default | %v | %v | %.2f |", &tuned, &held, goodput.Min)},
		{"reference/controllers.md", fmt.Sprintf("it reaches %d of %d goals.", tuned.reached+held.reached, tuned.goals+held.goals)},
		{"reference/controllers.md", fmt.Sprintf("Its goodput is %.3f of the best fixed limit's in the median.", goodput.Median)},
		{"reference/controllers.md", fmt.Sprintf("In the worst cell it is %.2f,", goodput.Min)},
	} {
		page, err := os.ReadFile(filepath.Join(docs, "..", tt[0]))
		if err != nil {
			t.Fatal(err)
		}
		if lines := strings.ReplaceAll(string(page), "\n", " "); !strings.Contains(lines, tt[1]) {
			t.Errorf("docs/%s does not say %q", tt[0], tt[1])
		}
	}
}
