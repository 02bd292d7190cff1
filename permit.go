package weir

// Permit is the right to do admitted work. It is a small value: copy it
// freely, store it, hand it to another goroutine. Nothing is allocated for it.
//
// There are three acts, each harmless when repeated, when late, and on the zero
// Permit, because a permit names one use of its slot and never the next one:
//
//   - Sample tells what the backend answered, as soon as it has answered.
//   - Done gives the slot back, when the backend has nothing left to do; it
//     samples as well if Sample was not called.
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
		// The gate may have begun to care between the two: it then has either
		// seen the slot free, or has to be told.
		if c.Attention.Load() != 0 {
			s.holder.SlotFreed(s)
		}
		return
	}
	s.holder.PermitDone(p, o)
}

// Sample reports the backend's answer without giving the slot back: call it
// when response headers arrive, and Done when the body has been sent. Only the
// first Sample of a permit counts.
func (p Permit) Sample(o Outcome) {
	if p.slot != nil {
		p.slot.holder.PermitSampled(p, o)
	}
}

// Cancel gives everything back because the work never started: no sample is
// taken, no outcome counted, and a quota gets its tokens back.
func (p Permit) Cancel() {
	if p.slot != nil {
		p.slot.holder.PermitCancelled(p)
	}
}

// SetCost settles what the work really cost, for gates whose unit is known only
// afterwards (tokens, bytes). gate names the gate within a composed permit; the
// empty name means every gate. A gate whose cost cannot change ignores it.
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
