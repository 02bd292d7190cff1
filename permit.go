package weir

import "github.com/weir-go/weir/slot"

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
type Permit struct{ ticket slot.Ticket }

// NewPermit returns the permit of a ticket. Only gates need it: see package slot.
func NewPermit(t slot.Ticket) Permit { return Permit{t} }

// Done gives the slot back and, unless [Permit.Sample] has been called, counts
// the outcome. A second Done, or one that comes after the slot has gone to
// somebody else, does nothing. So `defer p.Done(weir.NoSample)` followed by a
// p.Done(weir.OK) on the way out covers panics too.
func (p Permit) Done(o Outcome) { p.ticket.Done(uint8(o)) }

// Sample reports the backend's answer without giving the slot back. Call it
// when response headers arrive, and Done when the body has been sent. Only the
// first Sample of a permit counts.
func (p Permit) Sample(o Outcome) {
	if h := p.ticket.Holder(); h != nil {
		h.Sample(p.ticket, uint8(o))
	}
}

// Cancel gives everything back because the work never started. No sample is
// taken, no outcome is counted, and a quota gets its tokens back.
func (p Permit) Cancel() {
	if h := p.ticket.Holder(); h != nil {
		h.Cancel(p.ticket)
	}
}

// SetCost corrects the cost of the work, for gates whose unit is known only afterwards
// (tokens, bytes). gate names the gate within a composed permit; the empty name means
// every gate. A gate whose cost cannot change ignores it.
func (p Permit) SetCost(gate string, units int64) {
	if h := p.ticket.Holder(); h != nil {
		h.SetCost(p.ticket, gate, units)
	}
}

// Release gives the slot back as Done does, for work whose answer lasts longer than the work, such
// as a stream. It returns a permit for what is left: the charge of quotas, whose cost may still be
// corrected. End that one with Done; p holds nothing any more. Without a quota it is the zero Permit.
func (p Permit) Release(o Outcome) Permit {
	r, ok := p.ticket.Holder().(slot.Releaser)
	if !ok {
		p.Done(o)
		return Permit{}
	}
	return Permit{r.Release(p.ticket, uint8(o))}
}

// Live reports whether the permit still holds its slot: true from the grant to
// the first Done or Cancel. The zero Permit is never live.
func (p Permit) Live() bool { return p.ticket.Live() }
