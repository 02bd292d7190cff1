// Package server runs the gateway. It opens the listeners, and leads each request through policy
// and gates to its upstream. It reloads the configuration without dropping anything, and stops
// without losing an answer.
//
// The life of a [Server]:
//
//   - New opens every listener, so that an address in use is an error at once.
//   - Run serves until its context ends, then shuts down. First it is a lame duck: it still
//     serves, but clients are told to go (Connection: close, GOAWAY) and readiness checks
//     fail. Then it accepts no more connections, and those that are open have a second to come
//     to rest. After that, it refuses waiting requests as draining. Requests in flight have the
//     grace period.
//   - Reload reads the configuration again. Either all of it is put in force, or nothing
//     changes.
//
// One atomic pointer leads to all that a request needs, so a request sees one configuration
// from beginning to end.
package server

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/health"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/accesslog"
	"github.com/weir-go/weir/gateway/internal/admin"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/envoy"
	"github.com/weir-go/weir/gateway/internal/eventlog"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/gateway/internal/ratelimit"
	"github.com/weir-go/weir/gateway/internal/tracing"
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
	// Applied is called with each configuration that Reload has put in force. It may be nil.
	Applied func(*config.Config)
	// Watch names a file that is looked at twice a second. The configuration is reloaded when it has
	// changed, and rests until the next look. Certificates are watched too. One that was refused is
	// tried again now and then. Empty means that only Reload reloads.
	Watch string
	// Read is the state of Watch from before the configuration was read, so that no change
	// since then is missed. nil is its state at New.
	Read os.FileInfo
	// Inherited are open sockets for listeners with their addresses. It may be nil.
	Inherited *accept.Inherited
}

// Server is a running gateway. It is safe for concurrent use.
type Server struct {
	opts      Options
	log       *slog.Logger
	events    *eventlog.Log
	metrics   *admin.Metrics
	streams   *weirhttp.Streams
	envoy     *envoy.Service
	rateLimit *ratelimit.Service
	health    *health.Server        // of the listeners for an Envoy
	state     atomic.Pointer[state] // what a request needs; nil only within New
	book      *quotas.Book

	access       atomic.Pointer[accesslog.Log] // nil while there is none
	accessCounts accesslog.Counts
	lostLines    lostLines
	traceCounts  tracing.Counts

	swapped chan struct{} // another configuration is in force

	draining atomic.Bool
	failed   chan error // a listener that stopped by itself
	// The stages of a shutdown, as contexts. closing ends when nothing more is accepted, cutting
	// when nothing in flight is waited for any more, aborted by Abort.
	closing, cutting, aborted context.Context
	close, cut, abort         context.CancelFunc

	serving  sync.WaitGroup
	leaving  sync.WaitGroup // listeners that a reload has replaced
	oldLogs  sync.WaitGroup // access logs that write their last lines; unlike those above, also during a shutdown until ended
	cutOff   atomic.Bool    // a listener of leaving was closed with answers on their way
	inFlight atomic.Int64

	reloading sync.Mutex             // one Reload at a time, reading included; guards what follows
	seen      map[string]os.FileInfo // of the files, when they were read last
	looked    map[string]os.FileInfo // of the files, at the last look of the watcher
	logged    error                  // of the last Reload, logged in full; nil if that was not refused
	refused   int                    // looks since the last Reload, while that was refused
	unread    bool                   // that one has left certificates unread, because the fault of the file was new
	// unreadable is why certificates could not be read, logged; nil if they were.
	unreadable error
	last       atomic.Pointer[admin.Reload]

	mu         sync.Mutex // held while a configuration is put in force, and by a shutdown; guards what follows
	replaced   []replaced
	listeners  []*listener
	parting    []*listener // no longer in the configuration, and not let go yet
	admin      *listener
	socket     *admin.Socket // nil if there is none
	rulesPlace rulesPlace
	running    bool
	ended      bool // a shutdown is past the point at which logs may be opened
}

// Errors of Run and Reload.
var (
	// ErrAborted is returned by Run after Abort: requests in flight were cut.
	ErrAborted = errors.New("aborted: requests in flight were cut off")
	// ErrGrace is returned by Run when requests outlasted the grace period.
	ErrGrace = errors.New("requests were still in flight at the end of the grace period, and were cut off")
	// ErrNoReload is returned by Reload when there is no file to read again.
	ErrNoReload = errors.New("there is no configuration file to reload")
)

