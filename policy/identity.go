package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
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
	certSource
	constSource
)

// source is a compiled source of an identity: a kind, and the header, wildcard,
// name in a certificate or constant it names.
type source struct {
	kind sourceKind
	key  string
}

// identity is a compiled IdentitySpec.
type identity struct {
	tenant, user, client, priority source

	// classes are the words for priorities that are understood.
	classes      map[string]weir.Priority
	trusted      []netip.Prefix
	trustedCerts []certPattern
	ignored      *ignored
}

// ignored counts what was sent and not understood. It is shared by the policies
// that follow each other.
type ignored struct{ priorities, timeouts, costs, settled, admissions, demoted atomic.Uint64 }

// Ignored counts what requests brought and was not understood.
type Ignored struct {
	// Priorities are words from trusted peers that are no priority. Timeouts are
	// requests with a value for one of the headers of [DeadlineSpec] that is no
	// time. Costs are requests from trusted peers, and Settled answers, that say what
	// they cost in other words than a whole number, and Admissions readings of such a
	// count of admissions.
	Priorities, Timeouts, Costs, Settled, Admissions uint64
}

// Ignored returns what was not understood so far, also under the policies that
// this one has followed.
func (p *Policy) Ignored() Ignored {
	i := p.identity.ignored
	return Ignored{
		Priorities: i.priorities.Load(), Timeouts: i.timeouts.Load(),
		Costs: i.costs.Load(), Settled: i.settled.Load(), Admissions: i.admissions.Load(),
	}
}

func (id *identity) sources() [4]source {
	return [4]source{id.tenant, id.user, id.client, id.priority}
}

// asker is a request as far as sources look at it.
type asker struct {
	request *http.Request
	match   *match
	peer    netip.Addr
	trusted bool
}

// fill sets the identity of w, and reports whether the peer is trusted.
func (id *identity) fill(w *weir.Work, r *http.Request, m *match) bool {
	a := asker{request: r, match: m, peer: peerAddr(r.RemoteAddr)}
	a.trusted = id.trusts(a.peer) || len(id.trustedCerts) > 0 && id.trustsCert(certificateOf(r))
	w.Tenant = id.read(id.tenant, &a)
	w.User = id.read(id.user, &a)
	w.Client = id.read(id.client, &a)
	if w.User == "" && !(a.trusted && (id.user.claimed() || id.tenant.claimed())) {
		if origin, named := id.originOf(&a); named {
			w.User = a.name(origin)
		}
	}
	if id.priority.kind != noSource {
		if p, ok := id.classOf(&a); ok {
			w.Priority = p
		}
	}
	return a.trusted
}

// claimed reports whether the source is what a peer says in a header.
func (s source) claimed() bool { return s.kind == headerSource || s.kind == hostSource }

// longestWord bounds the words for priorities.
const longestWord = 64

// classOf returns the priority that a request brings, false if it brings none
// that is trusted and understood. What a trusted peer sends and is not understood
// is counted.
func (id *identity) classOf(a *asker) (weir.Priority, bool) {
	switch s := id.priority; {
	case s.kind == constSource:
		return id.parseClass(s.key)
	case !a.trusted:
		return 0, false
	case s.kind == hostSource:
		return id.parseClass(hostname(a.request.Host))
	default:
		values := a.request.Header[s.key]
		p, ok := id.parseClass(single(values))
		if !ok && len(values) > 0 && strings.TrimSpace(values[0]) != "" {
			id.ignored.priorities.Add(1)
		}
		return p, ok
	}
}

func (id *identity) parseClass(word string) (weir.Priority, bool) {
	if len(word) > longestWord {
		return 0, false
	}
	p, ok := id.classes[strings.ToLower(word)]
	return p, ok
}

func (id *identity) trusts(peer netip.Addr) bool {
	for _, network := range id.trusted {
		if network.Contains(peer) {
			return true
		}
	}
	return false
}

func (id *identity) read(s source, a *asker) string {
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
	case certSource:
		if cert := certificateOf(a.request); cert != nil {
			return bounded(certName(cert, s.key))
		}
	case peerSource:
		origin, _ := id.originOf(a)
		return a.name(origin)
	}
	return ""
}

// name is what the address that a request comes from is called.
func (a *asker) name(origin netip.Addr) string {
	if origin == a.peer {
		return peerName(origin, a.request.RemoteAddr)
	}
	return peerName(origin, "")
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
