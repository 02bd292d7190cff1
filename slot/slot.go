// Package slot makes permits that are safe to give back twice. It is for authors of
// gates; users of gates need none of it.
//
// A gate keeps its [Slot]s in a [Group] and implements [Holder]. Admission takes a slot
// with [Slot.Take] or [Slot.Issue]. The [Ticket] it returns becomes the user's permit by
// weir.NewPermit. The permit's acts reach the Holder with that ticket, which may be stale
// by then: [Ticket.Recall] and its like report that.
//
// The simplest gate keeps its slots retired. It hands them out with Issue and takes them
// back with Recall, both under a lock of its own. It raises [Group.Attention] for good, so
// that it hears of every release.
//
// A gate that admits without a lock lets its slots circulate. Take gets one of them, and
// the permit's Done frees it without asking the gate. To make both sides take its lock,
// the gate raises Attention. Whoever takes a slot must read Attention again after Take, as
// Done reads it again after it has freed one.
package slot

import "sync/atomic"

// Slot is one reusable place that a gate hands out. A slot is free, held, or retired (out
// of circulation). Its generation changes at every release, so a ticket of an earlier use
// matches nothing.
//
// A transition that others may race for is a single compare-and-swap. Only the owner
// changes retired slots, so these changes need none.
type Slot struct {
	word  atomic.Uint64
	group *Group
	id    uint32
}

// Group is what the slots of one gate have in common. The fields that are not atomic are
// set before the first slot is handed out.
type Group struct {
	// Attention says whether the gate must hear of a release. While it is not
	// zero, Done calls the holder instead of freeing the slot by itself.
	Attention atomic.Uint32
	// Hint is the slot that was freed last, where an admission looks first.
	Hint atomic.Pointer[Slot]

	// Holder hears what becomes of tickets.
	Holder Holder
	// Freed hears that a slot was freed without the holder while Attention was being
	// raised. It may be nil if Attention never changes after the first ticket.
	Freed func(*Slot)
}

// Holder is the gate's side of its permits: the acts of a weir.Permit. Each method gets a
// ticket that may be stale. An outcome is a weir.Outcome.
type Holder interface {
	// Done ends t with an outcome. It is called unless the slot could be freed
	// with nothing but a compare-and-swap.
	Done(t Ticket, outcome uint8)
	// Sample reports the outcome of t, which stays live.
	Sample(t Ticket, outcome uint8)
	// Cancel ends t as if it had never been granted.
	Cancel(t Ticket)
	// SetCost corrects the cost of the work. gate names one gate among several, empty
	// for every gate. A gate whose cost cannot change does nothing.
	SetCost(t Ticket, gate string, units int64)
}

// Releaser is a [Holder] that keeps something for work whose slot is given back: a quota what it
// has charged.
type Releaser interface {
	// Release ends t with an outcome, except for what is left of it. That has the ticket it
	// returns, which is zero if nothing is left, or if t is stale.
	Release(t Ticket, outcome uint8) Ticket
}

// The two low bits of a slot's word are its state, the rest its generation.
const (
	slotFree    = 0
	slotHeld    = 1
	slotRetired = 2
	slotSampled = 3 // held, and the holder has called Sample

	slotState     = 3
	heldToFree    = 4 - slotHeld // next generation, free
	heldToSampled = slotSampled - slotHeld
	freeToRetired = slotRetired - slotFree
	heldToRetired = 4 + slotRetired - slotHeld // next generation, retired
)

// Init prepares a slot of a group before its first use. A slot starts retired. id is the
// gate's own: its index of the slot.
func (s *Slot) Init(g *Group, id uint32) {
	s.group, s.id = g, id
	s.word.Store(slotRetired)
}

// ID returns the id given to Init.
func (s *Slot) ID() uint32 { return s.id }

