package server

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
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
	err := s.reload()
	s.metrics.Reloaded(err == nil)
	if err != nil {
		s.log.Error("configuration not reloaded; the one in force stays", "error", err)
		return err
	}
	return nil
}

func (s *Server) reload() error {
	cfg, err := s.opts.Load()
	if err != nil {
		return err
	}
	return s.apply(cfg)
}

// apply puts cfg in force.
func (s *Server) apply(cfg *config.Config) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.draining.Load() {
		return fmt.Errorf("the gateway is shutting down")
	}
	if err := checkUpstreams(cfg); err != nil {
		return err
	}
	set, err := s.listen(cfg, s.listeners, s.admin)
	if err != nil {
		return err
	}
	if err := loadCerts(set.public); err != nil {
		set.discard()
		return err
	}
	prev := s.state.Load()
	next, err := s.compile(cfg, prev)
	if err != nil {
		set.discard()
		return err
	}
	s.enforce(next)
	s.streams.SetMax(cfg.Streams.Max)
	s.swap(set)
	prev.retire(next)
	if s.opts.Applied != nil {
		s.opts.Applied(cfg)
	}
	s.log.Info("configuration reloaded", "routes", len(cfg.Routes), "gates", len(cfg.Gates), "upstreams", len(cfg.Upstreams))
	return nil
}

// swap serves the new listeners and lets the old ones go: they accept no more,
// and what is in flight on them ends in its own time.
func (s *Server) swap(set *listenerSet) {
	old := s.all()
	s.listeners, s.admin = set.public, set.admin
	if s.running {
		for _, l := range set.opened {
			s.serve(l)
		}
	}
	now := s.all()
	for _, l := range old {
		if slices.Contains(now, l) {
			continue
		}
		s.leaving.Go(func() { s.letGo(l, set.shared[l]) })
	}
}

// letGo ends a listener that a reload has replaced or taken away. It accepts no
// more, and each answer on it asks the client to come back on another
// connection. Idle connections are left to their time-out: closing one might
// meet a request on its way.
func (s *Server) letGo(l *listener, shared bool) {
	l.stopAccepting(shared)
	if l.ended != nil {
		<-l.ended // a connection taken last would be cut before it is counted
	}
	l.conns.waitEmpty(s.closing)
	l.stop(s.cutting)
	l.conns.waitEmpty(s.cutting) // net/http forgets hijacked connections
	l.conns.cut()
}

// loadCerts reads the certificates again, also of listeners that stay.
func loadCerts(ls []*listener) error {
	for _, l := range ls {
		if err := l.loadCert(); err != nil {
			return err
		}
	}
	return nil
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
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	seen := s.stamps()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := s.stamps()
		if slices.Equal(now, seen) {
			continue
		}
		seen = now
		_ = s.Reload() // which has logged and counted it
	}
}
