package weir

import (
	"sync/atomic"
)

// Permit is the right to do admitted work. It is a small value: copy it
// freely, store it, hand it to another goroutine. Nothing is allocated for it.
//
// There are three acts. Each is harmless when repeated, when late, and on the
// zero Permit. A permit names one use of its slot and never the next one.
//
//   - Sample tells what the backend answered, as soon as it has answered.
//   - Done gives the slot back, when the backend has nothing left to do. It
//     also samples, if Sample was not called.
//   - Cancel gives everything back for work that never started.
//
// The zero Permit holds nothing: gates that are switched off return it.
type Permit struct {
	slot *Slot
	word uint64
}

// Done gives the slot back and, unless [Permit.Sample] has been called, counts
// the outcome. A second Done, or one that comes after the slot has gone to
// somebody else, does nothing. So `defer p.Done(weir.NoSample)` followed by a
// p.Done(weir.OK) on the way out covers panics too.
func (p Permit) Done(o Outcome) {
	s := p.slot
	if s == nil {
		return
	}
	c := s.common
	if c.Attention.Load() == 0 && s.word.CompareAndSwap(p.word, p.word+heldToFree) {
		if c.Hint.Load() != s {
			c.Hint.Store(s)
		}
		// The gate may have raised its attention meanwhile. It may not have
		// seen the free slot, so it has to hear of it.
		if c.Attention.Load() != 0 {
			s.holder.SlotFreed(s)
		}
		return
	}
	s.holder.PermitDone(p, o)
}

// Sample reports the backend's answer without giving the slot back. Call it
// when response headers arrive, and Done when the body has been sent. Only the
// first Sample of a permit counts.
func (p Permit) Sample(o Outcome) {
	if p.slot != nil {
		p.slot.holder.PermitSampled(p, o)
	}
}

// Cancel gives everything back because the work never started. No sample is
// taken, no outcome is counted, and a quota gets its tokens back.
func (p Permit) Cancel() {
	if p.slot != nil {
		p.slot.holder.PermitCancelled(p)
	}
}

// SetCost corrects the cost of the work, for gates whose unit is known only afterwards
// (tokens, bytes). gate names the gate within a composed permit; the empty name means
// every gate. A gate whose cost cannot change ignores it.
func (p Permit) SetCost(gate string, units int64) {
	if p.slot == nil {
		return
	}
	if h, ok := p.slot.holder.(CostHolder); ok {
		h.PermitCost(p, gate, units)
	}
}

// Live reports whether the permit still holds its slot: true from the grant to
// the first Done or Cancel. The zero Permit is never live.
func (p Permit) Live() bool { return p.slot != nil && p.slot.holds(p) }

// Slot returns the slot p was issued from, nil for the zero Permit. It is for
// implementations of [Holder].
func (p Permit) Slot() *Slot { return p.slot }

// Slot is one reusable place that a gate hands out: what makes a [Permit] safe
// against being given back twice. It is for authors of gates; users never see
// one. A slot is free, held, or retired (out of circulation). Its generation
// changes at every release, so a permit of an earlier holder matches nothing.
//
// A transition that others may race for is a single compare-and-swap. Only the
// owner changes retired slots, so these changes need none. A gate that hands out
// free slots without a lock raises [Slots.Attention] to make both sides take the
// slow path. Take must then be followed by a second read of the word. Done reads
// it again too, after it has freed a slot.
type Slot struct {
	word   atomic.Uint64
	common *Slots
	holder Holder
	id     uint32
}

// Slots is what the slots of one gate have in common.
type Slots struct {
	// Attention says whether the gate must hear of a release. While it is not
	// zero, Done calls the holder instead of freeing the slot by itself.
	Attention atomic.Uint32
	// Hint is the slot that was freed last, where an admission looks first.
	Hint atomic.Pointer[Slot]
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

// Holder is the gate's side of its permits. Each method gets a permit that may
// be stale. The Slot's methods report that.
type Holder interface {
	// PermitDone ends p with an outcome. It is called unless the permit could
	// be given back with nothing but a compare-and-swap.
	PermitDone(p Permit, o Outcome)
	// PermitSampled reports the outcome of p, which stays live.
	PermitSampled(p Permit, o Outcome)
	// PermitCancelled ends p as if it had never been granted.
	PermitCancelled(p Permit)
	// SlotFreed reports that s was given back by compare-and-swap while the
	// attention word was being raised.
	SlotFreed(s *Slot)
}

// CostHolder is a Holder whose permits can correct their cost afterwards.
type CostHolder interface {
	PermitCost(p Permit, gate string, units int64)
}

// Init prepares a slot before its first use. A slot starts retired. id is the
// holder's own: its index of the slot.
func (s *Slot) Init(h Holder, common *Slots, id uint32) {
	s.holder, s.common, s.id = h, common, id
	s.word.Store(slotRetired)
}

// ID returns the id given to Init.
func (s *Slot) ID() uint32 { return s.id }

// Take takes the slot if it is free.
func (s *Slot) Take() (Permit, bool) {
	w := s.word.Load()
	if w&slotState != slotFree || !s.word.CompareAndSwap(w, w+slotHeld) {
		return Permit{}, false
	}
	return Permit{s, w + slotHeld}, true
}

// Free gives back the use of the slot that p stands for. It reports whether p
// was live, and if so, whether it had been sampled.
func (s *Slot) Free(p Permit) (live, sampled bool) { return s.end(p, heldToFree) }

// Recall is Free for a slot that leaves circulation at once.
func (s *Slot) Recall(p Permit) (live, sampled bool) { return s.end(p, heldToRetired) }

func (s *Slot) end(p Permit, step uint64) (live, sampled bool) {
	if s.word.CompareAndSwap(p.word, p.word+step) {
		return true, false
	}
	sampled = s.word.CompareAndSwap(p.word+heldToSampled, p.word+step)
	return sampled, sampled
}

// MarkSampled marks p as sampled. It reports whether this call was the first on
// a live permit.
func (s *Slot) MarkSampled(p Permit) bool {
	return s.word.CompareAndSwap(p.word, p.word+heldToSampled)
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
func (s *Slot) Issue() Permit {
	w := s.word.Load() - (slotRetired - slotHeld)
	s.word.Store(w)
	return Permit{s, w}
}

// Held reports whether somebody holds the slot.
func (s *Slot) Held() bool { return s.word.Load()&slotHeld != 0 }

// IsRetired reports whether the slot is out of circulation.
func (s *Slot) IsRetired() bool { return s.word.Load()&slotState == slotRetired }

// Uses returns how often the slot has been given back.
func (s *Slot) Uses() uint64 { return s.word.Load() >> 2 }

// holds reports whether p is the slot's present use.
func (s *Slot) holds(p Permit) bool {
	w := s.word.Load()
	return w == p.word || w == p.word+heldToSampled
}
