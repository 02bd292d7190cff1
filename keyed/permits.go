package keyed

import (
	"time"

	"github.com/weir-go/weir"
)

// berth is a slot with what the gate keeps of its present holder, guarded by the
// shard's lock.
type berth struct {
	weir.Slot
	start time.Duration // of the present use, if timed
	cost  int64         // units of the key; 0: exempt work
	slot  uint32        // the key's
	next  uint32        // on the free list: the next berth's id, plus 1
}

// Whether a use is timed shows in the number of its berth, which never changes: a
// release must know before it has the lock, because the clock is read outside of
// it.
func isTimed(id uint32) bool { return id&1 != 0 }

func (b *berth) timed() bool { return isTimed(b.ID()) }

// permits are the berths of a shard. There are as many as were ever in use at a
// time.
type permits struct {
	shard  *shard
	common weir.Slots // attention stays raised: every release comes to the shard
	chunks [][]berth
	free   [2]uint32 // untimed and timed: the first one's id, plus 1
}

// berthChunk is how many berths are made at once.
const berthChunk = 64

func (s *permits) init(sh *shard) {
	s.shard = sh
	s.common.Attention.Store(1)
}

func (s *permits) issue(slot uint32, cost int64, now time.Duration, timed bool) weir.Permit {
	kind := 0
	if timed {
		kind = 1
	}
	if s.free[kind] == 0 {
		s.grow()
	}
	b := s.berth(s.free[kind] - 1)
	s.free[kind] = b.next
	b.start, b.cost, b.slot = now, cost, slot
	return b.Issue()
}

func (s *permits) grow() {
	chunk := make([]berth, berthChunk)
	from := uint32(len(s.chunks) * berthChunk)
	s.chunks = append(s.chunks, chunk)
	for i := range chunk {
		chunk[i].Init(s.shard, &s.common, from+uint32(i))
		s.putBack(&chunk[i])
	}
}

func (s *permits) putBack(b *berth) {
	kind := b.ID() & 1
	b.next, s.free[kind] = s.free[kind], b.ID()+1
}

func (s *permits) at(slot *weir.Slot) *berth { return s.berth(slot.ID()) }

func (s *permits) berth(id uint32) *berth { return &s.chunks[id/berthChunk][id%berthChunk] }
