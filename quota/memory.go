package quota

import (
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/gate"
)

// MemoryConfig configures a [Memory]. The zero value is fine.
type MemoryConfig struct {
	// MaxKeys bounds the buckets that are kept at a time, and so the memory: up to
	// 40 bytes each. A key has one for each of its windows. 0 means
	// [DefaultMaxKeys]; at most 1<<28.
	//
	// Set it above the number of keys in use within the time that a bucket takes to fill.
	// If there is no place, new keys with the same window share one bucket until there
	// is: see [MemoryStats.Overflowed]. What is refunded to one of them is lost. A key that then
	// gets its own bucket begins with what the shared one has. So no debt is forgiven.
	//
	// Shared buckets come on top of MaxKeys, for 16,384 windows at a time. Work with a window beyond these
	// is refused, with a wait of a second. If it is Permissive, it waits until what it costs has come
	// back, and nothing is kept of it.
	MaxKeys int
	// Now replaces the clock, for virtual time: it returns the time since the store's
	// epoch, which is [weir.VirtualEpoch] for calendars. It may go back. Leave it nil outside
	// simulators and tests.
	Now func() time.Duration
}

// DefaultMaxKeys is the number of buckets if MemoryConfig.MaxKeys is 0: 40 MB.
const DefaultMaxKeys = 1 << 20

const mostKeys = 1 << 28

// Memory keeps buckets in the memory of the process, 24 bytes each. It finds
// them by a 64-bit hash of the key with a secret seed, in tables without
// pointers.
//
// A bucket in use is found and charged without a lock. When its table runs short of
// places, a bucket that is full again is forgotten, which loses nothing. Any other, above
// all one in debt, is never forgotten. Two keys share a bucket if 60 bits of their hashes
// agree. With a million keys the chance that any two do is one in two million. Nobody can
// choose keys that collide, unless Now is set.
type Memory struct {
	hash     gate.Hash    // of keys
	windows  maphash.Seed // of what a shared bucket is for; their places change no decision
	epoch    time.Time
	virtual  func() time.Duration // nil: the machine's; else every decision is written down
	most     int64
	shards   [shardCount]shard
	overflow overflow
	sweep    sweep
	classes  classes

	count      atomic.Int64 // buckets in shards
	purged     atomic.Uint64
	overflowed atomic.Uint64
}

// NewMemory makes a store. The error names every setting out of range.
func NewMemory(cfg MemoryConfig) (*Memory, error) {
	if cfg.MaxKeys < 0 || cfg.MaxKeys > mostKeys {
		return nil, fmt.Errorf("quota: MaxKeys %d: must be from 1 to %d, or 0 for %d", cfg.MaxKeys, mostKeys, DefaultMaxKeys)
	}
	if cfg.MaxKeys == 0 {
		cfg.MaxKeys = DefaultMaxKeys
	}
	m := &Memory{hash: gate.NewHash(cfg.Now != nil), windows: maphash.MakeSeed(), epoch: time.Now(), virtual: cfg.Now, most: int64(cfg.MaxKeys)}
	if cfg.Now != nil {
		m.epoch = weir.VirtualEpoch
	}
	for i := range m.shards {
		m.shards[i].init()
	}
	m.overflow.init()
	m.classes.init()
	return m, nil
}

// Decide implements [Store]. It fails only if the request makes no sense.
func (m *Memory) Decide(_ context.Context, r *Request) (Decision, error) {
	return m.decide(m.hash.String(r.Key), r)
}

// sameTick is for how long a bucket may be charged without moving its time on. A change
// of a window may count from this much earlier.
const (
	sameTick    = time.Millisecond
	tickSeconds = 0.001
)

