package server

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
)

// door decides which connections a listener takes: so many at once and so many new ones
// a second, in all and from one address. It is a state machine with explicit time, as a
// gate is: who has been let in holds a place from before the TLS handshake to the end of
// the connection, however it spends that time.
//
// Listeners that follow each other at one address share a door, so a reload forgets
// nobody.
type door struct {
	mu     sync.Mutex
	limits doorLimits
	open   int
	bucket bucket
	peers  peers

	entered  uint64
	refused  [numDoorRules]uint64
	observed [numDoorRules]uint64

	epoch    time.Time
	said     atomic.Pointer[doorRejections]
	evicted  atomic.Uint64
	requests atomic.Int64 // most requests in progress: each takes memory before any gate has seen it
}

// doorLimits are those of a door. A zero means that there is no such limit.
type doorLimits struct {
	name     string      // of the gate in refusals
	open     int         // connections at once
	peerOpen int         // of one address
	rate     float64     // new ones a second; with as many, but at least one, at once
	peerRate float64     // of one address
	peers    int         // addresses known at a time
	mode     policy.Mode // of all but the first; empty: enforce
	exempt   func(netip.Addr) bool
}

// byPeer reports whether addresses are told apart.
func (l *doorLimits) byPeer() bool { return l.peerOpen > 0 || l.peerRate > 0 }

// doorRule is the limit that refuses a connection.
type doorRule uint8

const (
	doorOpen doorRule = iota // none: the connection is taken
	doorFull
	doorPeerFull
	doorRate
	doorPeerRate
	// doorCrowd: too many addresses are known to tell this one apart, and those that are
	// not told apart have used up what one address may.
	doorCrowd
	numDoorRules
)

// doorRules are their words in logs, metrics and answers: the settings.
var doorRules = [numDoorRules]string{
	"", "max_connections", "connections.per_address", "connections.rate", "connections.rate_per_address", "connections.addresses",
}

// String is the setting that the rule comes from.
func (r doorRule) String() string { return doorRules[r] }

func (r doorRule) reason() weir.Reason {
	if r == doorRate || r == doorPeerRate {
		return weir.ReasonQuota
	}
	return weir.ReasonLimit
}

// newDoor returns a door with full buckets.
func newDoor(l doorLimits) *door {
	d := &door{epoch: time.Now()}
	d.peers.init()
	d.set(l, 0)
	return d
}

// set sets the limits. A bucket that did not count so far is full.
func (d *door) set(l doorLimits, now time.Duration) {
	if d.limits.rate <= 0 {
		d.bucket = fullBucket(l.rate, now)
	}
	if d.limits.peerRate <= 0 {
		d.peers.crowd.bucket = fullBucket(l.peerRate, now)
	}
	d.limits = l
	d.said.Store(l.rejections())
	d.requests.Store(int64(max(l.open, leastRequests)))
}

// now is the time by the door's clock.
func (d *door) now() time.Duration { return time.Since(d.epoch) }

// configure changes the limits. Whoever is in stays in, and what tokens there are stay,
// as far as the new limits hold so many.
func (d *door) configure(l doorLimits, now time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bucket.refill(d.limits.rate, now)
	d.set(l, now)
}

// enter takes a place for a connection from addr, or says which limit refuses. Either
// all limits are charged or none is. The peer is what leave has to be told.
func (d *door) enter(addr netip.Addr, now time.Duration) (*peer, doorRule) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, rule := d.look(addr, now)
	if rule != doorOpen {
		return nil, rule
	}
	if d.limits.rate > 0 {
		d.bucket.tokens--
	}
	if p != nil {
		p = d.peers.hold(p)
		p.open++
		if d.limits.peerRate > 0 {
			p.bucket.tokens--
		}
	}
	d.open++
	d.entered++
	return p, doorOpen
}

// observe takes a place for a connection that a limit would refuse which only observes,
// and counts it; whoever holds the place is nobody in particular, so that the limits go
// on as if it had been refused. It says which limit refuses, if one does all the same.
func (d *door) observe(rule doorRule) doorRule {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch l := &d.limits; {
	case l.mode != policy.Observe:
		return rule
	case l.open > 0 && d.open >= l.open:
		return doorFull
	}
	d.observed[rule]++
	d.open++
	d.entered++
	return doorOpen
}

// refuse counts a connection that was refused for good.
func (d *door) refuse(rule doorRule) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refused[rule]++
}

