package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/rpc"
)

// listener is an address that the gateway listens on, and the server behind it.
type listener struct {
	cfg      config.Listener
	forAdmin bool
	pprof    bool      // of the admin listener
	replaces *listener // shares its socket; nil if the socket is its own
	succeeds *listener // of one for Kafka: shares the sockets of its nodes; nil if there is none
	conns    *accept.Listener
	server   *http.Server  // nil on a listener for an Envoy or for Kafka
	rpc      *rpc.Server   // of a listener for an Envoy, nil on others
	kafka    *kafkaGateway // of one for Kafka, nil on others
	restFor  time.Duration
	closed   atomic.Bool   // accepts no more, and tells its clients to go
	ended    chan struct{} // closed when it has accepted its last; nil before serve
	shut     chan struct{} // closed with its socket; nil before letGo
}

// listeners are those of one configuration.
type listeners struct {
	public []*listener
	admin  *listener   // nil if it is off
	wanted []wanted    // the public ones
	opened []*listener // those made for this configuration
}

// wanted is a listener of a configuration: its settings, and the cluster of Kafka that it is for, empty for none.
type wanted struct {
	config.Listener
	cluster string
}

// wantedBy returns the public listeners of a configuration.
func wantedBy(cfg *config.Config) (all []wanted) {
	for _, lc := range cfg.Listeners {
		all = append(all, wanted{lc, ""})
	}
	if len(all) == 0 && cfg.ServesHTTP() {
		all = append(all, wanted{config.DefaultListener(config.DefaultListen), ""})
	}
	for _, name := range cfg.KafkaListeners() {
		l := cfg.Kafka[name].Listen
		all = append(all, wanted{l.Listener(l.Address), name})
	}
	return all
}

// openListeners opens what cfg asks for. A listener that has not changed stays; one with
// other settings at the same address gets a new server on the same socket. On an
// error everything is as before.
func (s *Server) openListeners(cfg *config.Config) (_ *listeners, err error) {
	next := &listeners{wanted: wantedBy(cfg)}
	if err := s.opts.Inherited.Check(next.addresses(cfg.Admin)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			next.discard()
		}
	}()
	for _, w := range next.wanted {
		l := find(s.listeners, w.Address)
		same := l != nil && sameSettings(l.cfg, w.Listener)
		if w.cluster != "" {
			l, err = s.kafkaListener(cfg, w, l, same)
		} else if !same || l.kafka != nil {
			l, err = s.newListener(w.Listener, l)
		}
		if err != nil {
			return nil, s.portInUse(next, w.Address, err)
		}
		if !slices.Contains(s.listeners, l) {
			next.opened = append(next.opened, l)
		}
		next.public = append(next.public, l)
	}
	if !cfg.Admin.Enabled() {
		return next, nil
	}
	next.admin = s.admin
	if s.admin == nil || !s.admin.isAt(cfg.Admin.Address) || s.admin.pprof != cfg.Admin.Profiles() {
		if next.admin, err = s.openAdmin(cfg.Admin); err != nil {
			return nil, s.portInUse(next, cfg.Admin.Address, err)
		}
		next.opened = append(next.opened, next.admin)
	}
	return next, nil
}

// newListener opens a listener in the place of another, nil for none.
func (s *Server) newListener(cfg config.Listener, replaces *listener) (*listener, error) {
	l := &listener{cfg: cfg, replaces: replaces}
	if err := s.openListener(l, listenSetting); err != nil {
		return nil, err
	}
	if l.rpc == nil {
		l.server.Handler = s.handler(l)
	}
	return l, nil
}

// addresses returns those of all listeners, the admin's last.
func (next *listeners) addresses(admin config.Admin) (all []string) {
	for _, l := range next.wanted {
		all = append(all, l.Address)
	}
	if admin.Enabled() {
		all = append(all, admin.Address)
	}
	return all
}

// How the options that set an address are called in messages.
const (
	listenSetting = "--listen, or listeners[].address in the file"
	adminSetting  = "--admin, or admin.address in the file (\"off\" for none)"
)

// unreadBody is how much of a body a client may send over HTTP/2 before it is read.
const unreadBody = 128 << 10

