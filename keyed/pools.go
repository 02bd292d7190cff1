package keyed

import (
	"context"
	"fmt"
	"hash/maphash"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/keys"
	"github.com/weir-go/weir/internal/room"
	"github.com/weir-go/weir/limit"
)

// Pools is a concurrency gate with a pool of slots for each key. All pools have one
// size, which a controller may move, but for keys with an override. It is safe for
// concurrent use.
//
// It implements [weir.Pools], [weir.TryAdmitter], [weir.Arriver] and
// [weir.Snapshotter].
type Pools struct {
	name  string
	key   func(weir.Work) string // nil: the tenant
	clock func() time.Duration   // nil: the monotonic clock
	epoch time.Time
	seed  maphash.Seed

	shards   []shard // as many as a power of two
	shift    uint    // hash >> shift is the shard
	settings atomic.Pointer[settings]
	keys     atomic.Int64 // known, in all shards
	waiting  atomic.Int64
	exempt   atomic.Int64
	hand     atomic.Uint32 // the shard that gave up a key last
	rejected [16]atomic.Uint64
	waiters  sync.Pool // of *waiter

	sizing
	ending
}

var (
	_ weir.Gate        = (*Pools)(nil)
	_ weir.TryAdmitter = (*Pools)(nil)
	_ weir.Arriver     = (*Pools)(nil)
	_ weir.Snapshotter = (*Pools)(nil)
)

// New returns a running gate, or an error that names every setting out of range.
// Close it when it is no longer needed.
func New(cfg Config) (*Pools, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	g := &Pools{name: cfg.Name, key: cfg.Key, clock: cfg.Now, epoch: time.Now(), seed: maphash.MakeSeed()}
	n := shardCount(&cfg)
	g.shards, g.shift = make([]shard, n), uint(64-bits.TrailingZeros(uint(n)))
	for i := range g.shards {
		g.shards[i].init(g)
	}
	g.idle = make(chan struct{})
	g.start(cfg)
	return g, nil
}

// shardCount returns into how many parts the keys are split: one on virtual time,
// where the order in which keys are evicted must not depend on chance.
func shardCount(cfg *Config) int {
	if cfg.Now != nil {
		return 1
	}
	const most = 64
	n := 1
	for n < 4*runtime.GOMAXPROCS(0) && n < most {
		n *= 2
	}
	return n
}

// Name returns the name from the configuration.
func (g *Pools) Name() string { return g.name }

// now returns the time since the gate's epoch.
func (g *Pools) now() time.Duration {
	if g.clock != nil {
		return g.clock()
	}
	return time.Since(g.epoch)
}

// Admit takes the cost of w from the pool of its key, at once if that much is free
// and nobody waits for it, else after waiting. A cost above the limit counts as
// the whole limit: such work runs alone ([Config.RefuseOversize] refuses it
// instead). Admit returns when the work is admitted or refused: at the latest when
// the context is done, the deadline has passed, or the work has waited as long as
// it may.
//
// Work whose deadline has passed, or whose context is done, is refused even when
// slots are free.
func (g *Pools) Admit(ctx context.Context, w weir.Work) (weir.Permit, error) {
	if p, ok := weir.Nested(ctx, g); ok {
		return p, nil
	}
	if w.MaxWait < 0 || w.Exempt {
		p, _, err := g.arrive(ctx, &w, nil)
		return p, err
	}
	if p, ok := g.quick(ctx, &w); ok {
		return p, nil
	}
	place := g.place()
	p, queued, err := g.arrive(ctx, &w, place)
	if !queued {
		g.putBack(place)
		return p, err
	}
	return g.await(ctx, &w, place)
}

