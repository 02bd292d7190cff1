package shed_test

import (
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/shed"
)

// live makes a gate on the bubble's clock.
func live(t *testing.T, cfg shed.Config) *shed.Shedder {
	t.Helper()
	cfg.Name = "front"
	gate, err := shed.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return gate
}

func refuses(gate *shed.Shedder, p weir.Priority) bool {
	_, err := gate.TryAdmit(weir.Work{Priority: p})
	return err != nil
}

// sleep lets the bubble's time pass.
func sleep(d time.Duration) {
	<-time.NewTimer(d).C
	synctest.Wait()
}

func TestReadsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pressure atomic.Uint64
		gate := live(t, shed.Config{Pressure: func() (float64, bool) { return math.Float64frombits(pressure.Load()), true }})
		defer gate.Close()
		for _, p := range []float64{0.5, 0.8, 0.5, 0.99} {
			pressure.Store(math.Float64bits(p))
			sleep(10 * time.Millisecond)
			if got := refuses(gate, weir.Background); got != (p >= 0.75) {
				t.Errorf("10ms after a pressure of %v background is refused: %v", p, got)
			}
		}
	})
}

// A pressure that hangs holds its last value for a second. Then everything is
// let through, or nothing changes.
func TestHangingPressure(t *testing.T) {
	for _, blind := range []shed.Blind{shed.Open, shed.Keep} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			reads := 0
			var troubles atomic.Int64
			gate := live(t, shed.Config{
				Blind: blind,
				Pressure: func() (float64, bool) {
					if reads++; reads > 1 {
						<-release
					}
					return 0.8, true
				},
				Hooks: weir.Hooks{Faulty: func(string, string) { troubles.Add(1) }},
			})
			sleep(900 * time.Millisecond)
			if !refuses(gate, weir.Background) {
				t.Error("the last pressure does not hold")
			}
			sleep(time.Minute)
			if got := refuses(gate, weir.Background); got != (blind == shed.Keep) {
				t.Errorf("blind %v: background is refused: %v", blind, got)
			}
			if reads != 2 || troubles.Load() != 1 {
				t.Errorf("%d readings, %d troubles told; want 2 and 1", reads, troubles.Load())
			}
			if err := gate.Reconfigure(shed.Config{Pressure: func() (float64, bool) { return 0.92, true }}); err != nil {
				t.Fatal(err)
			}
			sleep(20 * time.Millisecond)
			if !refuses(gate, weir.Normal) {
				t.Error("a new pressure is not read while the old one hangs")
			}
			close(release) // what comes late is not taken
			sleep(20 * time.Millisecond)
			if !refuses(gate, weir.Normal) {
				t.Error("the old pressure is taken after all")
			}
			gate.Close()
		})
	}
}

func TestPanickingPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		var told atomic.Value
		gate := live(t, shed.Config{
			Pressure: func() (float64, bool) {
				if n.Add(1)%2 == 0 {
					panic(fmt.Sprint("reading ", n.Load()))
				}
				return 0.8, true
			},
			Hooks: weir.Hooks{Faulty: func(gate, problem string) { told.CompareAndSwap(nil, problem) }},
		})
		sleep(10 * time.Second)
		if !refuses(gate, weir.Background) || refuses(gate, weir.Normal) {
			t.Error("the good readings in between do not count")
		}
		if got, want := told.Load(), "signal: pressure panicked: reading 2"; got != want {
			t.Errorf("told %q, want %q", got, want)
		}
		gate.Close()
	})
}

// Close ends every goroutine: the bubble sees to that. A reading that hangs ends
// when it returns.
func TestCloseEndsTheReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reads atomic.Int64
		gate := live(t, shed.Config{Pressure: func() (float64, bool) { return 0, reads.Add(1) > 0 }})
		sleep(100 * time.Millisecond)
		gate.Close()
		before := reads.Load()
		sleep(time.Second)
		if before < 5 || reads.Load() != before {
			t.Errorf("%d readings before Close, %d after", before, reads.Load())
		}
	})
}
