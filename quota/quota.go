package quota

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
)

// Quota is a gate that limits what is used up, by rules. It is safe for concurrent
// use.
type Quota struct {
	name     string
	clock    func() time.Duration // Config.Now
	epoch    time.Time
	store    Store
	memory   *Memory // the store, if it is one
	heard    *heard  // from the store, if it is none
	settings atomic.Pointer[settings]

	mu   sync.Mutex // of changes; guards what follows
	shut bool

	spare  sync.Mutex // guards what follows
	local  *Memory    // in place of the store; nil until it is needed
	book   book
	room   room
	pools  [poolCount]pool
	closed atomic.Bool
}

// New makes a gate. The error names every setting out of range.
func New(cfg Config) (*Quota, error) {
	set, err := cfg.compile()
	if err != nil {
		return nil, err
	}
	q := &Quota{name: cfg.Name, clock: cfg.Now, epoch: time.Now(), store: cfg.Store}
	if q.store == nil {
		m, err := NewMemory(MemoryConfig{Now: cfg.Now})
		if err != nil {
			return nil, err
		}
		q.store = m
	}
	if q.memory, _ = q.store.(*Memory); q.memory == nil {
		q.heard = &heard{seed: maphash.MakeSeed()}
	}
	for i := range q.pools {
		q.pools[i].init(q)
	}
	q.settings.Store(set)
	return q, nil
}

// Name returns the name from the configuration.
func (q *Quota) Name() string { return q.name }

// Admit takes what w costs from the bucket that its rule gives it, or refuses; with
// a Queue it may wait for the tokens to come back. Done gives nothing back: a token
// is used up. Cancel does, for work that never started, and SetCost settles what it
// has really cost.
func (q *Quota) Admit(ctx context.Context, w weir.Work) (weir.Permit, error) {
	if p, ok := weir.Nested(ctx, q); ok {
		return p, nil
	}
	p, place, err := q.arrive(ctx, &w, w.MaxWait >= 0, nil)
	if place == nil {
		return p, err
	}
	select {
	case <-place.ready:
	case <-ctx.Done():
		if q.room.remove(place) {
			q.giveBack(&place.charge)
			return weir.Permit{}, q.refuse(&w, q.givenUp(ctx))
		}
		<-place.ready // the answer won the race, or is on its way
		if place.err == nil {
			place.permit.Cancel()
			place.err = q.givenUp(ctx)
		}
	}
	if place.err != nil {
		return weir.Permit{}, q.refuse(&w, place.err)
	}
	q.admitted(&w, q.now()-place.arrived)
	return place.permit, nil
}

// TryAdmit is Admit that never waits for tokens. (A store on another machine may
// take its time.)
func (q *Quota) TryAdmit(w weir.Work) (weir.Permit, error) {
	p, _, err := q.arrive(context.Background(), &w, false, nil)
	return p, err
}

// Arrive implements [weir.Arriver]: Admit for callers that cannot block. The caller
// cancels the Waiter when it stops waiting; deadlines and MaxWait need no help.
func (q *Quota) Arrive(w weir.Work, wake func(weir.Permit, error)) (weir.Permit, weir.Waiter, error) {
	p, place, err := q.arrive(context.Background(), &w, w.MaxWait >= 0, wake)
	if place == nil {
		return p, nil, err
	}
	return weir.Permit{}, place, weir.ErrWaiting
}

// now returns the time since the gate's epoch.
func (q *Quota) now() time.Duration {
	if q.clock != nil {
		return q.clock()
	}
	return time.Since(q.epoch)
}

// since returns a time of day as the time since the gate's epoch.
func (q *Quota) since(t time.Time) time.Duration {
	if q.clock != nil {
		return t.Sub(VirtualEpoch)
	}
	return t.Sub(q.epoch)
}

var (
	_ weir.Gate        = (*Quota)(nil)
	_ weir.TryAdmitter = (*Quota)(nil)
	_ weir.Arriver     = (*Quota)(nil)
	_ weir.Predictor   = (*Quota)(nil)
	_ weir.Snapshotter = (*Quota)(nil)
)

