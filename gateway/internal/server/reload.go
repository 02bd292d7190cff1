package server

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/policy"
)

// Reload reads the configuration again and takes it up: gates that keep their
// name keep what is in flight, their limit and what they have learned; listeners
// that keep their address keep their socket; requests under way end under the
// configuration they began with. On an error nothing has changed.
func (s *Server) Reload() error {
	if s.opts.Load == nil {
		s.log.Warn("nothing to reload: the gateway was started without a configuration file")
		return ErrNoReload
	}
	s.reloading.Lock()
	defer s.reloading.Unlock()
	return s.reload()
}

// reload is Reload. It takes note of which files it has read, so that the watcher
// does not read the same again, and logs a fault in full only once.
func (s *Server) reload() error {
	s.seen = s.stamps()
	cfg, err := s.opts.Load()
	if err == nil {
		certs := certStamps(cfg)
		if err = s.apply(cfg); err == nil {
			s.seen = append(s.seen[:1], certs...)
		}
	}
	s.metrics.Reloaded(err == nil)
	switch {
	case err == nil:
		s.fault = ""
		return nil
	case err.Error() == s.fault:
		s.log.Warn("configuration still not reloaded, for the same reason; the one in force stays")
	default:
		s.fault = err.Error()
		s.log.Error("configuration not reloaded; the one in force stays", "error", err)
	}
	return err
}

// reloadChanged reloads if a file has changed since it was read.
func (s *Server) reloadChanged() {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	if !slices.Equal(s.stamps(), s.seen) {
		_ = s.reload() // which has logged and counted it
	}
}

var errShuttingDown = errors.New("the gateway is shutting down")

