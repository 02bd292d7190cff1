package hist

import (
	"math"
	"testing"
	"time"
)

func within(t *testing.T, what string, got, want time.Duration, relative float64) {
	t.Helper()
	if off := math.Abs(float64(got - want)); off > relative*float64(want) {
		t.Errorf("%s: got %v, want %v within %.1f %%", what, got, want, 100*relative)
	}
}

func TestHistogramIsWithinItsPrecision(t *testing.T) {
	h := New(7)
	for i := 1; i <= 100_000; i++ {
		h.Record(time.Duration(i) * time.Microsecond)
	}
	for _, q := range []float64{0, 0.001, 0.5, 0.9, 0.99, 0.999, 1} {
		want := time.Duration(math.Min(math.Floor(q*100_000)+1, 100_000)) * time.Microsecond
		within(t, "quantile", h.Quantile(q), want, 1./128)
	}
	if h.Reset(); h.Count() != 0 || h.Quantile(0.5) != 0 {
		t.Error("the quantile of nothing is not 0")
	}
}

// Whatever the duration, its bucket holds it.
func TestBucketsCoverEverything(t *testing.T) {
	for _, d := range []time.Duration{-time.Second, 0, 1, 31, 32, 33, time.Millisecond, time.Minute, time.Hour, math.MaxInt64} {
		var h Histogram
		h.Record(d)
		within(t, d.String(), h.Quantile(0.5), max(0, d), 1./64)
		if b := h.Bound(0.5); uint64(b) < uint64(max(0, d)) {
			t.Errorf("%v is above its bound %v", d, b)
		}
	}
}

func TestAdd(t *testing.T) {
	var a, b Histogram
	for i := range 1000 {
		h := &a
		if i%2 == 1 {
			h = &b
		}
		h.Record(time.Duration(i+1) * time.Millisecond)
	}
	before := a.Clone()
	a.Add(&b)
	if a.Count() != 1000 || before.Count() != 500 {
		t.Errorf("counts %d and %d, want 1000 and 500", a.Count(), before.Count())
	}
	for q, want := range map[float64]time.Duration{0: time.Millisecond, 0.5: 501 * time.Millisecond, 0.99: 991 * time.Millisecond, 1: time.Second} {
		within(t, "quantile", a.Quantile(q), want, 1./32)
	}
	var sum Histogram
	if sum.Add(&a); sum.Quantile(1) != a.Quantile(1) {
		t.Error("what was added to an empty histogram is not there")
	}
}
