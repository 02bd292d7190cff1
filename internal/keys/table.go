// Package keys has a table of keys with a count for each. It holds what a gate
// with a pool for each key knows of a million keys. It holds no lock and no clock.
// Its only pointers are those to its own few chunks, so the garbage collector has
// nothing to read in it, however many keys there are.
//
// A key takes 56 bytes, and up to 8 for the index. Nothing is kept of a key that
// has been evicted. Only keys that hold nothing are evicted.
package keys

import (
	"crypto/sha256"
	"encoding/hex"
	"hash/maphash"
	"math"
	"math/bits"
	"strings"
)

// Entry is what a table knows of one key.
type Entry struct {
	hash uint32
	held uint32 // see Hold; of an absent entry: the next on the free list
	// Admitted and Refused are for the caller's statistics.
	Admitted, Refused uint32
	name              Name
	flags             uint8
}

// The flags of an entry.
const (
	used   = 1 << iota // looked up since the hand of the clock came by
	absent             // not in the table

	// Waiting and Marked are for the caller.
	Waiting
	Marked

	groupBit // the first of those that hold the group
)

// Groups is how many groups there are. Keys are dealt to them one after the other, so they
// differ by few keys.
const Groups = 16

// Name returns the entry's name.
func (e *Entry) Name() *Name { return &e.name }

// Is reports whether the flag is set.
func (e *Entry) Is(flag uint8) bool { return e.flags&flag != 0 }

// Set sets or clears the flag.
func (e *Entry) Set(flag uint8, on bool) {
	if on {
		e.flags |= flag
	} else {
		e.flags &^= flag
	}
}

// Group returns the group that the key was dealt to, below [Groups].
func (e *Entry) Group() uint8 { return e.flags / groupBit }

// Held returns what the key has in flight.
func (e *Entry) Held() int64 { return int64(e.held) }

// Most is how many keys a table can have. An index cell has 24 bits for a key,
// beside the 8 of a tag.
const Most = 1<<24 - 1

// A chunk of entries fills one of the allocator's size classes exactly.
const (
	chunkBits = 8
	chunkLen  = 1 << chunkBits
	chunkSize = chunkLen * 56
)

// Table is a table of keys. Make one with [New]. It is not safe for concurrent
// use.
type Table struct {
	seed   maphash.Seed
	chunks []*[chunkLen]Entry
	next   uint32 // the first slot that was never used
	free   uint32 // the last slot given back, plus 1
	len    int
	idle   int    // keys that hold nothing
	hand   uint32 // of the clock: the slot to visit next

	// index finds a slot by its hash, with open addressing. A cell is 0, or the
	// slot plus 1 with 8 bits of the hash above it. Because of these bits the
	// wrong entry is seldom compared.
	index []uint32
}

// New returns an empty table whose keys are spread by seed.
func New(seed maphash.Seed) Table { return Table{seed: seed} }

// Len returns the number of keys.
func (t *Table) Len() int { return t.len }

// Idle returns the number of keys that hold nothing.
func (t *Table) Idle() int { return t.idle }

// Bytes returns the memory that the table holds.
func (t *Table) Bytes() int64 {
	return int64(len(t.chunks))*chunkSize + int64(cap(t.chunks))*8 + int64(len(t.index))*4
}

// At returns the entry in a slot. The entry does not move until it is evicted.
func (t *Table) At(slot uint32) *Entry {
	return &t.chunks[slot>>chunkBits][slot&(chunkLen-1)]
}

// Hash spreads names. Its upper half chooses a table, its lower half a place in it.
func Hash(seed maphash.Seed, n *Name) uint64 { return n.hash(seed) }

// Find returns the slot of n, whose hash is h. The key counts as looked up.
func (t *Table) Find(h uint64, n *Name) (slot uint32, ok bool) {
	if slot, ok = t.Peek(h, n); ok {
		t.At(slot).flags |= used
	}
	return slot, ok
}

// Peek is Find, but the key does not count as looked up.
func (t *Table) Peek(h uint64, n *Name) (slot uint32, ok bool) {
	if len(t.index) == 0 {
		return 0, false
	}
	hash := uint32(h)
	for i := t.home(hash); t.index[i] != 0; i = t.after(i) {
		cell := t.index[i]
		if cell>>24 != hash&0xff {
			continue
		}
		slot := cell&Most - 1
		if e := t.At(slot); e.hash == hash && e.name == *n {
			return slot, true
		}
	}
	return 0, false
}

// Add adds n, with the hash h, to a group. n must not be in the table, and the table must have
// fewer keys than Most.
func (t *Table) Add(h uint64, n *Name, group uint8) (slot uint32) {
	if (t.len+1)*4 > len(t.index)*3 {
		t.reindex()
	}
	slot = t.slot()
	*t.At(slot) = Entry{hash: uint32(h), name: *n, flags: used | group%Groups*groupBit}
	t.insert(uint32(h), slot)
	t.len++
	t.idle++
	return slot
}

// MaxHeld is the most that a key can hold.
const MaxHeld = math.MaxUint32

// Hold adds n, which may be negative, to what the key in a slot holds. The sum stays
// between 0 and MaxHeld. Hold returns by how much it changed.
func (t *Table) Hold(slot uint32, n int64) int64 {
	e := t.At(slot)
	was := int64(e.held)
	now := min(max(was+n, 0), MaxHeld)
	e.held = uint32(now)
	switch {
	case was == 0 && now > 0:
		t.idle--
	case was > 0 && now == 0:
		t.idle++
	}
	return now - was
}

