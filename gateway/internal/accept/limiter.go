package accept

import (
	"cmp"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// limiter decides which connections a listener accepts: how many at once and how many new
// ones a second, in all and from one address. It is a state machine with explicit time, as
// a gate is. A connection counts from before the TLS handshake to its end, however the
// client spends that time.
//
// Listeners that follow each other at one address share a limiter, so a reload forgets
// nobody.
type limiter struct {
	mu     sync.Mutex
	limits limits
	open   int
	bucket bucket
	peers  peers

	admitted uint64
	refused  [numLimitKinds]uint64
	observed [numLimitKinds]uint64

	epoch       time.Time
	rejections  atomic.Pointer[rejections]
	evicted     atomic.Uint64
	maxRequests atomic.Int64 // in progress: each takes memory before any gate has seen it
}

// limits are the settings of a limiter. A zero means no limit.
type limits struct {
	name     string      // of the gate in refusals
	open     int         // connections at once
	peerOpen int         // of one address
	rate     float64     // new ones a second; the burst is as large, but at least one
	peerRate float64     // of one address
	peers    int         // addresses known at a time
	mode     policy.Mode // of all but the first; empty: enforce
	exempt   func(netip.Addr) bool
}

// leastRequests is how many requests a listener lets in at a time however few connections
// it may have: over HTTP/2 one connection brings many.
const leastRequests = 1000

// limitsOf are the limits on connections of a listener. By default the addresses that trusted
// reports are exempt from the limits of one address, because many clients come from there.
func limitsOf(l *config.Listener, trusted func(netip.Addr) bool) limits {
	c := &l.Connections
	all := limits{
		name: "listener " + l.Address, open: l.MaxConnections,
		rate: c.Rate, peerRate: c.RatePerAddress, peers: c.Addresses, mode: c.Mode, exempt: trusted,
	}
	switch {
	case c.Mode == policy.Off:
		all.rate, all.peerRate = 0, 0
	case c.PerAddress > 0:
		all.peerOpen = c.PerAddress
	case c.PerAddress == 0 && l.MaxConnections > 0:
		all.peerOpen = max(l.MaxConnections/2, 1)
	}
	if c.Exempt != nil {
		networks := c.Networks()
		all.exempt = func(addr netip.Addr) bool {
			addr = addr.Unmap().WithZone("")
			for _, n := range networks {
				if n.Contains(addr) {
					return true
				}
			}
			return false
		}
	}
	return all
}

// byPeer reports whether addresses are told apart.
func (l *limits) byPeer() bool { return l.peerOpen > 0 || l.peerRate > 0 }

// limitKind is which limit refuses a connection.
type limitKind uint8

const (
	noLimit limitKind = iota // the connection is accepted
	limitOpen
	limitPeerOpen
	limitRate
	limitPeerRate
	// limitAddresses: the table of addresses is full, and the addresses that are not in it
	// have together used up what one address may.
	limitAddresses
	numLimitKinds
)

// limitNames are their words in logs, metrics and answers: the settings.
var limitNames = [numLimitKinds]string{
	"", "max_connections", "connections.per_address", "connections.rate", "connections.rate_per_address", "connections.addresses",
}

// String is the setting that the limit comes from.
func (k limitKind) String() string { return limitNames[k] }

func (k limitKind) reason() weir.Reason {
	if k == limitRate || k == limitPeerRate {
		return weir.ReasonQuota
	}
	return weir.ReasonLimit
}

// newLimiter returns a limiter with full buckets.
func newLimiter(l limits) *limiter {
	d := &limiter{epoch: time.Now()}
	d.peers.init()
	d.set(l, 0)
	return d
}

// now is the time by the limiter's clock.
func (d *limiter) now() time.Duration { return time.Since(d.epoch) }

// admit counts a connection from addr, or returns the limit that refuses it. Either all
// limits are charged or none is. The peer is what leave has to be given.
func (d *limiter) admit(addr netip.Addr, now time.Duration) (*peer, limitKind) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, refusedBy := d.check(addr, now)
	if refusedBy != noLimit {
		return nil, refusedBy
	}
	if d.limits.rate > 0 {
		d.bucket.tokens--
	}
	if p != nil {
		p = d.peers.activate(p)
		p.open++
		if d.limits.peerRate > 0 {
			p.bucket.tokens--
		}
	}
	d.open++
	d.admitted++
	return p, noLimit
}

// check finds the peer at addr, and the limit that refuses it, if any does. The limit that
// all share comes last: who is refused by its own limit takes nothing from others.
func (d *limiter) check(addr netip.Addr, now time.Duration) (*peer, limitKind) {
	l := &d.limits
	if l.open > 0 && d.open >= l.open {
		return nil, limitOpen
	}
	var p *peer
	if l.byPeer() && !(l.exempt != nil && l.exempt(addr)) {
		p = d.peers.peerAt(addr, l, now)
		full, fast := limitPeerOpen, limitPeerRate
		if p == &d.peers.crowd {
			full, fast = limitAddresses, limitAddresses
		}
		if l.peerOpen > 0 && p.open >= l.peerOpen {
			return p, full
		}
		if l.peerRate > 0 && !p.bucket.refill(l.peerRate, now) {
			return p, fast
		}
	}
	if l.rate > 0 && !d.bucket.refill(l.rate, now) {
		return p, limitRate
	}
	return p, noLimit
}

