package proxy

import (
	"sync"
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
		due, any = w.look(now, due[:0])
		for i, x := range due {
			x.cancel() // with no lock held: others hear of it
			due[i] = nil
		}
		if any {
			busy = now
		} else if now-busy > watchLinger && w.rest() {
			return
		}
	}
}

// look returns the exchanges that are to be cancelled, and whether there are any
// at all.
func (w *watch) look(now time.Duration, due []*exchange) ([]*exchange, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.round++
	for x := w.last; x != nil; x = x.prev {
		if x.check(now, w.round) {
			due = append(due, x)
		}
	}
	return due, w.first != nil
}

// rest ends the run, unless an exchange has come meanwhile.
func (w *watch) rest() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = w.first != nil
	return !w.running
}
