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

// Answer is a Decision with its rule, its bucket and its cost.
type Answer struct {
	// Rule is the name of the rule that counts, empty if none matches. Windows are its windows, which
	// are shared: do not write to them.
	Rule    string
	Windows []Window
	// Cost is how many tokens the work costs.
	Cost int64
	// Key names the bucket as the store knows it, as in "api/user=alice". Charge leaves
	// it out unless there is a Wait.
	Key string
	// Free is true for work that is not counted: it is exempt, or no rule matches, or
	// its rule is exempt. The Decision is OK then, and says nothing else.
	Free bool
	Decision
}

// Charge charges the cost of w and returns the result. It is for adapters whose
// protocol has words for it. In Kafka, a Permissive gate tells for how long the client is
// to be muted. There is no permit, and nothing is given back. It never waits. The error
// is a [*weir.Rejection].
func (q *Quota) Charge(ctx context.Context, w weir.Work) (Answer, error) {
	var c bill
	a, refused := q.answer(ctx, &w, q.settings.Load().mode, &c, false)
	if refused != nil {
		return a, q.front.Refuse(&w, refused)
	}
	if !a.Free {
		q.counts.charged.Add(1)
	}
	q.front.Admitted(&w, 0)
	return a, nil
}

// AdmitIn is Charge in Strict or Permissive mode, whatever the mode of the gate. It
// returns a permit, as [Quota.Admit] does: Cancel gives the tokens back, and SetCost
// corrects the cost. It is for protocols where the mode depends on the client, and where
// more than the quota decides what is done. Kafka refuses newer clients and delays older
// ones, and both share their buckets. Any other mode counts as Strict.
func (q *Quota) AdmitIn(ctx context.Context, mode Mode, w weir.Work) (weir.Permit, Answer, error) {
	if mode != Permissive {
		mode = Strict
	}
	var c bill
	a, refused := q.answer(ctx, &w, mode, &c, true)
	if refused != nil {
		return weir.Permit{}, a, q.front.Refuse(&w, refused)
	}
	var p weir.Permit
	if !a.Free {
		p = q.issue(&c)
	}
	q.front.Admitted(&w, 0)
	return p, a, nil
}

// Peek returns what would happen to w now. It charges nothing, counts nothing, and calls
// no hook. The error is the [*weir.Rejection] that w would get. Peek knows no [Queue]: it returns the refusal
// also of work that Admit would let wait. See [Quota.Predict].
func (q *Quota) Peek(ctx context.Context, w weir.Work) (Answer, error) {
	var c bill
	a, refused := q.answer(ctx, &w, DryRun, &c, true)
	if refused != nil {
		return a, refused
	}
	return a, nil
}

// answer decides about w, and fills in c with what it has been charged. named asks for the name of the
// bucket, which a Memory has to build.
func (q *Quota) answer(ctx context.Context, w *weir.Work, mode Mode, c *bill, named bool) (Answer, *weir.Rejection) {
	set := q.settings.Load()
	refused := q.match(ctx, set, w, c, mode != DryRun)
	if refused != nil {
		return Answer{Rule: refused.Rule, Key: refused.Bucket}, refused
	}
	if c.free {
		return c.freeAnswer(), nil
	}
	a := Answer{Rule: c.rule.title, Windows: c.rule.Windows, Cost: c.cost}
	if named {
		c.key = q.bucket(set, w, c)
		a.Key = c.key
	}
	if a.Decision, refused = q.charge(ctx, set, w, c, mode, 0); refused == nil && !a.OK {
		refused = q.short(set, w, c, a.Decision)
	}
	if a.OK && a.Wait > 0 && !named {
		a.Key = q.bucket(set, w, c)
	}
	return a, refused
}

// freeAnswer is the answer about work that is not counted.
func (c *bill) freeAnswer() Answer {
	a := Answer{Free: true, Decision: Decision{OK: true}}
	if c.rule != nil {
		a.Rule = c.rule.title
	}
	return a
}

