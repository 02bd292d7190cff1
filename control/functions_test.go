package control

import (
	"testing"
	"time"
)

func TestLogarithm(t *testing.T) {
	for limit, want := range map[float64]float64{0: 1, 1: 1, 99.9: 1, 100: 2, 999: 2, 1000: 3, 10_000: 4, 1e9: 9} {
		if got := logarithm(limit); got != want {
			t.Errorf("of %v: %v, want %v", limit, got, want)
		}
	}
}

func TestRoot(t *testing.T) {
	for limit, want := range map[float64]float64{0: 4, 999: 31, 2500: 50, 2499.9: 49} {
		if got := root(limit, 4); got != want {
			t.Errorf("of %v, at least 4: %v, want %v", limit, got, want)
		}
	}
}

// MongoDB's flow control below the threshold, from 1000 and from 0.
func TestDrainGrows(t *testing.T) {
	cfg := DrainConfig{Adder: 1000, Multiplier: 1.05}
	for limit, want := range map[float64]float64{1000: 2100, 0: 1050} {
		if got := cfg.grow(limit); got != want {
			t.Errorf("from %v: %v, want %v", limit, got, want)
		}
	}
}

// What a window kept of before the last look, all of it or a share, is no news.
func TestInFlightSince(t *testing.T) {
	sample := func(end time.Duration, inside float64) Sample {
		return Sample{Start: end - time.Second, Latency: time.Second, Concurrency: inside}
	}
	w := &Window{InFlight: 3, Samples: []Sample{sample(2*time.Second, 100), sample(3*time.Second, 100), sample(4*time.Second, 10), sample(5*time.Second, 20)}}
	for since, want := range map[time.Duration]float64{0: 57.5, 3 * time.Second: 15, 5 * time.Second: 3} {
		if got := inFlightSince(since, w); got != want {
			t.Errorf("since %v: %v, want %v", since, got, want)
		}
	}
}
