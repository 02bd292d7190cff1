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
	"github.com/weir-go/weir/internal/gate"
	"github.com/weir-go/weir/internal/keys"
	"github.com/weir-go/weir/internal/room"
)

// Pools is a concurrency gate with a pool of slots for each key. All pools have one
// size, except for keys with an override. A controller may change that size. Pools
// is safe for concurrent use.
//
// It implements [weir.Gate], [weir.TryAdmitter], [weir.Arriver] and
// [weir.Snapshotter].
type Pools struct {
	front gate.Front
	key   func(weir.Work) string // nil: the tenant
	seed  maphash.Seed

	shards   []shard // as many as a power of two
	shift    uint    // hash >> shift is the shard
	settings atomic.Pointer[settings]
	keys     atomic.Int64  // known, in all shards
	dealt    atomic.Uint32 // keys that became known, each to the next group
	waiting  atomic.Int64
	exempt   gate.Exempt
	hand     atomic.Uint32 // counts up: the remainder is the shard that gave up a key last

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
	c := gate.ControllerOr(cfg.Controller, cfg.Limit)
	first, err := gate.Start(c)
	if err != nil {
		return nil, cfg.errStart(err)
	}
	g := &Pools{key: cfg.Key, seed: maphash.MakeSeed()}
	g.front.Init(cfg.Name, cfg.Now)
	n := shardCount(&cfg)
	g.shards, g.shift = make([]shard, n), uint(64-bits.TrailingZeros(uint(n)))
	for i := range g.shards {
		g.shards[i].init(g)
	}
	g.exempt.Init(&g.front, g.quit)
	g.drained = make(chan struct{})
	g.start(cfg, c, first)
	return g, nil
}

// errStart is the error for a controller whose first decision makes no sense.
func (c *Config) errStart(err error) error {
	return fmt.Errorf("keyed: gate %q: Start of %w", c.Name, err)
}

// shardCount returns into how many parts the keys are split. On virtual time it
// is one, because the order of evictions must not depend on chance.
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
func (g *Pools) Name() string { return g.front.Name() }

// Admit takes the cost of w from the pool of its key. It does so at once if enough
// is free and nobody waits for it, else after waiting. A cost above the limit
// counts as the whole limit: such work runs alone ([Config.RefuseOversize] refuses
// it instead). Admit returns when the work is admitted or refused. It does so at
// the latest when the context is done, the deadline has passed, or the work has
// waited as long as it may.
//
// Work is refused if its deadline has passed or its context is done, even when
// slots are free.
func (g *Pools) Admit(ctx context.Context, w weir.Work) (weir.Permit, error) {
	if p, ok := weir.Nested(ctx, g); ok {
		return p, nil
	}
	w.Inherit(ctx)
	if w.MaxWait < 0 || g.exempt.Applies(&w) {
		p, _, err := g.arrive(ctx, &w, nil)
		return p, err
	}
	if p, ok := g.quick(ctx, &w); ok {
		return p, nil
	}
	place := g.front.Place()
	p, queued, err := g.arrive(ctx, &w, place)
	if queued {
		return g.front.Wait(ctx, &w, place)
	}
	g.front.Free(place)
	return p, err
}

// TryAdmit takes the cost of w if enough of its key's pool is free and nobody
// waits for it. Otherwise it refuses; it never waits.
func (g *Pools) TryAdmit(w weir.Work) (weir.Permit, error) {
	p, _, err := g.arrive(context.Background(), &w, nil)
	return p, err
}

// Arrive implements [weir.Arriver]: Admit for callers that cannot block. The
// caller cancels the Waiter when it stops waiting; deadlines and MaxWait need no
// help.
func (g *Pools) Arrive(w weir.Work, wake func(weir.Permit, error)) (weir.Permit, weir.Waiter, error) {
	var place *gate.Waiter
	if w.MaxWait >= 0 && !g.exempt.Applies(&w) {
		place = g.front.CallPlace(&w, wake)
	}
	p, queued, err := g.arrive(context.Background(), &w, place)
	if !queued {
		return p, nil, err
	}
	return weir.Permit{}, place, weir.ErrWaiting
}

