package limit

import (
	"context"
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
	refusedBefore uint64        // refusals up to the last window
	refreshAt     time.Duration // when the shared refusals may be made anew
	resized       bool          // they must be: the limit or the room has changed

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
