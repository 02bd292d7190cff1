package envoy

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
)

// When a client leaves, Envoy ends the stream at once, and the server behind it works on. The slot
// is held for as long as that is expected to last.

const (
	// longestRest is how long a slot is held where the configuration does not say.
	longestRest = 30 * time.Second
	// mostHeld bounds the slots that are held. A gate bounds them before; requests without one
	// have nothing to hold.
	mostHeld = 100_000
	// mostRoutes bounds the routes whose answers are timed, over all reloads.
	mostRoutes = 10_000
	// meanWeight is how many answers a mean covers, roughly.
	meanWeight = 32
)

// rests knows how long answers take, by route.
type rests struct {
	held   atomic.Int64
	routes atomic.Int64
	means  sync.Map // of *atomic.Int64 in ns, by the route's name
}

// add counts an answer that took so long. One of two at the same moment may be lost.
func (r *rests) add(route string, took time.Duration) {
	v, ok := r.means.Load(route)
	if !ok {
		if r.routes.Load() >= mostRoutes {
			return
		}
		if v, ok = r.means.LoadOrStore(route, new(atomic.Int64)); !ok {
			r.routes.Add(1)
		}
	}
	mean := v.(*atomic.Int64)
	if old := mean.Load(); old > 0 {
		mean.Store(old + (int64(took)-old)/meanWeight)
	} else {
		mean.Store(int64(took))
	}
}

// expected returns how much longer an answer is expected to take that has taken so long. Who has
// taken longer than the mean is expected to take as long again. Before the first answer of a route
// nothing is known, and it is the longest time.
func (r *rests) expected(route string, taken, longest time.Duration) time.Duration {
	if longest <= 0 {
		longest = longestRest
	}
	left := max(0, longest-taken)
	if v, ok := r.means.Load(route); ok {
		return min(left, max(time.Duration(v.(*atomic.Int64).Load())-taken, taken))
	}
	return left
}

// hold gives a permit back after the rest of the work, as far as that is known.
func (r *rests) hold(p weir.Permit, rest time.Duration) {
	if rest <= 0 || r.held.Load() >= mostHeld {
		p.Done(weir.Abandoned)
		return
	}
	r.held.Add(1)
	time.AfterFunc(rest, func() {
		p.Done(weir.Abandoned)
		r.held.Add(-1)
	})
}