// arrival is work at the gate.
type arrival struct {
	hash  uint64
	name  keys.Name
	cost  int64
	now   time.Duration // 0 where nobody needs it
	timed bool
	until gate.Bounds
	place *gate.Waiter // nil: does not wait
}

// set sets the key of w, and reads the clock if somebody needs the time.
func (a *arrival) set(g *Pools, set *settings, w *weir.Work, clocked bool) {
	a.name = keys.NameOf(g.KeyOf(*w))
	a.hash = keys.Hash(g.seed, &a.name)
	a.cost = w.CostOrOne()
	a.timed = set.timed || rand.Uint32()&untimed == 0
	if a.timed || clocked {
		a.now = g.front.Now()
	}
}

// untimed is a mask: one of 16 pieces of work is timed, where nobody has to hear of each.
// The clock costs as much as the rest of an admission.
const untimed = 15

// quick admits work that needs no decision: it has no deadline, and its key has free
// slots and nobody waiting.
func (g *Pools) quick(ctx context.Context, w *weir.Work) (weir.Permit, bool) {
	if w.Cost < 0 || !w.Deadline.IsZero() || ctx.Err() != nil {
		return weir.Permit{}, false
	}
	var a arrival
	a.set(g, g.settings.Load(), w, false)
	s := g.shard(a.hash)
	s.mu.Lock()
	p, ok := s.quick(&a)
	s.mu.Unlock()
	if ok {
		g.front.Admitted(w, 0)
		p = g.front.Track(p)
	}
	return p, ok
}

// arrive decides about w: a permit, a refusal, or a place in the room. It calls
// the hooks unless w was queued.
func (g *Pools) arrive(ctx context.Context, w *weir.Work, place *gate.Waiter) (p weir.Permit, queued bool, err error) {
	// 1. Some work must not start even if slots are free.
	if refused := g.front.Unfit(ctx, w); refused != nil {
		return p, false, g.front.Refuse(w, refused)
	}
	set := g.settings.Load()
	a := arrival{place: place}
	a.set(g, set, w, place != nil || !w.Deadline.IsZero())
	var refused *weir.Rejection
	if a.until, refused = g.front.Bounds(w, a.now, place != nil, set.longest); refused != nil {
		return p, false, g.front.Refuse(w, refused)
	}
	// 2. Exempt work has an account of its own, the rest is decided in its shard.
	if g.exempt.Applies(w) {
		p, refused = g.exempt.Admit(g.front.Now())
	} else {
		p, queued, refused = g.decide(set, w, &a)
	}
	return g.front.Answered(w, p, queued, refused)
}

// decide lets the arrival's shard decide, and delivers the answers. A key that finds no place tries
// again after another shard has given one up. Somebody else may take that place first. So the
// last try stops all shards.
func (g *Pools) decide(set *settings, w *weir.Work, a *arrival) (p weir.Permit, queued bool, refused *weir.Rejection) {
	var out gate.Answers
	defer out.Deliver()
	s := g.shard(a.hash)
	for try := range 3 {
		g.findRoom(s, try, set.maxKeys)
		var known bool
		p, refused, known = s.decide(w, a, &out)
		queued = known && refused == nil && !p.Live()
		if queued && out.Remove(&a.place.Answer) { // served at once: the newest goes first
			p, queued = a.place.Permit, false
		}
		s.arm(a.now)
		g.leave(s, try)
		if known {
			return p, queued, refused
		}
	}
	return weir.Permit{}, false, g.keysInUse(set)
}

// The tries of an arrival to find a place for its key.
const (
	inItsShard  = iota // evicts an idle key of its own shard
	inAnyShard         // one of another shard
	inAllShards        // with no other work in any shard: what is not found now is not there
)

