package limit

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/room"
)

// Limiter is a concurrency gate: at most a limit of work at a time, and a
// bounded room for what has to wait. It is safe for concurrent use.
//
// It implements [weir.Gate], [weir.TryAdmitter], [weir.Arriver] and
// [weir.Snapshotter].
type Limiter struct {
	core // all but shared and table guarded by mu

	// control guards the controller and the window it reads, and is always
	// taken before mu. The controller runs under it; hooks and callbacks run
	// under neither.
	control    sync.Mutex
	controller control.Controller
	reading    control.Window

	mu            sync.Mutex
	tickAt        time.Duration // when the window closes
	armed         time.Duration // when the timer will fire
	timer         *time.Timer   // nil with a clock of its owner's
	reason        string        // of the last decision
	median        time.Duration // service time in the last window
	outcomes      [5]uint64     // by weir.Outcome
	idle          chan struct{} // closed when closed and nothing is in flight
	idleDone      bool
	refusedBefore uint64        // refusals up to the last window
	refreshAt     time.Duration // when the shared refusals may be made anew
	resized       bool          // they must be: the limit or the room has changed

	// Read without the lock.
	name      string               // set once
	clock     func() time.Duration // set once; nil for the monotonic clock
	epoch     time.Time            // set once
	maxWait   atomic.Int64
	findLeaks atomic.Bool
	hooks     atomic.Pointer[weir.Hooks]
	refusal   atomic.Pointer[refusals]
	count     counters
	places    sync.Pool // of *waiter
}

var (
	_ weir.Gate        = (*Limiter)(nil)
	_ weir.TryAdmitter = (*Limiter)(nil)
	_ weir.Arriver     = (*Limiter)(nil)
	_ weir.Snapshotter = (*Limiter)(nil)
	_ weir.Holder      = (*Limiter)(nil)
)

// New returns a running limiter, or an error that names every setting out of
// range. Close it when it is no longer needed.
func New(cfg Config) (*Limiter, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	l := &Limiter{
		name: cfg.Name, clock: cfg.Now, epoch: time.Now(),
		idle: make(chan struct{}), armed: room.Never, tickAt: room.Never,
	}
	l.slow = true // until settle finds that nothing keeps it there
	l.shared.Attention.Store(inSlow)
	l.table.Store(new([]*berth))
	l.grow(l)
	l.shared.Hint.Store(&(*l.table.Load())[0].Slot)
	l.controller = cfg.controller()
	first := l.controller.Start()

	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.configure(cfg)
	l.limit = clampLimit(first.Limit)
	l.bank, l.reason, l.resized = l.limit, first.Reason, true
	l.window.Reset(now, 0)
	l.drain.reset(now)
	l.drain.wanted = now - calm
	l.schedule(now, first.Next)
	l.settle(now) // nobody waits yet: no answers
	return l, nil
}

// Name returns the name from the configuration.
func (l *Limiter) Name() string { return l.name }

// now returns the time since the limiter's epoch.
func (l *Limiter) now() time.Duration {
	if l.clock != nil {
		return l.clock()
	}
	return time.Since(l.epoch)
}

// Admit takes the cost of w, at once if that much is free and nobody waits, else
// after waiting in the room. A cost above the limit counts as the whole limit:
// such work runs alone, and is never stuck for ever. Admit returns when the work
// is admitted or refused: at the latest when the context is done, the deadline
// has passed, or the work has waited as long as it may.
//
// Work whose deadline has passed, or whose context is done, is refused even
// when slots are free. (MongoDB's ticket pools grant it then; an answer that
// nobody waits for is only waste.)
func (l *Limiter) Admit(ctx context.Context, w weir.Work) (weir.Permit, error) {
	if p, ok := weir.Nested(ctx, l); ok {
		return p, nil
	}
	if uint64(w.Cost) > 1 || l.shared.Attention.Load() != 0 || w.Deadline != (time.Time{}) || ctx.Err() != nil {
		return l.admit(ctx, &w)
	}
	p, ok := l.shared.Hint.Load().Take()
	if !ok || l.shared.Attention.Load() != 0 {
		p.Cancel() // the core is shifting down: ask again, with the lock
		return l.admit(ctx, &w)
	}
	return p, nil
}

// TryAdmit takes the cost of w if that much is free and nobody waits for it,
// and refuses otherwise, without ever waiting. While nothing is free it refuses
// without taking the lock.
func (l *Limiter) TryAdmit(w weir.Work) (weir.Permit, error) {
	if uint64(w.Cost) > 1 || l.shared.Attention.Load() != 0 || w.Deadline != (time.Time{}) {
		return l.tryAdmit(&w)
	}
	p, ok := l.shared.Hint.Load().Take()
	if !ok || l.shared.Attention.Load() != 0 {
		p.Cancel() // the core is shifting down: ask again, with the lock
		return l.tryAdmit(&w)
	}
	return p, nil
}

func (l *Limiter) tryAdmit(w *weir.Work) (weir.Permit, error) {
	if p, ok := l.quick(w); ok {
		return p, nil
	}
	p, _, err := l.arrive(context.Background(), w, nil)
	return p, err
}

