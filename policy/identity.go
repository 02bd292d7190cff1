package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/weir-go/weir"
)

// MaxIdentity is the longest identity in bytes that is used as it comes. A
// longer one, and one that is not UTF-8 or contains control characters, is
// replaced by "sha256:" and the hash of its bytes in hex: still one identity,
// but of bounded size and fit for logs and labels.
const MaxIdentity = 256

// sourceKind is where an identity comes from.
type sourceKind uint8

const (
	noSource sourceKind = iota
	headerSource
	hostSource // header:Host, which net/http keeps apart
	pathSource
	peerSource
	constSource
)

// source is a compiled source of an identity: a kind, and the header, wildcard
// or constant it names.
type source struct {
	kind sourceKind
	key  string
}

// identity is a compiled IdentitySpec.
type identity struct {
	tenant, user, client, priority source

	trusted []netip.Prefix
	// peers is true if the peer's address matters to any source.
	peers bool
}

func (id *identity) sources() [4]source {
	return [4]source{id.tenant, id.user, id.client, id.priority}
}

// prepare derives what is known before the first request.
func (id *identity) prepare() {
	for _, s := range id.sources() {
		if s.kind == headerSource || s.kind == hostSource || s.kind == peerSource {
			id.peers = true
		}
	}
}

// asker is a request as far as sources look at it.
type asker struct {
	request *http.Request
	match   *match
	peer    netip.Addr
	trusted bool
}

// fill sets the identity of w.
func (id *identity) fill(w *weir.Work, r *http.Request, m *match) {
	a := asker{request: r, match: m}
	if id.peers {
		a.peer = peerAddr(r.RemoteAddr)
		a.trusted = id.trusts(a.peer)
	}
	w.Tenant = id.tenant.read(&a)
	w.User = id.user.read(&a)
	w.Client = id.client.read(&a)
	if id.priority.kind != noSource {
		if p, ok := weir.ParsePriority(strings.ToLower(id.priority.read(&a))); ok {
			w.Priority = p
		}
	}
}

func (id *identity) trusts(peer netip.Addr) bool {
	for _, network := range id.trusted {
		if network.Contains(peer) {
			return true
		}
	}
	return false
}

func (s source) read(a *asker) string {
	switch s.kind {
	case constSource:
		return s.key
	case headerSource:
		if a.trusted {
			return bounded(single(a.request.Header[s.key]))
		}
	case hostSource:
		if a.trusted {
			return bounded(hostname(a.request.Host))
		}
	case pathSource:
		return bounded(a.match.value(s.key))
	case peerSource:
		return peerName(a.peer, a.request.RemoteAddr)
	}
	return ""
}

// single returns the value of a header that was sent once, or several times
// with the same value. Different values are nobody's word: a proxy that adds
// its own line without taking away the client's would let the client choose.
func single(values []string) string {
	if len(values) == 0 {
		return ""
	}
	for _, v := range values[1:] {
		if v != values[0] {
			return ""
		}
	}
	return strings.TrimSpace(values[0])
}

// bounded returns s, or its hash if s is not fit to be kept.
func bounded(s string) string {
	if len(s) <= MaxIdentity && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl) {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return "sha256:" + hex.EncodeToString(sum[:])
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

// peerName returns what a peer is called: an IPv4 address, or the /64 network of
// an IPv6 address.
func peerName(addr netip.Addr, remote string) string {
	switch {
	case addr.Is4():
		// There is one way to write an IPv4 address: no need for a copy. An
		// IPv6 form of it has a colon before its first dot.
		if head, _, _ := strings.Cut(remote, ":"); strings.Contains(head, ".") {
			return head
		}
		return addr.String()
	case addr.Is6():
		return netip.PrefixFrom(addr, peerBits).Masked().String()
	}
	return ""
}
