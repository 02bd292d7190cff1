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
	l.exempt.close()
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
	refused.Deliver()
}

// finishClosing tells those that wait for it once nothing is in flight any more.
func (l *Limiter) finishClosing() {
	if l.idleDone || l.bank != l.limit {
		return
	}
	if exempt, _ := l.exempt.read(); exempt == 0 {
		l.idleDone = true
		close(l.idle)
	}
}

// Drain closes the limiter and waits until nothing is in flight, or until ctx is
// done: then the error says how much was still out. Exempt work counts too.
func (l *Limiter) Drain(ctx context.Context) error {
	l.Close()
	select {
	case <-l.idle:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.inFlight()
	if exempt, _ := l.exempt.read(); n > 0 || exempt > 0 {
		return fmt.Errorf("limit: gate %q: %d still in flight and %d exempt: %w", l.name, n, exempt, ctx.Err())
	}
	return nil
}
