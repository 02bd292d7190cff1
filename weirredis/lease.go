package weirredis

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/quota"
)

// Lease takes more tokens from the server than a decision needs. As long as they last, the
// process decides without asking the server. It also remembers a refusal. Until its wait is over,
// it refuses that cost and greater ones without asking, each with its own wait.
//
// Only strict decisions without debts use leases; all others ask the server. For permissive charges, which leave
// debts, [quota.Quota.AdmitAhead] asks it less often. A bucket lends
// at most half of what it can spare: the fewer tokens it has, the smaller the leases. When it
// is empty there are none, and every decision is exact.
//
// A lease has a cost: tokens leased before an interval can be used in it. So in any time
// t, processes that lease N each admit at most burst + rate·t + processes·N, in place of
// burst + rate·t. Over a long time nothing is added, because leased tokens are gone from
// the bucket. A process that ends without Close, or whose refund is lost, loses up to N
// tokens.
type Lease struct {
	// Tokens is the most that a process leases for a key. 0 turns leases off; at most
	// 1,000,000.
	Tokens int64
	// For is how long tokens are leased before they are refunded, and the longest that a
	// refusal is remembered. Default 1 s, range 10 ms to 1 min.
	For time.Duration
	// MaxKeys bounds the keys with a lease or a refusal. For others the server is asked
	// each time. Default 10,000, range 1 to 1,000,000.
	MaxKeys int
}

// Defaults of [Lease].
const (
	DefaultLeaseFor     = time.Second
	DefaultLeaseMaxKeys = 10_000
)

// complete fills in defaults, and adds every setting out of range to f.
func (l *Lease) complete(f *fault.List) {
	at := fault.Path{"Lease"}
	setDefault(&l.For, DefaultLeaseFor)
	setDefault(&l.MaxKeys, DefaultLeaseMaxKeys)
	f.Check(l.Tokens >= 0 && l.Tokens <= 1e6, at.At("Tokens"), l.Tokens, "must be from 0 to 1000000")
	f.Check(l.For >= 10*time.Millisecond && l.For <= time.Minute, at.At("For"), l.For, "must be from 10ms to 1m")
	f.Check(l.MaxKeys >= 1 && l.MaxKeys <= 1e6, at.At("MaxKeys"), l.MaxKeys, "must be from 1 to 1000000")
}

// leases keeps the lease of each key.
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
	fetching bool // the server is being asked for more

	tokens  int64
	granted quota.Decision // the decision with which it was lent; Remaining is without tokens

	refusedCost int64 // 0: nothing was refused
	refusedAt   time.Time
	found       reply // what the server had then, from which greater costs have their own wait
}

func newLeases(s *Store, l Lease) *leases {
	if l.Tokens == 0 {
		return nil
	}
	return &leases{Lease: l, store: s, keys: map[string]*held{}}
}

// loan is what a request to the server is to bring for a lease.
type loan struct {
	held   *held // nil: nothing is learnt from the answer
	tokens int64 // to be lent
}

// decide decides by a lease. If it cannot, the server has to be asked, for the loan too.
func (ls *leases) decide(t *quota.Request, l *loan) (r quota.Decision, ok bool) {
	ls.mu.Lock()
	h := ls.keys[t.Key]
	if h != nil && !h.fetching && !slices.Equal(h.limits, t.Windows) {
		tokens := ls.dropLocked(t.Key, h)
		ls.mu.Unlock()
		ls.refund(t.Key, t.Windows, tokens) // before anything is decided by the new ones
		ls.mu.Lock()
		h = ls.keys[t.Key]
	}
	defer ls.mu.Unlock()
	now := ls.store.now()
	if h != nil && slices.Equal(h.limits, t.Windows) {
		if r, ok = h.decide(t, now, ls.For); ok {
			ls.count(r.OK)
			return r, true
		}
	}
	l.held, l.tokens = ls.prepareLocked(t, h, now)
	return r, false
}

