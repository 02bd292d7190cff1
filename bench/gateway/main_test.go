package main

import (
	"strings"
	"testing"
)

// A throughput counts only where both sides of the ratio used their cores.
func TestThroughputIsVoid(t *testing.T) {
	for _, tt := range []struct {
		floor, used float64
		void        bool
	}{
		{1, 1, false},
		{1, 0.8, true},
		{0.8, 1, true},
	} {
		table := report([]*subject{
			{name: bare, rates: []float64{100}, cpus: []float64{10}, used: []float64{tt.floor}},
			{name: off, rates: []float64{99}, cpus: []float64{10}, used: []float64{tt.used}},
		})
		if got := table[2][4]; strings.Contains(got, "throughput void") != tt.void {
			t.Errorf("the bare proxy used %v of its core, the other %v: %q", tt.floor, tt.used, got)
		}
	}
}
