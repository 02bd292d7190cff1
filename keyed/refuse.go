package keyed

import (
	"context"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/keys"
	"github.com/weir-go/weir/internal/room"
)

// The bounds of an estimated wait, and what is said while nothing is known.
const (
	minWait     = 10 * time.Millisecond
	maxWait     = 30 * time.Second
	unknownWait = time.Second
)

// wait estimates how long one unit that comes now would wait for its key, behind
// ahead others, with all of the limit in use. It goes by how long work takes, of
// all keys of the shard: too little happens to a single one to know its rate.
func (s *shard) wait(most, ahead int64) time.Duration {
	median := s.service.Median()
	if median == 0 {
		return unknownWait
	}
	wait := seconds(float64(ahead+1) * median.Seconds() / float64(most))
	return min(max(wait, minWait), maxWait).Round(time.Millisecond)
}

// wanting is the refusal of work for whose key every slot is taken. One is shared
// between all of them that say the same.
func (s *shard) wanting(set *settings, slot uint32, now time.Duration) *weir.Rejection {
	e := s.table.At(slot)
	held, most, ahead := e.Held(), set.of(e), int64(0)
	if e.Is(keys.Waiting) {
		ahead = s.queues[slot].room.Units()
	}
	retry := s.wait(most, ahead)
	if r := s.refusal; r != nil && r.Value == float64(held) && r.Limit == float64(most) && r.RetryAfter == retry && r.Signal == set.signal {
		return r
	}
	s.refusal = &weir.Rejection{Gate: s.gate.name, Reason: weir.ReasonLimit, Value: float64(held), Limit: float64(most),
		RetryAfter: retry, Retryable: true, Signal: set.signal}
	return s.refusal
}

// oversize is the refusal of a cost above the limit of its key. A limit that a
// controller moves may grow to it. Who asks for too much takes nobody's place among
// the keys that are known.
func (s *shard) oversize(set *settings, a *arrival) *weir.Rejection {
	if slot, ok := s.table.Peek(a.hash, &a.name); ok {
		inc(&s.table.At(slot).Refused)
	}
	return &weir.Rejection{Gate: s.gate.name, Reason: weir.ReasonTooLarge, Value: float64(a.cost),
		Limit: float64(set.named(&a.name)), Retryable: set.moved && set.overrides[a.name].Limit == 0, Signal: set.signal}
}

// full is the refusal of work for which there is no place to wait, or no longer:
// waiting, of this key or of all, is what may wait now. ahead is what the key's
// room holds, in units.
func (s *shard) full(set *settings, e *keys.Entry, waiting, ahead int64) *weir.Rejection {
	return &weir.Rejection{Gate: s.gate.name, Reason: weir.ReasonQueueFull, Value: float64(waiting), Limit: float64(waiting),
		RetryAfter: s.wait(set.of(e), ahead), Retryable: true, Signal: set.signal}
}

// expired is the refusal of work that has waited too long.
func (s *shard) expired(w *room.Waiter, now time.Duration) *weir.Rejection {
	place := w.Owner.(*waiter)
	set := s.settings()
	r := &weir.Rejection{Gate: s.gate.name, Reason: place.outOf, Retryable: true,
		Value: (now - w.Arrived).Seconds(), Limit: (w.Expires - w.Arrived).Seconds(),
		RetryAfter: s.wait(set.of(s.table.At(place.queue.slot)), place.queue.room.Units()), Signal: set.signal}
	if r.Reason == weir.ReasonDeadline {
		r.Cause = context.DeadlineExceeded
	}
	return r
}

// crowded is the refusal of work whose key has no place: every key that is known
// is in use.
func (g *Gate) crowded(set *settings) *weir.Rejection {
	return &weir.Rejection{Gate: g.name, Rule: "keys", Reason: weir.ReasonLimit, Value: float64(g.keys.Load()),
		Limit: float64(set.maxKeys), RetryAfter: unknownWait, Retryable: true}
}

func (g *Gate) draining() *weir.Rejection {
	return &weir.Rejection{Gate: g.name, Reason: weir.ReasonDraining, Retryable: true}
}

// givenUp is the refusal of work whose context is done.
func (g *Gate) givenUp(ctx context.Context) *weir.Rejection {
	reason := weir.ReasonCanceled
	if ctx.Err() == context.DeadlineExceeded {
		reason = weir.ReasonDeadline
	}
	return &weir.Rejection{Gate: g.name, Reason: reason, Cause: ctx.Err()}
}

// refuse counts a refusal by its reason, and tells the hook.
func (g *Gate) refuse(w *weir.Work, r *weir.Rejection) *weir.Rejection {
	g.rejected[r.Reason].Add(1)
	if h := &g.settings.Load().hooks; h.Rejected != nil {
		h.Rejected(*w, r)
	}
	return r
}

func (g *Gate) admitted(w *weir.Work, waited time.Duration) {
	if h := &g.settings.Load().hooks; h.Admitted != nil {
		h.Admitted(g.name, *w, waited)
	}
}

func (g *Gate) finished(o weir.Outcome, service time.Duration) {
	if h := &g.settings.Load().hooks; h.Done != nil {
		h.Done(g.name, o, service)
	}
}
