package limit

import (
	"cmp"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/gate"
	"github.com/weir-go/weir/internal/room"
)

// refusals are the rejections that do not depend on one request.
// They are replaced, never written to, when the limit or a wait changes.
type refusals struct {
	limit, draining *weir.Rejection
	queueFull       [room.Classes]*weir.Rejection
	told            [room.Classes]time.Duration // RetryAfter of each class, if there are places
}

// noSlot is the refusal of work for want of slots. Some are free if the work costs more than those, or if others
// wait for them.
func (l *Limiter) noSlot() *weir.Rejection {
	r := l.refusal.Load().limit
	if l.bank < 1 {
		return r
	}
	value := float64(l.inFlight())
	if l.few == nil || l.fewOf != r || l.few.Value != value {
		few := *r
		few.Value = value
		l.few, l.fewOf = &few, r
	}
	return l.few
}

// full is the refusal of a class for want of a place. So many may wait: all places, or
// fewer in a queue that stands. One is shared by all that say the same.
func (l *Limiter) full(class int8, places int) *weir.Rejection {
	all := l.refusal.Load()
	shared := all.queueFull[class]
	if shared == all.limit {
		return l.noSlot()
	}
	if places >= l.room.Size() {
		return shared
	}
	n := float64(places)
	if r := l.cut[class]; r == nil || r.Limit != n || r.RetryAfter != shared.RetryAfter || r.Signal != shared.Signal {
		cut := *shared
		cut.Value, cut.Limit = n, n
		l.cut[class] = &cut
	}
	return l.cut[class]
}

// displaced is the refusal of a waiter that has lost its place.
func (l *Limiter) displaced(w, by *room.Waiter) *weir.Rejection {
	r := l.full(w.Class, l.room.Bound())
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
	limit, places := float64(l.limit), float64(l.room.Size())
	unwaiting, told := l.comeBackIn(now, room.Unwaiting), [room.Classes]time.Duration{}
	for class := range told {
		told[class] = l.comeBackIn(now, class)
	}
	if old := l.refusal.Load(); !l.refusalsStale && old.limit.RetryAfter == unwaiting && old.told == told {
		return
	}
	l.refusalsStale = false
	r := &refusals{told: told, draining: l.front.Draining()}
	r.limit = &weir.Rejection{Gate: l.front.Name(), Reason: weir.ReasonLimit, Value: limit, Limit: limit,
		RetryAfter: unwaiting, Retryable: true, Signal: l.signal}
	for class, told := range told {
		if places == 0 { // work could not wait: what it lacks is a slot
			r.queueFull[class] = r.limit
			continue
		}
		r.queueFull[class] = &weir.Rejection{Gate: l.front.Name(), Reason: weir.ReasonQueueFull, Value: places, Limit: places,
			RetryAfter: told, Retryable: true, Signal: l.signal}
	}
	l.refusal.Store(r)
}

// wait estimates how long a newcomer of the usual priority would wait. It goes by how
// fast slots came back when they were wanted, or else by the service time of the last window. It is 0 while
// nothing has been measured.
func (l *Limiter) wait() time.Duration {
	if l.drain.Rate == 0 && l.takes() == 0 {
		return 0
	}
	return gate.Wait(l.room.AheadOf(weir.Normal.Class()), l.drain.Rate, l.limit, l.takes())
}

// comeBackIn is when work of a class that is refused now is to come back.
func (l *Limiter) comeBackIn(now time.Duration, class int) time.Duration {
	return gate.ComeBack(&l.room, now, class, l.drain.Rate, l.limit, l.takes())
}

// comeBack adds to a refusal when to come back, and the signal that binds the limit.
func (l *Limiter) comeBack(now time.Duration, class int8, r *weir.Rejection) *weir.Rejection {
	r.RetryAfter, r.Signal = l.comeBackIn(now, int(class)), l.signal
	return r
}

// takes is how long work takes: in the last window, or lately where there are no windows, as with a fixed limit.
func (l *Limiter) takes() time.Duration { return cmp.Or(l.median, l.service.Median()) }
