package keyed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/gate"
	"github.com/weir-go/weir/internal/room"
	"github.com/weir-go/weir/limit"
)

// Adaptive is a gate with one or more limit.Limiters for each key, each with a
// controller of its own. Use it where the backends of keys differ in what they
// carry and the limits have to be found out. It is safe for concurrent use.
//
// A limiter takes some 4 KB at first, and tens of KB once the window of a
// learning controller has filled. A controller also brings a timer. So this is
// for hundreds of keys, where [Pools] is for millions.
//
// It implements [weir.Gate], [weir.TryAdmitter], [weir.Arriver] and
// [weir.Snapshotter].
type Adaptive struct {
	front gate.Front
	key   func(weir.Work) string
	part  func(weir.Work) string

	maxWaiting atomic.Int64
	entering   atomic.Int64 // in Admit, or waiting by way of Arrive

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
	entering atomic.Int64 // see Adaptive
	pins     int          // work on its way in
	seen     bool         // since the hand of the clock came by
	index    int          // in order
}

var (
	_ weir.Gate        = (*Adaptive)(nil)
	_ weir.TryAdmitter = (*Adaptive)(nil)
	_ weir.Arriver     = (*Adaptive)(nil)
	_ weir.Snapshotter = (*Adaptive)(nil)
)

// NewAdaptive returns a gate without any key yet, or an error that names every
// setting out of range. The settings from AdaptiveConfig.New are checked when
// it is called.
func NewAdaptive(cfg AdaptiveConfig) (*Adaptive, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	l := &Adaptive{key: cfg.Key, part: cfg.Part, pools: map[string]*pool{}, leaving: map[string]*pool{}}
	l.front.Init(cfg.Name, cfg.Now)
	l.configure(cfg)
	return l, nil
}

// Name returns the name from the configuration.
func (l *Adaptive) Name() string { return l.front.Name() }

// Admit takes the cost of w from the limiter of its key, see limit.Limiter.Admit.
func (l *Adaptive) Admit(ctx context.Context, w weir.Work) (weir.Permit, error) {
	if p, ok := weir.Nested(ctx, l); ok {
		return p, nil
	}
	w.Inherit(ctx)
	pool, to, err := l.pin(w)
	if err != nil {
		return weir.Permit{}, err
	}
	defer l.unpin(pool)
	if !l.countIn(pool) {
		w.MaxWait = weir.NoWait
	}
	defer l.countOut(pool)
	return to.Admit(ctx, w)
}

// TryAdmit is Admit that never waits.
func (l *Adaptive) TryAdmit(w weir.Work) (weir.Permit, error) {
	pool, to, err := l.pin(w)
	if err != nil {
		return weir.Permit{}, err
	}
	defer l.unpin(pool)
	return to.TryAdmit(w)
}

// Arrive implements [weir.Arriver], see limit.Limiter.Arrive.
func (l *Adaptive) Arrive(w weir.Work, wake func(weir.Permit, error)) (weir.Permit, weir.Waiter, error) {
	pool, to, err := l.pin(w)
	if err != nil {
		return weir.Permit{}, nil, err
	}
	defer l.unpin(pool)
	if !l.countIn(pool) {
		w.MaxWait = weir.NoWait
	}
	p, waiter, err := to.Arrive(w, func(p weir.Permit, err error) {
		l.countOut(pool)
		wake(p, err)
	})
	if err != weir.ErrWaiting {
		l.countOut(pool)
		return p, nil, err
	}
	return p, cancelling{waiter, l, pool}, err
}

// cancelling gives the waiter's place back.
type cancelling struct {
	weir.Waiter
	from *Adaptive
	pool *pool
}

func (w cancelling) Cancel() bool {
	there := w.Waiter.Cancel()
	if there {
		w.from.countOut(w.pool)
	}
	return there
}

// countIn counts work that may have to wait, and reports whether it may. A key may have
// no more work waiting than there are places left, as at [Pools].
func (l *Adaptive) countIn(p *pool) bool {
	mine, others := p.entering.Add(1)-1, l.entering.Add(1)-1
	return mine < l.maxWaiting.Load()-others
}

// countOut is the reverse of countIn.
func (l *Adaptive) countOut(p *pool) {
	p.entering.Add(-1)
	l.entering.Add(-1)
}

