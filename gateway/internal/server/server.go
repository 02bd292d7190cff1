package server

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/admin"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/weirhttp"
)

// Options is what a [Server] needs beside its configuration. The zero value is
// fine.
type Options struct {
	// Logger is where the server logs. Default: slog.Default().
	Logger *slog.Logger
	// Version is shown in metrics.
	Version string
	// Load reads the configuration again, for Reload. nil means that it cannot
	// be reloaded.
	Load func() (*config.Config, error)
	// Applied is told of each configuration that Reload has put in force. It
	// may be nil.
	Applied func(*config.Config)
	// Watch names the file that is looked at every second; when it changes,
	// the configuration is reloaded. Certificates are watched too. Empty means
	// that only Reload reloads.
	Watch string
}

// Server is a running gateway. It is safe for concurrent use.
type Server struct {
	opts    Options
	log     *slog.Logger
	notes   *notes
	metrics *admin.Metrics
	streams *weirhttp.Streams
	state   atomic.Pointer[state]
	book    *quotas.Book

	draining atomic.Bool
	ended    chan struct{} // closed by Abort
	endOnce  sync.Once
	failed   chan error // a listener that stopped by itself
	// The stages of a shutdown, as contexts that end: no more accepting, and no
	// more waiting for what is in flight.
	closing, cutting context.Context
	close, cut       context.CancelFunc

	serving  sync.WaitGroup
	leaving  sync.WaitGroup // listeners that a reload has replaced
	inFlight atomic.Int64

	reloading sync.Mutex // one Reload at a time; guards what follows
	seen      []stamp    // of the files, when they were read last
	fault     string     // of the last Reload, which has been logged in full

	mu        sync.Mutex // one reload or shutdown at a time; guards what follows
	retiring  []retiring
	listeners []*listener
	admin     *listener
	socket    *adminSocket // nil if there is none
	bookAt    bookPlace
	running   bool
	stopped   bool
}

// Errors of Run and Reload.
var (
	// ErrAborted is returned by Run after Abort: requests in flight were cut.
	ErrAborted = errors.New("aborted: requests in flight were cut off")
	// ErrGrace is returned by Run when the grace period ended before all
	// requests had.
	ErrGrace = errors.New("the grace period ended before every request had; the rest were cut off")
	// ErrNoReload is returned by Reload when there is no file to read again.
	ErrNoReload = errors.New("there is no configuration file to reload")
)

// New compiles cfg, restores learned limits, and opens every listener. It
// serves nothing before Run.
func New(cfg *config.Config, opts Options) (*Server, error) {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	s := &Server{
		opts:    opts,
		log:     opts.Logger,
		notes:   newNotes(opts.Logger),
		streams: weirhttp.NewStreams(weirhttp.StreamsConfig{Max: cfg.Streams.Max}),
		ended:   make(chan struct{}),
		failed:  make(chan error, 1),
	}
	s.notes.limits.look, s.notes.bucket = s.look, s.bucket
	s.closing, s.close = context.WithCancel(context.Background())
	s.cutting, s.cut = context.WithCancel(context.Background())
	s.metrics = admin.NewMetrics(s, opts.Version)
	if err := s.openBook(cfg); err != nil {
		return nil, err
	}
	st, err := s.compile(cfg, nil, nil)
	if err != nil {
		s.closeBook()
		return nil, err
	}
	s.restore(st)
	s.enforce(st)
	s.seen = s.stamps()
	if err := s.open(cfg); err != nil {
		st.policy.Close()
		st.stores.closeBut(nil)
		s.closeBook()
		return nil, err
	}
	return s, nil
}

// open opens the listeners of the first configuration.
func (s *Server) open(cfg *config.Config) error {
	set, err := s.listen(cfg, nil, nil)
	if err != nil {
		return err
	}
	socket, err := s.openSocket(cfg, nil)
	if err != nil {
		set.discard()
		return err
	}
	s.listeners, s.admin = set.public, set.admin
	s.swapSocket(cfg.Admin, socket)
	return nil
}

