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

// limiter decides which connections a listener accepts. It bounds open connections, and new connections a
// second, in total and for each address. It is a state machine with explicit time, as a gate is. A connection
// counts from before the TLS handshake until its end, whatever the client does.
//
// Successive listeners at one address share a limiter, so a reload loses no counts.
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
	peerOpen int         // connections of one address at once
	rate     float64     // new ones a second; the burst is as large, but at least one
	peerRate float64     // of one address
	peers    int         // addresses known at a time
	mode     policy.Mode // of all limits but open; empty means enforce
	exempt   func(netip.Addr) bool
}

// leastRequests is how many requests a listener admits at a time, however few connections it may have. Over
// HTTP/2 one connection brings many requests.
const leastRequests = 1000

// limitsOf are the limits on connections of a listener. By default the addresses that trusted reports are
// exempt from the limits for one address, because they forward many clients.
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

// byPeer reports whether there are limits for each address.
func (l *limits) byPeer() bool { return l.peerOpen > 0 || l.peerRate > 0 }

// limitKind is which limit refuses a connection.
type limitKind uint8

const (
	noLimit limitKind = iota // the connection is accepted
	limitOpen
	limitPeerOpen
	limitRate
	limitPeerRate
	// limitAddresses: the table of addresses is full, and all addresses outside the table have together used up
	// the limits of one address.
	limitAddresses
	numLimitKinds
)

// limitNames are the names in logs, metrics and answers: those of the settings.
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

// admit counts a connection from addr, or returns the limit that refuses it. Either all limits are charged or
// none is. Pass the peer to leave.
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

// check finds the peer at addr, and the limit that refuses it, if any. The common limits come last, so that an
// address that its own limit refuses uses no tokens of others.
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

// observe admits a connection that a limit in observe mode would refuse, and counts it. The connection belongs
// to no peer, so the limits go on as if it had been refused. If another limit refuses the connection all the
// same, observe returns that limit.
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

// greediest returns the index of the connection whose address has most connections. It returns -1 if no address
// has at least two more than addr.
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

// configure changes the limits. Connections stay. Tokens stay up to the new bursts.
func (d *limiter) configure(l limits, now time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bucket.refill(d.limits.rate, now)
	d.set(l, now)
}

// set sets the limits. A bucket of a limit that did not exist before is full.
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

// rejections are the refusals, by limit. They are made when the limits are set, and shared, so that a flood of
// refusals allocates nothing.
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

// nextIn is the longest time until a bucket holds a token again.
func nextIn(rate float64) time.Duration {
	if rate <= 0 {
		return time.Second
	}
	return time.Duration(min(1/rate, 1e6) * float64(time.Second))
}

// bucket is a token bucket of new connections. Its burst is the tokens of one second, but at least one.
// Otherwise a rate below one a second would admit no connection.
type bucket struct {
	tokens float64
	at     time.Duration
}

func fullBucket(rate float64, now time.Duration) bucket { return bucket{burst(rate), now} }

func burst(rate float64) float64 { return max(rate, 1) }

// refill brings the bucket up to date and reports whether it holds a token. A clock that goes back adds
// nothing.
func (b *bucket) refill(rate float64, now time.Duration) bool {
	b.tokens = min(b.tokens+rate*max(now-b.at, 0).Seconds(), burst(rate))
	b.at = now
	return b.tokens >= 1-1e-9 // sums of fractions have rounding errors
}

// fillsIn is how long an empty bucket takes to fill.
func fillsIn(rate float64) time.Duration {
	if rate <= 0 {
		return 0
	}
	return time.Duration(min(burst(rate)/rate, 1e6) * float64(time.Second))
}

// peers are the addresses that a limiter knows. Such an address has connections, or its bucket is not yet full
// again. Only an address with a full bucket is evicted, so no address gains by it.
//
// The table is bounded. All addresses beyond the bound form one crowd, with the limits of one address. New
// clients look like a flood of addresses, and a flood must not get more than one address.
type peers struct {
	known map[netip.Addr]*peer
	crowd peer

	// idle is the head of the list of peers without a connection, in the order in which the last
	// one ended. Its next is the first, its prev the last.
	idle peer
	// fresh is used for an unknown address; activate puts a copy into the table.
	fresh peer
}

// peer is one address, or a /64 network of IPv6.
type peer struct {
	addr       netip.Addr
	open       int
	bucket     bucket
	idleSince  time.Duration
	prev, next *peer // in the list of idle peers; nil for others
}

func (ps *peers) init() {
	ps.known = make(map[netip.Addr]*peer)
	ps.idle.prev, ps.idle.next = &ps.idle, &ps.idle
}

func (ps *peers) len() int { return len(ps.known) }

// peerAt returns the peer at addr if it is known. Otherwise it returns a fresh peer; if its connection is
// admitted, pass the peer to activate. If the table is full, it returns the crowd.
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

// peerKey is the key of a peer: an IPv4 address, or the /64 network of an IPv6 address, which is what a host or
// a home gets.
func peerKey(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	if addr.Is6() {
		return netip.PrefixFrom(addr, 64).Masked().Addr()
	}
	return addr
}

// evict makes room in the table. For each newcomer it may evict two idle peers, so the addresses of a flood are
// soon evicted. The list is roughly in the order in which buckets become full.
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

// activate returns the peer in the table for a peer that has got a connection.
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

// unlink removes p from the list of idle peers, if it is there.
func (p *peer) unlink() {
	if p.next != nil {
		p.prev.next, p.next.prev = p.next, p.prev
		p.prev, p.next = nil, nil
	}
}

// Snapshot describes the connections of one listener. It is like that of a gate, but for connections instead of
// requests.
type Snapshot struct {
	Listener string `json:"listener"`
	weir.Snapshot
	// PerAddress is the limit of one address, 0 if there is none. Refused counts refusals by setting. Observed
	// counts connections that limits in observe mode would have refused.
	PerAddress int               `json:"per_address,omitempty"`
	Refused    map[string]uint64 `json:"refused"`
	Observed   map[string]uint64 `json:"observed,omitempty"`
	// Addresses is how many addresses are known, at most MaxAddresses. Crowd is how many connections other
	// addresses have; together these have the limits of one address.
	Addresses    int `json:"addresses"`
	MaxAddresses int `json:"max_addresses"`
	Crowd        int `json:"crowd,omitempty"`
	// Evicted counts idle connections that were closed for clients whose addresses had fewer.
	Evicted uint64 `json:"evicted"`
	// Handshakes counts TLS handshakes that failed, by reason; nil without TLS.
	Handshakes map[string]uint64 `json:"handshakes_failed,omitempty"`
	// CertificateExpires is when the listener's certificate does; zero without TLS.
	CertificateExpires time.Time `json:"certificate_expires,omitzero"`
}

// Snapshot returns the present state of the connections.
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
		s.CertificateExpires = l.tls.current.Load().cert.Leaf.NotAfter
	}
	return s
}
