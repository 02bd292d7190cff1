package quota

import (
	"fmt"
	"testing"
	"time"
)

// On the way for which a bucket in use is charged most quickly, too, what costs more
// than a burst is refused for ever, and not until it would have as many tokens.
func TestTooLargeForABucketInUse(t *testing.T) {
	m := newMemory(t, MemoryConfig{})
	tk := Take{Key: "k", Limits: []Limit{{Rate: 1e-6, Burst: 10}}, Cost: 1}
	take(t, m, tk)
	tk.Cost = 20
	for range 3 {
		if r := take(t, m, tk); r.OK || r.Wait != Never {
			t.Errorf("20 of a burst of 10: %+v, want it refused for ever", r)
		}
	}
}

// A calendar without a number of its own is not taken for one that is full again
// before its longest period is over.
func TestCalendarWithoutNumber(t *testing.T) {
	var clock still
	m := newMemory(t, MemoryConfig{Now: clock.now})
	for i := range maxClasses {
		take(t, m, Take{Key: fmt.Sprint(i), Limits: []Limit{{Rate: 1 + float64(i), Burst: 10}}, Cost: 5})
	}
	month := Take{Key: "month", Limits: []Limit{Each(10, Month, nil)}, Cost: 10}
	take(t, m, month)
	clock.advance(29 * 24 * time.Hour)
	m.Purge()
	if r := take(t, m, month); r.OK {
		t.Errorf("%+v: forgotten in the month in which it was spent", r)
	}
}

// A clock on the wall that somebody else has read a moment later is moved up to that;
// one that was set back is gone by, or the bucket would stand still until it is there
// again. The clock for rates is never set.
func TestSteady(t *testing.T) {
	m := newMemory(t, MemoryConfig{})
	day, rate := Each(1, Day, nil), Per(1, time.Second)
	for _, c := range []struct {
		limit     *Limit
		back, off time.Duration // of the clock, and after steady
	}{
		{&day, 500 * ms, 0},
		{&day, 2 * time.Second, 2 * time.Second},
		{&day, 30 * time.Minute, 30 * time.Minute},
		{&day, -time.Second, -time.Second},
		{&rate, 30 * time.Minute, 0},
		{&rate, -time.Second, -time.Second},
	} {
		b := bucket{last: 10 * time.Hour}
		now := b.last - c.back
		at := m.steady(moment{now: now, wall: now, epoch: m.epoch}, &b, c.limit)
		if got := b.last - at.by(c.limit); got != c.off {
			t.Errorf("%v, %v back: %v back after steady, want %v", *c.limit, c.back, got, c.off)
		}
	}
}
