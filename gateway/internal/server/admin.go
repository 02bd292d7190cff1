package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/admin"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/eventlog"
	"github.com/weir-go/weir/gateway/internal/explain"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/signal"
	"github.com/weir-go/weir/weirhttp"
)

// openAdmin opens the admin listener: few connections, small requests.
func (s *Server) openAdmin(cfg config.Admin) (*listener, error) {
	l := &listener{cfg: config.DefaultListener(cfg.Address), forAdmin: true, pprof: cfg.Profiles()}
	l.cfg.MaxConnections = 64
	l.cfg.MaxHeaderBytes = 16 << 10
	if s.admin != nil && s.admin.cfg.Address == cfg.Address {
		l.replaces = s.admin
	}
	if err := s.openListener(l, adminSetting); err != nil {
		return nil, err
	}
	l.server.Handler = s.adminHandler(cfg, l.Addr())
	// A profile takes as long as it was asked to.
	l.server.WriteTimeout = 2 * time.Minute
	l.server.ReadTimeout = 10 * time.Second
	return l, nil
}

// adminHandler serves what the admin listener, or its socket, shows and takes.
func (s *Server) adminHandler(cfg config.Admin, at net.Addr) http.Handler {
	tcp, ok := at.(*net.TCPAddr)
	return admin.Handler(admin.Options{
		Metrics: s.metrics.Handler(),
		Gates:   func() any { return s.Look() },
		Ready:   s.Ready,
		Explain: explain.Handler(s.explainView),
		Quotas: &admin.QuotaAPI{
			Book: s.book,
			Writers: &admin.Writers{
				TokenFile: func() string { return s.state.Load().cfg.Admin.TokenFile },
				Socket:    func() string { return socketOf(s.state.Load().cfg.Admin) },
				Logger:    s.log,
			},
		},
		Pprof:   cfg.Profiles(),
		AnyHost: ok && !tcp.IP.IsLoopback(),
	})
}

// explainView is what /explain answers from.
func (s *Server) explainView() explain.View {
	st := s.state.Load()
	v := explain.View{Config: st.cfg, Policy: st.policy, From: s.book.From}
	if trouble := s.book.Trouble(); trouble != "" {
		v.Notes = []string{"Rules that were set at run time cannot be read now; those that are known are in force: " + trouble}
	}
	return v
}

// Look is the gateway at one moment, as /gates shows it.
type Look struct {
	Ready       bool                           `json:"ready"`
	InFlight    int64                          `json:"requests_in_flight"`
	Gates       []GateLook                     `json:"gates"`
	Signals     []SignalLook                   `json:"signals,omitempty"`
	Tenants     []admin.TenantUse              `json:"tenants"`
	Upstreams   map[string][]proxy.TargetStats `json:"upstreams"`
	Streams     weirhttp.StreamsSnapshot       `json:"streams"`
	Stores      []admin.Store                  `json:"stores,omitempty"`
	Connections []accept.Snapshot              `json:"connections"`
}

// GateLook is one gate: its snapshot, what it would have refused while it only
// observed, the signals that it goes by, the pools where each key has one, or
// reads and writes have, and the buckets of a quota. Which of the signals binds is in the snapshot.
type GateLook struct {
	weir.Snapshot
	Observed map[weir.Reason]uint64 `json:"observed,omitempty"`
	Signals  []string               `json:"signals,omitempty"`
	Keys     *KeysLook              `json:"keys,omitempty"`
	Quota    *admin.QuotaUse        `json:"quota,omitempty"`

	Parts map[string]weir.Snapshot `json:"parts,omitempty"` // read and write
}

// KeysLook is the pools of a gate with a limit for each key: how many keys are
// known, may be, hold something and were forgotten, what they take, and those that
// use most.
type KeysLook struct {
	Known   int64  `json:"known"`
	Max     int64  `json:"max"`
	Busy    int64  `json:"busy"`
	Evicted uint64 `json:"evicted"`
	Bytes   int64  `json:"bytes"`
	Top     any    `json:"top"` // list of keyed.KeyUse
}

// mostKeys is how many keys of a gate are shown.
const mostKeys = 20

// lookInto returns what there is to see of a gate.
func lookInto(g *policy.Gate) GateLook {
	look := GateLook{Snapshot: g.Snapshot(), Observed: g.Observed(), Signals: g.Signals(), Parts: g.Parts(), Quota: admin.UseOf(g.Quota())}
	if k := g.Pools(); k != nil {
		u := k.Usage(mostKeys)
		look.Keys = &KeysLook{Known: u.Keys, Max: u.MaxKeys, Busy: u.Busy, Evicted: u.Evicted, Bytes: u.Bytes, Top: u.Top}
	}
	return look
}

// SignalLook is one signal. Value is null while it is not known.
type SignalLook struct {
	Name     string        `json:"name"`
	State    signal.State  `json:"state"`
	Value    *float64      `json:"value"`
	Age      time.Duration `json:"age_ns"`
	Reads    uint64        `json:"reads"`
	Failures uint64        `json:"failures"` // bad values included
	Error    string        `json:"error,omitempty"`
}

func lookAt(s signal.Status) SignalLook {
	look := SignalLook{Name: s.Name, State: s.State, Age: s.Age, Reads: s.Reads, Failures: s.Failures + s.Bad}
	if s.Known {
		look.Value = &s.Value
	}
	if s.Err != nil {
		look.Error = s.Err.Error()
	}
	return look
}

