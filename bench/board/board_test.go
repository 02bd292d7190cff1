package board

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
)

// The proof of the core, before any clever controller: a fixed limit that was
// tuned once for its backend, with the wait room, is within two points of the
// best fixed limit for the very scenario.
func TestFixedReachesTheOracle(t *testing.T) {
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
		cells, err := Run(context.Background(), Options{
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
			if oracle < .45 || fixed < oracle-.02 {
				t.Errorf("%s on %s: %s is %.3f, the oracle's %.3f", part.row, backend, part.metric, fixed, oracle)
			}
		}
	}
}

// Without a gate every backend collapses under twice its capacity; if this
// fails, the scoreboard measures nothing.
func TestWithoutAGateNothingIsServed(t *testing.T) {
	cells, err := Run(context.Background(), Options{Rows: []string{"S1"}, Backends: []string{"B2", "B4"}, Controllers: []string{"none"}, Seeds: []uint64{1}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cells {
		if c.Metric == "goodput" && (c.Median > .1 || *c.Reached) {
			t.Errorf("%s on %s without a gate: goodput %.3f, want next to nothing", c.Scenario, c.Backend, c.Median)
		}
	}
}

func TestCancelledBoard(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, Options{Rows: []string{"S1"}}); err == nil {
		t.Error("a cancelled board returned no error")
	}
}

func TestOutputs(t *testing.T) {
	var out, errs bytes.Buffer
	if code := Main([]string{"-rows", "S4", "-backends", "B4"}, &out, &errs); code != 0 {
		t.Fatalf("exit code %d: %s", code, &errs)
	}
	for _, want := range []string{"| scenario |", "| S4 ", "goodput 20s-40s", ">= 0.950", "goals reached"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	if code := Main([]string{"-rows", "S99"}, &out, &errs); code != 1 {
		t.Errorf("exit code %d for an unknown row, want 1", code)
	}
	if code := Main([]string{"-colour"}, &out, &errs); code != 2 {
		t.Errorf("exit code %d for an unknown flag, want 2", code)
	}
}

func TestWriteJSON(t *testing.T) {
	reached := true
	cells := []Cell{{Scenario: "S1", Backend: "B1", Metric: "goodput", Goal: ">= 0.970", Reached: &reached}, {Scenario: "S2"}}
	var b bytes.Buffer
	if err := WriteJSON(&b, cells); err != nil {
		t.Fatal(err)
	}
	var back []Cell
	if err := json.Unmarshal(b.Bytes(), &back); err != nil || len(back) != 2 || back[0].Scenario != "S1" || !*back[0].Reached || back[1].Reached != nil {
		t.Errorf("%v, %+v from\n%s", err, back, &b)
	}
}
