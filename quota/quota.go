package quota

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/gate"
)

// Quota is a gate that limits what is used up, by rules. It is safe for concurrent
// use.
//
// Use [Quota.Allow] to drop or skip work that comes too often, and [Quota.Wait] to slow
// it down. Use [Quota.Admit] to learn why work is refused and when to come back, to
// compose gates, or to correct the cost later.
type Quota struct {
	front    gate.Front
	store    Store
	memory   *Memory // the store, if it is a Memory
	recent   *recent // what another store decided lately; nil for a Memory
	settings atomic.Pointer[settings]

	mu   sync.Mutex // held while settings change; guards shut
	shut bool

	fallback struct {
		sync.Mutex
		*Memory // decides when the store fails; nil until it has to
	}
	tabs   tabs
	room   room
	pools  [poolCount]pool
	counts counters
	closed atomic.Bool
}

// New makes a gate. The error names every setting out of range.
func New(cfg Config) (*Quota, error) {
	set, err := cfg.compile()
	if err != nil {
		return nil, err
	}
	q := &Quota{store: cfg.Store}
	q.front.Init(cfg.Name, cfg.Now)
	q.front.SetHooks(&cfg.Hooks)
	if q.store == nil {
		m, err := NewMemory(MemoryConfig{Now: cfg.Now})
		if err != nil {
			return nil, err
		}
		q.store = m
	}
	if q.memory, _ = q.store.(*Memory); q.memory == nil {
		q.recent = &recent{seed: maphash.MakeSeed()}
	}
	for i := range q.pools {
		q.pools[i].gate = q
		q.pools[i].permits.Init(&q.pools[i], 0, 0)
	}
	q.settings.Store(set)
	return q, nil
}

// Name returns the name from the configuration.
func (q *Quota) Name() string { return q.front.Name() }

// Store returns the store that keeps the buckets: Config.Store, or the default [Memory].
func (q *Quota) Store() Store { return q.store }

// IsDistant implements [weir.Distant]. It reports whether the store is anything but a
// [Memory].
func (q *Quota) IsDistant() bool { return q.memory == nil }

// Allow reports whether w may happen now, and charges its cost if so. Nothing is given
// back later. (A store on another machine may take its time.)
func (q *Quota) Allow(w weir.Work) bool {
	_, err := q.Charge(context.Background(), w)
	return err == nil
}

// Wait blocks until w may happen, and charges its cost. It returns a [*weir.Rejection] as
// its error in two cases. Either ctx ends before, or the wait would be longer than the
// deadline of ctx, w.Deadline or w.MaxWait allow. Config.Queue bounds it as it bounds
// Admit. If Config.Queue lets nothing wait, any number of callers may wait here, however
// long.
func (q *Quota) Wait(ctx context.Context, w weir.Work) error {
	set := q.settings.Load()
	if set.places == 0 {
		unbounded := *set
		unbounded.places, unbounded.longest = maxPlaces, Never-1
		set = &unbounded
	}
	p, err := q.admit(ctx, set, &w)
	p.Done(weir.NoSample)
	return err
}

// Admit charges the cost of w to the bucket that its rule gives it, or refuses. With a
// Queue it may wait for tokens to come back. Done gives nothing back: tokens are used
// up. Cancel does, for work that never started, and SetCost corrects the cost.
func (q *Quota) Admit(ctx context.Context, w weir.Work) (weir.Permit, error) {
	return q.admit(ctx, q.settings.Load(), &w)
}

func (q *Quota) admit(ctx context.Context, set *settings, w *weir.Work) (weir.Permit, error) {
	if p, ok := weir.Nested(ctx, q); ok {
		return p, nil
	}
	w.Inherit(ctx)
	p, place, err := q.arrive(ctx, set, w, w.MaxWait >= 0, nil)
	if place == nil {
		return p, err
	}
	return q.front.Await(ctx, w, &place.Answer, place)
}

// TryAdmit is Admit that never waits for tokens. (A store on another machine may
// take its time.)
func (q *Quota) TryAdmit(w weir.Work) (weir.Permit, error) {
	p, _, err := q.arrive(context.Background(), q.settings.Load(), &w, false, nil)
	return p, err
}

// Arrive implements [weir.Arriver]: Admit for callers that cannot block. The caller
// cancels the Waiter when it stops waiting; deadlines and MaxWait need no help.
func (q *Quota) Arrive(w weir.Work, wake func(weir.Permit, error)) (weir.Permit, weir.Waiter, error) {
	p, place, err := q.arrive(context.Background(), q.settings.Load(), &w, w.MaxWait >= 0, wake)
	if place == nil {
		return p, nil, err
	}
	return weir.Permit{}, place, weir.ErrWaiting
}

