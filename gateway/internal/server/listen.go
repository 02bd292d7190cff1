package server

import (
	"net"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
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