// await blocks until there is an answer for the work in place.
func (g *Pools) await(ctx context.Context, w *weir.Work, place *waiter) (weir.Permit, error) {
	select {
	case <-place.Ready():
	case <-ctx.Done():
		if place.Cancel() {
			g.putBack(place)
			return weir.Permit{}, g.refuse(w, g.givenUp(ctx))
		}
		<-place.Ready() // the answer won the race, or is on its way
		if place.Refused == nil {
			place.Permit.Cancel()
			place.Refused = g.givenUp(ctx)
		}
	}
	p, refused, arrived := place.Permit, place.Refused, place.Arrived
	g.putBack(place)
	if refused != nil {
		return weir.Permit{}, g.refuse(w, refused)
	}
	if g.settings.Load().hooks.Admitted != nil {
		g.admitted(w, g.now()-arrived)
	}
	return p, nil
}

// TryAdmit takes the cost of w if that much of its key's pool is free and nobody
// waits for it, and refuses otherwise, without ever waiting.
func (g *Pools) TryAdmit(w weir.Work) (weir.Permit, error) {
	p, _, err := g.arrive(context.Background(), &w, nil)
	return p, err
}

// Arrive implements [weir.Arriver]: Admit for callers that cannot block. The
// caller cancels the Waiter when it stops waiting; deadlines and MaxWait need no
// help.
func (g *Pools) Arrive(w weir.Work, wake func(weir.Permit, error)) (weir.Permit, weir.Waiter, error) {
	var place *waiter
	if w.MaxWait >= 0 && !w.Exempt {
		place = &waiter{wake: wake, work: w}
		place.Owner = place
		place.Call(place)
	}
	p, queued, err := g.arrive(context.Background(), &w, place)
	if !queued {
		return p, nil, err
	}
	return weir.Permit{}, place, weir.ErrWaiting
}

// start takes up the first configuration.
func (g *Pools) start(cfg Config) {
	g.control.Lock()
	defer g.control.Unlock()
	g.controller, g.signals = cfg.controller(), cfg.Signals
	first := g.controller.Start()
	g.settings.Store(cfg.settings(first.Limit))
	g.sizing.init(g, cfg, first)
}

// arrival is work at the gate.
type arrival struct {
	hash  uint64
	name  keys.Name
	cost  int64
	now   time.Duration // 0 where nobody needs it
	timed bool
	until bounds
	place *waiter // nil: does not wait
}

// bounds are until when work may wait, and by when it has to be done.
type bounds struct{ patience, deadline time.Duration }

// of fills in whose work w is.
func (a *arrival) of(g *Pools, w *weir.Work) {
	a.name = keys.NameOf(g.KeyOf(*w))
	a.hash = keys.Hash(g.seed, &a.name)
	a.cost = w.CostOrOne()
}

// untimed is how many pieces of work are not timed for one that is, where nobody
// has to hear of each: the clock costs as much as the rest of an admission.
const untimed = 15

// clocked reads the clock if somebody needs it.
func (g *Pools) clocked(a *arrival, set *settings, needed bool) {
	a.timed = set.timed || rand.Uint32()&untimed == 0
	if a.timed || needed {
		a.now = g.now()
	}
}

// quick admits what needs no decision: work without a deadline, whose key has room
// and nobody waiting.
func (g *Pools) quick(ctx context.Context, w *weir.Work) (weir.Permit, bool) {
	if w.Cost < 0 || !w.Deadline.IsZero() || ctx.Err() != nil {
		return weir.Permit{}, false
	}
	set := g.settings.Load()
	var a arrival
	a.of(g, w)
	g.clocked(&a, set, false)
	s := g.shard(a.hash)
	s.mu.Lock()
	p, ok := s.quick(&a)
	s.mu.Unlock()
	if ok {
		g.admitted(w, 0)
	}
	return p, ok
}

