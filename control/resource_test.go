package control_test

import (
	"math"
	"strings"
	"testing"

	"github.com/weir-go/weir/control"
)

func TestResourceSteps(t *testing.T) {
	used := func(inFlight int64, readings ...control.Reading) *control.Window {
		return &control.Window{MaxInFlight: inFlight, InFlight: inFlight, Readings: readings}
	}
	tests := []struct {
		name   string
		w      *control.Window
		want   int64
		signal string
	}{
		{"in proportion", used(100, known("cpu", 1.25)), 80, "cpu"},
		{"by the highest", used(100, known("cpu", 1.25), known("memory", 1.6)), 62, "memory"},
		{"unused too", used(1, known("cpu", 1.25)), 80, "cpu"},
		{"by half at most", used(100, known("cpu", 7)), 50, "cpu"},
		{"an infinite pressure", used(100, known("cpu", math.Inf(1))), 50, "cpu"},
		{"not when idle", used(0, known("cpu", 7)), 100, ""},
		{"grows when reached", used(100, known("cpu", 0.5)), 110, ""},
		{"towards 1", used(100, known("cpu", 0.95)), 105, ""},
		{"by Growth from nothing", used(100, known("cpu", 0)), 110, ""},
		{"not when not reached", used(99, known("cpu", 0.5)), 100, ""},
		{"stays at 1", used(100, known("cpu", 1)), 100, ""},
		{"holds what is unknown", used(100, control.Reading{Name: "cpu", Value: 9}), 100, ""},
		{"holds without signals", used(100), 100, ""},
		{"nonsense is unknown", used(100, known("cpu", math.NaN()), known("x", -4)), 100, ""},
		{"nonsense beside sense", used(100, known("cpu", math.NaN()), known("x", 2)), 50, "x"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := control.NewResource(control.ResourceConfig{Initial: 100})
			if err != nil {
				t.Fatal(err)
			}
			d := r.Update(tt.w)
			if d.Limit != tt.want || d.Signal != tt.signal || d.Reason == "" || d.Next <= 0 || d.Extend {
				t.Errorf("%+v, want %d by %q", d, tt.want, tt.signal)
			}
		})
	}
}

func TestResourceGoesBySignalsNamed(t *testing.T) {
	r, err := control.NewResource(control.ResourceConfig{Initial: 100, Signals: []string{"cpu", "memory"}})
	if err != nil {
		t.Fatal(err)
	}
	w := &control.Window{InFlight: 100, Readings: []control.Reading{known("lag", 50_000), known("memory", 1.25)}}
	if d := r.Update(w); d.Limit != 80 || d.Signal != "memory" {
		t.Errorf("%+v", d)
	}
	w.Readings = w.Readings[:1]
	if d := r.Update(w); d.Limit != 80 || d.Signal != "" {
		t.Errorf("lag alone: %+v", d)
	}
}

func TestResourceBoundsAndState(t *testing.T) {
	r, err := control.NewResource(control.ResourceConfig{Initial: 7, Min: 4, Max: 9})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		r.Update(&control.Window{InFlight: 9, Readings: []control.Reading{known("cpu", 3)}})
	}
	if s := r.Save(); s.Limit != 4 {
		t.Errorf("below Min: %+v", s)
	}
	for range 30 {
		r.Update(&control.Window{InFlight: 9, Readings: []control.Reading{known("cpu", 0.3)}})
	}
	if s := r.Save(); s.Limit != 9 {
		t.Errorf("above Max: %+v", s)
	}
	for limit, want := range map[float64]int64{6.5: 6, 1: 4, 1e12: 9, math.NaN(): 9, math.Inf(1): 9, -1: 9} {
		r.Restore(control.State{Limit: 9})
		r.Restore(control.State{Limit: limit})
		if d := r.Start(); d.Limit != want {
			t.Errorf("restored %v: %d, want %d", limit, d.Limit, want)
		}
	}
}

func TestResourceFaults(t *testing.T) {
	_, err := control.NewResource(control.ResourceConfig{Min: -1, Max: -2, Window: 1, Growth: 1, Backoff: 1})
	for _, want := range []string{"Min -1", "Max -2", "Window 1ns", "Growth 1", "Backoff 1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want it to say %q", err, want)
		}
	}
}
