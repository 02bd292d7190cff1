package keyed

import (
	"cmp"
	"container/list"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/gate"
	"github.com/weir-go/weir/internal/keys"
	"github.com/weir-go/weir/limit"
)

// pinKnown pins the pool of a key. All results are nil if the key is not known.
func (l *Adaptive) pinKnown(key string) (*pool, map[string]*limit.Limiter, *weir.Rejection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pinKnownLocked(key)
}

// pinKnownLocked is pinKnown with the lock held.
func (l *Adaptive) pinKnownLocked(key string) (*pool, map[string]*limit.Limiter, *weir.Rejection) {
	if l.closed {
		return nil, nil, l.front.Draining()
	}
	p := l.pools[key]
	if p == nil {
		return nil, nil, nil
	}
	p.pins++
	p.seen = true
	return p, p.parts, nil
}

func (l *Adaptive) unpin(p *pool) {
	l.mu.Lock()
	p.pins--
	l.mu.Unlock()
}

// enter makes the pool of a key and pins it. New is called with no lock held.
// Meanwhile somebody else may make the pool, or the settings or what is remembered
// of the key may change. Then what New returned is thrown away.
func (l *Adaptive) enter(key string) (*pool, map[string]*limit.Limiter, *weir.Rejection) {
	key = strings.Clone(key) // it may be a piece of something large
	for {
		l.mu.Lock()
		build, version, past := l.newParts, l.version, l.past(key)
		l.mu.Unlock()
		if !l.place() { // after past: the memory of an evicted key may push out this key's
			if p, parts, refused := l.pinKnown(key); p != nil || refused != nil { // made meanwhile
				return p, parts, refused
			}
			return nil, nil, l.keysInUse()
		}
		parts, err := l.build(build, key, past.learned())
		if err != nil {
			return nil, nil, l.blocked("new", err)
		}
		made := &pool{key: key, parts: parts}
		l.mu.Lock()
		if p, parts, refused := l.pinKnownLocked(key); p != nil || refused != nil {
			l.mu.Unlock()
			made.close()
			return p, parts, refused
		}
		out, ok, _ := l.makeRoom()
		if ok = ok && version == l.version && l.past(key).nothingSince(past); ok {
			made.pins, made.seen, made.index = 1, true, len(l.order)
			l.pools[key] = made
			l.order = append(l.order, made)
			l.memory.drop(keys.NameOf(key))
		}
		l.mu.Unlock()
		l.remember(out)
		if ok {
			return made, parts, nil
		}
		made.close()
	}
}

// past is what there is of a key that was known before. It is the key's pool while
// that is being closed, and a memory afterwards.
type past struct {
	pool   *pool
	memory *memo
}

func (l *Adaptive) past(key string) past {
	return past{l.leaving[key], l.memory.find(keys.NameOf(key))}
}

// nothingSince reports whether nothing new has become known of the key.
func (p past) nothingSince(was past) bool { return p == was || p == (past{}) }

func (p past) learned() learned {
	switch {
	case p.pool != nil:
		return p.pool.learned()
	case p.memory != nil:
		return p.memory.states
	}
	return nil
}

// keysInUse is the refusal of a newcomer while all keys are in use.
func (l *Adaptive) keysInUse() *weir.Rejection {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &weir.Rejection{Gate: l.Name(), Rule: "keys", Reason: weir.ReasonLimit, Value: float64(len(l.order)),
		Limit: float64(l.maxKeys), RetryAfter: gate.UnknownWait, Retryable: true}
}

// blocked is the refusal of work for which there is no limiter.
func (l *Adaptive) blocked(rule string, why error) *weir.Rejection {
	return &weir.Rejection{Gate: l.Name(), Rule: rule, Reason: weir.ReasonBlocked, Cause: why}
}

// build makes the limiters of a key. First all controllers get back what they
// had learned, and only then is each asked where to start. One controller may
// serve several limiters.
func (l *Adaptive) build(build func(string) (map[string]limit.Config, error), key string, states learned) (map[string]*limit.Limiter, error) {
	configs, err := l.configs(build, key)
	if err != nil {
		return nil, err
	}
	for part, state := range states {
		if s, ok := configs[part].Controller.(control.Saver); ok {
			s.Restore(state)
		}
	}
	p := pool{parts: make(map[string]*limit.Limiter, len(configs))}
	for part, cfg := range configs {
		limiter, err := limit.New(cfg)
		if err != nil {
			p.close()
			return nil, fmt.Errorf("keyed: New(%.40q), part %.40q: %w", key, part, err)
		}
		p.parts[part] = limiter
	}
	return p.parts, nil
}

// configs returns the settings of a key's limiters, with what they get from the gate. A
// controller that would be the default is made here, so that what it learns outlasts the
// key.
func (l *Adaptive) configs(build func(string) (map[string]limit.Config, error), key string) (map[string]limit.Config, error) {
	configs, err := build(key)
	if err != nil {
		return nil, fmt.Errorf("keyed: New(%.40q): %w", key, err)
	}
	configs = maps.Clone(configs) // New may return the same map again
	for part, cfg := range configs {
		if cfg.Controller == nil && cfg.Limit == 0 {
			cfg.Controller = control.Default()
		}
		cfg.Name, cfg.Now = cmp.Or(cfg.Name, l.Name()), l.front.Clock()
		configs[part] = cfg
	}
	return configs, nil
}

// evict forgets a pool that holds nothing, except for its counts.
func (l *Adaptive) evict(p *pool) {
	last := len(l.order) - 1
	l.order[p.index] = l.order[last]
	l.order[p.index].index = p.index
	l.order[last] = nil
	l.order = l.order[:last]
	delete(l.pools, p.key)
	l.leaving[p.key] = p
	l.evicted++
	for _, limiter := range p.parts {
		s := limiter.Snapshot()
		addCounts(&l.gone, &s)
	}
}

