package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/weir-go/weir/gateway/internal/accesslog"
	"github.com/weir-go/weir/gateway/internal/admin"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/eventlog"
	"github.com/weir-go/weir/gateway/internal/kafka"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/gateway/internal/ratelimit"
	"github.com/weir-go/weir/gateway/internal/tracing"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/signal"
)

// Reload reads the configuration again and puts it in force. Gates with the same name and kind
// keep what is in flight, their limit and what they have learned. Listeners with the same address keep their
// socket. Requests in progress end under the configuration they began with. An error changes
// nothing. While the file on disk is refused again and again, the certificates in force are still read.
func (s *Server) Reload() error {
	if s.opts.Load == nil {
		s.log.Warn("nothing to reload: the gateway was started without a configuration file")
		s.reopenAccessLog()
		return ErrNoReload
	}
	s.reloading.Lock()
	defer s.reloading.Unlock()
	return s.reloadNow()
}

// reloadNow is reload for somebody who has asked for it. With a fault it opens the access log again all the
// same: whoever has renamed that does not know of the faults in the file.
func (s *Server) reloadNow() error {
	err := s.reload(false)
	if err != nil {
		s.reopenAccessLog()
	}
	return err
}

// watchFiles reloads when the file or a certificate has changed. It looks at the files' state now and then.
// Nothing else works for editors that write in place, editors that rename, and mounted config maps
// that swap a symbolic link.
func (s *Server) watchFiles(ctx context.Context) {
	if s.opts.Watch == "" || s.opts.Load == nil {
		return
	}
	every(ctx, lookEvery, s.reloadChanged)
}

// lookEvery is how often the files' state is looked at. A change is in force after the second look.
const lookEvery = 500 * time.Millisecond

// retryAfter is after how many looks a reload that was refused is tried again, which makes 20 s. What a refused
// configuration depends on is not known. It may be mended in a file that is not looked at, or be a port that is free now.
const retryAfter = 40

// reloadChanged reloads if a file has changed since it was read, and not since the last look. Whoever writes in place
// may not be done: half a file is often a valid one, with fewer routes.
func (s *Server) reloadChanged() {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	now := s.files(s.state.Load().cfg)
	rests := maps.EqualFunc(now, s.looked, sameVersion)
	s.looked = now
	switch {
	case !rests:
	case !maps.EqualFunc(now, s.seen, sameVersion):
		_ = s.reload(false) // which has logged and counted it
	case s.logged != nil:
		if s.refused++; s.refused >= retryAfter {
			_ = s.reload(true)
		}
	}
}

// reload is Reload, with reloading held. It remembers which files it has read, so that the
// watcher does not read the same again, and logs a fault in full only once. With retry, nobody has asked and no
// known file has changed: the same fault is no news then.
func (s *Server) reload(retry bool) error {
	before, last := s.state.Load().cfg, s.seen
	s.seen, s.refused = s.files(before), 0
	cfg, err := s.opts.Load()
	if err == nil {
		read := s.files(cfg)
		if err = s.apply(cfg); err == nil {
			// Versions are from before the reading. Only those of files that the last
			// configuration did not name are from after, because this one names them.
			for name := range read {
				if was, known := s.seen[name]; known {
					read[name] = was
				}
			}
			s.seen = read
		}
	}
	told := s.opts.Watch != "" && sameVersion(last[s.opts.Watch], s.seen[s.opts.Watch]) // the fault of the file is not new
	unread := err != nil && !told
	if err != nil && told && (!retry || s.unread) {
		unread = !s.renewCertificates(err)
	}
	s.unread = unread
	if retry && eventlog.SameTrouble(s.logged, err) {
		return err
	}
	s.metrics.Reloaded(err == nil)
	s.remember(before, cfg, err)
	switch {
	case err == nil:
		s.logged = nil
	case s.logged != nil && err.Error() == s.logged.Error():
		s.log.Warn("configuration not reloaded, for the same reason as at the last try; the configuration in force stays. weir reload tries again, and prints the reason")
	default:
		s.logged = err
		s.log.Error("configuration not reloaded; the configuration in force stays", "error", err)
	}
	return err
}

