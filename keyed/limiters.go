package keyed

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/room"
	"github.com/weir-go/weir/limit"
)

// Limiters is a gate with a limit.Limiter for each key, or several, each with a
// controller of its own: where the backends of keys differ in what they carry and
// somebody has to find out. It is safe for concurrent use.
//
// A limiter takes some 4 KB when made, and tens of them once the window of a
// controller that learns has filled; a controller also brings a timer. So this is
// for hundreds of keys, where a [Gate] is for millions.
//
// It implements [weir.Gate], [weir.TryAdmitter], [weir.Arriver] and
// [weir.Snapshotter].
type Limiters struct {
	name  string
	key   func(weir.Work) string
	part  func(weir.Work) string
	clock func() time.Duration
	epoch time.Time

	maxWaiting atomic.Int64
	entering   atomic.Int64 // in Admit, or waiting by way of Arrive
	refused    [16]atomic.Uint64

	configuring sync.Mutex // one Reconfigure at a time; taken before mu

	mu       sync.Mutex // taken before those of the limiters
	newParts func(key string) (map[string]limit.Config, error)
	version  int // of the settings
	maxKeys  int
	pools    map[string]*pool
	order    []*pool // for the clock
	hand     int
	sweptAt  time.Duration // when every pool was last found in use
	gone     weir.Snapshot // the counts of limiters that were evicted
	evicted  uint64
	closed   bool
}

// pool is what a key has. The map of its parts is never written to: a new
// configuration replaces it.
type pool struct {
	key   string
	parts map[string]*limit.Limiter
	pins  int  // work on its way in
	seen  bool // since the hand of the clock came by
	index int  // in order
}

var (
	_ weir.Gate        = (*Limiters)(nil)
	_ weir.TryAdmitter = (*Limiters)(nil)
	_ weir.Arriver     = (*Limiters)(nil)
	_ weir.Snapshotter = (*Limiters)(nil)
)

// NewLimiters returns a gate without any key yet, or an error that names every
// setting out of range. What LimitersConfig.New returns is checked when it is
// called.
func NewLimiters(cfg LimitersConfig) (*Limiters, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	l := &Limiters{name: cfg.Name, key: cfg.Key, part: cfg.Part, clock: cfg.Now, epoch: time.Now(),
		pools: map[string]*pool{}, sweptAt: -sweepEvery}
	l.configure(cfg)
	return l, nil
}

// Name returns the name from the configuration.
func (l *Limiters) Name() string { return l.name }

func (l *Limiters) now() time.Duration {
	if l.clock != nil {
		return l.clock()
	}
	return time.Since(l.epoch)
}

// Admit takes the cost of w from the limiter of its key, see limit.Limiter.Admit.
func (l *Limiters) Admit(ctx context.Context, w weir.Work) (weir.Permit, error) {
	if p, ok := weir.Nested(ctx, l); ok {
		return p, nil
	}
	pool, to, err := l.pin(w)
	if err != nil {
		return weir.Permit{}, err
	}
	defer l.unpin(pool)
	if l.entering.Add(1) > l.maxWaiting.Load() {
		w.MaxWait = weir.NoWait
	}
	defer l.entering.Add(-1)
	return to.Admit(ctx, w)
}

// TryAdmit is Admit that never waits.
func (l *Limiters) TryAdmit(w weir.Work) (weir.Permit, error) {
	pool, to, err := l.pin(w)
	if err != nil {
		return weir.Permit{}, err
	}
	defer l.unpin(pool)
	return to.TryAdmit(w)
}

// Arrive implements [weir.Arriver], see limit.Limiter.Arrive.
func (l *Limiters) Arrive(w weir.Work, wake func(weir.Permit, error)) (weir.Permit, weir.Waiter, error) {
	pool, to, err := l.pin(w)
	if err != nil {
		return weir.Permit{}, nil, err
	}
	defer l.unpin(pool)
	if l.entering.Add(1) > l.maxWaiting.Load() {
		w.MaxWait = weir.NoWait
	}
	p, waiter, err := to.Arrive(w, func(p weir.Permit, err error) {
		l.entering.Add(-1)
		wake(p, err)
	})
	if err != weir.ErrWaiting {
		l.entering.Add(-1)
		return p, nil, err
	}
	return p, leaving{waiter, l}, err
}

