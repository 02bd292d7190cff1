package keyed

import (
	"context"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/keys"
	"github.com/weir-go/weir/internal/room"
	"github.com/weir-go/weir/internal/waiting"
)

// queue is the wait room of one key. It is there while somebody waits.
type queue struct {
	room  room.Room
	parts *waiting.Parts // that it was told
	name  keys.Name
	slot  uint32
	heap  int // index in the shard's heap
	most  int // that ever waited at a time
}

// waiter is work in the room of its key. A goroutine blocks until there is an
// answer, or there is a callback.
type waiter struct {
	room.Waiter
	waiting.Answer
	shard *shard
	queue *queue // while queued
	cost  int64
	outOf weir.Reason // what it means when the waiter expires

	wake func(weir.Permit, error) // the callback
	work weir.Work                // with wake only
}

// answers are of waiters that have left their rooms, to be delivered when the lock
// has been released.
type answers = waiting.Answers

// enqueue puts the arrival into the room of its key, or refuses it for want of a
// place.
func (s *shard) enqueue(set *settings, slot uint32, a *arrival, out *answers) *weir.Rejection {
	e := s.table.At(slot)
	free := set.places - s.gate.waiting.Add(1) + 1
	if free <= 0 && !e.Is(keys.Waiting) {
		s.gate.waiting.Add(-1)
		return s.full(set, e, set.places, 0)
	}
	q := s.queue(slot)
	q.configure(set, int(max(free, int64(q.room.Len()))))
	q.room.SetPace(s.pace(set.of(e)))
	q.room.Knock(a.now, &a.place.Waiter)

	w := a.place
	w.shard, w.queue, w.cost = s, q, a.cost
	w.Units = min(a.cost, set.of(e))
	w.UserWeight, w.TenantWeight = set.parts.Weights(w.User, w.Tenant)
	w.Deadline = a.until.deadline
	w.Expires, w.outOf = a.until.patience, weir.ReasonQueueTimeout
	if a.until.deadline < w.Expires {
		w.Expires, w.outOf = a.until.deadline, weir.ReasonDeadline
	}
	displaced, ok := q.parts.Push(&q.room, a.now, &w.Waiter)
	if displaced != nil {
		inc(&e.Refused)
		refused := s.full(set, e, int64(q.room.Bound()), q.room.Units())
		refused.Rule = waiting.Rule(displaced, &w.Waiter)
		s.answer(out, displaced, weir.Permit{}, refused)
	}
	if !ok {
		s.gate.waiting.Add(-1)
		refused := s.full(set, e, int64(q.room.Bound()), q.room.Units())
		s.settle(q)
		return refused
	}
	s.serve(set, q, a.now, out) // the newest may go first
	return nil
}

// configure brings the room to the settings, with so many places.
func (q *queue) configure(set *settings, places int) {
	q.room.Configure(places, set.order)
	if q.parts != set.parts {
		q.parts = set.parts
		q.parts.Apply(&q.room)
	}
}

// queue returns the room of a key, a new one if nobody waits for it.
func (s *shard) queue(slot uint32) *queue {
	if q, ok := s.queues[slot]; ok {
		return q
	}
	e := s.table.At(slot)
	kept := &s.kept[slot%keptRooms]
	q := *kept
	if q == nil || q.name != *e.Name() {
		q = &queue{name: *e.Name()}
	} else {
		*kept = nil
	}
	q.slot, q.heap = slot, len(s.expiry)
	s.queues[slot] = q
	s.expiry = append(s.expiry, q) // empty so far: it never expires, which is its place
	e.Set(keys.Waiting, true)
	s.crowd.Store(int64(len(s.queues)))
	return q
}

// So many rooms are kept when they are empty, for keys that are short of slots again
// and again: a room is more than a thousand bytes in a dozen pieces, and remembers
// for a moment whether its queue stood. Those that were large are not kept.
const (
	keptRooms = 16
	keptMost  = 64
)

// settle puts a room in its place in the heap, and away when nobody is in it.
func (s *shard) settle(q *queue) {
	if n := q.room.Len(); n > 0 {
		q.most = max(q.most, n)
		s.sift(q.heap)
		return
	}
	last := len(s.expiry) - 1
	at := q.heap
	s.swap(at, last)
	s.expiry[last] = nil
	s.expiry = s.expiry[:last]
	if at < last {
		s.sift(at)
	}
	delete(s.queues, q.slot)
	s.table.At(q.slot).Set(keys.Waiting, false)
	s.crowd.Store(int64(len(s.queues)))
	if q.most <= keptMost {
		s.kept[q.slot%keptRooms] = q
	}
}

