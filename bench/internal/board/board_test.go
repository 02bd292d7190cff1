package board

import (
	"bytes"
	"context"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/weir-go/weir/sim"
)

// The proof of the core, before any clever controller: a fixed limit that was
// tuned once for its backend, with the wait room, is within two points of the
// best fixed limit for the very scenario.
func TestFixedReachesTheOracle(t *testing.T) {
	t.Parallel()
	parts := []struct {
		row, metric string
		backends    []string
		requests    int
	}{
		{"S1", "goodput", []string{"B2", "B4"}, 0},
		{"S2", "goodput", []string{"B4"}, 0},
		{"S9", "served", []string{"B1", "B3"}, 20_000},
		{"S9b", "served", []string{"B1", "B2", "B3", "B4"}, 20_000},
	}
	for _, part := range parts {
		cells, err := Limits.Run(context.Background(), Options{
			Rows: []string{part.row}, Backends: part.backends,
			Controllers: []string{"oracle", "fixed"}, Seeds: []uint64{1}, Requests: part.requests,
		})
		if err != nil {
			t.Fatal(err)
		}
		median := map[[2]string]float64{}
		for _, c := range cells {
			if c.Metric == part.metric {
				median[[2]string{c.Backend, c.Controller}] = c.Median
			}
		}
		for _, backend := range part.backends {
			fixed, oracle := median[[2]string{backend, "fixed"}], median[[2]string{backend, "oracle"}]
			if oracle < 0.45 || fixed < oracle-0.02 {
				t.Errorf("%s on %s: %s is %.3f, the oracle's %.3f", part.row, backend, part.metric, fixed, oracle)
			}
		}
	}
}