// leaving gives the place in the room back that the waiter had.
type leaving struct {
	weir.Waiter
	from *Limiters
}

func (w leaving) Cancel() bool {
	there := w.Waiter.Cancel()
	if there {
		w.from.entering.Add(-1)
	}
	return there
}

// pin returns the limiter for w, a new one if its key is not known, and keeps its
// pool from being evicted until unpin.
func (l *Limiters) pin(w weir.Work) (*pool, *limit.Limiter, error) {
	key, part := w.Tenant, ""
	if l.key != nil {
		key = l.key(w)
	}
	if l.part != nil {
		part = l.part(w)
	}
	p, parts, refused := l.find(key)
	if p == nil && refused == nil {
		p, parts, refused = l.enter(key)
	}
	if refused == nil {
		if to, ok := parts[part]; ok {
			return p, to, nil
		}
		l.unpin(p)
		refused = l.blocked("part", fmt.Errorf("keyed: New gives key %.40q no part %.40q", key, part))
	}
	l.refused[refused.Reason].Add(1)
	return nil, nil, refused
}

// find pins the pool of a key. All results are nil if the key is not known.
func (l *Limiters) find(key string) (*pool, map[string]*limit.Limiter, *weir.Rejection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.known(key)
}

func (l *Limiters) known(key string) (*pool, map[string]*limit.Limiter, *weir.Rejection) {
	if l.closed {
		return nil, nil, &weir.Rejection{Gate: l.name, Reason: weir.ReasonDraining, Retryable: true}
	}
	p := l.pools[key]
	if p == nil {
		return nil, nil, nil
	}
	p.pins++
	p.seen = true
	return p, p.parts, nil
}

func (l *Limiters) unpin(p *pool) {
	l.mu.Lock()
	p.pins--
	l.mu.Unlock()
}

// enter makes the pool of a key and pins it. New is called with no lock held; if
// somebody else has made the pool meanwhile, or the settings have changed, what it
// returned is thrown away.
func (l *Limiters) enter(key string) (*pool, map[string]*limit.Limiter, *weir.Rejection) {
	for {
		now := l.now()
		l.mu.Lock()
		out, ok := l.makeRoom(now)
		build, version := l.newParts, l.version
		l.mu.Unlock()
		out.close()
		if !ok {
			return nil, nil, l.crowded()
		}
		parts, err := l.build(build, key)
		if err != nil {
			return nil, nil, l.blocked("new", err)
		}
		made := &pool{key: key, parts: parts}
		l.mu.Lock()
		if p, parts, refused := l.known(key); p != nil || refused != nil {
			l.mu.Unlock()
			made.close()
			return p, parts, refused
		}
		out, ok = l.makeRoom(now)
		if ok = ok && version == l.version; ok {
			made.pins, made.seen, made.index = 1, true, len(l.order)
			l.pools[key] = made
			l.order = append(l.order, made)
		}
		l.mu.Unlock()
		out.close()
		if ok {
			return made, parts, nil
		}
		made.close()
	}
}

// crowded is the refusal of a newcomer while all keys are in use.
func (l *Limiters) crowded() *weir.Rejection {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &weir.Rejection{Gate: l.name, Rule: "keys", Reason: weir.ReasonLimit, Value: float64(len(l.order)),
		Limit: float64(l.maxKeys), RetryAfter: unknownWait, Retryable: true}
}

// blocked is the refusal of work that there is no limiter for.
func (l *Limiters) blocked(rule string, why error) *weir.Rejection {
	return &weir.Rejection{Gate: l.name, Rule: rule, Reason: weir.ReasonBlocked, Cause: why}
}

