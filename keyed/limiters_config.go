package keyed

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

// LimitersConfig configures [NewLimiters].
type LimitersConfig struct {
	// Name is the gate's name, and that of each limiter that New gives none.
	Name string
	// Key says whose limiter a piece of work draws on. Default: its Tenant.
	Key func(weir.Work) string
	// Part says which of the key's limiters it draws on, for keys that have
	// several, such as one for reads and one for writes. Default: "".
	Part func(weir.Work) string

	// New returns the settings of a key's limiters by their part: with [Each] one,
	// with [ReadWrite] two whose sizes move together. It is called with the first
	// work of a key, also after the key was evicted, with no lock held, and perhaps
	// more than once at a time; each call must return controllers of its own. An error, or settings
	// that are faulty, refuse the work ([weir.ReasonBlocked], with the cause). The
	// limiters' Now is set to the gate's.
	New func(key string) (map[string]limit.Config, error)

	// MaxKeys bounds the keys that are known at a time. 0 means
	// [DefaultMaxLimiters]. A newcomer takes the place of an idle key; a key in use
	// keeps its place. What the controllers of evicted keys have learned is kept of
	// four times as many, and given back to those that return.
	MaxKeys int
	// MaxWaiting bounds the work that waits, over all keys together and besides
	// the limiters' own bounds: beyond it, work is admitted at once or refused. 0
	// means limit.DefaultQueueLen; with a negative value nothing waits.
	//
	// As at a [Gate] a key may have no more work waiting than there are places left:
	// one that floods the room gets half of it. What comes beyond that is not
	// weighed against what waits, not by its priority either. So where priorities
	// matter give the limiters a Queue.Len that is well below.
	MaxWaiting int

	// Now replaces the clock, as in [Config].
	Now func() time.Duration
}

// DefaultMaxLimiters is the number of keys where LimitersConfig.MaxKeys is 0.
const DefaultMaxLimiters = 1024

func (c *LimitersConfig) validate() error {
	var f faults
	f.check(c.New != nil, "New: must be set; keyed.Each makes one of a function that returns a limit.Config")
	f.check(c.MaxKeys >= 0, "MaxKeys %d: must be at least 1, or 0 for %d", c.MaxKeys, DefaultMaxLimiters)
	return f.err(c.Name)
}

// Each is for LimitersConfig.New where each key has one limiter.
func Each(cfg func(key string) (limit.Config, error)) func(string) (map[string]limit.Config, error) {
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

// ReadWrite is for LimitersConfig.New where each key has a pool for reads and one
// for writes, the parts [Reads] and [Writes], sized together by what both get done:
// MongoDB's throughput probing of its execution tickets (control.ProbePair), for
// each key. like is what both have besides their controllers: the wait room, hooks,
// RefuseOversize and so on.
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

// Reconfigure takes up new settings while the gate runs. New is called for every
// key that is known; limiters keep what is in flight, what waits and what their
// controllers have learned, and parts that New no longer gives stay as they are. A
// change of Name, Key, Part or Now is ignored. A fault in the settings of one key
// leaves that key as it was and is reported; the others are changed. New must
// not call Reconfigure in turn.
func (l *Limiters) Reconfigure(cfg LimitersConfig) error {
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
		return fmt.Errorf("keyed: gate %q: %w", l.name, limit.ErrClosed)
	}
	var faulty []error
	for _, p := range pools {
		faulty = append(faulty, l.renew(p, cfg.New))
		l.unpin(p)
	}
	return errors.Join(faulty...)
}

// teachersFirst returns the parts of a key in the order in which to renew them: first
// those whose controllers take up what the old ones have learned, for others may go
// by that.
func teachersFirst(configs map[string]limit.Config) []string {
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

func (l *Limiters) configure(cfg LimitersConfig) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.newParts = cfg.New
	l.version++
	if l.maxKeys = cfg.MaxKeys; l.maxKeys == 0 {
		l.maxKeys = DefaultMaxLimiters
	}
	waiting := int64(cfg.MaxWaiting)
	if waiting == 0 {
		waiting = limit.DefaultQueueLen
	}
	l.maxWaiting.Store(max(0, waiting))
}

// renew gives a key its new settings.
func (l *Limiters) renew(p *pool, build func(string) (map[string]limit.Config, error)) error {
	configs, err := build(p.key)
	if err != nil {
		return fmt.Errorf("keyed: New(%.40q): %w", p.key, err)
	}
	var faulty []error
	parts := maps.Clone(p.parts)
	added := pool{parts: map[string]*limit.Limiter{}}
	for _, part := range teachersFirst(configs) {
		cfg := l.complete(configs[part])
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