// pin returns the limiter for w. If its key is not known, it makes a new one. The
// key's pool is not evicted until unpin.
func (l *Adaptive) pin(w weir.Work) (*pool, *limit.Limiter, error) {
	key, part := l.KeyOf(w), ""
	if l.part != nil {
		part = l.part(w)
	}
	p, parts, refused := l.pinKnown(key)
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
	return nil, nil, l.front.Refuse(&w, refused)
}

// member is a limiter with its key.
type member struct {
	*limit.Limiter
	key string
}

// all returns the limiters of all keys, always in the same order. On virtual
// time, chance must not decide which of two is asked first.
func (l *Adaptive) all() (limiters []member) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.order {
		for _, part := range slices.Sorted(maps.Keys(p.parts)) {
			limiters = append(limiters, member{p.parts[part], p.key})
		}
	}
	return limiters
}

// Next and Step are as those of [Pools], on virtual time.
func (l *Adaptive) Next() (time.Duration, bool) {
	first := room.Never
	for _, limiter := range l.all() {
		if at, ok := limiter.Next(); ok {
			first = min(first, at)
		}
	}
	return first, first != room.Never
}

// Step does what is due in all limiters.
func (l *Adaptive) Step() {
	for _, limiter := range l.all() {
		limiter.Step()
	}
}

// Close refuses new work, and what waits, with [weir.ReasonDraining].
func (l *Adaptive) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	for _, limiter := range l.all() {
		limiter.Close()
	}
}

// Drain closes the gate and waits until nothing is in flight, or until ctx is
// done. In that case the error names the first key that still has work in
// flight.
func (l *Adaptive) Drain(ctx context.Context) error {
	l.Close()
	for _, limiter := range l.all() {
		if err := limiter.Drain(ctx); err != nil {
			return fmt.Errorf("keyed: key %.40q: %w", limiter.key, err)
		}
	}
	return nil
}

// AdaptiveConfig configures [NewAdaptive].
type AdaptiveConfig struct {
	// Name is the gate's name, and that of each limiter that New gives none.
	Name string
	// Key names the key of a piece of work, and so its limiters. Default: its Tenant.
	Key func(weir.Work) string
	// Part says which of the key's limiters the work uses. It is for keys that
	// have several, such as one for reads and one for writes. Default: "".
	Part func(weir.Work) string

	// New returns the settings of a key's limiters by their part: with [PerKey] one, with
	// [ReadWrite] two whose sizes move together. It is called with the first work of a
	// key, also after the key was evicted. No lock is held, and several calls may run at
	// a time. Each call must return controllers of its own. An error, or settings that
	// are faulty, refuse the work ([weir.ReasonBlocked], with the cause). The limiters'
	// Now is set to the gate's.
	New func(key string) (map[string]limit.Config, error)

	// MaxKeys bounds the keys that are known at a time. 0 means
	// [DefaultMaxAdaptive]. A newcomer takes the place of an idle key; a key in use
	// keeps its place. What controllers have learned is kept for four times as many
	// evicted keys, and given back to those that return.
	MaxKeys int
	// MaxWaiting bounds the work that waits, over all keys together and besides
	// the limiters' own bounds. Beyond it, work is admitted at once or refused. 0
	// means limit.DefaultQueueLen; with a negative value nothing waits.
	//
	// As at [Pools], a key may have no more work waiting than there are places
	// left. One key that floods the room gets half of it. Work beyond these bounds
	// is refused, whatever its priority. So where priorities matter, give the
	// limiters a Queue.Len that is well below.
	MaxWaiting int

	// Rejected, if not nil, is called with each refusal that no limiter makes: for too many keys, for settings that
	// New cannot give, and by a closed gate. Hooks of the limiters hear of the others (limit.Config.Hooks). It must be as
	// quick as those.
	Rejected func(w weir.Work, r *weir.Rejection)

	// Now replaces the clock, as in [Config].
	Now func() time.Duration
}

// DefaultMaxAdaptive is the number of keys where AdaptiveConfig.MaxKeys is 0.
const DefaultMaxAdaptive = 1024

func (c *AdaptiveConfig) validate() error {
	var f fault.List
	f.Require(c.New != nil, fault.Path{"New"}, "must be set; keyed.PerKey makes one of a function that returns a limit.Config")
	f.Check(c.MaxKeys >= 0, fault.Path{"MaxKeys"}, c.MaxKeys, "must be at least 1, or 0 for %d", DefaultMaxAdaptive)
	return f.Err(fmt.Sprintf("keyed: gate %q", c.Name))
}