// renewCertificates reads the certificates of the configuration in force again. What renews them does not know that the
// file on disk has a fault, which was told of already. With the fault in it, certificates would expire until it is mended.
// All are read, or none is in force. refused says why the file is.
func (s *Server) renewCertificates(refused error) (renewed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining.Load() {
		return false
	}
	use, err := readCertificates(s.listeners)
	if err != nil {
		if !tellsOfCertificates(refused) && !eventlog.SameTrouble(s.unreadable, err) {
			s.log.Error("certificates not read again; those in force stay", "error", err)
			s.unreadable = err
		}
		return false
	}
	s.unreadable = nil
	for _, use := range use {
		use()
	}
	s.shareAuthorities(s.listeners)
	return true
}

// shareAuthorities gives the authorities of listeners to all that were at their addresses before and still have
// connections. Some of those were replaced by an earlier reload. The caller holds mu, or has made the server.
func (s *Server) shareAuthorities(of []*listener) {
	for _, old := range slices.Concat(s.listeners, s.parting) {
		if l := find(of, old.cfg.Address); l != nil && l != old {
			old.conns.ReplacedBy(l.conns)
		}
	}
}

// tellsOfCertificates reports whether the faults of a file are also those of listeners' certificates.
func tellsOfCertificates(refused error) bool {
	var faults *fault.Faults
	return errors.As(refused, &faults) && slices.ContainsFunc(faults.List, func(f fault.Fault) bool {
		return slices.Contains(f.Path, "listeners") && slices.Contains(f.Path, "tls")
	})
}

// remember keeps what became of a reload, for those who ask. The caller holds reloading.
func (s *Server) remember(before, cfg *config.Config, err error) {
	last := s.lastReload()
	last.Attempts++
	last.At, last.Error = time.Now(), ""
	if err != nil {
		last.Result, last.Error = admin.ReloadRefused, err.Error()
	} else if changes := cfg.Changes(before); len(changes) > 0 {
		last.Result, last.Changes, last.ChangedAt = admin.ReloadChanged, changes, last.At
	} else {
		last.Result = admin.ReloadUnchanged
	}
	s.last.Store(&last)
}

// lastReload returns what became of the last reload.
func (s *Server) lastReload() admin.Reload {
	if last := s.last.Load(); last != nil {
		return *last
	}
	return admin.Reload{File: s.opts.Watch}
}

// reloadAndTell is Reload for somebody who wants to hear of it.
func (s *Server) reloadAndTell() admin.Reload {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	_ = s.reloadNow() // lastReload has the error
	return s.lastReload()
}

// files describes the files that cfg depends on: the configuration's own, those of the rate limit
// service and the certificates. One that is not there is nil.
func (s *Server) files(cfg *config.Config) map[string]os.FileInfo {
	names := append([]string{s.opts.Watch}, cfg.RateLimitFiles()...)
	for _, l := range wantedBy(cfg) {
		if l.TLS != nil {
			names = append(names, l.TLS.Cert, l.TLS.Key)
			if l.TLS.ClientCA != "" {
				names = append(names, l.TLS.ClientCA)
			}
		}
	}
	all := make(map[string]os.FileInfo, len(names))
	for _, name := range names {
		all[name], _ = os.Stat(name)
	}
	return all
}

// sameVersion reports whether a and b are the same version of a file.
func sameVersion(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && os.SameFile(a, b)
}

var errShuttingDown = errors.New("the gateway is shutting down")

// apply puts cfg in force in the place of the configuration before.
func (s *Server) apply(cfg *config.Config) error {
	s.awaitSockets(cfg)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining.Load() {
		return errShuttingDown
	}
	before := s.state.Load().cfg
	if err := s.install(cfg); err != nil {
		return err
	}
	if s.opts.Applied != nil {
		s.opts.Applied(cfg)
	}
	s.events.AfterReload()
	s.log.Info("configuration reloaded", "routes", len(cfg.Routes), "gates", len(cfg.Gates), "upstreams", len(cfg.Upstreams),
		"changes", cfg.Changes(before))
	return nil
}

