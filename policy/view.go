package policy

import (
	"crypto/x509"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// View is what a policy reads of a request, whatever protocol the request came by. [ViewHTTP] makes
// one of an *http.Request. Adapters for other protocols fill one in by themselves. A policy reads
// only what its routes and identities need, and keeps nothing of a View.
type View struct {
	// Method is the method of HTTP. Empty means GET; calls of gRPC are POST.
	Method string
	// Path is the path without its escapes. RawPath is the path as it was sent, if that differs
	// from the default escaping of Path. Both are as in [net/url.URL]. An empty path is "/".
	Path, RawPath string
	// Fixed says that Path is one of few, as the methods of a gRPC server are. The policy then
	// remembers their routes, up to a bound. It does not hold for paths with names in them.
	Fixed bool
	// Header are the headers or metadata. It must not be nil.
	Header Header
	// Peer is the address at the other end of the connection. It is the zero Addr if there is none,
	// as on a Unix socket.
	Peer netip.Addr
	// Certificate is the verified certificate of the peer, nil if there is none. A certificate that
	// was sent but not verified proves nothing, and does not belong here.
	Certificate *x509.Certificate
	// Deadline is when the caller stops waiting, if the protocol says so beside its headers. The
	// zero time means that it does not.
	Deadline time.Time

	remote string // the text that Peer was read from; empty if there is none
}

// Header are the headers of a request as a [View] has them.
type Header interface {
	// Values returns the lines of a header, nil if there are none. Nobody writes to them.
	Values(name HeaderName) []string
	// Host returns the host that the request is for, with or without a port. It is empty if the
	// request does not say.
	Host() string
}

// HeaderName is the name of a header in the two forms that protocols use: X-Tenant as of
// net/http, and x-tenant as of HTTP/2 and gRPC. So nobody has to convert it for each request.
type HeaderName struct{ Canonical, Lower string }

// NewHeaderName returns both forms of a header's name.
func NewHeaderName(name string) HeaderName {
	return HeaderName{http.CanonicalHeaderKey(name), strings.ToLower(name)}
}

// ViewHTTP returns the view of an HTTP request. It allocates nothing.
func ViewHTTP(r *http.Request) View {
	v := View{
		Method: r.Method, Header: httpHeader{r}, Peer: ParsePeer(r.RemoteAddr),
		Certificate: certificateOf(r), remote: r.RemoteAddr,
	}
	if r.URL != nil {
		v.Path, v.RawPath = r.URL.Path, r.URL.RawPath
	}
	return v
}

// httpHeader is the Header of an HTTP request.
type httpHeader struct{ request *http.Request }

// Values implements [Header].
func (h httpHeader) Values(name HeaderName) []string { return h.request.Header[name.Canonical] }

// Host implements [Header].
func (h httpHeader) Host() string { return h.request.Host }

// ParsePeer returns the address in the text of a peer's address, with or without a port. It is the
// zero Addr if there is none, as on a Unix socket.
func ParsePeer(remote string) netip.Addr {
	if ap, err := netip.ParseAddrPort(remote); err == nil {
		return ap.Addr().Unmap().WithZone("")
	}
	addr, err := netip.ParseAddr(remote)
	if err != nil {
		return netip.Addr{}
	}
	return addr.Unmap().WithZone("")
}
