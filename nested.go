package weir

import (
	"context"
	"reflect"
	"slices"
	"sync/atomic"
)

// MaxNested bounds how many nested calls may be in progress under one permit at
// the same time, those that nested calls make included. A call beyond the bound
// is admitted like any other work.
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

	// root is the nest whose permit holds the slot: this one, or, where permit
	// itself rides on another, that one. All that rides on one slot is counted
	// there, however deep the calls go.
	root   *nest
	riding atomic.Int32 // nested calls in progress
}

// WithPermit returns a context that carries p, a live permit of g. A call that
// is made with this context through g while p is live takes no second slot: it
// could wait for a slot that its own caller holds, for ever. The permit is
// checked by generation, so once it is done the context carries nothing, not
// even for calls made from within nested ones; and at most [MaxNested] nested
// calls at a time ride on one permit, at whatever depth, so that a fan-out
// cannot hide behind it. That bound is kept by the returned context: call
// WithPermit once for a permit.
func WithPermit(ctx context.Context, g Gate, p Permit) context.Context {
	if p.slot == nil {
		return ctx
	}
	if !nesting.Load() {
		nesting.Store(true)
	}
	n := &nest{gate: g, permit: p}
	n.outer, _ = ctx.Value(nestedKey{}).(*nest)
	if n.root = ridesOn(p); n.root == nil {
		n.root = n
		if twin := n.outer.with(p); twin != nil {
			n.root = twin.root
		}
	}
	return context.WithValue(ctx, nestedKey{}, n)
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

// Nested returns a permit for work on g that is covered by a permit which ctx
// carries, or false if the work needs a slot of its own. Gates call it first
// thing in Admit.
func Nested(ctx context.Context, g Gate) (Permit, bool) {
	if !nesting.Load() {
		return Permit{}, false
	}
	n, _ := ctx.Value(nestedKey{}).(*nest)
	for ; n != nil; n = n.outer {
		if covers(n.gate, g) && n.permit.Live() && n.root.permit.Live() {
			return n.root.take()
		}
	}
	return Permit{}, false
}

// covers reports whether a permit of held is one of g: held is g, or a chain, or
// a chain of chains, that g is part of.
func covers(held, g Gate) bool {
	if same(held, g) {
		return true
	}
	chain, ok := held.(*all)
	return ok && slices.ContainsFunc(chain.gates, func(inner Gate) bool { return covers(inner, g) })
}

// ridesOn returns the nest on whose slot p rides, nil if it holds its own. That
// of a chain rides if the permit of any of its gates does.
func ridesOn(p Permit) *nest {
	if p.slot == nil {
		return nil
	}
	switch holder := p.slot.holder.(type) {
	case *ride:
		return holder.root
	case *bundle:
		var buf [8]Permit
		for _, inner := range holder.inner(buf[:0], p, Permit.Live) {
			if n := ridesOn(inner); n != nil {
				return n
			}
		}
	}
	return nil
}

// same reports whether a and b are one gate. Gates of a type that cannot be
// compared, such as a func, never are: comparing two of them would panic.
func same(a, b Gate) bool { return reflect.ValueOf(a).Comparable() && a == b }

// take admits one nested call on the slot of a root, if the bound allows.
func (n *nest) take() (Permit, bool) {
	if n.riding.Add(1) > MaxNested {
		n.riding.Add(-1)
		return Permit{}, false
	}
	r := &ride{root: n}
	r.common.Attention.Store(1)
	r.slot.Init(r, &r.common, 0)
	return r.slot.Issue(), true
}

// ride is one nested call in progress: a slot of its own, used once, so that
// its permit is as safe to give back twice as any other. Its attention word
// stays raised, which sends every release through the methods below.
type ride struct {
	root   *nest
	slot   Slot
	common Slots
}

func (r *ride) PermitDone(p Permit, _ Outcome) {
	if live, _ := r.slot.Recall(p); live {
		r.root.riding.Add(-1)
	}
}

func (r *ride) PermitCancelled(p Permit)      { r.PermitDone(p, NoSample) }
func (r *ride) PermitSampled(Permit, Outcome) {}
func (r *ride) SlotFreed(*Slot)               {}
