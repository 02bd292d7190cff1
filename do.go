package weir

import "context"

// Do admits w, runs fn, and gives the permit back with the outcome that
// [Classify] finds in fn's error. It returns the gate's error if fn did not
// run, else fn's. A panic in fn releases the permit as NoSample and goes on.
// The context given to fn carries the permit, so that a nested call through the
// same gate needs no second slot (see [WithPermit]).
func Do(ctx context.Context, g Gate, w Work, fn func(context.Context) error) error {
	p, err := g.Admit(ctx, w)
	if err != nil {
		return err
	}
	defer p.Done(NoSample)
	err = fn(WithPermit(ctx, g, p))
	p.Done(classifyIn(ctx, err))
	return err
}

// classifyIn tells a client that left from an error of the work's own: a
// cancelled context means that nobody waits for the answer any more.
func classifyIn(ctx context.Context, err error) Outcome {
	if err != nil && ctx.Err() == context.Canceled {
		return Abandoned
	}
	return Classify(err)
}