// Look returns the gateway at this moment.
func (s *Server) Look() Look {
	look := Look{
		Ready:       s.Ready(),
		InFlight:    s.inFlight.Load(),
		Tenants:     s.metrics.TopTenants(),
		Upstreams:   make(map[string][]proxy.TargetStats),
		Streams:     s.streams.Snapshot(),
		Stores:      s.Stores(),
		Connections: s.Connections(),
	}
	p := s.Policy()
	for _, g := range p.Gates() {
		gate := lookInto(g)
		if gate.Quota != nil {
			gate.Quota.Refused = s.metrics.MostRefused(g.Name())
		}
		look.Gates = append(look.Gates, gate)
	}
	for _, status := range p.Signals() {
		look.Signals = append(look.Signals, lookAt(status))
	}
	for _, u := range s.Upstreams() {
		look.Upstreams[u.Name()] = u.Stats()
	}
	return look
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
		all = append(all, admin.StoreOf(name, st.stores[name].Stats()))
	}
	return all
}

// Book returns what there is to count of rules that are set at run time.
func (s *Server) Book() quotas.Stats { return s.book.Stats() }

// Streams returns the pool of streams.
func (s *Server) Streams() *weirhttp.Streams { return s.streams }

// Ready reports whether the gateway wants new requests.
func (s *Server) Ready() bool { return !s.draining.Load() }

// adminSocket is the admin listener's Unix socket. What comes over it may write.
type adminSocket struct {
	path    string
	ln      net.Listener
	server  *http.Server
	handler atomic.Pointer[http.Handler] // of the configuration in force
}

// socketConnections bounds those to the socket at a time.
const socketConnections = 64

// socketOf is the path of the socket that a configuration asks for, empty for none.
func socketOf(cfg config.Admin) string {
	if !cfg.Enabled() {
		return ""
	}
	return cfg.Socket
}

// openSocket opens the admin socket of cfg: the one there is, if its path is the same,
// and nil if it has none.
func (s *Server) openSocket(cfg *config.Config, live *adminSocket) (*adminSocket, error) {
	path := socketOf(cfg.Admin)
	switch {
	case path == "":
		return nil, nil
	case live != nil && live.path == path:
		return live, nil
	}
	ln, err := listenUnix(path)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot listen on the socket %s: %w", cfg.At("admin.socket"), path, err)
	}
	a := &adminSocket{path: path, ln: &boundedSocket{ln, make(chan struct{}, socketConnections)}}
	a.server = &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*a.handler.Load()).ServeHTTP(w, r) }),
		ConnContext:       admin.WithPeer,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      2 * time.Minute, // a profile takes as long as it was asked to
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          eventlog.ServerErrors(s.log, path),
	}
	return a, nil
}

// swapSocket serves the socket of another configuration and lets the old one go.
func (s *Server) swapSocket(cfg config.Admin, next *adminSocket) {
	old := s.socket
	s.socket = next
	if next != nil {
		h := s.adminHandler(cfg, next.ln.Addr())
		next.handler.Store(&h)
	}
	if next == old {
		return
	}
	if s.running {
		s.serveSocket()
	}
	if old != nil {
		s.log.Info("stopped listening", "address", "unix:"+old.path)
		s.leaving.Go(old.close)
	}
}

// boundedSocket accepts so many connections at a time. They stay those of a Unix socket,
// which can be asked who is at the other end.
type boundedSocket struct {
	*net.UnixListener
	places chan struct{}
}

// Accept waits for a place, and then for a connection.
func (b *boundedSocket) Accept() (net.Conn, error) {
	b.places <- struct{}{}
	c, err := b.AcceptUnix()
	if err != nil {
		<-b.places
		return nil, err
	}
	return &boundedConn{UnixConn: c, leave: sync.OnceFunc(func() { <-b.places })}, nil
}

type boundedConn struct {
	*net.UnixConn
	leave func()
}

// Close closes the connection and makes place for another.
func (c *boundedConn) Close() error {
	defer c.leave()
	return c.UnixConn.Close()
}

var errSocketInUse = errors.New("another process answers there; stop it, or choose another path")

// listenUnix opens a socket that only this user can open. It gets its name once it is
// so: before, it stands in a directory that nobody else can enter. A socket of a
// process that has died is replaced, one that answers is not.
func listenUnix(path string) (*net.UnixListener, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, errors.New("what is there is no socket; remove it, or choose another path")
		}
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			c.Close()
			return nil, errSocketInUse
		}
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".weir") // mode 0700
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	made := filepath.Join(dir, "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false) // it would remove the name that it has no more
	if err = os.Chmod(made, 0o600); err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		ln.Close()
		return nil, err
	}
	return ln, nil
}

// serveSocket serves the admin socket, if there is one.
func (s *Server) serveSocket() {
	if s.socket == nil {
		return
	}
	a := s.socket
	s.log.Info("admin listening", "address", "unix:"+a.path, "writes", true)
	s.serving.Go(func() {
		if err := a.server.Serve(a.ln); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("the admin socket has failed; nobody can write over it until the next start", "socket", a.path, "error", err)
		}
	})
}

// close ends the socket: what is under way on it has a second.
func (a *adminSocket) close() {
	if a == nil {
		return
	}
	_ = os.Remove(a.path) // nobody takes the name while this answers; it may have been removed
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if a.server.Shutdown(ctx) != nil {
		_ = a.server.Close() // cuts the rest; there is nobody to tell
	}
	_ = a.ln.Close() // where it was never served
}
