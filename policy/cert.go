package policy

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"net/http"
	"strings"
)

// certNames are what a source, or one of IdentitySpec.TrustedCerts, can name of a
// client certificate. They are those of Envoy's X-Forwarded-Client-Cert in lower
// case, and cn.
var certNames = []string{"uri", "dns", "subject", "cn", "hash"}

// certificateOf returns the certificate by which the peer has proved who it is,
// nil if it has not. Only what the TLS server has verified counts: a certificate
// that was merely sent proves nothing.
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

// certName returns whom a certificate names, empty if nobody. Of DNS names the
// first counts. Several URIs or common names are nobody's word: SPIFFE allows one
// URI, and programs differ on which of several is meant.
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

// matches reports whether the pattern holds for cert. A certificate is everybody
// whom its DNS names name, and whom any other kind names only if there is one.
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

// leavesPath reports whether the rest of a URI has a dot segment, plain or escaped:
// what the star stands for must lie below what is before it, and "edge/../cart" is
// "cart" to who reads URIs so. SPIFFE forbids them, but not every authority looks.
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

// trustsPeer reports whether the peer of a request is trusted, by its network or
// by its certificate.
func (id *identity) trustsPeer(r *http.Request) bool {
	return id.trusts(peerAddr(r.RemoteAddr)) || len(id.trustedCerts) > 0 && id.trustsCert(certificateOf(r))
}
