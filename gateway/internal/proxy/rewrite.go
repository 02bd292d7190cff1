package proxy

import (
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
)

// forwarded are the headers that say where a request came from.
const (
	headerFor   = "X-Forwarded-For"
	headerHost  = "X-Forwarded-Host"
	headerProto = "X-Forwarded-Proto"
	headerStd   = "Forwarded"
)

// rewrite makes the outgoing request of the incoming one. ReverseProxy has removed the
// hop-by-hop headers, and those in which the client says where it comes from. Those of a
// trusted peer are put back, with that peer added. What the policy has decided comes last.
func (u *Upstream) rewrite(pr *httputil.ProxyRequest) {
	x := pr.In.Context().Value(exchangeKey{}).(*exchange)
	if len(u.seats) > 1 {
		x.url = pr.Out.URL
		pr.Out.URL = x.seat.address(x.url)
	} else {
		x.seat.direct(pr.Out.URL) // which is a copy already
	}
	u.setForwarded(pr)
	removeBypasses(pr.Out)
	u.policy.Forward(pr.Out.Header, x.in, &x.call.Work, x.call.Arrived)
}

// removeBypasses removes what would carry requests, or names, past the gateway: the upgrade to
// HTTP/2 without TLS, after which a client could send whatever it likes on the connection,
// and trailers, which some servers take for headers.
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
		u.claims.remove(pr.Out.Header)
		return
	}
	u.claims.unmask(pr.Out.Header)
	copyHeader(pr, headerFor)
	copyHeader(pr, headerStd)
	pr.SetXForwarded()
	copyHeader(pr, headerHost)
	copyHeader(pr, headerProto)
}

// claims are headers that only a trusted peer is believed.
type claims struct {
	exact []string
	alike map[string]bool // as CGI, WSGI and the like see them
}

// newClaims returns the headers of names, and those that say where a request came from.
func newClaims(names []string) claims {
	c := claims{alike: make(map[string]bool)}
	for _, name := range names {
		c.exact = append(c.exact, name, http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-")))
		c.alike[alike(name)] = true
	}
	for _, name := range []string{headerFor, headerHost, headerProto} { // with dashes they are rewritten
		c.alike[alike(name)] = true
	}
	return c
}

// certificateHeaders are those in which TLS servers tell what clients have shown, by RFC
// 9440 and by custom: Envoy's, and what nginx is usually told to set.
var certificateHeaders = []string{
	"Client-Cert", "Client-Cert-Chain", "X-Forwarded-Client-Cert", "X-Client-Cert", "X-Ssl-Cert", "Ssl-Client-Cert",
	"X-Ssl-Client-Cert", "X-Ssl-Client-Verify", "X-Ssl-Client-S-Dn", "X-Ssl-Client-Dn", "X-Ssl-Client-Cn",
	"X-Client-Verify", "X-Client-Dn", "Ssl-Client-Verify", "Ssl-Client-S-Dn",
}

// remove removes the claims from h, under every name.
func (c claims) remove(h http.Header) {
	for _, name := range c.exact {
		delete(h, name)
	}
	c.unmask(h)
}

// unmask removes headers that are claims only to programs that read headers as variables, as
// CGI and WSGI do: to them X-Tenant, X_Tenant and X.Tenant are all HTTP_X_TENANT. A proxy
// that sets the one may have passed on the other.
func (c claims) unmask(h http.Header) {
	for name := range h {
		if strings.ContainsFunc(name, separates) && !slices.Contains(c.exact, name) && c.alike[alike(name)] {
			delete(h, name)
		}
	}
}

// separates reports whether such programs read r as a dash.
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

// copyHeader copies a header of the incoming request, if it has it.
func copyHeader(pr *httputil.ProxyRequest, name string) {
	if v, ok := pr.In.Header[name]; ok {
		pr.Out.Header[name] = v
	}
}
