package weirredis

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/weir/quota"
)

// Lease takes more tokens than asked for, and decides by them without asking the
// server, as long as they last. A refusal is remembered too, and repeated without
// asking until its wait is over.
//
// Only plain strict decisions go by leases; all others ask the server. A bucket
// lends at most half of what it can spare, so the shorter it is of tokens, the
// smaller the leases; at its limit there are none, and every decision is exact.
//
// What it costs: tokens leased before an interval can be spent in it. So in any
// time t, processes that lease N each let at most burst + rate·t + processes·N
// through, instead of burst + rate·t. Over a long time nothing is added, since what
// is leased has been taken from the bucket. And a process that ends without Close,
// or whose refund is lost, takes up to N with it.
type Lease struct {
	// Tokens is the most that is held for a key. 0 turns leases off; at most
	// 1,000,000.
	Tokens int64
	// For is how long tokens are held before they are given back, and a refusal
	// remembered at most. Default 1 s, range 10 ms to 1 min.
	For time.Duration
	// MaxKeys bounds the keys that have a lease or a refusal; others ask the server
	// each time. Default 10,000, range 1 to 1,000,000.
	MaxKeys int
}

// Defaults of [Lease].
const (
	DefaultLeaseFor     = time.Second
	DefaultLeaseMaxKeys = 10_000
)

func (l *Lease) faults() (faults []error) {
	fault := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("weirredis: Lease."+format, args...))
		}
	}
	setDefault(&l.For, DefaultLeaseFor)
	setDefault(&l.MaxKeys, DefaultLeaseMaxKeys)
	fault(l.Tokens >= 0 && l.Tokens <= 1e6, "Tokens %d is not within 0 to 1000000", l.Tokens)
	fault(l.For >= 10*time.Millisecond && l.For <= time.Minute, "For %v is not within 10ms to 1m", l.For)
	fault(l.MaxKeys >= 1 && l.MaxKeys <= 1e6, "MaxKeys %d is not within 1 to 1000000", l.MaxKeys)
	return faults
}

// leases are what is held, by key.
type leases struct {
	Lease
	store *Store

	mu       sync.Mutex
	keys     map[string]*held
	sweeping bool
	closed   bool
}

// held is the lease of one key.
type held struct {
	limits   []quota.Window
	until    time.Time
	gone     bool // no longer in the table
	fetching bool // somebody asks the server for more

	tokens  int64
	granted quota.Decision // what the server said when it lent

	refusedCost int64 // 0: nothing refused
	refused     quota.Decision
	refusedAt   time.Time
}

func newLeases(s *Store, l Lease) *leases {
	if l.Tokens == 0 {
		return nil
	}
	return &leases{Lease: l, store: s, keys: map[string]*held{}}
}

// take decides by what is held, or asks the server.
func (ls *leases) take(ctx context.Context, t *quota.Request) (quota.Decision, error) {
	ls.mu.Lock()
	h := ls.keys[t.Key]
	if h != nil && !h.fetching && !slices.Equal(h.limits, t.Windows) {
		tokens := ls.dropLocked(t.Key, h)
		ls.mu.Unlock()
		ls.giveBack(t.Key, t.Windows, tokens) // before anything is decided by the new ones
		ls.mu.Lock()
		h = ls.keys[t.Key]
	}
	now := ls.store.now()
	if h != nil && slices.Equal(h.limits, t.Windows) {
		if r, ok := h.decide(t.Cost, now, ls.For); ok {
			ls.mu.Unlock()
			ls.note(r.OK)
			return r, nil
		}
	}
	h, more := ls.wantLocked(t, h, now)
	ls.mu.Unlock()

	r, a, err := ls.store.take(ctx, t, float64(more))
	if h != nil {
		ls.giveBack(t.Key, h.limits, ls.learn(h, t.Cost, more, r, a, err))
	}
	return r, err
}

