package quota

import (
	"math"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// shard keeps a part of the buckets. The table is read without the lock. The lock is held
// to put buckets in, and to make the next table.
type shard struct {
	table atomic.Pointer[table]

	mu   sync.Mutex
	used int           // cells of the table that are taken
	made time.Duration // when the table was
	_    [32]byte      // to a cache line
}

// A table is filled up to fullAt, and the next one begins at beginAt. So a bucket takes 29
// to 35 bytes, plus what the allocator rounds up.
const (
	leastCells = 4
	fullAt     = 0.82
	beginAt    = 0.7
)

func newTable(buckets, least int) *table {
	return &table{make([]cell, max(least, int(float64(buckets)/beginAt)+1))}
}

func (sh *shard) init() { sh.table.Store(newTable(0, leastCells)) }

func (sh *shard) bytes() int64 { return int64(len(sh.table.Load().cells)) * cellSize }

// wait returns when the next table is there.
func (sh *shard) wait() {
	sh.mu.Lock()
	//lint:ignore SA2001 whoever moves buckets holds it
	sh.mu.Unlock()
}

// shardCount is the number of tables. With a million buckets in all, it takes some hundred
// microseconds to make the next table of one shard.
const (
	shardBits  = 8
	shardCount = 1 << shardBits
)

func (m *Memory) shard(hash uint64) *shard { return &m.shards[hash>>(64-shardBits)] }

// place returns the cell of id, a new one if there is none. If there is no place, it
// returns one of the overflow; nil if there is no room there either.
func (m *Memory) place(sh *shard, id uint64, w *Window, at moment) *cell {
	m.makeRoom(1)
	sh.mu.Lock()
	s := m.placeLocked(sh, id, w, at)
	sh.mu.Unlock()
	if s == nil {
		m.overflow.mu.Lock()
		m.overflow.makeRoom(m, 1, at)
		s = m.overflowCell(int(id&0xf)-1, w, at)
		m.overflow.mu.Unlock()
	}
	return s
}

// placeLocked is place with the lock held; nil if there is no place.
func (m *Memory) placeLocked(sh *shard, id uint64, w *Window, at moment) *cell {
	t := sh.table.Load()
	if s := t.find(id); s != nil {
		return s
	}
	if m.count.Add(1) > m.most {
		m.count.Add(-1)
		return nil
	}
	if float64(sh.used+1) > fullAt*float64(len(t.cells)) {
		t = m.rebuild(sh)
	}
	return m.add(sh, t, id, w, m.fresh(int(id&0xf)-1, w, at))
}

func (m *Memory) add(sh *shard, t *table, id uint64, w *Window, b bucket) *cell {
	s := t.free(id)
	s.put(id, b, m.classes.of(w, 0))
	sh.used++
	return s
}

// rebuild makes the next table of a shard, without buckets that are full again. It is no
// smaller than the last, as their keys may come back. If the last one was used up within
// a second, the next is larger. It then has room for the keys of a second, or for
// MaxKeys. The shard is locked.
func (m *Memory) rebuild(sh *shard) *table {
	at, old := m.moments(), sh.table.Load()
	least := float64(len(old.cells))
	if lasted := at.now - sh.made; lasted < time.Second {
		gone := float64(sh.used - m.countKept(old, at))
		more := gone * min(time.Second.Seconds()/max(lasted, 1).Seconds(), 3)
		share := 1.1 * float64(m.most) / shardCount / beginAt
		least = max(least, min(least+more+leastCells, share))
	}
	sh.made = at.now
	return m.renew(sh, at, int(least))
}

// renew makes the next table of a shard without buckets that are full again, and counts
// those. The shard is locked.
func (m *Memory) renew(sh *shard, at moment, least int) *table {
	used := sh.used
	t := m.rehash(sh, at, true, least)
	m.count.Add(int64(sh.used - used))
	m.purged.Add(uint64(used - sh.used))
	return t
}

// moments returns the moment on moments clocks.
func (m *Memory) moments() moment {
	return m.moment(m.now(), []Window{{Calendar: Calendar{Period: Day}}})
}

// rehash makes the next table, with at least so many cells. It marks buckets as moved one by
// one. A reader that finds the mark waits for the lock.
func (m *Memory) rehash(sh *shard, at moment, forget bool, least int) *table {
	type keptBucket struct {
		id    uint64
		b     bucket
		class uint16
	}
	old := sh.table.Load()
	kept := make([]keptBucket, 0, sh.used)
	for i := range old.cells {
		s := &old.cells[i]
		id := s.id.Load()
		if id == 0 {
			continue
		}
		if b, class, _ := s.seize(moved); !forget || !m.forgettable(b, class, at) {
			kept = append(kept, keptBucket{id, b, class})
		}
	}
	next := newTable(len(kept)+1, least)
	for _, k := range kept {
		next.free(k.id).put(k.id, k.b, k.class)
	}
	sh.used = len(kept)
	sh.table.Store(next)
	return next
}

// countKept counts the buckets that are not full again.
func (m *Memory) countKept(t *table, at moment) int {
	n := 0
	for i := range t.cells {
		s := &t.cells[i]
		if s.id.Load() == 0 {
			continue
		}
		if b, class, _, _ := s.read(); !m.forgettable(b, class, at) {
			n++
		}
	}
	return n
}

// forgettable reports whether a bucket is full again.
func (m *Memory) forgettable(b bucket, class uint16, at moment) bool {
	return m.classes.get(class).full(b, at)
}

// cell is a bucket as a table keeps it. A writer that changes more than the tokens marks
// them as busy first, writes the time, and then the tokens. So tokens and time belong
// together if the tokens are the same before and after the time was read.
type cell struct {
	id     atomic.Uint64 // 0: nobody's; never changes otherwise
	tokens atomic.Uint64 // a float64, or one of the two marks
	time   atomic.Uint64 // class above, microseconds below
}

// cellSize is the bytes of a cell.
const cellSize = 24

// Two marks in place of the tokens; as floats they are no numbers.
const (
	busy  = 0x7ff8_0000_0000_0b57 // somebody writes, for some nanoseconds
	moved = 0x7ff8_0000_0000_4042 // the bucket is in the next table
)

// The time's parts: 48 bits of microseconds are nine years.
const (
	timeBits = 48
	timeMask = 1<<timeBits - 1
	timeSpan = (timeMask + 1) * time.Microsecond

	timeSlack = timeSpan / 64 // seven weeks
)

// near returns the whole time from its lower bits, kept. It is the last such time that
// is not later than now. It may be later by less than timeSlack, if another clock reading was
// newer or the clock has stepped back. A wall clock may be set by more than the bits can
// say, as on a machine that starts in 1970. A time nine years too early would bring all
// tokens back with each decision.
func near(kept, now time.Duration) time.Duration {
	if passed := now - kept; passed > timeSpan-timeSlack {
		kept += (passed - 1 + timeSlack) / timeSpan * timeSpan
	} else if now < 0 && -passed > timeSpan/2 { // kept while the clock was before the epoch
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
func (s *cell) read() (b bucket, class uint16, tokens uint64, ok bool) {
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

// lock holds the bucket until unlock; false if it has moved. Do not wait for anything in
// between, except for the lock of classes: nobody who holds that waits for a bucket.
func (s *cell) lock() (b bucket, class uint16, ok bool) {
	return s.seize(busy)
}

// seize puts a mark in place of the tokens.
func (s *cell) seize(mark uint64) (b bucket, class uint16, ok bool) {
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

// pause lets a writer finish. It may have to get its core back first.
func pause(spins int) {
	if spins%16 == 15 {
		runtime.Gosched()
	}
}

// unlock writes the bucket back.
func (s *cell) unlock(b bucket, class uint16) {
	s.time.Store(pack(b, class))
	s.tokens.Store(math.Float64bits(b.tokens))
}

// write replaces what was read as tokens and time, unless somebody else has.
func (s *cell) write(tokens, at uint64, b bucket, class uint16) bool {
	if !s.lockAs(tokens, at) {
		return false
	}
	s.unlock(b, class)
	return true
}

// lockAs is lock if the bucket still is what was read as tokens and time.
func (s *cell) lockAs(tokens, at uint64) bool {
	if !s.tokens.CompareAndSwap(tokens, busy) {
		return false
	}
	if s.time.Load() != at { // the tokens were others and are the same again
		s.tokens.Store(tokens)
		return false
	}
	return true
}

// table is a hash table with open addressing. A cell never changes its key, so it may be
// read without a lock. Cells become free in the next table only.
type table struct{ cells []cell }

// windowID returns the id of a bucket. It is the hash of its key, with the index of the
// window in the last bits. So the windows of a key lie side by side.
func windowID(hash uint64, window int) uint64 { return hash&^0xf | uint64(window+1) }

// home returns where to look for a bucket first. The upper bits of its id choose the shard.
func (t *table) home(id uint64) int {
	i, _ := bits.Mul64(id<<shardBits, uint64(len(t.cells)))
	return int(i)
}

// find returns the cell of id, nil if there is none.
func (t *table) find(id uint64) *cell {
	for i := t.home(id); ; {
		s := &t.cells[i]
		switch s.id.Load() {
		case id:
			return s
		case 0:
			return nil
		}
		if i++; i == len(t.cells) {
			i = 0
		}
	}
}

// hasAll reports whether a key has a cell for each of its n windows.
func (t *table) hasAll(hash uint64, n int) bool {
	for i := range n {
		if t.find(windowID(hash, i)) == nil {
			return false
		}
	}
	return true
}

// free returns the cell for a new id.
func (t *table) free(id uint64) *cell {
	i := t.home(id)
	for t.cells[i].id.Load() != 0 {
		if i++; i == len(t.cells) {
			i = 0
		}
	}
	return &t.cells[i]
}

// put writes a bucket into a free cell. The id comes last: it shows the cell to those who
// read without the lock.
func (s *cell) put(id uint64, b bucket, class uint16) {
	s.unlock(b, class)
	s.id.Store(id)
}

// classes number the windows in use, so that a bucket knows its window in two bytes. Only
// forgetting needs that: each request brings its windows.
//
// When numbers run out, or many are retired, a round of the sweep frees those that no bucket
// has. Whoever takes a number and writes it has locked the bucket, or its part of the store. So
// the sweep finds what was written before it came by. What was taken since it began stays.
type classes struct {
	pages  [maxClasses / pageSize]atomic.Pointer[classPage]
	scarce atomic.Bool // numbers should be freed

	mu    sync.Mutex
	ids   map[Window]uint16 // the number for each window that a request may bring
	given int               // how many numbers there are
	most  int               // how many there may be
	free  []uint16          // those that nobody uses now
	taken numbers           // since the round began
	many  int               // how many retired ones are too many
}

const (
	// maxClasses bounds the windows that have a number; the others are class 0. A number
	// takes some 130 bytes, and up to 400 more while its window is replaced and has buckets.
	maxClasses = 1 << 14
	pageSize   = 1 << 8
	// manyRetired is how many retired numbers make a round of the sweep due, because each change of rules
	// visits them all. A round cannot free those that have buckets. So for each of these the next round waits
	// for two more.
	manyRetired = 1 << 8
)

// numbers is a set of classes.
type numbers [maxClasses / 64]uint64

func (n *numbers) add(id uint16)      { n[id/64] |= 1 << (id % 64) }
func (n *numbers) has(id uint16) bool { return n[id/64]&(1<<(id%64)) != 0 }

// addAll adds those of a table whose cells do not move meanwhile.
func (n *numbers) addAll(t *table) {
	for i := range t.cells {
		if s := &t.cells[i]; s.id.Load() != 0 {
			_, class, _, _ := s.read()
			n.add(class)
		}
	}
}

type classPage [pageSize]atomic.Pointer[class]

// class is what a number stands for. It never changes; the number may get another one.
type class struct {
	// window is that of all its buckets. It is zero, as no request's is, if no bucket may
	// take the number: for class 0, and once the window has been replaced.
	window Window
	// terms are by what its buckets fill, if that is not just the window.
	terms []term
	// vague says that the last term stands for several windows.
	vague bool
}

// term is a window by which a bucket must be full, because its rule may have that window since a
// moment. nil means that the bucket may have been used with it.
type term struct {
	window Window
	since  *moment
}

// nobodys is the class of numbers that are free.
var nobodys = new(class)

// maxTerms bounds the terms of a class. The last one then stands for all that follow.
const maxTerms = 8

func (c *classes) init() {
	c.ids, c.given, c.most, c.many = map[Window]uint16{}, 1, maxClasses, manyRetired
	c.put(0, new(class))
}

// get returns what a number stands for.
func (c *classes) get(id uint16) *class { return c.pages[id/pageSize].Load()[id%pageSize].Load() }

// put gives a number another meaning. The lock is held.
func (c *classes) put(id uint16, to *class) {
	page := &c.pages[id/pageSize]
	if page.Load() == nil {
		page.Store(new(classPage))
	}
	page.Load()[id%pageSize].Store(to)
}

// of returns the class of w. It is fast if that is still was.
func (c *classes) of(w *Window, was uint16) uint16 {
	if c.get(was).window == *w {
		return was
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id(w)
}

// id returns the class of w, with the lock held.
func (c *classes) id(w *Window) uint16 {
	id, ok := c.ids[*w]
	if !ok {
		id = c.unused()
		if id == 0 {
			c.put(0, c.get(0).and(w, nil))
		} else {
			c.put(id, &class{window: *w})
			c.ids[*w] = id
		}
	}
	c.taken.add(id)
	return id
}

// unused returns a number that nobody uses, 0 if there is none. The lock is held.
func (c *classes) unused() uint16 {
	if n := len(c.free); n > 0 {
		id := c.free[n-1]
		c.free = c.free[:n-1]
		return id
	}
	if c.given == c.most {
		c.scarce.Store(true)
		return 0
	}
	c.given++
	return uint16(c.given - 1)
}

// beginRound begins to note which numbers are taken.
func (c *classes) beginRound() {
	c.mu.Lock()
	c.taken = numbers{}
	c.mu.Unlock()
}

// endRound frees the numbers that the sweep has not seen in a bucket, unless they have been
// taken meanwhile. Class 0 begins anew, or one slow window would have all buckets without a
// number kept for ever.
func (c *classes) endRound(seen *numbers) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.many = manyRetired
	for n := range c.given {
		id := uint16(n)
		switch was := c.get(id); {
		case was == nobodys:
		case seen.has(id) || c.taken.has(id):
			if was.terms != nil {
				c.many += 2
			}
		case id == 0:
			c.put(0, new(class))
		default:
			delete(c.ids, was.window)
			c.put(id, nobodys)
			c.free = append(c.free, id)
		}
	}
	c.scarce.Store(c.given == c.most && len(c.free) == 0)
}

// replaced says that rules have other windows since a moment. A bucket may be of a rule that
// has changed, or of another one with the same window. So it must now be full by the new
// window too, unless it is used again, or was full before. Buckets that come later have
// nothing to do with the change: their window gets a new number.
func (c *classes) replaced(by map[Window][]Window, since moment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range by {
		if id, ok := c.ids[w]; ok {
			delete(c.ids, w)
			c.put(id, &class{terms: []term{{window: w}}})
		}
	}
	worst := slowest(by)
	retired := 0
	for n := range c.given {
		id, from := uint16(n), &since
		if id == 0 {
			from = nil // unlike one that is retired, it goes on being taken
		}
		was := c.get(id)
		if now := was.replaced(by, worst, from); now != was {
			c.put(id, now)
		}
		if was.terms != nil {
			retired++
		}
	}
	if retired >= c.many {
		c.scarce.Store(true)
	}
}

// slowest returns a window that fills a bucket no sooner than any of those that replace others.
func slowest(by map[Window][]Window) Window {
	w := Window{Rate: math.Inf(1)}
	for _, windows := range by {
		for j := range windows {
			w = slower(&w, &windows[j])
		}
	}
	return w
}

// replaced returns the class with what has replaced its windows. worst is the slowest of all that replace others.
func (c *class) replaced(by map[Window][]Window, worst Window, since *moment) *class {
	next := c
	for i := range c.terms {
		for j := range by[c.terms[i].window] {
			next = next.and(&by[c.terms[i].window][j], since)
		}
	}
	if c.vague { // each window that was replaced may be one for which the last term stands
		next = next.and(&worst, since)
	}
	return next
}

// and returns the class with one more term.
func (c *class) and(w *Window, since *moment) *class {
	n := len(c.terms)
	if !c.vague && slices.ContainsFunc(c.terms, func(t term) bool { return t.window == *w }) {
		return c
	}
	if !c.vague && n < maxTerms {
		return &class{terms: append(slices.Clip(c.terms), term{*w, since})}
	}
	last := c.terms[n-1]
	if last.window = slower(&last.window, w); c.vague && last == c.terms[n-1] {
		return c
	}
	return &class{terms: append(slices.Clip(c.terms[:n-1]), last), vague: true}
}

// full reports whether a bucket of the class may be forgotten: it is full by all terms, or was
// by those there were before one was added.
func (c *class) full(b bucket, at moment) bool {
	if c.terms == nil {
		return b.fullBy(&c.window, at)
	}
	for n := range c.terms {
		if since := c.terms[n].since; since != nil && b.fullByAll(c.terms[:n], *since) {
			return true
		}
	}
	return b.fullByAll(c.terms, at)
}

func (b bucket) fullByAll(terms []term, at moment) bool {
	for i := range terms {
		if !b.fullBy(&terms[i].window, at) {
			return false
		}
	}
	return true
}

// fullBy reports whether a bucket, as a cell keeps it, is full by w.
func (b bucket) fullBy(w *Window, at moment) bool {
	b.last = near(b.last, at.by(w))
	b.refill(w, at)
	return b.tokens >= w.Burst
}

// slow returns a window with a rate that fills a bucket no sooner than w.
func slow(w *Window) Window {
	if !w.Calendar.set() {
		return *w
	}
	const day = 24 * time.Hour // comes on top, for clocks that change and a date that comes twice
	longest := [...]time.Duration{2 * time.Hour, day + day, 7*day + day, 31*day + day}[w.Calendar.Period-Hour]
	// Twice the burst: the first tokens take as long as all of them.
	return Window{Rate: w.Burst / longest.Seconds(), Burst: 2 * w.Burst}
}

// slower returns a window that fills a bucket no sooner than both.
func slower(a, b *Window) Window {
	v, w := slow(a), slow(b)
	return Window{Rate: min(v.Rate, w.Rate), Burst: max(v.Burst, w.Burst)}
}
