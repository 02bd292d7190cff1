package limit

import (
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/internal/gate"
	"github.com/weir-go/weir/internal/room"
	"github.com/weir-go/weir/internal/window"
	"github.com/weir-go/weir/slot"
)

// core is the gate as a state machine on explicit time. It has no goroutine, no
// clock and no lock of its own: the limiter's lock guards it. Only the slots
// change hands without it.
//
// It has two gears.
//
// In the fast gear the slots are the account. At most limit of them are in
// circulation, each free or held. An admission is one compare-and-swap on a free
// slot, a release one on a held slot. Nobody knows the number in flight without
// counting.
//
// In the slow gear everything is counted under the lock. bank is what may still be
// granted: limit = in flight + bank. No slot is free, only held or retired. bank goes
// negative when the limit shrinks below what is in flight. Then nothing is granted
// until enough has come back.
//
// The core shifts down when an arrival finds no free slot, the limit changes, work of
// a cost above 1 comes, or the gate closes. It stays down while somebody has to hear of
// every admission. It shifts up when there is room again.
//
// attention publishes what a caller without the lock must know. A release that
// frees a slot by compare-and-swap reads it afterwards. Shifting down raises it
// before it counts the slots. So one of the two always sees the other.
type core struct {
	shared slot.Group // the hint is never nil
	table  atomic.Pointer[[]*berth]

	limit int64
	slow  bool
	bank  int64
	spare []*berth // retired
	heavy int      // permits out that cost more than 1

	observed bool // never shift up
	closed   bool
	word     uint32 // the attention word, as last published
	room     room.Room
	window   window.Window
	drain    gate.Drain
}

// berth is a slot with what the gate keeps about its present holder. The limiter's
// lock guards it. It is padded to a cache line. Otherwise two processors on
// neighbouring slots would slow each other down.
type berth struct {
	slot.Slot
	start time.Duration // of the present use, if admitted in the slow gear
	cost  int64         // of the present use; 0 means 1
	area  uint64        // the window's when the present use began
	_     [16]byte
}

// The bits of the attention word.
const (
	inSlow   = 1 << iota // the slow gear: come with the lock
	noSlot               // nothing to hand out to a newcomer
	roomFull             // nor a place to wait
	isClosed             // draining
)

// search searches the table for a free slot, from the hint on. It needs no lock:
// others may take and free slots meanwhile, and only under it the table does not change.
func (c *core) search() (slot.Ticket, bool) {
	from := int(c.shared.Hint.Load().ID()) // before the table, which may grow in between
	table := *c.table.Load()
	for _, part := range [2][]*berth{table[from:], table[:from]} {
		for _, b := range part {
			if t, ok := b.Take(); ok {
				c.shared.Hint.Store(&b.Slot)
				return t, true
			}
		}
	}
	return slot.Ticket{}, false
}

// inFlight returns the cost that is out now.
func (c *core) inFlight() int64 {
	if c.slow {
		return c.limit - c.bank
	}
	var n int64
	for _, b := range *c.table.Load() {
		if b.Held() {
			n++
		}
	}
	return n
}

// shiftDown goes into the slow gear: free slots are retired into the bank. A
// slot that changes hands meanwhile is checked again.
func (c *core) shiftDown(now time.Duration) {
	if c.slow {
		return
	}
	c.shared.Attention.Or(inSlow)
	c.slow, c.word = true, inSlow
	now = c.window.Latest(now)
	var held int64
	for _, b := range *c.table.Load() {
		for !b.IsRetired() {
			if b.Held() {
				held++
				b.start, b.cost, b.area = now, 1, c.window.Area(now)
				break
			}
			if b.Retire() {
				c.spare = append(c.spare, b)
			}
		}
	}
	c.window.Reset(now, held)
	c.setBank(now, c.limit-held)
	c.drain.Reset(now)
}

// The core shifts up only if nobody has lacked a slot for the time calm. Shifting
// visits every slot. And while slots are scarce, only the slow gear can measure how
// fast they come back.
const calm = 200 * time.Millisecond

