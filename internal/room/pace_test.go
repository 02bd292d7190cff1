package room

import (
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	tests := map[float64]Pace{
		0: {Interval: 100 * ms}, 1e-9: {Interval: 10 * time.Second, Keep: 64}, 32: {Interval: 2 * time.Second, Keep: 64},
		640: {Interval: 100 * ms, Keep: 64}, 641: {Interval: 100 * ms, Keep: 64}, 1e9: {Interval: 100 * ms, Keep: 64},
	}
	for rate, want := range tests {
		if got := PaceAt(rate, 0); got != want {
			t.Errorf("%v a second: %+v, want %+v", rate, got, want)
		}
	}
}
