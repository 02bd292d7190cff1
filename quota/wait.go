package quota

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/weir-go/weir"
)

// waiter is work whose tokens have been taken in advance. It is answered exactly
// once, by whoever takes it out of the room; the answer is delivered with no lock
// held.
type waiter struct {
	gate    *Quota
	charge  charge
	work    weir.Work
	arrived time.Duration
	due     time.Duration
	at      int // in the heap, -1 if not

	permit weir.Permit
	err    *weir.Rejection

	// One of the two: a goroutine that blocks on ready, or a callback.
	ready chan struct{}
	wake  func(weir.Permit, error)
}

// wait reserves tokens for work that was refused for want of them. It returns the
// place in the room if the work has to wait for them.
func (q *Quota) wait(ctx context.Context, set *settings, w *weir.Work, c *charge, was Decision, wake func(weir.Permit, error)) (Decision, *waiter, *weir.Rejection) {
	now := q.now()
	most := q.patience(ctx, set, w, now)
	if was.Wait == Never || was.Wait-time.Millisecond > most {
		return was, nil, nil
	}
	if q.room.waiting.Add(1) > set.places {
		q.room.waiting.Add(-1)
		return was, nil, q.full(set, w, c, was)
	}
	r, refused := q.ask(ctx, set, w, c, Reserve, most)
	if refused != nil || !r.OK || r.Wait == 0 {
		q.room.waiting.Add(-1)
		return r, nil, refused
	}
	// From now, not from before: what a slow store takes to answer must bring nobody
	// in ahead of the rate.
	place := &waiter{gate: q, charge: *c, work: *w, arrived: now, due: q.now() + r.Wait, wake: wake}
	if wake == nil {
		place.ready = make(chan struct{})
	}
	if !q.room.add(place) {
		q.giveBack(c)
		return r, nil, q.draining()
	}
	q.arm()
	return r, place, nil
}

// patience is how long w may wait.
func (q *Quota) patience(ctx context.Context, set *settings, w *weir.Work, now time.Duration) time.Duration {
	most := set.longest
	if w.MaxWait > 0 {
		most = min(most, w.MaxWait)
	}
	if !w.Deadline.IsZero() {
		most = min(most, q.since(w.Deadline)-now)
	}
	if at, ok := ctx.Deadline(); ok && q.clock == nil {
		most = min(most, q.since(at)-now)
	}
	return most
}

// Cancel implements [weir.Waiter]: the tokens go back.
func (w *waiter) Cancel() bool {
	if !w.gate.room.remove(w) {
		return false
	}
	w.gate.giveBack(&w.charge)
	return true
}

// answer tells whoever waits. It is called once, by whoever took w out of the room.
func (w *waiter) answer(p weir.Permit, refused *weir.Rejection) {
	w.permit, w.err = p, refused
	if w.ready != nil {
		close(w.ready)
		return
	}
	if refused != nil {
		w.wake(weir.Permit{}, w.gate.refuse(&w.work, refused))
		return
	}
	w.gate.admitted(&w.work, w.gate.now()-w.arrived)
	w.wake(p, nil)
}

// Next returns when [Quota.Step] is due, on the clock of Config.Now, and false if
// nothing is pending.
func (q *Quota) Next() (time.Duration, bool) { return q.room.next() }

// Step lets in who has waited long enough. Calling it early does no harm. A gate on
// the real clock does it by itself.
func (q *Quota) Step() {
	for _, w := range q.room.due(q.now()) {
		w.answer(q.issue(&w.charge, q.settings.Load()), nil)
	}
	q.arm()
}

// arm sets the timer for who is next.
func (q *Quota) arm() {
	if q.clock == nil {
		q.room.arm(q.now(), q.Step)
	}
}

// room is where work waits, in the order of its times.
type room struct {
	waiting counter

	mu    sync.Mutex // guards what follows
	shut  bool
	heap  byTime
	timer *time.Timer
}

// add reports false if the room has been closed.
func (r *room) add(w *waiter) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shut {
		r.waiting.Add(-1)
		return false
	}
	heap.Push(&r.heap, w)
	return true
}

// remove reports false if somebody else has taken w out.
func (r *room) remove(w *waiter) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.at < 0 {
		return false
	}
	heap.Remove(&r.heap, w.at)
	r.waiting.Add(-1)
	return true
}

// due takes out those whose time has come.
func (r *room) due(now time.Duration) (out []*waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.heap) > 0 && r.heap[0].due <= now {
		out = append(out, heap.Pop(&r.heap).(*waiter))
		r.waiting.Add(-1)
	}
	return out
}

// close takes out everybody, and lets nobody in any more.
func (r *room) close() (out []*waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shut = true
	if r.timer != nil {
		r.timer.Stop()
	}
	for len(r.heap) > 0 {
		out = append(out, heap.Pop(&r.heap).(*waiter))
		r.waiting.Add(-1)
	}
	return out
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

// byTime is a heap of waiters, the next one first.
type byTime []*waiter

func (h byTime) Len() int           { return len(h) }
func (h byTime) Less(i, j int) bool { return h[i].due < h[j].due }
func (h byTime) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

func (h *byTime) Push(x any) {
	w := x.(*waiter)
	w.at = len(*h)
	*h = append(*h, w)
}

func (h *byTime) Pop() any {
	last := len(*h) - 1
	w := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	w.at = -1
	return w
}