// arrive decides about w: a permit, a refusal, or a place in the room. It calls
// the hooks unless w was queued.
func (g *Pools) arrive(ctx context.Context, w *weir.Work, place *waiter) (p weir.Permit, queued bool, err error) {
	if w.Cost < 0 {
		return p, false, g.refuse(w, &weir.Rejection{Gate: g.name, Reason: weir.ReasonTooLarge, Value: float64(w.Cost)})
	}
	if ctx.Err() != nil {
		return p, false, g.refuse(w, g.givenUp(ctx))
	}
	set := g.settings.Load()
	a := arrival{place: place}
	a.of(g, w)
	g.clocked(&a, set, place != nil || !w.Deadline.IsZero())
	if late := g.bound(&a, set, w); late > 0 {
		return p, false, g.refuse(w, &weir.Rejection{Gate: g.name, Reason: weir.ReasonDeadline,
			Value: late.Seconds(), Cause: context.DeadlineExceeded})
	}
	if place != nil {
		place.Class, place.User, place.Tenant = int8(w.Priority.Class()), w.User, w.Tenant
	}
	var answered answers
	var refused *weir.Rejection
	if w.Exempt && set.exempt >= 0 {
		p, refused = g.spare(set, &a)
	} else {
		p, refused, queued = g.decide(set, &a, &answered)
	}
	answered.Deliver()
	switch {
	case refused != nil:
		return p, false, g.refuse(w, refused)
	case !queued:
		g.admitted(w, 0)
	}
	return p, queued, nil
}

// decide takes the arrival to its shard.
func (g *Pools) decide(set *settings, a *arrival, out *answers) (p weir.Permit, refused *weir.Rejection, queued bool) {
	s := g.shard(a.hash)
	for range len(g.shards) + 1 {
		s.mu.Lock()
		p, refused, known := s.decide(a, out)
		queued = known && refused == nil && !p.Live()
		if queued && out.Remove(&a.place.Answer) { // served at once: the newest goes first
			p, queued = a.place.Permit, false
		}
		s.arm(a.now)
		s.mu.Unlock()
		if known {
			return p, refused, queued
		}
		if !g.reclaim(set) {
			break
		}
	}
	return weir.Permit{}, g.crowded(set), false
}

// reclaim has other shards give up idle keys until there is a place for one more:
// one key as a rule, more after MaxKeys has become smaller. It reports false if
// there is none.
func (g *Pools) reclaim(set *settings) bool {
	for range g.shards {
		s := &g.shards[g.hand.Add(1)%uint32(len(g.shards))]
		s.mu.Lock()
		s.shrinkTo(set.maxKeys - 1)
		s.mu.Unlock()
		if g.keys.Load() < set.maxKeys {
			return true
		}
	}
	return false
}

// spare admits exempt work up to the cap of its own.
func (g *Pools) spare(set *settings, a *arrival) (p weir.Permit, refused *weir.Rejection) {
	if n := g.exempt.Add(1); n > set.exempt {
		g.exempt.Add(-1)
		return p, &weir.Rejection{Gate: g.name, Rule: "exempt", Reason: weir.ReasonLimit, Value: float64(n - 1),
			Limit: float64(set.exempt), RetryAfter: unknownWait, Retryable: true}
	}
	s := g.shard(a.hash)
	s.mu.Lock()
	p, refused = s.spareOne(a)
	s.mu.Unlock()
	if refused != nil {
		g.exempt.Add(-1)
	}
	return p, refused
}

func (g *Pools) shard(hash uint64) *shard { return &g.shards[hash>>g.shift] }

// bound sets until when the arrival may wait. It returns by how much the deadline
// has been missed, which is 0 without one.
func (g *Pools) bound(a *arrival, set *settings, w *weir.Work) (late time.Duration) {
	a.until = bounds{a.now, room.Never}
	if a.place != nil {
		longest := set.longest
		if w.MaxWait > 0 {
			longest = min(longest, w.MaxWait)
		}
		a.until.patience = after(a.now, longest)
	}
	if w.Deadline.IsZero() {
		return 0
	}
	left := time.Until(w.Deadline)
	if g.clock != nil {
		left = w.Deadline.Sub(limit.VirtualEpoch) - a.now
	}
	if left <= 0 {
		return max(1, -left)
	}
	a.until.deadline = after(a.now, left)
	return 0
}

