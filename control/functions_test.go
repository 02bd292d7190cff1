package control

import "testing"

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
