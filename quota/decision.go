package quota

import (
	"context"

	"github.com/weir-go/weir"
)

// Decision is a Result with what it is about.
type Decision struct {
	// Rule is the name of the rule, empty if none matches. Limits are its windows.
	// The Limits are shared: do not write to them.
	Rule   string
	Limits []Limit
	// Cost is how many tokens the work takes.
	Cost int64
	// Key names the bucket as the store knows it, as in "api/user=alice". Charge leaves
	// it out.
	Key string
	// Free is true for work that is not counted: it is exempt, no rule matches, or
	// an exempt one. The Result is OK then, and says nothing else.
	Free bool
	Result
}

// Charge takes what w costs and says what came of it: for those who answer for a
// protocol that has words for it, as Kafka has, where a Permissive gate tells for
// how long the client is to be muted. There is no permit: what was taken stays
// taken. It never waits. The error is a [*weir.Rejection].
func (q *Quota) Charge(ctx context.Context, w weir.Work) (Decision, error) {
	return q.ChargeIn(ctx, q.settings.Load().mode, w)
}

// ChargeIn is Charge in a mode of its own, Strict or Permissive, whatever the gate's:
// for protocols where it depends on the client, as with Kafka, whose newer clients are
// refused and whose older ones are held back. They share their buckets all the same.
// Another mode counts as Strict.
func (q *Quota) ChargeIn(ctx context.Context, mode Mode, w weir.Work) (Decision, error) {
	if mode != Permissive {
		mode = Strict
	}
	d, refused := q.decide(ctx, &w, mode)
	if refused != nil {
		return d, q.refuse(&w, refused)
	}
	if !d.Free {
		q.book.charged.Add(1)
	}
	q.admitted(&w, 0)
	return d, nil
}

// Peek says what would become of w now, and takes nothing, counts nothing, and
// calls no hook. The error is a [*weir.Rejection] that w would get.
func (q *Quota) Peek(ctx context.Context, w weir.Work) (Decision, error) {
	d, refused := q.decide(ctx, &w, DryRun)
	if refused != nil {
		return d, refused
	}
	return d, nil
}

func (q *Quota) decide(ctx context.Context, w *weir.Work, mode Mode) (Decision, *weir.Rejection) {
	set := q.settings.Load()
	c, refused := q.bill(ctx, set, w, mode != DryRun)
	if refused != nil {
		return Decision{Rule: refused.Rule}, refused
	}
	if c.rule == nil {
		return Decision{Free: true, Result: Result{OK: true}}, nil
	}
	d := Decision{Rule: c.rule.title, Limits: c.rule.limits, Cost: c.cost}
	if mode == DryRun {
		_, d.Key = q.Key(*w)
	}
	if d.Result, refused = q.ask(ctx, set, &c, mode, 0); refused == nil && !d.OK {
		refused = q.short(&c, d.Result)
	}
	return d, refused
}
