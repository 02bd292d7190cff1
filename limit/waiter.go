package limit

import (
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/room"
	"github.com/weir-go/weir/internal/waiting"
)

// waiter is work in the wait room. A goroutine blocks until there is an answer, or
// there is a callback.
type waiter struct {
	room.Waiter
	waiting.Answer
	limiter *Limiter
	cost    int64
	outOf   weir.Reason // what it means when the waiter expires

	wake func(weir.Permit, error) // the callback
	work weir.Work                // with wake only, as the next
	site string                   // who asked, for the leak finder
}

// answers are of waiters that have left the room, to be delivered when the lock has
// been released.
type answers = waiting.Answers

// stands sets whom the waiter stands for: w, of a cost, that has to be done by
// deadline.
func (p *waiter) stands(l *Limiter, w *weir.Work, cost int64, deadline time.Duration) {
	p.cost, p.Units = cost, min(cost, l.limit)
	p.Class, p.User, p.Tenant, p.Deadline = int8(w.Priority.Class()), w.User, w.Tenant, deadline
	p.UserWeight, p.TenantWeight = l.parts.Weights(w.User, w.Tenant)
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
	w := &waiter{limiter: l}
	w.Owner = w
	w.Block()
	return w
}

// free gives a waiter back whose answer, if any, has been received.
func (w *waiter) free() {
	w.Forget()
	w.User, w.Tenant = "", ""
	w.limiter.places.Put(w)
}

// Answered implements [waiting.Caller]: it calls back.
func (w *waiter) Answered() {
	l := w.limiter
	if w.Refused != nil {
		w.wake(weir.Permit{}, l.refuse(&w.work, w.Refused))
		return
	}
	l.admitted(&w.work, l.now()-w.Arrived)
	w.wake(l.track(w.Permit, w.site), nil)
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
	answered.Deliver()
	return queued
}
