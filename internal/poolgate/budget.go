package poolgate

import (
	"context"
	"fmt"
	"time"
)

// Budget is how much of the time that is left until its deadline a statement may take. The zero Budget bounds nothing.
type Budget struct {
	share float64
	tell  func(time.Duration) string
	fault error
}

// NewBudget returns the budget of a share of the time left, at most all of it. tell returns the text that says a time-out
// to the database in a transaction, and with 0 that there is none. Without it nothing is said.
func NewBudget(share float64, tell func(time.Duration) string) Budget {
	var fault error
	if !(share >= 0 && share <= 1) { // NaN, too
		fault = fmt.Errorf("WithBudget: a share of %v will not do; must be from 0, which bounds nothing, to 1, which is all of the time left", share)
	}
	if !(share > 0) {
		return Budget{fault: fault}
	}
	return Budget{min(share, 1), tell, fault}
}

// Fault returns an error that says which shares there are, if there is none such as was asked for.
func (b Budget) Fault() error { return b.fault }

// Until returns the time for a statement that has to end by the deadline. All that is left may be more than a float can tell.
func (b Budget) Until(deadline time.Time) time.Duration {
	left := time.Until(deadline)
	if b.share == 1 {
		return left
	}
	return time.Duration(float64(left) * b.share)
}

// Bound returns a context for a statement outside of a transaction, and what frees its timer. free is nil, and the context
// the caller's own, where there is no budget.
func (b Budget) Bound(ctx context.Context) (limited context.Context, free func()) {
	if b.share == 0 {
		return ctx, nil
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx, nil
	}
	left := b.Until(deadline)
	if at := time.Now().Add(left); at.Before(deadline) { // or the deadline has passed
		deadline = at
	}
	ends, end := context.WithCancelCause(context.Background())
	if err := ctx.Err(); err != nil {
		end(err) // now, and not in a goroutine
	}
	timer := time.AfterFunc(left, func() { end(context.DeadlineExceeded) })
	unwatch := context.AfterFunc(ctx, func() { end(ctx.Err()) })
	return bounded{ctx, ends, deadline}, func() { timer.Stop(); unwatch() }
}

// bounded is a context that ends with its parent or at its deadline, until it is freed. Freed it ends no more. One of package
// context would be cancelled, and database/sql could report that as the error of rows that were closed in order.
type bounded struct {
	context.Context                 // the parent
	ends            context.Context // its cause is the error
	deadline        time.Time
}

func (b bounded) Deadline() (time.Time, bool) { return b.deadline, true }
func (b bounded) Done() <-chan struct{}       { return b.ends.Done() }
func (b bounded) Err() error                  { return context.Cause(b.ends) }

// AfterFunc spares package context a goroutine for each context that is made of b.
func (b bounded) AfterFunc(f func()) (stop func() bool) { return context.AfterFunc(b.ends, f) }

// Text returns what the database has to hear before the next statement of a transaction, "" for nothing. told is whether it
// has heard of a time-out in this transaction before.
func (b Budget) Text(ctx context.Context, told bool) string {
	if b.tell == nil {
		return ""
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		if !told {
			return ""
		}
		return b.tell(0)
	}
	d := b.Until(deadline)
	if d <= 0 {
		return "" // the context has ended, and the statement says so
	}
	return b.tell(d)
}
