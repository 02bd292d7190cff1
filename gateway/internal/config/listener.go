package config

import (
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-go/weir/internal/setting"
	"github.com/weir-go/weir/policy"
)

// Listener is an address the gateway accepts clients on, and what one client
// may take there: every wait is bounded, and so is every size.
type Listener struct {
	// host:port to listen on; :8080 means all interfaces. A listener for an Envoy may be a Unix socket,
	// unix:/run/weir/envoy.sock. A path that does not begin with / is relative to this file.
	Address string `json:"address" example:"127.0.0.1:8080" form:"host:port" required:"true"`
	// What is spoken. [http], the default, passes requests on. [ext_proc] admits the requests of an
	// Envoy (envoy.service.ext_proc.v3), ratelimit answers its rate limit filter
	// (envoy.service.ratelimit.v3); both may be on one listener, with grpc.health.v1 beside them. Who
	// can connect there can say anything of a client, so the address is loopback, or tls has a
	// client_ca.
	Serve []string `json:"serve,omitempty" example:"[ext_proc, ratelimit]"`
	// Who may connect to a Unix socket: this process's user (mode 0600), or its group too (0660).
	SocketAccess SocketAccess `json:"socket_access,omitempty" default:"user" enum:"user,group"`
	// Certificate for TLS. With it HTTP/2 is offered as well as HTTP/1.1.
	TLS *TLS `json:"tls,omitempty" example:"{cert: server.crt, key: server.key}"`
	// Accept HTTP/2 without TLS (prior knowledge) beside HTTP/1.1.
	H2C bool `json:"h2c,omitempty" default:"false"`
	// How long a client may take to send the header of a request.
	ReadHeaderTimeout policy.Duration `json:"read_header_timeout,omitempty" default:"5s" min:"1ms" max:"1h"`
	// How long a client may take to send the body of a request, with one second more for each 4 KiB that it has
	// sent. A body slower than 64 KiB a second takes no slot while it comes. The request is admitted again when
	// it is complete.
	ReadTimeout policy.Duration `json:"read_timeout,omitempty" default:"30s" min:"1ms" max:"24h"`
	// How long a client may read nothing of the answer. An answer that makes progress may last longer.
	WriteTimeout policy.Duration `json:"write_timeout,omitempty" default:"30s" min:"1ms" max:"24h"`
	// How long a kept-alive connection may be idle between requests.
	IdleTimeout policy.Duration `json:"idle_timeout,omitempty" default:"2m" min:"1ms" max:"24h"`
	// Largest header of a request in bytes; a larger one is answered 431.
	MaxHeaderBytes int `json:"max_header_bytes,omitempty" default:"65536" min:"1024" max:"16777216"`
	// Only for ext_proc: the max_headers_count of that Envoy. It fails a request that has more headers after
	// weir has added its own. So such a request is answered 431. 0 means 100, the default there.
	MaxHeaders int `json:"max_headers,omitempty" default:"0" min:"0" max:"1000"`
	// Connections open at a time, slow handshakes and idle ones included. Further ones are refused as soon as
	// they are accepted: with an answer on plain HTTP, by a reset under TLS. Over HTTP/2 it also bounds the
	// requests in progress, but not below 1000; further ones are answered with 503.
	MaxConnections int `json:"max_connections,omitempty" default:"10000" min:"1" max:"1000000"`
	// Limits on connections beside max_connections: from one address, and new ones a second. A reload applies
	// all of them while connections last.
	Connections Connections `json:"connections,omitzero" example:"{rate_per_address: 20}"`
	// Requests in progress at a time on one HTTP/2 connection. Each may have 128 KiB of its body in memory that
	// nobody has read yet. Of what has been read, 80 KiB are kept while a target of HTTP/2 may refuse it. For ext_proc the default is 10000.
	MaxConcurrentStreams int `json:"max_concurrent_streams,omitempty" default:"100" min:"1" max:"10000"`
}

// What a listener can serve.
const (
	ServeHTTP      = "http"
	ServeExtProc   = "ext_proc"
	ServeRateLimit = "ratelimit"
)

// unixPrefix is before the path of a Unix socket.
const unixPrefix = "unix:"

// Socket returns the path of the listener's Unix socket, if it is one.
func (l *Listener) Socket() (path string, ok bool) { return strings.CutPrefix(l.Address, unixPrefix) }

