package weir

import (
	"context"
	"reflect"
	"sync/atomic"
)

// MaxNested bounds how many nested calls may be in progress under one permit at
// the same time. A call beyond the bound is admitted like any other work.
const MaxNested = 64

type nestedKey struct{}

// nesting is set for good by the first WithPermit of the process. Looking a
// value up in a context costs more than the rest of an admission, and programs
// that nest nothing should not pay for it.
var nesting atomic.Bool

// nest is a permit as a context carries it. It links to the one around it, for
// work that holds permits of several gates.
type nest struct {
	gate   Gate
	permit Permit
	outer  *nest

	riding atomic.Int32 // nested calls in progress
}

// WithPermit returns a context that carries p, a live permit of g. A call that
// is made with this context through g while p is live takes no second slot: it
// could wait for a slot that its own caller holds, for ever. The permit is
// checked by generation, so once it is done the context carries nothing; and at
// most [MaxNested] such calls at a time ride on one permit, so that a fan-out
// cannot hide behind it.
func WithPermit(ctx context.Context, g Gate, p Permit) context.Context {
	if p.slot == nil {
		return ctx
	}
	if !nesting.Load() {
		nesting.Store(true)
	}
	outer, _ := ctx.Value(nestedKey{}).(*nest)
	return context.WithValue(ctx, nestedKey{}, &nest{gate: g, permit: p, outer: outer})
}

// Nested returns a permit for work on g that is covered by a permit which ctx
// carries, or false if the work needs a slot of its own. Gates call it first
// thing in Admit.
func Nested(ctx context.Context, g Gate) (Permit, bool) {
	if !nesting.Load() {
		return Permit{}, false
	}
	n, _ := ctx.Value(nestedKey{}).(*nest)
	for ; n != nil; n = n.outer {
		if n.covers(g) && n.permit.Live() {
			return n.take()
		}
	}
	return Permit{}, false
}

// covers reports whether the permit is one of g: g's own, or that of a chain
// which g is part of.
func (n *nest) covers(g Gate) bool {
	if same(n.gate, g) {
		return true
	}
	chain, ok := n.gate.(*all)
	return ok && chain.covers(g)
}

// same reports whether a and b are one gate. Gates of a type that cannot be
// compared, such as a func, never are: comparing two of them would panic.
func same(a, b Gate) bool { return reflect.ValueOf(a).Comparable() && a == b }

// take admits one nested call, if the bound allows.
func (n *nest) take() (Permit, bool) {
	if n.riding.Add(1) > MaxNested {
		n.riding.Add(-1)
		return Permit{}, false
	}
	r := &ride{nest: n}
	r.common.Attention.Store(1)
	r.slot.Init(r, &r.common, 0)
	return r.slot.Issue(), true
}

// ride is one nested call in progress: a slot of its own, used once, so that
// its permit is as safe to give back twice as any other. Its attention word
// stays raised, which sends every release through the methods below.
type ride struct {
	nest   *nest
	slot   Slot
	common Slots
}

func (r *ride) PermitDone(p Permit, _ Outcome) {
	if live, _ := r.slot.Recall(p); live {
		r.nest.riding.Add(-1)
	}
}

func (r *ride) PermitCancelled(p Permit)      { r.PermitDone(p, NoSample) }
func (r *ride) PermitSampled(Permit, Outcome) {}
func (r *ride) SlotFreed(*Slot)               {}