// arrive decides about w: a permit, a refusal, or a place in the room if it may
// wait. It calls the hooks unless w waits.
func (q *Quota) arrive(ctx context.Context, set *settings, w *weir.Work, waits bool, wake func(weir.Permit, error)) (weir.Permit, *waiter, error) {
	var c bill
	refused := q.match(ctx, set, w, &c, true)
	if refused != nil {
		return weir.Permit{}, nil, q.front.Refuse(w, refused)
	}
	if c.free {
		q.front.Admitted(w, 0)
		return weir.Permit{}, nil, nil
	}
	d, refused := q.charge(ctx, set, w, &c, set.mode, 0)
	if refused == nil && !d.OK && waits && set.places > 0 {
		var place *waiter
		if d, place, refused = q.enqueue(ctx, set, w, &c, d, wake); place != nil {
			return weir.Permit{}, place, nil
		}
	}
	if refused == nil && !d.OK {
		refused = q.short(set, w, &c, d)
	}
	if refused != nil {
		return weir.Permit{}, nil, q.front.Refuse(w, refused)
	}
	p := q.issue(&c)
	q.front.Admitted(w, 0)
	return p, nil, nil
}

// bill is what a piece of work costs, and which bucket pays. A later correction or
// refund needs both.
type bill struct {
	rule     *rule  // nil: none matches
	hash     uint64 // of the bucket's key, in a Memory
	key      string // the bucket's key, in any other store
	cost     int64
	fallback bool // the fallback was charged, because the store failed
	free     bool // nothing is charged: the work is not counted, or the store failed
	tab      *tab // the account that was charged, nil if the store was
	ahead    int  // the number of its question that tells the store
}

// match fills in c with the rule of w, its bucket and its cost. count says to count work
// that nothing is charged for.
func (q *Quota) match(ctx context.Context, set *settings, w *weir.Work, c *bill, count bool) *weir.Rejection {
	if q.closed.Load() {
		return q.front.Draining()
	}
	if ctx.Err() != nil {
		return q.front.GivenUp(ctx)
	}
	if !w.Deadline.IsZero() {
		if now := q.front.Now(); q.front.Deadline(now, w.Deadline) <= now {
			return q.front.Late(now - q.front.Deadline(now, w.Deadline))
		}
	}
	var id Identity
	r := (*rule)(nil)
	if !w.Exempt {
		r = set.ruleOf(w, &id)
	}
	c.rule = r
	switch {
	case r == nil || r.Exempt:
		c.free = true
		if count {
			q.counts.uncounted.Add(1)
		}
		return nil
	case r.Blocked:
		return &weir.Rejection{Gate: q.Name(), Rule: r.title, Reason: weir.ReasonBlocked}
	}
	var buf [longestKey + 64]byte
	key := r.appendKey(buf[:0], &id)
	if c.cost = min(set.costOf(w), MaxTokens); c.cost < 0 {
		return &weir.Rejection{Gate: q.Name(), Rule: r.title, Bucket: string(key), Reason: weir.ReasonTooLarge, Value: float64(c.cost)}
	}
	if q.memory != nil {
		c.hash = q.memory.hash.Bytes(key)
	} else {
		c.key = string(key)
	}
	return nil
}

// charge lets the store decide.
func (q *Quota) charge(ctx context.Context, set *settings, w *weir.Work, c *bill, mode Mode, maxWait time.Duration) (Decision, *weir.Rejection) {
	if q.memory != nil {
		req := Request{Windows: c.rule.Windows, Cost: c.cost, Debt: set.debt, Mode: mode, MaxWait: maxWait}
		d, err := q.memory.decide(c.hash, &req)
		if err != nil {
			return d, q.storeFailed(set, w, c, err)
		}
		c.rule.charged(q.memory, c.hash)
		return d, nil
	}
	c.fallback, c.free = false, false
	req := &Request{Key: c.key, Windows: c.rule.Windows, Cost: c.cost, Debt: set.debt, Mode: mode, MaxWait: maxWait}
	d, err := q.store.Decide(ctx, req)
	return q.decided(ctx, set, w, c, req, d, err)
}

// decided judges what a store has decided. If it failed it does what Config.OnStoreError says.
func (q *Quota) decided(ctx context.Context, set *settings, w *weir.Work, c *bill, req *Request, d Decision, err error) (Decision, *weir.Rejection) {
	if err == nil {
		err = req.checkDecision(d)
	}
	switch {
	case err == nil:
		q.recent.put(c.key, q.front.Now(), d)
		return d, nil
	case ctx.Err() != nil:
		return Decision{}, q.front.GivenUp(ctx)
	}
	q.counts.storeErrors.Add(1)
	switch {
	case set.onError == Open && !errors.Is(err, ErrBusy):
		c.free = true
		return Decision{OK: true}, nil
	case set.onError == Closed:
		return Decision{}, q.storeFailed(set, w, c, err)
	default: // Local, or Open while the store is busy
		c.fallback = true
		m := q.local(true)
		hash := m.hash.String(c.key)
		if d, err = m.decide(hash, req); err != nil {
			return Decision{}, q.storeFailed(set, w, c, err)
		}
		c.rule.charged(m, hash)
		return d, nil
	}
}

// local returns the fallback. It is nil if there is none so far and create is false.
func (q *Quota) local(create bool) *Memory {
	q.fallback.Lock()
	defer q.fallback.Unlock()
	if q.fallback.Memory == nil && create {
		q.fallback.Memory, _ = NewMemory(MemoryConfig{Now: q.front.Clock()}) // the defaults are no error
	}
	return q.fallback.Memory
}