// quick admits in the slow gear what needs no decision: one unit without a
// deadline, where the bank has a slot and nobody waits for it. That is nearly
// all work on a gate with a controller or hooks, so it pays to leave out
// everything that arrive does for the rest.
func (l *Limiter) quick(w *weir.Work) (weir.Permit, bool) {
	if uint64(w.Cost) > 1 || l.shared.Attention.Load() != inSlow || w.Deadline != (time.Time{}) || l.findLeaks.Load() {
		return weir.Permit{}, false
	}
	now := l.now()
	l.mu.Lock()
	if l.word != inSlow {
		l.mu.Unlock()
		return weir.Permit{}, false
	}
	p, _ := l.grant(now, 1, l) // the word says that there is one
	l.publish()
	l.mu.Unlock()
	l.admitted(w, 0)
	return p, true
}

// Arrive implements [weir.Arriver]: Admit for callers that cannot block. The
// caller cancels the Waiter when it stops waiting; deadlines and MaxWait need no
// help.
func (l *Limiter) Arrive(w weir.Work, wake func(weir.Permit, error)) (weir.Permit, weir.Waiter, error) {
	place := &waiter{limiter: l, wake: wake, work: w, site: l.site()}
	place.Owner = place
	p, queued, err := l.arrive(context.Background(), &w, place)
	if !queued {
		return p, nil, err
	}
	return weir.Permit{}, place, weir.ErrWaiting
}

// admit is the blocking shell around arrive.
func (l *Limiter) admit(ctx context.Context, w *weir.Work) (weir.Permit, error) {
	if ctx.Err() == nil {
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
	case <-place.ready:
	case <-ctx.Done():
		if place.Cancel() {
			place.free()
			return weir.Permit{}, l.refuse(w, l.givenUp(ctx))
		}
		<-place.ready // the answer won the race, or is on its way
		if place.err == nil {
			place.permit.Cancel()
			place.err = l.givenUp(ctx)
		}
	}
	p, err = place.permit, place.err
	arrived := place.Arrived
	place.free()
	if err != nil {
		return weir.Permit{}, l.refuse(w, err.(*weir.Rejection))
	}
	if l.hooks.Load().Admitted != nil {
		l.admitted(w, l.now()-arrived)
	}
	return l.track(p, l.site()), nil
}

// arrive decides about w: a permit, a refusal, or a place in the room. A nil
// place means that w does not wait. It calls the hooks unless w was queued.
func (l *Limiter) arrive(ctx context.Context, w *weir.Work, place *waiter) (p weir.Permit, queued bool, err error) {
	var now, expires time.Duration
	refused := l.hopeless(ctx, w)
	if refused == nil && w.Deadline.IsZero() { // or its deadline is the reason
		refused = l.refuseUnlocked(place != nil)
	}
	if refused == nil {
		now = l.now()
		expires, refused = l.bounds(w, now, place)
	}
	if refused != nil {
		return weir.Permit{}, false, l.refuse(w, refused)
	}

	l.mu.Lock()
	p, refused = l.decide(now, w.Units(), expires, place)
	answered := l.settle(now)
	queued = refused == nil && !p.Live()
	if queued && !place.Queued() { // served at once: the newest goes first
		answered.remove(place)
		p, queued = place.permit, false
	}
	l.mu.Unlock()

	answered.deliver()
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
// place has been queued.
func (l *Limiter) decide(now time.Duration, cost int64, expires time.Duration, place *waiter) (weir.Permit, *weir.Rejection) {
	if !l.slow && cost == 1 {
		if p, ok := l.search(); ok {
			return p, nil
		}
	}
	l.shiftDown(now)
	if l.closed {
		return weir.Permit{}, l.refusal.Load().draining
	}
	if l.room.Len() == 0 {
		if p, ok := l.grant(now, cost, l); ok {
			return p, nil
		}
	}
	l.drain.want(now)
	if place == nil || expires <= now {
		return weir.Permit{}, l.refusal.Load().limit
	}
	place.Expires, place.cost = expires, cost
	if !l.room.Push(now, &place.Waiter) {
		return weir.Permit{}, l.refusal.Load().queueFull
	}
	return weir.Permit{}, nil
}

// settle is the end of everything that happens under the lock: who has waited
// too long leaves, who can start starts, and the outside view is brought up to
// date. The answers are to be delivered after the lock has been released.
func (l *Limiter) settle(now time.Duration) (out answers) {
	if l.room.Len() > 0 {
		l.serve(now, &out)
		l.arm(now)
	}
	if now >= l.refreshAt || l.resized {
		l.refresh(now)
	}
	switch {
	case l.closed && l.bank == l.limit && !l.idleDone:
		l.idleDone = true
		close(l.idle)
	case !l.observed:
		l.shiftUp(now, l)
	}
	l.publish()
	return out
}

// quiet reports whether settle would have nothing to do but publish.
func (l *Limiter) quiet(now time.Duration) bool {
	return l.observed && l.room.Len() == 0 && now < l.refreshAt && !l.resized && !l.closed
}

// serve goes through the room: those whose time is up are refused, those whose
// turn it is are admitted.
func (l *Limiter) serve(now time.Duration, out *answers) {
	for w := l.room.Expired(now); w != nil; w = l.room.Expired(now) {
		l.answer(out, w, weir.Permit{}, l.expired(now, w))
	}
	for w := l.room.Next(now); w != nil; w = l.room.Next(now) {
		p, ok := l.grant(now, w.Owner.(*waiter).cost, l)
		if !ok {
			return
		}
		l.answer(out, w, p, nil)
	}
}

func (l *Limiter) answer(out *answers, w *room.Waiter, p weir.Permit, r *weir.Rejection) {
	l.room.Remove(w)
	place := w.Owner.(*waiter)
	place.permit = p
	if r != nil {
		place.err = r
	}
	out.add(place)
}
