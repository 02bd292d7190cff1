package keyed

import (
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
)

var (
	_ weir.Holder     = (*shard)(nil)
	_ weir.CostHolder = (*shard)(nil)
)

// lock takes the shard's lock and returns the time, which is read before: 0 where
// nobody needs it.
func (s *shard) lock(timed bool) (now time.Duration) {
	if timed || s.crowd.Load() > 0 {
		now = s.gate.now()
		s.mu.Lock()
		return now
	}
	s.mu.Lock()
	if len(s.queues) == 0 {
		return 0
	}
	s.mu.Unlock() // somebody has just begun to wait
	return s.lock(true)
}

// unlock is the end of everything that may have let somebody in.
func (s *shard) unlock(now time.Duration, out *answers) {
	s.arm(now)
	quit := s.closed && s.inFlight == 0 && s.exempt == 0
	s.mu.Unlock()
	out.Deliver()
	if quit {
		s.gate.quit()
	}
}

// PermitDone implements [weir.Holder].
func (s *shard) PermitDone(p weir.Permit, o weir.Outcome) {
	var out answers
	now := s.lock(isTimed(p.Slot().ID()))
	if p.Live() && s.settings().byTime {
		s.chargeTime(s.permits.at(p.Slot()), now)
	}
	b, sampled := s.release(p)
	if b == nil {
		s.mu.Unlock()
		return
	}
	var service time.Duration
	if !sampled {
		service = s.sample(b, o, now)
	}
	if b.cost > 0 {
		s.served(b.slot, now, &out)
	}
	s.unlock(now, &out)
	if !sampled {
		s.gate.finished(o, service)
	}
}

// PermitSampled implements [weir.Holder].
func (s *shard) PermitSampled(p weir.Permit, o weir.Outcome) {
	now := s.lock(isTimed(p.Slot().ID()))
	if !p.Slot().MarkSampled(p) {
		s.mu.Unlock()
		return
	}
	service := s.sample(s.permits.at(p.Slot()), o, now)
	s.mu.Unlock()
	s.gate.finished(o, service)
}

// PermitCancelled implements [weir.Holder].
func (s *shard) PermitCancelled(p weir.Permit) {
	var out answers
	now := s.lock(false)
	b, _ := s.release(p)
	if b == nil {
		s.mu.Unlock()
		return
	}
	if b.cost == 0 {
		s.count.exempt--
	} else {
		s.count.cancelled++
		if e := s.table.At(b.slot); e.Admitted > 0 {
			e.Admitted--
		}
		s.served(b.slot, now, &out)
	}
	s.unlock(now, &out)
}

// PermitCost implements [weir.CostHolder]: from now on the permit holds units
// instead of what it was admitted with, at least 1 and at most the key's limit.
// More may bring the key above its limit, and then nothing is granted until enough
// has come back; less lets in who waits. All of the units, also those above the
// limit, count for whose turn is next among those that wait for the key.
func (s *shard) PermitCost(p weir.Permit, gate string, units int64) {
	if gate != "" && gate != s.gate.name {
		return
	}
	var out answers
	now := s.lock(false)
	b := s.permits.at(p.Slot())
	if !p.Live() || b.cost == 0 {
		s.mu.Unlock()
		return
	}
	most := s.settings().of(s.table.At(b.slot))
	change := s.hold(b.slot, min(max(units, 1), most, limit.MaxLimit)-b.cost)
	b.cost += change
	if settled := s.settleCost(b, units); settled || change < 0 {
		s.served(b.slot, now, &out)
	}
	s.unlock(now, &out)
}

// SlotFreed implements [weir.Holder]; a berth is never freed inline.
func (s *shard) SlotFreed(*weir.Slot) {}