// PerKey is for AdaptiveConfig.New where each key has one limiter.
func PerKey(cfg func(key string) (limit.Config, error)) func(string) (map[string]limit.Config, error) {
	return func(key string) (map[string]limit.Config, error) {
		one, err := cfg(key)
		return map[string]limit.Config{"": one}, err
	}
}

// The parts of a key that [ReadWrite] makes.
const (
	Reads  = "read"
	Writes = "write"
)

// ReadWrite is for AdaptiveConfig.New. It gives each key a pool for reads and one
// for writes, the parts [Reads] and [Writes]. Both are sized together, by what they
// get done. This is MongoDB's throughput probing of its execution tickets
// (control.ProbePair), for each key. like is what both have besides their
// controllers: the wait room, hooks, RefuseOversize and so on.
func ReadWrite(probe control.ProbeConfig, like limit.Config) func(string) (map[string]limit.Config, error) {
	return func(string) (map[string]limit.Config, error) {
		pair, err := control.NewProbePair(probe)
		if err != nil {
			return nil, err
		}
		reads, writes := like, like
		reads.Controller, writes.Controller = pair.Read(), pair.Write()
		return map[string]limit.Config{Reads: reads, Writes: writes}, nil
	}
}

// Reconfigure replaces the settings while the gate runs. New is called for every
// known key. Limiters keep what is in flight, what waits and what their
// controllers have learned. Parts that New no longer gives stay as they are. A
// change of Name, Key, Part or Now is ignored. A fault in the settings of one key
// leaves that key as it was and is reported; the others are changed. New must not
// call Reconfigure in turn.
func (l *Adaptive) Reconfigure(cfg AdaptiveConfig) error {
	if err := cfg.validate(); err != nil {
		return err
	}
	l.configuring.Lock()
	defer l.configuring.Unlock()
	l.configure(cfg)
	l.mu.Lock()
	closed := l.closed
	pools := append([]*pool(nil), l.order...)
	for _, p := range pools {
		p.pins++
	}
	l.mu.Unlock()
	if closed {
		return fmt.Errorf("keyed: gate %q: %w", l.Name(), weir.ErrClosed)
	}
	var faulty []error
	pinned := pools
	defer func() {
		for _, p := range pinned { // cfg.New has panicked
			l.unpin(p)
		}
	}()
	for _, p := range pools {
		faulty = append(faulty, l.renew(p, cfg.New))
		l.unpin(p)
		pinned = pinned[1:]
	}
	return errors.Join(faulty...)
}

// savingFirst returns the parts of a key in the order of their renewal. Parts with
// controllers that learn come first, because others may use what those restore.
func savingFirst(configs map[string]limit.Config) []string {
	var first, others []string
	for _, part := range slices.Sorted(maps.Keys(configs)) {
		if _, ok := configs[part].Controller.(control.Saver); ok {
			first = append(first, part)
		} else {
			others = append(others, part)
		}
	}
	return append(first, others...)
}

func (l *Adaptive) configure(cfg AdaptiveConfig) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.newParts = cfg.New
	l.version++
	if l.maxKeys = cfg.MaxKeys; l.maxKeys == 0 {
		l.maxKeys = DefaultMaxAdaptive
	}
	waiting := int64(cfg.MaxWaiting)
	if waiting == 0 {
		waiting = limit.DefaultQueueLen
	}
	l.maxWaiting.Store(max(0, waiting))
	l.front.SetHooks(&weir.Hooks{Rejected: cfg.Rejected})
}

// renew gives a key its new settings.
func (l *Adaptive) renew(p *pool, build func(string) (map[string]limit.Config, error)) error {
	configs, err := l.configs(build, p.key)
	if err != nil {
		return err
	}
	var faulty []error
	parts := maps.Clone(p.parts)
	added := pool{parts: map[string]*limit.Limiter{}}
	for _, part := range savingFirst(configs) {
		cfg := configs[part]
		if limiter, ok := parts[part]; ok {
			err = limiter.Reconfigure(cfg)
		} else if limiter, err = limit.New(cfg); err == nil {
			parts[part], added.parts[part] = limiter, limiter
		}
		if err != nil {
			faulty = append(faulty, fmt.Errorf("keyed: New(%.40q), part %.40q: %w", p.key, part, err))
		}
	}
	l.mu.Lock()
	p.parts = parts
	closed := l.closed
	l.mu.Unlock()
	if closed {
		added.close()
	}
	return errors.Join(faulty...)
}
