package keyed

import (
	"container/heap"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/gate"
	"github.com/weir-go/weir/internal/keys"
	"github.com/weir-go/weir/internal/room"
)

// queue is the wait room of one key, with what was measured while somebody waited.
// It is there while somebody waits.
type queue struct {
	shard   *shard
	room    room.Room
	drain   gate.Drain
	service room.Service
	parts   *gate.Parts // as the room last got them
	name    keys.Name
	slot    uint32
	heap    int // index in the shard's heap
	most    int // that ever waited at a time
}

// enqueue lets the arrival wait in the room of its key. It refuses work that
// would wait in vain, or that finds no place.
func (s *shard) enqueue(set *settings, slot uint32, work *weir.Work, a *arrival, out *gate.Answers) *weir.Rejection {
	// 1. A key may have as many places as there are left, or as it has already.
	e := s.table.At(slot)
	free := set.places - s.gate.waiting.Add(1) + 1
	if free <= 0 && !e.Is(keys.Waiting) {
		s.gate.waiting.Add(-1)
		return s.full(set, e, set.places, nil, 0, a.now)
	}
	q := s.queue(slot, a.now)
	q.configure(set, int(max(free, int64(q.room.Len()))))

	// 2. In its own room it is as in any other.
	w := a.place
	w.Keeper = q
	w.Describe(set.parts, work, a.cost, min(a.cost, set.limitOf(e)), a.until.Deadline)
	line := s.line(q, set.limitOf(e), a.now)
	displaced, refused, ok := line.Enqueue(&s.gate.front, a.now, w, a.until)
	if displaced != nil {
		inc(&e.Refused)
		rej := s.full(set, e, int64(q.room.Bound()), q, displaced.Class, a.now)
		rej.Rule = gate.Rule(displaced, &w.Waiter)
		s.answer(out, displaced, weir.Permit{}, rej)
	}
	if !ok {
		s.gate.waiting.Add(-1)
		if refused != nil { // it would wait in vain
			refused.RetryAfter, refused.Signal = s.wait(q, int(w.Class), set.limitOf(e), a.now), set.signal
		} else {
			refused = s.full(set, e, int64(q.room.Bound()), q, w.Class, a.now)
		}
		s.tidy(q)
		return refused
	}
	s.answerWaiters(set, q, a.now, out) // the newest may go first
	return nil
}

// line is the room of a key with what is known about its speed. While somebody waits
// for a key, the key's own speed is measured: how fast slots come back and how
// long work takes. Nobody may be refused by the time of other keys' work. How long
// a queue is watched goes by the work of all keys until the key's own rate is
// known.
func (s *shard) line(q *queue, most int64, now time.Duration) gate.Line {
	rate, median := q.drain.Current(now), s.service.Median()
	pace := rate
	if pace == 0 && median > 0 {
		pace = float64(most) / median.Seconds()
	}
	return gate.Line{Room: &q.room, Parts: q.parts, Whole: true, Pace: room.PaceAt(pace, median), Rate: rate, Median: q.service.Median()}
}

// configure brings the room to the settings, with so many places.
func (q *queue) configure(set *settings, places int) {
	q.room.Configure(places, set.order)
	if q.parts != set.parts {
		set.parts.Apply(&q.room, q.parts)
		q.parts = set.parts
	}
}

// queue returns the room of a key, a new one if nobody waits for it.
func (s *shard) queue(slot uint32, now time.Duration) *queue {
	if q, ok := s.queues[slot]; ok {
		return q
	}
	e := s.table.At(slot)
	kept := &s.kept[slot%keptRooms]
	q := *kept
	if q == nil || q.name != *e.Name() {
		q = &queue{shard: s, name: *e.Name()}
	} else {
		*kept = nil
	}
	q.slot = slot
	q.drain.Reset(now)
	s.queues[slot] = q
	heap.Push(&s.expiry, q)
	e.Set(keys.Waiting, true)
	s.crowd.Store(int64(len(s.queues)))
	return q
}