// openListener opens the socket of l and makes its server, with every bound set.
func (s *Server) openListener(l *listener, setting string) (err error) {
	o := s.acceptOptions(l.cfg, setting)
	if l.replaces != nil {
		o.Share = l.replaces.conns
	}
	l.restFor = restFor
	if l.conns, err = accept.Open(o); err != nil {
		return err
	}
	if l.cfg.ServesEnvoy() {
		l.rpc = s.rpcServer(l)
		return nil
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(l.cfg.TLS != nil)
	protocols.SetUnencryptedHTTP2(l.cfg.H2C && l.cfg.TLS == nil)
	l.server = &http.Server{
		Protocols:         protocols,
		ReadHeaderTimeout: time.Duration(l.cfg.ReadHeaderTimeout),
		IdleTimeout:       time.Duration(l.cfg.IdleTimeout),
		MaxHeaderBytes:    l.cfg.MaxHeaderBytes,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: l.cfg.MaxConcurrentStreams,
			SendPingTimeout:      time.Duration(l.cfg.IdleTimeout),
			PingTimeout:          15 * time.Second,
			WriteByteTimeout:     time.Duration(l.cfg.WriteTimeout),
			MaxReadFrameSize:     16 << 10,
			// A request that waits leaves its body unread. The connection has room for all such bodies, or they would hold up its others.
			MaxReceiveBufferPerConnection: l.cfg.MaxConcurrentStreams * unreadBody,
			MaxReceiveBufferPerStream:     unreadBody,
		},
		ConnState: l.conns.ConnState,
		ErrorLog:  s.events.ServerErrors(l.cfg.Address),
	}
	l.conns.ConfigureServer(l.server)
	l.server.RegisterOnShutdown(l.conns.CloseNew)
	return nil
}

// acceptOptions are what every socket is opened with.
func (s *Server) acceptOptions(cfg config.Listener, setting string) accept.Options {
	return accept.Options{
		Config: cfg, Log: s.events, Setting: setting, Inherited: s.opts.Inherited,
		Trusted: func(addr netip.Addr) bool { return s.Policy().TrustsNetwork(addr) },
	}
}

// portInUse returns err, unless a listener of this server has the port.
func (s *Server) portInUse(next *listeners, address string, err error) error {
	if !errors.Is(err, accept.ErrPortInUse) {
		return err
	}
	for _, l := range next.public {
		if l.isInTheWay(address) {
			return fmt.Errorf("cannot listen on %s: this gateway is to listen on %s too; choose another port", address, l.Addr())
		}
	}
	for _, l := range s.all() {
		if l.isInTheWay(address) {
			return fmt.Errorf("cannot listen on %s: this gateway listens on %s until the reload is over; restart it, or choose another port", address, l.Addr())
		}
	}
	return err
}

// awaitSockets waits until removed listeners have closed the sockets at addresses that cfg asks for, which takes them
// little more than drainFor.
func (s *Server) awaitSockets(cfg *config.Config) {
	s.mu.Lock()
	parting := slices.Clone(s.parting)
	s.mu.Unlock()
	addresses := (&listeners{wanted: wantedBy(cfg)}).addresses(cfg.Admin)
	for _, l := range parting {
		select {
		case <-l.shut:
			continue
		default:
		}
		if slices.ContainsFunc(addresses, func(a string) bool { return l.isAt(a) || l.isInTheWay(a) }) {
			<-l.shut
		}
	}
}

// find returns the listener at an address, nil if there is none.
func find(ls []*listener, address string) *listener {
	for _, l := range ls {
		if l.isAt(address) {
			return l
		}
	}
	return nil
}

// isAt reports whether address, perhaps written differently, is where l listens.
func (l *listener) isAt(address string) bool {
	if l.cfg.Address == address {
		return true
	}
	a, b := l.portOf(address)
	return a != nil && a.IP.Equal(b.IP)
}

// isInTheWay reports whether l has the port of address, so that no other socket can be opened there.
func (l *listener) isInTheWay(address string) bool {
	a, b := l.portOf(address)
	return a != nil && (a.IP.Equal(b.IP) || len(a.IP) == 0 || a.IP.IsUnspecified() || b.IP.IsUnspecified())
}

