package shed

import (
	"time"

	"github.com/weir-go/weir"
)

// Load is the load of another gate as a pressure: what is in flight and what
// waits, over the limit. It is not known while the gate has no limit.
//
// A gate whose work may wait is at 1 whenever its slots are taken, which is no
// overload, and a controller that looks for the limit needs it there: before
// such a gate use thresholds above 1 (background from 1.5, when half as much
// waits as may run, up to 5), or [Wait].
func Load(gate weir.Snapshotter) func() (float64, bool) {
	return func() (float64, bool) {
		s := gate.Snapshot()
		if s.Limit < 1 {
			return 0, false
		}
		return float64(s.InFlight+s.Waiting) / float64(s.Limit), true
	}
}

// Wait is the wait before another gate as a pressure: how long a newcomer is
// expected to wait, over the most that is wanted. DAGOR's is 20 ms. It is not
// known if the most is not above 0.
func Wait(gate weir.Snapshotter, most time.Duration) func() (float64, bool) {
	return func() (float64, bool) {
		s := gate.Snapshot()
		switch {
		case most <= 0:
			return 0, false
		case s.Waiting == 0:
			return 0, true // whatever is estimated, nobody waits
		}
		return float64(s.Wait) / float64(most), true
	}
}
