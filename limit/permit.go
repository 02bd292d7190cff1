package limit

import (
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/gate"
	"github.com/weir-go/weir/slot"
)

// holder is the limiter as the slots of its core know it.
type holder Limiter

// Done implements [slot.Holder].
func (h *holder) Done(t slot.Ticket, outcome uint8) {
	l := (*Limiter)(h)
	now := l.front.Now()
	l.mu.Lock()
	if !l.slow {
		t.Free()
		l.mu.Unlock()
		return
	}
	now = l.window.Latest(now)
	if l.accounts.Forecast != nil {
		l.accounts.Finish(&l.room, t, now-l.berth(t).start, l.service.Median())
	}
	b, sampled := l.release(now, t)
	if b == nil {
		l.mu.Unlock()
		return
	}
	service := max(0, now-b.start)
	if !sampled {
		l.sample(now, b, weir.Outcome(outcome))
	}
	if l.onlyPublishes(now) {
		if l.word != inSlow {
			l.publish()
		}
		l.mu.Unlock()
	} else {
		answered := l.update(now)
		l.mu.Unlock()
		answered.Deliver()
	}
	if !sampled && l.front.Hooks().Done != nil {
		l.front.Finished(weir.Outcome(outcome), service)
	}
}

// Sample implements [slot.Holder].
func (h *holder) Sample(t slot.Ticket, outcome uint8) {
	l := (*Limiter)(h)
	now := l.front.Now()
	l.mu.Lock()
	if !l.slow || !t.MarkSampled() {
		l.mu.Unlock()
		return
	}
	now = l.window.Latest(now)
	b := l.berth(t)
	service := max(0, now-b.start)
	l.sample(now, b, weir.Outcome(outcome))
	l.mu.Unlock()
	l.front.Finished(weir.Outcome(outcome), service)
}

// sample counts the outcome of what the berth holds, or held until now.
func (l *Limiter) sample(now time.Duration, b *berth, o weir.Outcome) {
	if int(o) < len(l.outcomes) {
		l.outcomes[o]++
	}
	service := max(0, now-b.start)
	if l.window.Sample(o, b.start, service, b.cost, l.window.Area(now)-b.area) {
		l.service.Add(service)
	}
}

// Cancel implements [slot.Holder].
func (h *holder) Cancel(t slot.Ticket) {
	l := (*Limiter)(h)
	now := l.front.Now()
	l.mu.Lock()
	if !l.slow {
		if live, _ := t.Free(); live {
			l.cancelled.Add(1)
		}
		l.mu.Unlock()
		return
	}
	if b, _ := l.release(now, t); b != nil {
		l.cancelled.Add(1)
	}
	answered := l.update(now)
	l.mu.Unlock()
	answered.Deliver()
}

// slotFreed hears that s was freed by compare-and-swap while the core shifted down.
func (l *Limiter) slotFreed(s *slot.Slot) {
	now := l.front.Now()
	l.mu.Lock()
	l.freed(now, s)
	answered := l.update(now)
	l.mu.Unlock()
	answered.Deliver()
}

// GiveUp implements [gate.Keeper].
func (h *holder) GiveUp(w *gate.Waiter) bool {
	l := (*Limiter)(h)
	now := l.front.Now()
	l.mu.Lock()
	queued := l.room.GiveUp(now, &w.Waiter)
	if queued {
		w.RetryAfter = l.comeBackIn(now, int(w.Class))
		if l.room.Len() == 0 {
			l.window.Saturated(now, l.bank < 1) // as update does while somebody waits
		}
	}
	answered := l.update(now) // it may have been in the way of others
	l.mu.Unlock()
	answered.Deliver()
	return queued
}

// SetCost implements [slot.Holder]. The work's tenant is charged what the
// work has really cost. So it waits longer, or less long, for its next turn. The
// slots it holds stay what they are. Nothing is free: a cost below 1 counts as 1.
// It does nothing once the permit is done.
func (h *holder) SetCost(t slot.Ticket, name string, units int64) {
	l := (*Limiter)(h)
	if name != "" && name != l.front.Name() {
		return
	}
	now := l.front.Now()
	l.mu.Lock()
	if !l.slow || !l.accounts.SetCost(&l.room, t, units) {
		l.mu.Unlock()
		return
	}
	answered := l.update(now) // somebody else may go next now, who fits
	l.mu.Unlock()
	answered.Deliver()
}
