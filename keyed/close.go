package keyed

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/room"
)

// ending is how far the gate has closed.
type ending struct {
	shut atomic.Bool   // Close has been called
	idle chan struct{} // closed when nothing is in flight any more
	mu   sync.Mutex
	done bool // idle is closed
}

func (e *ending) closed() bool { return e.shut.Load() }

// Close refuses new work, and what waits, with [weir.ReasonDraining]. Permits in
// flight stay valid. Close does not wait for them: see [Gate.Drain]. Closing twice
// does nothing.
func (g *Gate) Close() {
	if g.shut.Swap(true) {
		return
	}
	g.control.Lock()
	g.schedule(g.now(), 0)
	g.control.Unlock()
	var out answers
	for i := range g.shards {
		g.shards[i].close(&out)
	}
	out.Deliver()
	g.quit()
}

func (s *shard) close(out *answers) {
	now := s.gate.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for len(s.expiry) > 0 {
		q := s.expiry[0]
		for w := q.room.Next(now); w != nil; w = q.room.Next(now) {
			q.room.Remove(w)
			s.answer(out, w, weir.Permit{}, s.gate.draining())
		}
		s.settle(q)
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	s.armed = room.Never
}

// quit is called when a closed shard has nothing in flight: the last one to do so
// ends the drain. Locks of shards are taken under the mutex, never the other way.
func (g *Gate) quit() {
	g.ending.mu.Lock()
	defer g.ending.mu.Unlock()
	if g.done || !g.closed() {
		return
	}
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		over := s.closed && s.inFlight == 0 && s.exempt == 0
		s.mu.Unlock()
		if !over {
			return
		}
	}
	g.done = true
	close(g.idle)
}

// Drain closes the gate and waits until nothing is in flight, exempt work
// included, or until ctx is done: then the error says how much was still out.
func (g *Gate) Drain(ctx context.Context) error {
	g.Close()
	select {
	case <-g.idle:
		return nil
	case <-ctx.Done():
	}
	if sum := g.total(); sum.inFlight+sum.exempt > 0 {
		return fmt.Errorf("keyed: gate %q: %d still in flight: %w", g.name, sum.inFlight+sum.exempt, ctx.Err())
	}
	return nil
}
