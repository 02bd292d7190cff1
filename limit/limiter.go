package limit

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/room"
	"github.com/weir-go/weir/internal/waiting"
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
	signals    control.Source
	reading    control.Window

	mu            sync.Mutex
	tickAt        time.Duration  // when the window closes
	armed         time.Duration  // when the timer will fire
	timer         *time.Timer    // nil with a clock of its owner's
	controlledBy  string         // name of the controller; changed with both locks held
	reason        string         // of the last decision
	signal        string         // that binds the limit
	faults        uint64         // decisions that made no sense
	median        time.Duration  // service time in the last window
	service       room.Service   // what work takes
	outcomes      [5]uint64      // by weir.Outcome
	parts         *waiting.Parts // of classes, users and tenants
	accounts      []account      // by slot id, of what is in flight
	accounting    bool           // somebody named has waited in the slow gear
	byTime        *byTime        // nil: shares are of cost
	idle          chan struct{}  // closed when closed and nothing is in flight
	idleDone      bool
	refusedBefore uint64          // refusals up to the last window
	cut           *weir.Rejection // the last for want of a place in a queue that stands
	refreshAt     time.Duration   // when the shared refusals may be made anew
	resized       bool            // they must be: the limit or the room has changed

	// Read without the lock.
	name           string               // set once
	clock          func() time.Duration // set once; nil for the monotonic clock
	epoch          time.Time            // set once
	maxWait        atomic.Int64
	findLeaks      atomic.Bool
	refuseOversize atomic.Bool
	hooks          atomic.Pointer[weir.Hooks]
	refusal        atomic.Pointer[refusals]
	count          counters
	exempt         exempt
	places         sync.Pool // of *waiter
}