// Without a gate every backend collapses under twice its capacity; if this
// fails, the scoreboard measures nothing.
func TestWithoutAGateNothingIsServed(t *testing.T) {
	t.Parallel()
	cells, err := Limits.Run(context.Background(), Options{Rows: []string{"S1"}, Backends: []string{"B2", "B4"}, Controllers: []string{"none"}, Seeds: []uint64{1}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cells {
		if c.Metric == "goodput" && (c.Median > 0.1 || *c.Reached) {
			t.Errorf("%s on %s without a gate: goodput %.3f, want next to nothing", c.Scenario, c.Backend, c.Median)
		}
	}
}

func TestCancelledBoard(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Limits.Run(ctx, Options{Rows: []string{"S1"}}); err == nil {
		t.Error("a cancelled board returned no error")
	}
}

func TestOutputs(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	if code := Main([]string{"-rows", "S4", "-backends", "B4"}, &out, &errs); code != 0 {
		t.Fatalf("exit code %d: %s", code, &errs)
	}
	for _, want := range []string{"| scenario |", "| S4 ", "goodput 20s-40s", ">= 0.950", "goals reached"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	if code := Main([]string{"-rows", "S99"}, &out, &errs); code != 2 {
		t.Errorf("exit code %d for an unknown row, want 2", code)
	}
	if code := Main([]string{"-colour"}, &out, &errs); code != 2 {
		t.Errorf("exit code %d for an unknown flag, want 2", code)
	}
}

// docs is where the committed boards are.
var docs = filepath.Join("..", "..", "..", "docs", "scoreboard")

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
	t.Parallel()
	committed, err := Limits.Read(docs)
	if err != nil {
		t.Fatal(err)
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
		cells, err := Limits.Run(context.Background(), Options{
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

// reducedOrder are the cells about who goes first that every run of the tests
// looks at.
var reducedOrder = []struct{ rows, backends []string }{
	{[]string{"S12", "S12b", "S13", "S13b", "S14", "S15", "S21", "S22", "S23"}, []string{"B4"}},
	{[]string{"S15", "S23"}, []string{"B2"}},
}

// The committed board is the list of what the gates that are told who asks reach.
// The same seeds give the same figures, so a goal that they reach there and not
// here has been lost by a change of the code.
func TestNoOrderIsLost(t *testing.T) {
	t.Parallel()
	goals := map[place]map[string]*Cell{}
	committed, err := order.Read(docs)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range committed {
		if c.Reached != nil {
			if goals[c.place()] == nil {
				goals[c.place()] = map[string]*Cell{}
			}
			goals[c.place()][c.Controller] = &c
		}
	}
	if len(goals) == 0 {
		t.Fatal("docs/scoreboard/order.json cannot be read; run make scoreboard-order")
	}
	for _, part := range reducedOrder {
		cells, err := order.Run(context.Background(), Options{Rows: part.rows, Backends: part.backends, Controllers: []string{"fixed", "default"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cells {
			if c.Reached == nil {
				continue
			}
			was := goals[c.place()][c.Controller]
			if was == nil {
				t.Errorf("%s on %s, %s, %s: not on the committed board; run make scoreboard-order", c.Scenario, c.Backend, c.Controller, c.what())
			} else if *was.Reached && !within(c.Median, was) {
				t.Errorf("%s on %s, %s, %s: %.4g, was %.4g; the goal %s is lost", c.Scenario, c.Backend, c.Controller, c.what(), c.Median, was.Median, was.Goal)
			}
		}
	}
}

// A gate that is not told who asks lets the flood in with the rest: if it does
// not, the board about who goes first measures nothing.
func TestTheAnonymousAreNotToldApart(t *testing.T) {
	t.Parallel()
	cells, err := order.Run(context.Background(), Options{
		Rows: []string{"S12", "S13", "S14", "S23"}, Backends: []string{"B4"}, Controllers: []string{"untold"}, Seeds: []uint64{1},
	})
	if err != nil {
		t.Fatal(err)
	}
	looked := 0
	for _, c := range cells {
		switch c.Metric {
		case "served", "inversions", "share_error", "behind":
			looked++
			if *c.Reached {
				t.Errorf("%s: %s is %v, which reaches %s", c.Scenario, c.what(), c.Median, c.Goal)
			}
		}
	}
	if looked < 5 {
		t.Errorf("looked at %d figures", looked)
	}
}

func TestOrderOutputs(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	if code := Main([]string{"-group", "order", "-rows", "S12", "-backends", "B4", "-seeds", "1", "-out", ""}, &out, &errs); code != 0 {
		t.Fatalf("exit code %d: %s", code, &errs)
	}
	for _, want := range []string{"| scenario |", "served of critical", "<= 1.2 x alone", "| untold", "goals reached"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	if code := Main([]string{"-group", "colour"}, &out, &errs); code != 2 {
		t.Errorf("exit code %d for an unknown group, want 2", code)
	}
	if code := Main([]string{"-group", "order", "-controllers", "oracle"}, &out, &errs); code != 2 {
		t.Errorf("exit code %d for a column of the other board, want 2", code)
	}
}

// The page says what each column misses.
func TestOrderPage(t *testing.T) {
	no, yes, alone := false, true, 10.
	page := orderPage([]Cell{
		{Scenario: "S12", Backend: "B1", Controller: "untold", Metric: "p99", Class: "critical", From: "0s", To: "1s", Goal: "<= 1.2 x alone", Alone: &alone, Reached: &no},
		{Scenario: "S12", Backend: "B1", Controller: "fixed", Metric: "p99", Class: "critical", From: "0s", To: "1s", Goal: "<= 1.2 x alone", Alone: &alone, Reached: &no},
		{Scenario: "S13", Backend: "B1", Controller: "fixed", Metric: "jain", Goal: ">= 0.990", Reached: &yes},
	})
	for _, want := range []string{"| fixed  | 1 of 2 ", "- S12 on B1, fixed, p99 of critical 0s-1s: 0.0 ms"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	if strings.Contains(page, "S12 on B1, untold") {
		t.Errorf("a miss of a gate that is not told is listed:\n%s", page)
	}
}

// What is written reads back: goals that are reached, that are missed, and none.
func TestWriteReadsBack(t *testing.T) {
	reached, missed, bound := true, false, 0.97
	cells := []Cell{
		{Scenario: "S1", Backend: "B1", Metric: "goodput", Goal: ">= 0.970", AtLeast: &bound, Reached: &reached, Seeds: []uint64{1, 2}, Spread: sim.Spread{Median: 1, Min: 0.5, Max: 2}},
		{Scenario: "S1", Backend: "B2", Metric: "p99", Class: "large", HeldOut: true, Alone: &bound, Reached: &missed},
		{Scenario: "S2", Setting: "limit 4", Limit: sim.Level{Min: 1, Mean: 2, Max: 3}},
	}
	dir := t.TempDir()
	for _, b := range []*board{Limits, order, lags} {
		if err := b.Write(dir, cells); err != nil {
			t.Fatal(err)
		}
		if back, err := b.Read(dir); err != nil || !reflect.DeepEqual(back, cells) {
			t.Errorf("%v, %+v, want %+v", err, back, cells)
		}
	}
}

func TestRowsThatDoNotExist(t *testing.T) {
	for args, want := range map[string]string{
		"-rows NOPE,S1":           `-rows "NOPE": there is no such scenario; there are S1`,
		"-rows S1,S13":            `-rows "S13": belongs to -group order`,
		"-group order -rows S9":   `-rows "S9": belongs to -group limit`,
		"-controllers default,no": `-controllers "no": there is no such column`,
	} {
		var said bytes.Buffer
		if _, err := parse(strings.Fields(args), &said); err == nil || !strings.Contains(said.String(), want) {
			t.Errorf("%s: %v, said %q, want %q", args, err, said.String(), want)
		}
	}
}