// charge is what a piece of work has been charged, and where: what it takes to
// settle it.
type charge struct {
	rule  *rule
	hash  uint64 // of the key, in a Memory
	key   string // in any other store
	cost  int64
	local bool // charged to the gate's own buckets, in place of the store
	free  bool // let through because the store could not tell: nothing was charged
}

// arrive decides about w: a permit, a refusal, or a place in the room if it may
// wait. It calls the hooks unless w waits.
func (q *Quota) arrive(ctx context.Context, w *weir.Work, waits bool, wake func(weir.Permit, error)) (weir.Permit, *waiter, error) {
	set := q.settings.Load()
	c, refused := q.bill(ctx, set, w, true)
	if refused != nil {
		return weir.Permit{}, nil, q.refuse(w, refused)
	}
	if c.rule == nil {
		q.admitted(w, 0)
		return weir.Permit{}, nil, nil
	}
	r, refused := q.ask(ctx, set, w, &c, set.mode, 0)
	if refused == nil && !r.OK && waits && set.places > 0 {
		var place *waiter
		if r, place, refused = q.wait(ctx, set, w, &c, r, wake); place != nil {
			return weir.Permit{}, place, nil
		}
	}
	if refused == nil && !r.OK {
		refused = q.short(set, w, &c, r)
	}
	if refused != nil {
		return weir.Permit{}, nil, q.refuse(w, refused)
	}
	p := q.issue(&c, set)
	q.admitted(w, 0)
	return p, nil, nil
}

// bill finds out whom w is charged to, and how much. Without a rule it is free,
// which is counted if it is to be.
func (q *Quota) bill(ctx context.Context, set *settings, w *weir.Work, count bool) (c charge, refused *weir.Rejection) {
	switch {
	case q.closed.Load():
		return c, q.draining()
	case ctx.Err() != nil:
		return c, q.givenUp(ctx)
	case !w.Deadline.IsZero() && q.since(w.Deadline) <= q.now():
		return c, q.late(q.now() - q.since(w.Deadline))
	case w.Exempt:
		q.book.free(count)
		return c, nil
	}
	id := set.identify(*w)
	r := set.rules.find(&id)
	if r == nil || r.exempt {
		q.book.free(count)
		return c, nil
	}
	if r.blocked {
		return c, &weir.Rejection{Gate: q.name, Rule: r.title, Reason: weir.ReasonBlocked}
	}
	if c.cost = set.cost(*w); c.cost < 0 {
		c.rule = r
		return c, &weir.Rejection{Gate: q.name, Rule: r.title, Bucket: q.bucket(set, w, &c), Reason: weir.ReasonTooLarge, Value: float64(c.cost)}
	}
	c.rule = r
	var buf [longestKey + 64]byte
	key := appendKey(buf[:0], q.name, r, &id)
	if q.memory != nil {
		c.hash = maphash.Bytes(q.memory.seed, key)
	} else {
		c.key = string(key)
	}
	return c, nil
}

// ask takes from the store, or does what is to be done if that cannot tell.
func (q *Quota) ask(ctx context.Context, set *settings, w *weir.Work, c *charge, mode Mode, most time.Duration) (Decision, *weir.Rejection) {
	if q.memory != nil {
		t := Request{Windows: c.rule.limits, Cost: c.cost, Debt: set.debt, Mode: mode, MaxWait: most}
		r, err := q.memory.take(c.hash, &t)
		if err != nil {
			return r, q.broken(set, w, c, err)
		}
		return r, nil
	}
	c.local, c.free = false, false
	t := &Request{Key: c.key, Windows: c.rule.limits, Cost: c.cost, Debt: set.debt, Mode: mode, MaxWait: most}
	r, err := q.store.Decide(ctx, t)
	if err == nil {
		err = t.makesSense(r)
	}
	if err == nil {
		q.heard.put(c.key, q.now(), r)
		return r, nil
	}
	if ctx.Err() != nil {
		return Decision{}, q.givenUp(ctx)
	}
	q.book.storeErrors.Add(1)
	switch {
	case set.onError == Open && !errors.Is(err, ErrBusy):
		c.free = true
		return Decision{OK: true}, nil
	case set.onError == Closed:
		return Decision{}, q.broken(set, w, c, err)
	}
	c.local = true
	if r, err = q.locally(true).Decide(ctx, t); err != nil {
		return Decision{}, q.broken(set, w, c, err)
	}
	return r, nil
}

