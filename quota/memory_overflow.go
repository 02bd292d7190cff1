package quota

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// overflow keeps the buckets of keys for which there is no place.
type overflow struct {
	shard
	any atomic.Bool   // there is one
	due time.Duration // when to look again for those that are full
	// paid is when the debts of Permissive work without a bucket are paid back, by a hash of its
	// window. It is nil if there were none. The lock guards it.
	paid *[mostOverflow]time.Duration
}

// mostOverflow bounds the buckets of the overflow, one for each window. Windows beyond it
// share none: with the slow, the quick would fill it.
const mostOverflow = 1024

// overflowCell returns the bucket that all keys without a place share. It is an ordinary
// bucket: when its tokens are gone, they are refused. It is nil if there are too many. The
// overflow is locked, and its table has room.
func (m *Memory) overflowCell(index int, w *Window, at moment) *cell {
	m.overflowed.Add(1)
	s, id := m.findOverflow(index, w)
	if s != nil || m.overflow.used >= mostOverflow {
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
	if o.used+n > mostOverflow {
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
	t, at := m.shard(hash).table.Load(), m.moment(m.now(), windows)
	for i := range windows {
		if t.find(windowID(hash, i)) != nil {
			continue
		}
		if b, _ := m.look(i, &windows[i], at); b.tokens < windows[i].Burst {
			return true
		}
	}
	return false
}

// look returns the bucket by which a key without one would be decided about, and whether there is
// room for one.
func (m *Memory) look(index int, w *Window, at moment) (b bucket, room bool) {
	if m.overflow.any.Load() && m.count.Load() >= m.most {
		m.overflow.mu.Lock()
		m.overflow.makeRoom(m, 1, at)
		s, _ := m.findOverflow(index, w)
		none := s == nil && m.overflow.used >= mostOverflow
		m.overflow.mu.Unlock()
		if none {
			return empty(w, at), false
		}
	}
	return m.fresh(index, w, at), true
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

// decideWithoutRoom decides about one window for which there is no room.
func (m *Memory) decideWithoutRoom(r *Request, at moment) Decision {
	m.overflow.mu.Lock()
	defer m.overflow.mu.Unlock()
	b := [1]bucket{m.withoutRoom(r, 0, at)}
	d := r.withoutReserve().decide(b[:], at).withRoom(false)
	m.noteDebt(r, 0, b[0], at)
	return d
}

// withoutRoom returns the bucket by which a key without room is decided about. It has no tokens. For
// Permissive work, which nobody refuses, it has the debt of all such work with that window. The debt is
// kept as a time, because windows with one place have other rates. The overflow is locked.
func (m *Memory) withoutRoom(r *Request, index int, at moment) bucket {
	w := &r.Windows[index]
	switch {
	case r.Mode != Permissive:
		return empty(w, at)
	case m.overflow.paid == nil:
		m.overflow.paid = new([mostOverflow]time.Duration)
	}
	owed := max(m.overflow.paid[m.debtor(w, index)]-at.now, 0)
	return bucket{-owed.Seconds() * slow(w).Rate, at.by(w)}
}

// noteDebt keeps the debt of a bucket of withoutRoom, for nine years at most. The overflow is locked.
func (m *Memory) noteDebt(r *Request, index int, b bucket, at moment) {
	if r.Mode == Permissive {
		w := slow(&r.Windows[index])
		m.overflow.paid[m.debtor(&r.Windows[index], index)] = at.now + min(w.refillTime(-b.tokens, at), timeSpan)
	}
}

// debtor is where the debt of a window is. In virtual time that is the same in every run, because it
// changes figures: windows with one place share their debt.
func (m *Memory) debtor(w *Window, index int) uint64 {
	return (m.hash.String(w.String()) + uint64(index)) % mostOverflow
}

// empty is the bucket of a key for which there is no room. It lacks a token, so nothing is
// admitted, whatever it costs. Nobody keeps it.
func empty(w *Window, at moment) bucket { return bucket{-1 - w.slack(), at.by(w)} }

// withRoom returns the decision about a key that has room or not. Without room a refusal stands
// until somebody looks for room again, so to come back sooner is in vain.
func (d Decision) withRoom(room bool) Decision {
	if !room && !d.OK {
		d.Wait = max(d.Wait, sweepEvery)
	}
	return d
}

// withoutReserve returns the request to decide about a bucket that nobody keeps: a second
// one would reserve the same tokens.
func (r *Request) withoutReserve() *Request {
	if r.Mode != Reserve {
		return r
	}
	strict := *r
	strict.Mode = Strict
	return &strict
}
