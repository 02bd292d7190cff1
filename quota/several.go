package quota

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/fault"
)

// Charge is one of several charges that hold together; see [Quota.ChargeAll].
type Charge struct {
	// Work says by its identity which rule counts, and whose bucket is charged. Its Cost
	// does not count.
	Work weir.Work
	// Tokens are charged. 0 charges nothing, and asks whether the bucket is in debt. A
	// negative number gives tokens back, up to the burst. It does so also if the bucket is
	// still in debt afterwards, and refuses.
	Tokens int64
	// Windows, if there are any, count in place of every rule. The Work's Descriptor has
	// buckets of its own then, others for other Windows. It is for callers who bring a limit
	// along.
	Windows []Window
	// Debt charges although there are too few tokens, into debt if need be. Nothing of it is
	// given back. Refused says that there were too few.
	Debt bool
	// Alone says that a refusal of this charge refuses none of the others.
	Alone bool

	// Answer and Refused say what came of it. Refused is nil if there was enough. Remaining is
	// what is left after all: with what was given back. The Answer has no Key.
	Answer  Answer
	Refused *weir.Rejection
}

// ChargeAll charges several buckets: all of them, or none. It reports whether it did. It is
// for adapters, whose protocol asks about several at once. A remote store is asked about all
// of them at the same time; if one refuses, the others get their tokens back. One that this
// process knows to be empty is asked before the others. Those that give tokens back do so after that, and only if no other has refused. It never waits for tokens.
func (q *Quota) ChargeAll(ctx context.Context, all []Charge) bool {
	set := q.settings.Load()
	bills := make([]bill, len(all))
	var take, give []int
	for i := range all {
		if all[i].Tokens < 0 {
			give = append(give, i)
		} else {
			take = append(take, i)
		}
	}
	refused := q.chargeEach(ctx, set, all, bills, take, false)
	if len(give) > 0 {
		refused = q.chargeEach(ctx, set, all, bills, give, refused) || refused
	}
	if refused {
		q.giveBack(all, bills)
		q.countRefused(all)
		return false
	}
	for i := range all {
		if c := &all[i]; c.Refused == nil || c.Debt {
			if !c.Answer.Free && c.Tokens > 0 {
				q.counts.charged.Add(1)
			}
			q.front.Admitted(&c.Work, 0)
		}
	}
	return true
}

// chargeEach makes the charges that are numbered, and reports whether one refuses the others.
// With ask it only asks, because another has been refused.
func (q *Quota) chargeEach(ctx context.Context, set *settings, all []Charge, bills []bill, numbers []int, ask bool) (refused bool) {
	if q.memory != nil || len(numbers) < 2 {
		for _, i := range numbers {
			q.chargeOne(ctx, set, &all[i], &bills[i], ask || refused && all[i].Tokens >= 0)
			refused = refused || all[i].refuses()
		}
		return refused
	}
	// Those that will refuse, as far as is known here, are asked first. Otherwise whoever is over
	// one quota would keep taking from the others, and hold them empty until that is given back.
	var expected, others []int
	for _, i := range numbers {
		c := &all[i]
		if c.Tokens > 0 && !c.Alone && !c.Debt && !ask && q.expectsRefusal(ctx, set, c) {
			expected = append(expected, i)
		} else {
			others = append(others, i)
		}
	}
	for _, part := range [][]int{expected, others} {
		q.chargeTogether(ctx, set, all, bills, part, ask || refused)
		for _, i := range part {
			refused = refused || all[i].refuses()
		}
	}
	return refused
}

// chargeTogether makes the charges that are numbered. The store is asked about all of them at once.
func (q *Quota) chargeTogether(ctx context.Context, set *settings, all []Charge, bills []bill, numbers []int, ask bool) {
	requests, whose := make([]*Request, 0, len(numbers)), make([]charging, 0, len(numbers))
	for _, i := range numbers {
		c, b := &all[i], &bills[i]
		if given, mode, ok := q.prepare(ctx, set, c, b, ask); ok {
			requests = append(requests, &Request{Key: b.key, Windows: b.rule.Windows, Cost: b.cost, Debt: given.debt, Mode: mode})
			whose = append(whose, charging{given, c, b, mode})
		}
	}
	decisions, errs := q.decideAll(ctx, requests)
	for i, w := range whose {
		d, refused := q.decided(ctx, w.set, &w.charge.Work, w.bill, requests[i], decisions[i], errs[i])
		q.conclude(&w, d, refused)
	}
}

// decideAll asks the store about several requests at once.
func (q *Quota) decideAll(ctx context.Context, requests []*Request) ([]Decision, []error) {
	if s, ok := q.store.(Batcher); ok {
		return s.DecideAll(ctx, requests)
	}
	decisions, errs := make([]Decision, len(requests)), make([]error, len(requests))
	var asked sync.WaitGroup
	for i, r := range requests {
		asked.Go(func() { decisions[i], errs[i] = q.store.Decide(ctx, r) })
	}
	asked.Wait()
	return decisions, errs
}

// expectsRefusal reports whether a charge will be refused, as far as this process knows.
func (q *Quota) expectsRefusal(ctx context.Context, set *settings, c *Charge) bool {
	if set = q.given(set, c); set == nil {
		return true
	}
	c.Work.Cost = 0
	r := q.expectedRefusal(ctx, set, &c.Work)
	return r != nil && (r.Reason == weir.ReasonQuota || r.Reason == weir.ReasonBlocked || r.Reason == weir.ReasonTooLarge)
}

