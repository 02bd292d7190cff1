package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weir-go/weir/gateway/internal/admin"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// listeners of one configuration: those that stay and those that are new.
type listenerSet struct {
	public []*listener
	admin  *listener
	limits []doorLimits            // of the public ones
	opened []*listener             // not in the set before
	heirs  map[*listener]*listener // of old ones: the new one that shares the socket
}

// listen opens what cfg asks for. A listener that has not changed stays; one
// with other settings at the same address gets a new HTTP server on the same
// socket. On an error everything is as before.
func (s *Server) listen(cfg *config.Config, old []*listener, oldAdmin *listener) (*listenerSet, error) {
	set := &listenerSet{heirs: make(map[*listener]*listener)}
	for _, lc := range publicListeners(cfg) {
		set.limits = append(set.limits, s.doorLimits(lc))
		prev := find(old, lc.Address)
		if prev != nil && same(prev.cfg, lc) {
			set.public = append(set.public, prev)
			continue
		}
		l, err := s.newListener(lc, prev)
		if err != nil {
			set.discard()
			return nil, err
		}
		if prev != nil {
			set.heirs[prev] = l
		}
		set.opened = append(set.opened, l)
		set.public = append(set.public, l)
	}
	if err := s.listenAdmin(cfg, oldAdmin, set); err != nil {
		set.discard()
		return nil, err
	}
	return set, nil
}

// listenAdmin does the same for the admin listener.
func (s *Server) listenAdmin(cfg *config.Config, old *listener, set *listenerSet) error {
	if !cfg.Admin.Enabled() {
		return nil
	}
	lc := adminConfig(cfg.Admin)
	if old != nil && old.cfg.Address == lc.Address && old.pprof == cfg.Admin.Profiles() {
		set.admin = old
		return nil
	}
	var prev *listener
	if old != nil && old.cfg.Address == lc.Address {
		prev = old
	}
	socket, err := bind(lc, prev)
	if err != nil {
		return listenError(lc.Address, adminSetting, err)
	}
	l := &listener{cfg: lc, forAdmin: true, pprof: cfg.Admin.Profiles(), socket: socket, handshakes: new(handshakes)}
	l.conns = newConns(socket, newDoor(s.doorLimits(lc)), true)
	l.conns.note = s.notes.turnedAway
	l.server = s.newServer(l, s.adminHandler(cfg.Admin, socket.Addr()))
	// A profile takes as long as it was asked to.
	l.server.WriteTimeout = 2 * time.Minute
	l.server.ReadTimeout = 10 * time.Second
	set.admin = l
	set.opened = append(set.opened, l)
	if prev != nil {
		set.heirs[prev] = l
	}
	return nil
}

func (s *Server) adminHandler(cfg config.Admin, at net.Addr) http.Handler {
	tcp, ok := at.(*net.TCPAddr)
	return admin.Handler(admin.Options{
		Metrics: s.metrics.Handler(),
		Gates:   func() any { return s.Look() },
		Ready:   s.Ready,
		Explain: s.explain(),
		Quotas:  s.quotaAPI(),
		Pprof:   cfg.Profiles(),
		AnyHost: ok && !tcp.IP.IsLoopback(),
	})
}

// adminConfig bounds the admin listener: few connections, small requests.
func adminConfig(a config.Admin) config.Listener {
	lc := config.DefaultListener(a.Address)
	lc.MaxConnections = 64
	lc.MaxHeaderBytes = 16 << 10
	return lc
}

// discard closes what was opened.
func (set *listenerSet) discard() {
	for _, l := range set.opened {
		l.quietClose()
	}
}

// publicListeners returns the listeners of cfg, the default one if it names
// none.
func publicListeners(cfg *config.Config) []config.Listener {
	if len(cfg.Listeners) == 0 {
		return []config.Listener{config.DefaultListener(config.DefaultListen)}
	}
	return cfg.Listeners
}

func find(ls []*listener, address string) *listener {
	for _, l := range ls {
		if l.cfg.Address == address || sameAddress(l, address) {
			return l
		}
	}
	return nil
}

