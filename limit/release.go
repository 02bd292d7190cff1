package limit

import (
	"time"

	"github.com/weir-go/weir"
)

// PermitDone implements [weir.Holder].
func (l *Limiter) PermitDone(p weir.Permit, o weir.Outcome) {
	now := l.now()
	l.mu.Lock()
	if !l.slow {
		p.Slot().Free(p)
		l.mu.Unlock()
		return
	}
	if l.byTime != nil {
		l.chargeTime(p, now)
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
	if l.quiet(now) {
		if l.word != inSlow {
			l.publish()
		}
		l.mu.Unlock()
	} else {
		answered := l.settle(now)
		l.mu.Unlock()
		answered.Deliver()
	}
	if !sampled && l.hooks.Load().Done != nil {
		l.finished(o, service)
	}
}

// PermitSampled implements [weir.Holder].
func (l *Limiter) PermitSampled(p weir.Permit, o weir.Outcome) {
	now := l.now()
	l.mu.Lock()
	if !l.slow || !p.Slot().MarkSampled(p) {
		l.mu.Unlock()
		return
	}
	b := l.berth(p.Slot())
	service := now - b.start
	l.sample(now, b, o)
	l.mu.Unlock()
	l.finished(o, service)
}

// PermitCancelled implements [weir.Holder].
func (l *Limiter) PermitCancelled(p weir.Permit) {
	now := l.now()
	l.mu.Lock()
	if !l.slow {
		if live, _ := p.Slot().Free(p); live {
			l.count.cancelled.Add(1)
		}
		l.mu.Unlock()
		return
	}
	if b, _ := l.release(now, p); b != nil {
		l.count.cancelled.Add(1)
	}
	answered := l.settle(now)
	l.mu.Unlock()
	answered.Deliver()
}

// SlotFreed implements [weir.Holder].
func (l *Limiter) SlotFreed(s *weir.Slot) {
	now := l.now()
	l.mu.Lock()
	l.freed(now, s)
	answered := l.settle(now)
	l.mu.Unlock()
	answered.Deliver()
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