// observe lets a connection in that a limit in observe mode would refuse, and counts it.
// The connection belongs to no peer, so the limits go on as if it had been refused. It
// returns the limit that refuses the connection all the same, if one does.
func (d *limiter) observe(would limitKind) limitKind {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch l := &d.limits; {
	case l.mode != policy.Observe:
		return would
	case l.open > 0 && d.open >= l.open:
		return limitOpen
	}
	d.observed[would]++
	d.open++
	d.admitted++
	return noLimit
}

// countRefused counts a connection that was refused for good.
func (d *limiter) countRefused(by limitKind) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refused[by]++
}

// leave ends what admit began. p is nil for a connection that belongs to no peer.
func (d *limiter) leave(p *peer, now time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open--
	if p != nil {
		p.open--
		d.peers.deactivate(p, now)
	}
}

// greediest returns the index of the connection from the address with most connections. It is -1 if
// no address has at least two more than addr.
func (d *limiter) greediest(addr netip.Addr, among []*conn) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	most, best := 1, -1
	if p := d.peers.known[peerKey(addr)]; p != nil {
		most += p.open
	}
	for i, c := range among {
		if c.peer.open > most {
			most, best = c.peer.open, i
		}
	}
	return best
}

// configure changes the limits. Connections stay, and so do tokens, as far as the new
// limits hold so many.
func (d *limiter) configure(l limits, now time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bucket.refill(d.limits.rate, now)
	d.set(l, now)
}

// set sets the limits. A bucket that did not count so far is full.
func (d *limiter) set(l limits, now time.Duration) {
	if d.limits.rate <= 0 {
		d.bucket = fullBucket(l.rate, now)
	}
	if d.limits.peerRate <= 0 {
		d.peers.crowd.bucket = fullBucket(l.peerRate, now)
	}
	d.limits = l
	d.rejections.Store(l.rejections())
	d.maxRequests.Store(int64(max(l.open, leastRequests)))
}

// rejections are what refused clients are told, by limit. They are made when the limits are
// set, and shared: a flood of refusals allocates nothing.
type rejections [numLimitKinds]*weir.Rejection

func (l *limits) rejections() *rejections {
	var all rejections
	add := func(kind limitKind, value, limit float64, after time.Duration) {
		all[kind] = &weir.Rejection{
			Gate: l.name, Rule: kind.String(), Reason: kind.reason(), Value: value, Limit: limit, RetryAfter: after, Retryable: true,
		}
	}
	add(limitOpen, float64(l.open), float64(l.open), time.Second)
	add(limitPeerOpen, float64(l.peerOpen), float64(l.peerOpen), time.Second)
	add(limitRate, 0, l.rate, nextIn(l.rate))
	add(limitPeerRate, 0, l.peerRate, nextIn(l.peerRate))
	add(limitAddresses, float64(l.peers), float64(l.peers), time.Second)
	return &all
}

// nextIn is how long at most it takes until a bucket holds one again.
func nextIn(rate float64) time.Duration {
	if rate <= 0 {
		return time.Second
	}
	return time.Duration(min(1/rate, 1e6) * float64(time.Second))
}

// bucket is a token bucket of new connections. Its burst is what comes in a second, but at
// least one: rates below one a second would let nobody in.
type bucket struct {
	tokens float64
	at     time.Duration
}

func fullBucket(rate float64, now time.Duration) bucket { return bucket{burst(rate), now} }

func burst(rate float64) float64 { return max(rate, 1) }

// refill brings the bucket up to date and reports whether it holds a token. A clock that
// goes back brings nothing.
func (b *bucket) refill(rate float64, now time.Duration) bool {
	b.tokens = min(b.tokens+rate*max(now-b.at, 0).Seconds(), burst(rate))
	b.at = now
	return b.tokens >= 1-1e-9 // sums of parts fall short of the whole
}

// fillsIn is how long an empty bucket takes to be full.
func fillsIn(rate float64) time.Duration {
	if rate <= 0 {
		return 0
	}
	return time.Duration(min(burst(rate)/rate, 1e6) * float64(time.Second))
}

// peers are the addresses that a limiter knows. They have connections, or their bucket is not yet
// full again since their last connection ended. Nobody gains by being forgotten: only an address
// with a full bucket is.
//
// The table is bounded. Addresses beyond the bound form one crowd, with the limits of one address.
// New clients cannot be told from a flood of addresses, and a flood gets no more than one address
// does.
type peers struct {
	known map[netip.Addr]*peer
	crowd peer

	// idle is the head of the list of peers without a connection, in the order in which the last
	// one ended. Its next is the first, its prev the last.
	idle peer
	// fresh is lent to an address that is not known yet; activate puts it into the table.
	fresh peer
}

