package quota

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// overflow keeps the buckets of keys for which there is no place.
type overflow struct {
	shard
	any  atomic.Bool   // there is one
	due  time.Duration // when to look again for those that are full
	most int           // how many there may be
}

// mostOverflow bounds the buckets of the overflow, one for each window. A rule takes more memory
// than the bucket of its window. Windows beyond the bound share none: with the slow, the quick would
// fill it, and one would pay for the debt of another.
const mostOverflow = maxClasses

func (o *overflow) init() {
	o.shard.init()
	o.most = mostOverflow
}

// overflowCell returns the bucket that all keys without a place share. It is an ordinary
// bucket: when its tokens are gone, they are refused. It is nil if there are too many. The
// overflow is locked, and its table has room.
func (m *Memory) overflowCell(index int, w *Window, at moment) *cell {
	m.overflowed.Add(1)
	s, id := m.findOverflow(index, w)
	if s != nil || m.overflow.used >= m.overflow.most {
		return s
	}
	m.overflow.any.Store(true)
	sh := &m.overflow.shard
	return m.add(sh, sh.table.Load(), id, w, full(w, at))
}

// makeRoom makes the next table if this one has no room for n more buckets. So those of one
// key stay where they are while it gets the others. If there are too many buckets, it forgets
// those that are full again. The overflow is locked.
func (o *overflow) makeRoom(m *Memory, n int, at moment) {
	if o.used+n > o.most {
		o.purgeIfDue(m, at)
	}
	if used := float64(o.used + n); used > fullAt*float64(len(o.table.Load().cells)) {
		m.rehash(&o.shard, at, false, int(used/beginAt)+1)
	}
}

// findOverflow finds the shared bucket for a window, and the id under which to make it. The
// overflow is locked.
func (m *Memory) findOverflow(index int, w *Window) (s *cell, id uint64) {
	id = windowID(maphash.Comparable(m.windows, *w), index)
	return m.overflow.table.Load().find(id), id
}

// purge forgets buckets that are full again. The overflow is locked.
func (o *overflow) purge(m *Memory, at moment) {
	if o.used > 0 {
		m.rehash(&o.shard, at, true, leastCells)
		o.any.Store(o.used > 0)
	}
}

// purgeIfDue is purge, but seldom.
func (o *overflow) purgeIfDue(m *Memory, at moment) {
	if !early(at.now, o.due, sweepEvery) {
		o.due = at.now + sweepEvery
		o.purge(m, m.moments())
	}
}

// overflows reports whether a key has no bucket of its own in some window and would begin
// with less than a full one.
func (m *Memory) overflows(hash uint64, windows []Window) bool {
	sh, n := m.shard(hash), len(windows)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	var cells [MaxWindows]*cell
	var kept [MaxWindows]bucket
	roomless := m.look(sh, hash, windows, m.moment(m.now(), windows), cells[:n], kept[:n])
	for i := range windows {
		if cells[i] == nil && kept[i].tokens < windows[i].Burst {
			return true
		}
	}
	return roomless >= 0
}

// fresh returns the bucket of a new key. It is full, less what the overflow has lately
// been charged for the same window. The key may have been one of those that shared it,
// and no debt is forgiven because there was no place. Later refunds to the key are paid
// for in this way, too.
func (m *Memory) fresh(index int, w *Window, at moment) bucket {
	b := full(w, at)
	if !m.overflow.any.Load() {
		return b
	}
	m.overflow.mu.Lock()
	defer m.overflow.mu.Unlock()
	s, _ := m.findOverflow(index, w)
	if s == nil {
		return b
	}
	shared, _, _, _ := s.read() // with the lock held no bucket moves
	shared.refill(w, m.steady(at, &shared, w))
	if shared.tokens >= w.Burst {
		m.overflow.purgeIfDue(m, at)
	}
	return bucket{shared.tokens, b.last}
}

// withoutRoom returns the bucket by which a key without room is decided about. Nobody keeps it. It is full, but for
// Permissive work, which nobody refuses. That waits as long as its own cost takes to come back.
func (r *Request) withoutRoom(w *Window, at moment) bucket {
	if r.Mode == Permissive {
		return bucket{0, at.by(w)}
	}
	return full(w, at)
}

// decideWithout is decide where roomless is a window for whose bucket there is no room, -1 for none. That a place comes
// free does not depend on the window. So a refusal stands until somebody may look for one again, or for longer
// if another window has too few tokens. Nothing is charged.
func (r *Request) decideWithout(roomless int, buckets []bucket, at moment) Decision {
	if roomless < 0 || r.Mode == Permissive {
		return r.decide(buckets, at)
	}
	look := *r
	look.Mode = DryRun
	d := look.decide(buckets, at)
	if d.OK = false; d.Wait < sweepEvery {
		d = Decision{Window: roomless, Wait: sweepEvery}
	}
	return d
}
