package policy

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-go/weir"
)

// sources are the words that a source begins with.
var sources = []string{"header:", "path:", "peer", "cert:", "const:"}

const sourceForms = "write header:NAME, path:NAME, peer, cert:NAME or const:VALUE"

// loopback is trusted where the spec does not say whom to trust.
var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

func (c *compiler) checkIdentity() identity {
	at := place{"identity"}
	spec := &c.spec.Identity
	id := identity{
		tenant:  c.checkSource(at.at("tenant"), spec.Tenant),
		user:    c.checkSource(at.at("user"), spec.User),
		client:  c.checkSource(at.at("client"), spec.Client),
		classes: c.checkPriorities(at.at("priorities"), spec.Priorities),
		trusted: loopback,
		ignored: new(ignored),
	}
	id.priority = c.checkPrioritySource(at.at("priority"), spec.Priority, id.classes)
	if prev := c.opts.Previous; prev != nil {
		id.ignored = prev.identity.ignored
	}
	if spec.Trusted != nil {
		id.trusted = nil
	}
	for i, network := range spec.Trusted {
		if p, ok := c.checkNetwork(at.at("trusted").index(i), network); ok {
			id.trusted = append(id.trusted, p)
		}
	}
	for i, text := range spec.TrustedCerts {
		if p, ok := c.checkCertPattern(at.at("trusted_certs").index(i), text); ok {
			id.trustedCerts = append(id.trustedCerts, p)
		}
	}
	return id
}

// mostWords bounds the words for priorities: a vocabulary, not a table of users.
const mostWords = 256

// checkPriorities returns the words that are understood as priorities: the four
// names, and those of the spec.
func (c *compiler) checkPriorities(at place, words map[string]string) map[string]weir.Priority {
	classes := make(map[string]weir.Priority, len(priorities)+len(words))
	for _, name := range priorities {
		classes[name], _ = weir.ParsePriority(name)
	}
	if len(words) > mostWords {
		c.add(at, fmt.Sprintf("%d words for priorities", len(words)), fmt.Sprintf("write at most %d", mostWords))
		return classes
	}
	seen := map[string]string{}
	for _, word := range slices.Sorted(maps.Keys(words)) {
		lower := strings.ToLower(word)
		p, ok := weir.ParsePriority(words[word])
		switch at := at.at(word); {
		case word == "" || strings.TrimSpace(word) != word || len(word) > longestWord || bounded(word) != word:
			c.add(at, fmt.Sprintf("%.80q is no word that a header could bring", word),
				fmt.Sprintf("write 1 to %d bytes of plain text", longestWord))
		case seen[lower] != "":
			c.add(at, fmt.Sprintf("%q is %q in other letters", word, seen[lower]), "write one of the two; upper and lower case are alike")
		case !ok:
			c.add(at, fmt.Sprintf("%q is no priority", words[word]), suggest(words[word], priorities, "priorities"))
		default:
			classes[lower] = p
		}
		seen[lower] = word
	}
	return classes
}

// checkSource compiles a source. Whether a wildcard exists is checked when the
// routes are known.
func (c *compiler) checkSource(at place, text string) source {
	word, value, colon := strings.Cut(text, ":")
	switch {
	case text == "":
		return source{}
	case text == "peer":
		return source{kind: peerSource}
	case !colon:
		c.add(at, fmt.Sprintf("%q is no source", text), sourceSuggestion(text))
		return source{}
	}
	switch word {
	case "header":
		return c.checkHeader(at, value)
	case "path":
		if value != "" {
			return source{pathSource, strings.TrimSuffix(strings.Trim(value, "{}"), "...")}
		}
		c.add(at, "path: names no wildcard", "write path:NAME, where a route's pattern has {NAME}")
	case "cert":
		return c.checkCertSource(at, value)
	case "const":
		if value == "" {
			c.add(at, "const: has no value", "write const:VALUE, or leave the field out")
		} else if bounded(value) != value {
			c.add(at, "the value of const: is too long or has characters that cannot be printed",
				fmt.Sprintf("write at most %d bytes of plain text", MaxIdentity))
		}
		return source{constSource, value}
	default:
		c.add(at, fmt.Sprintf("%q is no source", text), sourceSuggestion(word+":"))
	}
	return source{}
}

