package quota

import (
	"context"
	"time"

	"github.com/weir-go/weir"
)

// unknownWait is when to come back where nobody can tell.
const unknownWait = time.Second

// short is the refusal of work for which there are not enough tokens.
func (q *Quota) short(c *charge, r Result) *weir.Rejection {
	l := c.rule.limits[r.Window]
	refused := &weir.Rejection{Gate: q.name, Rule: c.rule.title, Window: c.rule.window(r), Reason: weir.ReasonQuota,
		Value: l.Burst - r.Remaining, Limit: l.Burst, Remaining: r.Remaining}
	switch {
	case r.Wait < Never:
		refused.RetryAfter, refused.Retryable = r.Wait, true
	case float64(c.cost) > l.Burst && r.Remaining >= 0:
		refused.Reason, refused.Value = weir.ReasonTooLarge, float64(c.cost)
	}
	return refused
}

// full is the refusal of work for which there is no place to wait.
func (q *Quota) full(set *settings, c *charge, r Result) *weir.Rejection {
	return &weir.Rejection{Gate: q.name, Rule: c.rule.title, Window: c.rule.window(r), Reason: weir.ReasonQueueFull, Value: float64(set.places),
		Limit: float64(set.places), Remaining: r.Remaining, RetryAfter: r.Wait, Retryable: true}
}

// broken is the refusal of work about which the store cannot tell.
func (q *Quota) broken(c *charge, err error) *weir.Rejection {
	return &weir.Rejection{Gate: q.name, Rule: c.rule.title, Reason: weir.ReasonStore, RetryAfter: unknownWait, Retryable: true, Cause: err}
}

func (q *Quota) draining() *weir.Rejection {
	return &weir.Rejection{Gate: q.name, Reason: weir.ReasonDraining, Retryable: true}
}

// late is the refusal of work whose deadline has passed.
func (q *Quota) late(by time.Duration) *weir.Rejection {
	return &weir.Rejection{Gate: q.name, Reason: weir.ReasonDeadline, Value: by.Seconds(), Cause: context.DeadlineExceeded}
}

// givenUp is the refusal of work whose context is done.
func (q *Quota) givenUp(ctx context.Context) *weir.Rejection {
	reason := weir.ReasonCanceled
	if ctx.Err() == context.DeadlineExceeded {
		reason = weir.ReasonDeadline
	}
	return &weir.Rejection{Gate: q.name, Reason: reason, Cause: ctx.Err()}
}

// refuse counts a refusal by its reason, and tells the hook.
func (q *Quota) refuse(w *weir.Work, r *weir.Rejection) *weir.Rejection {
	q.book.rejected[r.Reason].Add(1)
	if h := &q.settings.Load().hooks; h.Rejected != nil {
		h.Rejected(*w, r)
	}
	return r
}

func (q *Quota) admitted(w *weir.Work, waited time.Duration) {
	if h := &q.settings.Load().hooks; h.Admitted != nil {
		h.Admitted(q.name, *w, waited)
	}
}

func (q *Quota) finished(o weir.Outcome, start time.Duration) {
	if h := &q.settings.Load().hooks; h.Done != nil {
		h.Done(q.name, o, q.now()-start)
	}
}