// decide is Decide by the hash of the key.
//
// The fast path is for one window with enough tokens, and with room for those that came
// back since the bucket's time. These do not count as tokens yet. If that time is less
// than a millisecond ago, one compare-and-swap does it all. Another write may come
// between the reads of tokens and time, and leave the same tokens. Then the sum is still
// right, and the bucket has no less than was seen here.
//
// The clock is read last, because the processor finishes everything before it reads the
// clock.
func (m *Memory) decide(hash uint64, r *Request) (Decision, error) {
	if len(r.Windows) == 1 && uint64(r.Cost) <= MaxTokens && r.Mode == Strict && m.virtual == nil {
		w, cost, need := &r.Windows[0], float64(r.Cost), float64(r.Cost)
		if r.Debt {
			need = 0
		}
		if s := m.shard(hash).table.Load().find(windowID(hash, 0)); s != nil && w.Rate > 0 {
			word := s.tokens.Load()
			at := s.time.Load()
			last := time.Duration(at&timeMask) * time.Microsecond
			tokens := math.Float64frombits(word) // not a number while somebody writes
			left := tokens - cost
			if tokens < need || !(tokens <= w.Burst-w.Rate*tickSeconds) {
				return m.decideKnown(hash, s, word, at, r, time.Since(m.epoch))
			}
			now := time.Since(m.epoch)
			if uint64(now-last) < uint64(sameTick) && s.tokens.CompareAndSwap(word, math.Float64bits(left)) {
				return Decision{OK: true, Remaining: left}, nil
			}
			return m.decideKnown(hash, s, word, at, r, now)
		}
	}
	return m.decideSlowly(hash, r)
}

// decideKnown decides about one window with a rate. word and at are its bucket, as read.
// If the bucket knows the window, this is Request.decide in fewer steps.
func (m *Memory) decideKnown(hash uint64, s *cell, word, at uint64, r *Request, now time.Duration) (Decision, error) {
	w, cost := &r.Windows[0], float64(r.Cost)
	b, class := unpack(word, at)
	if word == busy || word == moved || m.classes.get(class).window != *w || !r.Debt && cost > w.Burst {
		return m.decideSlowly(hash, r)
	}
	b.last = near(b.last, now)
	now = max(now.Truncate(time.Microsecond), b.last) // see steady
	b.tokens = min(b.tokens+w.Rate*(now-b.last).Seconds(), w.Burst)
	b.last = now
	if lack := b.lacks(w, cost, r.Debt); lack > 0 {
		if wait := w.wait(lack, moment{}); s.tokens.Load() == word {
			return Decision{Wait: max(wait, time.Millisecond), Remaining: b.tokens}, nil
		}
		return m.decideSlowly(hash, r)
	}
	b.charge(w, cost)
	if !s.write(word, at, b, class) {
		return m.decideSlowly(hash, r)
	}
	return Decision{OK: true, Remaining: b.tokens}, nil
}

// decideSlowly is decide for all cases.
func (m *Memory) decideSlowly(hash uint64, r *Request) (Decision, error) {
	if err := r.Check(); err != nil {
		return Decision{}, err
	}
	at := m.moment(m.now(), r.Windows)
	if len(r.Windows) == 1 {
		return m.decideOne(hash, r, at), nil
	}
	return m.decideSeveral(hash, r, at), nil
}

// decideOne decides about one window. If nothing changes it writes nothing, so that work
// that is refused does not slow down other work. But if the clock has gone back, the time
// until then must count, and is written.
func (m *Memory) decideOne(hash uint64, r *Request, at moment) Decision {
	sh, id, w := m.shard(hash), windowID(hash, 0), &r.Windows[0]
	for {
		s := sh.table.Load().find(id)
		if s == nil && r.Mode == DryRun {
			return m.decideSeveral(hash, r, at)
		}
		if s == nil {
			s = m.place(sh, id, w, at)
		}
		if s == nil {
			b := [1]bucket{r.withoutRoom(w, at)}
			return r.decideWithout(0, b[:], at)
		}
		var buckets [1]bucket
		b := &buckets[0]
		was, class, word, ok := s.read()
		if !ok {
			sh.wait()
			continue
		}
		*b = was
		when := m.steady(at, b, w)
		back := when.by(w) < b.last
		last := pack(*b, class)
		d := r.decide(buckets[:], when)
		if m.virtual == nil && (r.Mode == DryRun || !d.OK && !back) {
			return d
		}
		if s.lockAs(word, last) {
			s.unlock(*b, m.classes.of(w, class))
			return d
		}
	}
}