// New opens every listener, compiles cfg, and restores learned limits. It serves nothing
// before Run.
func New(cfg *config.Config, opts Options) (*Server, error) {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	s := &Server{
		opts:    opts,
		log:     opts.Logger,
		streams: weirhttp.NewStreams(weirhttp.StreamsConfig{Max: cfg.Streams.Max}),
		failed:  make(chan error, 1),
		swapped: make(chan struct{}, 1),
	}
	s.events = eventlog.New(opts.Logger, s.gateSnapshot)
	s.closing, s.close = context.WithCancel(context.Background())
	s.cutting, s.cut = context.WithCancel(context.Background())
	s.aborted, s.abort = context.WithCancel(context.Background())
	s.metrics = admin.NewMetrics(s, opts.Version)
	s.envoy, s.rateLimit, s.health = s.newEnvoy(), ratelimit.New(s.findDomain), health.NewServer()
	s.seen = s.files(cfg) // before install, which reads certificates
	if opts.Read != nil {
		s.seen[opts.Watch] = opts.Read
	}
	if err := s.install(cfg); err != nil {
		return nil, err
	}
	s.restoreLearned(s.state.Load())
	return s, nil
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
	for _, l := range s.all() {
		s.announce(l)
	}
	s.warnOfDescriptors()
	s.mu.Unlock()

	background, stop := context.WithCancel(context.Background())
	var chores sync.WaitGroup
	chores.Go(func() { s.watchFiles(background) })
	chores.Go(func() { every(background, saveEvery, func() { s.saveLearned(saveAgain) }) })
	chores.Go(func() { s.events.Run(background) })
	chores.Go(func() { every(background, quotas.PollInterval, func() { s.book.Follow(background) }) })
	chores.Go(func() { every(background, time.Second, func() { s.tellLost(false) }) })
	chores.Go(func() { s.checkTargets(background) })
	chores.Go(func() { s.tryTargets(background, s.state.Load()) })

	var failed error
	select {
	case <-ctx.Done():
	case <-s.aborted.Done():
	case failed = <-s.failed:
		s.log.Error("a listener failed; shutting down", "error", failed)
	}
	err := s.shutdown()
	stop()
	chores.Wait()
	s.access.Swap(nil).Close(lastLines)
	closeTracer(s.state.Load().tracer)
	s.tellLost(true)
	s.closeBook()
	if failed != nil {
		return failed
	}
	return err
}

// every calls do once in each interval until ctx ends.
func every(ctx context.Context, interval time.Duration, do func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

// Abort ends Run at once and cuts off whatever is in flight.
func (s *Server) Abort() { s.abort() }

// shutdown stops the server: lame duck, no more accepting, a second for connections to come to rest,
// waiting requests refused, then what is in flight within the grace period. The admin listener
// answers until the end.
func (s *Server) shutdown() error {
	cfg := s.state.Load().cfg.Shutdown
	s.draining.Store(true)
	s.health.Shutdown() // Envoys ask another weir; who comes is admitted as before
	s.log.Info("shutting down", "lame_duck", cfg.LameDuck.String(), "grace", cfg.Grace.String(), "in_flight", s.inFlight.Load())
	s.waitLameDuck(time.Duration(cfg.LameDuck))

	s.mu.Lock() // waits for a reload under way; none begins any more, so what it guards stays as it is
	replaced := s.replaced
	s.replaced = nil
	s.mu.Unlock() // whoever asks for metrics is answered until the end
	s.close()
	inParallel(s.listeners, func(l *listener) { l.stopAccepting(false, false) })
	// The end of it comes before any connection is closed: a request that ends then is one that was cut.
	ctx := s.cutting
	defer context.AfterFunc(s.aborted, s.cut)()
	defer time.AfterFunc(time.Duration(cfg.Grace), s.cut).Stop()
	s.rest(ctx, time.Duration(cfg.Grace)/2)
	st := s.state.Load()
	st.policy.Close()
	for _, r := range replaced {
		r.policy.Close()
	}
	s.envoy.Drain() // who waits has been refused by now, or is about to be

	complete := s.finish(ctx)
	s.awaitLeaving(ctx)
	s.saveLearned(saveLast)
	st.replacedBy(nil)
	st.stores.closeBut(nil)
	st.lags.closeBut(nil)
	for _, r := range replaced {
		r.close()
	}
	if s.admin != nil {
		s.stopAdmin()
	}
	s.socket.Close()
	s.cut()
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.oldLogs.Wait()
	s.leaving.Wait()
	s.serving.Wait()
	s.awaitLast()
	s.events.Flush()
	switch {
	case complete && !s.cutOff.Load():
		s.log.Info("stopped")
		return nil
	case s.aborted.Err() != nil:
		return ErrAborted
	}
	return ErrGrace
}

// waitLameDuck waits for d, or until somebody aborts.
func (s *Server) waitLameDuck(d time.Duration) {
	t := time.NewTimer(max(d, 0))
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.aborted.Done():
	}
}

// rest waits until connections have come to rest, or until the given time is over. Those of listeners that a reload has
// replaced count, too. Only then the gates close: who arrives last and finds a free slot is not refused.
func (s *Server) rest(ctx context.Context, most time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	s.mu.Lock()
	all := slices.Concat(s.listeners, s.parting)
	s.mu.Unlock()
	inParallel(all, func(l *listener) { l.rest(ctx) })
}

