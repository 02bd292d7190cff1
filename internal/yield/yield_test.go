package yield

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestUnderPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := New()
		if u.underPressure() {
			t.Error("under pressure before anything was refused")
		}
		u.Refused()
		if !u.underPressure() {
			t.Error("not under pressure right after a refusal")
		}
		time.Sleep(pressure - time.Millisecond)
		if !u.underPressure() {
			t.Error("not under pressure within a second of a refusal")
		}
		time.Sleep(time.Millisecond)
		if u.underPressure() {
			t.Error("under pressure a second after the last refusal")
		}
	})
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
