package weir

import (
	"context"
	"reflect"
	"slices"
	"sync/atomic"

	"github.com/weir-go/weir/internal/carried"
	"github.com/weir-go/weir/slot"
)

// maxNested bounds how many nested calls may be in progress under one permit at
// the same time.
const maxNested = 64

// nesting is set for good by the first WithPermit of the process. Looking a
// value up in a context costs more than the rest of an admission. Programs that
// nest nothing should not pay for it.
var nesting atomic.Bool

// nest is the context that carries a permit. It links to the one around it, for
// work that holds permits of several gates.
type nest struct {
	context.Context
	gate   Gate
	permit Permit
	outer  *nest

	// root is the nest whose permit holds the slot. It is this nest, unless its
	// permit rides on another. All nested calls on one slot are counted in its
	// root, however deep they go.
	root   *nest
	riding atomic.Int32 // nested calls in progress
}

// WithPermit returns a context that carries p, a live permit of g. While p is
// live, a call through g with this context takes no second slot. Otherwise the
// call could wait for ever for a slot that its own caller holds. The permit is
// checked by generation. Once it is done, the context carries nothing, not even
// for calls made from within nested ones.
//
// A nested call is part of the work that holds the permit, whomever it names. So at a
// gate with keys and at a quota it rides along also for another key. For the limit of
// that key, call with a context that does not carry the permit.
//
// At most 64 nested calls at a time ride on one permit, at whatever depth. A call
// beyond that is admitted like any other work, so a fan-out cannot hide behind one
// permit. The returned context keeps that bound: call WithPermit once for a permit.
func WithPermit(ctx context.Context, g Gate, p Permit) context.Context {
	if p == (Permit{}) {
		return ctx
	}
	if !nesting.Load() {
		nesting.Store(true)
	}
	n := carry(ctx, g, p)
	if b, ok := p.ticket.Holder().(*bundle); ok && ridesOn(p) != nil {
		return n.carryParts(b)
	}
	return n
}

// carry returns the nest of p, whose root is the nest that p rides on or that carries p already.
func carry(ctx context.Context, g Gate, p Permit) *nest {
	n := &nest{Context: ctx, gate: g, permit: p}
	n.outer, _ = ctx.Value(carried.Permit{}).(*nest)
	if n.root = ridesOn(p); n.root == nil {
		n.root = n
		if twin := n.outer.with(p); twin != nil {
			n.root = twin.root
		}
	}
	return n
}

// carryParts returns a context that carries also the permit of each gate of the chain of n, which
// rides in part. What it rides on may end before it does. Then a nested call needs a slot of its own at
// the gates where it rode, and at no other that gives slots.
func (n *nest) carryParts(b *bundle) context.Context {
	var buf [8]Permit
	ctx := context.Context(n)
	for i, part := range b.inner(buf[:0], n.permit.ticket, slot.Ticket.Live) {
		ctx = WithPermit(ctx, b.all.gates[i], part)
	}
	return ctx
}

// Value implements [context.Context].
func (n *nest) Value(key any) any {
	if key == (carried.Permit{}) {
		return n
	}
	return n.Context.Value(key)
}

// with returns the nest that carries p already, nil if none does.
func (n *nest) with(p Permit) *nest {
	for ; n != nil; n = n.outer {
		if n.permit == p {
			return n
		}
	}
	return nil
}

// Nested returns a permit for work on g if ctx carries a permit that covers g.
// It returns false if the work needs a slot of its own. Gates call it first
// thing in Admit.
func Nested(ctx context.Context, g Gate) (Permit, bool) {
	if !nesting.Load() {
		return Permit{}, false
	}
	n, _ := ctx.Value(carried.Permit{}).(*nest)
	for ; n != nil; n = n.outer {
		if covers(n.gate, g) && n.permit.Live() && !n.permit.ridesOnNothing() {
			return n.root.admit()
		}
	}
	return Permit{}, false
}

// covers reports whether a permit of held counts as a permit of g. It does if
// held is g, or a chain that contains g, directly or in an inner chain.
func covers(held, g Gate) bool {
	if same(held, g) {
		return true
	}
	chain, ok := held.(*all)
	return ok && slices.ContainsFunc(chain.gates, func(inner Gate) bool { return covers(inner, g) })
}

// ridesOn returns the nest that holds the slot for p, nil if p holds its own. The
// permit of a chain rides if the permit of any of its gates does.
func ridesOn(p Permit) *nest {
	switch holder := p.ticket.Holder().(type) {
	case *ride:
		return holder.root
	case *bundle:
		var buf [8]Permit
		for _, inner := range holder.inner(buf[:0], p.ticket, slot.Ticket.Live) {
			if n := ridesOn(inner); n != nil {
				return n
			}
		}
	}
	return nil
}

// ridesOnNothing reports whether a permit that p rides on has ended.
func (p Permit) ridesOnNothing() bool {
	switch holder := p.ticket.Holder().(type) {
	case *ride:
		return !holder.root.permit.Live()
	case *bundle:
		var buf [8]Permit
		return slices.ContainsFunc(holder.inner(buf[:0], p.ticket, slot.Ticket.Live), Permit.ridesOnNothing)
	}
	return false
}

// ridesWholly reports whether p holds nothing of its own at any gate, because it rides. A gate that
// gave the zero Permit does not matter.
func (p Permit) ridesWholly() bool {
	b, ok := p.ticket.Holder().(*bundle)
	if !ok {
		return ridesOn(p) != nil
	}
	rides := false
	var buf [8]Permit
	for _, inner := range b.inner(buf[:0], p.ticket, slot.Ticket.Live) {
		if inner != (Permit{}) && !inner.ridesWholly() {
			return false
		}
		rides = rides || inner != (Permit{})
	}
	return rides
}

// same reports whether a and b are one gate. Gates of a type that cannot be
// compared, such as a func, never are: comparing two of them would panic.
func same(a, b Gate) bool { return reflect.ValueOf(a).Comparable() && a == b }

// admit admits one nested call on the slot of a root, if the bound allows.
func (n *nest) admit() (Permit, bool) {
	if n.riding.Add(1) > maxNested {
		n.riding.Add(-1)
		return Permit{}, false
	}
	r := &ride{root: n}
	r.group.Holder = r
	r.group.Attention.Store(1)
	r.slot.Init(&r.group, 0)
	return Permit{r.slot.Issue()}, true
}

// ride is one nested call in progress. It has a slot of its own, used once, so
// its permit can be given back twice as safely as any other. Its group's attention
// stays raised, which sends every release through the methods below.
type ride struct {
	root  *nest
	slot  slot.Slot
	group slot.Group
}

func (r *ride) Done(t slot.Ticket, _ uint8) {
	if live, _ := t.Recall(); live {
		r.root.riding.Add(-1)
	}
}

func (r *ride) Cancel(t slot.Ticket)               { r.Done(t, uint8(NoSample)) }
func (r *ride) Sample(slot.Ticket, uint8)          {}
func (r *ride) SetCost(slot.Ticket, string, int64) {}
