package limit

import (
	"testing"
	"time"
)

func TestDrainRate(t *testing.T) {
	const ms = time.Millisecond
	type release struct {
		at     time.Duration
		units  int64
		wanted bool
	}
	tests := []struct {
		name     string
		releases []release
		want     float64 // a second
	}{
		{"nothing yet", nil, 0},
		{"too short an interval", []release{{99 * ms, 50, true}}, 0},
		{"too few", []release{{100 * ms, 3, true}}, 0},
		{"units, not permits", []release{{100 * ms, 4, true}}, 40},
		{"nobody was in want", []release{{100 * ms, 40, false}}, 0},
		{"somebody was, for a while", []release{{10 * ms, 1, true}, {100 * ms, 3, false}}, 40},
		{"want ends with its interval", []release{{100 * ms, 4, true}, {200 * ms, 400, false}}, 40},
		{"smoothed", []release{{100 * ms, 4, true}, {200 * ms, 14, true}}, 70},
	}
	for _, tt := range tests {
		var d drain
		for _, r := range tt.releases {
			d.finish(r.at, r.units, r.wanted)
		}
		if diff := d.rate - tt.want; diff > 1e-9 || diff < -1e-9 {
			t.Errorf("%s: %v a second, want %v", tt.name, d.rate, tt.want)
		}
	}
}

func TestDrainWaitIsBounded(t *testing.T) {
	tests := []struct {
		rate  float64
		ahead int64
		want  time.Duration
	}{
		{0, 100, time.Second}, {10, 0, 100 * time.Millisecond}, {10, 4, 500 * time.Millisecond},
		{1e6, 0, 10 * time.Millisecond}, {1, 29, 30 * time.Second}, {1, 30, 30 * time.Second}, {1e-300, 1 << 62, 30 * time.Second},
	}
	for _, tt := range tests {
		if got := wait(tt.ahead, tt.rate); got != tt.want {
			t.Errorf("%v a second, %d ahead: %v, want %v", tt.rate, tt.ahead, got, tt.want)
		}
	}
}