// portOf returns address and where l listens, if they have the same port.
func (l *listener) portOf(address string) (a, b *net.TCPAddr) {
	a, err := net.ResolveTCPAddr("tcp", address)
	b, ok := l.Addr().(*net.TCPAddr)
	if err != nil || !ok || a.Port != b.Port {
		return nil, nil
	}
	return a, b
}

// sameSettings reports whether two listeners are alike in every setting but the limits on
// connections, which a listener can change while it serves.
func sameSettings(a, b config.Listener) bool {
	a.MaxConnections, b.MaxConnections = 0, 0
	a.Connections, b.Connections = config.Connections{}, config.Connections{}
	return reflect.DeepEqual(a, b)
}

// discard closes what was opened for a configuration that is not put in force.
func (next *listeners) discard() {
	for _, l := range next.opened {
		_ = l.conns.Close() // nobody has used it
		if l.kafka != nil {
			_ = l.kafka.Close()
		}
		if l.rpc != nil {
			_ = l.rpc.Close() // a server of gRPC has goroutines from the start
		}
	}
}

// readCertificates reads the certificates of listeners again. They are in force once each of use has been called.
func readCertificates(of []*listener) (use []func(), err error) {
	for _, l := range of {
		one, err := l.conns.ReadCertificates()
		if err != nil {
			return nil, err
		}
		use = append(use, one)
	}
	return use, nil
}

// swapListeners serves the listeners of another configuration and stops the old ones. The old ones
// accept no more, and requests in flight on them end in their own time.
func (s *Server) swapListeners(next *listeners) {
	old := s.all()
	for i, l := range next.public {
		l.conns.Configure(next.wanted[i].Listener)
	}
	s.listeners, s.admin = next.public, next.admin
	if s.running {
		for _, l := range next.opened {
			s.serve(l)
			if !slices.ContainsFunc(old, func(o *listener) bool { return o.Addr().String() == l.Addr().String() }) {
				s.announce(l)
			}
		}
	}
	now := s.all()
	for _, l := range old {
		if !slices.Contains(now, l) {
			replaced := slices.ContainsFunc(next.opened, func(n *listener) bool { return n.replaces == l })
			l.shut = make(chan struct{})
			s.parting = append(s.parting, l)
			succeeded := slices.ContainsFunc(next.opened, func(n *listener) bool { return n.succeeds == l })
			s.leaving.Go(func() { s.letGo(l, replaced, succeeded) })
		}
	}
	for _, l := range next.opened {
		l.replaces, l.succeeds = nil, nil // or they would be kept for ever
	}
	s.tryPorts()
}

// tryPorts has the gateways before Kafka try ports of nodes that were taken, once the listeners that leave have closed their sockets. The
// caller holds mu, or has made the server.
func (s *Server) tryPorts() {
	now, parting := s.listeners, slices.Clone(s.parting)
	s.leaving.Go(func() {
		for _, l := range parting {
			<-l.shut
		}
		for _, l := range now {
			if l.kafka != nil {
				l.kafka.TryPorts()
			}
		}
	})
}