// sameAddress reports whether address, written differently, is where l listens.
func sameAddress(l *listener, address string) bool {
	a, err := net.ResolveTCPAddr("tcp", address)
	if err != nil || a.Port == 0 {
		return false
	}
	b, ok := l.Addr().(*net.TCPAddr)
	return ok && a.Port == b.Port && a.IP.Equal(b.IP)
}

// same reports whether two listeners are alike in every setting but the limits on
// connections, which a listener takes up as it is.
func same(a, b config.Listener) bool {
	a.MaxConnections, b.MaxConnections = 0, 0
	a.Connections, b.Connections = config.Connections{}, config.Connections{}
	return reflect.DeepEqual(a, b)
}

// doorLimits are the limits on connections of a listener. Addresses from which others
// speak are exempt from those of one address, if nothing else is said.
func (s *Server) doorLimits(l config.Listener) doorLimits {
	c := l.Connections
	d := doorLimits{
		name: "listener " + l.Address, open: l.MaxConnections,
		rate: c.Rate, peerRate: c.RatePerAddress, peers: c.Addresses, mode: c.Mode,
	}
	switch {
	case c.Mode == policy.Off:
		d.rate, d.peerRate = 0, 0
	case c.PerAddress > 0:
		d.peerOpen = c.PerAddress
	case c.PerAddress == 0 && l.MaxConnections > 0:
		d.peerOpen = max(l.MaxConnections/2, 1)
	}
	d.exempt = func(addr netip.Addr) bool { return s.Policy().TrustsNetwork(addr) }
	if c.Exempt != nil {
		networks := c.Networks()
		d.exempt = func(addr netip.Addr) bool { return contains(networks, addr) }
	}
	return d
}

func contains(networks []netip.Prefix, addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	return slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(addr) })
}

// listener is one address the gateway listens on, and the HTTP server behind it.
type listener struct {
	cfg      config.Listener
	forAdmin bool
	pprof    bool // of the admin listener
	socket   *net.TCPListener
	conns    *conns
	server   *http.Server
	creds    atomic.Pointer[credentials] // nil without TLS
	closed   atomic.Bool                 // accepts no more, and tells its clients to go
	ended    chan struct{}               // closed when it has accepted its last; nil before serve

	handshakes *handshakes
}

// Addr returns the address in use.
func (l *listener) Addr() net.Addr { return l.socket.Addr() }

// sharesAddress reports whether other listens at the same address.
func (l *listener) sharesAddress(other *listener) bool {
	return l.Addr().String() == other.Addr().String()
}

// bind opens cfg's address. With a listener that has the same address already,
// it shares that one's socket: connections that wait to be accepted are served
// by whichever of the two accepts them, and none is lost when the old one stops.
func bind(cfg config.Listener, old *listener) (*net.TCPListener, error) {
	if old == nil {
		var lc net.ListenConfig
		// Clients of several paths are not what a gateway has, and a listener
		// for them takes no filter (see turnAwayNew).
		lc.SetMultipathTCP(false)
		ln, err := lc.Listen(context.Background(), "tcp", cfg.Address)
		if err != nil {
			return nil, err
		}
		return ln.(*net.TCPListener), nil
	}
	f, err := old.socket.File()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	return ln.(*net.TCPListener), nil
}

// listenError says which setting to change.
func listenError(address, setting string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("cannot listen on %s: another process uses that port; stop it, or choose another with %s", address, setting)
	}
	if errors.Is(err, syscall.EACCES) {
		return fmt.Errorf("cannot listen on %s: not permitted (ports below 1024 need a privilege); choose another with %s", address, setting)
	}
	return fmt.Errorf("cannot listen on %s (set by %s): %w", address, setting, err)
}

// How the options that set an address are called in messages.
const (
	listenSetting = "--listen, or listeners[].address in the file"
	adminSetting  = "--admin, or admin.address in the file (\"off\" for none)"
)

