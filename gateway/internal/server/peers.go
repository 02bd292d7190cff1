package server

import (
	"net/netip"
	"time"
)

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
