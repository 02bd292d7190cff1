package board

import (
	"context"
	"path/filepath"
	"testing"
)

// reduced are the cells that every run of the tests looks at: the quick ones of
// each kind of trouble.
var reduced = []struct {
	rows, backends []string
}{
	{[]string{"S1", "S3", "S4", "S7"}, []string{"B2", "B4", "H2", "H5"}},
	{[]string{"S1", "S7", "S24"}, []string{"B1", "B3"}},
	{[]string{"S2", "S4b", "S8", "S8b", "S9b", "S10", "S11", "S17", "S28", "slower", "mix"}, []string{"B4"}},
	{[]string{"S5", "S5b", "S18", "S27", "S28b", "brownout", "failfast"}, []string{"B2"}},
	{[]string{"steps-800", "steps-1500"}, []string{"P1"}},
	{[]string{"T-half", "T-tenth"}, []string{"T2"}},
}

// The committed board is the list of what the default reaches. The same seeds
// give the same figures, so a goal that it reaches there and not here has been
// lost by a change of the code.
func TestNoGoalIsLost(t *testing.T) {
	committed := readKnown(filepath.Join("..", "..", "docs", "scoreboard"))
	if len(committed) == 0 {
		t.Fatal("docs/scoreboard/scoreboard.json cannot be read; run make scoreboard")
	}
	goals := map[place]*Cell{}
	for i := range committed {
		c := &committed[i]
		if c.Controller == "default" && c.Reached != nil {
			goals[c.place()] = c
		}
	}
	if len(goals) == 0 {
		t.Fatal("the committed board has no column default; run make scoreboard")
	}
	for _, part := range reduced {
		cells, err := Run(context.Background(), Options{
			Rows: part.rows, Backends: part.backends, Controllers: []string{"default"}, Known: committed,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cells {
			if c.Reached == nil {
				continue
			}
			was := goals[c.place()]
			if was == nil {
				t.Errorf("%s on %s, %s: not on the committed board; run make scoreboard", c.Scenario, c.Backend, c.what())
			} else if *was.Reached && !within(c.Median, was) {
				t.Errorf("%s on %s, %s: %.4g, was %.4g; the goal %s is lost", c.Scenario, c.Backend, c.what(), c.Median, was.Median, was.Goal)
			}
		}
	}
}

func within(v float64, goal *Cell) bool {
	return (goal.AtLeast == nil || v >= *goal.AtLeast) && (goal.AtMost == nil || v <= *goal.AtMost)
}
