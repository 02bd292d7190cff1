package limit

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/gate"
	"github.com/weir-go/weir/internal/room"
)

// Limiter is a concurrency gate. At most a limit of work runs at a time, and a
// bounded room holds the work that has to wait. It is safe for concurrent use.
//
// It implements [weir.Gate], [weir.TryAdmitter], [weir.Arriver] and
// [weir.Snapshotter].
type Limiter struct {
	core // all but shared and table guarded by mu

	// sizer guards the controller and the window it reads, and is always locked
	// before mu. The controller runs under it; hooks and callbacks run under
	// neither.
	sizer gate.Sizer

	mu            sync.Mutex
	tickAt        time.Duration    // when the window closes
	timerAt       time.Duration    // when the timer will fire
	timer         *time.Timer      // nil with a clock of its owner's
	controlledBy  string           // name of the controller; changed with both locks held
	reason        string           // of the last decision
	estimate      control.Estimate // of the last decision
	probes        control.Probes   // of the last decision
	signal        string           // that binds the limit
	fixed         bool             // nothing but a person moves the limit
	median        time.Duration    // service time in the last window
	service       room.Service     // what work takes
	outcomes      [5]uint64        // by weir.Outcome
	parts         *gate.Parts      // of classes, users and tenants
	accounts      gate.Accounts    // of what is in flight
	accounting    bool             // accounts are kept: work with a name has waited in the slow gear
	drained       chan struct{}    // closed when closed and nothing is in flight
	isDrained     bool
	cut           [room.Classes]*weir.Rejection // the last for want of a place in a queue that stands, by class
	few, fewOf    *weir.Rejection               // the last for want of slots while some were free, and what it is a copy of
	refreshAt     time.Duration                 // when the shared refusals may be made anew
	refusalsStale bool                          // they must be: the limit or the room has changed

	// Read without the lock.
	front          gate.Front
	maxWait        atomic.Int64
	refuseOversize atomic.Bool
	refusal        atomic.Pointer[refusals]
	cancelled      atomic.Uint64 // permits given back as never started
	exempt         gate.Exempt
}

var (
	_ weir.Gate        = (*Limiter)(nil)
	_ weir.TryAdmitter = (*Limiter)(nil)
	_ weir.Arriver     = (*Limiter)(nil)
	_ weir.Snapshotter = (*Limiter)(nil)
)

// New returns a running limiter, or an error that names every setting out of
// range. Close it when it is no longer needed. The zero Config is the automatic
// limiter: see [Auto].
func New(cfg Config) (*Limiter, error) {
	c, err := cfg.compile()
	if err != nil {
		return nil, err
	}
	first, err := gate.Start(c)
	if err != nil {
		return nil, cfg.errStart(err)
	}
	return start(cfg, c, first), nil
}

// errStart is the error for a controller whose first decision makes no sense.
func (c *Config) errStart(err error) error {
	return fmt.Errorf("limit: gate %q: Start of %w", c.Name, err)
}

// Auto returns a running limiter that finds its limit by itself: that of New for a
// Config with nothing but the name. There is nothing in it to set wrong, so there is no
// error. Close it when it is no longer needed.
func Auto(name string) *Limiter {
	c := control.Default()
	return start(Config{Name: name}, c, c.Start())
}

// start returns a running limiter of a configuration that has been checked.
func start(cfg Config, c control.Controller, first control.Decision) *Limiter {
	l := &Limiter{drained: make(chan struct{}), timerAt: room.Never, tickAt: room.Never}
	l.front.Init(cfg.Name, cfg.Now)
	l.slow = true // until update finds that nothing keeps it there
	l.shared.Holder, l.shared.Freed = (*holder)(l), l.slotFreed
	l.shared.Attention.Store(inSlow)
	l.table.Store(new([]*berth))
	l.grow()
	l.shared.Hint.Store(&(*l.table.Load())[0].Slot)
	l.sizer.Controller, l.sizer.Signals = c, cfg.Signals
	now := l.front.Now()
	l.exempt.Init(&l.front, l.exemptDrained)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.configure(cfg)
	l.limit = first.Limit
	l.bank, l.reason, l.refusalsStale = l.limit, first.Reason, true
	l.window.Reset(now, 0)
	l.drain.Reset(now)
	l.drain.Wanted = now - calm
	l.schedule(now, first.Next)
	l.update(now) // nobody waits yet: no answers
	return l
}