// So many empty rooms are kept, for keys that are short of slots again and again. A
// room is more than a thousand bytes in a dozen pieces, and remembers for a moment
// whether its queue stood. Those that were large are not kept.
const (
	keptRooms = 16
	keptMost  = 64
)

// tidy moves a room to its place in the heap, or stores it for reuse when it is empty.
func (s *shard) tidy(q *queue) {
	if n := q.room.Len(); n > 0 {
		q.most = max(q.most, n)
		heap.Fix(&s.expiry, q.heap)
		return
	}
	heap.Remove(&s.expiry, q.heap)
	delete(s.queues, q.slot)
	s.table.At(q.slot).Set(keys.Waiting, false)
	s.crowd.Store(int64(len(s.queues)))
	if q.most <= keptMost {
		s.kept[q.slot%keptRooms] = q
	}
}

// answer sets the answer of a waiter that has left its room.
func (s *shard) answer(out *gate.Answers, w *room.Waiter, p weir.Permit, r *weir.Rejection) {
	s.gate.waiting.Add(-1)
	out.Leave(w, p, r)
}

// GiveUp implements [gate.Keeper]. If w has been answered, the queue may belong to
// another key by now; w is not in it then.
func (q *queue) GiveUp(w *gate.Waiter) bool {
	s := q.shard
	var out gate.Answers
	now := s.lock(true)
	queued := q.room.GiveUp(now, &w.Waiter)
	if queued {
		s.gate.waiting.Add(-1)
		w.RetryAfter = s.wait(q, int(w.Class), s.settings().limitOf(s.table.At(q.slot)), now)
		s.answerWaiters(s.settings(), q, now, &out) // it may have been in the way of others
	}
	s.unlock(now, &out)
	return queued
}

// byExpiry is a heap of the rooms with somebody in them, for package heap. The room with
// the earliest expiry is at the root.
type byExpiry []*queue

func (h byExpiry) Len() int           { return len(h) }
func (h byExpiry) Less(i, j int) bool { return h[i].room.Expiry() < h[j].room.Expiry() }
func (h byExpiry) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heap, h[j].heap = i, j
}

func (h *byExpiry) Push(x any) {
	q := x.(*queue)
	q.heap = len(*h)
	*h = append(*h, q)
}

func (h *byExpiry) Pop() any {
	last := len(*h) - 1
	q := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return q
}

// wait is when work of a class that is refused now is to come back for its key. It goes
// by how fast the key's slots come back. While that is unknown, it goes by how long work
// of all keys of the shard takes. q is nil if nobody waits.
func (s *shard) wait(q *queue, class int, most int64, now time.Duration) time.Duration {
	median := s.service.Median()
	if q == nil {
		return gate.Wait(0, 0, most, median).Round(time.Millisecond)
	}
	return gate.ComeBack(&q.room, now, class, q.drain.Current(now), most, median).Round(time.Millisecond)
}

// full is the refusal of work of a class that finds no place to wait, or has lost its
// place. places is how many may wait now, of this key or of all. q is the key's room,
// nil if it has none.
func (s *shard) full(set *settings, e *keys.Entry, places int64, q *queue, class int8, now time.Duration) *weir.Rejection {
	return &weir.Rejection{Gate: s.gate.Name(), Reason: weir.ReasonQueueFull, Value: float64(places), Limit: float64(places),
		RetryAfter: s.wait(q, int(class), set.limitOf(e), now), Retryable: true, Signal: set.signal}
}

// expired is the refusal of work that has waited too long.
func (s *shard) expired(set *settings, q *queue, w *room.Waiter, now time.Duration) *weir.Rejection {
	r := s.gate.front.Expired(now, gate.WaiterOf(w))
	r.RetryAfter, r.Signal = s.wait(q, int(w.Class), set.limitOf(s.table.At(q.slot)), now), set.signal
	return r
}