// sourceSuggestion says what to write instead of word, which is no source: the
// source that it nearly is, or header: before what can only be a header's name.
func sourceSuggestion(word string) string {
	if n := nearest(word, sources); n != "" {
		return "did you mean " + n + "? " + sourceForms
	}
	if strings.Contains(word, "-") && isToken(word) {
		return "did you mean header:" + word + "? " + sourceForms
	}
	return sourceForms
}

func (c *compiler) checkHeader(at place, name string) source {
	if !isToken(name) {
		c.add(at, fmt.Sprintf("%q is no header name", name), "write letters, digits and dashes, such as header:X-Tenant")
		return source{}
	}
	key := http.CanonicalHeaderKey(name)
	if key == "Host" {
		return source{kind: hostSource}
	}
	return source{headerSource, key}
}

// isToken reports whether s is a token as RFC 9110 defines it.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"(),/:;<=>?@[\\]{}", r)
	})
}

// checkPrioritySource allows only sources that a client cannot choose: everybody
// would be critical.
func (c *compiler) checkPrioritySource(at place, text string, classes map[string]weir.Priority) source {
	before := len(c.faults)
	s := c.checkSource(at, text)
	if len(c.faults) > before {
		return s
	}
	switch s.kind {
	case pathSource:
		c.add(at, "a path is chosen by the client, and so would be its priority",
			"write header:NAME, which is believed only from trusted networks, or give the route a priority")
	case peerSource:
		c.add(at, "an address is no priority", "write header:NAME or const:VALUE")
	case certSource:
		c.add(at, "a certificate says who somebody is, not how important the work is",
			"write header:NAME, and the certificates that are believed under trusted_certs")
	case constSource:
		if _, ok := classes[strings.ToLower(s.key)]; !ok {
			c.add(at, fmt.Sprintf("%q is no priority", s.key), suggest(s.key, slices.Sorted(maps.Keys(classes)), "priorities"))
		}
	}
	return s
}

func (c *compiler) checkNetwork(at place, text string) (netip.Prefix, bool) {
	p, problem, instead := parseNetwork(text)
	if problem != "" {
		c.add(at, problem, instead)
	}
	return p, problem == ""
}

// ParseNetwork reads a network in CIDR notation, as IdentitySpec.Trusted has them:
// 10.0.0.0/8, fd00::/8, 192.0.2.1/32. The error says what is wrong and, after a
// semicolon, what to write.
func ParseNetwork(text string) (netip.Prefix, error) {
	p, problem, instead := parseNetwork(text)
	if problem != "" {
		return p, errors.New(problem + "; " + instead)
	}
	return p, nil
}

func parseNetwork(text string) (p netip.Prefix, problem, instead string) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		instead := "write a network such as 10.0.0.0/8 or fd00::/8"
		if addr, err := netip.ParseAddr(text); err == nil {
			addr = addr.Unmap().WithZone("")
			instead = fmt.Sprintf("write %v/%d", addr, addr.BitLen())
		}
		return p, fmt.Sprintf("%q is no network in CIDR notation", text), instead
	}
	switch {
	case p.Addr().Is4In6():
		return p, fmt.Sprintf("%s is an IPv4 network in IPv6 form", text), "write it as an IPv4 network"
	case p.Masked() != p:
		return p, fmt.Sprintf("%s has bits set beyond its %d", text, p.Bits()),
			fmt.Sprintf("write %v, or %v/%d for the one address", p.Masked(), p.Addr(), p.Addr().BitLen())
	}
	return p, "", ""
}