// build makes the limiters of a key.
func (l *Limiters) build(build func(string) (map[string]limit.Config, error), key string) (map[string]*limit.Limiter, error) {
	configs, err := build(key)
	if err != nil {
		return nil, fmt.Errorf("keyed: New(%.40q): %w", key, err)
	}
	p := pool{parts: make(map[string]*limit.Limiter, len(configs))}
	for part, cfg := range configs {
		limiter, err := limit.New(l.complete(cfg))
		if err != nil {
			p.close()
			return nil, fmt.Errorf("keyed: New(%.40q), part %.40q: %w", key, part, err)
		}
		p.parts[part] = limiter
	}
	return p.parts, nil
}

func (l *Limiters) complete(cfg limit.Config) limit.Config {
	if cfg.Name == "" {
		cfg.Name = l.name
	}
	cfg.Now = l.clock
	return cfg
}

// sweepEvery bounds how often all pools are looked at in vain: a look takes a lock
// each.
const sweepEvery = 10 * time.Millisecond

// makeRoom evicts an idle key if there are as many as there may be, and returns
// it. It reports false if all are in use.
func (l *Limiters) makeRoom(now time.Duration) (out *pool, ok bool) {
	if len(l.order) < l.maxKeys {
		return nil, true
	}
	if now-l.sweptAt < sweepEvery {
		return nil, false
	}
	for range 2 * len(l.order) {
		l.hand = (l.hand + 1) % len(l.order)
		p := l.order[l.hand]
		if p.pins > 0 || !p.idle() {
			continue
		}
		if p.seen {
			p.seen = false
			continue
		}
		l.evict(p)
		return p, true
	}
	l.sweptAt = now
	return nil, false
}

// evict forgets a pool, which nobody holds anything of, but for its counts.
func (l *Limiters) evict(p *pool) {
	last := len(l.order) - 1
	l.order[p.index] = l.order[last]
	l.order[p.index].index = p.index
	l.order[last] = nil
	l.order = l.order[:last]
	delete(l.pools, p.key)
	l.evicted++
	for _, limiter := range p.parts {
		s := limiter.Snapshot()
		addCounts(&l.gone, &s)
	}
}

// idle reports whether nothing is in flight or waits in any of the limiters.
func (p *pool) idle() bool {
	for _, limiter := range p.parts {
		if s := limiter.Snapshot(); s.InFlight > 0 || s.Waiting > 0 || s.Exempt > 0 {
			return false
		}
	}
	return true
}

func (p *pool) close() {
	if p == nil {
		return
	}
	for _, limiter := range p.parts {
		limiter.Close()
	}
}

// Keys returns the number of keys that are known.
func (l *Limiters) Keys() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.order)
}

// all returns the limiters of all keys.
func (l *Limiters) all() (limiters []*limit.Limiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.order {
		for _, limiter := range p.parts {
			limiters = append(limiters, limiter)
		}
	}
	return limiters
}

// Next and Step are as those of a [Gate], on virtual time.
func (l *Limiters) Next() (time.Duration, bool) {
	first := room.Never
	for _, limiter := range l.all() {
		if at, ok := limiter.Next(); ok {
			first = min(first, at)
		}
	}
	return first, first != room.Never
}

// Step does what is due in all limiters.
func (l *Limiters) Step() {
	for _, limiter := range l.all() {
		limiter.Step()
	}
}

// Close refuses new work, and what waits, with [weir.ReasonDraining].
func (l *Limiters) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	for _, limiter := range l.all() {
		limiter.Close()
	}
}

// Drain closes the gate and waits until nothing is in flight, or until ctx is
// done: then the error names the first that still was.
func (l *Limiters) Drain(ctx context.Context) error {
	l.Close()
	for _, limiter := range l.all() {
		if err := limiter.Drain(ctx); err != nil {
			return err
		}
	}
	return nil
}
