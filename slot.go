package weir

import "sync/atomic"

// Slot is one reusable place that a gate hands out: what makes a [Permit] safe
// against being given back twice. It is for authors of gates; users never see
// one. A slot is free, held, or retired (out of circulation), and carries a
// generation that moves on at every release, so that a permit of an earlier
// holder matches nothing.
//
// Transitions that others may race for are single compare-and-swaps; only the
// owner's, on retired slots, are not. A gate that hands out free slots without a
// lock raises [Slots.Attention] to make both sides take the slow road: Take must
// then be followed by a second look at the word, as Done does after it has freed
// a slot.
type Slot struct {
	word   atomic.Uint64
	common *Slots
	holder Holder
	id     uint32
}

// Slots is what the slots of one gate have in common.
type Slots struct {
	// Attention tells whether a release is the gate's business: while it is
	// not zero, Done calls the holder instead of freeing the slot by itself.
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
// be stale; the Slot's methods tell.
type Holder interface {
	// PermitDone ends p with an outcome. It is called unless the permit could
	// be given back with nothing but a compare-and-swap.
	PermitDone(p Permit, o Outcome)
	// PermitSampled reports the outcome of p, which stays live.
	PermitSampled(p Permit, o Outcome)
	// PermitCancelled ends p as if it had never been granted.
	PermitCancelled(p Permit)
	// SlotFreed tells that s was given back by compare-and-swap while the
	// attention word was being raised.
	SlotFreed(s *Slot)
}

// CostHolder is a Holder whose permits can settle their cost afterwards.
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

// MarkSampled notes that p has been sampled and reports whether this call was
// the first, on a live permit.
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
