package limit

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/room"
)

// DefaultExempt is the most exempt work at once where Config.Exempt is 0. It is
// far above what health checks and operators need, and bounds what a program
// that marks too much as exempt can do.
const DefaultExempt = 1024

// exempt is the account of exempt work. It has slots and a lock of its own: such
// work neither waits for others nor shows in what the controller sees, no slot
// of the limit, no sample, no part of its windows. Which account a permit belongs
// to is in its slot, so the books balance whatever becomes of the Work, or of the
// settings, between admission and end.
//
// The limiter's lock, where both are needed, is taken first.
type exempt struct {
	limiter *Limiter
	max     atomic.Int64 // most at once; negative: nothing is exempt

	mu       sync.Mutex
	shared   weir.Slots // attention stays raised: every release comes through here
	seats    []*seat    // by slot id
	spare    []*seat
	inFlight int64
	admitted uint64
	closed   bool
	drain    drain
	service  room.Service

	refusal   *weir.Rejection // shared for as long as refreshEvery
	refreshAt time.Duration
}

// seat is a slot of exempt work.
type seat struct {
	weir.Slot
	start time.Duration
}

func (e *exempt) init(l *Limiter, now time.Duration) {
	e.limiter = l
	e.shared.Attention.Store(1)
	e.drain.reset(now)
}

// configure sets the cap. More than that may be in flight after it has shrunk.
func (e *exempt) configure(limit int64) {
	if limit == 0 {
		limit = DefaultExempt
	}
	e.max.Store(max(-1, limit))
	e.mu.Lock()
	e.refusal = nil
	e.mu.Unlock()
}

// spares reports whether w is exempt here.
func (e *exempt) spares(w *weir.Work) bool { return w.Exempt && e.max.Load() >= 0 }

// arriveExempt decides about exempt work. The end of its context, its deadline
// and a closed gate count for it as for any other work.
func (l *Limiter) arriveExempt(ctx context.Context, w *weir.Work) (weir.Permit, error) {
	now := l.now()
	refused := l.hopeless(ctx, w)
	if refused == nil {
		_, refused = l.bounds(w, now, false)
	}
	var p weir.Permit
	if refused == nil {
		p, refused = l.exempt.take(now)
	}
	switch {
	case refused == nil:
	case refused.Reason == weir.ReasonLimit: // no want of a slot: the controller must not hear of it
		l.count.exempt.Add(1)
		l.rejected(w, refused)
		return weir.Permit{}, refused
	default:
		return weir.Permit{}, l.refuse(w, refused)
	}
	l.admitted(w, 0)
	return l.track(p, l.site()), nil
}

func (e *exempt) take(now time.Duration) (weir.Permit, *weir.Rejection) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return weir.Permit{}, e.limiter.refusal.Load().draining
	}
	if most := e.max.Load(); e.inFlight >= most {
		return weir.Permit{}, e.refuse(now, most)
	}
	if len(e.spare) == 0 {
		s := &seat{}
		s.Init(e, &e.shared, uint32(len(e.seats)))
		e.seats, e.spare = append(e.seats, s), append(e.spare, s)
	}
	last := len(e.spare) - 1
	s := e.spare[last]
	e.spare = e.spare[:last]
	e.inFlight++
	e.admitted++
	s.start = now
	return s.Issue(), nil
}

// refuse is the refusal beyond the cap. It says when exempt work can be expected
// to end: from how fast it did while some was refused, or else from how long it
// takes.
func (e *exempt) refuse(now time.Duration, most int64) *weir.Rejection {
	e.drain.want(now)
	if e.refusal != nil && now < e.refreshAt {
		return e.refusal
	}
	rate := e.drain.current(now)
	if median := e.service.Median(); rate == 0 && median > 0 {
		rate = float64(most) / median.Seconds()
	}
	e.refreshAt = now + refreshEvery
	e.refusal = &weir.Rejection{Gate: e.limiter.name, Rule: "exempt", Reason: weir.ReasonLimit,
		Value: float64(e.inFlight), Limit: float64(most), RetryAfter: wait(0, rate), Retryable: true}
	return e.refusal
}

// end gives the seat of p back and returns how long it was held, or false if p
// was not live.
func (e *exempt) end(p weir.Permit, started bool) (held time.Duration, sampled, ok bool) {
	l := e.limiter
	now := l.now()
	e.mu.Lock()
	live, sampled := p.Slot().Recall(p)
	if !live {
		e.mu.Unlock()
		return 0, false, false
	}
	s := e.seats[p.Slot().ID()]
	held = max(0, now-s.start)
	full := e.inFlight >= e.max.Load()
	e.inFlight--
	e.spare = append(e.spare, s)
	e.drain.finish(now, 1, full)
	if started {
		e.service.Add(held)
	} else {
		e.admitted--
	}
	closed := e.closed
	e.mu.Unlock()
	if closed {
		l.mu.Lock()
		l.settle(now) // a closed gate has no waiters: no answers
		l.mu.Unlock()
	}
	return held, sampled, true
}

// PermitDone implements [weir.Holder].
func (e *exempt) PermitDone(p weir.Permit, o weir.Outcome) {
	if held, sampled, ok := e.end(p, true); ok && !sampled {
		e.limiter.finished(o, held)
	}
}

// PermitCancelled implements [weir.Holder].
func (e *exempt) PermitCancelled(p weir.Permit) { e.end(p, false) }

// PermitSampled implements [weir.Holder]. The hook hears of it, nobody else.
func (e *exempt) PermitSampled(p weir.Permit, o weir.Outcome) {
	now := e.limiter.now()
	e.mu.Lock()
	if !p.Slot().MarkSampled(p) {
		e.mu.Unlock()
		return
	}
	held := max(0, now-e.seats[p.Slot().ID()].start)
	e.mu.Unlock()
	e.limiter.finished(o, held)
}

// SlotFreed implements [weir.Holder]; a seat is never freed inline.
func (e *exempt) SlotFreed(*weir.Slot) {}

// close has what comes refused.
func (e *exempt) close() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
}

// read returns what is in flight, and what has been admitted.
func (e *exempt) read() (inFlight int64, admitted uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.inFlight, e.admitted
}
