package quota

import (
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// MemoryConfig configures a [Memory]. The zero value is fine.
type MemoryConfig struct {
	// MaxKeys bounds the buckets that are kept at a time, and so the memory: up to
	// 40 bytes each. A key has one for each of its windows. 0 means
	// [DefaultMaxKeys]; at most 1<<28.
	//
	// Set it above the keys that are in use within the time that a bucket takes to
	// fill. When there is no place, newcomers with the same limit share one bucket
	// until there is, and begin with what that one holds: see
	// [MemoryStats.Overflowed].
	MaxKeys int
	// Now replaces the clock, for virtual time: it returns the time since the
	// store's epoch, which stands for [VirtualEpoch] where calendars are concerned.
	// It may go back. Leave it nil outside simulators and tests.
	Now func() time.Duration
}

// DefaultMaxKeys is the number of buckets where MemoryConfig.MaxKeys is 0: 40 MB.
const DefaultMaxKeys = 1 << 20

const mostKeys = 1 << 28

// VirtualEpoch is the time of day at which a clock given as Now starts.
var VirtualEpoch = time.Unix(0, 0)

// Memory keeps buckets in the memory of the process: 24 bytes each, by a 64-bit
// hash of the key with a secret seed, in tables without pointers.
//
// A bucket in use is found and charged without a lock. One that is full again is
// forgotten when its table runs short of places, which loses nothing; one that is
// not, and a debt above all, never is. Two keys share a bucket if 60 bits of their
// hashes agree: with a million keys the chance that any two do is one in two
// million, and nobody can choose keys that collide.
type Memory struct {
	seed    maphash.Seed
	epoch   time.Time
	virtual func() time.Duration
	exact   bool // every take is written down: what a virtual clock needs
	most    int64
	shards  [shardCount]shard
	strays  strays
	sweep   sweep
	classes classes

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
	m := &Memory{seed: maphash.MakeSeed(), epoch: time.Now(), virtual: cfg.Now, exact: cfg.Now != nil, most: int64(cfg.MaxKeys)}
	if cfg.Now != nil {
		m.epoch = VirtualEpoch
	}
	for i := range m.shards {
		m.shards[i].init()
	}
	m.strays.init()
	m.classes.init()
	return m, nil
}

// Decide implements [Store]. It never fails but for a take that makes no sense.
func (m *Memory) Decide(_ context.Context, t *Request) (Decision, error) {
	return m.take(maphash.String(m.seed, t.Key), t)
}

// Refund implements [Store]. What is given back to a key that is not known is lost:
// its bucket is full.
func (m *Memory) Refund(_ context.Context, key string, limits []Window, tokens float64) error {
	return m.give(maphash.String(m.seed, key), limits, tokens)
}

func (m *Memory) give(hash uint64, limits []Window, tokens float64) error {
	if tokens != tokens || !validWindows(limits) {
		var f faults
		f.check(tokens == tokens, "tokens %v: must be a number", tokens)
		checkWindows(&f, "", limits)
		return f.err("give: ")
	}
	at := m.moment(m.now(), limits)
	for i := range limits {
		m.giveOne(hash, i, &limits[i], tokens, at)
	}
	return nil
}

func (m *Memory) giveOne(hash uint64, window int, l *Window, tokens float64, at moment) {
	sh, id := m.shard(hash), windowID(hash, window)
	for {
		s := sh.table.Load().find(id)
		if s == nil {
			if tokens >= 0 {
				return
			}
			s = m.place(sh, id, l, at)
		}
		b, class, ok := s.lock()
		if !ok {
			sh.wait()
			continue
		}
		now := m.steady(at, &b, l)
		b.refill(l, now)
		b.take(l, -tokens)
		s.unlock(b, m.classes.of(l, class))
		return
	}
}

// now returns the time in microseconds since the epoch, which is how precisely it
// is kept.
func (m *Memory) now() int64 {
	if m.virtual != nil {
		return max(int64(m.virtual()/time.Microsecond), 0)
	}
	return int64(time.Since(m.epoch) / time.Microsecond)
}

// moment completes the time with that of the clock on the wall, if a limit goes by
// that.
func (m *Memory) moment(now int64, limits []Window) moment {
	at := moment{now: time.Duration(now) * time.Microsecond, epoch: m.epoch}
	at.wall = at.now
	for i := range limits {
		if limits[i].Calendar.set() && m.virtual == nil {
			since := time.Now().UnixNano() - m.epoch.UnixNano()
			at.wall = time.Duration(since).Truncate(time.Microsecond)
		}
	}
	return at
}

// steady moves at up to the time when b was last touched, if that was later only
// because somebody else has read the clock later: tokens for the time in between
// would come back twice. The clock for rates never goes back by itself.
func (m *Memory) steady(at moment, b *bucket, l *Window) moment {
	b.last = near(b.last, at.by(l))
	if m.virtual != nil {
		return at
	}
	if !l.Calendar.set() {
		at.now = max(at.now, b.last)
	} else if b.last-at.wall < time.Second {
		at.wall = max(at.wall, b.last)
	}
	return at
}

// sameTick is for how long a bucket may be charged without moving its time on. It
// bounds for how long a limit that has changed counts as if it had changed before.
const (
	sameTick    = time.Millisecond
	tickSeconds = .001
)

// take does a take by the hash of its key. Its first part is for one window in
// which there are enough tokens even without those that came back since the
// bucket's time, and room for these: then one compare-and-swap is all, if that time
// is less than a millisecond ago. Should it be of before somebody else's write,
// whose tokens are the same as before that, the sum is still right, and the bucket
// holds no less than what is looked at here.
//
// The order of it is for speed: the clock is read last, because the processor
// finishes everything before it reads the clock.
func (m *Memory) take(hash uint64, t *Request) (Decision, error) {
	if len(t.Windows) == 1 && uint64(t.Cost) <= MaxTokens && t.Mode == Strict && !m.exact {
		l, cost, need := &t.Windows[0], float64(t.Cost), float64(t.Cost)
		if t.Debt {
			need = 0
		}
		if s := m.shard(hash).table.Load().find(windowID(hash, 0)); s != nil && l.Rate > 0 {
			word := s.tokens.Load()
			at := s.time.Load()
			last := time.Duration(at&timeMask) * time.Microsecond
			tokens := math.Float64frombits(word) // not a number where somebody is writing
			left := tokens - cost
			if tokens < need || !(tokens <= l.Burst-l.Rate*tickSeconds) {
				return m.touch(hash, s, word, at, t, time.Since(m.epoch))
			}
			now := time.Since(m.epoch)
			if uint64(now-last) < uint64(sameTick) && s.tokens.CompareAndSwap(word, math.Float64bits(left)) {
				return Decision{OK: true, Remaining: left}, nil
			}
			return m.touch(hash, s, word, at, t, now)
		}
	}
	return m.takeSlowly(hash, t)
}

// touch is take for one window of a rate that its class knows, found as word and
// at: the same as Request.decide, in fewer steps.
func (m *Memory) touch(hash uint64, s *slot, word, at uint64, t *Request, now time.Duration) (Decision, error) {
	l, cost := &t.Windows[0], float64(t.Cost)
	b, class := unpack(word, at)
	if word == busy || word == moved || (*m.classes.list.Load())[class].limit != *l || !t.Debt && cost > l.Burst {
		return m.takeSlowly(hash, t)
	}
	b.last = near(b.last, now)
	now = max(now.Truncate(time.Microsecond), b.last) // see steady
	b.tokens = min(b.tokens+l.Rate*(now-b.last).Seconds(), l.Burst)
	b.last = now
	if lack := b.lacks(l, cost, t.Debt); lack > 0 {
		if wait := l.wait(lack, moment{}); s.tokens.Load() == word {
			return Decision{Wait: max(wait, time.Millisecond), Remaining: b.tokens}, nil
		}
		return m.takeSlowly(hash, t)
	}
	b.take(l, cost)
	if !s.write(word, at, b, class) {
		return m.takeSlowly(hash, t)
	}
	return Decision{OK: true, Remaining: b.tokens}, nil
}

// takeSlowly is take for all cases.
func (m *Memory) takeSlowly(hash uint64, t *Request) (Decision, error) {
	if err := t.Check(); err != nil {
		return Decision{}, err
	}
	at := m.moment(m.now(), t.Windows)
	if len(t.Windows) == 1 {
		return m.one(hash, t, at), nil
	}
	return m.several(hash, t, at), nil
}

// one does a take of one window. It writes nothing where nothing changes, so that
// those who are refused do not slow down others; but on a clock that may go back,
// the time until then must count.
func (m *Memory) one(hash uint64, t *Request, at moment) Decision {
	sh, id, l := m.shard(hash), windowID(hash, 0), &t.Windows[0]
	for {
		s := sh.table.Load().find(id)
		if s == nil && t.Mode == DryRun {
			b := [1]bucket{m.fresh(0, l, at)}
			return t.decide(b[:], at)
		}
		if s == nil {
			s = m.place(sh, id, l, at)
		}
		var buckets [1]bucket
		var class uint16
		var word uint64
		var ok bool
		b := &buckets[0]
		if *b, class, word, ok = s.read(); !ok {
			sh.wait()
			continue
		}
		when := m.steady(at, b, l)
		back := when.by(l) < b.last
		last := pack(*b, class)
		r := t.decide(buckets[:], when)
		if !m.exact && (t.Mode == DryRun || !r.OK && !back) {
			return r
		}
		if s.write(word, last, *b, m.classes.of(l, class)) {
			return r
		}
	}
}

// several does a take of several windows, one at a time in each shard.
func (m *Memory) several(hash uint64, t *Request, at moment) Decision {
	sh, n := m.shard(hash), len(t.Windows)
	if sh.table.Load().find(windowID(hash, n-1)) == nil {
		m.makeRoom(n)
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	var buf [MaxWindows]*slot
	slots := buf[:n]
	if m.gather(sh, hash, t.Windows, at, slots) {
		defer m.strays.mu.Unlock()
	}
	var kept [MaxWindows]bucket
	var classes [MaxWindows]uint16
	for i, s := range slots {
		kept[i], classes[i], _ = s.lock() // with the locks held nothing moves
		at = m.steady(at, &kept[i], &t.Windows[i])
	}
	before := kept
	r := t.decide(kept[:len(slots)], at)
	for i, s := range slots {
		if t.Mode == DryRun && !m.exact {
			s.unlock(before[i], classes[i])
			continue
		}
		s.unlock(kept[i], m.classes.of(&t.Windows[i], classes[i]))
	}
	return r
}

// gather finds or makes the slots of a key whose shard is locked. It reports
// whether one is a stray; then strays are locked too, and stay so: nobody waits
// for a bucket while holding another that somebody may wait for.
func (m *Memory) gather(sh *shard, hash uint64, limits []Window, at moment, slots []*slot) (strays bool) {
	for begun := (*table)(nil); begun != sh.table.Load(); { // making one may move the others
		begun = sh.table.Load()
		for i := range limits {
			slots[i] = m.placeLocked(sh, windowID(hash, i), &limits[i], at)
		}
	}
	for i := range limits {
		if slots[i] != nil {
			continue
		}
		if !strays {
			strays = true
			m.strays.mu.Lock()
		}
		slots[i] = m.stray(i, &limits[i], at)
	}
	return strays
}

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
func (m *Memory) stray(window int, l *Window, at moment) *slot {
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
func (m *Memory) strayOf(window int, l *Window) (s *slot, id uint64) {
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
func (m *Memory) fresh(window int, l *Window, at moment) bucket {
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

// MemoryStats is a [Memory] at one moment.
type MemoryStats struct {
	// Keys is the number of buckets kept, MaxKeys their bound, Bytes what they
	// take.
	Keys, MaxKeys, Bytes int64
	// Purged counts buckets forgotten because they were full again.
	Purged uint64
	// Overflowed counts takes of keys for which there was no place. They share one
	// bucket, or one for each limit, so they are refused together: if this grows,
	// MaxKeys is too small, or somebody invents keys.
	Overflowed uint64
}

// Stats returns what the store holds.
func (m *Memory) Stats() MemoryStats {
	s := MemoryStats{Keys: m.count.Load(), MaxKeys: m.most, Purged: m.purged.Load(), Overflowed: m.overflowed.Load()}
	for i := range m.shards {
		s.Bytes += m.shards[i].bytes()
	}
	s.Bytes += m.strays.bytes()
	return s
}

// Purge forgets every bucket that is full again, and gives their memory back. The
// store does that by itself where it runs short of places; call it if it should
// shrink after a busy time.
func (m *Memory) Purge() {
	for i := range m.shards {
		sh := &m.shards[i]
		sh.mu.Lock()
		m.renew(sh, m.both(), leastSlots)
		sh.mu.Unlock()
	}
	m.strays.mu.Lock()
	m.strays.purge(m, m.both())
	m.strays.mu.Unlock()
}
