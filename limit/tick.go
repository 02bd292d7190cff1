package limit

import (
	"time"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/room"
	"github.com/weir-go/weir/internal/window"
)

// idleWindow is the length of the windows of an observed limiter whose
// controller wants none: they only keep the expected service time current.
const idleWindow = time.Second

// schedule sets the end of the present window.
func (l *Limiter) schedule(now, length time.Duration) {
	switch {
	case length > 0:
		l.tickAt = now + min(length, room.Never-now)
	case l.observed:
		l.tickAt = now + idleWindow
	default:
		l.tickAt = room.Never
	}
	l.arm(now)
}

// Next returns when [Limiter.Step] is due, on the clock of Config.Now, and
// false if nothing is pending.
func (l *Limiter) Next() (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := min(l.tickAt, l.room.Expiry())
	return at, at != room.Never
}

// Step does what is due: waiters whose time is up are refused, and a window
// that has ended goes to the controller. Calling it early does no harm. A
// limiter on the real clock does it by itself.
func (l *Limiter) Step() {
	now := l.now()
	l.mu.Lock()
	l.armed = room.Never
	due := l.tickAt <= now && !l.closed
	if due {
		l.tickAt = room.Never // one at a time
	}
	answered := l.settle(now)
	l.arm(now)
	l.mu.Unlock()
	answered.Deliver()
	if due {
		changed, answered, problem := l.tick()
		answered.Deliver()
		changed.tell(l)
		l.faulty(problem)
	}
}

// tick closes the window: measure, decide, apply. The controller and the signals
// are asked without the limiter's lock. The problem is the first nonsense that
// came of it, empty if there was none.
func (l *Limiter) tick() (change, answers, string) {
	l.control.Lock()
	defer l.control.Unlock()
	w := &l.reading
	now := l.now()
	l.mu.Lock()
	l.read(now, w)
	l.mu.Unlock()

	window.Finish(w)
	d, problem := l.ask(w)

	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return change{}, answers{}, ""
	}
	if w.Timed > 0 {
		l.median = w.Quantile(0.5)
	}
	if !d.Extend {
		l.window.Reset(now, l.inFlight())
		l.refusedBefore += uint64(w.Refused)
	}
	if problem != "" {
		if l.faults++; l.faults > 1 {
			problem = "" // told once
		}
	}
	changed := l.setLimit(now, d)
	l.schedule(now, d.Next)
	return changed, l.settle(now), problem
}

// read fills in the window.
func (l *Limiter) read(now time.Duration, w *control.Window) {
	l.window.Read(now, w)
	w.Limit, w.InFlight, w.Waiting = l.limit, l.inFlight(), int64(l.room.Len())
	w.Refused = int64(l.count.unserved() - l.refusedBefore)
}

// arm sets the timer for what is due next. It is not moved back when that turns
// out to be later: a call of Step for nothing is cheaper than moving the timer
// with every waiter that leaves.
func (l *Limiter) arm(now time.Duration) {
	if l.clock != nil {
		return
	}
	next := min(l.tickAt, l.room.Expiry())
	if l.closed && l.room.Len() == 0 {
		next = room.Never
	}
	if next >= l.armed {
		return
	}
	l.armed = next
	if l.timer == nil {
		l.timer = time.AfterFunc(next-now, l.Step)
		return
	}
	l.timer.Reset(next - now)
}
