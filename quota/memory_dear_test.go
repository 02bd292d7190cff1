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