// newListener opens a public listener, sharing the socket of old if it has the
// same address.
func (s *Server) newListener(cfg config.Listener, old *listener) (*listener, error) {
	l := &listener{cfg: cfg, handshakes: new(handshakes)}
	d := newDoor(s.doorLimits(cfg))
	if old != nil {
		l.handshakes, d = old.handshakes, old.conns.door
	}
	if err := s.loadCredentials(l); err != nil {
		return nil, err
	}
	socket, err := bind(cfg, old)
	if err != nil {
		return nil, listenError(cfg.Address, listenSetting, err)
	}
	l.socket = socket
	l.conns = newConns(socket, d, cfg.TLS == nil)
	l.conns.note = s.notes.turnedAway
	l.server = s.newServer(l, s.handler(l))
	return l, nil
}

// newServer returns the HTTP server with every bound set.
func (s *Server) newServer(l *listener, h http.Handler) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(l.cfg.TLS != nil)
	protocols.SetUnencryptedHTTP2(l.cfg.H2C && l.cfg.TLS == nil)
	srv := &http.Server{
		Handler:           h,
		Protocols:         protocols,
		ReadHeaderTimeout: time.Duration(l.cfg.ReadHeaderTimeout),
		IdleTimeout:       time.Duration(l.cfg.IdleTimeout),
		MaxHeaderBytes:    l.cfg.MaxHeaderBytes,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: l.cfg.MaxConcurrentStreams,
			SendPingTimeout:      time.Duration(l.cfg.IdleTimeout),
			PingTimeout:          15 * time.Second,
			WriteByteTimeout:     time.Duration(l.cfg.WriteTimeout),
			// What one connection can make the gateway hold of bodies that
			// nobody reads yet.
			MaxReceiveBufferPerConnection: 256 << 10,
			MaxReceiveBufferPerStream:     128 << 10,
		},
		ConnState: func(c net.Conn, state http.ConnState) { s.connState(l, c, state) },
		ErrorLog:  stdlog.New(complaints{s.log.With("listener", l.cfg.Address)}, "", 0),
	}
	if l.cfg.TLS == nil {
		return srv
	}
	srv.TLSConfig = &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: l.configForClient,
	}
	if l.asks() {
		srv.ConnContext = l.connContext
	}
	return srv
}

// asks reports whether the listener asks clients for certificates.
func (l *listener) asks() bool { return l.cfg.TLS != nil && l.cfg.TLS.ClientCA != "" }

// serve accepts until the listener is stopped. An end that nobody asked for ends
// the whole server.
func (s *Server) serve(l *listener) {
	l.ended = make(chan struct{})
	s.serving.Go(func() {
		defer close(l.ended)
		var err error
		if l.cfg.TLS != nil {
			err = l.server.ServeTLS(l.conns, "", "")
		} else {
			err = l.server.Serve(l.conns)
		}
		if l.closed.Load() || errors.Is(err, http.ErrServerClosed) {
			return
		}
		select {
		case s.failed <- fmt.Errorf("listener %s: %w", l.cfg.Address, err):
		default: // another has failed before; one is enough to stop
		}
	})
}

// acceptRest is how long a listener that stops goes on accepting what has
// already connected: connections in the kernel's queue would be reset.
const acceptRest = 50 * time.Millisecond

// stopAccepting accepts what is waiting in the kernel's queue and closes the
// socket. Connections already accepted go on.
func (l *listener) stopAccepting(shared bool) {
	l.closed.Store(true)
	if !shared {
		l.conns.finish(acceptRest)
	}
	_ = l.conns.Close() // it is closed either way
}

// stop ends the listener: after what is in flight on it has ended, or when ctx
// does. It reports whether everything had ended.
func (l *listener) stop(ctx context.Context) bool {
	l.conns.settle(ctx)
	err := l.server.Shutdown(ctx)
	if err != nil {
		_ = l.server.Close() // cuts the rest; there is nobody to tell
	}
	return err == nil
}

// quietClose closes what was opened for a configuration that is not taken up.
func (l *listener) quietClose() {
	if l != nil && l.socket != nil {
		_ = l.socket.Close()
	}
}
