package limit

import (
	"context"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/room"
)

func (l *Limiter) tryAdmit(w *weir.Work) (weir.Permit, error) {
	p, _, err := l.arrive(context.Background(), w, nil)
	return p, err
}

// quick admits in the slow gear what needs no decision: w, one unit without a
// deadline, where the bank has a slot and nobody waits for it. That is nearly
// all work on a gate with a controller or hooks, so it pays to leave out
// everything that arrive does for the rest.
func (l *Limiter) quick(w *weir.Work) (weir.Permit, bool) {
	if l.shared.Attention.Load() != inSlow || l.findLeaks.Load() {
		return weir.Permit{}, false
	}
	now := l.now()
	l.mu.Lock()
	if l.word != inSlow {
		l.mu.Unlock()
		return weir.Permit{}, false
	}
	p, _ := l.grant(now, 1, l) // the word says that there is one
	if l.accounting {
		l.open(p, int8(w.Priority.Class()), w.User, w.Tenant, 1)
	}
	if l.bank < 1 { // or nothing has changed that the word tells
		l.publish()
	}
	l.mu.Unlock()
	if l.hooks.Load().Admitted != nil {
		l.admitted(w, 0)
	}
	return p, true
}

// admit is the blocking shell around arrive.
func (l *Limiter) admit(ctx context.Context, w *weir.Work) (weir.Permit, error) {
	if uint64(w.Cost) <= 1 && !w.Exempt && w.Deadline.IsZero() && ctx.Err() == nil {
		if p, ok := l.quick(w); ok {
			return p, nil
		}
	}
	var place *waiter
	if w.MaxWait >= 0 {
		place = l.place()
	}
	p, queued, err := l.arrive(ctx, w, place)
	if !queued {
		if place != nil {
			place.free()
		}
		return p, err
	}
	select {
	case <-place.Ready():
	case <-ctx.Done():
		if place.Cancel() {
			place.free()
			return weir.Permit{}, l.refuse(w, l.givenUp(ctx))
		}
		<-place.Ready() // the answer won the race, or is on its way
		if place.Refused == nil {
			place.Permit.Cancel()
			place.Refused = l.givenUp(ctx)
		}
	}
	p, refused, arrived := place.Permit, place.Refused, place.Arrived
	place.free()
	if refused != nil {
		return weir.Permit{}, l.refuse(w, refused)
	}
	if l.hooks.Load().Admitted != nil {
		l.admitted(w, l.now()-arrived)
	}
	return l.track(p, l.site()), nil
}

// arrive decides about w: a permit, a refusal, or a place in the room. A nil
// place means that w does not wait. It calls the hooks unless w was queued.
func (l *Limiter) arrive(ctx context.Context, w *weir.Work, place *waiter) (p weir.Permit, queued bool, err error) {
	if l.exempt.spares(w) {
		p, err = l.arriveExempt(ctx, w)
		return p, false, err
	}
	var now time.Duration
	var until bounds
	refused := l.hopeless(ctx, w)
	if refused == nil && w.Deadline.IsZero() { // or its deadline is the reason
		refused = l.refuseUnlocked(w, place != nil)
	}
	if refused == nil {
		now = l.now()
		until, refused = l.bounds(w, now, place != nil)
	}
	if refused != nil {
		return weir.Permit{}, false, l.refuse(w, refused)
	}

	l.mu.Lock()
	var answered answers
	p, refused = l.decide(now, w, until, place, &answered)
	l.settleInto(now, &answered)
	queued = refused == nil && !p.Live()
	if queued && !place.Queued() { // served at once: the newest goes first
		answered.Remove(&place.Answer)
		p, queued = place.Permit, false
	}
	l.mu.Unlock()

	answered.Deliver()
	switch {
	case refused != nil:
		return weir.Permit{}, false, l.refuse(w, refused)
	case queued:
		return weir.Permit{}, true, nil
	}
	l.admitted(w, 0)
	return l.track(p, l.site()), false, nil
}

