package keyed

import (
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/room"
	"github.com/weir-go/weir/limit"
)

// account says whose part of what its key is served the work in a berth is, and how
// much it has been charged of it; 0: nobody knows. It is known of what has waited:
// when the rest came nobody's part was short, and the path of all work must not pay
// for it.
type account struct {
	user, tenant string
	charged      int64
	class        int8
}

// open notes that p was granted to w.
func (s *shard) open(p weir.Permit, w *room.Waiter) {
	id := int(p.Slot().ID())
	if id >= len(s.accounts) {
		s.accounts = append(s.accounts, make([]account, len(s.permits.chunks)*berthChunk-len(s.accounts))...)
	}
	s.accounts[id] = account{w.User, w.Tenant, max(1, w.Units), w.Class}
}

// forget ends the account of a berth, and with it the names.
func (s *shard) forget(id uint32) {
	if int(id) < len(s.accounts) {
		s.accounts[id] = account{}
	}
}

// settleCost settles what work has really cost with whose part it is, who has to
// wait the longer for the next turn at this key, or less long. It reports whether
// that may have changed who goes next.
func (s *shard) settleCost(b *berth, units int64) bool {
	id := int(b.ID())
	if id >= len(s.accounts) || s.accounts[id].charged == 0 {
		return false
	}
	a := &s.accounts[id]
	units = min(max(units, 1), limit.MaxLimit)
	more := units - a.charged
	a.charged = units
	q, waited := s.queues[b.slot]
	if waited {
		q.room.Settle(int(a.class), a.user, a.tenant, float64(more))
	}
	return waited
}

// chargeTime settles, when work is done, what it was charged in advance with the
// time that it has held its slots: beside the median of all keys of the shard.
func (s *shard) chargeTime(b *berth, now time.Duration) {
	id, median := int(b.ID()), s.service.Median()
	if id >= len(s.accounts) || s.accounts[id].charged == 0 || !b.timed() || median <= 0 {
		return
	}
	if q, waited := s.queues[b.slot]; waited {
		a, took := &s.accounts[id], max(0, now-b.start)
		q.room.Settle(int(a.class), a.user, a.tenant, float64(a.charged)*(took.Seconds()/median.Seconds()-1))
	}
}
