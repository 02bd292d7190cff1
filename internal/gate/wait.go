package gate

import (
	"context"
	"math"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/room"
)

// Line is one wait room with what its gate has measured of it.
type Line struct {
	Room   *room.Room
	Parts  *Parts
	Whole  bool // shares count in whole places, see [Parts.pushWhole]
	Pace   room.Pace
	Rate   float64       // units that come back a second; 0 while unknown or old
	Median time.Duration // service time; 0 while unknown
}

// Enqueue lets w wait and reports true. It reports false with a refusal if w would
// wait in vain. It reports false without one if there is no place; [room.Room.Bound]
// says how many there are. displaced is who has lost its place to w, nil if nobody
// has.
//
// The first in line is never refused by an estimate: somebody should be there when a
// slot comes back. While the rate is unknown, no estimate refuses anybody.
func (l *Line) Enqueue(f *Front, now time.Duration, w *Waiter, until Bounds) (displaced *room.Waiter, inVain *weir.Rejection, ok bool) {
	// 1. The room counts the newcomer, whatever becomes of it.
	l.Room.SetPace(l.Pace)
	l.Room.CountArrival(now, &w.Waiter)

	// 2. It is refused if its turn would come too late, even if the newest goes first.
	// It gives a reason to turn the order only if that could help.
	w.expireBy(now, until, l.Median)
	if wait, late := l.late(now, w, until, l.Room.Ahead(&w.Waiter)); late && l.Room.Len() > 0 {
		_, anyway := l.late(now, w, until, l.Room.Above(&w.Waiter))
		if anyway || !l.Room.PreferNewest(&w.Waiter) {
			return nil, f.vain(now, wait, until, l.Median), false
		}
		if _, late := l.late(now, w, until, l.Room.Ahead(&w.Waiter)); late {
			return nil, f.vain(now, wait, until, l.Median), false
		}
	}

	// 3. It takes a place, perhaps somebody else's.
	if l.Whole {
		displaced, ok = l.Parts.pushWhole(l.Room, now, &w.Waiter)
	} else {
		displaced, ok = l.Room.Push(now, &w.Waiter)
	}
	return displaced, nil, ok
}

// late estimates how long w would wait behind so many units, and reports whether that
// leaves too little time. It changes nothing.
func (l *Line) late(now time.Duration, w *Waiter, until Bounds, ahead int64) (wait time.Duration, late bool) {
	if l.Rate == 0 {
		return 0, false
	}
	if ahead == 0 && !l.Room.NewestFirst() { // first in line in its own right
		return 0, false
	}
	wait = Seconds((float64(ahead) + float64(w.Units)) / l.Rate)
	if times, lasted := l.Room.Crowd(now, int(w.Class)); math.IsInf(times, 1) {
		wait += lasted // and as long again
	}
	return wait, !until.allow(now, wait, l.Median)
}

// vain is the refusal of work that would wait in vain. wait is how long it would wait.
// The gate adds when to come back, and the signal.
func (f *Front) vain(now, wait time.Duration, until Bounds, service time.Duration) *weir.Rejection {
	if wait > until.Patience-now {
		return &weir.Rejection{Gate: f.name, Reason: weir.ReasonQueueTimeout, Retryable: true,
			Value: wait.Seconds(), Limit: (until.Patience - now).Seconds()}
	}
	return &weir.Rejection{Gate: f.name, Reason: weir.ReasonDeadline, Retryable: true, Cause: context.DeadlineExceeded,
		Value: (wait + service).Seconds(), Limit: (until.Deadline - now).Seconds()}
}

// Waiter is work in a wait room. [Front.Place] and [Front.CallPlace] make one.
type Waiter struct {
	room.Waiter
	Answer
	Cost        int64
	ExpiresWith weir.Reason // why it is refused when it expires
	Keeper      Keeper      // who has the room; set before it waits
}

