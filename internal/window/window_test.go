package window

import (
	"slices"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
)

func read(w *Window, now time.Duration) (c control.Window) {
	w.Read(now, &c)
	Finish(&c)
	return c
}

func TestOutcomes(t *testing.T) {
	var w Window
	w.Sample(weir.OK, 0, 30, 1, 0)
	w.Sample(weir.Failed, 0, 1, 1, 0)
	w.Sample(weir.NoSample, 0, 1, 1, 0)
	w.Sample(weir.Overload, 0, 20, 4, 0)
	w.Sample(weir.Abandoned, 0, 10, 1, 0)
	w.Sample(weir.Outcome(99), 0, 1, 1, 0)
	c := read(&w, 100)
	if c.OK != 1 || c.Failed != 1 || c.Overload != 1 || c.Abandoned != 1 || c.Dropped() != 2 {
		t.Errorf("%+v", c)
	}
	// A failure is no good news: its latency is none of the three.
	if c.Timed != 3 || c.Cost != 6 || c.LatencySum != 60 || len(c.Latencies) != 3 || c.Latencies[0] != 10 {
		t.Errorf("timed %d, cost %d, sum %d, %v", c.Timed, c.Cost, c.LatencySum, c.Latencies)
	}
}

func TestKeepsTheMostRecent(t *testing.T) {
	var w Window
	for i := range Size + 3 {
		w.Sample(weir.OK, 0, time.Duration(i), 1, 0)
	}
	c := read(&w, 1)
	if len(c.Latencies) != Size || c.Latencies[0] != 3 || c.Timed != Size+3 {
		t.Errorf("%d kept from %d on, %d timed", len(c.Latencies), c.Latencies[0], c.Timed)
	}
}

func TestSaturatedTime(t *testing.T) {
	var w Window
	w.Reset(100, 2)
	w.Saturated(110, true)
	w.Saturated(115, true) // no change
	w.Saturated(130, false)
	w.Saturated(150, true)
	if c := read(&w, 160); c.Saturated != 30 || c.Elapsed != 60 || c.MaxInFlight != 2 {
		t.Errorf("%+v", c)
	}
	w.Reset(160, 0) // still saturated
	if c := read(&w, 165); c.Saturated != 5 {
		t.Errorf("after the reset: %v", c.Saturated)
	}
	w.Saturated(150, false) // a clock that steps back adds nothing
	if c := read(&w, 140); c.Saturated != 0 || c.Elapsed != 0 {
		t.Errorf("after a step back: %v of %v", c.Saturated, c.Elapsed)
	}
}

// Nothing of a window is left in the next, however full it was.
func TestResetStartsAnew(t *testing.T) {
	var w Window
	w.Admit(7)
	w.Admit(3)
	for range Size + 3 {
		w.Sample(weir.Overload, 0, 5, 1, 0)
	}
	if c := read(&w, 1); c.Admitted != 2 || c.MaxInFlight != 7 || c.Overload != Size+3 {
		t.Errorf("%+v", c)
	}
	w.Reset(10, 0)
	if c := read(&w, 10); c.Admitted != 0 || c.MaxInFlight != 0 || c.Overload != 0 || c.Timed != 0 || c.LatencySum != 0 || len(c.Latencies) != 0 {
		t.Errorf("%+v", c)
	}
	for i := range Size + 1 {
		w.Sample(weir.OK, 0, time.Duration(i), 1, 0)
	}
	if c := read(&w, 10); c.Latencies[0] != 1 || c.Latencies[Size-1] != Size {
		t.Errorf("kept %v to %v: not the most recent", c.Latencies[0], c.Latencies[Size-1])
	}
}