// locally returns the buckets that stand in for the store; nil if there are none
// and none are to be made.
func (q *Quota) locally(make bool) *Memory {
	q.spare.Lock()
	defer q.spare.Unlock()
	if q.local == nil && make {
		q.local, _ = NewMemory(MemoryConfig{Now: q.clock}) // the defaults are no error
	}
	return q.local
}

// giveBack undoes a charge.
func (q *Quota) giveBack(c *charge) { q.give(c, float64(c.cost)) }

// give puts tokens back to where they were taken, or takes more. It is not bound to
// the context of the work: what was charged has to be settled even if that is over.
func (q *Quota) give(c *charge, tokens float64) {
	if c.free || c.rule == nil || tokens == 0 {
		return
	}
	limits := c.rule.settling()
	var err error
	switch {
	case q.memory != nil:
		err = q.memory.give(c.hash, limits, tokens)
	case c.local:
		err = q.locally(true).Refund(context.Background(), c.key, limits, tokens)
	default:
		err = q.store.Refund(context.Background(), c.key, limits, tokens)
	}
	if err != nil {
		q.book.unsettled.Add(1)
	}
}

// unknownWait is when to come back where nobody can tell.
const unknownWait = time.Second

// short is the refusal of work for which there are not enough tokens.
func (q *Quota) short(set *settings, w *weir.Work, c *charge, r Decision) *weir.Rejection {
	l := c.rule.limits[r.Window]
	refused := &weir.Rejection{Gate: q.name, Rule: c.rule.title, Bucket: q.bucket(set, w, c), Window: c.rule.window(r), Reason: weir.ReasonQuota,
		Value: l.Burst - r.Remaining, Limit: l.Burst, Remaining: r.Remaining}
	switch {
	case r.Wait < Never:
		refused.RetryAfter, refused.Retryable = r.Wait, true
	case float64(c.cost) > l.Burst && r.Remaining >= 0:
		refused.Reason, refused.Value = weir.ReasonTooLarge, float64(c.cost)
	}
	return refused
}

// full is the refusal of work for which there is no place to wait.
func (q *Quota) full(set *settings, w *weir.Work, c *charge, r Decision) *weir.Rejection {
	return &weir.Rejection{Gate: q.name, Rule: c.rule.title, Bucket: q.bucket(set, w, c), Window: c.rule.window(r), Reason: weir.ReasonQueueFull, Value: float64(set.places),
		Limit: float64(set.places), Remaining: r.Remaining, RetryAfter: r.Wait, Retryable: true}
}

// broken is the refusal of work about which the store cannot tell.
func (q *Quota) broken(set *settings, w *weir.Work, c *charge, err error) *weir.Rejection {
	return &weir.Rejection{Gate: q.name, Rule: c.rule.title, Bucket: q.bucket(set, w, c), Reason: weir.ReasonStore, RetryAfter: unknownWait, Retryable: true, Cause: err}
}

// bucket returns the key of the bucket that a refusal is about. It is built again where
// the buckets are in memory: those are known by a hash, and only a refusal needs the key.
func (q *Quota) bucket(set *settings, w *weir.Work, c *charge) string {
	if c.key != "" {
		return c.key
	}
	id := set.identify(*w)
	return string(appendKey(nil, q.name, c.rule, &id))
}

func (q *Quota) draining() *weir.Rejection {
	return &weir.Rejection{Gate: q.name, Reason: weir.ReasonDraining, Retryable: true}
}

// late is the refusal of work whose deadline has passed.
func (q *Quota) late(by time.Duration) *weir.Rejection {
	return &weir.Rejection{Gate: q.name, Reason: weir.ReasonDeadline, Value: by.Seconds(), Cause: context.DeadlineExceeded}
}