// Run serves until ctx ends, then shuts down. It returns nil after a complete
// shutdown, ErrGrace or ErrAborted after one that cut requests off, and the
// listener's error if one failed. Call it once.
func (s *Server) Run(ctx context.Context) error {
	s.mu.Lock()
	s.running = true
	for _, l := range s.all() {
		s.serve(l)
	}
	s.serveSocket()
	s.mu.Unlock()
	s.announce()

	background, stop := context.WithCancel(context.Background())
	var chores sync.WaitGroup
	chores.Go(func() { s.watch(background) })
	chores.Go(func() { s.saveRegularly(background) })
	chores.Go(func() { s.notes.run(background) })
	chores.Go(func() { s.follow(background) })
	chores.Go(func() { s.probe(background, s.state.Load()) })

	var failed error
	select {
	case <-ctx.Done():
	case <-s.ended:
	case failed = <-s.failed:
		s.log.Error("a listener failed; shutting down", "error", failed)
	}
	err := s.shutdown()
	stop()
	chores.Wait()
	s.closeBook()
	return cmpErr(failed, err)
}

func cmpErr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// Abort ends Run at once and cuts off whatever is in flight.
func (s *Server) Abort() { s.endOnce.Do(func() { close(s.ended) }) }

// enforce makes st the state that new requests get.
func (s *Server) enforce(st *state) {
	gates := maps.Collect(st.policy.Gates())
	routes := make([]string, 0, len(st.routes))
	for rt := range st.policy.Routes() {
		routes = append(routes, rt.Name())
	}
	s.metrics.Keep(gates, routes)
	s.metrics.Tenants(st.cfg.Metrics.Tenants)
	s.notes.limits.keep(slices.Collect(maps.Keys(gates)))
	s.state.Store(st)
	s.book.Adopt(st.plan, st.policy)
}

// announce says what is served where.
func (s *Server) announce() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.all() {
		s.announceListener(l)
	}
}

func (s *Server) announceListener(l *listener) {
	if l.forAdmin {
		s.log.Info("admin listening", "address", "http://"+l.Addr().String(), "paths", "/metrics /healthz /readyz /gates /explain /quotas")
		return
	}
	s.log.Info("listening", "address", l.Addr().String(), "tls", l.cfg.TLS != nil, "h2c", l.cfg.H2C)
}

// all returns every listener, the admin's last, so that health can be asked
// until the end.
func (s *Server) all() []*listener {
	if s.admin == nil {
		return s.listeners
	}
	return append(append([]*listener(nil), s.listeners...), s.admin)
}

// Addr returns the address of the first listener: with port 0 in the
// configuration, the port that was chosen. It is nil if there is none.
func (s *Server) Addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.listeners) == 0 {
		return nil
	}
	return s.listeners[0].Addr()
}

// Addrs returns the addresses of all listeners in the order of the
// configuration.
func (s *Server) Addrs() []net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	addrs := make([]net.Addr, len(s.listeners))
	for i, l := range s.listeners {
		addrs[i] = l.Addr()
	}
	return addrs
}

// AdminAddr returns the address of the admin listener, nil if it is off.
func (s *Server) AdminAddr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.admin == nil {
		return nil
	}
	return s.admin.Addr()
}

// Policy returns the policy in force.
func (s *Server) Policy() *policy.Policy { return s.state.Load().policy }

// bucket returns the key of the bucket that w has at a gate with a quota, empty if there
// is none.
func (s *Server) bucket(gate string, w weir.Work) string {
	st := s.state.Load()
	if st == nil {
		return ""
	}
	g := st.policy.Gate(gate)
	if g == nil || g.Quota() == nil {
		return ""
	}
	_, key := g.Quota().Key(w)
	return key
}

// look returns what there is to see of a gate, false if there is none of that
// name.
func (s *Server) look(gate string) (weir.Snapshot, bool) {
	if st := s.state.Load(); st != nil {
		if g := st.policy.Gate(gate); g != nil {
			return g.Snapshot(), true
		}
	}
	return weir.Snapshot{}, false
}

// Streams returns the pool of streams.
func (s *Server) Streams() *weirhttp.Streams { return s.streams }

// Ready reports whether the gateway wants new requests.
func (s *Server) Ready() bool { return !s.draining.Load() }
