package control_test

import (
	"testing"
	"time"

	"github.com/weir-go/weir/control"
)

// Where newcomers are refused because their answers would come too late, few wait,
// and a slot is free for most of the time: no window is saturated. All that
// finishes is late none the less, and the limit comes down, however it came to be
// so high.
func TestKneeIsNotFrozen(t *testing.T) {
	for name, saved := range map[string]float64{"from the start": 0, "restored": 1300} {
		k, err := control.NewKnee(control.KneeConfig{Initial: 1301})
		if err != nil {
			t.Fatal(err)
		}
		k.Restore(control.State{Limit: saved})
		d := k.Start()
		first := d.Limit
		for now := time.Second; now < 6*time.Second; now += 100 * time.Millisecond {
			d = k.Update(useless(now, d.Limit, .4, .99))
		}
		if d.Limit != 2 {
			t.Errorf("%s: from %d to %d while nothing that finishes is of use, want 2", name, first, d.Limit)
		}
	}
}

// A gate that is hardly used has nothing to learn from what finishes there.
func TestKneeIdleIsNotCut(t *testing.T) {
	k, err := control.NewKnee(control.KneeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	k.Restore(control.State{Limit: 100})
	d := k.Start()
	first := d.Limit
	for now := time.Second; now < 6*time.Second; now += 100 * time.Millisecond {
		d = k.Update(useless(now, d.Limit, .1, .3))
	}
	if d.Limit != first {
		t.Errorf("from %d to %d", first, d.Limit)
	}
}

// useless is a window of work that all came too late, a share of it saturated and
// a share of the slots in use.
func useless(now time.Duration, limit int64, saturated, used float64) *control.Window {
	const elapsed = 100 * time.Millisecond
	w := &control.Window{
		Now: now, Elapsed: elapsed, Limit: limit, InFlight: limit, MaxInFlight: limit,
		MeanInFlight: used * float64(limit), Saturated: time.Duration(saturated * float64(elapsed)),
		Overload: 50, Timed: 50, LatencySum: 65 * time.Second,
	}
	for range 50 {
		w.Latencies = append(w.Latencies, 1300*time.Millisecond)
		w.Samples = append(w.Samples, control.Sample{Start: now - 1300*time.Millisecond, Latency: 1300 * time.Millisecond, Concurrency: float64(limit)})
	}
	return w
}
