package keyed

import (
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/gate"
	"github.com/weir-go/weir/internal/keys"
	"github.com/weir-go/weir/internal/room"
)

// queue is the wait room of one key, with what was measured while somebody waited.
// It is there while somebody waits.
type queue struct {
	room    room.Room
	drain   gate.Drain
	service room.Service
	parts   *gate.Parts // as the room last got them
	name    keys.Name
	slot    uint32
	heap    int // index in the shard's heap
	most    int // that ever waited at a time
}

// waiter is work in the room of its key.
type waiter struct {
	gate.Waiter
	shard *shard
	queue *queue // while queued
}

// enqueue lets the arrival wait in the room of its key. It refuses work that
// would wait in vain, or that finds no place.
func (s *shard) enqueue(set *settings, slot uint32, work *weir.Work, a *arrival, out *gate.Answers) *weir.Rejection {
	// 1. A key may have as many places as there are left, or as it has already.
	e := s.table.At(slot)
	free := set.places - s.gate.waiting.Add(1) + 1
	if free <= 0 && !e.Is(keys.Waiting) {
		s.gate.waiting.Add(-1)
		return s.full(set, e, set.places, nil, a.now)
	}
	q := s.queue(slot, a.now)
	q.configure(set, int(max(free, int64(q.room.Len()))))

	// 2. In its own room it is as in any other.
	w := a.place
	w.shard, w.queue = s, q
	w.Describe(set.parts, work, a.cost, min(a.cost, set.of(e)), a.until.Deadline)
	line := s.line(q, set.of(e), a.now)
	displaced, inVain, ok := line.Enqueue(&s.gate.front, a.now, &w.Waiter, a.until)
	if displaced != nil {
		inc(&e.Refused)
		refused := s.full(set, e, int64(q.room.Bound()), q, a.now)
		refused.Rule = gate.Rule(displaced, &w.Waiter.Waiter)
		s.answer(out, displaced, weir.Permit{}, refused)
	}
	if !ok {
		w.queue = nil
		s.gate.waiting.Add(-1)
		if inVain != nil {
			inVain.RetryAfter, inVain.Signal = s.wait(q, set.of(e), a.now), set.signal
		} else {
			inVain = s.full(set, e, int64(q.room.Bound()), q, a.now)
		}
		s.tidy(q)
		return inVain
	}
	s.serve(set, q, a.now, out) // the newest may go first
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
		q.parts = set.parts
		q.parts.Apply(&q.room)
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
		q = &queue{name: *e.Name()}
	} else {
		*kept = nil
	}
	q.slot, q.heap = slot, len(s.expiry)
	q.drain.Reset(now)
	s.queues[slot] = q
	s.expiry = append(s.expiry, q) // empty so far: it never expires, which is its place
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

// answer sets the answer of a waiter that has left its room.
func (s *shard) answer(out *gate.Answers, w *room.Waiter, p weir.Permit, r *weir.Rejection) {
	s.gate.waiting.Add(-1)
	place := w.Owner.(*waiter)
	place.queue = nil
	out.Add(&place.Answer, p, r)
}

// Cancel implements [weir.Waiter].
func (w *waiter) Cancel() bool {
	s := w.shard
	var out gate.Answers
	now := s.lock(true)
	q := w.queue
	queued := q != nil && q.room.GiveUp(now, &w.Waiter.Waiter)
	if queued {
		s.gate.waiting.Add(-1)
		w.queue = nil
		s.serve(s.settings(), q, now, &out) // it may have been in the way of others
	}
	s.unlock(now, &out)
	return queued
}

func newWaiter() *waiter {
	w := &waiter{}
	w.Owner = w
	return w
}

// blockingWaiter returns a waiter for a goroutine that blocks.
func (g *Pools) blockingWaiter() *waiter {
	if w, ok := g.waiters.Get().(*waiter); ok {
		return w
	}
	w := newWaiter()
	w.Block()
	return w
}

// putBack keeps a waiter for reuse. Its answer, if any, must have been received.
func (g *Pools) putBack(w *waiter) {
	w.Forget()
	w.queue, w.shard = nil, nil
	g.waiters.Put(w)
}

// The rooms with somebody in them are kept in a binary heap. The room with the
// earliest expiry is at the root.

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

// wait estimates how long one unit that comes now would wait for its key, with all
// of the limit in use. q is nil if nobody waits. It goes by how fast the key's slots
// come back. While that is unknown, it goes by how long work of all keys of the
// shard takes.
func (s *shard) wait(q *queue, most int64, now time.Duration) time.Duration {
	rate, ahead := 0.0, int64(0)
	if q != nil {
		rate, ahead = q.drain.Current(now), q.room.Units()
	}
	if median := s.service.Median(); rate == 0 && median > 0 {
		rate = float64(most) / median.Seconds()
	}
	return gate.Wait(ahead, rate).Round(time.Millisecond)
}

// noSlot is the refusal of work while every slot of its key is taken. Equal refusals
// share one Rejection.
func (s *shard) noSlot(set *settings, slot uint32, now time.Duration) *weir.Rejection {
	e := s.table.At(slot)
	held, most := e.Held(), set.of(e)
	retry := s.wait(s.queues[slot], most, now)
	if r := s.refusal; r != nil && r.Value == float64(held) && r.Limit == float64(most) && r.RetryAfter == retry && r.Signal == set.signal {
		return r
	}
	s.refusal = &weir.Rejection{Gate: s.gate.Name(), Reason: weir.ReasonLimit, Value: float64(held), Limit: float64(most),
		RetryAfter: retry, Retryable: true, Signal: set.signal}
	return s.refusal
}

// oversize is the refusal of a cost above the limit of its key. A limit that a
// controller moves may grow to it. Oversize work of an unknown key does not make the
// key known.
func (s *shard) oversize(set *settings, a *arrival) *weir.Rejection {
	if slot, ok := s.table.Peek(a.hash, &a.name); ok {
		inc(&s.table.At(slot).Refused)
	}
	mayGrow := set.moved && set.overrides[a.name].Limit == 0
	return s.gate.front.Oversize(a.cost, set.named(&a.name), mayGrow, set.signal)
}

// full is the refusal of work that finds no place to wait, or has lost its place.
// places is how many may wait now, of this key or of all. q is the key's room, nil
// if it has none.
func (s *shard) full(set *settings, e *keys.Entry, places int64, q *queue, now time.Duration) *weir.Rejection {
	return &weir.Rejection{Gate: s.gate.Name(), Reason: weir.ReasonQueueFull, Value: float64(places), Limit: float64(places),
		RetryAfter: s.wait(q, set.of(e), now), Retryable: true, Signal: set.signal}
}

// expired is the refusal of work that has waited too long.
func (s *shard) expired(set *settings, q *queue, w *room.Waiter, now time.Duration) *weir.Rejection {
	r := s.gate.front.Expired(now, &w.Owner.(*waiter).Waiter)
	r.RetryAfter, r.Signal = s.wait(q, set.of(s.table.At(q.slot)), now), set.signal
	return r
}

// keysInUse is the refusal of work whose key finds no place, because every known key
// is in use.
func (g *Pools) keysInUse(set *settings) *weir.Rejection {
	return &weir.Rejection{Gate: g.Name(), Rule: "keys", Reason: weir.ReasonLimit, Value: float64(g.keys.Load()),
		Limit: float64(set.maxKeys), RetryAfter: gate.UnknownWait, Retryable: true}
}
