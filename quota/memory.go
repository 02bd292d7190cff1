package quota

import (
	"context"
	"fmt"
	"hash/maphash"
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

// Take implements [Store]. It never fails but for a take that makes no sense.
func (m *Memory) Take(_ context.Context, t *Take) (Result, error) {
	return m.take(maphash.String(m.seed, t.Key), t)
}

// Give implements [Store]. What is given back to a key that is not known is lost:
// its bucket is full.
func (m *Memory) Give(_ context.Context, key string, limits []Limit, tokens float64) error {
	return m.give(maphash.String(m.seed, key), limits, tokens)
}

func (m *Memory) give(hash uint64, limits []Limit, tokens float64) error {
	if tokens != tokens || !checkLimits(limits) {
		var f faults
		f.check(tokens == tokens, "tokens %v: must be a number", tokens)
		validateLimits(&f, "", limits)
		return f.err("give: ")
	}
	at := m.moment(m.now(), limits)
	for i := range limits {
		m.giveOne(hash, i, &limits[i], tokens, at)
	}
	return nil
}

func (m *Memory) giveOne(hash uint64, window int, l *Limit, tokens float64, at moment) {
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
func (m *Memory) moment(now int64, limits []Limit) moment {
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
func (m *Memory) steady(at moment, b *bucket, l *Limit) moment {
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
