package poolgate

import (
	"testing"
	"time"
)

func TestWaits(t *testing.T) {
	const ms = time.Millisecond
	w := &Waits{count: 100, waited: time.Hour}
	count, duration := int64(100), time.Hour
	for i, step := range []struct {
		count    int64
		duration time.Duration
		want     time.Duration // -1: unknown
	}{
		{0, 0, -1},
		{2, 20 * ms, 10 * ms},
		{0, 0, -1},
		{3, 0, -1},                               // they still wait
		{0, 180 * ms, 60 * ms},                   // and have waited
		{100, 1 * ms, 10 * time.Microsecond},     // one of a hundred has ended
		{0, 1980 * ms, 19800 * time.Microsecond}, // the others
		{0, 20 * ms, 20 * ms},                    // one that came before
		{-50, -time.Minute, -1},                  // other counters
		{1, 10 * ms, 10 * ms},
		{-50, 0, -1},
		{1, 10 * ms, 10 * ms},
	} {
		count, duration = count+step.count, duration+step.duration
		mean, known := w.Since(count, duration)
		if known != (step.want >= 0) || known && mean != step.want {
			t.Errorf("%d: %v, %v; want %v", i, mean, known, step.want)
		}
	}
}

// Where waits are counted when they end, the mean is exact.
func TestWaitsThatHaveEnded(t *testing.T) {
	w := &Waits{Ended: true}
	w.Since(10_000, 10*time.Second)
	if mean, known := w.Since(10_100, 20*time.Second); !known || mean != 100*time.Millisecond {
		t.Errorf("%v, %v; want 100 waits of 100 ms", mean, known)
	}
}
