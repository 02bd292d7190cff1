package proxy

import (
	"net/http/httputil"
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
// comes from; a trusted peer's word is put back, with that peer added.
func (u *Upstream) rewrite(pr *httputil.ProxyRequest) {
	x := pr.In.Context().Value(exchangeKey{}).(*exchange)
	if len(u.seats) > 1 {
		x.url = pr.Out.URL
		pr.Out.URL = x.seat.address(x.url)
	} else {
		x.seat.direct(pr.Out.URL) // which is a copy already
	}
	if u.opts.Trusted == nil || !u.opts.Trusted(pr.In) {
		pr.SetXForwarded()
		for _, name := range u.opts.Claims {
			delete(pr.Out.Header, name)
		}
		return
	}
	copyHeader(pr, headerFor)
	copyHeader(pr, headerStd)
	pr.SetXForwarded()
	copyHeader(pr, headerHost)
	copyHeader(pr, headerProto)
}

// copyHeader takes over a header of the incoming request, if it has it.
func copyHeader(pr *httputil.ProxyRequest, name string) {
	if v, ok := pr.In.Header[name]; ok {
		pr.Out.Header[name] = v
	}
}
