package poolgate

import (
	"context"
	"time"
)

// Budget is how much of the time that is left until its deadline a statement may take. The zero Budget bounds nothing.
type Budget struct {
	share float64
	tell  func(time.Duration) string
}

// NewBudget returns the budget of a share of the time left, at most all of it. tell returns the text that says a time-out
// to the database in a transaction, and with 0 that there is none. Without it nothing is said.
func NewBudget(share float64, tell func(time.Duration) string) Budget {
	if !(share > 0) { // NaN, too
		return Budget{}
	}
	return Budget{min(share, 1), tell}
}

// Until returns the time for a statement that has to end by the deadline. All that is left may be more than a float can tell.
func (b Budget) Until(deadline time.Time) time.Duration {
	left := time.Until(deadline)
	if b.share == 1 {
		return left
	}
	return time.Duration(float64(left) * b.share)
}

// Bound returns a context for a statement outside of a transaction, and what frees its timer. cancel is nil, and the context
// the caller's own, where there is no budget.
func (b Budget) Bound(ctx context.Context) (bounded context.Context, cancel context.CancelFunc) {
	if b.share == 0 {
		return ctx, nil
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx, nil
	}
	return context.WithTimeout(ctx, b.Until(deadline))
}

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