// decide is arrive under the lock. A zero permit without a refusal means that
// place has been queued; whoever lost its own place to it is among the answers.
func (l *Limiter) decide(now time.Duration, w *weir.Work, until bounds, place *waiter, out *answers) (weir.Permit, *weir.Rejection) {
	cost := w.Units()
	if !l.slow && cost == 1 {
		if p, ok := l.search(); ok {
			return p, nil
		}
	}
	l.shiftDown(now)
	if l.closed {
		return weir.Permit{}, l.refusal.Load().draining
	}
	if l.refuseOversize.Load() && cost > l.limit {
		return weir.Permit{}, l.oversize(cost)
	}
	if l.room.Len() == 0 {
		if p, ok := l.grant(now, cost, l); ok {
			if l.accounting {
				l.open(p, int8(w.Priority.Class()), w.User, w.Tenant, min(cost, l.limit))
			}
			return p, nil
		}
	}
	l.drain.want(now)
	if place == nil || until.patience <= now {
		return weir.Permit{}, l.refusal.Load().limit
	}
	place.stands(l, w, cost, until.deadline)
	if refused := l.inVain(now, until, place); refused != nil {
		return weir.Permit{}, refused
	}
	displaced, ok := l.room.Push(now, &place.Waiter)
	switch {
	case ok:
	case l.room.Len() < l.room.Size(): // a queue that stands has fewer places
		return weir.Permit{}, l.refusal.Load().displaced
	default:
		return weir.Permit{}, l.refusal.Load().queueFull
	}
	if displaced != nil {
		answer(out, displaced, weir.Permit{}, l.displaced(displaced, &place.Waiter))
	}
	if place.User != "" || place.Tenant != "" {
		l.accounting = true // from now on shares matter
	}
	return weir.Permit{}, nil
}

// settle is the end of everything that happens under the lock: who has waited
// too long leaves, who can start starts, and the outside view is brought up to
// date. The answers are to be delivered after the lock has been released.
func (l *Limiter) settle(now time.Duration) (out answers) {
	l.settleInto(now, &out)
	return out
}

func (l *Limiter) settleInto(now time.Duration, out *answers) {
	if l.room.Len() > 0 {
		l.serve(now, out)
		l.arm(now)
		// Work whose cost does not fit waits beside free slots: all that can be
		// used is.
		l.window.Saturated(now, l.bank < 1 || l.room.Len() > 0)
	}
	if now >= l.refreshAt || l.resized {
		l.refresh(now)
	}
	switch {
	case l.closed:
		l.finishClosing()
	case !l.observed:
		if l.shiftUp(now, l); !l.slow && l.accounting {
			l.closeAccounts()
		}
	}
	l.publish()
}

// quiet reports whether settle would have nothing to do but publish, and that only
// where the word says more than that the gear is the slow one.
func (l *Limiter) quiet(now time.Duration) bool {
	return l.observed && l.room.Len() == 0 && now < l.refreshAt && !l.resized && !l.closed
}

// serve goes through the room: those whose time is up are refused, those whose
// turn it is are admitted.
func (l *Limiter) serve(now time.Duration, out *answers) {
	for w := l.room.Expired(now); w != nil; w = l.room.Expired(now) {
		l.room.Expire(w)
		answer(out, w, weir.Permit{}, l.expired(now, w))
	}
	for w := l.room.Next(now); w != nil; w = l.room.Next(now) {
		p, ok := l.grant(now, w.Owner.(*waiter).cost, l)
		if !ok {
			return
		}
		l.room.Serve(w)
		if l.accounting {
			l.open(p, w.Class, w.User, w.Tenant, w.Units)
			if l.byTime != nil {
				l.chargeAhead(p)
			}
		}
		answer(out, w, p, nil)
	}
}

// answer settles what becomes of a waiter that has been taken out of the room.
func answer(out *answers, w *room.Waiter, p weir.Permit, r *weir.Rejection) {
	out.Add(&w.Owner.(*waiter).Answer, p, r)
}
