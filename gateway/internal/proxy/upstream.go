// Package proxy passes requests on to upstream servers: one [Upstream] for each
// set of interchangeable servers in the configuration.
//
// It is [net/http/httputil.ReverseProxy] with a transport tuned for one hop,
// and what a gateway needs around it:
//
//   - targets in turn, each behind a gate of its own if it has a limit. One that fails
//     too often in a row is ejected for a while,
//   - a bound on every wait: for a connection, for sending, for the answer,
//   - the outcome of each request, sampled when the header of the answer arrives,
//   - a client that leaves does not free its slot, because the upstream works on. The
//     request goes on until the upstream answers, or the time that it was expected to
//     take has passed.
//
// Headers that claim something about the client (X-Forwarded-*, Forwarded, and those that
// identities are read from) are passed on only from trusted peers. From everybody else they
// are removed, and X-Forwarded-* is written anew.
package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/eventlog"
	"github.com/weir-go/weir/gateway/internal/hold"
	"github.com/weir-go/weir/internal/attempt"
	"github.com/weir-go/weir/policy"
)

// Upstream is a set of interchangeable servers. It is safe for concurrent use.
type Upstream struct {
	name   string
	log    *slog.Logger
	events *eventlog.Log
	policy *policy.Policy
	cfg    config.Upstream
	eject  ejection
	// leastLoaded is how targets are chosen, else in turn.
	leastLoaded bool
	checks      http.RoundTripper // nil without active checks
	claims      Claims
	mayHTTP2    bool // all targets speak HTTP/2, or may choose it by TLS
	h2c         bool // all targets speak HTTP/2 without TLS
	seats       []seat
	rotation    atomic.Uint64
	shared      *shared
	reverse     httputil.ReverseProxy
}

// shared is what stays over reloads.
type shared struct {
	epoch     time.Time
	targets   map[string]*target
	pool      pool
	transport *http.Transport
	calls     *http.Transport // for calls of gRPC
	upgrades  *http.Transport // for upgrades at https targets
	trips     *roundTrips     // of all of them
	times     *hold.Times
	held      *hold.Keeper
	abandoned *atomic.Uint64
	watch     *watch
}

// New returns the upstream called name, or what is wrong with cfg. It connects to nothing yet.
// Before it can serve, [Upstream.Attach] has to give it a policy. Ejections go to log, failures of
// targets to events; log gets each of them at level debug.
func New(name string, cfg config.Upstream, log *slog.Logger, events *eventlog.Log) (*Upstream, error) {
	targets, h2c, err := parseTargets(name, cfg.Targets)
	if err != nil {
		return nil, err
	}
	epoch, conns := time.Now(), poolOf(&cfg, h2c, targets)
	u := &Upstream{
		name: name, cfg: cfg, log: log, events: events,
		eject: ejection{cfg.Eject.Failures, time.Duration(cfg.Eject.For)}, leastLoaded: cfg.Balance == config.LeastLoaded,
		shared: &shared{
			epoch: epoch, targets: targets, pool: conns, transport: newTransport(conns, h2c),
			times: new(hold.Times), held: new(hold.Keeper), abandoned: new(atomic.Uint64), watch: &watch{epoch: epoch},
		},
	}
	u.shared.calls = u.shared.transport
	if conns.tls {
		u.shared.calls = onlyHTTP2(newTransport(conns, true))
	}
	u.shared.upgrades = onlyHTTP1(newTransport(conns, false))
	transport, calls, upgrades := u.shared.transport, u.shared.calls, u.shared.upgrades
	u.shared.trips = &roundTrips{close: func() {
		transport.CloseIdleConnections()
		calls.CloseIdleConnections()
		upgrades.CloseIdleConnections()
	}}
	u.mayHTTP2, u.h2c = h2c || conns.tls, h2c
	if h := cfg.HealthCheck; h != nil {
		// Checks connect anew each time: that is part of what has to work. They share no connections
		// with requests, and do not wait for one behind them. One over HTTP/2 that comes when its check is over
		// stays until it has been idle.
		u.checks = newTransport(pool{connectTimeout: time.Duration(h.Timeout), h2c: h2c, maxIdle: -1, idleFor: time.Duration(h.Timeout)}, h2c)
	}
	u.reverse = httputil.ReverseProxy{
		Rewrite:        u.rewrite,
		Transport:      roundTripper{u},
		BufferPool:     bodyBuffers,
		ErrorHandler:   u.failed,
		ModifyResponse: u.begin,
		ErrorLog:       slog.NewLogLogger(log.With("upstream", name).Handler(), slog.LevelDebug),
	}
	return u, nil
}

var bodyBuffers = new(buffers)

// Attach gives the upstream its policy. The policy has the gates of the targets
// ([WithTargetGates]). It also decides which peers are trusted, and which headers the targets get.
// prev is the upstream of the same name in the last configuration, nil if there was none. Targets
// that stay keep their connections, their counters and their ejection.
func (u *Upstream) Attach(p *policy.Policy, prev *Upstream) {
	u.policy = p
	u.claims = NewClaims(append(p.IdentityHeaders(), certificateHeaders...))
	if prev != nil {
		u.adopt(prev)
	}
	gates := targetGates(u.name, u.cfg.Targets)
	for _, raw := range u.cfg.Targets {
		s := seat{target: u.shared.targets[raw]}
		if g := p.Gate(gates[raw]); g != nil {
			s.gate = g
		}
		u.seats = append(u.seats, s)
	}
}

