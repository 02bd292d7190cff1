package keyed

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/keys"
	"github.com/weir-go/weir/internal/room"
	"github.com/weir-go/weir/limit"
)

// arrival is work at the gate.
type arrival struct {
	hash  uint64
	name  keys.Name
	cost  int64
	now   time.Duration // 0 where nobody needs it
	timed bool
	until bounds
	place *waiter // nil: does not wait
}

// bounds are until when work may wait, and by when it has to be done.
type bounds struct{ patience, deadline time.Duration }

// of fills in whose work w is.
func (a *arrival) of(g *Gate, w *weir.Work) {
	a.name = keys.NameOf(g.KeyOf(*w))
	a.hash = keys.Hash(g.seed, &a.name)
	a.cost = w.Units()
}

// untimed is how many pieces of work are not timed for one that is, where nobody
// has to hear of each: the clock costs as much as the rest of an admission.
const untimed = 15

// clocked reads the clock if somebody needs it.
func (g *Gate) clocked(a *arrival, set *settings, needed bool) {
	a.timed = set.timed || rand.Uint32()&untimed == 0
	if a.timed || needed {
		a.now = g.now()
	}
}

// quick admits what needs no decision: work without a deadline, whose key has room
// and nobody waiting.
func (g *Gate) quick(ctx context.Context, w *weir.Work) (weir.Permit, bool) {
	if w.Cost < 0 || !w.Deadline.IsZero() || ctx.Err() != nil {
		return weir.Permit{}, false
	}
	set := g.settings.Load()
	var a arrival
	a.of(g, w)
	g.clocked(&a, set, false)
	s := g.shard(a.hash)
	s.mu.Lock()
	p, ok := s.quick(&a)
	s.mu.Unlock()
	if ok {
		g.admitted(w, 0)
	}
	return p, ok
}

// arrive decides about w: a permit, a refusal, or a place in the room. It calls
// the hooks unless w was queued.
func (g *Gate) arrive(ctx context.Context, w *weir.Work, place *waiter) (p weir.Permit, queued bool, err error) {
	if w.Cost < 0 {
		return p, false, g.refuse(w, &weir.Rejection{Gate: g.name, Reason: weir.ReasonTooLarge, Value: float64(w.Cost)})
	}
	if ctx.Err() != nil {
		return p, false, g.refuse(w, g.givenUp(ctx))
	}
	set := g.settings.Load()
	a := arrival{place: place}
	a.of(g, w)
	g.clocked(&a, set, place != nil || !w.Deadline.IsZero())
	if late := g.bound(&a, set, w); late > 0 {
		return p, false, g.refuse(w, &weir.Rejection{Gate: g.name, Reason: weir.ReasonDeadline,
			Value: late.Seconds(), Cause: context.DeadlineExceeded})
	}
	if place != nil {
		place.Class, place.User, place.Tenant = int8(w.Priority.Class()), w.User, w.Tenant
	}
	var answered answers
	var refused *weir.Rejection
	if w.Exempt && set.exempt >= 0 {
		p, refused = g.spare(set, &a)
	} else {
		p, refused, queued = g.decide(set, &a, &answered)
	}
	answered.Deliver()
	switch {
	case refused != nil:
		return p, false, g.refuse(w, refused)
	case !queued:
		g.admitted(w, 0)
	}
	return p, queued, nil
}

// decide takes the arrival to its shard.
func (g *Gate) decide(set *settings, a *arrival, out *answers) (p weir.Permit, refused *weir.Rejection, queued bool) {
	s := g.shard(a.hash)
	for range len(g.shards) + 1 {
		s.mu.Lock()
		p, refused, known := s.decide(a, out)
		queued = known && refused == nil && !p.Live()
		if queued && out.Remove(&a.place.Answer) { // served at once: the newest goes first
			p, queued = a.place.Permit, false
		}
		s.arm(a.now)
		s.mu.Unlock()
		if known {
			return p, refused, queued
		}
		if !g.reclaim(set) {
			break
		}
	}
	return weir.Permit{}, g.crowded(set), false
}

// reclaim has other shards give up idle keys until there is a place for one more:
// one key as a rule, more after MaxKeys has become smaller. It reports false if
// there is none.
func (g *Gate) reclaim(set *settings) bool {
	for range g.shards {
		s := &g.shards[g.hand.Add(1)%uint32(len(g.shards))]
		s.mu.Lock()
		s.shrinkTo(set.maxKeys - 1)
		s.mu.Unlock()
		if g.keys.Load() < set.maxKeys {
			return true
		}
	}
	return false
}

// spare admits exempt work up to the cap of its own.
func (g *Gate) spare(set *settings, a *arrival) (p weir.Permit, refused *weir.Rejection) {
	if n := g.exempt.Add(1); n > set.exempt {
		g.exempt.Add(-1)
		return p, &weir.Rejection{Gate: g.name, Rule: "exempt", Reason: weir.ReasonLimit, Value: float64(n - 1),
			Limit: float64(set.exempt), RetryAfter: unknownWait, Retryable: true}
	}
	s := g.shard(a.hash)
	s.mu.Lock()
	p, refused = s.spareOne(a)
	s.mu.Unlock()
	if refused != nil {
		g.exempt.Add(-1)
	}
	return p, refused
}

func (g *Gate) shard(hash uint64) *shard { return &g.shards[hash>>g.shift] }

// bound sets until when the arrival may wait. It returns by how much the deadline
// has been missed, which is 0 without one.
func (g *Gate) bound(a *arrival, set *settings, w *weir.Work) (late time.Duration) {
	a.until = bounds{a.now, room.Never}
	if a.place != nil {
		longest := set.longest
		if w.MaxWait > 0 {
			longest = min(longest, w.MaxWait)
		}
		a.until.patience = after(a.now, longest)
	}
	if w.Deadline.IsZero() {
		return 0
	}
	left := time.Until(w.Deadline)
	if g.clock != nil {
		left = w.Deadline.Sub(limit.VirtualEpoch) - a.now
	}
	if left <= 0 {
		return max(1, -left)
	}
	a.until.deadline = after(a.now, left)
	return 0
}

// after adds without overflow.
func after(now, d time.Duration) time.Duration {
	if d >= room.Never-now {
		return room.Never
	}
	return now + d
}