// look finds who asks, and the limit that refuses it, if any does. The limit that all
// share comes last: who is refused for itself takes nothing from others.
func (d *door) look(addr netip.Addr, now time.Duration) (*peer, doorRule) {
	l := &d.limits
	if l.open > 0 && d.open >= l.open {
		return nil, doorFull
	}
	var p *peer
	if l.byPeer() && !(l.exempt != nil && l.exempt(addr)) {
		p = d.peers.find(addr, l, now)
		full, fast := doorPeerFull, doorPeerRate
		if p == &d.peers.crowd {
			full, fast = doorCrowd, doorCrowd
		}
		if l.peerOpen > 0 && p.open >= l.peerOpen {
			return p, full
		}
		if l.peerRate > 0 && !p.bucket.refill(l.peerRate, now) {
			return p, fast
		}
	}
	if l.rate > 0 && !d.bucket.refill(l.rate, now) {
		return p, doorRate
	}
	return p, doorOpen
}

// leave gives a place back. p is nil for a connection of nobody in particular.
func (d *door) leave(p *peer, now time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open--
	if p != nil {
		p.open--
		d.peers.release(p, now)
	}
}

// doorSnapshot is a door at one moment.
type doorSnapshot struct {
	limits   doorLimits
	open     int
	peers    int // addresses known
	crowd    int // connections of addresses that are not told apart
	entered  uint64
	refused  [numDoorRules]uint64
	observed [numDoorRules]uint64
}

func (d *door) snapshot() doorSnapshot {
	d.mu.Lock()
	defer d.mu.Unlock()
	return doorSnapshot{d.limits, d.open, d.peers.len(), d.peers.crowd.open, d.entered, d.refused, d.observed}
}

// bucket holds the connections that may come at once. It fills at the rate, up to what
// comes in a second, but one at least: rates below one a second would let nobody in.
type bucket struct {
	tokens float64
	at     time.Duration
}

func fullBucket(rate float64, now time.Duration) bucket { return bucket{burst(rate), now} }

func burst(rate float64) float64 { return max(rate, 1) }

// refill brings the bucket up to date and reports whether it holds one. A clock that
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

// peers are the addresses that a door knows: those with connections, and those that
// have left so lately that their bucket is not full again. Nobody gains by being
// forgotten, because only who is as good as new is.
//
// There are at most so many. Further addresses are one crowd, which has the limits of
// one address: whoever floods the table with addresses gets no more than one, and
// strangers cannot be told from the flood.
type peers struct {
	known map[netip.Addr]*peer
	crowd peer

	// idle lists those without a connection, by when the last one ended.
	idle peer // its next is the first, its prev the last
	// fresh is lent to an address that is not known yet; hold makes it a peer.
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

// peerKey is what is told apart: an IPv4 address, or the /64 network that a host, or a
// whole home, is given of IPv6.
func peerKey(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	if addr.Is6() {
		return netip.PrefixFrom(addr, 64).Masked().Addr()
	}
	return addr
}

// find returns the peer at addr: a known one, a fresh one that hold has to be told of if
// it is let in, or the crowd if there is no place for another.
func (ps *peers) find(addr netip.Addr, l *doorLimits, now time.Duration) *peer {
	key := peerKey(addr)
	if p := ps.known[key]; p != nil {
		return p
	}
	ps.forget(l, now)
	if len(ps.known) >= l.peers {
		return &ps.crowd
	}
	ps.fresh = peer{addr: key, bucket: fullBucket(l.peerRate, now)}
	return &ps.fresh
}

// forget makes room: for each newcomer two may go, so what has come in a flood goes
// again. The list is in the order in which their buckets become full, or nearly.
func (ps *peers) forget(l *doorLimits, now time.Duration) {
	for range 2 {
		p := ps.idle.next
		if p == &ps.idle || now-p.idleSince < fillsIn(l.peerRate) {
			return
		}
		p.unlink()
		delete(ps.known, p.addr)
	}
}

// hold keeps a peer that has got a connection among those that are known and not idle.
func (ps *peers) hold(p *peer) *peer {
	if p == &ps.fresh {
		known := ps.fresh
		ps.known[known.addr] = &known
		return &known
	}
	p.unlink()
	return p
}

// release notes that a connection of p has ended.
func (ps *peers) release(p *peer, now time.Duration) {
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