// givenUp is the refusal of work whose context is done.
func (q *Quota) givenUp(ctx context.Context) *weir.Rejection {
	reason := weir.ReasonCanceled
	if ctx.Err() == context.DeadlineExceeded {
		reason = weir.ReasonDeadline
	}
	return &weir.Rejection{Gate: q.name, Reason: reason, Cause: ctx.Err()}
}

// refuse counts a refusal by its reason, and tells the hook.
func (q *Quota) refuse(w *weir.Work, r *weir.Rejection) *weir.Rejection {
	q.book.rejected[r.Reason].Add(1)
	if h := &q.settings.Load().hooks; h.Rejected != nil {
		h.Rejected(*w, r)
	}
	return r
}

func (q *Quota) admitted(w *weir.Work, waited time.Duration) {
	if h := &q.settings.Load().hooks; h.Admitted != nil {
		h.Admitted(q.name, *w, waited)
	}
}

func (q *Quota) finished(o weir.Outcome, start time.Duration) {
	if h := &q.settings.Load().hooks; h.Done != nil {
		h.Done(q.name, o, q.now()-start)
	}
}

// ErrClosed is the error of changing a gate that has been closed. Work is refused
// with a Rejection for [weir.ReasonDraining] instead.
var ErrClosed = errors.New("closed")

// Close refuses new work, and what waits, with [weir.ReasonDraining]; what waits
// gives its tokens back. Permits stay valid: they may still be settled or
// cancelled. Closing twice does nothing.
func (q *Quota) Close() {
	q.mu.Lock()
	q.shut = true
	q.mu.Unlock()
	q.closed.Store(true)
	for _, w := range q.room.close() {
		q.giveBack(&w.charge)
		w.answer(weir.Permit{}, q.draining())
	}
}

type counter = atomic.Int64

// maxReasons is room for every weir.Reason.
const maxReasons = 32

// book is the gate's counters, but for those of its pools.
type book struct {
	rejected    [maxReasons]atomic.Uint64
	uncounted   atomic.Uint64 // exempt, or no rule
	charged     atomic.Uint64 // without a permit
	storeErrors atomic.Uint64
	unsettled   atomic.Uint64
}

func (b *book) free(count bool) {
	if count {
		b.uncounted.Add(1)
	}
}

// Snapshot implements [weir.Snapshotter]. InFlight is the permits that are out,
// Limit is 0: a quota has none. ExemptAdmitted is the work that is exempt, or that
// no rule matches, or an exempt one.
func (q *Quota) Snapshot() weir.Snapshot {
	s := weir.Snapshot{Name: q.name, Kind: "quota", Mode: "enforce", Waiting: q.room.waiting.Load(), Admitted: q.book.charged.Load(),
		ExemptAdmitted: q.book.uncounted.Load(),
		Rejected:       map[weir.Reason]uint64{}, Outcomes: map[weir.Outcome]uint64{}}
	for i := range q.pools {
		p := &q.pools[i]
		p.mu.Lock()
		s.InFlight += p.inFlight
		s.Admitted += p.issued
		for o, n := range p.outcomes {
			if n > 0 {
				s.Outcomes[weir.Outcome(o)] += n
			}
		}
		p.mu.Unlock()
	}
	for r := range q.book.rejected {
		if n := q.book.rejected[r].Load(); n > 0 {
			s.Rejected[weir.Reason(r)] = n
		}
	}
	return s
}

// Faults is how a gate has fared with its store.
type Faults struct {
	// StoreErrors counts takes that the store failed at, which were decided as
	// Config.OnStoreError says.
	StoreErrors uint64
	// Unsettled counts charges that could not be given back, or settled, because the
	// store failed.
	Unsettled uint64
}

// Faults returns how the gate has fared with its store.
func (q *Quota) Faults() Faults {
	return Faults{StoreErrors: q.book.storeErrors.Load(), Unsettled: q.book.unsettled.Load()}
}

// Store returns where the buckets are: Config.Store, or the [Memory] in its place.
func (q *Quota) Store() Store { return q.store }
