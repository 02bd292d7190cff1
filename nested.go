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
// At a gate with keys, such as pools or a quota, that holds for calls of the permit's own key. A
// call of another key is admitted like any other work (see [Keyed]).
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
// thing in Admit. A gate that is [Keyed] calls [NestedFor] instead.
func Nested(ctx context.Context, g Gate) (Permit, bool) { return NestedFor(ctx, g, nil) }

// Keyed is a Gate with an account for each key, such as a pool of slots or a bucket. Its permits
// cover nested calls of their own account only. Otherwise work of one key could do any amount of
// work for another one, above the limit of that.
type Keyed interface {
	// Covers reports whether a permit of the account covers w. account is what the holder of the
	// permit says of it (see [slot.Keyed]). It is nil for work that went on with the zero Permit.
	Covers(account any, w Work) bool
}

// NestedFor is Nested for the work w on a gate that is [Keyed].
func NestedFor(ctx context.Context, g Gate, w *Work) (Permit, bool) {
	if !nesting.Load() {
		return Permit{}, false
	}
	n, _ := ctx.Value(carried.Permit{}).(*nest)
	for ; n != nil; n = n.outer {
		if contains(n.gate, g) && n.permit.Live() && n.root.permit.Live() && (w == nil || n.isOf(ctx, g, *w)) {
			return n.root.admit()
		}
	}
	return Permit{}, false
}

// contains reports whether held is g, or a chain that contains g, directly or in an inner chain.
func contains(held, g Gate) bool {
	if same(held, g) {
		return true
	}
	chain, ok := held.(*all)
	return ok && slices.ContainsFunc(chain.gates, func(inner Gate) bool { return contains(inner, g) })
}

// isOf reports whether the permit that n carries has the keys of w at g, a gate that n's gate contains.
func (n *nest) isOf(ctx context.Context, g Gate, w Work) bool {
	if !hasKeys(g) {
		return true
	}
	w.Inherit(ctx)
	return covers(n.gate, n.permit, g, w)
}

// hasKeys reports whether g is Keyed, or a chain with a gate that is.
func hasKeys(g Gate) bool {
	if chain, ok := g.(*all); ok {
		return slices.ContainsFunc(chain.gates, hasKeys)
	}
	_, ok := g.(Keyed)
	return ok
}

// covers reports whether p, a permit of held, has the keys of w at g. A ride has those of the permit
// that it rides on.
func covers(held Gate, p Permit, g Gate, w Work) bool {
	if !contains(held, g) {
		return false
	}
	if r, ok := p.ticket.Holder().(*ride); ok {
		return covers(r.root.gate, r.root.permit, g, w)
	}
	chain, ok := held.(*all)
	if !ok {
		return p.isOf(held, w)
	}
	b, ok := p.ticket.Holder().(*bundle)
	if !ok {
		return false
	}
	var buf [8]Permit
	parts := b.inner(buf[:0], p.ticket, slot.Ticket.Live)
	if len(parts) != len(chain.gates) {
		return false // a chain of which only the charges are left
	}
	whole := same(held, g)
	for i, inner := range chain.gates {
		switch {
		case whole && !covers(inner, parts[i], inner, w):
			return false
		case !whole && covers(inner, parts[i], g, w):
			return true
		}
	}
	return whole
}

// isOf reports whether p, a permit of g, has the key of w.
func (p Permit) isOf(g Gate, w Work) bool {
	k, ok := g.(Keyed)
	if !ok {
		return true
	}
	switch h := p.ticket.Holder().(type) {
	case nil:
		return k.Covers(nil, w)
	case slot.Keyed:
		return k.Covers(h.Account(p.ticket), w)
	case interface{ Inner() Permit }: // what looks for leaks stands between
		return h.Inner().isOf(g, w)
	}
	return true // exempt work has no account
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