// shiftUp goes back into the fast gear if nothing keeps the core down. There
// must also be enough free slots that it does not have to come down at once.
func (c *core) shiftUp(now time.Duration) {
	switch {
	case !c.slow, c.observed, c.closed, c.heavy > 0, c.room.Len() > 0:
		return
	case c.bank <= c.limit/4, now-c.drain.Wanted < calm:
		return
	}
	for want := min(c.bank, c.limit-c.bank+8); int64(len(c.spare)) < want; {
		c.grow()
	}
	for n := min(c.bank, int64(len(c.spare))); n > 0; n-- {
		c.takeSpare().Restore()
	}
	c.slow = false
	c.word = 0
	c.shared.Attention.Store(0)
}

// grow adds a retired slot to the table. The table is replaced, because readers
// without the lock may be in it.
func (c *core) grow() {
	old := *c.table.Load()
	add := max(8, len(old)/2)
	chunk := make([]berth, add)
	table := make([]*berth, len(old), len(old)+add)
	copy(table, old)
	for i := range chunk {
		b := &chunk[i]
		b.Init(&c.shared, uint32(len(table)))
		table = append(table, b)
		c.spare = append(c.spare, b)
	}
	c.table.Store(&table)
}

func (c *core) takeSpare() *berth {
	last := len(c.spare) - 1
	b := c.spare[last]
	c.spare = c.spare[:last]
	return b
}

// grant hands out a slot in the slow gear. It reports false if that cost is not free. A
// cost above the limit is charged as the whole limit. Such work is admitted alone and
// never stuck for ever.
func (c *core) grant(now time.Duration, cost int64) (slot.Ticket, bool) {
	cost = min(cost, c.limit)
	if c.bank < cost {
		return slot.Ticket{}, false
	}
	if len(c.spare) == 0 {
		c.grow()
	}
	b := c.takeSpare()
	if cost > 1 {
		c.heavy++
	}
	c.setBank(now, c.bank-cost)
	now = c.window.Latest(now)
	b.start, b.cost, b.area = now, cost, c.window.Area(now)
	c.window.Admit(c.limit - c.bank)
	return b.Issue(), true
}

// release ends t in the slow gear and returns its berth, or nil if t was not
// live.
func (c *core) release(now time.Duration, t slot.Ticket) (b *berth, sampled bool) {
	live, sampled := t.Recall()
	if !live {
		return nil, false
	}
	b = c.berth(t)
	c.credit(now, b)
	return b, sampled
}

// credit takes a berth that has just been retired into the bank.
func (c *core) credit(now time.Duration, b *berth) {
	if b.cost > 1 {
		c.heavy--
	}
	c.spare = append(c.spare, b)
	wanted := c.bank < 1 || c.room.Len() > 0
	c.setBank(now, c.bank+max(1, b.cost))
	c.drain.Finish(now, max(1, b.cost), wanted)
	if c.bank > 0 && c.room.Len() == 0 {
		c.drain.Idle()
	}
}

// freed counts a slot that was given back by compare-and-swap while the core shifted
// down. It was counted as held, but is free by now.
func (c *core) freed(now time.Duration, s *slot.Slot) {
	if c.slow && s.Retire() {
		c.credit(now, (*c.table.Load())[s.ID()])
	}
}

func (c *core) berth(t slot.Ticket) *berth { return (*c.table.Load())[t.ID()] }

func (c *core) setBank(now time.Duration, bank int64) {
	c.bank = bank
	c.window.Saturated(now, bank < 1)
	c.window.Level(now, c.limit-bank)
}

// resize changes the limit. Work in flight stays; the difference shows in the
// bank. The caller must wake waiters.
func (c *core) resize(now time.Duration, limit int64) {
	c.shiftDown(now)
	bank := c.bank + limit - c.limit
	c.limit = limit
	c.setBank(now, bank)
}

// publish brings the attention word up to date. In the slow gear it is called before
// the lock is released.
func (c *core) publish() {
	if !c.slow {
		return
	}
	word := uint32(inSlow)
	if c.bank < 1 || c.room.Len() > 0 {
		word |= noSlot
	}
	if c.room.Full() {
		word |= roomFull
	}
	if c.closed {
		word |= isClosed
	}
	if c.word != word {
		c.word = word
		c.shared.Attention.Store(word)
	}
}