// findRoom takes the lock of s, or of all shards for the last try. Unless it is the first one, other
// shards give up idle keys before, until there is a place for one more. As a rule it is one key; it is
// more after MaxKeys has become smaller.
func (g *Pools) findRoom(s *shard, try int, most int64) {
	switch try {
	case inAnyShard:
		for range g.shards {
			other := &g.shards[g.hand.Add(1)%uint32(len(g.shards))]
			other.mu.Lock()
			other.shrinkTo(most - 1)
			other.mu.Unlock()
			if g.keys.Load() < most {
				break
			}
		}
	case inAllShards:
		for i := range g.shards {
			g.shards[i].mu.Lock()
		}
		for i := range g.shards {
			g.shards[i].shrinkTo(most - 1)
		}
		return
	}
	s.mu.Lock()
}

// leave undoes the locks of findRoom.
func (g *Pools) leave(s *shard, try int) {
	if try != inAllShards {
		s.mu.Unlock()
		return
	}
	for i := range g.shards {
		g.shards[i].mu.Unlock()
	}
}

// keysInUse is the refusal of work whose key finds no place, because every known key
// is in use.
func (g *Pools) keysInUse(set *settings) *weir.Rejection {
	return &weir.Rejection{Gate: g.Name(), Rule: "keys", Reason: weir.ReasonLimit, Value: float64(g.keys.Load()),
		Limit: float64(set.maxKeys), RetryAfter: gate.UnknownWait, Retryable: true}
}

func (g *Pools) shard(hash uint64) *shard { return &g.shards[hash>>g.shift] }

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

// Step does what is due. Waiters whose time is up are refused, and a window that
// has ended goes to the controller. Calling it early does no harm. A gate on the
// real clock does it by itself.
func (g *Pools) Step() {
	for i := range g.shards {
		g.shards[i].step()
	}
	g.tick()
}

// ending is how far the gate has closed.
type ending struct {
	shut    atomic.Bool   // Close has been called
	drained chan struct{} // closed when nothing is in flight any more
	mu      sync.Mutex
	done    bool // drained is closed
}

func (e *ending) closed() bool { return e.shut.Load() }

// Close refuses new work, and what waits, with [weir.ReasonDraining]. Permits in
// flight stay valid. Close does not wait for them: see [Pools.Drain]. Closing twice
// does nothing.
func (g *Pools) Close() {
	if g.shut.Swap(true) {
		return
	}
	g.tickAt.Store(int64(room.Never))
	if g.sizer.TryLock() { // or a controller is at work, and its decision schedules nothing more
		g.schedule(g.front.Now(), 0)
		g.sizer.Unlock()
	}
	g.exempt.Close()
	var out gate.Answers
	for i := range g.shards {
		g.shards[i].close(&out)
	}
	out.Deliver()
	g.quit()
}

// quit is called when nothing is in flight any more in a closed shard, or when exempt
// work has ended in a closed gate. The last call ends the drain. The other locks are
// taken under this one, never the other way.
func (g *Pools) quit() {
	g.ending.mu.Lock()
	defer g.ending.mu.Unlock()
	if exempt, _ := g.exempt.Read(); exempt > 0 || g.done || !g.closed() {
		return
	}
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		over := s.closed && s.inFlight == 0
		s.mu.Unlock()
		if !over {
			return
		}
	}
	g.done = true
	close(g.drained)
}

// Drain closes the gate and waits until nothing is in flight, exempt work
// included, or until ctx is done. In that case the error says how much is still
// in flight.
func (g *Pools) Drain(ctx context.Context) error {
	g.Close()
	select {
	case <-g.drained:
		return nil
	case <-ctx.Done():
	}
	exempt, _ := g.exempt.Read()
	if n := g.total().inFlight + exempt; n > 0 {
		return fmt.Errorf("keyed: gate %q: %d still in flight: %w", g.Name(), n, ctx.Err())
	}
	return nil
}