// answer settles what becomes of a waiter that has been taken out of its room.
func (s *shard) answer(out *answers, w *room.Waiter, p weir.Permit, r *weir.Rejection) {
	s.gate.waiting.Add(-1)
	place := w.Owner.(*waiter)
	place.queue = nil
	out.Add(&place.Answer, p, r)
}

// pace is what a room is told of the key's speed, as far as it can be told from
// the service time.
func (s *shard) pace(most int64) room.Pace {
	median, rate := s.service.Median(), 0.
	if median > 0 {
		rate = float64(most) / median.Seconds()
	}
	return room.PaceAt(rate, median)
}

// Cancel implements [weir.Waiter].
func (w *waiter) Cancel() bool {
	s := w.shard
	var out answers
	now := s.lock(true)
	q := w.queue
	queued := q != nil && q.room.GiveUp(now, &w.Waiter)
	if queued {
		s.gate.waiting.Add(-1)
		w.queue = nil
		s.serve(s.settings(), q, now, &out) // it may have been in the way of others
	}
	s.unlock(now, &out)
	return queued
}

// place returns a waiter for a goroutine that blocks.
func (g *Pools) place() *waiter {
	if w, ok := g.waiters.Get().(*waiter); ok {
		return w
	}
	w := &waiter{}
	w.Owner = w
	w.Block()
	return w
}

// putBack keeps a waiter for reuse whose answer, if any, has been received.
func (g *Pools) putBack(w *waiter) {
	w.Forget()
	w.queue, w.shard = nil, nil
	w.User, w.Tenant = "", ""
	g.waiters.Put(w)
}

// Answered implements [waiting.Caller]: it calls back.
func (w *waiter) Answered() {
	g := w.shard.gate
	if w.Refused != nil {
		w.wake(weir.Permit{}, g.refuse(&w.work, w.Refused))
		return
	}
	g.admitted(&w.work, g.now()-w.Arrived)
	w.wake(w.Permit, nil)
}

// The rooms with somebody in them are kept in a binary heap, the one that somebody
// has to leave soonest at the root.

func (s *shard) sift(i int) {
	for i > 0 && s.before(i, (i-1)/2) {
		s.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(s.expiry); child++ {
			if s.before(child, least) {
				least = child
			}
		}
		if least == i {
			return
		}
		s.swap(i, least)
		i = least
	}
}

func (s *shard) before(i, j int) bool { return s.expiry[i].room.Expiry() < s.expiry[j].room.Expiry() }

func (s *shard) swap(i, j int) {
	s.expiry[i], s.expiry[j] = s.expiry[j], s.expiry[i]
	s.expiry[i].heap, s.expiry[j].heap = i, j
}

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
func (g *Pools) crowded(set *settings) *weir.Rejection {
	return &weir.Rejection{Gate: g.name, Rule: "keys", Reason: weir.ReasonLimit, Value: float64(g.keys.Load()),
		Limit: float64(set.maxKeys), RetryAfter: unknownWait, Retryable: true}
}

func (g *Pools) draining() *weir.Rejection {
	return &weir.Rejection{Gate: g.name, Reason: weir.ReasonDraining, Retryable: true}
}

// givenUp is the refusal of work whose context is done.
func (g *Pools) givenUp(ctx context.Context) *weir.Rejection {
	reason := weir.ReasonCanceled
	if ctx.Err() == context.DeadlineExceeded {
		reason = weir.ReasonDeadline
	}
	return &weir.Rejection{Gate: g.name, Reason: reason, Cause: ctx.Err()}
}

// refuse counts a refusal by its reason, and tells the hook.
func (g *Pools) refuse(w *weir.Work, r *weir.Rejection) *weir.Rejection {
	g.rejected[r.Reason].Add(1)
	if h := &g.settings.Load().hooks; h.Rejected != nil {
		h.Rejected(*w, r)
	}
	return r
}

func (g *Pools) admitted(w *weir.Work, waited time.Duration) {
	if h := &g.settings.Load().hooks; h.Admitted != nil {
		h.Admitted(g.name, *w, waited)
	}
}

func (g *Pools) finished(o weir.Outcome, service time.Duration) {
	if h := &g.settings.Load().hooks; h.Done != nil {
		h.Done(g.name, o, service)
	}
}
