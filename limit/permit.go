package limit

import (
	"time"

	"github.com/weir-go/weir"
)

// holder is the limiter as the slots of its core know it.
type holder Limiter

var (
	_ weir.Holder     = (*holder)(nil)
	_ weir.CostHolder = (*holder)(nil)
)

// PermitDone implements [weir.Holder].
func (h *holder) PermitDone(p weir.Permit, o weir.Outcome) {
	l := (*Limiter)(h)
	now := l.front.Now()
	l.mu.Lock()
	if !l.slow {
		p.Slot().Free(p)
		l.mu.Unlock()
		return
	}
	if l.accounts.Forecast != nil {
		l.accounts.Finish(&l.room, p, now-l.berth(p.Slot()).start, l.service.Median())
	}
	b, sampled := l.release(now, p)
	if b == nil {
		l.mu.Unlock()
		return
	}
	service := now - b.start
	if !sampled {
		l.sample(now, b, o)
	}
	if l.upToDate(now) {
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
		l.front.Finished(o, service)
	}
}

// PermitSampled implements [weir.Holder].
func (h *holder) PermitSampled(p weir.Permit, o weir.Outcome) {
	l := (*Limiter)(h)
	now := l.front.Now()
	l.mu.Lock()
	if !l.slow || !p.Slot().MarkSampled(p) {
		l.mu.Unlock()
		return
	}
	b := l.berth(p.Slot())
	service := now - b.start
	l.sample(now, b, o)
	l.mu.Unlock()
	l.front.Finished(o, service)
}

// sample counts the outcome of what the berth holds, or held until now.
func (l *Limiter) sample(now time.Duration, b *berth, o weir.Outcome) {
	if int(o) < len(l.outcomes) {
		l.outcomes[o]++
	}
	service := max(0, now-b.start)
	if l.window.Sample(o, b.start, service, l.window.Area(now)-b.area) {
		l.service.Add(service)
	}
}

// PermitCancelled implements [weir.Holder].
func (h *holder) PermitCancelled(p weir.Permit) {
	l := (*Limiter)(h)
	now := l.front.Now()
	l.mu.Lock()
	if !l.slow {
		if live, _ := p.Slot().Free(p); live {
			l.cancelled.Add(1)
		}
		l.mu.Unlock()
		return
	}
	if b, _ := l.release(now, p); b != nil {
		l.cancelled.Add(1)
	}
	answered := l.update(now)
	l.mu.Unlock()
	answered.Deliver()
}

// SlotFreed implements [weir.Holder].
func (h *holder) SlotFreed(s *weir.Slot) {
	l := (*Limiter)(h)
	now := l.front.Now()
	l.mu.Lock()
	l.freed(now, s)
	answered := l.update(now)
	l.mu.Unlock()
	answered.Deliver()
}

// PermitCost implements [weir.CostHolder]. The work's tenant is charged what the
// work has really cost. So it waits longer, or less long, for its next turn. The
// slots it holds stay what they are. Nothing is free: a cost below 1 counts as 1.
// It does nothing once the permit is done.
func (h *holder) PermitCost(p weir.Permit, name string, units int64) {
	l := (*Limiter)(h)
	if name != "" && name != l.front.Name() {
		return
	}
	now := l.front.Now()
	l.mu.Lock()
	if !l.slow || !l.accounts.SetCost(&l.room, p, units) {
		l.mu.Unlock()
		return
	}
	answered := l.update(now) // somebody else may go next now, who fits
	l.mu.Unlock()
	answered.Deliver()
}
