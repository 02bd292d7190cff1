// Package hold says for how long a slot is held whose client has left, and holds it. The server
// behind works on, so the slot stays taken for as long as such work is expected to take.
//
// A server works on a request from when it got it. The time in which it waits for the client to send
// more does not count. So a slow upload is no long work.
package hold

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Unknown is how long a slot is held if nothing is known, and nothing bounds it.
	Unknown = 30 * time.Second
	// mostRoutes is how many routes are measured. What others take stays unknown.
	mostRoutes = 10_000
	// mostHeld bounds the slots that are held. Gates bound them before.
	mostHeld = 100_000
)

// Times are how long the requests of one server take, by route, because routes differ. The number of
// routes is bounded by the configuration, and over very many reloads with ever new names by a
// constant. The zero value knows nothing. It is safe for concurrent use.
type Times struct {
	all    mean
	guess  atomic.Int64 // in ns, for routes without an answer yet; 0: none
	n      atomic.Int32
	routes sync.Map // of *Route, by name
}

// Route is what is known of the requests of one route; nil: nothing.
type Route struct {
	// clear is of requests whose client was quick to send them. Of others nobody can say what the
	// server did meanwhile: it may have worked, and may have waited. They count while nothing better
	// is known. So nobody makes work look short by sending slowly.
	clear, vague mean

	round  uint64        // of Observe
	oldest time.Duration // in this round

	calls atomic.Bool // it has answered a call of gRPC
}

// AnswersCalls notes that the route has answered a call of gRPC. r may be nil.
func (r *Route) AnswersCalls() {
	if r != nil && !r.calls.Load() {
		r.calls.Store(true)
	}
}

// HasAnsweredCalls reports whether it has.
func (r *Route) HasAnsweredCalls() bool { return r != nil && r.calls.Load() }

// Route returns the route of that name, nil if there are too many.
func (t *Times) Route(name string) *Route {
	if v, ok := t.routes.Load(name); ok {
		return v.(*Route)
	}
	if t.n.Load() >= mostRoutes {
		return nil
	}
	v, known := t.routes.LoadOrStore(name, new(Route))
	if !known {
		t.n.Add(1)
	}
	return v.(*Route)
}

// Add counts an answer. The server worked so long for it, and waited so long for the client.
func (t *Times) Add(r *Route, worked, waited time.Duration) {
	t.all.add(worked)
	switch {
	case r == nil:
	case waited <= worked:
		r.clear.add(worked)
	default:
		r.vague.add(worked)
	}
}

// Expect sets how long requests are expected to take on routes without an answer yet. 0, as at
// first, means that it is not known.
func (t *Times) Expect(d time.Duration) { t.guess.Store(int64(d)) }

// Mean returns the moving mean over all routes; 0 before the first answer.
func (t *Times) Mean() time.Duration { return t.all.value() }

// Rest returns how much longer a request is expected to take that has been worked on for so long,
// 0 if nothing is known. That is the mean of its route. A request that has taken longer than the mean
// is a long one. It is expected to take as long again: nothing better is known of heavy-tailed work.
// The same goes for the oldest request of the route without an answer, because the server may be
// stuck; see [Route.Oldest].
func (t *Times) Rest(r *Route, worked, oldest time.Duration) time.Duration {
	usual := time.Duration(t.guess.Load())
	if r != nil {
		if d := r.clear.value(); d > 0 {
			usual = d
		} else if d := r.vague.value(); d > 0 {
			usual = d
		}
	}
	if usual == 0 {
		return 0
	}
	return max(usual, worked, oldest)
}

// Observe is called with each request that has no answer yet, in one round after the other. It has
// been worked on for so long. Observe and Oldest are not for concurrent use.
func (r *Route) Observe(round uint64, worked time.Duration) {
	switch {
	case r == nil:
	case r.round != round:
		r.round, r.oldest = round, worked
	default:
		r.oldest = max(r.oldest, worked)
	}
}

// Oldest returns how long the oldest of the requests that a round has observed has been worked on.
func (r *Route) Oldest(round uint64) time.Duration {
	if r == nil || r.round != round {
		return 0
	}
	return r.oldest
}

// mean is a moving mean of times. One of two updates at the same moment may be lost. That does not
// matter to a mean.
type mean struct{ ns atomic.Int64 }

// meanWeight is how many answers a mean covers, roughly.
const meanWeight = 32

func (m *mean) add(d time.Duration) {
	old := m.ns.Load()
	if old == 0 {
		m.ns.Store(int64(d))
		return
	}
	m.ns.Store(old + (int64(d)-old)/meanWeight)
}

func (m *mean) value() time.Duration { return time.Duration(m.ns.Load()) }

// Keeper holds slots whose request has nobody else any more to give them back. The zero value holds
// none. It is safe for concurrent use.
type Keeper struct{ held atomic.Int64 }

// Hold calls release when the rest of the work has had its time.
func (k *Keeper) Hold(rest time.Duration, release func()) {
	if rest <= 0 || k.held.Load() >= mostHeld {
		release()
		return
	}
	k.held.Add(1)
	time.AfterFunc(rest, func() {
		release()
		k.held.Add(-1)
	})
}

// Held returns how many are held now.
func (k *Keeper) Held() int64 { return k.held.Load() }
