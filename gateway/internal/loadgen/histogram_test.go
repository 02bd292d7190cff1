package loadgen

import (
	"testing"
	"time"
)

func TestBucketsCoverEverything(t *testing.T) {
	for us := range time.Duration(200_000) {
		d := us * time.Microsecond
		i := bucket(d)
		if up := upper(i); up <= d || up > d+d/subs+time.Microsecond {
			t.Fatalf("%v is in bucket %d, which ends at %v", d, i, up)
		}
		if i > 0 && upper(i-1) > d {
			t.Fatalf("%v is in bucket %d, but the one before ends at %v", d, i, upper(i-1))
		}
	}
	for _, d := range []time.Duration{-time.Second, time.Hour, 1<<63 - 1} {
		if i := bucket(d); i < 0 || i >= buckets {
			t.Errorf("bucket(%v) = %d, outside the histogram", d, i)
		}
	}
	if longest := upper(buckets - 1); longest < time.Minute {
		t.Errorf("the histogram ends at %v, want at least a minute", longest)
	}
}

func TestQuantile(t *testing.T) {
	var a, b Histogram
	if a.Quantile(.99) != 0 {
		t.Error("an empty histogram has a quantile")
	}
	for i := range 1000 {
		h := &a
		if i%2 == 1 {
			h = &b
		}
		h.Record(time.Duration(i+1) * time.Millisecond)
	}
	a.Add(&b)
	if a.Count() != 1000 {
		t.Errorf("count %d, want 1000", a.Count())
	}
	for q, want := range map[float64]time.Duration{
		0: time.Millisecond, .5: 500 * time.Millisecond, .99: 990 * time.Millisecond, 1: time.Second,
	} {
		if got := a.Quantile(q); got < want || got > want+want/subs+time.Microsecond {
			t.Errorf("quantile %v = %v, want %v (or up to 1/%d more)", q, got, want, subs)
		}
	}
}
