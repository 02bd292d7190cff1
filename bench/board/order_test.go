package board

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"
)

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
	goals := map[place]map[string]*Cell{}
	for _, c := range readCells(filepath.Join("..", "..", "docs", "scoreboard", "order.json")) {
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
		cells, err := OrderRun(context.Background(), Options{Rows: part.rows, Backends: part.backends, Controllers: []string{"fixed", "default"}})
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
	cells, err := OrderRun(context.Background(), Options{
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
		{Scenario: "S13", Backend: "B1", Controller: "fixed", Metric: "jain", Goal: ">= 0.990", Reached: &yes, row: 1},
	})
	for _, want := range []string{"| fixed   | 1 of 2 ", "- S12 on B1, fixed, p99 of critical 0s-1s: 0.0 ms"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	if strings.Contains(page, "S12 on B1, untold") {
		t.Errorf("a miss of a gate that is not told is listed:\n%s", page)
	}
}
