package proxy

import (
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/weir-go/weir/policy"
)

// Sendable reports whether net/http can send a request on. Over HTTP/2, and in the URL of a request line, its server
// lets in methods and hosts that its client refuses to send. That would look like a fault of the target. It also lets in a
// space in the query, which would end the request line of HTTP/1.
func Sendable(r *http.Request) bool {
	host, err := httpguts.PunycodeHostPort(r.Host)
	return err == nil && httpguts.ValidHostHeader(host) && SendableMethod(r.Method) && !strings.Contains(r.URL.RawQuery, " ")
}

// SendableMethod reports whether a method can be sent on. Methods are matched by letter, and some servers take post
// for POST. So it would pass the gates of another route.
func SendableMethod(method string) bool {
	upper := strings.ToUpper(method)
	return httpguts.ValidHeaderFieldName(method) && (method == upper || !policy.KnownMethod(upper))
}

// SentHost returns the host of a request as net/http sends it on: names outside of ASCII in Punycode.
func SentHost(host string) string {
	sent, err := httpguts.PunycodeHostPort(host)
	if err != nil {
		return host // not Sendable
	}
	return sent
}

// upgradeOf returns the protocol that a header would switch to, empty if none.
func upgradeOf(h http.Header) string {
	if !httpguts.HeaderValuesContainsToken(h["Connection"], "Upgrade") {
		return ""
	}
	return h.Get("Upgrade")
}

// removeBypasses removes headers that would carry requests, or names, past the gateway. One is the
// upgrade to HTTP/2 without TLS: after it, a client could send anything on the connection. The
// others are trailers, because some servers read them as headers.
func removeBypasses(out *http.Request) {
	out.Header.Del("Http2-Settings")
	if strings.Contains(strings.ToLower(out.Header.Get("Upgrade")), "h2c") {
		out.Header.Del("Upgrade")
		out.Header.Del("Connection")
	}
	out.Trailer = nil
}

// setForwarded says where the request came from.
func (u *Upstream) setForwarded(pr *httputil.ProxyRequest) {
	if !u.policy.Trusted(pr.In) {
		pr.SetXForwarded()
		u.claims.Remove(pr.Out.Header)
		return
	}
	u.claims.removeDisguised(pr.Out.Header)
	copyHeader(pr, headerFor)
	copyHeader(pr, headerStd)
	pr.SetXForwarded()
	copyHeader(pr, headerHost)
	copyHeader(pr, headerProto)
}

// The headers that say where a request came from.
const (
	headerFor   = "X-Forwarded-For"
	headerHost  = "X-Forwarded-Host"
	headerProto = "X-Forwarded-Proto"
	headerStd   = "Forwarded"
)

// copyHeader copies a header of the incoming request, if it has it.
func copyHeader(pr *httputil.ProxyRequest, name string) {
	if v, ok := pr.In.Header[name]; ok {
		pr.Out.Header[name] = v
	}
}

// Claims are headers that count only from a trusted peer.
type Claims struct {
	exact []string
	alike map[string]bool // as CGI, WSGI and the like see them
}

// NewClaims returns the headers of names, and those that say where a request came from.
func NewClaims(names []string) Claims {
	c := Claims{alike: make(map[string]bool)}
	for _, name := range names {
		c.exact = append(c.exact, name, http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-")))
		c.alike[alike(name)] = true
	}
	for _, name := range []string{headerFor, headerHost, headerProto} { // with dashes they are rewritten
		c.alike[alike(name)] = true
	}
	return c
}

// certificateHeaders are the headers that TLS servers use for the certificates of clients. They
// come from RFC 9440 and from custom: Envoy's, and what nginx is usually configured to set.
var certificateHeaders = []string{
	"Client-Cert", "Client-Cert-Chain", "X-Forwarded-Client-Cert", "X-Client-Cert", "X-Ssl-Cert", "Ssl-Client-Cert",
	"X-Ssl-Client-Cert", "X-Ssl-Client-Verify", "X-Ssl-Client-S-Dn", "X-Ssl-Client-Dn", "X-Ssl-Client-Cn",
	"X-Client-Verify", "X-Client-Dn", "Ssl-Client-Verify", "Ssl-Client-S-Dn",
}

// Remove removes the claims from h, under every name.
func (c Claims) Remove(h http.Header) {
	for _, name := range c.exact {
		delete(h, name)
	}
	c.removeDisguised(h)
}

// removeDisguised removes headers that only look like claims to CGI, WSGI and other programs that
// read headers as variables. To them X-Tenant, X_Tenant and X.Tenant are all HTTP_X_TENANT. A proxy
// that sets one may have passed on another.
func (c Claims) removeDisguised(h http.Header) {
	for name := range h {
		if strings.ContainsFunc(name, separates) && !slices.Contains(c.exact, name) && c.alike[alike(name)] {
			delete(h, name)
		}
	}
}

// separates reports whether these programs read r as a dash.
func separates(r rune) bool {
	return r != '-' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
}

// alike returns the same for headers that they cannot tell apart.
func alike(name string) string {
	return strings.ToLower(strings.Map(func(r rune) rune {
		if separates(r) {
			return '-'
		}
		return r
	}, name))
}