// Predict implements [weir.Predictor]. It returns the refusal of Peek if w could only
// be admitted later, or never. Work that would wait for its tokens is not
// refused.
//
// A remote store is not asked, because refusing has to stay cheap. Instead, Predict uses
// the last refusal of the same bucket if that is less than a second old. The cost of the
// refused work does not matter, unless that was more than the bucket holds.
func (q *Quota) Predict(ctx context.Context, w weir.Work) *weir.Rejection {
	set := q.settings.Load()
	refused := q.expectedRefusal(ctx, set, &w)
	if refused == nil {
		return nil
	}
	switch refused.Reason {
	case weir.ReasonBlocked:
		return refused
	case weir.ReasonQuota, weir.ReasonTooLarge:
		if q.memory == nil && refused.Reason == weir.ReasonQuota && !refused.Retryable && !set.debt {
			return nil // what was refused for ever cost too much, and w does not
		}
		waits := refused.Retryable && set.places > 0 && w.MaxWait >= 0 && refused.RetryAfter <= q.patience(ctx, set, &w, q.front.Now())
		if set.mode == Strict && !waits {
			return refused
		}
	}
	return nil
}

// expectedRefusal returns the refusal that w would get, as far as this process knows.
func (q *Quota) expectedRefusal(ctx context.Context, set *settings, w *weir.Work) *weir.Rejection {
	if q.memory != nil {
		var c bill
		_, refused := q.answer(ctx, w, DryRun, &c, true)
		return refused
	}
	var c bill
	refused := q.match(ctx, set, w, &c, false)
	if refused != nil || c.free {
		return refused
	}
	now := q.front.Now()
	d, at, ok := q.recent.get(c.key, now)
	if !ok || d.OK || d.Window >= len(c.rule.Windows) {
		return nil
	}
	if d.Wait < Never {
		if d.Wait = roundUp(d.Wait - (now - at)); d.Wait <= 0 {
			return nil
		}
	}
	return q.short(set, w, &c, d)
}

// Last returns what is left in the bucket that w would be charged to, and what that means for
// one more w. It is for telling the client, without asking a remote store again.
//
// For a Memory it returns what Peek returns. For a remote store it returns what Peek would
// say of one window, the one that the last decision was about. False means that this process
// got no decision in the last second. What it has given back or charged since is counted, unless
// that crossed the decision on its way. Decisions of the fallback are not remembered. Two buckets
// may share one place here. Then only the last is known.
func (q *Quota) Last(ctx context.Context, w weir.Work) (Answer, bool) {
	if q.memory != nil {
		a, _ := q.Peek(ctx, w) // that w would be refused now is no error
		return a, len(a.Windows) > 0
	}
	set := q.settings.Load()
	var id Identity
	r := set.ruleOf(&w, &id)
	if w.Exempt || r == nil || r.Exempt || r.Blocked {
		return Answer{}, false
	}
	key := string(r.appendKey(nil, &id))
	d, _, ok := q.recent.get(key, q.front.Now())
	if !ok || d.Window >= len(r.Windows) {
		return Answer{}, false
	}
	a := Answer{Rule: r.title, Windows: r.Windows, Cost: set.costOf(&w), Key: key}
	next := Request{Windows: r.Windows[d.Window : d.Window+1], Cost: max(a.Cost, 0), Debt: set.debt, Mode: DryRun}
	a.Decision = next.Decide([]float64{d.Remaining}, time.Now())
	a.Window = d.Window
	return a, true
}

// recent remembers what a remote store decided lately. The hash of a bucket's key gives
// its place.
type recent struct {
	seed   maphash.Seed
	mu     sync.Mutex // guards what follows
	places [1 << 10]remembered
}

type remembered struct {
	key      uint64
	at       time.Duration
	decision Decision
}

// rememberFor is how long a decision is remembered.
const rememberFor = time.Second

func (m *recent) hash(key string) uint64 {
	return maphash.String(m.seed, key) | 1 // 0 is an empty place
}

func (m *recent) put(key string, now time.Duration, d Decision) {
	hash := m.hash(key)
	m.mu.Lock()
	m.places[hash>>1%uint64(len(m.places))] = remembered{hash, now, d}
	m.mu.Unlock()
}

