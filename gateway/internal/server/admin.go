package server

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/admin"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/explain"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/gateway/internal/tracing"
	"github.com/weir-go/weir/weirhttp"
)

// openAdmin opens the admin listener: few connections, small requests.
func (s *Server) openAdmin(cfg config.Admin) (*listener, error) {
	l := &listener{cfg: config.DefaultListener(cfg.Address), forAdmin: true, pprof: cfg.Profiles()}
	l.cfg.MaxConnections = 64
	l.cfg.MaxHeaderBytes = 16 << 10
	if s.admin != nil && s.admin.isAt(cfg.Address) {
		l.replaces = s.admin
	}
	if err := s.openListener(l, adminSetting); err != nil {
		return nil, err
	}
	l.server.Handler = s.adminHandler(cfg, l.Addr())
	// A profile takes as long as it was asked to.
	l.server.WriteTimeout = 2 * time.Minute
	l.server.ReadTimeout = 10 * time.Second
	// Idle connections of monitors would take all places, and a health check would find none.
	l.server.SetKeepAlivesEnabled(false)
	return l, nil
}

// adminHandler serves what the admin listener, or its socket, shows and takes.
func (s *Server) adminHandler(cfg config.Admin, at net.Addr) http.Handler {
	tcp, ok := at.(*net.TCPAddr)
	writers := &admin.Writers{
		TokenFile: func() string { return s.state.Load().cfg.Admin.TokenFile },
		Socket:    func() string { return socketPath(&s.state.Load().cfg.Admin) },
		Log:       s.events,
	}
	reload := &admin.ReloadAPI{Last: s.lastReload, Writers: writers}
	if s.opts.Load != nil {
		reload.Reload = s.reloadAndTell
	}
	return admin.Handler(admin.Options{
		Metrics: s.metrics.Handler(),
		Gates:   func() any { return s.metrics.Status() },
		Ready:   s.Ready,
		Explain: explain.Handler(s.explainView),
		Quotas:  &admin.QuotaAPI{Book: s.book, Writers: writers},
		Reload:  reload,
		Pprof:   cfg.Profiles(),
		AnyHost: ok && !tcp.IP.IsLoopback(),
	})
}

// explainView is what /explain answers from.
func (s *Server) explainView() explain.View {
	st := s.state.Load()
	v := explain.View{Config: st.cfg, Policy: st.policy, From: s.book.From, LeftOut: func(upstream string) []string {
		if u := st.upstreams[upstream]; u != nil {
			return u.LeftOut()
		}
		return nil
	}}
	if why, holds := s.book.Trouble(); why != "" {
		v.Notes = []string{"Rules that were set at run time cannot be read now; " + holds + ": " + why}
	}
	return v
}

// InFlight returns how many requests are in the gateway now.
func (s *Server) InFlight() int64 { return s.inFlight.Load() }

// Upstreams returns the upstreams in force, sorted by name.
func (s *Server) Upstreams() []*proxy.Upstream {
	ups := s.state.Load().upstreams
	sorted := make([]*proxy.Upstream, 0, len(ups))
	for _, name := range slices.Sorted(maps.Keys(ups)) {
		sorted = append(sorted, ups[name])
	}
	return sorted
}

// Connections returns what there is to see of the connections of each listener.
func (s *Server) Connections() []accept.Snapshot {
	s.mu.Lock()
	ls := slices.Clone(s.listeners)
	s.mu.Unlock()
	all := make([]accept.Snapshot, len(ls))
	for i, l := range ls {
		all[i] = l.conns.Snapshot()
	}
	return all
}

// Stores returns what there is to see of the stores in force, sorted by name.
func (s *Server) Stores() (all []admin.Store) {
	st := s.state.Load()
	if st == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(st.stores)) {
		all = append(all, admin.StoreOf(name, st.stores[name].conn.Stats()))
	}
	return all
}

// Tracing returns what was counted of spans.
func (s *Server) Tracing() tracing.Snapshot { return s.traceCounts.Snapshot() }

// Book returns what there is to count of rules that are set at run time.
func (s *Server) Book() quotas.Stats { return s.book.Stats() }

// Streams returns the pool of streams.
func (s *Server) Streams() *weirhttp.Streams { return s.streams }

// Ready reports whether the gateway wants new requests.
func (s *Server) Ready() bool { return !s.draining.Load() }

// socketPath is the path of the socket that a configuration asks for, empty for none.
func socketPath(cfg *config.Admin) string {
	if !cfg.Enabled() {
		return ""
	}
	return cfg.Socket
}

// openSocket returns the admin socket of cfg: the one in use if its path is the same, nil if
// cfg has none.
func (s *Server) openSocket(cfg *config.Config) (*admin.Socket, error) {
	path := socketPath(&cfg.Admin)
	switch {
	case path == "":
		return nil, nil
	case s.socket != nil && s.socket.Path == path:
		return s.socket, nil
	}
	socket, err := admin.OpenSocket(path, s.events.ServerErrors(path))
	if err != nil {
		return nil, fmt.Errorf("%s: cannot listen on the socket %s: %w", cfg.At("admin.socket"), path, err)
	}
	return socket, nil
}

// swapSocket serves the socket of another configuration and closes the old one.
func (s *Server) swapSocket(cfg config.Admin, next *admin.Socket) {
	old := s.socket
	s.socket = next
	if next != nil {
		next.SetHandler(s.adminHandler(cfg, nil))
	}
	if next == old {
		return
	}
	if s.running {
		s.serveSocket()
	}
	if old != nil {
		s.log.Info("stopped listening", "address", "unix:"+old.Path)
		s.leaving.Go(old.Close)
	}
}

// serveSocket serves the admin socket, if there is one.
func (s *Server) serveSocket() {
	socket := s.socket
	if socket == nil {
		return
	}
	s.log.Info("admin socket listening", "address", "unix:"+socket.Path, "writes", true)
	s.serving.Go(func() {
		if err := socket.Serve(); err != nil {
			s.log.Error("the admin socket failed; no writes over it until the gateway is restarted", "socket", socket.Path, "error", err)
		}
	})
}
