package policy

import (
	"fmt"
	"slices"
	"strings"
)

const certForms = "write cert:uri, cert:dns, cert:subject, cert:cn or cert:hash"

// checkCertSource compiles a source that is read from a client certificate.
func (c *compiler) checkCertSource(at place, name string) source {
	switch {
	case slices.Contains(certNames, name):
		return source{certSource, name}
	case name == "san":
		c.add(at, "a certificate has several kinds of alternative names", "write cert:uri for a SPIFFE ID or another URI, or cert:dns")
	case name == "":
		c.add(at, "cert: does not say what to read", certForms)
	default:
		c.add(at, fmt.Sprintf("a certificate has no %q", name), certForms)
	}
	return source{}
}

const certPatternForms = "write uri:spiffe://example.org/edge, dns:edge.example.org, subject:..., cn:..., hash:... or any"

// checkCertPattern compiles one of IdentitySpec.TrustedCerts.
func (c *compiler) checkCertPattern(at place, text string) (certPattern, bool) {
	what, name, colon := strings.Cut(text, ":")
	switch {
	case text == "any":
		return certPattern{}, true
	case !colon || !slices.Contains(certNames, what):
		c.add(at, fmt.Sprintf("%.80q names no certificate", text), certPatternForms)
		return certPattern{}, false
	case name == "":
		c.add(at, what+": names nobody", certPatternForms)
		return certPattern{}, false
	}
	p := certPattern{what: what, name: name}
	switch what {
	case "dns":
		p.name = strings.ToLower(name)
		if rest, ok := strings.CutPrefix(p.name, "*"); ok {
			p.name, p.part = rest, true
		}
	case "uri":
		p.name, p.part = strings.CutSuffix(name, "*")
	case "hash":
		p.name = strings.ToLower(strings.ReplaceAll(name, ":", ""))
	}
	problem, instead := p.fault()
	if problem != "" {
		c.add(at, fmt.Sprintf("%.80q %s", text, problem), instead)
	}
	return p, problem == ""
}

// fault says what is wrong with a pattern that is right in form.
func (p *certPattern) fault() (problem, instead string) {
	switch {
	case p.what == "dns" && (strings.Contains(p.name, "*") || p.part && (len(p.name) < 2 || p.name[0] != '.')):
		return "has a star that does not stand for the first label", "write a name such as dns:edge.example.org, or dns:*.example.org"
	case p.what == "uri" && strings.Contains(p.name, "*"):
		return "has a star that is not at its end", "write a URI, or the beginning of one and a star: uri:spiffe://example.org/edge/*"
	case p.what == "uri" && p.part && !wholeAuthority(p.name):
		return "could be continued to another domain",
			"write the slash after the domain: uri:spiffe://example.org/*"
	case p.what == "uri" && !strings.Contains(p.name, ":"):
		return "is no URI", "write a URI such as uri:spiffe://example.org/edge"
	case p.what == "hash" && !isHash(p.name):
		return "is no SHA-256", "write 64 hexadecimal digits, as openssl x509 -fingerprint -sha256 prints them"
	}
	return "", ""
}

// wholeAuthority reports whether the beginning of a URI reaches beyond its scheme
// and domain.
func wholeAuthority(prefix string) bool {
	_, rest, ok := strings.Cut(prefix, "://")
	if !ok { // a URN has none
		_, rest, ok = strings.Cut(prefix, ":")
		return ok && rest != ""
	}
	domain, _, slash := strings.Cut(rest, "/")
	return slash && domain != ""
}

func isHash(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}