// install puts cfg in force, the first configuration or another in the place of the one
// before. On an error nothing has changed. The caller holds mu, or has made the server.
func (s *Server) install(cfg *config.Config) error {
	prev := s.state.Load()
	if prev == nil {
		prev = new(state) // at the start
	}
	next := &state{cfg: cfg, routes: make(map[*policy.Route]*route)}
	o, err := s.open(next, prev)
	if err != nil {
		return err
	}

	// 3. Compile the policy, with the rules set at run time over those of the file. It
	// adopts the gates that keep their name, which is why nothing after it may fail.
	o.undo = append(o.undo, s.events.BeforeReload())
	if err := s.compile(next, prev, o.rules); err != nil {
		o.close()
		return err
	}

	// 4. Certificates that were read again are in force. Old listeners trust the new authorities
	// only, before the new configuration trusts anybody.
	for _, use := range o.certificates {
		use()
	}
	s.shareAuthorities(o.listeners.public)

	// 5. New requests get the new configuration.
	s.swap(next)
	s.rulesPlace = o.place
	s.streams.SetMax(cfg.Streams.Max)
	s.swapAccessLog(o.access)

	// 6. Serve the new listeners, and let the old ones go.
	s.swapListeners(o.listeners)
	s.swapSocket(cfg.Admin, o.socket)

	// 7. Close what nothing uses any more, once nothing can be in progress in it.
	if prev.policy != nil {
		s.closeLater(prev, next)
	}
	return nil
}

// opened is what a configuration needs that can fail to open.
type opened struct {
	place     rulesPlace
	rules     *quotas.Saved
	listeners *listeners
	socket    *admin.Socket
	access    *accesslog.Log // nil for none
	undo      []func()       // closes what is new, and takes back what was changed

	certificates []func() // puts those in force that were read again
}

func (o *opened) close() {
	for _, undo := range slices.Backward(o.undo) {
		undo()
	}
}

// open is the first two steps of install. On an error, what it opened is closed again.
func (s *Server) open(next, prev *state) (_ *opened, err error) {
	o := new(opened)
	defer func() {
		if err != nil {
			o.close()
		}
	}()

	// 1. Make the upstreams. They connect to nothing yet.
	cfg, first := next.cfg, s.book == nil
	if next.upstreams, err = s.newUpstreams(cfg); err != nil {
		return nil, err
	}

	// 2. Open what is not open yet: rules that are set at run time, and listeners with their certificates. Then the admin
	//    socket, the access log, tracing, stores and lags of Kafka. What is open and has not changed is kept.
	if o.place, o.rules, err = s.openRules(cfg); err != nil {
		return nil, err
	}
	o.undo = append(o.undo, func() {
		if first {
			s.closeBook()
		} else if err := o.rules.Close(); err != nil {
			s.log.Warn("the quotas file or store of a refused configuration could not be closed", "error", err)
		}
	})
	if o.listeners, err = s.openListeners(cfg); err != nil {
		return nil, err
	}
	o.undo = append(o.undo, o.listeners.discard)
	if o.certificates, err = readCertificates(o.listeners.public); err != nil {
		return nil, err
	}
	if o.socket, err = s.openSocket(cfg); err != nil {
		return nil, err
	}
	if o.socket != s.socket {
		o.undo = append(o.undo, o.socket.Close)
	}
	if o.access, err = s.openAccessLog(cfg); err != nil {
		return nil, err
	}
	o.undo = append(o.undo, func() { s.discardAccessLog(o.access) })
	next.tracer, err = tracing.Open(cfg.Tracing, prev.tracer, tracing.Options{Version: s.opts.Version, Counts: &s.traceCounts, Failed: s.events.SpansLost})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.At("tracing"), err)
	}
	o.undo = append(o.undo, func() {
		if next.tracer != prev.tracer {
			closeTracer(next.tracer)
		}
	})
	if next.stores, err = s.openStores(cfg, prev.stores); err != nil {
		return nil, err
	}
	o.undo = append(o.undo, func() { next.stores.closeBut(prev.stores) })
	if next.lags, err = openLags(cfg, prev.lags); err != nil {
		return nil, err
	}
	o.undo = append(o.undo, func() { next.lags.closeBut(prev.lags) })
	return o, nil
}

// state is one configuration in force: everything a request needs. It never changes; a
// reload puts another in its place.
type state struct {
	cfg       *config.Config
	policy    *policy.Policy
	routes    map[*policy.Route]*route
	upstreams map[string]*proxy.Upstream
	stores    stores
	lags      lags
	plan      *quotas.Plan
	tracer    *tracing.Tracer // nil for none
	domains   map[string]ratelimit.Found
	kafka     map[string]kafka.Quotas
}

// route is what the gateway has for a route of the policy.
type route struct {
	upstream *proxy.Upstream
	stats    *admin.Route
	quotas   proxy.Quotas
}

