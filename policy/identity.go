package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"unicode"
	"unicode/utf8"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/fault"
)

// MaxIdentity is the longest identity in bytes that is used unchanged. A longer one is replaced by
// "sha256:" and the hash of its bytes in hex. So is one that is not UTF-8 or contains control
// characters. It is still one identity, but of bounded size and fit for logs and labels.
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
	kind  sourceKind
	key   string
	lower string // of a header
}

// header returns the name of the header that the source is.
func (s *source) header() HeaderName { return HeaderName{s.key, s.lower} }

// identity is a compiled IdentitySpec.
type identity struct {
	tenant, user, client, priority source

	// classes are the words for priorities that are understood.
	classes      map[string]weir.Priority
	trusted      []netip.Prefix
	trustedCerts []certPattern
	ignored      *ignored
}

// ignored counts values that were sent and not understood. The policies that replace each other
// share it.
type ignored struct{ priorities, timeouts, costs, settled, admissions, demoted atomic.Uint64 }

// Ignored counts what requests brought and was not understood.
type Ignored struct {
	// Priorities counts words from trusted peers that are no priority. Timeouts counts requests
	// with a value that is no time in a header of [DeadlineSpec]. Costs counts requests from
	// trusted peers, and Settled answers, with a cost that is not a whole number. Admissions counts
	// readings of a number of admissions that is not a whole number.
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

// headers are those that say an identity.
func (id *identity) headers() (names []string) {
	for _, s := range id.sources() {
		if s.kind == headerSource {
			names = append(names, s.key)
		}
	}
	return names
}

// readsHost reports whether an identity is the host of the request.
func (id *identity) readsHost() bool {
	for _, s := range id.sources() {
		if s.kind == hostSource {
			return true
		}
	}
	return false
}

// asker is the part of a request that sources read.
type asker struct {
	*View
	match   *match
	trusted bool
}

// readInto sets the identity of w, and reports whether the peer is trusted.
func (id *identity) readInto(w *weir.Work, v *View, m *match) bool {
	a := asker{View: v, match: m, trusted: id.trustsPeer(v)}
	w.Tenant = id.read(&id.tenant, &a)
	w.User = id.read(&id.user, &a)
	w.Client = id.read(&id.client, &a)
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

// trustsPeer reports whether the peer of a request is trusted, by its network or by its
// certificate.
func (id *identity) trustsPeer(v *View) bool {
	return id.trusts(v.Peer) || len(id.trustedCerts) > 0 && id.trustsCert(v.Certificate)
}

// claimed reports whether a peer says the identity in a header.
func (s *source) claimed() bool { return s.kind == headerSource || s.kind == hostSource }

// longestWord bounds the words for priorities.
const longestWord = 64

// classOf returns the priority that a request brings. It reports false if there is none that is
// trusted and known. Unknown words from trusted peers are counted.
func (id *identity) classOf(a *asker) (weir.Priority, bool) {
	switch s := &id.priority; {
	case s.kind == constSource:
		return id.parseClass(s.key)
	case !a.trusted:
		return 0, false
	case s.kind == hostSource:
		return id.parseClass(hostname(a.Header.Host()))
	default:
		values := a.Header.Values(s.header())
		p, ok := id.parseClass(single(values))
		if !ok && len(values) > 0 && strings.TrimSpace(values[0]) != "" {
			id.ignored.priorities.Add(1)
		}
		return p, ok
	}
}

func (id *identity) parseClass(word string) (weir.Priority, bool) {
	if word == "" || len(word) > longestWord {
		return 0, false
	}
	p, ok := id.classes[word]
	if !ok {
		p, ok = id.classes[strings.ToLower(word)]
	}
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

func (id *identity) read(s *source, a *asker) string {
	switch s.kind {
	case constSource:
		return s.key
	case headerSource:
		if a.trusted {
			return bounded(single(a.Header.Values(s.header())))
		}
	case hostSource:
		if a.trusted {
			return bounded(hostname(a.Header.Host()))
		}
	case pathSource:
		return bounded(a.match.value(s.key))
	case certSource:
		if cert := a.Certificate; cert != nil {
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
	if origin == a.Peer {
		return peerName(origin, a.remote)
	}
	return peerName(origin, "")
}

// single returns the value of a header that was sent once, or several times with the same value.
// Different values count as none: a proxy that adds its own line without removing the client's would
// let the client choose.
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

// bounded returns s, or its hash if s is too long or cannot be printed.
func bounded(s string) string {
	if len(s) <= MaxIdentity && (isPrintable(s) || utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)) {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// isPrintable reports whether s is printable ASCII, as nearly every name is.
func isPrintable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// forwardedFor says where a request came from before its peer passed it on. Each
// proxy adds the address of its own peer at the end.
var forwardedFor = NewHeaderName("X-Forwarded-For")

// mostHops bounds how many proxies are followed back.
const mostHops = 32

// TrustsNetwork reports whether addr is in one of the trusted networks.
func (p *Policy) TrustsNetwork(addr netip.Addr) bool {
	return p.identity.trusts(addr.Unmap().WithZone(""))
}

// Origin returns the address that a request comes from, as the source address has it: behind trusted
// peers the one in X-Forwarded-For. It is for logs, and invalid where the request has no address.
func (p *Policy) Origin(r *http.Request) netip.Addr {
	v := ViewHTTP(r)
	origin, _ := p.identity.originOf(&asker{View: &v, trusted: p.identity.trustsPeer(&v)})
	return origin
}

// originOf returns the address that a request comes from. That is the peer's address, or behind
// trusted peers the rightmost untrusted address in X-Forwarded-For. No trusted peer wrote what
// stands to the left of it. If all addresses are trusted, it is the first one. An entry that is no
// address ends the search at the peer that wrote it. named is false if only trusted addresses were
// found: they pass on what others ask.
func (id *identity) originOf(a *asker) (origin netip.Addr, named bool) {
	peer := a.Peer
	if !a.trusted {
		return peer, peer.IsValid()
	}
	lines := a.Header.Values(forwardedFor)
	hops := 0
	for i := len(lines) - 1; i >= 0; i-- {
		for rest, more := lines[i], true; more; {
			var entry string
			if rest, entry, more = cutLast(rest); hops == mostHops {
				return peer, false
			}
			hops++
			addr := ParsePeer(unbracketed(strings.TrimSpace(entry)))
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

// peerBits is the part of an IPv6 address that names a peer. A host, or a whole home, has a /64 and
// could otherwise be 2^64 peers.
const peerBits = 64

// peerName returns the name of an address: itself if it is IPv4, else its /64 network. remote is the
// text that it may have been read from.
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

// PeerName returns the name that the identity of a request gets from an address: itself if
// it is IPv4, else its /64 network. What is no address is returned as it is.
func PeerName(address string) string {
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return address
	}
	return peerName(addr.Unmap().WithZone(""), address)
}

// sources are the words that a source begins with.
var sources = []string{"header:", "path:", "address", "cert:", "const:"}

const (
	sourceForms   = "write header:NAME, path:NAME, address, cert:NAME or const:VALUE"
	priorityForms = "write header:NAME or const:VALUE"
)

// isAddress reports whether a source is the address that a request comes from. The second word
// is the one of earlier versions.
func isAddress(source string) bool { return source == "address" || source == "peer" }

// loopback is trusted if the spec names no networks.
var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

func (c *compiler) checkIdentity() identity {
	at := fault.Path{"identity"}
	spec := &c.spec.Identity
	id := identity{
		tenant:  c.checkSource(at.At("tenant"), spec.Tenant, sourceForms),
		user:    c.checkSource(at.At("user"), spec.User, sourceForms),
		client:  c.checkSource(at.At("client"), spec.Client, sourceForms),
		classes: c.checkPriorities(at.At("priorities"), spec.Priorities),
		trusted: loopback,
		ignored: new(ignored),
	}
	id.priority = c.checkPrioritySource(at.At("priority"), spec.Priority, id.classes)
	if prev := c.opts.Previous; prev != nil {
		id.ignored = prev.identity.ignored
	}
	if spec.Trusted != nil {
		id.trusted = nil
	}
	for i, network := range spec.Trusted {
		if p, ok := c.checkNetwork(at.At("trusted_proxies").Index(i), network); ok {
			id.trusted = append(id.trusted, p)
		}
	}
	for i, text := range spec.TrustedCerts {
		if p, ok := c.checkCertPattern(at.At("trusted_certs").Index(i), text); ok {
			id.trustedCerts = append(id.trustedCerts, p)
		}
	}
	return id
}

// mostWords bounds the words for priorities: a vocabulary, not a table of users.
const mostWords = 256

// checkPriorities returns the words that are understood as priorities: the four
// names, and those of the spec.
func (c *compiler) checkPriorities(at fault.Path, words map[string]string) map[string]weir.Priority {
	classes := make(map[string]weir.Priority, len(priorities)+len(words))
	for _, name := range priorities {
		classes[name], _ = weir.ParsePriority(name)
	}
	if len(words) > mostWords {
		c.Add(at, fmt.Sprintf("%d words for priorities", len(words)), fmt.Sprintf("write at most %d", mostWords))
		return classes
	}
	seen := map[string]string{}
	for _, word := range slices.Sorted(maps.Keys(words)) {
		lower := strings.ToLower(word)
		p, ok := weir.ParsePriority(words[word])
		switch at := at.At(word); {
		case word == "" || strings.TrimSpace(word) != word || len(word) > longestWord || bounded(word) != word:
			c.Add(at, fmt.Sprintf("%.80q is not a word that a header could bring", word),
				fmt.Sprintf("write 1 to %d bytes of plain text", longestWord))
		case seen[lower] != "":
			c.Add(at, fmt.Sprintf("%q is %q in other letters", word, seen[lower]), "write one of the two; upper and lower case are alike")
		case !ok:
			c.Add(at, fmt.Sprintf("%q is not a priority", words[word]), fault.Suggest(words[word], priorities, "priorities"))
		default:
			classes[lower] = p
		}
		seen[lower] = word
	}
	return classes
}

// checkSource compiles a source. Whether a wildcard exists is checked when the
// routes are known. forms says what may be written.
func (c *compiler) checkSource(at fault.Path, text, forms string) source {
	word, value, colon := strings.Cut(text, ":")
	switch {
	case text == "":
		return source{}
	case isAddress(text):
		return source{kind: peerSource}
	case !colon:
		c.Add(at, fmt.Sprintf("%q is not a source", text), sourceSuggestion(text, forms))
		return source{}
	}
	switch word {
	case "header":
		return c.checkHeader(at, value)
	case "path":
		if value != "" {
			return source{kind: pathSource, key: strings.TrimSuffix(strings.Trim(value, "{}"), "...")}
		}
		c.Add(at, "path: names no wildcard", "write path:NAME, where a route's pattern has {NAME}")
	case "cert":
		return c.checkCertSource(at, value)
	case "const":
		if value == "" {
			c.Add(at, "const: has no value", "write const:VALUE, or leave the field out")
		} else if bounded(value) != value {
			c.Add(at, "the value of const: is too long or has characters that cannot be printed",
				fmt.Sprintf("write at most %d bytes of plain text", MaxIdentity))
		}
		return source{kind: constSource, key: value}
	default:
		if meant := sourceMeant(text); meant != "" {
			c.Add(at, fmt.Sprintf("%q is not a source", text), "write "+meant)
			return source{}
		}
		c.Add(at, fmt.Sprintf("%q is not a source", text), sourceSuggestion(word+":", forms))
	}
	return source{}
}

// foreignSources are sources of other products that only a proxy in front can read.
var foreignSources = []string{"jwt", "claim", "oidc", "cookie", "session", "token", "bearer", "basic", "query"}

// sourceSuggestion says what to write instead of word, which is no source. That is the nearest
// source, or header: and the word, if it can only be the name of a header. forms are all that there are.
func sourceSuggestion(word, forms string) string {
	if meant := sourceMeant(strings.TrimSuffix(word, ":")); meant != "" {
		return "write " + meant
	}
	if slices.Contains(foreignSources, strings.ToLower(strings.TrimSuffix(word, ":"))) {
		return "write header:NAME, such as header:X-User, and let the proxy in front set it"
	}
	if n := fault.Nearest(word, sources); n != "" {
		return "did you mean " + n + "? " + forms
	}
	if strings.Contains(word, "-") && isToken(word) {
		return "did you mean header:" + word + "? " + forms
	}
	return forms
}

// foreignHeader is a header as other products name it: $http_x_user, {http.request.header.X-User},
// {header.X-User}, %REQ(X-User)%, hdr(X-User).
var foreignHeader = regexp.MustCompile(`(?i)^(?:\$http_([a-z0-9_]+)|\{(?:http\.request\.)?(?:header|>)\.?([A-Za-z0-9-]+)\}|%REQ\(([A-Za-z0-9-]+)\)%?|(?:req\.)?hdr\(([A-Za-z0-9-]+)\)|(?:req|request)\.headers?[.\[]"?'?([A-Za-z0-9-]+)"?'?\]?)$`)

// addresses are words of other products for the address that a request comes from.
var addresses = []string{
	"ip", "src", "peer", "addr", "remote_addr", "binary_remote_addr", "remote_ip", "remote_host", "client_ip", "source_ip", "remoteaddr", "clientip", "http.request.remote.host", "downstream_remote_address", "remote_address", "ipstrategy",
}

// sourceMeant returns the source that another product's word stands for, empty if it is none.
func sourceMeant(word string) string {
	if isForeignAddress(word) {
		return "address"
	}
	for i, m := range foreignHeader.FindStringSubmatch(word) {
		if i > 0 && m != "" {
			return "header:" + http.CanonicalHeaderKey(strings.ReplaceAll(m, "_", "-"))
		}
	}
	return ""
}

func isForeignAddress(word string) bool {
	return slices.Contains(addresses, strings.ToLower(strings.Trim(word, "${}% ")))
}

func (c *compiler) checkHeader(at fault.Path, name string) source {
	if !isToken(name) {
		c.Add(at, fmt.Sprintf("%q is not a header name", name), "write letters, digits and dashes, such as header:X-Tenant")
		return source{}
	}
	key := http.CanonicalHeaderKey(name)
	if key == "Host" {
		return source{kind: hostSource}
	}
	return source{headerSource, key, strings.ToLower(name)}
}

// isToken reports whether s is a token as RFC 9110 defines it.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"(),/:;<=>?@[\\]{}", r)
	})
}

// checkPrioritySource allows only sources that a client cannot choose: everybody
// would be critical.
func (c *compiler) checkPrioritySource(at fault.Path, text string, classes map[string]weir.Priority) source {
	before := c.Len()
	if _, ok := weir.ParsePriority(text); ok {
		c.Add(at, fmt.Sprintf("%q is not a source", text), "did you mean const:"+text+"? "+priorityForms)
		return source{}
	}
	s := c.checkSource(at, text, priorityForms)
	if c.Len() > before {
		return s
	}
	switch s.kind {
	case pathSource:
		c.Add(at, "a path is chosen by the client, and so would be its priority",
			"write header:NAME, or give the route a priority. A header is believed only from trusted networks")
	case peerSource:
		c.Add(at, "an address is not a priority", "write header:NAME or const:VALUE")
	case certSource:
		c.Add(at, "a certificate says who somebody is, not how important the work is",
			"write header:NAME, and the certificates that are believed under trusted_certs")
	case constSource:
		if _, ok := classes[strings.ToLower(s.key)]; !ok {
			c.Add(at, fmt.Sprintf("%q is not a priority", s.key), fault.Suggest(s.key, slices.Sorted(maps.Keys(classes)), "priorities"))
		}
	}
	return s
}

func (c *compiler) checkNetwork(at fault.Path, text string) (netip.Prefix, bool) {
	p, err := ParseNetwork(text)
	c.AddError(at, err)
	return p, err == nil
}
