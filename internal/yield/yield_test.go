package yield

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestUnderPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := New()
		under := func() bool { return u.underPressure(time.Since(u.epoch)) }
		if under() {
			t.Error("under pressure before anything was refused")
		}
		u.Refused()
		if !under() {
			t.Error("not under pressure right after a refusal")
		}
		time.Sleep(pressure - time.Millisecond)
		if !under() {
			t.Error("not under pressure within a second of a refusal")
		}
		time.Sleep(time.Millisecond)
		if under() {
			t.Error("under pressure a second after the last refusal")
		}
	})
}

// Whoever waits for the processor is under pressure, also while nothing is refused.
func TestYieldNotesWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := New()
		if u.Yield() {
			t.Error("timed where nobody else runs")
		}
	})
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	u, timed := New(), false
	for i := 0; i < 1000 && !timed; i++ { // a goroutine of the run time may go first
		var wg sync.WaitGroup
		wg.Go(func() {
			for begun := time.Now(); time.Since(begun) < 2*longHandler; {
			}
		})
		timed = u.Yield()
		wg.Wait()
	}
	if !timed || !u.underPressure(time.Since(u.epoch)) {
		t.Errorf("timed is %v after a wait for the processor", timed)
	}
}

// Many polls at once all return, and leave nothing behind that the next would
// take for its own.
func TestPollNetwork(t *testing.T) {
	var wg sync.WaitGroup
	var returned atomic.Int32
	for range 200 {
		wg.Go(func() {
			for range 20 {
				pollNetwork()
			}
			returned.Add(1)
		})
	}
	wg.Wait()
	pollNetwork()
	if n := returned.Load(); n != 200 {
		t.Errorf("%d callers returned, want 200", n)
	}
}

func BenchmarkPollNetwork(b *testing.B) {
	for b.Loop() {
		pollNetwork()
	}
}