// serve accepts until the listener is stopped. If it ends by itself, the server shuts down.
func (s *Server) serve(l *listener) {
	l.ended = make(chan struct{})
	s.serving.Go(func() {
		defer close(l.ended)
		var err error
		switch {
		case l.rpc != nil:
			err = l.rpc.Serve(l.conns)
		case l.kafka != nil:
			err = l.kafka.Serve(l.conns)
		case l.cfg.TLS != nil:
			err = l.server.ServeTLS(l.conns, "", "")
		default:
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

// announce logs what is served where.
func (s *Server) announce(l *listener) {
	if l.forAdmin {
		s.log.Info("admin listening", "address", "http://"+l.Addr().String(), "paths", "/metrics /healthz /readyz /gates /explain /quotas /reload")
		return
	}
	about := []any{"address", l.Addr().String(), "tls", l.cfg.TLS != nil}
	if l.kafka != nil {
		about = append(about, l.kafka.about()...)
	} else {
		about = append(about, "h2c", l.cfg.H2C)
	}
	if l.cfg.ServesEnvoy() {
		about = append(about, "serve", strings.Join(l.cfg.Serve, ","))
	}
	if l.conns.Inherited() {
		about = append(about, "inherited", true)
	}
	s.log.Info("listening", about...)
}

// warnOfDescriptors says if clients may take all file descriptors. A connection may need another one, to an upstream or a broker.
// Without one left nobody else is accepted, and no target can be reached.
func (s *Server) warnOfDescriptors() {
	connections := uint64(0)
	for _, l := range s.listeners {
		connections += uint64(l.cfg.MaxConnections)
	}
	if most, needed := mostDescriptors(), 2*connections; most > 0 && most < needed {
		s.log.Warn("clients may take all file descriptors of the process; raise their limit (LimitNOFILE in systemd, ulimit -n), or lower max_connections",
			"descriptors", most, "needed", needed, "max_connections", connections)
	}
}

// letGo ends a listener that a reload has removed, or replaced by one on the same socket.
// It accepts no more, and each answer on it asks the client to come back on another
// connection. Idle connections are left to their time-out: closing one might meet a
// request on its way. succeeded says that another gateway before Kafka has the sockets of its nodes.
func (s *Server) letGo(l *listener, replaced, succeeded bool) {
	l.stopAccepting(replaced, succeeded)
	if !replaced {
		s.log.Info("stopped listening", "address", l.Addr().String())
	}
	if l.ended != nil {
		<-l.ended // else a connection accepted last is not counted yet, and would be cut
	}
	close(l.shut)        // not before: the server closes the socket, too, and may be about to
	if l.server != nil { // calls of gRPC last, and so do connections of Kafka: their clients have to come back at once
		l.conns.AwaitEmpty(s.closing)
	}
	l.rest(s.cutting)
	if !l.stop(s.cutting) {
		s.cutOff.Store(true)
	}
	l.conns.AwaitEmpty(s.cutting) // net/http forgets hijacked connections
	l.conns.CloseAll()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parting = slices.DeleteFunc(s.parting, func(p *listener) bool { return p == l })
}

// drainFor is how long a listener that stops goes on accepting what has already connected.
const drainFor = 50 * time.Millisecond

// stopAccepting accepts what is waiting in the kernel's queue, unless another listener
// shares it, and closes the socket. Connections already accepted go on. nodesShared is the same of the sockets of nodes of Kafka.
func (l *listener) stopAccepting(shared, nodesShared bool) {
	l.closed.Store(true)
	var nodes sync.WaitGroup
	if l.kafka != nil {
		drain := drainFor
		if nodesShared {
			drain = 0
		}
		nodes.Go(func() { l.kafka.StopAccepting(drain) })
	}
	if !shared {
		l.conns.Drain(drainFor)
	}
	_ = l.conns.Close() // it is closed either way
	nodes.Wait()
}

// restFor is how long connections have to come to rest when a listener stops. Answers that take
// longer are waited for by Shutdown. Clients that have sent no whole header by then are not waited
// for, whatever the grace period: net/http would not answer them any more.
const restFor = time.Second

// rest waits until no connection of HTTP is new or in use, for restFor at most, or until ctx ends.
func (l *listener) rest(ctx context.Context) {
	if l.kafka != nil || l.rpc != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, l.restFor)
	defer cancel()
	l.conns.AwaitRest(ctx)
}

// stop ends the listener: after what is in flight on it has ended, or when ctx does. It
// reports whether everything had ended.
func (l *listener) stop(ctx context.Context) bool {
	var server interface {
		Shutdown(context.Context) error
		Close() error
	} = l.rpc
	switch {
	case l.kafka != nil:
		server = l.kafka
	case l.rpc == nil:
		server = l.server
	}
	err := server.Shutdown(ctx)
	if err != nil {
		_ = server.Close() // cuts the rest; there is nobody to tell
	}
	return err == nil
}

// Addr returns the address in use.
func (l *listener) Addr() net.Addr { return l.conns.Addr() }
