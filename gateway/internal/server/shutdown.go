package server

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// shutdown stops the server: lame duck, no more accepting, waiting requests
// refused, then what is in flight within the grace period. The admin listener
// answers until the end.
func (s *Server) shutdown() error {
	cfg := s.state.Load().cfg.Shutdown
	s.draining.Store(true)
	s.log.Info("shutting down", "lame_duck", cfg.LameDuck.String(), "grace", cfg.Grace.String(), "in_flight", s.inFlight.Load())
	aborted := !s.pause(time.Duration(cfg.LameDuck))

	s.mu.Lock() // waits for a reload under way; none begins any more
	defer s.mu.Unlock()
	s.stopped = true
	s.close()
	each(s.listeners, func(l *listener) { l.stopAccepting(false) })
	st := s.state.Load()
	st.policy.Close()
	for _, r := range s.retiring {
		r.policy.Close()
	}

	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(cfg.Grace))
	defer cancel()
	go func() {
		select {
		case <-s.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	complete := s.finish(ctx)
	s.save()
	st.retire(nil)
	st.stores.closeBut(nil)
	for _, r := range s.retiring {
		r.close()
	}
	if s.admin != nil {
		s.stopAdmin()
	}
	s.socket.close()
	s.cut()
	s.leaving.Wait()
	s.serving.Wait()
	aborted = aborted || s.isAborted()
	s.notes.limits.flush()
	s.notes.sumUp()
	switch {
	case complete:
		s.log.Info("stopped")
		return nil
	case aborted:
		return ErrAborted
	}
	return ErrGrace
}

// pause waits for d and reports whether it was left in peace.
func (s *Server) pause(d time.Duration) bool {
	if d <= 0 {
		return !s.isAborted()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.ended:
		return false
	}
}

func (s *Server) isAborted() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// finish waits for what is in flight, hijacked connections included, and cuts
// what is left when ctx ends. It reports whether there was nothing to cut.
func (s *Server) finish(ctx context.Context) bool {
	var cut atomic.Bool
	each(s.listeners, func(l *listener) {
		if !l.stop(ctx) {
			cut.Store(true)
		}
	})
	// net/http forgets hijacked connections; their handlers are still counted.
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for s.inFlight.Load() > 0 {
		select {
		case <-tick.C:
			continue
		case <-ctx.Done():
		}
		cut.Store(true)
		s.log.Warn("cutting off what is still in flight", "requests", s.inFlight.Load())
		break
	}
	for _, l := range s.listeners {
		l.conns.cut()
	}
	return !cut.Load()
}

// stopAdmin ends the admin listener: a scrape under way has a second.
func (s *Server) stopAdmin() {
	s.admin.stopAccepting(false)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s.admin.stop(ctx)
}

// each calls fn for all listeners at once and waits.
func each(ls []*listener, fn func(*listener)) {
	var all sync.WaitGroup
	for _, l := range ls {
		all.Go(func() { fn(l) })
	}
	all.Wait()
}