// decideSeveral decides about several windows, one key at a time in each shard. A DryRun
// makes no buckets, but it makes room for them: so it finds what a charge would find.
func (m *Memory) decideSeveral(hash uint64, r *Request, at moment) Decision {
	sh, n, looks := m.shard(hash), len(r.Windows), r.Mode == DryRun
	if !sh.table.Load().hasAll(hash, n) {
		m.makeRoom(n)
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	var buf [MaxWindows]*cell
	cells := buf[:n]
	var kept [MaxWindows]bucket
	roomless := -1
	m.makeCells(sh, hash, n)
	if looks {
		roomless = m.look(sh, hash, r.Windows, at, cells, kept[:n])
	} else if m.findOrAdd(sh, hash, r.Windows, at, cells) {
		defer m.overflow.mu.Unlock()
	}
	var classes [MaxWindows]uint16
	for i, s := range cells {
		if s == nil && !looks {
			kept[i], roomless = r.withoutRoom(&r.Windows[i], at), i
		}
		if s == nil {
			continue
		}
		kept[i], classes[i], _ = s.lock() // with the locks held no bucket moves
		at = m.steady(at, &kept[i], &r.Windows[i])
	}
	before := kept
	d := r.decideWithout(roomless, kept[:n], at)
	for i, s := range cells {
		switch {
		case s == nil: // nobody keeps it
		case looks && m.virtual == nil:
			s.unlock(before[i], classes[i])
		default:
			s.unlock(kept[i], m.classes.of(&r.Windows[i], classes[i]))
		}
	}
	return d
}

// look finds the cells of a key whose shard is locked. Where findOrAdd would make one, it writes into
// kept what that would have. It returns the last window for which there would be no room, -1 if there would be for all.
func (m *Memory) look(sh *shard, hash uint64, windows []Window, at moment, cells []*cell, kept []bucket) (roomless int) {
	t := sh.table.Load()
	places, first := m.most-m.count.Load(), len(windows) // first is the first window without a place
	for i := range windows {
		if cells[i] = t.find(windowID(hash, i)); cells[i] != nil {
			continue
		}
		kept[i] = m.fresh(i, &windows[i], at)
		if places--; places < 0 {
			first = min(first, i)
		}
	}
	roomless = -1
	if first == len(windows) {
		return roomless
	}
	m.overflow.mu.Lock()
	defer m.overflow.mu.Unlock()
	m.overflow.makeRoom(m, len(windows), at)
	shared := m.overflow.most - m.overflow.used
	for i := first; i < len(windows); i++ {
		if cells[i] != nil {
			continue
		}
		if s, _ := m.findOverflow(i, &windows[i]); s == nil {
			if shared--; shared < 0 {
				roomless = i
			}
		}
	}
	return roomless
}

// findOrAdd finds or makes the cells of a key whose shard is locked. If one of them is in
// the overflow, it locks that too, leaves it locked and returns true. So nobody waits for
// a bucket while they hold another that somebody may wait for. A cell is nil if there is no
// room there either.
func (m *Memory) findOrAdd(sh *shard, hash uint64, windows []Window, at moment, cells []*cell) (locked bool) {
	for i := range windows {
		cells[i] = m.placeLocked(sh, windowID(hash, i), &windows[i], at)
	}
	for i := range windows {
		if cells[i] != nil {
			continue
		}
		if !locked {
			locked = true
			m.overflow.mu.Lock()
			m.overflow.makeRoom(m, len(windows), at)
		}
		cells[i] = m.overflowCell(i, &windows[i], at)
	}
	return locked
}

// makeCells makes the next table of a shard, which is locked, if this one has too few free cells for a key with n windows. So the
// table stays while the key gets its buckets: another one would be without those of them that are full.
func (m *Memory) makeCells(sh *shard, hash uint64, n int) {
	short := func() bool { return float64(sh.used+n) > fullAt*float64(len(sh.table.Load().cells)) }
	if short() && !sh.table.Load().hasAll(hash, n) {
		if m.rebuild(sh); short() {
			m.renew(sh, m.moments(), int(float64(sh.used+n)/beginAt)+1)
		}
	}
}

// Refund implements [Store]. A refund to a key that is not known is lost: its bucket is
// full.
func (m *Memory) Refund(_ context.Context, key string, windows []Window, tokens float64) error {
	return m.refund(m.hash.String(key), windows, tokens)
}

func (m *Memory) refund(hash uint64, windows []Window, tokens float64) error {
	if tokens != tokens || !validWindows(windows) {
		var f fault.List
		f.Check(tokens == tokens, fault.Path{"tokens"}, tokens, "must be a number")
		checkWindows(&f, nil, windows)
		return f.Err("quota: refund")
	}
	at := m.moment(m.now(), windows)
	for i := range windows {
		m.refundOne(hash, i, &windows[i], tokens, at)
	}
	return nil
}

func (m *Memory) refundOne(hash uint64, index int, w *Window, tokens float64, at moment) {
	sh, id := m.shard(hash), windowID(hash, index)
	for {
		s := sh.table.Load().find(id)
		if s == nil {
			if tokens >= 0 {
				return
			}
			s = m.place(sh, id, w, at)
		}
		if s == nil {
			return // nothing is kept of work without room
		}
		b, class, ok := s.lock()
		if !ok {
			sh.wait()
			continue
		}
		now := m.steady(at, &b, w)
		b.refill(w, now)
		b.charge(w, -tokens)
		s.unlock(b, m.classes.of(w, class))
		return
	}
}

// now returns the microseconds since the epoch: buckets know the time no better.
func (m *Memory) now() int64 {
	if m.virtual != nil {
		return max(int64(m.virtual()/time.Microsecond), 0)
	}
	return int64(time.Since(m.epoch) / time.Microsecond)
}

// moment adds the wall clock's time, if a window has a calendar.
func (m *Memory) moment(now int64, windows []Window) moment {
	at := moment{now: time.Duration(now) * time.Microsecond, epoch: m.epoch}
	at.wall = at.now
	for i := range windows {
		if windows[i].Calendar.set() && m.virtual == nil {
			since := time.Now().UnixNano() - m.epoch.UnixNano()
			at.wall = time.Duration(since).Truncate(time.Microsecond)
		}
	}
	return at
}

// steady moves at up to the time when b was last touched. It does so only if that time
// was later because somebody else read the clock later. Otherwise tokens for the time in
// between would come back twice. The clock for rates never goes back by itself.
func (m *Memory) steady(at moment, b *bucket, w *Window) moment {
	b.last = near(b.last, at.by(w))
	if m.virtual != nil {
		return at
	}
	if !w.Calendar.set() {
		at.now = max(at.now, b.last)
	} else if b.last-at.wall < time.Second {
		at.wall = max(at.wall, b.last)
	}
	return at
}

// sweep looks for buckets that are full again, and for numbers of windows that no bucket has,
// from shard to shard. It does so when a new key finds no place. If numbers are scarce, any new key or change of
// rules will do.
type sweep struct {
	mu   sync.Mutex
	next int           // the shard to visit
	due  time.Duration // when the next round may begin
	vain time.Duration // how much later one may that is for numbers only
	seen numbers       // those of the buckets that this round has kept
}

const (
	// sweepEvery is the least time between two rounds. So a bucket that was not full a
	// moment ago is not checked again and again.
	sweepEvery = time.Second
	// sweepVain bounds how much later a round begins that is for numbers only. As long as more windows
	// are in use than have a number, newcomers would visit all buckets each second for nothing.
	sweepVain = time.Minute
	// sweepCells is about how many cells one new key visits. That takes some tens of
	// microseconds. A small store is searched at once.
	sweepCells = 1 << 12
)

// freeNumbers frees numbers of windows if they are scarce. Known keys alone may need new ones with each change of rules. Between
// parts of the store others may look for a place.
func (m *Memory) freeNumbers() {
	for range shardCount { // a part is a shard at least
		if !m.makeRoom(0) {
			return
		}
	}
}

// makeRoom forgets buckets that are full again, if there is no place for n others. It frees
// numbers of windows if they are scarce. It returns false if there is nothing to do for now. No lock is held but that of a
// gate's settings.
func (m *Memory) makeRoom(n int) bool {
	crowded := m.count.Load()+int64(n) > m.most
	if !crowded && !m.classes.scarce.Load() || !m.sweep.mu.TryLock() {
		return false
	}
	defer m.sweep.mu.Unlock()
	at := m.moments()
	for looked := 0; looked < sweepCells; m.sweep.next++ {
		if m.sweep.next == shardCount {
			m.sweep.next = 0
			m.endRound()
		}
		if m.sweep.next == 0 {
			if early(at.now, m.sweep.due, sweepEvery) || !crowded && early(at.now, m.sweep.due+m.sweep.vain, sweepEvery+m.sweep.vain) {
				return false
			}
			m.sweep.due = at.now + sweepEvery
			m.sweep.seen = numbers{}
			m.classes.beginRound()
		}
		looked += m.forget(&m.shards[m.sweep.next], at)
	}
	return true
}

// early reports whether due is still to come. If due is more than most ahead, the
// clock was set back. Then it returns false, and nobody waits for due.
func early(now, due, most time.Duration) bool { return now < due && due-now <= most }

// endRound frees the numbers that no bucket has. If there is none, the next round waits for longer.
func (m *Memory) endRound() {
	m.overflow.mu.Lock()
	m.sweep.seen.addAll(m.overflow.table.Load())
	m.overflow.mu.Unlock()
	m.classes.endRound(&m.sweep.seen)
	if m.classes.scarce.Load() {
		m.sweep.vain = min(max(2*m.sweep.vain, sweepEvery), sweepVain)
	} else {
		m.sweep.vain = 0
	}
}

// forget makes the next table of a shard if that makes room, and notes the numbers that are
// left. It returns how many cells it has visited.
func (m *Memory) forget(sh *shard, at moment) int {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	t := sh.table.Load()
	visited := len(t.cells)
	if sh.used > 0 && m.countKept(t, at) < sh.used {
		t = m.renew(sh, at, visited)
	}
	m.sweep.seen.addAll(t)
	return visited
}

// MemoryStats is a [Memory] at one moment.
type MemoryStats struct {
	// Keys is the number of buckets, MaxKeys their bound, Bytes the memory they take.
	Keys, MaxKeys, Bytes int64
	// Purged counts buckets forgotten because they were full again.
	Purged uint64
	// Overflowed counts decisions about keys for which there was no place. Those with the same window
	// share one bucket, or have none: see [MemoryConfig]. If this grows, MaxKeys is too small, or somebody
	// invents keys.
	Overflowed uint64
}

// Stats returns how full the store is.
func (m *Memory) Stats() MemoryStats {
	s := MemoryStats{Keys: m.count.Load(), MaxKeys: m.most, Purged: m.purged.Load(), Overflowed: m.overflowed.Load()}
	for i := range m.shards {
		s.Bytes += m.shards[i].bytes()
	}
	s.Bytes += m.overflow.bytes()
	return s
}

// Purge forgets every bucket that is full again, and frees the memory. The store does so
// by itself when it runs short of places. Call it to shrink the store after a busy time.
func (m *Memory) Purge() {
	for i := range m.shards {
		sh := &m.shards[i]
		sh.mu.Lock()
		m.renew(sh, m.moments(), leastCells)
		sh.mu.Unlock()
	}
	m.overflow.mu.Lock()
	m.overflow.purge(m, m.moments())
	m.overflow.mu.Unlock()
}
