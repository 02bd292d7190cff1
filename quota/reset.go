package quota

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"

	"github.com/weir-go/weir"
)

// ErrNoBucket is what the error of [Quota.Reset] is, for errors.Is, about work that has
// no bucket of its own to fill.
var ErrNoBucket = errors.New("there is no bucket to fill")

// Reset fills the bucket that w would be charged to, in all of its windows. It is for
// debts that are a mistake, such as one of 9e14 tokens settled in the place of 900, which
// nobody lives to see paid back. The Decision says which bucket it is, by which rule and
// limits, and its Result what was there before: OK is false for a debt.
//
// What waits keeps its time, and permits that are out are settled as ever. The buckets
// that stand in for a store that fails are filled too, those of other processes are not.
// Nor are the refusals forgotten that a store remembers on this side of the network, as
// a lease does: up to the end of its time w may be refused still.
//
// The error is [ErrNoBucket] where no rule matches, or one that exempts or blocks, and
// where a [Memory] had no place left for a bucket of w's own; [ErrClosed] for a closed
// gate; or it is the store's. Then it may not be known what has come of it. To do it
// again does no harm.
func (q *Quota) Reset(ctx context.Context, w weir.Work) (Decision, error) {
	d, err := q.reset(ctx, &w)
	if err != nil {
		err = fmt.Errorf("quota: gate %q: %w", q.name, err)
	}
	return d, err
}

func (q *Quota) reset(ctx context.Context, w *weir.Work) (d Decision, err error) {
	set := q.settings.Load()
	id := set.identify(*w)
	r := set.rules.find(&id)
	switch {
	case q.closed.Load():
		return d, ErrClosed
	case w.Exempt:
		return d, fmt.Errorf("the work is exempt: %w", ErrNoBucket)
	case r == nil:
		return d, fmt.Errorf("no rule matches, so nothing is counted: %w", ErrNoBucket)
	case r.exempt:
		return d, fmt.Errorf("the rule %.100s exempts, so nothing is counted: %w", r.title, ErrNoBucket)
	case r.blocked:
		return d, fmt.Errorf("the rule %.100s blocks: %w", r.title, ErrNoBucket)
	}
	d = Decision{Rule: r.title, Limits: r.limits, Key: string(appendKey(nil, q.name, r, &id))}
	// A take of nothing that asks for a debt says what is there, and takes nothing.
	look := &Take{Key: d.Key, Limits: r.limits, Debt: true, Mode: DryRun}
	if d.Result, err = q.store.Take(ctx, look); err == nil {
		err = look.makesSense(d.Result)
	}
	if err != nil {
		return d, fmt.Errorf("the store does not say what bucket %s holds, and it was left as it is: %w", d.Key, err)
	}
	if m := q.memory; m != nil && m.shares(maphash.String(m.seed, d.Key), r.limits) {
		return d, fmt.Errorf("%s shares a bucket with all for whom there was no place, which is not theirs to fill; raise MaxKeys: %w", d.Key, ErrNoBucket)
	}
	if m := q.locally(false); m != nil {
		if err := m.Give(ctx, d.Key, r.limits, enough); err != nil {
			return d, err // cannot be: the limits are those of a rule in force
		}
	}
	if err := q.store.Give(ctx, d.Key, r.limits, enough); err != nil {
		return d, fmt.Errorf("it is not known whether bucket %s is full again; do it once more: %w", d.Key, err)
	}
	if q.heard != nil {
		q.heard.put(d.Key, q.now(), brimful(r.limits))
	}
	return d, nil
}

// enough is more than any bucket lacks: the greatest debt, and the greatest burst.
const enough = 2 * MaxTokens

// brimful is what is to be said of a bucket that is full.
func brimful(limits []Limit) Result {
	r := Result{OK: true}
	for i := range limits {
		if limits[i].Burst < limits[r.Window].Burst {
			r.Window = i
		}
	}
	r.Remaining = limits[r.Window].Burst
	return r
}

// shares reports whether a key has no bucket of its own in some window, and would begin
// with less than a full one: with what those without a place have left.
func (m *Memory) shares(hash uint64, limits []Limit) bool {
	t, at := m.shard(hash).table.Load(), m.moment(m.now(), limits)
	for i := range limits {
		l := &limits[i]
		if t.find(windowID(hash, i)) == nil && m.fresh(i, l, at).tokens < l.Burst {
			return true
		}
	}
	return false
}