// prepareLocked returns the entry for the server's answer, and how many tokens to lease. Only
// one caller leases at a time, or together they would have more than Tokens.
func (ls *leases) prepareLocked(t *quota.Request, h *held, now time.Time) (*held, int64) {
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

// decide decides by the lease alone, if it can.
func (h *held) decide(t *quota.Request, now time.Time, most time.Duration) (r quota.Decision, ok bool) {
	switch cost := t.Cost; {
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
	found, passed := h.found.tokens, now.Sub(h.refusedAt)
	if r = t.Decide(found[:len(t.Windows)], h.found.now); passed < 0 || passed >= min(r.Wait, most) {
		return r, false
	}
	if r.Wait != quota.Never {
		r.Wait = (r.Wait - passed + time.Millisecond - 1).Truncate(time.Millisecond)
	}
	return r, true
}

// learn records what the server has lent or refused. Tokens go back if the entry has gone meanwhile.
func (ls *leases) learn(t *quota.Request, l *loan, d quota.Decision, r reply, err error) {
	ls.refund(t.Key, l.held.limits, ls.record(t.Cost, l, d, r, err))
}

// record records what the server has lent or refused, and returns the tokens to refund.
func (ls *leases) record(cost int64, l *loan, d quota.Decision, r reply, err error) (back int64) {
	h, now := l.held, ls.store.now()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l.tokens > 0 {
		h.fetching = false
	}
	if err != nil {
		return 0
	}
	if !d.OK {
		h.refusedCost, h.refusedAt, h.found = cost, now, r
		return 0
	}
	h.refusedCost = 0
	lent := int64(r.charged) - cost
	if h.gone {
		return lent
	}
	if lent > 0 {
		h.tokens += lent
		h.granted, h.until = d, now.Add(ls.For)
		h.granted.Remaining -= float64(lent)
	}
	return 0
}

func (ls *leases) count(ok bool) {
	if ok {
		ls.store.count.leased.Add(1)
	} else {
		ls.store.count.remembered.Add(1)
	}
}

// dropLocked removes an entry and returns its tokens.
func (ls *leases) dropLocked(key string, h *held) (tokens int64) {
	tokens, h.tokens, h.gone = h.tokens, 0, true
	delete(ls.keys, key)
	return tokens
}

// refund gives tokens back to the bucket. It is tried once: a refund that came twice would
// admit more than the quota.
func (ls *leases) refund(key string, limits []quota.Window, tokens int64) {
	if tokens > 0 {
		_ = ls.store.Refund(ls.store.ctx, key, limits, float64(tokens))
	}
}

// over is what is left of a lease that has ended.
type over struct {
	key    string
	limits []quota.Window
	tokens int64
}

// Refunds that are sent together take at most places/refundShare in flight; decisions have the others.
const refundShare = 8

// refundAll refunds what is left of leases, many in one write. Each is tried once, as by refund.
func (ls *leases) refundAll(ctx context.Context, all []over) {
	s := ls.store
	client := s.client.Load()
	if client == nil {
		return // and nothing was lent
	}
	for some := range slices.Chunk(all, int(max(client.places/refundShare, 1))) {
		questions := make([]question, len(some))
		for i, o := range some {
			questions[i] = s.refund(o.key, o.limits, float64(o.tokens))
		}
		s.runAll(ctx, questions)
		for i, o := range some {
			_ = s.refunded(&questions[i], len(o.limits))
		}
	}
}

// sweepLocked starts to refund leases that are over, until there are none.
func (ls *leases) sweepLocked() {
	if ls.sweeping {
		return
	}
	ls.sweeping = true
	ls.store.spawn(func() {
		for ls.store.pause(ls.For / 2) {
			if !ls.sweep(ls.store.ctx, ls.store.now()) {
				return
			}
		}
	})
}

// sweep refunds leases that are over, and reports whether any are left.
func (ls *leases) sweep(ctx context.Context, now time.Time) (more bool) {
	var expired []over
	ls.mu.Lock()
	for key, h := range ls.keys {
		// Not while it fetches more: a second entry could lease as much again.
		if h.fetching || now.Before(h.until) {
			continue
		}
		if tokens := ls.dropLocked(key, h); tokens > 0 {
			expired = append(expired, over{key, h.limits, tokens})
		}
	}
	more = len(ls.keys) > 0
	ls.sweeping = more
	ls.mu.Unlock()
	ls.refundAll(ctx, expired)
	return more
}

// held returns the number of keys with a lease or a refusal.
func (ls *leases) held() int {
	if ls == nil {
		return 0
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return len(ls.keys)
}

// closeWithin bounds the refunds of Close. A process that ends soon may lose what is left.
const closeWithin = 2 * time.Second

// close refunds everything.
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
	ctx, cancel := context.WithTimeout(ls.store.ctx, closeWithin)
	defer cancel()
	ls.sweep(ctx, ls.store.now())
}
