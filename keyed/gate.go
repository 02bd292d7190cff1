package keyed

import (
	"context"
	"hash/maphash"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
)

// Gate is a concurrency gate with a pool of slots for each key. All pools have one
// size, which a controller may move, but for keys with an override. It is safe for
// concurrent use.
//
// It implements [weir.Gate], [weir.TryAdmitter], [weir.Arriver] and
// [weir.Snapshotter].
type Gate struct {
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
	_ weir.Gate        = (*Gate)(nil)
	_ weir.TryAdmitter = (*Gate)(nil)
	_ weir.Arriver     = (*Gate)(nil)
	_ weir.Snapshotter = (*Gate)(nil)
)

// New returns a running gate, or an error that names every setting out of range.
// Close it when it is no longer needed.
func New(cfg Config) (*Gate, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	g := &Gate{name: cfg.Name, key: cfg.Key, clock: cfg.Now, epoch: time.Now(), seed: maphash.MakeSeed()}
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
func (g *Gate) Name() string { return g.name }

// now returns the time since the gate's epoch.
func (g *Gate) now() time.Duration {
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
func (g *Gate) Admit(ctx context.Context, w weir.Work) (weir.Permit, error) {
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
func (g *Gate) await(ctx context.Context, w *weir.Work, place *waiter) (weir.Permit, error) {
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
func (g *Gate) TryAdmit(w weir.Work) (weir.Permit, error) {
	p, _, err := g.arrive(context.Background(), &w, nil)
	return p, err
}

// Arrive implements [weir.Arriver]: Admit for callers that cannot block. The
// caller cancels the Waiter when it stops waiting; deadlines and MaxWait need no
// help.
func (g *Gate) Arrive(w weir.Work, wake func(weir.Permit, error)) (weir.Permit, weir.Waiter, error) {
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
func (g *Gate) start(cfg Config) {
	g.control.Lock()
	defer g.control.Unlock()
	g.controller, g.signals = cfg.controller(), cfg.Signals
	first := g.controller.Start()
	g.settings.Store(cfg.settings(first.Limit))
	g.sizing.init(g, cfg, first)
}
