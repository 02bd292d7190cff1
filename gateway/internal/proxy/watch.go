package proxy

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
)

const (
	// watchEvery is how late a time-out, or a client that leaves, may be noticed.
	watchEvery = 20 * time.Millisecond
	// watchLinger is how long the watch goes on without exchanges, so that single
	// requests do not start it each time.
	watchLinger = time.Second
)

// watch finds exchanges with no time left, or without their client. It scans all of them now and
// then. That costs a fraction of what a timer and a goroutine for each would cost. Its own
// goroutine runs while there are exchanges, and a second longer.
type watch struct {
	epoch time.Time

	mu      sync.Mutex
	first   *exchange // the newest
	last    *exchange // the oldest
	round   uint64    // of scans
	running bool
}

func (w *watch) add(x *exchange) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x.next = w.first
	if x.next != nil {
		x.next.prev = x
	} else {
		w.last = x
	}
	w.first = x
	if !w.running {
		w.running = true
		go w.run()
	}
}

func (w *watch) remove(x *exchange) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x.prev != nil {
		x.prev.next = x.next
	} else {
		w.first = x.next
	}
	if x.next != nil {
		x.next.prev = x.prev
	} else {
		w.last = x.prev
	}
	x.next, x.prev = nil, nil
}

func (w *watch) run() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	busy := time.Since(w.epoch)
	var due []*exchange
	for range tick.C {
		now := time.Since(w.epoch)
		any := false
		due, any = w.scan(now, due[:0])
		for i, x := range due {
			x.cancel() // with no lock held: it calls others
			due[i] = nil
		}
		if any {
			busy = now
		} else if now-busy > watchLinger && w.stopIfEmpty() {
			return
		}
	}
}

// scan returns the exchanges that are to be cancelled, and whether there are any exchanges.
func (w *watch) scan(now time.Duration, due []*exchange) ([]*exchange, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.round++
	for x := w.last; x != nil; x = x.prev {
		if x.overdue(now, w.round) {
			due = append(due, x)
		}
	}
	return due, w.first != nil
}

// stopIfEmpty reports whether the run ends: no exchange has come meanwhile.
func (w *watch) stopIfEmpty() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = w.first != nil
	return !w.running
}

// pause stops the clock while the client is waited for.
func (x *exchange) pause() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.paused = true
}

// resume starts the clock again, from the beginning: the upstream took what was sent so far.
func (x *exchange) resume() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.paused = false
	if d := time.Duration(x.upstream.cfg.ResponseTimeout); d > 0 && !x.left {
		x.deadline = x.upstream.now() + d
	}
}

// pauseBetweenTargets is called when one target is given up and the next not found yet.
func (x *exchange) pauseBetweenTargets() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.betweenTargets = true
}

// restart starts the clock for another target.
func (x *exchange) restart() {
	x.mu.Lock()
	x.betweenTargets, x.started = false, x.upstream.now()
	x.mu.Unlock()
	x.resume()
}

// endWait ends the wait for the answer and reports whether the client is still there.
func (x *exchange) endWait() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.answered = true
	if !x.left && x.client.Err() != nil { // the watch has not noticed yet
		x.left = true
		if !x.betweenTargets {
			x.upstream.shared.abandoned.Add(1)
		}
	}
	return !x.left
}

// cancelledBy returns why the gateway has cancelled the request, nil if it has not.
func (x *exchange) cancelledBy() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.cause
}

// overdue reports whether the exchange must be cancelled at time now. Either the wait has lasted
// too long, or the client has left and the upstream has had its time. The watch calls it with its
// mutex held.
func (x *exchange) overdue(now time.Duration, round uint64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.betweenTargets {
		return false // it waits at a gate, which notices when the client leaves
	}
	if !x.answered {
		x.service.observe(round, x.started)
	}
	gone := x.client.Err() != nil
	switch {
	case x.cause != nil:
		return false
	case x.answered:
		if gone {
			x.cause = errClientLeft
		}
	case gone && !x.left:
		x.left = true
		x.upstream.shared.abandoned.Add(1)
		if x.upstream.cfg.OnAbandon == config.Release || x.call.GRPC { // gRPC hands a reset on, and its servers heed it
			x.cause = errClientLeft
			break
		}
		x.deadline = x.expectedEnd(now, round)
	case x.deadline == 0 || now < x.deadline || x.paused && !x.left:
	case x.left:
		x.cause = errClientLeft
	default:
		x.cause = errResponseTimeout
	}
	return x.cause != nil
}

// expectedEnd estimates when the upstream will be done with the request. 0 means that the slot is
// kept as long as it takes. A request that has lasted longer than the mean of its route is a long
// one. It is expected to take as long again: nothing better is known of heavy-tailed work. The same
// rule applies to the age of the oldest request of its route without an answer, because the
// upstream may be stuck. Before the first answer on a route nothing is known. Then the request
// keeps its slot as long as it would with its client there.
func (x *exchange) expectedEnd(now time.Duration, round uint64) time.Duration {
	mean := x.upstream.shared.services.expected(x.service)
	if mean == 0 {
		return x.deadline
	}
	end := now + max(mean, now-x.started, x.service.age(round, now))
	if x.deadline > 0 {
		end = min(end, x.deadline)
	}
	return end
}

// services are the service times of an upstream by route, because routes differ. Their
// number is bounded by the configuration, and over very many reloads with ever new names by
// maxServices.
type services struct {
	all   mean
	guess atomic.Int64 // in ns, for routes without an answer yet; 0: none
	n     atomic.Int32
	each  sync.Map // of *service, by the route's name
}

// maxServices is how many routes are measured. The service time of others stays unknown.
const maxServices = 10_000

// service is what is known of the requests of one route; nil: nothing.
type service struct {
	mean mean

	// oldest is when the oldest request that waits for an answer was sent, as of the
	// watch's round. The watch's mutex guards both.
	round  uint64
	oldest time.Duration
}

// forRoute returns the service of a route, nil if there are too many.
func (s *services) forRoute(route string) *service {
	if v, ok := s.each.Load(route); ok {
		return v.(*service)
	}
	if s.n.Load() >= maxServices {
		return nil
	}
	v, known := s.each.LoadOrStore(route, new(service))
	if !known {
		s.n.Add(1)
	}
	return v.(*service)
}

// add counts an answer that took so long.
func (s *services) add(sv *service, took time.Duration) {
	s.all.add(took)
	if sv != nil {
		sv.mean.add(took)
	}
}

// expected returns how long a request takes on average, 0 if nothing is known.
func (s *services) expected(sv *service) time.Duration {
	if sv != nil {
		if d := sv.mean.value(); d > 0 {
			return d
		}
	}
	return time.Duration(s.guess.Load())
}

// observe is called with each request that has no answer yet, from the oldest to the
// newest. It was sent at started.
func (sv *service) observe(round uint64, started time.Duration) {
	if sv != nil && sv.round != round {
		sv.round, sv.oldest = round, started
	}
}

// age returns how long the oldest request of the route has waited for an answer. It counts the
// requests that the watch has scanned in this round.
func (sv *service) age(round uint64, now time.Duration) time.Duration {
	if sv == nil || sv.round != round {
		return 0
	}
	return now - sv.oldest
}

// mean is a moving mean of service times. One of two updates at the same moment may be lost. That
// does not matter to a mean.
type mean struct{ ns atomic.Int64 }

// meanWeight is how many answers the mean covers, roughly.
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
