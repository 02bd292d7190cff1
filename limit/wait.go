package limit

import (
	"context"
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

// inVain counts a newcomer that has to wait and sets until when it may. It
// refuses it at once where its turn would come too late: when what is in front of
// it takes longer, at the rate at which slots come back, than it may wait, or
// leaves it less than the median service time before its deadline.
//
// Who is first in line is never refused by an estimate: somebody should be there
// when a slot comes back. Nor is anybody while the rate is unknown.
func (l *Limiter) inVain(now time.Duration, until bounds, place *waiter) *weir.Rejection {
	rate, median := l.drain.current(now), l.service.Median()
	l.room.SetPace(room.PaceAt(rate, median))
	l.room.Knock(now, &place.Waiter)
	place.until(now, until, median)
	if rate == 0 || l.room.Len() == 0 {
		return nil
	}
	ahead := l.room.Ahead(&place.Waiter)
	wait := turn(ahead, place, rate)
	switch {
	case ahead == 0 && !l.room.NewestFirst(): // first in line in its own right
		return nil
	case until.allow(now, wait, median):
		return nil
	case l.room.Turn(&place.Waiter) && until.allow(now, turn(l.room.Ahead(&place.Waiter), place, rate), median):
		return nil
	}
	r := &weir.Rejection{Gate: l.name, Reason: weir.ReasonQueueTimeout, Retryable: true,
		Value: wait.Seconds(), Limit: (until.patience - now).Seconds(), RetryAfter: l.wait(), Signal: l.signal}
	if wait <= until.patience-now {
		r.Reason, r.Cause = weir.ReasonDeadline, context.DeadlineExceeded
		r.Value, r.Limit = (wait + median).Seconds(), (until.deadline - now).Seconds()
	}
	return r
}

// turn estimates after what time it would be place's turn, with so many units
// served before it.
func turn(ahead int64, place *waiter, rate float64) time.Duration {
	return seconds((float64(ahead) + float64(place.Units)) / rate)
}

// allow reports whether there is time for a wait, and for the service after it.
func (b *bounds) allow(now, wait, service time.Duration) bool {
	return wait <= b.patience-now && wait <= b.deadline-now-service
}

// until sets when w leaves the room: when it has waited as long as it may, or
// when less than the median service time is left before its deadline, for work
// that would probably be done too late is not worth a slot. Where less is left
// from the outset it may try until the deadline itself.
func (w *waiter) until(now time.Duration, b bounds, median time.Duration) {
	w.Expires, w.outOf = b.patience, weir.ReasonQueueTimeout
	last := b.deadline
	if last != room.Never && last-median > now {
		last -= median
	}
	if last < w.Expires {
		w.Expires, w.outOf = last, weir.ReasonDeadline
	}
}

// seconds is a duration, cut to what fits with room to spare.
func seconds(s float64) time.Duration {
	const most = 1 << 30
	return time.Duration(min(s, most) * float64(time.Second))
}