// remember closes pools that were evicted and keeps what they learned. The
// lock is not held, because a controller may be at work. A key that comes back
// meanwhile asks the pool itself.
func (l *Adaptive) remember(evicted []*pool) {
	for _, p := range evicted {
		states := p.learned()
		p.close()
		l.mu.Lock()
		if l.leaving[p.key] == p { // or it came back and has left again
			l.memory.put(keys.NameOf(p.key), states, remembered*l.maxKeys)
			delete(l.leaving, p.key)
		}
		l.mu.Unlock()
	}
}

// idle reports whether nothing is in flight and nobody waits in any of the limiters.
func (p *pool) idle() bool {
	for _, limiter := range p.parts {
		if s := limiter.Snapshot(); s.InFlight > 0 || s.Waiting > 0 || s.Exempt > 0 {
			return false
		}
	}
	return true
}

func (p *pool) close() {
	for _, limiter := range p.parts {
		limiter.Close()
	}
}

// A search that finds every pool in use takes the lock of each limiter. Meanwhile
// all work of all keys waits. So the search runs in pieces. While every pool is in
// use, it starts no more often than sweepEvery and takes no more than a fiftieth of
// the time.
const (
	sweepPiece = 256
	sweepEvery = 10 * time.Millisecond
	sweepPart  = 50
)

// sweep is the search for an idle pool, as far as it has come.
type sweep struct {
	hand   int           // the pool that was checked last
	looked int           // how many pools it has found in use
	spent  time.Duration // the time it has taken
	next   time.Duration // when to begin again, after every pool was found in use
}

// place makes room for one more key, and reports false if there is none.
func (l *Adaptive) place() bool {
	for {
		l.mu.Lock()
		evicted, ok, again := l.makeRoom()
		l.mu.Unlock()
		l.remember(evicted)
		if !again {
			return ok
		}
	}
}

// makeRoom evicts idle keys until there is a place for one more, and returns them.
// As a rule it is one key; it is more after MaxKeys has become smaller. ok is
// false if there is no place. again is true if that is not certain yet and
// makeRoom has to be called again.
func (l *Adaptive) makeRoom() (evicted []*pool, ok, again bool) {
	for len(l.order) >= l.maxKeys {
		now := l.front.Now()
		if now < l.sweep.next {
			return evicted, false, false
		}
		p := l.stalest()
		done := l.front.Now()
		l.sweep.spent += done - now
		switch {
		case p != nil:
			l.sweep = sweep{hand: l.sweep.hand}
			l.evict(p)
			evicted = append(evicted, p)
		case l.sweep.looked < 2*len(l.order):
			return evicted, false, true
		default:
			l.sweep = sweep{hand: l.sweep.hand, next: done + max(sweepEvery, sweepPart*l.sweep.spent)}
			return evicted, false, false
		}
	}
	return evicted, true, false
}

// stalest returns an idle pool that nobody has asked for since the hand last
// passed it. It searches one piece, and returns nil if that has none.
func (l *Adaptive) stalest() *pool {
	for range min(sweepPiece, 2*len(l.order)-l.sweep.looked) {
		l.sweep.looked++
		l.sweep.hand = (l.sweep.hand + 1) % len(l.order)
		p := l.order[l.sweep.hand]
		switch {
		case p.pins > 0:
		case p.seen:
			p.seen = false
		case p.idle():
			return p
		}
	}
	return nil
}

// memory keeps what the controllers of evicted keys had learned, for the keys
// evicted last. Otherwise a key that has been cut down could stay away until it
// is evicted, and come back with the first limit.
type memory struct {
	memos map[keys.Name]*list.Element
	order list.List // of *memo, by the last eviction of their keys
}

// memo is what is remembered of one key. It is never written to.
type memo struct {
	key    keys.Name
	states learned
}

// learned are the states of a key's controllers by part.
type learned map[string]control.State

// remembered is how many evicted keys are remembered for each live one.
const remembered = 4

// learned returns what the controllers of a pool have learned, nil if nothing.
func (p *pool) learned() learned {
	var states learned
	for part, limiter := range p.parts {
		if s, ok := saved(limiter); ok {
			if states == nil {
				states = make(learned, len(p.parts))
			}
			states[part] = s
		}
	}
	return states
}

// saved is what one controller has learned. If the controller panics, that is
// nothing: the panic must not hit the work that runs this, which is of another key.
func saved(limiter *limit.Limiter) (s control.State, ok bool) {
	defer func() {
		if recover() != nil {
			s, ok = control.State{}, false
		}
	}()
	return limiter.Save()
}

// find returns what is remembered of a key, nil if nothing is.
func (m *memory) find(key keys.Name) *memo {
	if e := m.memos[key]; e != nil {
		return e.Value.(*memo)
	}
	return nil
}

// put remembers the states of a key, and forgets the oldest beyond most.
func (m *memory) put(key keys.Name, states learned, most int) {
	if states == nil || most <= 0 {
		return
	}
	if m.memos == nil {
		m.memos = make(map[keys.Name]*list.Element)
	}
	m.drop(key)
	m.memos[key] = m.order.PushBack(&memo{key, states})
	for len(m.memos) > most {
		delete(m.memos, m.order.Remove(m.order.Front()).(*memo).key)
	}
}

// drop forgets a key: it is back, and its controllers know.
func (m *memory) drop(key keys.Name) {
	if e := m.memos[key]; e != nil {
		m.order.Remove(e)
		delete(m.memos, key)
	}
}