// slot returns a free slot.
func (t *Table) slot() uint32 {
	if t.free != 0 {
		slot := t.free - 1
		t.free = t.At(slot).held
		return slot
	}
	if int(t.next) == len(t.chunks)*chunkLen {
		t.chunks = append(t.chunks, new([chunkLen]Entry))
	}
	t.next++
	return t.next - 1
}

// Evict drops a key that holds nothing and has not been used for long. It is the
// clock algorithm: each key has a second chance. Evict reports false if there is
// no such key. As a rule it visits a few entries. If hardly any is idle, it
// visits all of them twice.
func (t *Table) Evict() bool {
	if t.idle == 0 {
		return false
	}
	for range 2 * t.next {
		slot := t.hand
		if t.hand++; t.hand >= t.next {
			t.hand = 0
		}
		switch e := t.At(slot); {
		case e.held > 0 || e.Is(absent):
		case e.Is(used):
			e.flags &^= used
		default:
			t.drop(slot)
			return true
		}
	}
	return false
}

// drop removes the key in a slot.
func (t *Table) drop(slot uint32) {
	e := t.At(slot)
	i := t.home(e.hash)
	for t.index[i]&Most-1 != slot {
		i = t.after(i)
	}
	t.close(i)
	*e = Entry{held: t.free, flags: absent}
	t.free = slot + 1
	t.len--
	t.idle--
}

// close empties a cell of the index. It moves the cells behind it that would no
// longer be found.
func (t *Table) close(gap int) {
	for i := t.after(gap); t.index[i] != 0; i = t.after(i) {
		home := t.home(t.At(t.index[i]&Most - 1).hash)
		if t.distance(home, i) >= t.distance(gap, i) {
			t.index[gap] = t.index[i]
			gap = i
		}
	}
	t.index[gap] = 0
}

// All calls yield for each entry until it returns false.
func (t *Table) All(yield func(slot uint32, e *Entry) bool) {
	for slot := range t.next {
		if e := t.At(slot); !e.Is(absent) && !yield(slot, e) {
			return
		}
	}
}

// minIndex is how many cells the smallest index has.
const minIndex = 16

// reindex makes the index half as large again. The index is between a half and
// three quarters full, so it takes from 8 down to 5.3 bytes a key.
func (t *Table) reindex() {
	t.index = make([]uint32, max(minIndex, len(t.index)+len(t.index)/2))
	t.All(func(slot uint32, e *Entry) bool {
		t.insert(e.hash, slot)
		return true
	})
}

func (t *Table) insert(hash, slot uint32) {
	i := t.home(hash)
	for t.index[i] != 0 {
		i = t.after(i)
	}
	t.index[i] = hash<<24 | slot + 1
}

// home is the cell where the search for a hash begins.
func (t *Table) home(hash uint32) int {
	cell, _ := bits.Mul64(uint64(hash)<<32, uint64(len(t.index)))
	return int(cell)
}

func (t *Table) after(i int) int {
	if i++; i == len(t.index) {
		return 0
	}
	return i
}

// distance is how many cells to is after from.
func (t *Table) distance(from, to int) int {
	if to < from {
		to += len(t.index)
	}
	return to - from
}

// inline is the longest key that a table keeps whole. It is the length of a UUID
// with its dashes, and it fits into an entry of 56 bytes.
const inline = 36

// A longer key is kept as its first bytes, for people to read, and 20 bytes of
// its SHA-256.
const (
	digested     = 20
	shown        = inline - digested
	digestLength = inline + 1 // as Name.n: no key that is kept whole has this length
)

// Name is a key as a table keeps it: of fixed size, without a pointer.
//
// Two keys are the same to a table exactly if their names are equal. Up to 36
// bytes the name is the key itself. The name of a longer key is 160 bits of a
// cryptographic hash. It takes 2^80 attempts to find two keys with the same hash.
// Whoever finds them has only merged two keys of his own. A hash of 64 or 128 bits
// that is not cryptographic would do against chance. It would not do against
// somebody who chooses the keys. If long keys were kept whole, that person could
// also choose how much memory a key takes.
type Name struct {
	b [inline]byte
	n uint8
}

// NameOf returns the name of key. For a long key it computes a SHA-256.
func NameOf(key string) (n Name) {
	if len(key) <= inline {
		n.n = uint8(copy(n.b[:], key))
		return n
	}
	sum := sha256.Sum256([]byte(key))
	copy(n.b[:shown], key)
	copy(n.b[shown:], sum[:digested])
	n.n = digestLength
	return n
}

// String returns the key. For a long key it returns the first 16 bytes and 8
// digits of the hash, which is enough to recognise it.
func (n *Name) String() string {
	if n.n != digestLength {
		return string(n.b[:n.n])
	}
	return strings.ToValidUTF8(string(n.b[:shown]), "") + "…" + hex.EncodeToString(n.b[shown:shown+4])
}

// hash is the same for the same name and seed.
func (n *Name) hash(seed maphash.Seed) uint64 {
	return maphash.Bytes(seed, n.b[:min(n.n, inline)])
}