// Keeper takes a waiter that gives up out of the room it waits in, and sets when it may
// come back. It reports false if the waiter has been answered.
type Keeper interface{ GiveUp(w *Waiter) bool }

// Cancel implements [weir.Waiter].
func (w *Waiter) Cancel() bool { return w.Keeper.GiveUp(w) }

// WaiterOf returns the waiter that w is part of.
func WaiterOf(w *room.Waiter) *Waiter { return w.Owner.(*Waiter) }

// Place returns a waiter for a goroutine that blocks. A waiter and its channel are
// kept for reuse, by the gate that made them. A channel made in one testing/synctest
// bubble must not be used in another.
func (f *Front) Place() *Waiter {
	if w, ok := f.places.Get().(*Waiter); ok {
		return w
	}
	w := &Waiter{}
	w.Owner = w
	w.Block(&w.Arrived)
	return w
}

// Free gives a waiter of Place back for reuse. Its answer, if any, must have been
// received.
func (f *Front) Free(w *Waiter) {
	w.Answer.forget()
	w.User, w.Tenant, w.Keeper = "", "", nil
	f.places.Put(w)
}

// CallPlace returns a waiter whose answer goes to wake.
func (f *Front) CallPlace(w *weir.Work, wake func(weir.Permit, error)) *Waiter {
	place := &Waiter{}
	place.Owner = place
	place.Call(f, w, &place.Arrived, f.trackLater(wake))
	return place
}

// Describe sets who waits and for what. units is the cost, at most the limit.
func (p *Waiter) Describe(parts *Parts, w *weir.Work, cost, units int64, deadline time.Duration) {
	p.Cost, p.Units = cost, units
	p.Class, p.User, p.Tenant, p.Deadline = int8(w.Priority.Class()), w.User, w.Tenant, deadline
	p.UserWeight, p.TenantWeight = parts.Weights(w.User, w.Tenant)
}

// expireBy sets when w leaves the room. It leaves when it has waited as long as it
// may, or when less than the median service time is left before its deadline. Work
// that would probably be done too late is not worth a slot. If less than the
// median is left when it comes, it may wait until the deadline itself.
func (w *Waiter) expireBy(now time.Duration, until Bounds, median time.Duration) {
	w.Expires, w.ExpiresWith = until.Patience, weir.ReasonQueueTimeout
	last := until.Deadline
	if last != room.Never && last-median > now {
		last -= median
	}
	if last < w.Expires {
		w.Expires, w.ExpiresWith = last, weir.ReasonDeadline
	}
}

// Answer is the answer for a waiter: a permit, or why there is none. A gate's own
// waiter embeds one. Before it waits, it is made to block
// ([Answer.Block]) or to call ([Answer.Call]).
//
// A waiter is answered exactly once, by whoever takes it out of the room under the
// gate's lock. The answer is delivered after the lock has been released, because
// whoever gets it may call the gate again.
type Answer struct {
	Permit  weir.Permit
	Refused *weir.Rejection
	// RetryAfter is when somebody who gives up may come back. Whoever takes the waiter out of the room for that sets it.
	RetryAfter time.Duration

	since *time.Duration // when the wait began, set by then
	ready chan struct{}  // for a goroutine that blocks
	next  *Answer        // in the list

	// Otherwise there is a callback.
	front *Front
	work  weir.Work
	wake  func(weir.Permit, error)
}

// Block makes the answer one that a goroutine waits for. It can be used again and
// again. since is when the wait began, set by then.
func (a *Answer) Block(since *time.Duration) { a.since, a.ready = since, make(chan struct{}, 1) }

// Call makes the answer one that calls wake. since is as in Block.
func (a *Answer) Call(f *Front, w *weir.Work, since *time.Duration, wake func(weir.Permit, error)) {
	a.front, a.work, a.since, a.wake = f, *w, since, wake
}

// forget prepares an answer that was received for its next use.
func (a *Answer) forget() { a.Permit, a.Refused, a.next = weir.Permit{}, nil, nil }