// refund undoes a charge.
func (q *Quota) refund(c *bill) { q.adjust(c, float64(c.cost)) }

// adjust gives tokens back to the bucket that was charged, or charges it more if they are
// negative. The context of the work does not matter: it may be over.
func (q *Quota) adjust(c *bill, tokens float64) {
	if c.free || tokens == 0 {
		return
	}
	var err error
	switch {
	case q.memory != nil:
		err = c.rule.correct(q.memory, c.hash, tokens)
	case c.tab != nil && q.tabs.adjust(q, c, tokens):
	case c.fallback:
		m := q.local(true)
		err = c.rule.correct(m, m.hash.String(c.key), tokens)
	default:
		windows := c.rule.chargedWindows()
		if err = q.store.Refund(context.Background(), c.key, windows, tokens); err == nil {
			q.recent.correct(c.key, windows, tokens)
		}
	}
	if err != nil {
		q.counts.unsettled.Add(1)
	}
}

// short is the refusal of work for which there are not enough tokens.
func (q *Quota) short(set *settings, w *weir.Work, c *bill, d Decision) *weir.Rejection {
	burst := c.rule.Windows[d.Window].Burst
	refused := &weir.Rejection{Gate: q.Name(), Rule: c.rule.title, Bucket: q.bucket(set, w, c), Window: c.rule.windowNumber(d), Reason: weir.ReasonQuota,
		Value: burst - d.Remaining, Limit: burst, Remaining: d.Remaining}
	switch {
	case d.Wait < Never:
		refused.RetryAfter, refused.Retryable = d.Wait, true
	case float64(c.cost) > burst && !set.debt:
		refused.Reason, refused.Value = weir.ReasonTooLarge, float64(c.cost)
	}
	return refused
}

// storeFailed is the refusal of work because the store failed.
func (q *Quota) storeFailed(set *settings, w *weir.Work, c *bill, err error) *weir.Rejection {
	return &weir.Rejection{Gate: q.Name(), Rule: c.rule.title, Bucket: q.bucket(set, w, c), Reason: weir.ReasonStore, RetryAfter: time.Second, Retryable: true, Cause: err}
}

// bucket returns the key of the bucket that a refusal is about. A Memory knows buckets by
// a hash, so the key is built again: only refusals need it.
func (q *Quota) bucket(set *settings, w *weir.Work, c *bill) string {
	if c.key != "" {
		return c.key
	}
	var id Identity
	set.identity(w, &id)
	var buf [longestKey + 64]byte
	return string(c.rule.appendKey(buf[:0], &id))
}

// Close refuses new work, and work that waits, with [weir.ReasonDraining]; what waited
// gets its tokens back. Permits stay valid: their cost may be corrected, and they may be
// cancelled. What [Quota.AdmitAhead] has charged the store is told before Close returns. Closing
// twice does nothing.
func (q *Quota) Close() {
	q.mu.Lock()
	q.shut = true
	q.mu.Unlock()
	q.closed.Store(true)
	var out gate.Answers
	for _, w := range q.room.close() {
		q.refund(&w.bill)
		out.Add(&w.Answer, weir.Permit{}, q.front.Draining())
	}
	out.Deliver()
	q.tabs.close()
}

// outcomeCount is room for every weir.Outcome.
const outcomeCount = 8

// counters are what the gate counts beside its pools.
type counters struct {
	uncounted   atomic.Uint64 // exempt, or without a rule
	charged     atomic.Uint64 // without a permit
	storeErrors atomic.Uint64
	unsettled   atomic.Uint64
}

// Snapshot implements [weir.Snapshotter]. InFlight is the number of permits that are
// out. Limit is 0: a quota has none. ExemptAdmitted counts work that is exempt, that no
// rule matches, or whose rule is exempt.
func (q *Quota) Snapshot() weir.Snapshot {
	s := weir.Snapshot{Name: q.Name(), Kind: "quota", Mode: "enforce", Waiting: q.room.size(), Admitted: q.counts.charged.Load(),
		ExemptAdmitted: q.counts.uncounted.Load(), Rejected: q.front.Rejected()}
	for i := range q.pools {
		q.pools[i].addTo(&s)
	}
	return s
}

// Faults counts the failures of a gate's store.
type Faults struct {
	// StoreErrors counts failed decisions. Config.OnStoreError says what happened
	// instead.
	StoreErrors uint64
	// Unsettled counts failed refunds and corrections of a cost.
	Unsettled uint64
}

// Faults returns how often the store failed.
func (q *Quota) Faults() Faults {
	return Faults{StoreErrors: q.counts.storeErrors.Load(), Unsettled: q.counts.unsettled.Load()}
}

var (
	_ weir.Gate        = (*Quota)(nil)
	_ weir.TryAdmitter = (*Quota)(nil)
	_ weir.Arriver     = (*Quota)(nil)
	_ weir.Predictor   = (*Quota)(nil)
	_ weir.Distant     = (*Quota)(nil)
	_ weir.Snapshotter = (*Quota)(nil)
)