// finish waits for what is in flight, hijacked connections included, and cuts
// what is left when ctx ends. It reports whether there was nothing to cut.
func (s *Server) finish(ctx context.Context) bool {
	var cut atomic.Bool
	inParallel(s.listeners, func(l *listener) {
		if !l.stop(ctx) {
			cut.Store(true)
		}
	})
	// net/http forgets hijacked connections; their handlers are still counted.
	if !s.awaitHandlers(ctx) {
		cut.Store(true)
		why := "the grace period is over"
		if s.aborted.Err() != nil {
			why = "aborted"
		}
		s.log.Warn(why+"; cutting off what is still in flight", "requests", s.inFlight.Load())
	}
	for _, l := range s.listeners {
		l.conns.CloseAll()
	}
	return !cut.Load()
}

// awaitHandlers waits until no handler runs, and reports false if ctx ends before.
func (s *Server) awaitHandlers(ctx context.Context) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for s.inFlight.Load() > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// lastHandlers is how long handlers may take to return once their requests have been cut off.
const lastHandlers = time.Second

// awaitLast waits for the handlers of what was cut off. Each has a line and a span to write at its end.
func (s *Server) awaitLast() {
	ctx, cancel := context.WithTimeout(context.Background(), lastHandlers)
	defer cancel()
	s.awaitHandlers(ctx)
}

// awaitLeaving waits for the connections on replaced listeners, or until ctx ends. An answer may
// be on its way to a slow client after its handler has returned.
func (s *Server) awaitLeaving(ctx context.Context) {
	left := make(chan struct{})
	go func() {
		defer close(left)
		s.leaving.Wait()
	}()
	select {
	case <-left:
	case <-ctx.Done():
	}
}

// stopAdmin ends the admin listener: a scrape in progress, or about to come, has restFor.
func (s *Server) stopAdmin() {
	s.admin.stopAccepting(false, false)
	ctx, cancel := context.WithTimeout(context.Background(), s.admin.restFor)
	defer cancel()
	s.admin.rest(ctx)
	s.admin.stop(ctx)
}

// inParallel calls fn for all listeners at once and waits.
func inParallel(ls []*listener, fn func(*listener)) {
	var all sync.WaitGroup
	for _, l := range ls {
		all.Go(func() { fn(l) })
	}
	all.Wait()
}

// mostChecks bounds the health checks in progress at a time, of all upstreams.
const mostChecks = 64

// checkTargets has the targets of the configuration in force checked, until ctx ends.
func (s *Server) checkTargets(ctx context.Context) {
	slots := make(chan struct{}, mostChecks)
	for ctx.Err() == nil {
		var all sync.WaitGroup
		running, stop := context.WithCancel(ctx)
		for _, u := range s.state.Load().upstreams {
			all.Go(func() { u.Check(running, slots) })
		}
		select {
		case <-ctx.Done():
		case <-s.swapped:
		}
		stop()
		all.Wait()
	}
}

// tryTimeout bounds how long each target is tried at the start.
const tryTimeout = 2 * time.Second

// tryTargets tries once whether each target accepts connections, and has the upstream log which does
// not. It decides nothing: a target may come up later.
func (s *Server) tryTargets(ctx context.Context, st *state) {
	dialer := net.Dialer{Timeout: tryTimeout}
	for _, upstream := range slices.Sorted(maps.Keys(st.cfg.Upstreams)) {
		for _, target := range st.cfg.Upstreams[upstream].Targets {
			c, err := dialer.DialContext(ctx, network(target), hostPort(target))
			if err == nil {
				_ = c.Close() // that it opened is all there was to know
				continue
			}
			if ctx.Err() != nil {
				return
			}
			st.upstreams[upstream].Unreachable(target, err)
		}
	}
}

// network returns what a target is connected by: tcp, or unix for a socket.
func network(target string) string {
	if strings.HasPrefix(target, "unix:") {
		return "unix"
	}
	return "tcp"
}

// hostPort returns where to connect for a target's URL.
func hostPort(target string) string {
	u, err := url.Parse(target)
	if err != nil {
		return target
	}
	if u.Scheme == "unix" {
		return u.Path
	}
	port := "80"
	if u.Scheme == "https" {
		port = "443"
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port))
}

// all returns every listener, the admin's last, so that health can be asked until the end.
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

// gateSnapshot returns the state of a gate, false if no gate has that name.
func (s *Server) gateSnapshot(gate string) (weir.Snapshot, bool) {
	if st := s.state.Load(); st != nil {
		if g := st.policy.Gate(gate); g != nil {
			return g.Snapshot(), true
		}
	}
	return weir.Snapshot{}, false
}