var (
	_ weir.Gate        = (*Limiter)(nil)
	_ weir.TryAdmitter = (*Limiter)(nil)
	_ weir.Arriver     = (*Limiter)(nil)
	_ weir.Snapshotter = (*Limiter)(nil)
	_ weir.Holder      = (*Limiter)(nil)
	_ weir.CostHolder  = (*Limiter)(nil)
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
	l.controller, l.signals = cfg.controller(), cfg.Signals
	first := l.controller.Start()

	now := l.now()
	l.exempt.init(l, now)
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
// after waiting in the room, in the order of its priority, user and tenant. A cost
// above the limit counts as the whole limit: such work runs alone, and is never
// stuck for ever ([Config.RefuseOversize] refuses it instead). Admit returns when
// the work is admitted or refused: at the latest when the context is done, the
// deadline has passed, or the work has waited as long as it may.
//
// Work whose deadline has passed, or whose context is done, is refused even
// when slots are free. (MongoDB's ticket pools grant it then; an answer that
// nobody waits for is only waste.)
//
// Exempt work is admitted at once, whatever is in flight, up to a cap of its own
// ([Config.Exempt]).
func (l *Limiter) Admit(ctx context.Context, w weir.Work) (weir.Permit, error) {
	if p, ok := weir.Nested(ctx, l); ok {
		return p, nil
	}
	if uint64(w.Cost) > 1 || w.Exempt || l.shared.Attention.Load() != 0 || !w.Deadline.IsZero() || ctx.Err() != nil {
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
	if uint64(w.Cost) > 1 || w.Exempt || !w.Deadline.IsZero() {
		return l.tryAdmit(&w)
	}
	if l.shared.Attention.Load() != 0 {
		if p, ok := l.quick(&w); ok {
			return p, nil
		}
		return l.tryAdmit(&w)
	}
	p, ok := l.shared.Hint.Load().Take()
	if !ok || l.shared.Attention.Load() != 0 {
		p.Cancel() // the core is shifting down: ask again, with the lock
		return l.tryAdmit(&w)
	}
	return p, nil
}

// Arrive implements [weir.Arriver]: Admit for callers that cannot block. The
// caller cancels the Waiter when it stops waiting; deadlines and MaxWait need no
// help.
func (l *Limiter) Arrive(w weir.Work, wake func(weir.Permit, error)) (weir.Permit, weir.Waiter, error) {
	var place *waiter
	if w.MaxWait >= 0 {
		place = &waiter{limiter: l, wake: wake, work: w, site: l.site()}
		place.Owner = place
		place.Call(place)
	}
	p, queued, err := l.arrive(context.Background(), &w, place)
	if !queued {
		return p, nil, err
	}
	return weir.Permit{}, place, weir.ErrWaiting
}

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
	cost := w.CostOrOne()
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
	if !ok {
		return weir.Permit{}, l.full(l.room.Bound())
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

// Close refuses new work, and what waits, with [weir.ReasonDraining]. Permits in
// flight stay valid. Close does not wait for them: see [Limiter.Drain]. Closing
// twice does nothing.
func (l *Limiter) Close() {
	now := l.now()
	l.mu.Lock()
	l.shiftDown(now)
	l.closed = true
	l.exempt.close()
	l.tickAt = room.Never
	var refused answers
	for w := l.room.Oldest(); w != nil; w = l.room.Oldest() {
		l.room.Remove(w)
		answer(&refused, w, weir.Permit{}, l.refusal.Load().draining)
	}
	l.settle(now) // nobody waits any more: no answers
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	refused.Deliver()
}

// finishClosing tells those that wait for it once nothing is in flight any more.
func (l *Limiter) finishClosing() {
	if l.idleDone || l.bank != l.limit {
		return
	}
	if exempt, _ := l.exempt.read(); exempt == 0 {
		l.idleDone = true
		close(l.idle)
	}
}

// Drain closes the limiter and waits until nothing is in flight, or until ctx is
// done: then the error says how much was still out. Exempt work counts too.
func (l *Limiter) Drain(ctx context.Context) error {
	l.Close()
	select {
	case <-l.idle:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.inFlight()
	if exempt, _ := l.exempt.read(); n > 0 || exempt > 0 {
		return fmt.Errorf("limit: gate %q: %d still in flight and %d exempt: %w", l.name, n, exempt, ctx.Err())
	}
	return nil
}

// Snapshot implements [weir.Snapshotter]. It counts the slots of a limiter in
// the fast gear one by one, so it is not for every request. It does not wait for
// a controller that takes its time.
func (l *Limiter) Snapshot() weir.Snapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := weir.Snapshot{
		Name: l.name, Kind: "limit", Mode: "enforce",
		Limit: l.limit, InFlight: l.inFlight(), Waiting: int64(l.room.Len()),
		Controller: l.controlledBy, LimitReason: l.reason, Signal: l.signal, Faults: l.faults,
		Latency: l.median, Wait: l.wait(),
		Leaked: l.count.leaked.Load(),
	}
	if l.bank > 0 && l.slow || !l.slow && s.InFlight < s.Limit {
		s.Wait = 0
	}
	if s.Waiting > 0 {
		s.WaitingByClass = make(map[weir.Priority]int64)
		for c, n := range l.room.ByClass() {
			if n > 0 {
				s.WaitingByClass[weir.PriorityOf(c)] = int64(n)
			}
		}
	}
	s.Admitted = l.admissions()
	s.Exempt, s.ExemptAdmitted = l.exempt.read()
	for _, r := range weir.Reasons() {
		n := l.count.rejected[r].Load()
		if r == weir.ReasonLimit {
			n += l.count.exempt.Load()
		}
		if n > 0 {
			if s.Rejected == nil {
				s.Rejected = make(map[weir.Reason]uint64)
			}
			s.Rejected[r] = n
		}
	}
	for _, o := range weir.Outcomes() {
		if n := l.outcomes[o]; n > 0 {
			if s.Outcomes == nil {
				s.Outcomes = make(map[weir.Outcome]uint64)
			}
			s.Outcomes[o] = n
		}
	}
	return s
}

// admissions counts the permits granted so far: those that have been given
// back, by the generations of the slots, and those that are out; but not those
// whose work never started.
func (l *Limiter) admissions() uint64 {
	var n uint64
	for _, b := range *l.table.Load() {
		n += b.Uses()
		if b.Held() {
			n++
		}
	}
	cancelled := l.count.cancelled.Load()
	if cancelled > n { // counted between the two reads
		return 0
	}
	return n - cancelled
}

// unserved counts the refusals for want of a slot.
func (c *counters) unserved() uint64 {
	return c.rejected[weir.ReasonLimit].Load() + c.rejected[weir.ReasonQueueFull].Load() +
		c.rejected[weir.ReasonQueueTimeout].Load()
}
