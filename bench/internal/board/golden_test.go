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

// A page repeats some figures of who goes first, on B2 and B3: told who asks, and not.
func TestPageAboutTheOrder(t *testing.T) {
	cells, err := order.Read(docs)
	if err != nil {
		t.Fatal(err)
	}
	find := func(scenario, metric, class, controller, format string) string {
		var both []string
		for _, backend := range []string{"B2", "B3"} {
			for _, c := range cells {
				if c.Scenario == scenario && c.Backend == backend && c.Controller == controller && c.Metric == metric && c.Class == class {
					both = append(both, fmt.Sprintf(format, c.Median))
				}
			}
		}
		return strings.Join(both, ", ")
	}
	tuned, held := counts(cells, "default")
	tunedLimit, heldLimit := counts(cells, "fixed")
	want := []string{
		fmt.Sprintf("\n%d of %d goals of that board are reached.", tuned.reached+held.reached, tuned.goals+held.goals),
		fmt.Sprintf("With a limit tuned for each backend %d are.", tunedLimit.reached+heldLimit.reached),
	}
	for _, r := range []struct{ name, scenario, metric, class, told, not string }{
		{"critical work of 0.6 of the capacity beside twelve times as much other work: in time", "S12", "served", "critical", "%.4f", "%.2f"},
		{"a hundred small tenants beside one that sends ten times the capacity: theirs in time", "S13", "served", "victims", "%.4f", "%.2f"},
		{"beside sixteen such", "S13b", "served", "victims", "%.4f", "%.2f"},
		{"weights 1:2:4, one tenant sends a hundred times as much: error of the shares", "S14", "share_error", "", "%.4f", "%.1f"},
		{"tasks of four calls at twice the capacity, later calls first: done", "S15", "tasks", "task", "%.2f", "%.2f"},
		{"times that work of a lower priority went first", "S12", "inversions", "", "%.0f", "%.0f"},
	} {
		told, not := find(r.scenario, r.metric, r.class, "default", r.told), find(r.scenario, r.metric, r.class, "untold", r.not)
		want = append(want, fmt.Sprintf("\n| %s | %s | %s |\n", r.name, told, not))
	}
	page, err := os.ReadFile(filepath.Join(docs, "..", "benchmarks", "order.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range want {
		if !strings.Contains(string(page), w) {
			t.Errorf("docs/benchmarks/order.md does not say %q", w)
		}
	}
}
