package limit

import (
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/gate"
	"github.com/weir-go/weir/internal/room"
)

// refusals are the rejections that do not depend on one request.
// They are replaced, never written to, when the limit or the wait changes.
type refusals struct {
	limit, queueFull, draining *weir.Rejection
}

// full is the refusal for want of a place. So many may wait: all places, or fewer
// in a queue that stands. One is shared by all that say the same.
func (l *Limiter) full(places int) *weir.Rejection {
	shared := l.refusal.Load().queueFull
	if places >= l.room.Size() {
		return shared
	}
	n := float64(places)
	if r := l.cut; r == nil || r.Limit != n || r.RetryAfter != shared.RetryAfter || r.Signal != shared.Signal {
		cut := *shared
		cut.Value, cut.Limit = n, n
		l.cut = &cut
	}
	return l.cut
}

// displaced is the refusal of a waiter that has lost its place.
func (l *Limiter) displaced(w, by *room.Waiter) *weir.Rejection {
	r := l.full(l.room.Bound())
	if rule := gate.Rule(w, by); rule != "" {
		own := *r
		own.Rule = rule
		return &own
	}
	return r
}

// refresh brings the shared refusals up to date.
func (l *Limiter) refresh(now time.Duration) {
	l.refreshAt = now + gate.RefreshEvery
	wait := l.wait()
	limit, places := float64(l.limit), float64(l.room.Size())
	if old := l.refusal.Load(); !l.refusalsStale && old.limit.RetryAfter == wait {
		return
	}
	l.refusalsStale = false
	r := &refusals{
		limit: &weir.Rejection{Gate: l.front.Name(), Reason: weir.ReasonLimit, Value: limit, Limit: limit,
			RetryAfter: wait, Retryable: true, Signal: l.signal},
		queueFull: &weir.Rejection{Gate: l.front.Name(), Reason: weir.ReasonQueueFull, Value: places, Limit: places,
			RetryAfter: wait, Retryable: true, Signal: l.signal},
		draining: l.front.Draining(),
	}
	if places == 0 { // work could not wait: what it lacks is a slot
		r.queueFull = r.limit
	}
	l.refusal.Store(r)
}

// wait estimates how long a newcomer would wait. It goes by how fast slots came
// back when they were wanted, or else by the service time of the last window.
func (l *Limiter) wait() time.Duration {
	return gate.Wait(int64(l.room.Len()), l.drain.Rate, l.limit, l.median)
}

// comeBack adds to a refusal when to come back, and the signal that binds the limit.
func (l *Limiter) comeBack(r *weir.Rejection) *weir.Rejection {
	r.RetryAfter, r.Signal = l.wait(), l.signal
	return r
}