// Of more samples than there is room for, an even share is kept: the most recent
// ones alone would leave out what ends fast.
func TestSamplesAreThinnedEvenly(t *testing.T) {
	var w Window
	const n = 5 * Size
	for i := range n {
		w.Sample(weir.OK, time.Duration(i), time.Millisecond, 1, 1)
	}
	c := read(&w, 1)
	if len(c.Samples) < Size/2 || len(c.Samples) > Size {
		t.Fatalf("%d kept", len(c.Samples))
	}
	step := c.Samples[1].Start - c.Samples[0].Start
	for i, s := range c.Samples {
		if s.Start != time.Duration(i)*step {
			t.Fatalf("sample %d of every %d is number %d", i, step, s.Start)
		}
	}
	if last := c.Samples[len(c.Samples)-1].Start; last < n-step {
		t.Errorf("the last one kept is number %d of %d", last, n)
	}
	w.Reset(2, 0)
	w.Sample(weir.OK, 7, time.Millisecond, 1, 1)
	w.Sample(weir.OK, 8, time.Millisecond, 1, 1)
	if c := read(&w, 3); len(c.Samples) != 2 || c.Samples[1].Start != 8 {
		t.Errorf("after a reset: %v", c.Samples)
	}
}

// The mean of what is in flight is by time; so is that of a life, and one of no
// length has what is there now.
func TestMeanInFlight(t *testing.T) {
	var w Window
	w.Reset(0, 0)
	w.Level(0, 2)
	w.Level(30, 5)
	w.Level(20, 4) // a clock that steps back adds nothing
	if c := read(&w, 50); c.MeanInFlight != (2*30+4*20)/50. {
		t.Errorf("%v", c.MeanInFlight)
	}
	w.Reset(50, 4)
	if c := read(&w, 50); c.MeanInFlight != 4 {
		t.Errorf("%v at the start", c.MeanInFlight)
	}
	w.Level(60, -1) // below nothing is nothing
	if c := read(&w, 70); c.MeanInFlight != 2 || w.Area(70) != w.Area(60) || w.Area(0) != w.Area(60) {
		t.Errorf("%v, area %v and %v", c.MeanInFlight, w.Area(60), w.Area(70))
	}
	w.Sample(weir.OK, 0, 0, 1, 0)
	w.Level(70, 3)
	w.Sample(weir.Failed, 0, 0, 1, 0)
	w.Sample(weir.OK, 0, 40, 1, 100)
	want := []control.Sample{{Concurrency: 1, Good: true}, {Concurrency: 3, Failed: true}, {Latency: 40, Concurrency: 2.5, Good: true}}
	if c := read(&w, 70); !slices.Equal(c.Samples, want) {
		t.Errorf("%v", c.Samples)
	}
}

// Callers read their clock before they wait for the gate's lock. A window never holds more than was there for that.
func TestTimeStepsBackUnderTheLock(t *testing.T) {
	const ms = time.Millisecond
	var w Window
	w.Level(0, 2)
	w.Saturated(0, true)
	w.Level(100*ms, 0)
	w.Saturated(100*ms, false)
	w.Saturated(98*ms, true) // read before the line above
	w.Level(98*ms, 2)
	w.Level(110*ms, 2)
	c := read(&w, 105*ms)
	if c.Now != 110*ms || c.Elapsed != 110*ms || c.Saturated != 110*ms || c.MeanInFlight != 2*110.0/110 {
		t.Errorf("%v of %v saturated, %v in flight; want 110ms of 110ms, and 2", c.Saturated, c.Elapsed, c.MeanInFlight)
	}
	w.Reset(105*ms, 2)
	if c = read(&w, 120*ms); c.Elapsed != 10*ms || c.MeanInFlight != 2 {
		t.Errorf("%v in flight in a window of %v, want 2 and 10ms", c.MeanInFlight, c.Elapsed)
	}
	w.Saturated(140*ms, false)
	w.Saturated(138*ms, true) // the level stays
	if c = read(&w, 150*ms); c.Saturated != 40*ms {
		t.Errorf("%v saturated, want all 40ms since the window began", c.Saturated)
	}
	// A clock that steps back by more is another clock.
	for _, tt := range []struct{ now, want time.Duration }{{149 * ms, 150 * ms}, {150*ms - time.Second + 1, 150 * ms}, {150*ms - time.Second, 150*ms - time.Second}, {151 * ms, 151 * ms}} {
		w.Level(150*ms, 2)
		if got := w.Latest(tt.now); got != tt.want {
			t.Errorf("the latest of %v is %v, want %v", tt.now, got, tt.want)
		}
	}
}
