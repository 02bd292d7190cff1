package peers

import (
	"testing"
	"time"

	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/sim"
)

// TestReading: half busy reads half, and what is left of a pool is busy sooner.
func TestReading(t *testing.T) {
	s := &sim.Scenario{Phases: []sim.Phase{
		{For: policy.Duration(time.Minute), Load: 1},
		{For: policy.Duration(time.Minute), Load: 1, Capacity: .5},
	}}
	s.Backend.Backend = sim.Backend{Law: "pool", Workers: 10}
	u := newUsage(&Env{Scenario: s, Best: 10})
	r := &reading{of: u, every: 500 * time.Millisecond}
	u.add(0, 5)
	for _, tt := range []struct {
		at   time.Duration
		want int64 // thousandths; it truncates at each tick
	}{
		{0, 0},
		{499 * time.Millisecond, 0},
		{500 * time.Millisecond, 25},
		{time.Second, 48},
		{time.Minute, 481},
		{2 * time.Minute, 981}, // five of five
		{3 * time.Minute, 500}, // the phases begin again
	} {
		if got := r.now(tt.at); got != tt.want {
			t.Errorf("at %v it reads %d, want %d", tt.at, got, tt.want)
		}
	}
}
