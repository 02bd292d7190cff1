package limit

import (
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/room"
)

// waiter is work in the wait room. It is answered exactly once, by whoever
// takes it out of the room under the limiter's lock; the answer is delivered
// after the lock has been released.
type waiter struct {
	room.Waiter
	limiter *Limiter
	cost    int64
	outOf   weir.Reason // what it means when the waiter expires

	permit weir.Permit
	err    error
	next   *waiter // in the list of answers to deliver

	// One of the two: a goroutine that blocks on ready, or a callback.
	ready chan struct{}
	wake  func(weir.Permit, error)
	work  weir.Work // with wake only, as the next
	site  string    // who asked, for the leak finder
}

// stands sets whom the waiter stands for: w, of a cost, that has to be done by
// deadline.
func (p *waiter) stands(l *Limiter, w *weir.Work, cost int64, deadline time.Duration) {
	p.cost, p.Units = cost, min(cost, l.limit)
	p.Class, p.User, p.Tenant, p.Deadline = int8(w.Priority.Class()), w.User, w.Tenant, deadline
	p.UserWeight, p.TenantWeight = 1, 1
	if l.weighted {
		p.UserWeight, p.TenantWeight = l.weights.of(w.User, w.Tenant)
	}
}

// nameless reports whether w says nothing of itself by which it might go before
// others.
func nameless(w *weir.Work) bool {
	return w.Priority <= weir.Normal && w.User == "" && w.Tenant == ""
}

// place returns a waiter for a goroutine that blocks. Waiters are kept for reuse
// with their channel, by the limiter they belong to: a channel made in one
// testing/synctest bubble must not be used in another.
func (l *Limiter) place() *waiter {
	if w, ok := l.places.Get().(*waiter); ok {
		return w
	}
	w := &waiter{limiter: l, ready: make(chan struct{}, 1)}
	w.Owner = w
	return w
}

// free gives a waiter back whose answer, if any, has been received.
func (w *waiter) free() {
	w.permit, w.err, w.next = weir.Permit{}, nil, nil
	w.User, w.Tenant = "", ""
	w.limiter.places.Put(w)
}

// answers is a list of waiters that have been answered under the lock.
type answers struct{ first, last *waiter }

func (a *answers) add(w *waiter) {
	if a.first == nil {
		a.first = w
	} else {
		a.last.next = w
	}
	a.last = w
}

// remove takes w, which is in the list, out again.
func (a *answers) remove(w *waiter) {
	var before *waiter
	for at := a.first; at != w; at = at.next {
		before = at
	}
	if before == nil {
		a.first = w.next
	} else {
		before.next = w.next
	}
	if a.last == w {
		a.last = before
	}
	w.next = nil
}

// deliver wakes everybody. The lock must not be held: callbacks may call the
// gate, and a woken goroutine will.
func (a *answers) deliver() {
	for w := a.first; w != nil; {
		next := w.next
		if w.wake == nil {
			w.ready <- struct{}{} // never blocks: one answer, one place
		} else {
			w.deliverCallback()
		}
		w = next
	}
}

func (w *waiter) deliverCallback() {
	l := w.limiter
	if w.err != nil {
		w.wake(weir.Permit{}, l.refuse(&w.work, w.err.(*weir.Rejection)))
		return
	}
	l.admitted(&w.work, l.now()-w.Arrived)
	w.wake(l.track(w.permit, w.site), nil)
}

// Cancel implements [weir.Waiter].
func (w *waiter) Cancel() bool {
	l := w.limiter
	now := l.now()
	l.mu.Lock()
	queued := l.room.GiveUp(now, &w.Waiter)
	if queued && l.room.Len() == 0 {
		l.window.Saturated(now, l.bank < 1) // as settle does while somebody waits
	}
	answered := l.settle(now) // it may have been in the way of others
	l.mu.Unlock()
	answered.deliver()
	return queued
}
