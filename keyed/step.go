package keyed

import (
	"time"

	"github.com/weir-go/weir/internal/room"
)

// Next returns when [Gate.Step] is due, on the clock of Config.Now, and false if
// nothing is pending.
func (g *Gate) Next() (time.Duration, bool) {
	at := time.Duration(g.tickAt.Load())
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		at = min(at, s.due())
		s.mu.Unlock()
	}
	return at, at != room.Never
}

// Step does what is due: waiters whose time is up are refused, and a window that
// has ended goes to the controller. Calling it early does no harm. A gate on the
// real clock does it by itself.
func (g *Gate) Step() {
	for i := range g.shards {
		g.shards[i].step()
	}
	g.tick()
}

// due returns when the next waiter expires.
func (s *shard) due() time.Duration {
	if len(s.expiry) == 0 {
		return room.Never
	}
	return s.expiry[0].room.Expiry()
}

func (s *shard) step() {
	var out answers
	now := s.gate.now()
	s.mu.Lock()
	s.armed = room.Never
	s.expire(now, &out)
	s.unlock(now, &out)
}

// arm sets the timer for who expires next. It is not moved back when that turns
// out to be later: a call for nothing is cheaper than moving the timer with every
// waiter that leaves.
func (s *shard) arm(now time.Duration) {
	next := s.due()
	if s.gate.clock != nil || next >= s.armed {
		return
	}
	s.armed = next
	if s.timer == nil {
		s.timer = time.AfterFunc(next-now, s.step)
		return
	}
	s.timer.Reset(next - now)
}