// correct adds tokens that were given back to what is left of key. The store does not say what is
// left after a correction, but who is told what is left must not be told an estimate. If tokens come back,
// only the store knows whether it would refuse again.
func (m *recent) correct(key string, windows []Window, tokens float64) {
	hash := m.hash(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	r := &m.places[hash>>1%uint64(len(m.places))]
	if d := &r.decision; r.key == hash && d.Window < len(windows) {
		d.Remaining = min(d.Remaining+tokens, windows[d.Window].Burst)
		d.OK = d.OK || tokens > 0
	}
}

// get returns the decision about key, and when it was made.
func (m *recent) get(key string, now time.Duration) (d Decision, at time.Duration, ok bool) {
	hash := m.hash(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	r := &m.places[hash>>1%uint64(len(m.places))]
	return r.decision, r.at, r.key == hash && now-r.at < rememberFor
}

// ErrNoBucket is wrapped by the error of [Quota.Reset] if the work has no bucket of its
// own.
var ErrNoBucket = errors.New("there is no bucket to fill")

// ErrNotFilled is wrapped by the error of [Quota.Reset] if it failed before anything was filled.
var ErrNotFilled = errors.New("it was not filled")

// Reset fills the bucket that w would be charged to, in all of its windows. It is for
// debts that are a mistake, such as one of 9e14 tokens in place of 900. The Answer
// names the bucket, its rule and its windows. Its Decision is what was there before,
// with OK false for a debt.
//
// Work that waits keeps its time, and the cost of permits that are out can still be
// corrected. The fallback of a store that fails is filled too, but not those of other
// processes. A store may remember refusals on this side of the network, as a lease does.
// These stay: until they expire w may still be refused.
//
// The error wraps [ErrNoBucket] if no rule matches, or the rule exempts or blocks. It
// also does if a [Memory] has no place left for a bucket of w's own. It wraps [ErrNotFilled] and
// [weir.ErrClosed] for a closed gate, or ErrNotFilled and the store's error. Otherwise it is the
// store's error alone, and the bucket may be full or not: repeating the reset does no harm.
func (q *Quota) Reset(ctx context.Context, w weir.Work) (Answer, error) {
	a, err := q.reset(ctx, &w)
	if err != nil {
		err = fmt.Errorf("quota: gate %q: %w", q.Name(), err)
	}
	return a, err
}

func (q *Quota) reset(ctx context.Context, w *weir.Work) (a Answer, err error) {
	var id Identity
	r := q.settings.Load().ruleOf(w, &id)
	switch {
	case q.closed.Load():
		return a, fmt.Errorf("%w, so %w", weir.ErrClosed, ErrNotFilled)
	case w.Exempt:
		return a, fmt.Errorf("the work is exempt: %w", ErrNoBucket)
	case r == nil:
		return a, fmt.Errorf("no rule matches, so nothing is counted: %w", ErrNoBucket)
	case r.Exempt:
		return a, fmt.Errorf("the rule %.100s exempts, so nothing is counted: %w", r.title, ErrNoBucket)
	case r.Blocked:
		return a, fmt.Errorf("the rule %.100s blocks: %w", r.title, ErrNoBucket)
	}
	a = Answer{Rule: r.title, Windows: r.Windows, Key: string(r.appendKey(nil, &id))}
	dry := &Request{Key: a.Key, Windows: r.Windows, Debt: true, Mode: DryRun}
	if a.Decision, err = q.store.Decide(ctx, dry); err == nil {
		err = dry.checkDecision(a.Decision)
	}
	if err != nil {
		return a, fmt.Errorf("the store did not say what bucket %s holds, so %w: %w", a.Key, ErrNotFilled, err)
	}
	if m := q.memory; m != nil && m.overflows(m.hash.String(a.Key), r.Windows) {
		return a, fmt.Errorf("%s shares a bucket with all for whom there was no place, and cannot fill that; raise MaxKeys: %w", a.Key, ErrNoBucket)
	}
	const enough = 2 * MaxTokens // the greatest debt and the greatest burst
	if m := q.local(false); m != nil {
		if err := m.Refund(ctx, a.Key, r.Windows, enough); err != nil {
			return a, err // cannot be: the windows are those of a rule in force
		}
	}
	if err := q.store.Refund(ctx, a.Key, r.Windows, enough); err != nil {
		return a, fmt.Errorf("the store failed, so bucket %s may or may not be full; repeat the reset: %w", a.Key, err)
	}
	q.tabs.forget(a.Key)
	if q.recent != nil {
		tokens := make([]float64, len(r.Windows))
		for i := range tokens {
			tokens[i] = r.Windows[i].Burst
		}
		q.recent.put(a.Key, q.front.Now(), dry.Decide(tokens, time.Now()))
	}
	return a, nil
}
