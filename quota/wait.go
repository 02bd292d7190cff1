package quota

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/gate"
)

// enqueue reserves tokens for work that was refused for want of them. It returns the
// place in the room if the work has to wait for them.
func (q *Quota) enqueue(ctx context.Context, set *settings, w *weir.Work, c *bill, was Decision, wake func(weir.Permit, error)) (Decision, *waiter, *weir.Rejection) {
	now := q.front.Now()
	most := q.patience(ctx, set, w, now)
	if was.Wait == Never || was.Wait-time.Millisecond > most {
		return was, nil, nil
	}
	if !q.room.enter(c.bucket(), set.places, !set.rules.oneBucket) {
		return was, nil, nil
	}
	waits := false
	defer func() {
		if !waits { // also if the store has panicked
			q.room.leave(c.bucket())
		}
	}()
	d, refused := q.charge(ctx, set, w, c, Reserve, most)
	if refused != nil || !d.OK || d.Wait == 0 {
		return d, nil, refused
	}
	// The wait begins now: if a slow store's time to answer counted, work would start
	// ahead of the rate.
	place := &waiter{gate: q, bill: *c, since: now, due: q.front.Now() + d.Wait}
	if wake == nil {
		place.Block(&place.since)
	} else {
		place.Call(&q.front, w, &place.since, wake)
	}
	if waits = q.room.add(place); !waits {
		q.refund(c)
		return d, nil, q.front.Draining()
	}
	q.arm()
	return d, place, nil
}

// patience returns how long w may wait.
func (q *Quota) patience(ctx context.Context, set *settings, w *weir.Work, now time.Duration) time.Duration {
	most := set.longest
	if w.MaxWait > 0 {
		most = min(most, w.MaxWait)
	}
	if !w.Deadline.IsZero() {
		most = min(most, q.front.Deadline(now, w.Deadline)-now)
	}
	if at, ok := ctx.Deadline(); ok && q.front.Timed() {
		most = min(most, q.front.Deadline(now, at)-now)
	}
	return most
}

// Next returns when [Quota.Step] is due, on the clock of Config.Now. It returns false if
// nothing waits.
func (q *Quota) Next() (time.Duration, bool) { return q.room.next() }

// Step admits work that has waited long enough. Calling it early does no harm. A gate on
// the real clock calls it by itself.
func (q *Quota) Step() {
	var out gate.Answers
	for _, w := range q.room.due(q.front.Now()) {
		out.Add(&w.Answer, q.issue(&w.bill), nil)
	}
	out.Deliver()
	q.arm()
}

// arm sets the timer for the next waiter.
func (q *Quota) arm() {
	if q.front.Timed() {
		q.room.arm(q.front.Now(), q.Step)
	}
}

// waiter is work whose tokens are reserved. It is answered exactly once, by whoever
// removes it from the room, and with no lock held.
type waiter struct {
	gate.Answer
	gate  *Quota
	bill  bill
	since time.Duration
	due   time.Duration
	index int // in the heap, -1 if not there
}

// Cancel implements [weir.Waiter]: it refunds the tokens.
func (w *waiter) Cancel() bool {
	if !w.gate.room.remove(w) {
		return false
	}
	w.RetryAfter = max(0, w.due-w.gate.front.Now())
	w.gate.refund(&w.bill)
	return true
}

// room keeps work that waits, in the order in which it may start.
type room struct {
	mu      sync.Mutex // guards what follows
	waiting int64      // those included that are about to enter
	mine    map[bucketKey]int64
	shut    bool
	heap    byDue
	timer   *time.Timer
}

// bucketKey tells the buckets of a gate apart, by the hash in a Memory and by the key in any other store.
type bucketKey struct {
	hash uint64
	key  string
}

func (c *bill) bucket() bucketKey { return bucketKey{c.hash, c.key} }

// enter takes a place for work of a bucket, and reports whether there was one. Where places are shared, a bucket may have
// no more work waiting than there are places left, as with a key of package keyed. Else one user could keep all others
// from waiting for buckets of their own.
func (r *room) enter(b bucketKey, most int64, shared bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	mine := r.mine[b]
	if left := most - r.waiting; left <= 0 || shared && mine >= left {
		return false
	}
	if r.mine == nil {
		r.mine = map[bucketKey]int64{}
	}
	r.mine[b]++
	r.waiting++
	return true
}

// leave gives a place back.
func (r *room) leave(b bucketKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaveLocked(b)
}

func (r *room) leaveLocked(b bucketKey) {
	r.waiting--
	if r.mine[b]--; r.mine[b] == 0 {
		delete(r.mine, b)
	}
}

// size returns how much work waits.
func (r *room) size() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting
}

// add reports false if the room is closed.
func (r *room) add(w *waiter) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shut {
		return false
	}
	heap.Push(&r.heap, w)
	return true
}

// remove reports false if somebody else has removed w.
func (r *room) remove(w *waiter) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.index < 0 {
		return false
	}
	heap.Remove(&r.heap, w.index)
	r.leaveLocked(w.bill.bucket())
	return true
}

// due removes and returns those that may start.
func (r *room) due(now time.Duration) (out []*waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.heap) > 0 && r.heap[0].due <= now {
		w := heap.Pop(&r.heap).(*waiter)
		r.leaveLocked(w.bill.bucket())
		out = append(out, w)
	}
	return out
}

// close removes and returns everybody, and lets nobody in from now on.
func (r *room) close() []*waiter {
	r.mu.Lock()
	r.shut = true
	if r.timer != nil {
		r.timer.Stop()
	}
	r.mu.Unlock()
	return r.due(Never)
}

func (r *room) next() (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.heap) == 0 {
		return 0, false
	}
	return r.heap[0].due, true
}

func (r *room) arm(now time.Duration, step func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.heap) == 0 {
		return
	}
	wait := max(r.heap[0].due-now, 0)
	if r.timer == nil {
		r.timer = time.AfterFunc(wait, step)
		return
	}
	r.timer.Reset(wait)
}

// byDue is a heap of waiters, the next one first.
type byDue []*waiter

func (h byDue) Len() int           { return len(h) }
func (h byDue) Less(i, j int) bool { return h[i].due < h[j].due }
func (h byDue) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *byDue) Push(x any) {
	w := x.(*waiter)
	w.index = len(*h)
	*h = append(*h, w)
}

func (h *byDue) Pop() any {
	last := len(*h) - 1
	w := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	w.index = -1
	return w
}