// refuses reports whether the charge refuses the others.
func (c *Charge) refuses() bool { return c.Refused != nil && !c.Alone }

// charging is a charge between the question and its answer.
type charging struct {
	set    *settings
	charge *Charge
	bill   *bill
	mode   Mode
}

// chargeOne makes one charge. With ask it takes and gives nothing, because another has been
// refused; but with Debt it does.
func (q *Quota) chargeOne(ctx context.Context, set *settings, c *Charge, b *bill, ask bool) {
	set, mode, ok := q.prepare(ctx, set, c, b, ask)
	if !ok {
		return
	}
	d, refused := q.charge(ctx, set, &c.Work, b, mode, 0)
	q.conclude(&charging{set, c, b, mode}, d, refused)
}

// prepare does all of a charge but to decide. It returns false if there is nothing to decide. The
// settings are those that count for this charge.
func (q *Quota) prepare(ctx context.Context, set *settings, c *Charge, b *bill, ask bool) (*settings, Mode, bool) {
	ask = ask && !c.Debt
	if set = q.given(set, c); set == nil {
		c.Refused = &weir.Rejection{Gate: q.Name(), Rule: "given", Reason: weir.ReasonBlocked}
		return nil, 0, false
	}
	c.Work.Cost = 0
	c.Refused = q.match(ctx, set, &c.Work, b, !ask)
	switch {
	case c.Refused != nil:
		c.Answer = Answer{Rule: c.Refused.Rule}
		return nil, 0, false
	case b.free:
		c.Answer = Answer{Free: true, Decision: Decision{OK: true}}
		if b.rule != nil {
			c.Answer.Rule = b.rule.title
		}
		return nil, 0, false
	}
	c.Answer = Answer{Rule: b.rule.title, Windows: b.rule.Windows, Cost: max(c.Tokens, 0)}
	mode := DryRun
	switch {
	case ask:
		b.cost = max(c.Tokens, 0)
	case c.Tokens <= 0:
		b.cost = 0
		q.adjust(b, -float64(c.Tokens))
	case c.Debt || set.mode == Permissive:
		b.cost, mode = c.Tokens, Permissive
	default:
		b.cost, mode = c.Tokens, Strict
	}
	return set, mode, true
}

// conclude writes what was decided into the charge.
func (q *Quota) conclude(w *charging, d Decision, refused *weir.Rejection) {
	c, b := w.charge, w.bill
	if b.free = b.free || w.mode == DryRun; refused == nil { // a store that failed may have made it so
		c.Answer.Decision, c.Answer.Free = d, b.free && w.mode != DryRun
		if !d.OK || w.mode == Permissive && d.Wait > 0 && w.set.mode != Permissive {
			refused = q.short(w.set, &c.Work, b, d)
		}
	}
	c.Refused = refused
}

// given returns the settings that count for a charge: set, or those with the windows that it brings
// along. It returns nil if these are none.
func (q *Quota) given(set *settings, c *Charge) *settings {
	if len(c.Windows) == 0 {
		return set
	}
	var f fault.List
	given := *set
	given.rules = compileRules(q.Name(), []Rule{{Name: "given", Descriptor: Every, Windows: c.Windows}}, set.debt, &f)
	if f.Len() > 0 {
		return nil
	}
	given.rules.rules[0].last = keyOfWindows(c.Windows)
	return &given
}

// keyOfWindows is what a bucket's key has of windows that a charge brings along. In one bucket with other
// windows, or with those of a rule, the faster would fill it for the slower.
func keyOfWindows(windows []Window) string {
	var b []byte
	for _, w := range windows {
		b = fmt.Appendf(b, "/given=%v,%v", w.Rate, w.Burst)
		if w.Calendar.set() {
			b = appendEscaped(append(b, ','), w.Calendar.String())
		}
	}
	return string(b)
}

// giveBack gives back what was charged.
func (q *Quota) giveBack(all []Charge, bills []bill) {
	var asked sync.WaitGroup
	for i := range all {
		c, b := &all[i], &bills[i]
		if c.Refused != nil || c.Debt || b.free || b.cost == 0 {
			continue
		}
		if a := &c.Answer; a.Window < len(a.Windows) {
			a.Remaining = min(a.Remaining+float64(b.cost), a.Windows[a.Window].Burst)
		}
		if q.memory != nil {
			q.refund(b)
		} else {
			asked.Go(func() { q.refund(b) })
		}
	}
	asked.Wait()
}

// countRefused counts the refusals, and calls the hook.
func (q *Quota) countRefused(all []Charge) {
	for i := range all {
		if c := &all[i]; c.refuses() {
			q.front.Refuse(&c.Work, c.Refused)
		}
	}
}

// RuleFor returns the name of the rule that counts for w, as an [Answer] has it, and what it
// matches. The name is empty if none matches.
func (q *Quota) RuleFor(w weir.Work) (name string, matches Pattern) {
	var id Identity
	if r := q.settings.Load().ruleOf(&w, &id); r != nil {
		return r.title, r.pattern
	}
	return "", Pattern{}
}

// UntilFull returns how long the window of the answer takes to be full again, if nobody
// charges it. It returns 0 for work that is not counted.
func (a *Answer) UntilFull(now time.Time) time.Duration {
	if a.Window >= len(a.Windows) {
		return 0
	}
	return a.Windows[a.Window].Refill(a.Remaining, now)
}
