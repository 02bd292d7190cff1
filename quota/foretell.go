package quota

import (
	"context"

	"github.com/weir-go/weir"
)

// Foretell implements [weir.Foreteller]: what Peek says, where the answer is to come
// back later, or never. Work that would wait for its tokens is not refused.
//
// A store on another machine is not asked, as refusing has to stay cheap: of that
// counts whom it has refused last, up to a second ago, as for [Quota.Last], whatever
// that work cost.
func (q *Quota) Foretell(ctx context.Context, w weir.Work) *weir.Rejection {
	set := q.settings.Load()
	refused := q.foreseen(ctx, set, &w)
	if refused == nil {
		return nil
	}
	switch refused.Reason {
	case weir.ReasonBlocked:
		return refused
	case weir.ReasonQuota, weir.ReasonTooLarge:
		waits := refused.Retryable && set.places > 0 && w.MaxWait >= 0 && refused.RetryAfter <= q.patience(ctx, set, &w, q.now())
		if set.mode == Strict && !waits {
			return refused
		}
	}
	return nil
}

// foreseen returns the refusal that w would get, as far as it is known here.
func (q *Quota) foreseen(ctx context.Context, set *settings, w *weir.Work) *weir.Rejection {
	if q.memory != nil {
		_, refused := q.decide(ctx, w, DryRun)
		return refused
	}
	c, refused := q.bill(ctx, set, w, false)
	if refused != nil || c.rule == nil {
		return refused
	}
	now := q.now()
	r, at, ok := q.heard.get(c.key, now)
	if !ok || r.OK || r.Window >= len(c.rule.limits) {
		return nil
	}
	if r.Wait < Never {
		if r.Wait = roundUp(r.Wait - (now - at)); r.Wait <= 0 {
			return nil
		}
	}
	return q.short(&c, r)
}