// SocketAccess says who may connect to a Unix socket. Empty is AccessUser.
type SocketAccess string

// Who may connect.
const (
	AccessUser  SocketAccess = "user"
	AccessGroup SocketAccess = "group"
)

// Mode returns the permissions of the socket's file.
func (a SocketAccess) Mode() fs.FileMode {
	if a == AccessGroup {
		return 0o660
	}
	return 0o600
}

// ServesEnvoy reports whether the listener is for an Envoy, and serves no HTTP.
func (l *Listener) ServesEnvoy() bool {
	return slices.ContainsFunc(l.Serve, func(what string) bool { return what == ServeExtProc || what == ServeRateLimit })
}

// Connections limits those of a listener further: how many one address may have at once,
// and how fast new ones may come. An address is one of IPv4, or a /64 network of IPv6.
type Connections struct {
	// enforce refuses what is beyond these limits. observe counts it, but accepts it. off counts nothing.
	// max_connections holds in any mode, because it bounds what the gateway itself needs.
	Mode policy.Mode `json:"mode,omitempty" default:"enforce" enum:"enforce,observe,off"`
	// Connections open at a time from one address (IPv6: one /64 network). 0 means half of max_connections, so
	// that no address can take them all. -1 means no limit.
	PerAddress int `json:"per_address,omitempty" default:"0" min:"-1" max:"1000000" example:"100"`
	// New connections a second. After a pause as many may come at once, but at least one. 0 means no limit.
	Rate float64 `json:"rate,omitempty" default:"0" min:"0" max:"1000000"`
	// The same for each address.
	RatePerAddress float64 `json:"rate_per_address,omitempty" default:"0" min:"0" max:"1000000"`
	// Addresses known at a time, of 160 bytes each. All further ones together count as one address.
	Addresses int `json:"addresses,omitempty" default:"65536" min:"1" max:"1000000"`
	// Networks (CIDR) of addresses without limits of their own: proxies and load balancers that
	// bring many clients. Left out, those of identity.trusted_proxies. An empty list exempts nobody.
	Exempt []string `json:"exempt,omitempty" example:"[10.0.0.0/8]" form:"a network such as 10.0.0.0/8"`
}

// Networks returns Exempt. What is no network is left out; Parse finds it.
func (c *Connections) Networks() []netip.Prefix {
	networks := make([]netip.Prefix, 0, len(c.Exempt))
	for _, text := range c.Exempt {
		if n, err := policy.ParseNetwork(text); err == nil {
			networks = append(networks, n)
		}
	}
	return networks
}

// TLS names the PEM files of a listener's certificate, and of the authorities that
// vouch for its clients, if it asks those for certificates. Names that are not
// absolute are relative to the configuration file; Load resolves them.
type TLS struct {
	// PEM file with the certificate chain, relative to this file.
	Cert string `json:"cert" example:"server.crt" required:"true"`
	// PEM file with the private key, relative to this file.
	Key string `json:"key" example:"server.key" required:"true"`
	// PEM file with the authorities that vouch for clients, relative to this file; read again when it changes.
	// With it clients are asked for a certificate, and the handshake refuses certificates of other authorities.
	// Use an authority of your own: every client with one of its certificates gets in.
	ClientCA string `json:"client_ca,omitempty" example:"clients.pem"`
	// Whether a client must have a certificate (require) or may come without one, as a stranger (optional).
	ClientAuth ClientAuth `json:"client_auth,omitempty" default:"require" enum:"require,optional"`
}

// ClientAuth says whether a client may do without a certificate where there is a
// ClientCA. Empty is ClientRequire.
type ClientAuth string

// What to do with a client that shows no certificate. One that shows a certificate of
// another authority is refused either way.
const (
	ClientRequire  ClientAuth = "require"  // refuse it
	ClientOptional ClientAuth = "optional" // take it for anybody
)

// DefaultListener returns a listener on address with every other field at its
// default.
func DefaultListener(address string) Listener {
	var l Listener
	l.SetDefaults()
	l.Address = address
	return l
}

// SetDefaults fills in what the file may leave out: the defaults in the tags.
func (l *Listener) SetDefaults() { setting.Fill(l) }

// SetDefaults does the same for its certificates.
func (t *TLS) SetDefaults() { setting.Fill(t) }