// newUpstreams returns the upstreams of cfg, or what is wrong with them.
func (s *Server) newUpstreams(cfg *config.Config) (map[string]*proxy.Upstream, error) {
	all := make(map[string]*proxy.Upstream, len(cfg.Upstreams))
	var err error
	for _, name := range slices.Sorted(maps.Keys(cfg.Upstreams)) {
		if all[name], err = proxy.New(name, cfg.Upstreams[name], s.log, s.events); err != nil {
			return nil, err
		}
	}
	for i, rt := range cfg.Routes {
		if all[rt.Upstream] == nil && (rt.Upstream != "" || cfg.ServesHTTP()) {
			return nil, fmt.Errorf("routes[%d] leads to upstream %q, which is not defined", i, rt.Upstream)
		}
	}
	return all, nil
}

// compile compiles the policy of next, which has everything else. It adopts the gates and
// targets of prev, which has not changed after an error. rules are those set at run time,
// nil if they are where they were.
func (s *Server) compile(next, prev *state, rules *quotas.Saved) (err error) {
	spec := next.cfg.Policy()
	spec.Gates = proxy.WithTargetGates(spec.Gates, next.cfg.Upstreams)
	next.plan = s.book.Plan(spec, next.cfg.QuotaPlace, rules)
	opts := policy.Options{
		Hooks: s.hooks(), Observed: s.events.Observed,
		SignalHooks: signal.Hooks{Trouble: s.events.SignalTrouble, Recovered: s.events.SignalRecovered},
		Stores:      quotaStores(next.stores),
		Signals:     lagSignals(next.lags),
		QuotaRules:  next.plan.Rules,
		Previous:    prev.policy,
	}
	if next.policy, err = policy.Compile(spec, opts); err != nil {
		return err
	}
	next.domains = next.rateLimitDomains()
	next.kafka = next.kafkaQuotas()
	for name, u := range next.upstreams {
		u.Attach(next.policy, prev.upstreams[name])
	}
	for rt := range next.policy.Routes() {
		next.routes[rt] = &route{next.upstreams[rt.Upstream()], s.metrics.Route(rt.Name()), proxy.NewQuotas(rt)}
	}
	return nil
}

// swap makes st the state that new requests get.
func (s *Server) swap(st *state) {
	s.metrics.KeepOnly(st.policy, st.cfg.Metrics.Tenants)
	s.events.KeepOnly(func(gate string) bool { return st.policy.Gate(gate) != nil })
	s.state.Store(st)
	s.rateLimit.DropGone()
	select {
	case s.swapped <- struct{}{}:
	default: // whoever is told reads the state after that
	}
	s.book.SetPolicy(st.plan, st.policy)
}

// replaced is a policy that a reload has replaced. Its gates work on until nobody can be
// waiting in them.
type replaced struct {
	policy *policy.Policy
	until  time.Time
	close  func() // the stores, the lags and the tracer that nothing uses then
}

// closeLater closes what only prev uses, once nothing can be in progress in it. It remembers
// prev for a shutdown that comes while requests wait there.
func (s *Server) closeLater(prev, next *state) {
	prev.replacedBy(next)
	closeUnused := func() {
		prev.stores.closeBut(next.stores)
		prev.lags.closeBut(next.lags)
		if prev.tracer != next.tracer {
			closeTracer(prev.tracer)
		}
	}
	s.replaced = append(s.replaced, replaced{prev.policy, time.Now().Add(policy.ClosesWithin), closeUnused})
	time.AfterFunc(policy.ClosesWithin, func() {
		closeUnused()
		s.forgetReplaced()
	})
}

// lastSpans is how long a tracer has to send its last spans.
const lastSpans = 2 * time.Second

func closeTracer(t *tracing.Tracer) {
	ctx, cancel := context.WithTimeout(context.Background(), lastSpans)
	defer cancel()
	t.Close(ctx)
}

// forgetReplaced lets go of the policies whose time is over.
func (s *Server) forgetReplaced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replaced = slices.DeleteFunc(s.replaced, func(r replaced) bool { return !time.Now().Before(r.until) })
}

// replacedBy lets the state go: next is in force, or nothing if it is nil.
func (st *state) replacedBy(next *state) {
	if next == nil {
		next = new(state)
	}
	st.policy.Replace(next.policy)
	for name, u := range st.upstreams {
		u.ReplacedBy(next.upstreams[name])
	}
}
