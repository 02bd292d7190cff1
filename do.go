package weir

import (
	"context"
	"sync/atomic"
)

// Do admits w, runs fn, and gives the permit back. The outcome is what
// [Classify] finds in fn's error, or [Abandoned] for any error once ctx is
// cancelled. It returns the gate's error if fn did not run, else fn's. A panic in fn releases the permit as NoSample and goes on.
// The context given to fn carries the permit. So a nested call through the same
// gate needs no second slot (see [WithPermit]). A nil g is a fault of the program: Do panics.
func Do(ctx context.Context, g Gate, w Work, fn func(context.Context) error) error {
	if g == nil {
		panic("weir.Do: the gate is nil; All() admits everything")
	}
	p, err := g.Admit(ctx, w)
	if err != nil {
		return err
	}
	defer p.Done(NoSample)
	err = fn(WithPermit(ctx, g, p))
	p.Done(classifyIn(ctx, err))
	return err
}

// classifyIn tells a client that left from an error of the work itself. After a
// cancelled context, nobody waits for the answer any more.
func classifyIn(ctx context.Context, err error) Outcome {
	if err != nil && ctx.Err() == context.Canceled {
		return Abandoned
	}
	return Classify(err)
}

// Must returns v, and panics if err is not nil. It is for gates kept in package
// variables, whose configuration is a constant of the program. Tests in bubbles of
// testing/synctest need gates of their own, made inside the bubble.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Operation is work that asks for a slot again and again. Examples are a scan that gives
// its slot back between batches, and a job of many steps. Such work crowds out work that
// needs a slot only once. So after a number of admissions it counts as [Background], as
// in MongoDB's execution control. Make one for each operation, and admit its work
// through it:
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
// counts unless all of it rides on permits that ctx carries: that takes no slot.
func (o *Operation) Admit(ctx context.Context, g Gate, w Work) (Permit, error) {
	w.Inherit(ctx) // what is exempt or critical is never demoted
	p, err := g.Admit(ctx, o.Demote(w))
	if err == nil && !p.ridesWholly() {
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
