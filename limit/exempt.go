package limit

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/gate"
	"github.com/weir-go/weir/internal/room"
)

// DefaultExempt is the most exempt work at once where Config.Exempt is 0. It is
// far above what health checks and operators need. It still bounds a program
// that marks too much as exempt.
const DefaultExempt = 1024

// exempt counts exempt work. It has slots and a lock of its own. Exempt work waits for
// nobody, and the controller sees nothing of it. A permit's slot says where it was
// counted, so the counts stay right if the settings change before it ends.
//
// The limiter's lock, where both are needed, is taken first.
type exempt struct {
	limiter *Limiter
	max     atomic.Int64 // most at once; negative: nothing is exempt

	mu       sync.Mutex
	slots    gate.Pool[time.Duration] // when each was taken
	inFlight int64
	admitted uint64
	closed   bool
	drain    gate.Drain
	service  room.Service

	refused   uint64          // beyond the cap
	refusal   *weir.Rejection // shared for as long as refreshEvery
	refreshAt time.Duration
}

func (e *exempt) init(l *Limiter, now time.Duration) {
	e.limiter = l
	e.slots.Init(e, 0, 0)
	e.drain.Reset(now)
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

// applies reports whether w is exempt here.
func (e *exempt) applies(w *weir.Work) bool { return w.Exempt && e.max.Load() >= 0 }

// admit admits exempt work up to the cap.
func (e *exempt) admit(now time.Duration) (weir.Permit, *weir.Rejection) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return weir.Permit{}, e.limiter.refusal.Load().draining
	}
	if most := e.max.Load(); e.inFlight >= most {
		return weir.Permit{}, e.refuse(now, most)
	}
	e.inFlight++
	e.admitted++
	return e.slots.Issue(&now), nil
}

// refuse is the refusal beyond the cap. RetryAfter is estimated from how fast exempt
// work ended while some was refused, or else from how long it takes.
func (e *exempt) refuse(now time.Duration, most int64) *weir.Rejection {
	e.refused++
	e.drain.Want(now)
	if e.refusal != nil && now < e.refreshAt {
		return e.refusal
	}
	rate := e.drain.Current(now)
	if median := e.service.Median(); rate == 0 && median > 0 {
		rate = float64(most) / median.Seconds()
	}
	e.refreshAt = now + refreshEvery
	e.refusal = &weir.Rejection{Gate: e.limiter.front.Name(), Rule: "exempt", Reason: weir.ReasonLimit,
		Value: float64(e.inFlight), Limit: float64(most), RetryAfter: gate.Wait(0, rate), Retryable: true}
	return e.refusal
}

// end takes p back and returns how long it was held, or false if p
// was not live.
func (e *exempt) end(p weir.Permit, started bool) (held time.Duration, sampled, ok bool) {
	l := e.limiter
	now := l.front.Now()
	e.mu.Lock()
	var start time.Duration
	sampled, ok = e.slots.Recall(p, &start)
	if !ok {
		e.mu.Unlock()
		return 0, false, false
	}
	held = max(0, now-start)
	full := e.inFlight >= e.max.Load()
	e.inFlight--
	e.drain.Finish(now, 1, full)
	if started {
		e.service.Add(held)
	} else {
		e.admitted--
	}
	closed := e.closed
	e.mu.Unlock()
	if closed {
		l.mu.Lock()
		l.update(now) // a closed gate has no waiters: no answers
		l.mu.Unlock()
	}
	return held, sampled, true
}

// PermitDone implements [weir.Holder].
func (e *exempt) PermitDone(p weir.Permit, o weir.Outcome) {
	if held, sampled, ok := e.end(p, true); ok && !sampled {
		e.limiter.front.Finished(o, held)
	}
}

// PermitCancelled implements [weir.Holder].
func (e *exempt) PermitCancelled(p weir.Permit) { e.end(p, false) }

// PermitSampled implements [weir.Holder]. The hook hears of it, nobody else.
func (e *exempt) PermitSampled(p weir.Permit, o weir.Outcome) {
	now := e.limiter.front.Now()
	e.mu.Lock()
	if !p.Slot().MarkSampled(p) {
		e.mu.Unlock()
		return
	}
	held := max(0, now-e.slots.At(p).Use)
	e.mu.Unlock()
	e.limiter.front.Finished(o, held)
}

// SlotFreed implements [weir.Holder]; a slot of these is never freed inline.
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

// unserved counts the refusals for want of a slot. Refusals of exempt work do not
// count, and the controller must not hear of them.
func (l *Limiter) unserved() uint64 {
	n := l.front.Unserved()
	l.exempt.mu.Lock()
	defer l.exempt.mu.Unlock()
	return n - min(n, l.exempt.refused)
}
