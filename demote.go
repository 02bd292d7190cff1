package weir

import (
	"context"
	"sync/atomic"
)

// Operation is work that asks for a slot again and again: a scan that gives its
// slot back between batches, a job of many steps. It keeps out those that need a
// slot only once, so after a number of admissions what it asks for counts as
// [Background]; MongoDB's execution control does the same with its tickets. Make
// one for each operation, and admit its work through it:
//
//	op := weir.Operation{DemoteAfter: 3}
//	for batches.Next() {
//		p, err := op.Admit(ctx, gate, work)
//		...
//	}
//
// It is safe for concurrent use, and must not be copied after its first use.
type Operation struct {
	// DemoteAfter is how many admissions keep the priority of their own. 0, the
	// default, demotes nothing.
	DemoteAfter int

	admitted atomic.Int64
}

// Admit is g.Admit(ctx, w), with w demoted if it is time for that. An admission
// counts unless it rides on a permit that ctx carries: that takes no slot.
func (o *Operation) Admit(ctx context.Context, g Gate, w Work) (Permit, error) {
	p, err := g.Admit(ctx, o.Demote(w))
	if err == nil && ridesOn(p) == nil {
		o.admitted.Add(1)
	}
	return p, err
}

// Admitted returns how many admissions have counted so far.
func (o *Operation) Admitted() int64 { return o.admitted.Load() }

// Demote returns w as it should be asked for now: as it is, or as [Background]
// work. Exempt work and that of priority [Critical] are never demoted, and
// nothing is below Background.
func (o *Operation) Demote(w Work) Work {
	again := o.DemoteAfter > 0 && o.admitted.Load() >= int64(o.DemoteAfter)
	if again && !w.Exempt && w.Priority < Critical {
		w.Priority = min(w.Priority, Background)
	}
	return w
}