// adopt goes on with what stays of the upstream before.
func (u *Upstream) adopt(prev *Upstream) {
	kept := *prev.shared
	kept.targets = u.shared.targets
	for key := range kept.targets {
		if old, ok := prev.shared.targets[key]; ok {
			kept.targets[key] = old
		}
	}
	if kept.pool != u.shared.pool {
		kept.pool, kept.transport, kept.calls, kept.upgrades = u.shared.pool, u.shared.transport, u.shared.calls, u.shared.upgrades
		kept.trips = u.shared.trips
	}
	u.shared = &kept
	u.rotation.Store(prev.rotation.Load())
}

// parseTargets parses the targets of an upstream and reports whether they speak HTTP/2
// without TLS.
func parseTargets(name string, raws []string) (targets map[string]*target, h2c bool, err error) {
	if len(raws) == 0 {
		return nil, false, fmt.Errorf("upstream %s has no targets; give it one, for instance http://127.0.0.1:3000", name)
	}
	targets = make(map[string]*target, len(raws))
	n := 0
	for _, raw := range raws {
		t, err := newTarget(raw)
		if err != nil {
			return nil, false, fmt.Errorf("upstream %s: %w", name, err)
		}
		if t.h2c {
			n++
		}
		targets[raw] = t
	}
	if n > 0 && n < len(raws) {
		return nil, false, fmt.Errorf("upstream %s: %d of its %d targets are h2c; either all must be, or none", name, n, len(raws))
	}
	return targets, n > 0, nil
}

// Name returns the upstream's name.
func (u *Upstream) Name() string { return u.name }

// ReplacedBy closes the idle connections that next does not use. next is nil when the upstream
// is gone.
func (u *Upstream) ReplacedBy(next *Upstream) {
	if next == nil || next.shared.transport != u.shared.transport {
		u.shared.trips.drain()
	}
}

// roundTrips counts the round trips under way on the transports of an upstream. Transports that are used no
// more close their idle connections only between round trips. net/http takes a connection for idle a
// moment before it hands over an answer without a body. If the connection is closed then, that request fails.
type roundTrips struct {
	n     atomic.Int64 // under way; and draining
	mu    sync.Mutex   // held while connections are closed
	close func()       // closes the idle connections
}

// draining is added to the number of round trips once the transports are used no more.
const draining = 1 << 62

// begin is called before a round trip. It waits while connections are closed.
func (r *roundTrips) begin() {
	if r.n.Add(1) > draining {
		r.mu.Lock()
		//lint:ignore SA2001 whoever has the lock closes connections, and sees this round trip if it does so later
		r.mu.Unlock()
	}
}

// end is called after it.
func (r *roundTrips) end() {
	if r.n.Add(-1) == draining {
		r.closeIdle()
	}
}

// drain says that no further round trips are to come, but for a few of requests that are on their way.
func (r *roundTrips) drain() {
	if r.n.Add(draining) == draining {
		r.closeIdle()
	}
}

func (r *roundTrips) closeIdle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n.Load() == draining {
		r.close()
	}
}

func (u *Upstream) now() time.Duration { return time.Since(u.shared.epoch) }

// TargetStats counts the requests to one target. Counters only grow, also over reloads that
// keep the target's URL.
type TargetStats struct {
	Target    string            `json:"target"`
	Requests  uint64            `json:"requests"`
	Failures  map[string]uint64 `json:"failures"` // by kind: connect, timeout, reset, body, status
	Ejections uint64            `json:"ejections"`
	Ejected   bool              `json:"ejected"`
	InFlight  int64             `json:"in_flight"`        // requests in progress now
	Health    *HealthStats      `json:"health,omitempty"` // nil without active checks
}

// Stats returns the figures of each target, in the order of the configuration.
func (u *Upstream) Stats() []TargetStats {
	stats := make([]TargetStats, 0, len(u.seats))
	for _, s := range u.seats {
		st := TargetStats{
			Target:    s.key,
			Requests:  s.requests.Load(),
			Failures:  make(map[string]uint64, numFailures),
			Ejections: s.ejections.Load(),
			Ejected:   s.ejected(),
			InFlight:  s.inside.Load(),
		}
		if u.cfg.HealthCheck != nil {
			st.Health = s.health.stats()
		}
		for f, name := range failureNames {
			st.Failures[name] = s.failures[f].Load()
		}
		stats = append(stats, st)
	}
	return stats
}

// LeftOut returns the names of the gates of targets that are ejected or unhealthy. They get no requests while
// another target is well.
func (u *Upstream) LeftOut() (gates []string) {
	names := targetGates(u.name, u.cfg.Targets)
	for _, s := range u.seats {
		if s.ejected() || u.unhealthy(s.target) {
			gates = append(gates, names[s.key])
		}
	}
	return gates
}