// Name returns the name from the configuration.
func (l *Limiter) Name() string { return l.front.Name() }

// Admit takes as many slots as w costs. It does so at once if enough are free and
// nobody waits. Otherwise w waits in the room, in the order of its priority, user
// and tenant. A cost above the limit counts as the whole limit. Such work runs
// alone and is never stuck for ever ([Config.RefuseOversize] refuses it instead).
// Admit returns when the work is admitted or refused. It does so at the latest
// when the context is done, the deadline has passed, or the work has waited as
// long as it may.
//
// Work is refused if its deadline has passed or its context is done, even when
// slots are free. (MongoDB's ticket pools grant it then; an answer that nobody
// waits for is only waste.)
//
// Exempt work is admitted at once, whatever is in flight, up to a cap of its own
// ([Config.Exempt]).
func (l *Limiter) Admit(ctx context.Context, w weir.Work) (weir.Permit, error) {
	if p, ok := weir.Nested(ctx, l); ok {
		return p, nil
	}
	w.Inherit(ctx)
	if uint64(w.Cost) > 1 || w.Exempt || l.shared.Attention.Load() != 0 || !w.Deadline.IsZero() || ctx.Err() != nil {
		return l.admit(ctx, &w)
	}
	if t, ok := l.shared.Hint.Load().Take(); ok {
		if l.shared.Attention.Load() == 0 {
			return weir.NewPermit(t), nil
		}
		(*holder)(l).Cancel(t) // the core shifts down
	}
	return l.admit(ctx, &w)
}

// TryAdmit takes the cost of w if enough slots are free and nobody waits for
// them. Otherwise it refuses; it never waits. While nothing is free it refuses
// without taking the lock.
func (l *Limiter) TryAdmit(w weir.Work) (weir.Permit, error) {
	// What atOnce does for nearly all work, as in Admit. Without its calls it takes two thirds of the time.
	if uint64(w.Cost) <= 1 && !w.Exempt && w.Deadline.IsZero() && l.shared.Attention.Load() == 0 {
		if t, ok := l.shared.Hint.Load().Take(); ok {
			if l.shared.Attention.Load() == 0 {
				return weir.NewPermit(t), nil
			}
			(*holder)(l).Cancel(t) // the core shifts down
		}
	}
	if p, ok := l.atOnce(&w); ok {
		return p, nil
	}
	return l.tryAdmit(&w)
}