// apply puts cfg in force.
func (s *Server) apply(cfg *config.Config) error {
	if s.draining.Load() { // a shutdown keeps the lock until its end
		return errShuttingDown
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.draining.Load() {
		return errShuttingDown
	}
	if err := checkUpstreams(cfg); err != nil {
		return err
	}
	opened, err := s.openAll(cfg)
	if err != nil {
		return err
	}
	s.notes.limits.settle() // what has moved by itself
	prev := s.state.Load()
	next, err := s.compile(cfg, prev, opened.kept)
	if err != nil {
		s.unopen(opened)
		return err
	}
	for l, heir := range opened.set.heirs {
		l.succeed(heir) // before anybody is believed by the new configuration
	}
	s.enforce(next)
	s.bookAt = opened.bookAt
	s.streams.SetMax(cfg.Streams.Max)
	s.swap(opened.set)
	s.swapSocket(cfg.Admin, opened.socket)
	s.retire(prev, next)
	if s.opts.Applied != nil {
		s.opts.Applied(cfg)
	}
	s.notes.limits.configured()
	s.log.Info("configuration reloaded", "routes", len(cfg.Routes), "gates", len(cfg.Gates), "upstreams", len(cfg.Upstreams))
	return nil
}

// opened is what a reload has opened that it can only use once the rest is sure.
type opened struct {
	set    *listenerSet
	socket *adminSocket
	kept   *quotas.Kept // nil: rules of quotas stay where they are
	bookAt bookPlace
}

// openAll opens what cfg asks for and is not open yet, all of it or nothing.
func (s *Server) openAll(cfg *config.Config) (*opened, error) {
	set, err := s.listen(cfg, s.listeners, s.admin)
	if err != nil {
		return nil, err
	}
	o := &opened{set: set}
	if err = s.loadCredentials(set.public...); err == nil {
		o.socket, err = s.openSocket(cfg, s.socket)
	}
	if err == nil {
		o.kept, o.bookAt, err = s.reopenBook(cfg)
	}
	if err != nil {
		s.unopen(o)
		return nil, err
	}
	return o, nil
}

// unopen closes what openAll has opened.
func (s *Server) unopen(o *opened) {
	o.set.discard()
	if o.socket != s.socket {
		o.socket.close()
	}
	if err := o.kept.Close(); err != nil {
		s.log.Warn("where quotas set at run time would have been kept was not closed", "error", err)
	}
}

// swap serves the new listeners and lets the old ones go: they accept no more,
// and what is in flight on them ends in its own time.
func (s *Server) swap(set *listenerSet) {
	old := s.all()
	for i, l := range set.public {
		l.conns.door.configure(set.limits[i], l.conns.door.now())
	}
	s.listeners, s.admin = set.public, set.admin
	if s.running {
		for _, l := range set.opened {
			s.serve(l)
			if !slices.ContainsFunc(old, l.sharesAddress) {
				s.announceListener(l)
			}
		}
	}
	now := s.all()
	for _, l := range old {
		if slices.Contains(now, l) {
			continue
		}
		s.leaving.Go(func() { s.letGo(l, set.heirs[l] != nil) })
	}
}

// letGo ends a listener that a reload has replaced or taken away. It accepts no
// more, and each answer on it asks the client to come back on another
// connection. Idle connections are left to their time-out: closing one might
// meet a request on its way.
func (s *Server) letGo(l *listener, shared bool) {
	l.stopAccepting(shared)
	if !shared {
		s.log.Info("stopped listening", "address", l.Addr().String())
	}
	if l.ended != nil {
		<-l.ended // a connection taken last would be cut before it is counted
	}
	l.conns.waitEmpty(s.closing)
	l.stop(s.cutting)
	l.conns.waitEmpty(s.cutting) // net/http forgets hijacked connections
	l.conns.cut()
}

// retiring is a policy that a reload has replaced. Its gates go on until nobody
// can be waiting in them.
type retiring struct {
	policy *policy.Policy
	until  time.Time
	close  func() // the stores that nothing uses then
}

// longestRetirement is when the gates of a retired policy have closed by
// themselves; see [policy.Policy.Retire].
const longestRetirement = 30 * time.Second

// retire lets next take over from prev, and remembers prev for a shutdown that
// comes while requests wait there.
func (s *Server) retire(prev, next *state) {
	prev.retire(next)
	now := time.Now()
	s.retiring = slices.DeleteFunc(s.retiring, func(r retiring) bool { return now.After(r.until) })
	closeStores := func() { prev.stores.closeBut(next.stores) }
	time.AfterFunc(longestRetirement, closeStores)
	s.retiring = append(s.retiring, retiring{prev.policy, now.Add(longestRetirement), closeStores})
}

// watchEvery is how often files are looked at. Asking the file system is the one
// way that works for editors that write in place, editors that rename, and
// mounted config maps that swap a symbolic link.
const watchEvery = time.Second

// watch reloads when the file or a certificate has changed.
func (s *Server) watch(ctx context.Context) {
	if s.opts.Watch == "" || s.opts.Load == nil {
		return
	}
	every(ctx, watchEvery, s.reloadChanged)
}

// stamp tells one version of a file from another without reading it. The zero
// stamp is a file that is not there.
type stamp struct {
	size    int64
	changed time.Time
	info    string // device and inode: a file put in place of another
}

// stamps looks at every file the configuration in force depends on: first its
// own, then the certificates.
func (s *Server) stamps() []stamp {
	return append([]stamp{stampOf(s.opts.Watch)}, certStamps(s.state.Load().cfg)...)
}

func certStamps(cfg *config.Config) []stamp {
	var all []stamp
	for _, l := range cfg.Listeners {
		if l.TLS != nil {
			all = append(all, stampOf(l.TLS.Cert), stampOf(l.TLS.Key))
			if l.TLS.ClientCA != "" {
				all = append(all, stampOf(l.TLS.ClientCA))
			}
		}
	}
	return all
}

func stampOf(name string) stamp {
	info, err := os.Stat(name)
	if err != nil {
		return stamp{}
	}
	return stamp{size: info.Size(), changed: info.ModTime(), info: identity(info)}
}