// peer is one address, of IPv6 a /64 network.
type peer struct {
	addr       netip.Addr
	open       int
	bucket     bucket
	idleSince  time.Duration
	prev, next *peer // among the idle; nil for others
}

func (ps *peers) init() {
	ps.known = make(map[netip.Addr]*peer)
	ps.idle.prev, ps.idle.next = &ps.idle, &ps.idle
}

func (ps *peers) len() int { return len(ps.known) }

// peerAt returns the peer at addr if it is known. Otherwise it returns a fresh one; if that is let
// in, pass it to activate. If the table is full, it returns the crowd.
func (ps *peers) peerAt(addr netip.Addr, l *limits, now time.Duration) *peer {
	key := peerKey(addr)
	if p := ps.known[key]; p != nil {
		return p
	}
	ps.evict(l, now)
	if len(ps.known) >= l.peers {
		return &ps.crowd
	}
	ps.fresh = peer{addr: key, bucket: fullBucket(l.peerRate, now)}
	return &ps.fresh
}

// peerKey is what is told apart: an IPv4 address, or the /64 network that a host, or a
// whole home, is given of IPv6.
func peerKey(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	if addr.Is6() {
		return netip.PrefixFrom(addr, 64).Masked().Addr()
	}
	return addr
}

// evict makes room. For each newcomer two may go, so addresses of a flood go again. The list is
// about in the order in which buckets become full.
func (ps *peers) evict(l *limits, now time.Duration) {
	for range 2 {
		p := ps.idle.next
		if p == &ps.idle || now-p.idleSince < fillsIn(l.peerRate) {
			return
		}
		p.unlink()
		delete(ps.known, p.addr)
	}
}

// activate returns the peer in the table for one that has got a connection.
func (ps *peers) activate(p *peer) *peer {
	if p == &ps.fresh {
		known := ps.fresh
		ps.known[known.addr] = &known
		return &known
	}
	p.unlink()
	return p
}

// deactivate is called when a connection of p has ended.
func (ps *peers) deactivate(p *peer, now time.Duration) {
	if p.open > 0 || p == &ps.crowd {
		return
	}
	p.idleSince = now
	p.prev, p.next = ps.idle.prev, &ps.idle
	p.prev.next, p.next.prev = p, p
}

// unlink takes p off the list of the idle, if it is on it.
func (p *peer) unlink() {
	if p.next != nil {
		p.prev.next, p.next.prev = p.next, p.prev
		p.prev, p.next = nil, nil
	}
}

// Snapshot is the connections of one listener: a gate like any other, but for what passes
// it.
type Snapshot struct {
	Listener string `json:"listener"`
	weir.Snapshot
	// PerAddress is the limit of one address, 0 if there is none, and Refused counts by
	// the setting that refused. Observed counts what limits in observe mode would have
	// refused, and let in.
	PerAddress int               `json:"per_address,omitempty"`
	Refused    map[string]uint64 `json:"refused"`
	Observed   map[string]uint64 `json:"observed,omitempty"`
	// Addresses are those known, at most MaxAddresses; Crowd are the connections of
	// others, which have the limits of one address together.
	Addresses    int `json:"addresses"`
	MaxAddresses int `json:"max_addresses"`
	Crowd        int `json:"crowd,omitempty"`
	// Evicted were closed while idle, for newcomers from addresses that had fewer.
	Evicted uint64 `json:"evicted"`
	// Handshakes counts those of TLS that failed, by reason; nil without TLS.
	Handshakes map[string]uint64 `json:"handshakes_failed,omitempty"`
}

// Snapshot returns what there is to see of the connections.
func (l *Listener) Snapshot() Snapshot {
	d := l.limiter
	d.mu.Lock()
	defer d.mu.Unlock()
	s := Snapshot{
		Listener: l.cfg.Address,
		Snapshot: weir.Snapshot{
			Name: d.limits.name, Kind: "connections", Mode: string(cmp.Or(d.limits.mode, policy.Enforce)),
			Limit: int64(d.limits.open), InFlight: int64(d.open), Admitted: d.admitted,
			Rejected: make(map[weir.Reason]uint64),
		},
		PerAddress: d.limits.peerOpen, Refused: make(map[string]uint64, numLimitKinds), Observed: make(map[string]uint64),
		Addresses: d.peers.len(), MaxAddresses: d.limits.peers, Crowd: d.peers.crowd.open, Evicted: d.evicted.Load(),
	}
	for k := noLimit + 1; k < numLimitKinds; k++ {
		s.Refused[k.String()] = d.refused[k]
		if d.limits.mode == policy.Observe || d.observed[k] > 0 {
			s.Observed[k.String()] = d.observed[k]
		}
		if d.refused[k] > 0 {
			s.Rejected[k.reason()] += d.refused[k]
		}
	}
	if l.tls != nil {
		s.Handshakes = l.failures.counts()
	}
	return s
}
