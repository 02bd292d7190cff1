package limit

import (
	"context"
	"fmt"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/room"
)

// Close refuses new work, and what waits, with [weir.ReasonDraining]. Permits in
// flight stay valid. Close does not wait for them: see [Limiter.Drain]. Closing
// twice does nothing.
func (l *Limiter) Close() {
	now := l.now()
	l.mu.Lock()
	l.shiftDown(now)
	l.closed = true
	l.tickAt = room.Never
	var refused answers
	for w := l.room.Oldest(); w != nil; w = l.room.Oldest() {
		l.room.Remove(w)
		answer(&refused, w, weir.Permit{}, l.refusal.Load().draining)
	}
	l.settle(now) // nobody waits any more: no answers
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	refused.deliver()
}

// Drain closes the limiter and waits until nothing is in flight, or until ctx is
// done: then the error says how much was still out.
func (l *Limiter) Drain(ctx context.Context) error {
	l.Close()
	select {
	case <-l.idle:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.inFlight(); n > 0 {
		return fmt.Errorf("limit: gate %q: %d still in flight: %w", l.name, n, ctx.Err())
	}
	return nil
}
