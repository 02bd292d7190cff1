package proxy

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// watchEvery is how late a time-out or a departure may be noticed.
	watchEvery = 20 * time.Millisecond
	// watchLinger is how long the watch goes on when there is nothing to see, so
	// that single requests do not start it each time.
	watchLinger = time.Second
)

// watch looks after the exchanges in progress: their time-outs, and whether
// their clients are still there. One look at all of them now and then costs a
// fraction of what a timer and a watcher for each would. Its goroutine runs while
// there are exchanges, and a second longer.
type watch struct {
	epoch time.Time

	mu      sync.Mutex
	first   *exchange // the newest
	last    *exchange // the oldest
	round   uint64    // how often all have been looked at
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
			x.cancel() // with no lock held: others hear of it
			due[i] = nil
		}
		if any {
			busy = now
		} else if now-busy > watchLinger && w.stopIfEmpty() {
			return
		}
	}
}

// scan returns the exchanges that are to be cancelled, and whether there are any
// at all.
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

// stopIfEmpty ends the run, unless an exchange has come meanwhile.
func (w *watch) stopIfEmpty() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = w.first != nil
	return !w.running
}

// services is what is known of how long an upstream takes, route by route: what
// is quick on one says nothing about another. Routes are named by the
// configuration, and so is their number bounded; over very many reloads with ever
// new names, by maxServices.
type services struct {
	all   mean
	guess atomic.Int64 // for routes without an answer yet, in ns; 0: none
	n     atomic.Int32
	each  sync.Map // of *service, by the route's name
}

// maxServices is how many routes are told apart. Of more, nothing is known.
const maxServices = 10_000

// service is what is known of one route's requests; nil: nothing.
type service struct {
	mean mean

	// The oldest request that waits for an answer, as of the watch's round. The
	// watch's mutex guards them.
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

// add learns from an answer.
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

// observe is told of a request that was sent at started and has no answer yet. The watch
// shows them from the oldest to the newest.
func (sv *service) observe(round uint64, started time.Duration) {
	if sv != nil && sv.round != round {
		sv.round, sv.oldest = round, started
	}
}

// age returns how long the oldest of the route's requests has been waiting for
// an answer, going by what the watch has seen in this round.
func (sv *service) age(round uint64, now time.Duration) time.Duration {
	if sv == nil || sv.round != round {
		return 0
	}
	return now - sv.oldest
}

// mean is the moving mean of the time an upstream takes to answer. Two updates
// at the same moment may lose one of them, which a mean does not mind.
type mean struct{ ns atomic.Int64 }

// meanWeight is how many answers the mean looks back, roughly.
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