// after adds without overflow.
func after(now, d time.Duration) time.Duration {
	if d >= room.Never-now {
		return room.Never
	}
	return now + d
}

// Next returns when [Pools.Step] is due, on the clock of Config.Now, and false if
// nothing is pending.
func (g *Pools) Next() (time.Duration, bool) {
	at := time.Duration(g.tickAt.Load())
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		at = min(at, s.due())
		s.mu.Unlock()
	}
	return at, at != room.Never
}

// Step does what is due: waiters whose time is up are refused, and a window that
// has ended goes to the controller. Calling it early does no harm. A gate on the
// real clock does it by itself.
func (g *Pools) Step() {
	for i := range g.shards {
		g.shards[i].step()
	}
	g.tick()
}

// due returns when the next waiter expires.
func (s *shard) due() time.Duration {
	if len(s.expiry) == 0 {
		return room.Never
	}
	return s.expiry[0].room.Expiry()
}

func (s *shard) step() {
	var out answers
	now := s.gate.now()
	s.mu.Lock()
	s.armed = room.Never
	s.expire(now, &out)
	s.unlock(now, &out)
}

// arm sets the timer for who expires next. It is not moved back when that turns
// out to be later: a call for nothing is cheaper than moving the timer with every
// waiter that leaves.
func (s *shard) arm(now time.Duration) {
	next := s.due()
	if s.gate.clock != nil || next >= s.armed {
		return
	}
	s.armed = next
	if s.timer == nil {
		s.timer = time.AfterFunc(next-now, s.step)
		return
	}
	s.timer.Reset(next - now)
}

// ending is how far the gate has closed.
type ending struct {
	shut atomic.Bool   // Close has been called
	idle chan struct{} // closed when nothing is in flight any more
	mu   sync.Mutex
	done bool // idle is closed
}

func (e *ending) closed() bool { return e.shut.Load() }

// Close refuses new work, and what waits, with [weir.ReasonDraining]. Permits in
// flight stay valid. Close does not wait for them: see [Pools.Drain]. Closing twice
// does nothing.
func (g *Pools) Close() {
	if g.shut.Swap(true) {
		return
	}
	g.control.Lock()
	g.schedule(g.now(), 0)
	g.control.Unlock()
	var out answers
	for i := range g.shards {
		g.shards[i].close(&out)
	}
	out.Deliver()
	g.quit()
}

func (s *shard) close(out *answers) {
	now := s.gate.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for len(s.expiry) > 0 {
		q := s.expiry[0]
		for w := q.room.Next(now); w != nil; w = q.room.Next(now) {
			q.room.Remove(w)
			s.answer(out, w, weir.Permit{}, s.gate.draining())
		}
		s.settle(q)
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	s.armed = room.Never
}

// quit is called when a closed shard has nothing in flight: the last one to do so
// ends the drain. Locks of shards are taken under the mutex, never the other way.
func (g *Pools) quit() {
	g.ending.mu.Lock()
	defer g.ending.mu.Unlock()
	if g.done || !g.closed() {
		return
	}
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		over := s.closed && s.inFlight == 0 && s.exempt == 0
		s.mu.Unlock()
		if !over {
			return
		}
	}
	g.done = true
	close(g.idle)
}

// Drain closes the gate and waits until nothing is in flight, exempt work
// included, or until ctx is done: then the error says how much was still out.
func (g *Pools) Drain(ctx context.Context) error {
	g.Close()
	select {
	case <-g.idle:
		return nil
	case <-ctx.Done():
	}
	if sum := g.total(); sum.inFlight+sum.exempt > 0 {
		return fmt.Errorf("keyed: gate %q: %d still in flight: %w", g.name, sum.inFlight+sum.exempt, ctx.Err())
	}
	return nil
}
