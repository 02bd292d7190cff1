package keyed

import (
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
		refused := s.full(set, e, int64(q.room.Len()), q.room.Units())
		refused.Rule = waiting.Rule(displaced, &w.Waiter)
		s.answer(out, displaced, weir.Permit{}, refused)
	}
	if !ok {
		s.gate.waiting.Add(-1)
		refused := s.full(set, e, int64(q.room.Len()), q.room.Units())
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
func (g *Gate) place() *waiter {
	if w, ok := g.waiters.Get().(*waiter); ok {
		return w
	}
	w := &waiter{}
	w.Owner = w
	w.Block()
	return w
}

// putBack keeps a waiter for reuse whose answer, if any, has been received.
func (g *Gate) putBack(w *waiter) {
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