// wantLocked returns the entry to keep in what the server says, and how many tokens
// to take ahead. Only one asks for more at a time, or together they would hold more
// than Tokens.
func (ls *leases) wantLocked(t *quota.Request, h *held, now time.Time) (*held, int64) {
	if t.Cost == 0 || t.Cost > ls.Tokens || h != nil && !slices.Equal(h.limits, t.Windows) {
		return nil, 0
	}
	if h == nil {
		if ls.closed || len(ls.keys) >= ls.MaxKeys {
			return nil, 0
		}
		h = &held{limits: slices.Clone(t.Windows), until: now.Add(ls.For)}
		ls.keys[t.Key] = h
		ls.sweepLocked()
	}
	if h.fetching {
		return h, 0
	}
	h.fetching = true
	return h, ls.Tokens - h.tokens
}

// decide decides without the server, if it can.
func (h *held) decide(cost int64, now time.Time, most time.Duration) (r quota.Decision, ok bool) {
	switch {
	case cost == 0:
		return r, false
	case h.tokens >= cost:
		h.tokens -= cost
		r = h.granted
		r.Remaining += float64(h.tokens)
		return r, true
	case h.refusedCost == 0 || cost < h.refusedCost:
		return r, false
	}
	passed := now.Sub(h.refusedAt)
	if r = h.refused; passed < 0 || passed >= min(r.Wait, most) {
		return r, false
	}
	if r.Wait != quota.Never {
		r.Wait = (r.Wait - passed + time.Millisecond - 1).Truncate(time.Millisecond)
	}
	return r, true
}

// learn keeps what the server lent or refused, and returns the tokens that nobody
// keeps because the entry has gone meanwhile.
func (ls *leases) learn(h *held, cost, more int64, r quota.Decision, a reply, err error) (back int64) {
	now := ls.store.now()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if more > 0 {
		h.fetching = false
	}
	if err != nil {
		return 0
	}
	if !r.OK {
		h.refusedCost, h.refused, h.refusedAt = cost, r, now
		return 0
	}
	h.refusedCost = 0
	lent := int64(a.charged) - cost
	if h.gone {
		return lent
	}
	if lent > 0 {
		h.tokens += lent
		h.granted, h.until = r, now.Add(ls.For)
	}
	return 0
}

func (ls *leases) note(ok bool) {
	if ok {
		ls.store.count.leased.Add(1)
	} else {
		ls.store.count.remembered.Add(1)
	}
}

// dropLocked forgets an entry and returns what it held.
func (ls *leases) dropLocked(key string, h *held) (tokens int64) {
	tokens, h.tokens, h.gone = h.tokens, 0, true
	delete(ls.keys, key)
	return tokens
}

// giveBack refunds what was held too long. It is tried once: a refund that comes
// twice would let more through than the limit.
func (ls *leases) giveBack(key string, limits []quota.Window, tokens int64) {
	if tokens > 0 {
		_ = ls.store.Refund(ls.store.ctx, key, limits, float64(tokens))
	}
}

// sweepLocked starts giving back what nobody comes for, until nothing is held.
func (ls *leases) sweepLocked() {
	if ls.sweeping {
		return
	}
	ls.sweeping = true
	ls.store.spawn(func() {
		for ls.store.pause(ls.For / 2) {
			if !ls.sweep(ls.store.now()) {
				return
			}
		}
	})
}

// sweep gives back what has expired, and reports whether anything is left.
func (ls *leases) sweep(now time.Time) (more bool) {
	expired := map[string]*held{}
	tokens := map[string]int64{}
	ls.mu.Lock()
	for key, h := range ls.keys {
		// Not while more is on its way for it: a second entry could take as much again.
		if !h.fetching && !now.Before(h.until) {
			expired[key], tokens[key] = h, ls.dropLocked(key, h)
		}
	}
	more = len(ls.keys) > 0
	ls.sweeping = more
	ls.mu.Unlock()
	for key, h := range expired {
		ls.giveBack(key, h.limits, tokens[key])
	}
	return more
}

// held returns the number of keys that have an entry.
func (ls *leases) held() int {
	if ls == nil {
		return 0
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return len(ls.keys)
}

// close gives everything back.
func (ls *leases) close() {
	if ls == nil {
		return
	}
	ls.mu.Lock()
	ls.closed = true
	for _, h := range ls.keys {
		h.until, h.fetching = time.Time{}, false
	}
	ls.mu.Unlock()
	ls.sweep(ls.store.now())
}
