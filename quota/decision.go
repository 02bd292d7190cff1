package quota

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"github.com/weir-go/weir"
)

// Answer is a Result with what it is about.
type Answer struct {
	// Rule is the name of the rule, empty if none matches. Windows are its windows.
	// The Windows are shared: do not write to them.
	Rule    string
	Windows []Window
	// Cost is how many tokens the work takes.
	Cost int64
	// Key names the bucket as the store knows it, as in "api/user=alice". Charge leaves
	// it out.
	Key string
	// Free is true for work that is not counted: it is exempt, no rule matches, or
	// an exempt one. The Result is OK then, and says nothing else.
	Free bool
	Decision
}

// Charge takes what w costs and says what came of it: for those who answer for a
// protocol that has words for it, as Kafka has, where a Permissive gate tells for
// how long the client is to be muted. There is no permit: what was taken stays
// taken. It never waits. The error is a [*weir.Rejection].
func (q *Quota) Charge(ctx context.Context, w weir.Work) (Answer, error) {
	return q.ChargeIn(ctx, q.settings.Load().mode, w)
}

// ChargeIn is Charge in a mode of its own, Strict or Permissive, whatever the gate's:
// for protocols where it depends on the client, as with Kafka, whose newer clients are
// refused and whose older ones are held back. They share their buckets all the same.
// Another mode counts as Strict.
func (q *Quota) ChargeIn(ctx context.Context, mode Mode, w weir.Work) (Answer, error) {
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
func (q *Quota) Peek(ctx context.Context, w weir.Work) (Answer, error) {
	d, refused := q.decide(ctx, &w, DryRun)
	if refused != nil {
		return d, refused
	}
	return d, nil
}

func (q *Quota) decide(ctx context.Context, w *weir.Work, mode Mode) (Answer, *weir.Rejection) {
	set := q.settings.Load()
	c, refused := q.bill(ctx, set, w, mode != DryRun)
	if refused != nil {
		return Answer{Rule: refused.Rule}, refused
	}
	if c.rule == nil {
		return Answer{Free: true, Decision: Decision{OK: true}}, nil
	}
	d := Answer{Rule: c.rule.title, Windows: c.rule.limits, Cost: c.cost}
	if mode == DryRun {
		_, d.Key = q.Key(*w)
	}
	if d.Decision, refused = q.ask(ctx, set, w, &c, mode, 0); refused == nil && !d.OK {
		refused = q.short(set, w, &c, d.Decision)
	}
	return d, refused
}

// Predict implements [weir.Predictor]: what Peek says, where the answer is to come
// back later, or never. Work that would wait for its tokens is not refused.
//
// A store on another machine is not asked, as refusing has to stay cheap: of that
// counts whom it has refused last, up to a second ago, as for [Quota.Last], whatever
// that work cost.
func (q *Quota) Predict(ctx context.Context, w weir.Work) *weir.Rejection {
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
	return q.short(set, w, &c, r)
}

// Last returns what the store has said last of the bucket that w would be charged
// to: what is left, for whoever answers w, without another question. In a Memory,
// which is at hand, it is what Peek says. Of a store on another machine it is what
// this process heard up to a second ago, and false if it heard nothing: what the
// store could not tell, or was decided without it, is not remembered, and of two
// buckets that share a place here only the last is known.
func (q *Quota) Last(ctx context.Context, w weir.Work) (Answer, bool) {
	if q.memory != nil {
		d, _ := q.Peek(ctx, w) // that w would be refused now is no error
		return d, len(d.Windows) > 0
	}
	set := q.settings.Load()
	id := set.identify(w)
	r := set.rules.find(&id)
	if w.Exempt || r == nil || r.exempt || r.blocked {
		return Answer{}, false
	}
	key := string(appendKey(nil, q.name, r, &id))
	result, _, ok := q.heard.get(key, q.now())
	if !ok || result.Window >= len(r.limits) {
		return Answer{}, false
	}
	return Answer{Rule: r.title, Windows: r.limits, Cost: set.cost(w), Key: key, Decision: result}, true
}

// heard remembers what a store has said lately, each bucket in the one place that
// its key hashes to.
type heard struct {
	seed   maphash.Seed
	mu     sync.Mutex // guards what follows
	places [1 << 10]saying
}

type saying struct {
	key    uint64
	at     time.Duration
	result Decision
}

// fresh is how long an answer counts.
const fresh = time.Second

func (h *heard) hash(key string) uint64 {
	return maphash.String(h.seed, key) | 1 // 0 is an empty place
}

func (h *heard) put(key string, now time.Duration, r Decision) {
	hash := h.hash(key)
	h.mu.Lock()
	h.places[hash>>1%uint64(len(h.places))] = saying{hash, now, r}
	h.mu.Unlock()
}

// get returns what was said of key, and when.
func (h *heard) get(key string, now time.Duration) (r Decision, at time.Duration, ok bool) {
	hash := h.hash(key)
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &h.places[hash>>1%uint64(len(h.places))]
	return s.result, s.at, s.key == hash && now-s.at < fresh
}

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
func (q *Quota) Reset(ctx context.Context, w weir.Work) (Answer, error) {
	d, err := q.reset(ctx, &w)
	if err != nil {
		err = fmt.Errorf("quota: gate %q: %w", q.name, err)
	}
	return d, err
}

func (q *Quota) reset(ctx context.Context, w *weir.Work) (d Answer, err error) {
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
	d = Answer{Rule: r.title, Windows: r.limits, Key: string(appendKey(nil, q.name, r, &id))}
	// A take of nothing that asks for a debt says what is there, and takes nothing.
	look := &Request{Key: d.Key, Windows: r.limits, Debt: true, Mode: DryRun}
	if d.Decision, err = q.store.Decide(ctx, look); err == nil {
		err = look.makesSense(d.Decision)
	}
	if err != nil {
		return d, fmt.Errorf("the store does not say what bucket %s holds, and it was left as it is: %w", d.Key, err)
	}
	if m := q.memory; m != nil && m.shares(maphash.String(m.seed, d.Key), r.limits) {
		return d, fmt.Errorf("%s shares a bucket with all for whom there was no place, which is not theirs to fill; raise MaxKeys: %w", d.Key, ErrNoBucket)
	}
	if m := q.locally(false); m != nil {
		if err := m.Refund(ctx, d.Key, r.limits, enough); err != nil {
			return d, err // cannot be: the limits are those of a rule in force
		}
	}
	if err := q.store.Refund(ctx, d.Key, r.limits, enough); err != nil {
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
func brimful(limits []Window) Decision {
	r := Decision{OK: true}
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
func (m *Memory) shares(hash uint64, limits []Window) bool {
	t, at := m.shard(hash).table.Load(), m.moment(m.now(), limits)
	for i := range limits {
		l := &limits[i]
		if t.find(windowID(hash, i)) == nil && m.fresh(i, l, at).tokens < l.Burst {
			return true
		}
	}
	return false
}
