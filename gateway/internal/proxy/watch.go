package proxy

import (
	"sync"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/hold"
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
			x.stop() // with no lock held: it calls others
			due[i] = nil
		}
		if any {
			busy = now
		} else if now-busy > watchLinger && w.stopIfEmpty() {
			return
		}
	}
}

// stop cancels an exchange. net/http's transport ends a call only once it has read the body of the
// request, whatever the context says. So what waits for a silent client is woken.
func (x *exchange) stop() {
	x.cancel()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.control != nil {
		_ = x.control.SetReadDeadline(time.Now()) // without deadlines it is no connection
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
	now := x.upstream.now()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.paused, x.pausedAt = true, now
}

// resume starts the clock again, from the beginning: the upstream took what was sent so far.
func (x *exchange) resume() {
	now := x.upstream.now()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.paused {
		x.paused = false
		x.waitedFor += now - x.pausedAt
	}
	if d := time.Duration(x.upstream.cfg.ResponseTimeout); d > 0 && !x.left {
		x.deadline = now + d
	}
}

// work returns how long the upstream has worked on the request, as far as one can know. waited is how
// long it has waited for the client meanwhile. The exchange's mutex is held.
func (x *exchange) work(now time.Duration) (worked, waited time.Duration) {
	waited = x.waitedFor
	if x.paused {
		waited += now - x.pausedAt
	}
	return now - x.started - waited, waited
}

// pauseBetweenTargets is called when one target is given up and the next not found yet: nobody works on the request.
func (x *exchange) pauseBetweenTargets() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.betweenTargets = true
}

// pauseWithin does the same before the present target gets the request again in d, and reports whether response_timeout
// leaves time for that.
func (x *exchange) pauseWithin(d time.Duration) bool {
	now := x.upstream.now()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.betweenTargets = x.deadline == 0 || now+d < x.deadline
	return x.betweenTargets
}

// goOn is the end of that pause, which was no work of the target. response_timeout still bounds the whole.
func (x *exchange) goOn() {
	now := x.upstream.now()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.betweenTargets, x.started, x.waitedFor = false, now, 0
}

// restart starts the clock for another target.
func (x *exchange) restart() {
	x.mu.Lock()
	x.betweenTargets, x.started, x.waitedFor = false, x.upstream.now(), 0
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
	if x.betweenTargets && !x.call.cut() {
		return false // it waits at a gate, or before another attempt, and notices when the client leaves
	}
	if !x.answered {
		worked, _ := x.work(now)
		x.route.Observe(round, worked)
	}
	gone := x.client.Err() != nil
	switch {
	case x.cause != nil:
		return false
	case x.call.cut():
		if x.cause = errCut; x.left {
			x.cause = errClientLeft
		}
	case !gone && x.idle(now):
		x.cause = errIdle
	case !gone && x.silent(now):
		x.cause = errSilent
	case x.answered:
		if gone {
			x.cause = errClientLeft
		}
	case gone && !x.left:
		x.left = true
		x.upstream.shared.abandoned.Add(1)
		if x.releases() {
			x.cause = errClientLeft
			break
		}
		x.deadline = x.expectedEnd(now, round, answerWithin)
	case x.deadline == 0 || now < x.deadline || x.paused && !x.left:
	case x.left:
		x.cause = errClientLeft
	default:
		x.cause = errResponseTimeout
	}
	return x.cause != nil
}

// releases reports whether the slot of a client that has left is free at once. gRPC hands a reset on, and its servers heed it.
// But a client may call anything gRPC, so that counts only where calls have been answered.
func (x *exchange) releases() bool {
	return x.upstream.cfg.OnAbandon == config.Release || x.call.GRPC && x.route.HasAnsweredCalls()
}

// silent reports whether the target has sent nothing for too long in the middle of an answer. While the client is
// waited for, the target may have nothing to say. The exchange's mutex is held.
func (x *exchange) silent(now time.Duration) bool {
	most, since := time.Duration(x.upstream.cfg.ResponseIdleTimeout), time.Duration(x.awaited.Load())
	return !x.call.GRPC && most > 0 && since > 0 && !x.paused && now-since >= most
}

// answerWithin is for how many times the expected rest of its work an answer is awaited whose client has left. The answer
// says exactly when the work ends, so this bounds only work that never does. It is this many because few requests can be
// most of the work: one in a hundred that is fifty times the others outlives its client, and takes a third of the upstream.
// Slots that come back before such work has ended let a limit climb that is full of it.
const answerWithin = 32

// expectedEnd estimates when the upstream will be done with the request, or so many times as long from now. 0 means that
// the slot is kept as long as it takes. Before the first answer on a route nothing is known. Then the request keeps its
// slot as long as it would with its client there.
func (x *exchange) expectedEnd(now time.Duration, round uint64, times time.Duration) time.Duration {
	worked, _ := x.work(now)
	rest := times * x.upstream.shared.times.Rest(x.route, worked, x.route.Oldest(round))
	if rest == 0 {
		return x.deadline
	}
	if x.deadline > 0 {
		return min(now+rest, x.deadline)
	}
	return now + rest
}

// restOf returns for how long a slot is held after the connection to the upstream has been closed.
// The upstream got the request in part, or whole, and nobody will hear when it is done.
func (w *watch) restOf(x *exchange) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	now := x.upstream.now()
	end := x.expectedEnd(now, w.round, 1)
	if end == 0 {
		return hold.Unknown
	}
	return end - now
}
