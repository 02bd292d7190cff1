package quota

import (
	"math"
	"math/bits"
	"runtime"
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
func (m *Memory) place(sh *shard, id uint64, l *Window, at moment) *slot {
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
func (m *Memory) placeLocked(sh *shard, id uint64, l *Window, at moment) *slot {
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

func (m *Memory) add(sh *shard, t *table, id uint64, l *Window, b bucket) *slot {
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
	return m.moment(m.now(), []Window{{Calendar: Calendar{Period: Day}}})
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
	return m.classes.all(class, func(l *Window) bool {
		now := bucket{b.tokens, near(b.last, at.by(l))}
		now.refill(l, at)
		return now.tokens >= l.Burst
	})
}

// slot is a bucket as a table keeps it. Whoever changes it without a compare-and-
// swap of the tokens alone makes them busy first, writes the time, and then the
// tokens. So tokens and time belong together if the tokens are the same before and
// after the time was read.
type slot struct {
	id     atomic.Uint64 // 0: nobody's; never changes otherwise
	tokens atomic.Uint64 // a float64, or one of the two marks
	time   atomic.Uint64 // class above, microseconds below
}

// slotSize is what a slot takes.
const slotSize = 24

// Two numbers that are none, in place of the tokens.
const (
	busy  = 0x7ff8_0000_0000_0b57 // somebody is writing, for some nanoseconds
	moved = 0x7ff8_0000_0000_4042 // the bucket is in the next table
)

// The time's parts: 48 bits of microseconds are nine years.
const (
	timeBits = 48
	timeMask = 1<<timeBits - 1
	timeSpan = (timeMask + 1) * time.Microsecond

	timeSlack = timeSpan / 64 // seven weeks
)

// near returns which time was kept: of those with the same lower bits the last that is
// not later than now, but for a clock that was read a moment sooner or has stepped back
// by less than timeSlack. A clock on the wall may be set by more than the bits hold, as
// that of a machine that begins in 1970; what is taken for nine years ago would bring
// all tokens back with each decision.
func near(kept, now time.Duration) time.Duration {
	if passed := now - kept; passed > timeSpan-timeSlack {
		kept += (passed - 1 + timeSlack) / timeSpan * timeSpan
	} else if now < 0 && -passed > timeSpan/2 { // kept when the clock stood before the epoch
		kept -= timeSpan
	}
	return kept
}

func pack(b bucket, class uint16) uint64 {
	return uint64(class)<<timeBits | uint64(b.last/time.Microsecond)&timeMask
}

func unpack(tokens, at uint64) (b bucket, class uint16) {
	return bucket{math.Float64frombits(tokens), time.Duration(at&timeMask) * time.Microsecond}, uint16(at >> timeBits)
}

// read returns the bucket as it is; false if it has moved.
func (s *slot) read() (b bucket, class uint16, tokens uint64, ok bool) {
	for spins := 0; ; spins++ {
		tokens = s.tokens.Load()
		if tokens == moved {
			return b, 0, 0, false
		}
		at := s.time.Load()
		if tokens != busy && s.tokens.Load() == tokens {
			b, class = unpack(tokens, at)
			return b, class, tokens, true
		}
		pause(spins)
	}
}

// lock makes the bucket the caller's until unlock; false if it has moved. Nothing
// is waited for in between.
func (s *slot) lock() (b bucket, class uint16, ok bool) {
	return s.seize(busy)
}

// seize puts a mark in place of the tokens.
func (s *slot) seize(mark uint64) (b bucket, class uint16, ok bool) {
	for spins := 0; ; spins++ {
		tokens := s.tokens.Load()
		if tokens == moved {
			return b, 0, false
		}
		if tokens != busy && s.tokens.CompareAndSwap(tokens, mark) {
			b, class = unpack(tokens, s.time.Load())
			return b, class, true
		}
		pause(spins)
	}
}

// pause lets whoever writes finish: at once, or when it gets its core back.
func pause(spins int) {
	if spins%16 == 15 {
		runtime.Gosched()
	}
}

// unlock writes the bucket back.
func (s *slot) unlock(b bucket, class uint16) {
	s.time.Store(pack(b, class))
	s.tokens.Store(math.Float64bits(b.tokens))
}

// write replaces what was read as tokens and time, unless somebody else has.
func (s *slot) write(tokens, at uint64, b bucket, class uint16) bool {
	if !s.tokens.CompareAndSwap(tokens, busy) {
		return false
	}
	if s.time.Load() != at { // the tokens were others and are the same again
		s.tokens.Store(tokens)
		return false
	}
	s.unlock(b, class)
	return true
}

// table is a hash table in open addressing. A slot is taken once and never given
// to another key, so it may be read without a lock: places become free in the next
// table.
type table struct{ slots []slot }

// windowID is what a bucket is known by: the hash of its key, but for the last
// bits, which are the window. So windows of a key lie side by side.
func windowID(hash uint64, window int) uint64 { return hash&^0xf | uint64(window+1) }

// home is where a bucket is looked for first; the upper bits of its id are those
// of the shard.
func (t *table) home(id uint64) int {
	i, _ := bits.Mul64(id<<shardBits, uint64(len(t.slots)))
	return int(i)
}

// find returns the slot of id, nil if there is none.
func (t *table) find(id uint64) *slot {
	for i := t.home(id); ; {
		s := &t.slots[i]
		switch s.id.Load() {
		case id:
			return s
		case 0:
			return nil
		}
		if i++; i == len(t.slots) {
			i = 0
		}
	}
}

// free returns the slot that id is to be put into.
func (t *table) free(id uint64) *slot {
	i := t.home(id)
	for t.slots[i].id.Load() != 0 {
		if i++; i == len(t.slots) {
			i = 0
		}
	}
	return &t.slots[i]
}

// put writes a bucket into a free slot. The id comes last: with it the slot is
// there for those who read without the lock.
func (s *slot) put(id uint64, b bucket, class uint16) {
	s.unlock(b, class)
	s.id.Store(id)
}

// classes number the limits in use, so that a bucket knows in two bytes by which
// it fills. That is only for forgetting it: every take brings its limit along.
type classes struct {
	list atomic.Pointer[[]class] // grows at its end; what is below never changes

	mu  sync.Mutex
	ids map[Window]uint16
	// others is the slowest way to fill of all limits beyond the last class.
	others atomic.Pointer[Window]
}

// class is a limit, and which one has replaced it.
type class struct {
	limit Window
	next  *atomic.Uint32 // the class plus 1
}

// maxClasses bounds the limits that have a number; the others are class 0.
const maxClasses = 1 << 12

func (c *classes) init() {
	c.ids = map[Window]uint16{}
	c.list.Store(&[]class{{next: new(atomic.Uint32)}})
}

// of returns the class of l, quickly if it is still was.
func (c *classes) of(l *Window, was uint16) uint16 {
	if list := *c.list.Load(); list[was].limit == *l {
		return was
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id(l)
}

// id returns the class of l, with the lock held.
func (c *classes) id(l *Window) uint16 {
	if id, ok := c.ids[*l]; ok {
		return id
	}
	list := *c.list.Load()
	if len(list) == maxClasses {
		c.other(l)
		return 0
	}
	id := uint16(len(list))
	list = append(list, class{*l, new(atomic.Uint32)})
	c.list.Store(&list)
	c.ids[*l] = id
	return id
}

// other notes a limit that has no class.
func (c *classes) other(l *Window) {
	slow := *l
	if l.Calendar.set() {
		const month = 31 * 24 * time.Hour
		slow = Window{Rate: l.Burst / month.Seconds(), Burst: l.Burst}
	}
	if was := c.others.Load(); was != nil {
		slow.Rate, slow.Burst = min(slow.Rate, was.Rate), max(slow.Burst, was.Burst)
	}
	c.others.Store(&slow)
}

// replaced notes that the keys of one limit have another from now on.
func (c *classes) replaced(from, to *Window) {
	if *from == *to {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if id, ok := c.ids[*from]; ok {
		next := c.id(to)
		(*c.list.Load())[id].next.Store(uint32(next) + 1)
	}
}

// chain is how many replacements of a limit are looked at.
const chain = 16

// all reports whether full holds for the limit of a class and for those that have
// replaced it. A limit that was changed to and fro leads back to itself, hence the
// bound.
func (c *classes) all(id uint16, full func(*Window) bool) bool {
	for range chain {
		list := *c.list.Load()
		l := &list[id].limit
		if id == 0 {
			if l = c.others.Load(); l == nil {
				return false
			}
		}
		if !full(l) {
			return false
		}
		next := list[id].next.Load()
		if next == 0 {
			return true
		}
		id = uint16(next - 1)
	}
	return true
}
