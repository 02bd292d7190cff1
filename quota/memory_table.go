package quota

import (
	"sync"
	"sync/atomic"
	"time"
)

// shard is a part of the buckets. The table is read without the lock; to put
// buckets in, or make the next table, takes it.
type shard struct {
	table atomic.Pointer[table]

	mu   sync.Mutex
	used int           // slots of the table that are taken
	made time.Duration // when the table was
	_    [32]byte      // to a cache line
}

// A table is filled up to four fifths, and the next one begins at 0.7: so a bucket
// takes from 29 to 35 bytes, and what the allocator rounds up.
const (
	leastSlots = 4
	fullAt     = .82
	beginAt    = .7
)

func newTable(buckets, least int) *table {
	return &table{make([]slot, max(least, int(float64(buckets)/beginAt)+1))}
}

func (sh *shard) init() { sh.table.Store(newTable(0, leastSlots)) }

func (sh *shard) bytes() int64 { return int64(len(sh.table.Load().slots)) * slotSize }

// wait returns when the next table is there.
func (sh *shard) wait() {
	sh.mu.Lock()
	//lint:ignore SA2001 whoever moves buckets holds it
	sh.mu.Unlock()
}

// shardCount is into how many tables the buckets are split: each is made anew when
// it is full, which for a million in all takes some hundred microseconds.
const (
	shardBits  = 8
	shardCount = 1 << shardBits
)

func (m *Memory) shard(hash uint64) *shard { return &m.shards[hash>>(64-shardBits)] }

// place returns the slot of id, a new one if there is none, or that of strays if
// there is no place.
func (m *Memory) place(sh *shard, id uint64, l *Limit, at moment) *slot {
	m.makeRoom(1)
	sh.mu.Lock()
	s := m.placeLocked(sh, id, l, at)
	sh.mu.Unlock()
	if s == nil {
		m.strays.mu.Lock()
		s = m.stray(int(id&0xf)-1, l, at)
		m.strays.mu.Unlock()
	}
	return s
}

// placeLocked is place with the lock held; nil if there is no place.
func (m *Memory) placeLocked(sh *shard, id uint64, l *Limit, at moment) *slot {
	t := sh.table.Load()
	if s := t.find(id); s != nil {
		return s
	}
	if m.count.Add(1) > m.most {
		m.count.Add(-1)
		return nil
	}
	if float64(sh.used+1) > fullAt*float64(len(t.slots)) {
		t = m.rebuild(sh)
	}
	return m.add(sh, t, id, l, m.fresh(int(id&0xf)-1, l, at))
}

func (m *Memory) add(sh *shard, t *table, id uint64, l *Limit, b bucket) *slot {
	s := t.free(id)
	s.put(id, b, m.classes.of(l, 0))
	sh.used++
	return s
}

// rebuild makes the next table of a shard, of the buckets that are not full. It is
// no smaller than the last: those that were full may come back. It is larger if the
// last one was used up within a second, so that it holds what comes in a second, or
// MaxKeys. The shard's lock is held.
func (m *Memory) rebuild(sh *shard) *table {
	at, old := m.both(), sh.table.Load()
	least := float64(len(old.slots))
	if lasted := at.now - sh.made; lasted < time.Second {
		gone := float64(sh.used - m.worth(old, at, true))
		more := gone * min(time.Second.Seconds()/max(lasted, 1).Seconds(), 3)
		share := 1.1 * float64(m.most) / shardCount / beginAt
		least = max(least, min(least+more+leastSlots, share))
	}
	sh.made = at.now
	return m.renew(sh, at, int(least))
}

// renew makes the next table of a shard without what is full again. The shard's
// lock is held.
func (m *Memory) renew(sh *shard, at moment, least int) *table {
	used := sh.used
	t := m.move(sh, at, true, least)
	m.count.Add(int64(sh.used - used))
	m.purged.Add(uint64(used - sh.used))
	return t
}

// both returns the moment on both clocks.
func (m *Memory) both() moment {
	return m.moment(m.now(), []Limit{{Calendar: Calendar{Period: Day}}})
}

// move makes the next table, of at least so many slots. Buckets are marked as moved
// one by one; who wants one that is waits for the lock.
func (m *Memory) move(sh *shard, at moment, forget bool, least int) *table {
	old := sh.table.Load()
	next := newTable(m.worth(old, at, forget)+1, least)
	kept := 0
	for i := range old.slots {
		s := &old.slots[i]
		id := s.id.Load()
		if id == 0 {
			continue
		}
		b, class, _ := s.seize(moved)
		if forget && m.forgetful(b, class, at) {
			continue
		}
		if kept++; float64(kept) > .9*float64(len(next.slots)) {
			next = next.larger() // many were used since they were counted
		}
		next.free(id).put(id, b, class)
	}
	sh.used = kept
	sh.table.Store(next)
	return next
}

// worth counts the buckets that are to be kept.
func (m *Memory) worth(t *table, at moment, forget bool) int {
	n := 0
	for i := range t.slots {
		s := &t.slots[i]
		if s.id.Load() == 0 {
			continue
		}
		if b, class, _, _ := s.read(); !forget || !m.forgetful(b, class, at) {
			n++
		}
	}
	return n
}

// larger returns the same buckets in a larger table, of one that nobody else has
// seen.
func (t *table) larger() *table {
	next := newTable(len(t.slots), 0)
	for i := range t.slots {
		if s := &t.slots[i]; s.id.Load() != 0 {
			b, class, _, _ := s.read()
			next.free(s.id.Load()).put(s.id.Load(), b, class)
		}
	}
	return next
}

// forgetful reports whether a bucket need not be kept: it is full again under the
// limit that it was last used with, and under those that have replaced that one.
func (m *Memory) forgetful(b bucket, class uint16, at moment) bool {
	return m.classes.all(class, func(l *Limit) bool {
		now := bucket{b.tokens, near(b.last, at.by(l))}
		now.refill(l, at)
		return now.tokens >= l.Burst
	})
}
