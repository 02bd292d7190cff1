package kit

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"
)

func TestGoal(t *testing.T) {
	tests := []struct {
		goal   Goal
		values []float64
		want   string
	}{
		{Goal{What: "served", Bound: 0.9}, []float64{0.8, 0.9, 1}, "served 0.9 ≥ 0.9 ✓"},
		{Goal{What: "served", Bound: 0.9, Every: true}, []float64{0.8, 0.9, 1}, "served 0.8 ≥ 0.9 ✗"},
		{Goal{What: "p99", Bound: 20, AtMost: true}, []float64{30, 10, 10}, "p99 10 ≤ 20 ✓"},
		{Goal{What: "p99", Bound: 20, AtMost: true, Every: true}, []float64{30, 10, 10}, "p99 30 ≤ 20 ✗"},
	}
	for _, tt := range tests {
		v := tt.goal.Judge(SpreadOf(tt.values))
		if got := v.String(); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.values, got, tt.want)
		}
	}
}

// Of an even number of values the median is the mean of the two in the middle: the upper one would flatter.
func TestSpread(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		want   Spread
	}{
		{nil, Spread{}},
		{[]float64{3}, Spread{Median: 3, Min: 3, Max: 3}},
		{[]float64{4, 1}, Spread{Median: 2.5, Min: 1, Max: 4}},
		{[]float64{9, 1, 2}, Spread{Median: 2, Min: 1, Max: 9}},
		{[]float64{4, 1, 9, 2}, Spread{Median: 3, Min: 1, Max: 9}},
	} {
		if got := SpreadOf(tt.values); got != tt.want {
			t.Errorf("%v: %+v, want %+v", tt.values, got, tt.want)
		}
	}
}

func TestTable(t *testing.T) {
	table := Table{{"", "p99"}, {"a", "≤ 2"}, {"bc", ""}}
	if got, want := table.Padded(), "|    | p99 |\n| -- | --- |\n| a  | ≤ 2 |\n| bc |     |\n"; got != want {
		t.Errorf("padded:\n%s", got)
	}
	if got, want := table.Plain(Figures(2)), "| | p99 |\n|---|---:|\n| a | ≤ 2 |\n| bc |  |\n"; got != want {
		t.Errorf("plain:\n%s", got)
	}
}

// New cells take the place of old ones, in the order of the places; what has no
// place any more goes.
func TestMerge(t *testing.T) {
	type cell struct {
		name   string
		figure int
	}
	got := Merge([]string{"a", "b", "c"}, func(c *cell) string { return c.name },
		[]cell{{"gone", 1}, {"c", 2}, {"a", 3}}, []cell{{"a", 4}})
	if want := []cell{{"a", 4}, {"c", 2}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestNames(t *testing.T) {
	var n Names
	if !n.Has("S1") {
		t.Error("no names restrict nothing")
	}
	if err := n.Set("S1,S9"); err != nil || n.Has("S2") || !slices.Equal(n.Of([]string{"S9", "S2"}), []string{"S9"}) || n.String() != "S1,S9" {
		t.Errorf("%v, %v", err, n)
	}
	var s Scenarios
	if err := s.Set("retry-storm,S9,2x"); err != nil || s.String() != "S5,S9,2x" {
		t.Errorf("%v, %v", err, s)
	}
}

func TestFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	data, err := Lines([]map[string]int{{"a": 1}, {"b": 2}})
	if err != nil || string(data) != "[\n{\"a\":1},\n{\"b\":2}\n]\n" || !json.Valid(data) {
		t.Errorf("%v, %s", err, data)
	}
	if err := Write(dir, map[string][]byte{"cells.json": data}); err != nil {
		t.Fatal(err)
	}
	var back []map[string]int
	if err := Read(filepath.Join(dir, "cells.json"), &back); err != nil || len(back) != 2 {
		t.Errorf("%v, %v", err, back)
	}
	if err := Read(filepath.Join(dir, "none.json"), &back); err != nil {
		t.Errorf("a file that is not there is a fault: %v", err)
	}
	if err := Read(dir, &back); err == nil {
		t.Error("a folder was read")
	}
}

func TestGroups(t *testing.T) {
	got := Groups([]string{"b1", "a1", "b2", "c1", "a2"}, func(s *string) byte { return (*s)[0] })
	want := [][]string{{"b1", "b2"}, {"a1", "a2"}, {"c1"}}
	if !slices.EqualFunc(got, want, slices.Equal[[]string]) {
		t.Errorf("%v, want %v", got, want)
	}
}
