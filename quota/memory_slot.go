package quota

import (
	"math"
	"math/bits"
	"runtime"
	"sync/atomic"
	"time"
)

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
