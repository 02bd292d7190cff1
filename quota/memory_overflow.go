package quota

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

// strays are the buckets of those for whom there is no place.
type strays struct {
	shard
	any atomic.Bool   // there is one
	due time.Duration // when they may be looked through for those that are full again
}

// mostStrays bounds the buckets of strays: one for each limit and window, and one
// for the rest.
const mostStrays = 1024

// stray returns the bucket that all share for whom there is no place, with strays'
// lock held. It is an ordinary bucket: when its tokens are gone, they are refused.
func (m *Memory) stray(window int, l *Limit, at moment) *slot {
	m.overflowed.Add(1)
	s, id := m.strayOf(window, l)
	if s != nil {
		return s
	}
	m.strays.any.Store(true)
	sh := &m.strays.shard
	t := sh.table.Load()
	if float64(sh.used+1) > fullAt*float64(len(t.slots)) {
		t = m.move(sh, at, false, leastSlots)
	}
	return m.add(sh, t, id, l, full(l, at))
}

// strayOf finds the bucket that those without a place share, or the id under which
// it is to be made, with strays' lock held.
func (m *Memory) strayOf(window int, l *Limit) (s *slot, id uint64) {
	id = windowID(maphash.Comparable(m.seed, *l), window)
	t := m.strays.table.Load()
	if s = t.find(id); s != nil {
		return s, id
	}
	// Who has used the one for the rest goes on with it, as long as it is not full again.
	rest := windowID(0, window)
	if s = t.find(rest); s != nil || m.strays.used >= mostStrays {
		id = rest
	}
	return s, id
}

// purge forgets those that are full again, with the lock held.
func (s *strays) purge(m *Memory, at moment) {
	if s.used > 0 {
		m.move(&s.shard, at, true, leastSlots)
		s.any.Store(s.used > 0)
	}
}

// fresh returns the bucket of a newcomer. It is full, but for what those without a
// place have lately taken with the same limit: the newcomer may have been one of
// them, and nobody is to be forgiven a debt because there was no place to note it.
// What it is given back later it has paid for in this way, too.
func (m *Memory) fresh(window int, l *Limit, at moment) bucket {
	b := full(l, at)
	if !m.strays.any.Load() {
		return b
	}
	m.strays.mu.Lock()
	defer m.strays.mu.Unlock()
	s, _ := m.strayOf(window, l)
	if s == nil {
		return b
	}
	shared, _, _, _ := s.read() // with the lock held nothing moves
	shared.refill(l, m.steady(at, &shared, l))
	if shared.tokens >= l.Burst && !early(at.now, m.strays.due) {
		m.strays.due = at.now + sweepEvery
		m.strays.purge(m, m.both())
	}
	return bucket{shared.tokens, b.last}
}

// sweep is the search for buckets that are full again, from shard to shard, while
// newcomers find no place.
type sweep struct {
	mu   sync.Mutex
	next int           // the shard to look at
	due  time.Duration // when the next round may begin
}

const (
	// sweepEvery is how long a round takes at least: what was not full a moment ago
	// is not looked at again and again.
	sweepEvery = time.Second
	// sweepSlots is about how many places one newcomer looks at, some tens of
	// microseconds. A small store is looked through at once.
	sweepSlots = 1 << 12
)

// makeRoom forgets buckets that are full again, if there is no place for n others.
// No lock is held.
func (m *Memory) makeRoom(n int) {
	if m.count.Load()+int64(n) <= m.most || !m.sweep.mu.TryLock() {
		return
	}
	defer m.sweep.mu.Unlock()
	at := m.both()
	for looked := 0; looked < sweepSlots; m.sweep.next++ {
		if m.sweep.next == shardCount {
			m.sweep.next = 0
		}
		if m.sweep.next == 0 {
			if early(at.now, m.sweep.due) {
				return
			}
			m.sweep.due = at.now + sweepEvery
		}
		looked += m.forget(&m.shards[m.sweep.next], at)
	}
}

// early reports whether a time that is at most sweepEvery ahead is still to come. A
// clock that was set back is not waited for.
func early(now, due time.Duration) bool { return now < due && due-now <= sweepEvery }

// forget makes the next table of a shard if that makes room, and returns how many
// slots it has looked at.
func (m *Memory) forget(sh *shard, at moment) int {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	t := sh.table.Load()
	if sh.used > 0 && m.worth(t, at, true) < sh.used {
		m.renew(sh, at, len(t.slots))
	}
	return len(t.slots)
}
