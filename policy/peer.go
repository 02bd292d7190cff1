package policy

import (
	"net/netip"
	"strings"
)

// forwardedFor says where a request came from before its peer passed it on. Each
// proxy adds the address of its own peer at the end.
const forwardedFor = "X-Forwarded-For"

// mostHops bounds how many proxies are followed back.
const mostHops = 32

// TrustsNetwork reports whether addr is in one of the networks whose headers are
// believed.
func (p *Policy) TrustsNetwork(addr netip.Addr) bool {
	return p.identity.trusts(addr.Unmap().WithZone(""))
}

// originOf returns the address that a request comes from as far as trust reaches:
// the peer's, or behind trusted peers the rightmost address in X-Forwarded-For
// that is not trusted itself. What stands to the left of that one was written by
// nobody who is trusted. Where everybody is trusted it is the first of them, and
// what is no address ends the way back at whoever wrote it. named is false if only
// trusted addresses were met: they pass on what others ask.
func (id *identity) originOf(a *asker) (origin netip.Addr, named bool) {
	peer := a.peer
	if !a.trusted {
		return peer, peer.IsValid()
	}
	lines := a.request.Header[forwardedFor]
	hops := 0
	for i := len(lines) - 1; i >= 0; i-- {
		for rest, more := lines[i], true; more; {
			var entry string
			if rest, entry, more = cutLast(rest); hops == mostHops {
				return peer, false
			}
			hops++
			addr := peerAddr(unbracketed(strings.TrimSpace(entry)))
			switch {
			case !addr.IsValid():
				return peer, false
			case !id.trusts(addr):
				return addr, true
			}
			peer = addr
		}
	}
	return peer, false
}

// cutLast splits a list at its last comma.
func cutLast(list string) (rest, entry string, more bool) {
	if i := strings.LastIndexByte(list, ','); i >= 0 {
		return list[:i], list[i+1:], true
	}
	return "", list, false
}

// unbracketed takes the brackets from an IPv6 address without a port.
func unbracketed(s string) string {
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		return s[1 : len(s)-1]
	}
	return s
}

// peerAddr returns the address in a request's RemoteAddr, with or without a
// port; the zero Addr if there is none, as on a Unix socket.
func peerAddr(remote string) netip.Addr {
	if ap, err := netip.ParseAddrPort(remote); err == nil {
		return ap.Addr().Unmap().WithZone("")
	}
	addr, err := netip.ParseAddr(remote)
	if err != nil {
		return netip.Addr{}
	}
	return addr.Unmap().WithZone("")
}

// peerBits is how much of an IPv6 address names a peer: a host, or a whole
// home, is given a /64, and could otherwise be 2^64 peers.
const peerBits = 64

// peerName returns what an address is called: itself if it is IPv4, or the /64
// network of an IPv6 address. remote is the text it may have been read from.
func peerName(addr netip.Addr, remote string) string {
	switch {
	case addr.Is4():
		// There is one way to write an IPv4 address: no need for a copy if it is
		// the one in remote. An IPv6 form of it has a colon before its first dot.
		if head, _, _ := strings.Cut(remote, ":"); strings.Contains(head, ".") {
			return head
		}
		return addr.String()
	case addr.Is6():
		return netip.PrefixFrom(addr, peerBits).Masked().String()
	}
	return ""
}
