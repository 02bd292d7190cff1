package limit

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/room"
	"github.com/weir-go/weir/internal/waiting"
)

// counters are the counts that no lock guards.
type counters struct {
	rejected  [16]atomic.Uint64 // by weir.Reason
	exempt    atomic.Uint64     // refused beyond the cap on exempt work
	cancelled atomic.Uint64     // permits given back as never started
	leaked    atomic.Uint64
}

// refusals are the rejections in which nothing is particular to one request.
// They are replaced, never written to, when the limit or the wait changes.
type refusals struct {
	limit, queueFull, draining *weir.Rejection
}

// full is the refusal for want of a place, where so many may wait: all places, or
// fewer in a queue that stands. One is shared by all that say the same.
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
	if rule := waiting.Rule(w, by); rule != "" {
		own := *r
		own.Rule = rule
		return &own
	}
	return r
}

// oversize is the refusal of a cost above the limit. A limit that a controller
// moves may grow to it.
func (l *Limiter) oversize(cost int64) *weir.Rejection {
	_, fixed := l.controller.(control.Fixed)
	return &weir.Rejection{Gate: l.name, Reason: weir.ReasonTooLarge, Retryable: !fixed,
		Value: float64(cost), Limit: float64(l.limit), Signal: l.signal}
}

// refreshEvery bounds how often the shared refusals are made anew for a changed
// estimate of the wait.
const refreshEvery = 100 * time.Millisecond

// refresh brings the shared refusals up to date.
func (l *Limiter) refresh(now time.Duration) {
	l.refreshAt = now + refreshEvery
	wait := l.wait()
	limit, places := float64(l.limit), float64(l.room.Size())
	if old := l.refusal.Load(); !l.resized && old.limit.RetryAfter == wait {
		return
	}
	l.resized = false
	r := &refusals{
		limit: &weir.Rejection{Gate: l.name, Reason: weir.ReasonLimit, Value: limit, Limit: limit,
			RetryAfter: wait, Retryable: true, Signal: l.signal},
		queueFull: &weir.Rejection{Gate: l.name, Reason: weir.ReasonQueueFull, Value: places, Limit: places,
			RetryAfter: wait, Retryable: true, Signal: l.signal},
		draining: &weir.Rejection{Gate: l.name, Reason: weir.ReasonDraining, Retryable: true},
	}
	if places == 0 { // work could not wait: what it lacks is a slot
		r.queueFull = r.limit
	}
	l.refusal.Store(r)
}

// wait estimates how long a newcomer would wait: from how fast slots came back
// when they were wanted, or else from the service time of the last window.
func (l *Limiter) wait() time.Duration {
	rate := l.drain.rate
	if rate == 0 && l.median > 0 {
		rate = float64(l.limit) / l.median.Seconds()
	}
	return wait(int64(l.room.Len()), rate)
}

// refuseUnlocked refuses what the attention word alone allows to refuse. Whether
// there is a place for work that might go before others is not in the word, nor
// whether a cost is above the limit, which is no reason to come back.
func (l *Limiter) refuseUnlocked(w *weir.Work, waits bool) *weir.Rejection {
	word := l.shared.Attention.Load()
	switch {
	case word&isClosed != 0:
		return l.refusal.Load().draining
	case word&noSlot == 0 || w.Cost > 1 && l.refuseOversize.Load():
		return nil
	case !waits:
		return l.refusal.Load().limit
	case word&roomFull == 0 || !nameless(w):
		return nil
	}
	return l.refusal.Load().queueFull
}

// hopeless refuses work that must not be served whatever is free: its context
// is done, or its cost is none.
func (l *Limiter) hopeless(ctx context.Context, w *weir.Work) *weir.Rejection {
	if w.Cost < 0 {
		return &weir.Rejection{Gate: l.name, Reason: weir.ReasonTooLarge, Value: float64(w.Cost)}
	}
	if ctx.Err() != nil {
		return l.givenUp(ctx)
	}
	return nil
}

// bounds are until when work may wait.
type bounds struct {
	patience time.Duration // by the settings, its own and the room's
	deadline time.Duration // by when it has to be done; room.Never without one
}

// bounds returns until when w may wait, or a refusal if its deadline has passed.
func (l *Limiter) bounds(w *weir.Work, now time.Duration, waits bool) (bounds, *weir.Rejection) {
	until := bounds{now, room.Never}
	if waits {
		until.patience = l.patience(now, w)
	}
	if w.Deadline.IsZero() {
		return until, nil
	}
	until.deadline = l.deadline(now, w.Deadline)
	if until.deadline <= now {
		return until, l.late(now - until.deadline)
	}
	return until, nil
}

// patience returns how long w may wait by its own and the room's settings.
func (l *Limiter) patience(now time.Duration, w *weir.Work) time.Duration {
	longest := time.Duration(l.maxWait.Load())
	if w.MaxWait > 0 {
		longest = min(longest, w.MaxWait)
	}
	if longest >= room.Never-now {
		return room.Never
	}
	return now + longest
}

// deadline translates a time of day into the limiter's clock. It counts from the
// present time of day and not from the epoch's: a deadline without a monotonic
// reading would be off by every step the system's clock has made since.
func (l *Limiter) deadline(now time.Duration, t time.Time) time.Duration {
	if l.clock != nil {
		return t.Sub(VirtualEpoch)
	}
	left := time.Until(t)
	if left > room.Never-now {
		return room.Never
	}
	return now + left
}

func (l *Limiter) late(by time.Duration) *weir.Rejection {
	return &weir.Rejection{Gate: l.name, Reason: weir.ReasonDeadline,
		Value: by.Seconds(), Cause: context.DeadlineExceeded}
}

// expired is the refusal of work that has been in the room too long.
func (l *Limiter) expired(now time.Duration, w *room.Waiter) *weir.Rejection {
	waited := now - w.Arrived
	r := &weir.Rejection{Gate: l.name, Reason: w.Owner.(*waiter).outOf, Retryable: true,
		Value: waited.Seconds(), Limit: (w.Expires - w.Arrived).Seconds(),
		RetryAfter: l.wait(), Signal: l.signal}
	if r.Reason == weir.ReasonDeadline {
		r.Cause = context.DeadlineExceeded
	}
	return r
}

// givenUp is the refusal of work whose context is done.
func (l *Limiter) givenUp(ctx context.Context) *weir.Rejection {
	reason := weir.ReasonCanceled
	if ctx.Err() == context.DeadlineExceeded {
		reason = weir.ReasonDeadline
	}
	return &weir.Rejection{Gate: l.name, Reason: reason, Cause: ctx.Err()}
}

// refuse counts a refusal and tells the hook.
func (l *Limiter) refuse(w *weir.Work, r *weir.Rejection) *weir.Rejection {
	l.count.rejected[r.Reason].Add(1)
	l.rejected(w, r)
	return r
}

func (l *Limiter) rejected(w *weir.Work, r *weir.Rejection) {
	if h := l.hooks.Load(); h.Rejected != nil {
		h.Rejected(*w, r)
	}
}

func (l *Limiter) admitted(w *weir.Work, waited time.Duration) {
	if h := l.hooks.Load(); h.Admitted != nil {
		h.Admitted(l.name, *w, waited)
	}
}

func (l *Limiter) finished(o weir.Outcome, service time.Duration) {
	if h := l.hooks.Load(); h.Done != nil {
		h.Done(l.name, o, service)
	}
}
