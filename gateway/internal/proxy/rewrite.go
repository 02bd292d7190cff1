package proxy

import (
	"net/http"
	"net/http/httputil"
	"strings"
)

// forwarded are the headers that say where a request came from.
const (
	headerFor   = "X-Forwarded-For"
	headerHost  = "X-Forwarded-Host"
	headerProto = "X-Forwarded-Proto"
	headerStd   = "Forwarded"
)

// rewrite turns the incoming request into the outgoing one. ReverseProxy has
// removed the hop-by-hop headers and whatever the client claimed about where it
// comes from; a trusted peer's word is put back, with that peer added. What the
// gateway has decided about the client comes last.
func (u *Upstream) rewrite(pr *httputil.ProxyRequest) {
	x := pr.In.Context().Value(exchangeKey{}).(*exchange)
	if len(u.seats) > 1 {
		x.url = pr.Out.URL
		pr.Out.URL = x.seat.address(x.url)
	} else {
		x.seat.direct(pr.Out.URL) // which is a copy already
	}
	u.introduce(pr)
	if u.opts.Forward != nil {
		u.opts.Forward(pr.Out.Header, x.in, x.call, false)
	}
}

// introduce says where the request came from.
func (u *Upstream) introduce(pr *httputil.ProxyRequest) {
	if u.opts.Trusted == nil || !u.opts.Trusted(pr.In) {
		pr.SetXForwarded()
		u.claims.remove(pr.Out.Header)
		return
	}
	copyHeader(pr, headerFor)
	copyHeader(pr, headerStd)
	pr.SetXForwarded()
	copyHeader(pr, headerHost)
	copyHeader(pr, headerProto)
}

// claims are headers that nobody is believed who is not trusted.
type claims struct {
	exact []string
	alike map[string]bool // as CGI and its kin see them
}

// newClaims returns the headers of names, and those that say where a request
// came from.
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

// remove takes the claims out of h, those too that are one of them only to
// programs that read headers as variables, as CGI and WSGI do: HTTP_X_TENANT is
// X-Tenant there, and X_Tenant as well.
func (c claims) remove(h http.Header) {
	for _, name := range c.exact {
		delete(h, name)
	}
	for name := range h {
		if strings.Contains(name, "_") && c.alike[alike(name)] {
			delete(h, name)
		}
	}
}

// alike is the same for headers that such programs cannot tell apart.
func alike(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "-")) }

// copyHeader takes over a header of the incoming request, if it has it.
func copyHeader(pr *httputil.ProxyRequest, name string) {
	if v, ok := pr.In.Header[name]; ok {
		pr.Out.Header[name] = v
	}
}