// Arrive implements [weir.Arriver]: Admit for callers that cannot block. The
// caller cancels the Waiter when it stops waiting; deadlines and MaxWait need no
// help.
func (l *Limiter) Arrive(w weir.Work, wake func(weir.Permit, error)) (weir.Permit, weir.Waiter, error) {
	if p, ok := l.atOnce(&w); ok {
		return p, nil, nil
	}
	var place *gate.Waiter
	if w.MaxWait >= 0 {
		place = l.front.CallPlace(&w, wake)
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

// admit is the slow path of Admit. If no decision is needed it returns at once, else
// it blocks until there is one.
func (l *Limiter) admit(ctx context.Context, w *weir.Work) (weir.Permit, error) {
	if ctx.Err() == nil {
		if p, ok := l.atOnce(w); ok {
			return p, nil
		}
	}
	if w.MaxWait < 0 {
		p, _, err := l.arrive(ctx, w, nil)
		return p, err
	}
	place := l.front.Place()
	p, queued, err := l.arrive(ctx, w, place)
	if queued {
		return l.front.Wait(ctx, w, place)
	}
	l.front.Free(place)
	return p, err
}

// atOnce admits work that needs no decision: one unit in good time, where a slot
// is free and nobody waits for it. That is nearly all work on most gates. So it
// pays to skip everything that arrive does for the rest.
func (l *Limiter) atOnce(w *weir.Work) (weir.Permit, bool) {
	if uint64(w.Cost) > 1 || w.Exempt {
		return weir.Permit{}, false
	}
	if l.shared.Attention.Load() != 0 {
		return l.quick(w)
	}
	if !w.Deadline.IsZero() && l.front.Until(w.Deadline) <= 0 {
		return weir.Permit{}, false
	}
	if t, ok := l.search(); ok {
		if l.shared.Attention.Load() == 0 {
			return weir.NewPermit(t), true
		}
		(*holder)(l).Cancel(t) // the core shifts down
	}
	return weir.Permit{}, false
}

// quick is atOnce in the slow gear, on a gate with a controller or hooks for instance.
func (l *Limiter) quick(w *weir.Work) (weir.Permit, bool) {
	if l.shared.Attention.Load() != inSlow || l.front.FindsLeaks() {
		return weir.Permit{}, false
	}
	now := l.front.Now()
	if !w.Deadline.IsZero() && l.front.Deadline(now, w.Deadline) <= now {
		return weir.Permit{}, false
	}
	l.mu.Lock()
	if l.word != inSlow {
		l.mu.Unlock()
		return weir.Permit{}, false
	}
	t, _ := l.grant(now, 1) // the word says that there is one
	if l.accounting {
		l.accounts.Open(t, int8(w.Priority.Class()), w.User, w.Tenant, 1)
	}
	if l.bank < 1 { // or nothing has changed that the word tells
		l.publish()
	}
	l.mu.Unlock()
	if l.front.Hooks().Admitted != nil {
		l.front.Admitted(w, 0)
	}
	return weir.NewPermit(t), true
}

// arrive decides about w: a permit, a refusal, or a place in the room. A nil
// place means that w does not wait. It calls the hooks unless w was queued.
func (l *Limiter) arrive(ctx context.Context, w *weir.Work, place *gate.Waiter) (p weir.Permit, queued bool, err error) {
	// 1. Some work must not start even if slots are free.
	refused := l.front.Unfit(ctx, w)
	exempt := l.exempt.Applies(w)
	// 2. A refusal for want of a slot needs no lock. A deadline that has passed would
	// be the better reason.
	if refused == nil && !exempt && w.Deadline.IsZero() {
		refused = l.refuseByWord(w, place != nil)
	}
	var now time.Duration
	var until gate.Bounds
	if refused == nil {
		now = l.front.Now()
		until, refused = l.front.Bounds(w, now, place != nil && !exempt, time.Duration(l.maxWait.Load()))
	}
	// 3. Exempt work has an account of its own, the rest is decided under the lock.
	switch {
	case refused != nil:
	case exempt:
		p, refused = l.exempt.Admit(now)
	default:
		p, queued, refused = l.decideLocked(now, w, until, place)
	}
	return l.front.Answered(w, p, queued, refused)
}

// refuseByWord refuses work if the attention word alone is enough for that. The word
// cannot answer two questions. It does not say whether there is a place for work
// that might go before others. It does not say whether a cost is above the limit
// either, and then coming back has no point.
func (l *Limiter) refuseByWord(w *weir.Work, waits bool) *weir.Rejection {
	word := l.shared.Attention.Load()
	switch {
	case word&isClosed != 0:
		return l.refusal.Load().draining
	case word&noSlot == 0 || w.Cost > 1 && l.refuseOversize.Load():
		return nil
	case !waits:
		return l.refusal.Load().limit
	case word&roomFull == 0 || !nameless(w):
		return nil
	}
	return l.refusal.Load().queueFull[w.Priority.Class()]
}

// nameless reports whether w has nothing that might put it before others: no user,
// no tenant, no high priority.
func nameless(w *weir.Work) bool {
	return w.Priority <= weir.Normal && w.User == "" && w.Tenant == ""
}

// decideLocked takes the lock, decides, and delivers the answers.
func (l *Limiter) decideLocked(now time.Duration, w *weir.Work, until gate.Bounds, place *gate.Waiter) (p weir.Permit, queued bool, refused *weir.Rejection) {
	var out gate.Answers
	l.mu.Lock()
	p, refused = l.decide(now, w, until, place, &out)
	l.updateInto(now, &out)
	queued = refused == nil && !p.Live()
	if queued && !place.Queued() { // served at once: the newest goes first
		out.Remove(&place.Answer)
		p, queued = place.Permit, false
	}
	l.mu.Unlock()
	out.Deliver()
	return p, queued, refused
}

// decide says what becomes of w. A zero permit without a refusal means that place
// has been queued. If somebody lost its place to it, that refusal is among the
// answers.
func (l *Limiter) decide(now time.Duration, w *weir.Work, until gate.Bounds, place *gate.Waiter, out *gate.Answers) (weir.Permit, *weir.Rejection) {
	cost := w.CostOrOne()
	// 1. In the fast gear there may be a free slot that the hint did not show.
	if !l.slow && cost == 1 {
		if t, ok := l.search(); ok {
			return weir.NewPermit(t), nil
		}
	}
	l.shiftDown(now)
	// 2. Nobody may come, or not with that cost.
	switch {
	case l.closed:
		return weir.Permit{}, l.refusal.Load().draining
	case l.refuseOversize.Load() && cost > l.limit:
		return weir.Permit{}, l.front.Oversize(cost, l.limit, l.signal)
	}
	// 3. What is free goes to w if nobody waits for it.
	if l.room.Len() == 0 {
		if t, ok := l.grant(now, cost); ok {
			if l.accounting {
				l.accounts.Open(t, int8(w.Priority.Class()), w.User, w.Tenant, min(cost, l.limit))
			}
			return weir.NewPermit(t), nil
		}
	}
	// 4. The rest waits or is refused.
	l.drain.Want(now)
	if place == nil || until.Patience <= now {
		return weir.Permit{}, l.noSlot()
	}
	return weir.Permit{}, l.enqueue(now, w, cost, until, place, out)
}

// enqueue lets w wait. It refuses w if w would wait in vain or there is no place.
func (l *Limiter) enqueue(now time.Duration, w *weir.Work, cost int64, until gate.Bounds, place *gate.Waiter, out *gate.Answers) *weir.Rejection {
	rate, median := l.drain.Current(now), l.service.Median()
	line := gate.Line{Room: &l.room, Pace: room.PaceAt(rate, median), Rate: rate, Median: median}
	place.Keeper = (*holder)(l)
	place.Describe(l.parts, w, cost, min(cost, l.limit), until.Deadline)
	displaced, inVain, ok := line.Enqueue(&l.front, now, place, until)
	switch {
	case inVain != nil:
		return l.comeBack(now, place.Class, inVain)
	case !ok:
		return l.full(place.Class, l.room.Bound())
	case displaced != nil:
		out.Leave(displaced, weir.Permit{}, l.displaced(displaced, &place.Waiter))
	}
	if w.User != "" || w.Tenant != "" {
		l.accounting = true // from now on shares matter
	}
	return nil
}

// update ends everything that happens under the lock. Waiters whose time is up
// leave, those who can start do so, and the outside view follows. The answers are
// to be delivered after the lock has been released.
func (l *Limiter) update(now time.Duration) (out gate.Answers) {
	l.updateInto(now, &out)
	return out
}

func (l *Limiter) updateInto(now time.Duration, out *gate.Answers) {
	if l.room.Len() > 0 {
		l.answerWaiters(now, out)
		l.arm(now)
		// Work whose cost does not fit waits beside free slots. Then every slot
		// that can be used is in use.
		l.window.Saturated(now, l.bank < 1 || l.room.Len() > 0)
	}
	if now >= l.refreshAt || l.refusalsStale {
		l.refresh(now)
	}
	switch {
	case l.closed:
		l.finishClosing()
	case !l.observed:
		if l.shiftUp(now); !l.slow && l.accounting { // the core no longer tells whose work is in flight
			l.accounting, l.accounts.All = false, nil
		}
	}
	l.publish()
}

// onlyPublishes reports whether update has nothing to do but publish. It can be true
// only where the word says more than that the gear is slow.
func (l *Limiter) onlyPublishes(now time.Duration) bool {
	return l.observed && l.room.Len() == 0 && now < l.refreshAt && !l.refusalsStale && !l.closed
}

// answerWaiters goes through the room. Waiters whose time is up are refused, waiters whose
// turn it is are admitted.
func (l *Limiter) answerWaiters(now time.Duration, out *gate.Answers) {
	for w := l.room.Expired(now); w != nil; w = l.room.Expired(now) {
		l.room.Expire(w)
		out.Leave(w, weir.Permit{}, l.comeBack(now, w.Class, l.front.Expired(now, gate.WaiterOf(w))))
	}
	for w := l.room.Next(now); w != nil; w = l.room.Next(now) {
		t, ok := l.grant(now, gate.WaiterOf(w).Cost)
		if !ok {
			return
		}
		l.room.Dequeue(w)
		if l.accounting {
			l.accounts.OpenWaiter(&l.room, t, w, l.berth(t).cost)
		}
		out.Leave(w, weir.NewPermit(t), nil)
	}
}

// Close refuses new work, and what waits, with [weir.ReasonDraining]. Permits in
// flight stay valid. Close does not wait for them: see [Limiter.Drain]. Closing
// twice does nothing.
func (l *Limiter) Close() {
	now := l.front.Now()
	l.mu.Lock()
	l.shiftDown(now)
	l.closed = true
	l.exempt.Close()
	l.tickAt = room.Never
	var refused gate.Answers
	for w := l.room.Oldest(); w != nil; w = l.room.Oldest() {
		l.room.Remove(w)
		refused.Leave(w, weir.Permit{}, l.refusal.Load().draining)
	}
	l.update(now) // nobody waits any more: no answers
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	refused.Deliver()
}

// finishClosing wakes the callers of Drain once nothing is in flight any more.
func (l *Limiter) finishClosing() {
	if l.isDrained || l.bank != l.limit {
		return
	}
	if exempt, _ := l.exempt.Read(); exempt == 0 {
		l.isDrained = true
		close(l.drained)
	}
}

// exemptDrained is called when exempt work has ended in a closed limiter.
func (l *Limiter) exemptDrained() {
	l.mu.Lock()
	l.finishClosing()
	l.mu.Unlock()
}

// Drain closes the limiter and waits until nothing is in flight, or until ctx is
// done. In that case the error says how much is still in flight. Exempt work
// counts too.
func (l *Limiter) Drain(ctx context.Context) error {
	l.Close()
	select {
	case <-l.drained:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.inFlight()
	if exempt, _ := l.exempt.Read(); n > 0 || exempt > 0 {
		return fmt.Errorf("limit: gate %q: %d still in flight and %d exempt: %w", l.Name(), n, exempt, ctx.Err())
	}
	return nil
}

// Load returns the cost in flight, how much work waits, and the limit, as
// [Limiter.Snapshot] does. It allocates nothing.
func (l *Limiter) Load() (inFlight, waiting, limit int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inFlight(), int64(l.room.Len()), l.limit
}

// Snapshot implements [weir.Snapshotter]. It counts the slots of a limiter in
// the fast gear one by one, so do not call it for every request. It does not wait
// for a slow controller.
func (l *Limiter) Snapshot() weir.Snapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := weir.Snapshot{
		Name: l.front.Name(), Kind: "limit", Mode: "enforce",
		Limit: l.limit, InFlight: l.inFlight(), Waiting: int64(l.room.Len()),
		Controller: l.controlledBy, LimitReason: l.reason, Signal: l.signal, Faults: l.sizer.Faults.Load(),
		Latency: l.median, Wait: l.wait(),
		WaitingByClass: gate.ByPriority(l.room.ByClass()), Outcomes: gate.ByOutcome(l.outcomes[:]),
		Leaked: l.front.Leaked(), Rejected: l.front.Rejected(),
	}
	if l.bank > 0 && l.slow || !l.slow && s.InFlight < s.Limit {
		s.Wait = 0
	}
	if l.estimate.Shape != "" {
		e := weir.Estimate(l.estimate)
		s.Estimate = &e
	}
	if l.probes.Stable > 0 {
		p := weir.Probes(l.probes)
		s.Probes = &p
	}
	s.Admitted = l.countAdmitted()
	s.Exempt, s.ExemptAdmitted = l.exempt.Read()
	return s
}

// countAdmitted counts the permits granted so far, by the generations of the slots. Permits
// whose work never started are left out.
func (l *Limiter) countAdmitted() uint64 {
	var n uint64
	for _, b := range *l.table.Load() {
		n += b.Issued()
	}
	cancelled := l.cancelled.Load()
	if cancelled > n { // counted between the two reads
		return 0
	}
	return n - cancelled
}
