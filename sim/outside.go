package sim

import (
	"time"

	"github.com/weir-go/weir"
)

// Outside is a gate that the scenario's policy knows nothing of and that lives
// on a clock of its own: another library's limiter in a testing/synctest bubble,
// for instance. It takes the place of the policy, for all classes, and time
// moves on only as it says.
type Outside interface {
	weir.Arriver
	// Wait lets time pass until then, or until there is news if that is sooner,
	// and returns the time reached with the news. News are calls of the wake
	// functions given to Arrive, which must not be called from other goroutines;
	// the run calls them in order.
	Wait(until time.Duration) (now time.Duration, news []func())
	// Close ends the run. Nothing is called after it.
	Close()
}

// outsideFront puts an Outside where a policy's gates would be.
func outsideFront(o Outside, classes int) *front {
	f := &front{
		limit: unlimited,
		next:  func() (time.Duration, bool) { return 0, false },
		step:  func() {},
		close: o.Close,
	}
	for range classes {
		f.gates = append(f.gates, o)
	}
	return f
}

// pass lets an Outside take the time until the next event, and reports whether
// there was news first.
func (w *world) pass(until time.Duration) bool {
	if w.outside == nil || until <= w.now {
		return false
	}
	now, news := w.outside.Wait(until)
	w.now = max(w.now, min(now, until))
	for _, tell := range news {
		tell()
	}
	return len(news) > 0 || w.now < until
}