// Take takes the slot if it is free.
func (s *Slot) Take() (Ticket, bool) {
	w := s.word.Load()
	if w&slotState != slotFree || !s.word.CompareAndSwap(w, w+slotHeld) {
		return Ticket{}, false
	}
	return Ticket{s, w + slotHeld}, true
}

// Retire takes a free slot out of circulation, and reports false if it was not
// free.
func (s *Slot) Retire() bool {
	w := s.word.Load()
	return w&slotState == slotFree && s.word.CompareAndSwap(w, w+freeToRetired)
}

// Restore puts a retired slot back into circulation, free. Only the slot's
// owner may call it, under its own lock.
func (s *Slot) Restore() { s.word.Store(s.word.Load() - freeToRetired) }

// Issue hands out a retired slot. Only the slot's owner may call it, under its
// own lock.
func (s *Slot) Issue() Ticket {
	w := s.word.Load() - (slotRetired - slotHeld)
	s.word.Store(w)
	return Ticket{s, w}
}

// Held reports whether somebody holds the slot.
func (s *Slot) Held() bool { return s.word.Load()&slotHeld != 0 }

// IsRetired reports whether the slot is out of circulation.
func (s *Slot) IsRetired() bool { return s.word.Load()&slotState == slotRetired }

// Issued returns how often the slot has been taken. It never goes down.
func (s *Slot) Issued() uint64 {
	word := s.word.Load()
	n := word >> 2
	if word&slotHeld != 0 {
		n++
	}
	return n
}

// Uses returns how often the slot has been given back.
func (s *Slot) Uses() uint64 { return s.word.Load() >> 2 }

// Ticket is one use of a slot, and what a permit consists of. It never names the next use
// of that slot.
type Ticket struct {
	slot *Slot
	word uint64
}

// Done is the Done of the permit: it frees the slot, or has the holder end the ticket. It
// does nothing if the ticket has ended, or is zero.
func (t Ticket) Done(outcome uint8) {
	s := t.slot
	if s == nil {
		return
	}
	g := s.group
	if g.Attention.Load() == 0 && s.word.CompareAndSwap(t.word, t.word+heldToFree) {
		if g.Hint.Load() != s {
			g.Hint.Store(s)
		}
		// The gate may have raised its attention meanwhile. It may not have
		// seen the free slot, so it has to hear of it.
		if g.Attention.Load() != 0 {
			g.Freed(s)
		}
		return
	}
	g.Holder.Done(t, outcome)
}

// Holder returns the holder of the ticket's slot, nil for the zero Ticket.
func (t Ticket) Holder() Holder {
	if t.slot == nil {
		return nil
	}
	return t.slot.group.Holder
}

// Live reports whether the ticket still holds its slot. The zero Ticket never does.
func (t Ticket) Live() bool {
	if t.slot == nil {
		return false
	}
	w := t.slot.word.Load()
	return w == t.word || w == t.word+heldToSampled
}

// ID returns the id of the ticket's slot. Like the methods below, it needs a ticket that is
// not zero.
func (t Ticket) ID() uint32 { return t.slot.id }

// Free ends the ticket and leaves its slot in circulation. It reports whether the ticket
// was live, and if so, whether it had been sampled.
func (t Ticket) Free() (live, sampled bool) { return t.end(heldToFree) }

// Recall is Free for a slot that leaves circulation at once.
func (t Ticket) Recall() (live, sampled bool) { return t.end(heldToRetired) }

func (t Ticket) end(step uint64) (live, sampled bool) {
	word := &t.slot.word
	if word.CompareAndSwap(t.word, t.word+step) {
		return true, false
	}
	sampled = word.CompareAndSwap(t.word+heldToSampled, t.word+step)
	return sampled, sampled
}

// MarkSampled marks the ticket as sampled. It reports whether this call was the first on
// a live ticket.
func (t Ticket) MarkSampled() bool {
	return t.slot.word.CompareAndSwap(t.word, t.word+heldToSampled)
}
