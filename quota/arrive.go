package quota

import (
	"context"
	"errors"
	"hash/maphash"
	"time"

	"github.com/weir-go/weir"
)

// charge is what a piece of work has been charged, and where: what it takes to
// settle it.
type charge struct {
	rule  *rule
	hash  uint64 // of the key, in a Memory
	key   string // in any other store
	cost  int64
	local bool // charged to the gate's own buckets, in place of the store
	free  bool // let through because the store could not tell: nothing was charged
}

// arrive decides about w: a permit, a refusal, or a place in the room if it may
// wait. It calls the hooks unless w waits.
func (q *Quota) arrive(ctx context.Context, w *weir.Work, waits bool, wake func(weir.Permit, error)) (weir.Permit, *waiter, error) {
	set := q.settings.Load()
	c, refused := q.bill(ctx, set, w, true)
	if refused != nil {
		return weir.Permit{}, nil, q.refuse(w, refused)
	}
	if c.rule == nil {
		q.admitted(w, 0)
		return weir.Permit{}, nil, nil
	}
	r, refused := q.ask(ctx, set, &c, set.mode, 0)
	if refused == nil && !r.OK && waits && set.places > 0 {
		var place *waiter
		if r, place, refused = q.wait(ctx, set, w, &c, r, wake); place != nil {
			return weir.Permit{}, place, nil
		}
	}
	if refused == nil && !r.OK {
		refused = q.short(&c, r)
	}
	if refused != nil {
		return weir.Permit{}, nil, q.refuse(w, refused)
	}
	p := q.issue(&c, set)
	q.admitted(w, 0)
	return p, nil, nil
}

// bill finds out whom w is charged to, and how much. Without a rule it is free,
// which is counted if it is to be.
func (q *Quota) bill(ctx context.Context, set *settings, w *weir.Work, count bool) (c charge, refused *weir.Rejection) {
	switch {
	case q.closed.Load():
		return c, q.draining()
	case ctx.Err() != nil:
		return c, q.givenUp(ctx)
	case !w.Deadline.IsZero() && q.since(w.Deadline) <= q.now():
		return c, q.late(q.now() - q.since(w.Deadline))
	case w.Exempt:
		q.book.free(count)
		return c, nil
	}
	id := set.identify(*w)
	r := set.rules.find(&id)
	if r == nil || r.exempt {
		q.book.free(count)
		return c, nil
	}
	if r.blocked {
		return c, &weir.Rejection{Gate: q.name, Rule: r.title, Reason: weir.ReasonBlocked}
	}
	if c.cost = set.cost(*w); c.cost < 0 {
		return c, &weir.Rejection{Gate: q.name, Rule: r.title, Reason: weir.ReasonTooLarge, Value: float64(c.cost)}
	}
	c.rule = r
	var buf [longestKey + 64]byte
	key := appendKey(buf[:0], q.name, r, &id)
	if q.memory != nil {
		c.hash = maphash.Bytes(q.memory.seed, key)
	} else {
		c.key = string(key)
	}
	return c, nil
}

// ask takes from the store, or does what is to be done if that cannot tell.
func (q *Quota) ask(ctx context.Context, set *settings, c *charge, mode Mode, most time.Duration) (Result, *weir.Rejection) {
	if q.memory != nil {
		t := Take{Limits: c.rule.limits, Cost: c.cost, Debt: set.debt, Mode: mode, MaxWait: most}
		r, err := q.memory.take(c.hash, &t)
		if err != nil {
			return r, q.broken(c, err)
		}
		return r, nil
	}
	c.local, c.free = false, false
	t := &Take{Key: c.key, Limits: c.rule.limits, Cost: c.cost, Debt: set.debt, Mode: mode, MaxWait: most}
	r, err := q.store.Take(ctx, t)
	if err == nil {
		err = t.makesSense(r)
	}
	if err == nil {
		q.heard.put(c.key, q.now(), r)
		return r, nil
	}
	if ctx.Err() != nil {
		return Result{}, q.givenUp(ctx)
	}
	q.book.storeErrors.Add(1)
	switch {
	case set.onError == Open && !errors.Is(err, ErrBusy):
		c.free = true
		return Result{OK: true}, nil
	case set.onError == Closed:
		return Result{}, q.broken(c, err)
	}
	c.local = true
	if r, err = q.locally(true).Take(ctx, t); err != nil {
		return Result{}, q.broken(c, err)
	}
	return r, nil
}

// locally returns the buckets that stand in for the store; nil if there are none
// and none are to be made.
func (q *Quota) locally(make bool) *Memory {
	q.spare.Lock()
	defer q.spare.Unlock()
	if q.local == nil && make {
		q.local, _ = NewMemory(MemoryConfig{Now: q.clock}) // the defaults are no error
	}
	return q.local
}

// giveBack undoes a charge.
func (q *Quota) giveBack(c *charge) { q.give(c, float64(c.cost)) }

// give puts tokens back to where they were taken, or takes more. It is not bound to
// the context of the work: what was charged has to be settled even if that is over.
func (q *Quota) give(c *charge, tokens float64) {
	if c.free || c.rule == nil || tokens == 0 {
		return
	}
	limits := c.rule.settling()
	var err error
	switch {
	case q.memory != nil:
		err = q.memory.give(c.hash, limits, tokens)
	case c.local:
		err = q.locally(true).Give(context.Background(), c.key, limits, tokens)
	default:
		err = q.store.Give(context.Background(), c.key, limits, tokens)
	}
	if err != nil {
		q.book.unsettled.Add(1)
	}
}
