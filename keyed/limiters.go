package keyed

import (
	"context"
	"fmt"
	"maps"
	"slices"
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
	order    []*pool
	sweep    sweep            // for the clock
	gone     weir.Snapshot    // the counts of limiters that were evicted
	leaving  map[string]*pool // evicted, and not in memory yet
	memory   memory           // what they had learned
	evicted  uint64
	closed   bool
}

// pool is what a key has. The map of its parts is never written to: a new
// configuration replaces it.
type pool struct {
	key      string
	parts    map[string]*limit.Limiter
	entering atomic.Int64 // see Limiters
	pins     int          // work on its way in
	seen     bool         // since the hand of the clock came by
	index    int          // in order
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
		pools: map[string]*pool{}, leaving: map[string]*pool{}}
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
	if !l.comeIn(pool) {
		w.MaxWait = weir.NoWait
	}
	defer l.goOut(pool)
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
	if !l.comeIn(pool) {
		w.MaxWait = weir.NoWait
	}
	p, waiter, err := to.Arrive(w, func(p weir.Permit, err error) {
		l.goOut(pool)
		wake(p, err)
	})
	if err != weir.ErrWaiting {
		l.goOut(pool)
		return p, nil, err
	}
	return p, cancelling{waiter, l, pool}, err
}

// cancelling gives the place back that the waiter had.
type cancelling struct {
	weir.Waiter
	from *Limiters
	pool *pool
}

func (w cancelling) Cancel() bool {
	there := w.Waiter.Cancel()
	if there {
		w.from.goOut(w.pool)
	}
	return there
}

// comeIn counts work in, and reports whether it may wait: a key may have no more
// waiting than there are places left, as at a [Gate].
func (l *Limiters) comeIn(p *pool) bool {
	mine, others := p.entering.Add(1)-1, l.entering.Add(1)-1
	return mine < l.maxWaiting.Load()-others
}

// goOut is the reverse.
func (l *Limiters) goOut(p *pool) {
	p.entering.Add(-1)
	l.entering.Add(-1)
}

// pin returns the limiter for w, a new one if its key is not known, and keeps its
// pool from being evicted until unpin.
func (l *Limiters) pin(w weir.Work) (*pool, *limit.Limiter, error) {
	key, part := l.KeyOf(w), ""
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

// Keys returns the number of keys that are known.
func (l *Limiters) Keys() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.order)
}

// all returns the limiters of all keys, always in the same order: on virtual time
// chance must not decide which of two is asked first.
func (l *Limiters) all() (limiters []*limit.Limiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.order {
		for _, part := range slices.Sorted(maps.Keys(p.parts)) {
			limiters = append(limiters, p.parts[part])
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