// Wait is Await for a waiter of Place, which it gives back.
func (f *Front) Wait(ctx context.Context, w *weir.Work, place *Waiter) (weir.Permit, error) {
	p, err := f.Await(ctx, w, &place.Answer, place)
	f.Free(place)
	return p, err
}

// Await blocks until w is answered or ctx is done, and calls the hooks. place takes
// the waiter out of its room.
func (f *Front) Await(ctx context.Context, w *weir.Work, a *Answer, place weir.Waiter) (weir.Permit, error) {
	p, refused := f.await(ctx, a, place)
	if refused != nil {
		return weir.Permit{}, f.Refuse(w, refused)
	}
	if f.Hooks().Admitted != nil {
		f.Admitted(w, f.Now()-*a.since)
	}
	return f.Track(p), nil
}

func (f *Front) await(ctx context.Context, a *Answer, place weir.Waiter) (weir.Permit, *weir.Rejection) {
	select {
	case <-a.ready:
		return a.Permit, a.Refused
	case <-ctx.Done():
	}
	retryAfter := time.Duration(0)
	if place.Cancel() {
		retryAfter = a.RetryAfter
	} else {
		<-a.ready // the answer won the race, or is on its way
		if a.Refused != nil {
			return weir.Permit{}, a.Refused
		}
		a.Permit.Cancel()
	}
	refused := f.GivenUp(ctx)
	if refused.Reason == weir.ReasonDeadline { // as for work whose deadline the gate knows, see Expired
		refused.Value = (f.Now() - *a.since).Seconds()
		refused.Retryable, refused.RetryAfter = true, retryAfter
	}
	return weir.Permit{}, refused
}

// deliver hands the answer to whoever waits for it.
func (a *Answer) deliver() {
	if a.ready != nil {
		a.ready <- struct{}{} // never blocks: one answer, one place
		return
	}
	if a.Refused != nil {
		a.wake(weir.Permit{}, a.front.Refuse(&a.work, a.Refused))
		return
	}
	a.front.Admitted(&a.work, a.front.Now()-*a.since)
	a.wake(a.Permit, nil)
}

// Answers are those of waiters that have left the room, until they are delivered.
// They keep the order in which they were added. The list runs through the waiters,
// so nothing is allocated for it. The zero value is empty.
type Answers struct{ first, last *Answer }

// Add sets the answer of a waiter and appends it.
func (l *Answers) Add(a *Answer, p weir.Permit, refused *weir.Rejection) {
	a.Permit, a.Refused = p, refused
	if l.first == nil {
		l.first = a
	} else {
		l.last.next = a
	}
	l.last = a
}

// Leave is Add for a waiter that has left its room.
func (l *Answers) Leave(w *room.Waiter, p weir.Permit, refused *weir.Rejection) {
	l.Add(&WaiterOf(w).Answer, p, refused)
}

// Remove takes an answer out again, for a waiter that is answered in another way. It
// reports false if the answer was not in the list.
func (l *Answers) Remove(a *Answer) bool {
	var before *Answer
	for at := l.first; at != a; before, at = at, at.next {
		if at == nil {
			return false
		}
	}
	if before == nil {
		l.first = a.next
	} else {
		before.next = a.next
	}
	if l.last == a {
		l.last = before
	}
	a.next = nil
	return true
}

// Deliver answers everybody. The gate's lock must not be held: callbacks may call
// the gate, and a woken goroutine will.
//
// If a callback or a hook panics, the others are answered before the panic goes on.
func (l *Answers) Deliver() {
	if l.first == nil {
		return
	}
	rest := l.first
	defer func() {
		if rest != nil {
			(&Answers{first: rest}).Deliver()
		}
	}()
	for rest != nil {
		a := rest
		rest = a.next // an answered waiter may be reused at once
		a.deliver()
	}
}