// Crowded reports whether a target with a limit has no slot free.
func (u *Upstream) Crowded() bool {
	return slices.ContainsFunc(u.seats, func(s seat) bool {
		if s.gate == nil {
			return false
		}
		inFlight, _, limit := s.gate.Load()
		return inFlight >= limit
	})
}

// Abandoned returns how many clients have left while the upstream was working on their
// request. It never falls.
func (u *Upstream) Abandoned() uint64 { return u.shared.abandoned.Load() }

// Expect sets how long the upstream is expected to take on routes without an
// answer yet. 0, as at first, means that it is not known.
func (u *Upstream) Expect(d time.Duration) { u.shared.times.Expect(d) }

// Expected returns the moving mean of the time the upstream takes to answer, over
// all routes; 0 before the first answer.
func (u *Upstream) Expected() time.Duration { return u.shared.times.Mean() }

const (
	// maxAnswerHeader bounds the headers of an answer.
	maxAnswerHeader = 256 << 10
	// unreadAnswer is how much of an answer is kept over HTTP/2 for a client that does not read. The window of the
	// connection is net/http's 1 GiB, so such clients hold up no others.
	unreadAnswer = 256 << 10
	// bufferSize is what one read or write moves at most.
	bufferSize = 32 << 10
)

// pool is how an upstream connects to its targets. Two that are equal can share connections.
type pool struct {
	connectTimeout time.Duration
	h2c            bool // HTTP/2 without TLS
	tls            bool // all targets are https
	// maxOpen and maxIdle bound the connections to one target, and those of them that are idle.
	// maxOpen 0 means no limit. The default of net/http for maxIdle is 2, which makes a busy proxy
	// dial for nearly every request and costs three times the CPU.
	maxOpen, maxIdle int
	idleFor          time.Duration
}

func poolOf(cfg *config.Upstream, h2c bool, targets map[string]*target) pool {
	p := pool{time.Duration(cfg.ConnectTimeout), h2c, true, cfg.MaxConnections, cfg.MaxIdleConnections, time.Duration(cfg.IdleTimeout)}
	for _, t := range targets {
		p.tls = p.tls && t.url.Scheme == "https"
	}
	return p
}

// newTransport returns a transport for one upstream. With h2c it speaks HTTP/2
// without TLS to http targets; else HTTP/1.1 to them, and to https targets what
// they prefer of the two. calls says that servers of gRPC may be at the other end.
func newTransport(p pool, calls bool) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	protocols.SetHTTP1(!p.h2c)
	protocols.SetUnencryptedHTTP2(p.h2c)
	dialer := &net.Dialer{Timeout: p.connectTimeout, KeepAlive: 15 * time.Second}
	http2 := &http.HTTP2Config{MaxReceiveBufferPerStream: unreadAnswer}
	// A connection that died unnoticed is found by a ping, and not by
	// requests that hang on it.
	http2.SendPingTimeout, http2.PingTimeout = 15*time.Second, 5*time.Second
	if calls {
		// Servers of gRPC end a connection after a few pings that come sooner than every five minutes, by default. A peer that
		// has gone the kernel finds sooner. One behind something that acknowledges in its place only a ping does.
		dialer.Control = endUnheard
		http2.SendPingTimeout = 6 * time.Minute
	}
	return &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if path := socketOf(address); path != "" {
				network, address = "unix", path
			}
			return dialer.DialContext(ctx, network, address)
		},
		TLSHandshakeTimeout:    p.connectTimeout,
		Protocols:              protocols,
		DisableKeepAlives:      p.maxIdle < 0,
		MaxConnsPerHost:        p.maxOpen,
		MaxIdleConnsPerHost:    p.maxIdle,
		IdleConnTimeout:        p.idleFor,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: maxAnswerHeader,
		DisableCompression:     true, // what the client asked for is passed on as it is
		HTTP2:                  http2,
	}
}

// lacksMeans reports whether a connection could not be made for want of a file descriptor or memory here. That is no fault
// of the target.
func lacksMeans(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial" && attempt.LacksMeans(dial)
}

// errNotHTTP2 is why no call of gRPC was sent to an https target.
var errNotHTTP2 = errors.New("the target chose HTTP/1 by TLS")

// onlyHTTP2 makes t refuse a target that does not choose HTTP/2. There is no gRPC over HTTP/1, and
// what only names itself so would be spared the bounds of HTTP.
func onlyHTTP2(t *http.Transport) *http.Transport {
	t.TLSClientConfig = &tls.Config{VerifyConnection: func(s tls.ConnectionState) error {
		if s.NegotiatedProtocol != "h2" {
			return errNotHTTP2
		}
		return nil
	}}
	return t
}

// onlyHTTP1 makes t choose HTTP/1.1 by TLS, for upgrades. net/http sends none but WebSockets to a target that may choose
// HTTP/2.
func onlyHTTP1(t *http.Transport) *http.Transport {
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	return t
}

// buffers lends the buffers that bodies are copied with.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, bufferSize)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
