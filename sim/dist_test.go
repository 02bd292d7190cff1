package sim

import (
	"math"
	"testing"
	"time"
)

func TestDistributionsHaveTheirMoments(t *testing.T) {
	long(t)
	tests := []struct {
		name     string
		dist     Dist
		mean, cv float64
	}{
		{"constant", Dist{Dist: "constant", Mean: d("10ms")}, .010, 0},
		{"exponential", Dist{Dist: "exponential", Mean: d("10ms")}, .010, 1},
		{"erlang", Dist{Dist: "erlang", K: 4, Mean: d("10ms")}, .010, .5},
		{"lognormal", Dist{Dist: "lognormal", CV: 2, Mean: d("10ms")}, .010, 2},
		// 99 % x 1, 1 % x 50: the mean is 1.49, the second moment 25.99.
		{"bimodal", Dist{Dist: "bimodal", Modes: []Mode{{99, d("1ms")}, {1, d("50ms")}}}, .00149, math.Sqrt(25.99-1.49*1.49) / 1.49},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var f faultList
			tt.dist.validate(&f, "service")
			if len(f) > 0 {
				t.Fatal(f.err())
			}
			const n = 2_000_000
			rng, draw := stream(1, streamService, 0), tt.dist.sampler()
			var sum, squares float64
			for range n {
				x := draw(rng)
				sum += x
				squares += x * x
			}
			mean := sum / n
			within(t, "mean", mean, tt.mean, .01)
			within(t, "mean by formula", tt.dist.mean(), tt.mean, 1e-9)
			cv := math.Sqrt(math.Max(0, squares/n-mean*mean)) / mean
			if math.Abs(cv-tt.cv) > .02*tt.cv+1e-5 {
				t.Errorf("coefficient of variation: got %.4f, want %.4f", cv, tt.cv)
			}
		})
	}
}

func TestHistogramIsWithinItsPrecision(t *testing.T) {
	h := newHistogram(7)
	for i := 1; i <= 100_000; i++ {
		h.add(time.Duration(i) * time.Microsecond)
	}
	for _, p := range []float64{0, .001, .5, .9, .99, .999, 1} {
		want := math.Min(math.Floor(p*100_000)+1, 100_000) * 1000
		within(t, "quantile", float64(h.quantile(p)), want, 1./128)
	}
	if empty := newHistogram(7); empty.quantile(.5) != 0 {
		t.Error("the quantile of nothing is not 0")
	}
}
