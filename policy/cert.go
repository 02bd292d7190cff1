package policy

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/weir-go/weir/internal/fault"
)

// certNames are what a source, or one of IdentitySpec.TrustedCerts, can name of a
// client certificate. They are those of Envoy's X-Forwarded-Client-Cert in lower
// case, and cn.
var certNames = []string{"uri", "dns", "subject", "cn", "hash"}

// certificateOf returns the verified certificate of the peer, nil if there is none. A certificate
// that was sent but not verified proves nothing.
func certificateOf(r *http.Request) *x509.Certificate {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 || len(r.TLS.VerifiedChains[0]) == 0 {
		return nil
	}
	return r.TLS.VerifiedChains[0][0]
}

// namesIn returns what a certificate says under one of certNames.
func namesIn(cert *x509.Certificate, what string) []string {
	switch what {
	case "uri":
		uris := make([]string, len(cert.URIs))
		for i, u := range cert.URIs {
			uris[i] = u.String()
		}
		return uris
	case "dns":
		return cert.DNSNames
	case "subject":
		return []string{cert.Subject.String()}
	case "cn":
		return commonNames(cert)
	}
	if len(cert.Raw) == 0 { // a proxy has told its names only
		return nil
	}
	sum := sha256.Sum256(cert.Raw)
	return []string{hex.EncodeToString(sum[:])}
}

// commonNames returns all of them: cert.Subject.CommonName is the last.
func commonNames(cert *x509.Certificate) []string {
	var all []string
	for _, a := range cert.Subject.Names {
		if name, ok := a.Value.(string); ok && a.Type.String() == "2.5.4.3" {
			all = append(all, name)
		}
	}
	return all
}

// certName returns the name in a certificate, empty if there is none. The first DNS name counts.
// Several URIs or common names count as none. SPIFFE allows one URI, and programs do not agree
// which of several is the right one.
func certName(cert *x509.Certificate, what string) string {
	names := namesIn(cert, what)
	switch {
	case len(names) == 0 || what != "dns" && len(names) > 1:
		return ""
	case what == "dns":
		return strings.ToLower(names[0])
	}
	return names[0]
}

// certPattern says which certificates are trusted.
type certPattern struct {
	what string // one of certNames; empty: any
	name string
	part bool // name is only the beginning of a URI, or the end of a DNS name
}

// matches reports whether the certificate matches the pattern. Any DNS name of it may match; of
// other names there must be exactly one.
func (p *certPattern) matches(cert *x509.Certificate) bool {
	switch p.what {
	case "":
		return true
	case "dns":
		for _, name := range cert.DNSNames {
			if p.matchesName(strings.ToLower(name)) {
				return true
			}
		}
		return false
	}
	name := certName(cert, p.what)
	return name != "" && p.matchesName(name)
}

func (p *certPattern) matchesName(name string) bool {
	switch {
	case !p.part:
		return name == p.name
	case p.what == "dns": // the star stands for one label
		label, ok := strings.CutSuffix(name, p.name)
		return ok && label != "" && !strings.Contains(label, ".")
	}
	rest, ok := strings.CutPrefix(name, p.name)
	return ok && rest != "" && !leavesPath(rest)
}

// leavesPath reports whether the rest of a URI has a dot segment, plain or escaped. The star must
// match something below the path before it, but some programs read "edge/../cart" as "cart". SPIFFE
// forbids dot segments, but not every authority checks.
func leavesPath(rest string) bool {
	path, _, _ := strings.Cut(rest, "?")
	for segment := range strings.SplitSeq(path, "/") {
		switch strings.ReplaceAll(strings.ToLower(segment), "%2e", ".") {
		case ".", "..":
			return true
		}
	}
	return false
}

// trustsCert reports whether a verified certificate makes its peer trusted.
func (id *identity) trustsCert(cert *x509.Certificate) bool {
	if cert == nil {
		return false
	}
	for i := range id.trustedCerts {
		if id.trustedCerts[i].matches(cert) {
			return true
		}
	}
	return false
}

const certForms = "write cert:uri, cert:dns, cert:subject, cert:cn or cert:hash"

// checkCertSource compiles a source that is read from a client certificate.
func (c *compiler) checkCertSource(at fault.Path, name string) source {
	switch {
	case slices.Contains(certNames, name):
		return source{kind: certSource, key: name}
	case name == "san":
		c.Add(at, "a certificate has several kinds of alternative names", "write cert:uri for a SPIFFE ID or another URI, or cert:dns")
	case name == "":
		c.Add(at, "cert: does not say what to read", certForms)
	default:
		c.Add(at, fmt.Sprintf("a certificate has no %q", name), certForms)
	}
	return source{}
}

const certPatternForms = "write uri:spiffe://example.org/edge, dns:edge.example.org, subject:..., cn:..., hash:... or any"

// checkCertPattern compiles one of IdentitySpec.TrustedCerts.
func (c *compiler) checkCertPattern(at fault.Path, text string) (certPattern, bool) {
	what, name, colon := strings.Cut(text, ":")
	switch {
	case text == "any":
		return certPattern{}, true
	case !colon || !slices.Contains(certNames, what):
		c.Add(at, fmt.Sprintf("%.80q names no certificate", text), certPatternForms)
		return certPattern{}, false
	case name == "":
		c.Add(at, what+": names nobody", certPatternForms)
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
		c.Add(at, fmt.Sprintf("%.80q %s", text, problem), instead)
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
		return "is not a URI", "write a URI such as uri:spiffe://example.org/edge"
	case p.what == "hash" && !isHash(p.name):
		return "is not a SHA-256", "write 64 hexadecimal digits, as openssl x509 -fingerprint -sha256 prints them"
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
