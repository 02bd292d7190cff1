package policy

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/gate"
	"github.com/weir-go/weir/keyed"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/shed"
)

// Gate is a live gate of a policy: a mechanism, and a mode that says how far
// its decisions are carried out. One Gate serves every route that names it, and
// lives on through reloads: a policy that adopts it changes its settings, not
// its state.
//
//   - enforce: what the mechanism refuses is refused.
//   - observe: the mechanism is asked without waiting, on the live traffic. Work it has
//     room for holds a permit as usual. Work it has no room for is counted as observed
//     and goes on with the zero Permit. So work that would have waited for a slot counts
//     as refused with reason limit. What went on regardless is not part of the gate's
//     in-flight.
//   - off: the mechanism is not asked; the permit is the zero Permit.
//
// A change of mode holds for the next piece of work; work that waits goes on
// waiting.
type Gate struct {
	name      string
	kind      string // see kindOf
	mechanism mechanism
	tokens    bool        // the mechanism counts tokens, not slots
	requests  atomic.Bool // each piece of work is one, whatever it costs
	level     atomic.Uint32
	hooks     atomic.Pointer[gateHooks]
	signals   atomic.Pointer[[]string]
	format    atomic.Pointer[quotaFormat] // of a quota

	refused  gate.Refusals // what was refused, by reason
	observed gate.Refusals // what would have been refused

	// closesAfter is how long the gate stays open after the last policy that uses it: longer than anybody
	// waits in it.
	closesAfter atomic.Int64
	closed      atomic.Bool
}

// gateHooks are the hooks that the Gate itself calls. Only it knows whether a refusal is enforced.
type gateHooks struct {
	rejected, observed func(weir.Work, *weir.Rejection)
}

// Name returns the gate's name in the policy.
func (g *Gate) Name() string { return g.name }

// Mode returns the mode in force.
func (g *Gate) Mode() Mode { return level(g.level.Load()).mode() }

// Limiter returns the concurrency gate inside, nil for other mechanisms. Work
// admitted through it directly bypasses the mode and is not counted as refused.
func (g *Gate) Limiter() *limit.Limiter {
	l, _ := g.mechanism.(*limit.Limiter)
	return l
}

// Shedder returns the gate that sheds inside, nil for other mechanisms. What holds
// of [Gate.Limiter] holds of it.
func (g *Gate) Shedder() *shed.Shedder {
	s, _ := g.mechanism.(*shed.Shedder)
	return s
}

// Signals returns the names of the gate's signals. The Snapshot says which of them binds its limit,
// if one does.
func (g *Gate) Signals() []string { return slices.Clone(*g.signals.Load()) }

// Observed counts, by reason, the work that was let through although the gate
// refused it; nil if there was none. It keeps its counts when the mode changes.
func (g *Gate) Observed() map[weir.Reason]uint64 { return g.observed.Counts() }

// Admit implements [weir.Gate].
func (g *Gate) Admit(ctx context.Context, w weir.Work) (weir.Permit, error) {
	mode := level(g.level.Load())
	if mode == off {
		return weir.Permit{}, nil
	}
	if p, ok := weir.Nested(ctx, g); ok {
		return p, nil
	}
	w.Inherit(ctx)
	g.toUnit(&w)
	if mode == observing {
		return g.observe(w), nil
	}
	p, err := g.mechanism.Admit(ctx, w)
	if err != nil {
		g.reportRefusal(w, err)
	}
	return p, err
}

// TryAdmit implements [weir.TryAdmitter].
func (g *Gate) TryAdmit(w weir.Work) (weir.Permit, error) {
	g.toUnit(&w)
	switch level(g.level.Load()) {
	case off:
		return weir.Permit{}, nil
	case observing:
		return g.observe(w), nil
	}
	p, err := g.mechanism.TryAdmit(w)
	if err != nil {
		g.reportRefusal(w, err)
	}
	return p, err
}

// Predict implements [weir.Predictor]. Only a gate that enforces, with a mechanism
// that can tell, says anything.
func (g *Gate) Predict(ctx context.Context, w weir.Work) *weir.Rejection {
	f, ok := g.mechanism.(weir.Predictor)
	if !ok || level(g.level.Load()) != enforcing {
		return nil
	}
	return f.Predict(ctx, w)
}

// IsDistant implements [weir.Distant], by the mechanism. A gate that is off asks nobody.
func (g *Gate) IsDistant() bool {
	d, ok := g.mechanism.(weir.Distant)
	return ok && level(g.level.Load()) != off && d.IsDistant()
}

// Offer is TryAdmit for a caller who has other gates to ask. It reports whether there was room. A no
// counts as no refusal, and no hook hears of it. A gate in observe mode says no where it would
// refuse; call Admit then.
func (g *Gate) Offer(w weir.Work) (weir.Permit, bool) {
	if level(g.level.Load()) == off {
		return weir.Permit{}, true
	}
	g.toUnit(&w)
	p, err := g.mechanism.TryAdmit(w)
	return p, err == nil
}

// Arrive implements [weir.Arriver].
func (g *Gate) Arrive(w weir.Work, wake func(weir.Permit, error)) (weir.Permit, weir.Waiter, error) {
	g.toUnit(&w)
	switch level(g.level.Load()) {
	case off:
		return weir.Permit{}, nil, nil
	case observing:
		return g.observe(w), nil, nil
	}
	p, waiter, err := g.mechanism.Arrive(w, func(p weir.Permit, err error) {
		if err != nil {
			g.reportRefusal(w, err)
		}
		wake(p, err)
	})
	if err != nil && err != weir.ErrWaiting {
		g.reportRefusal(w, err)
	}
	return p, waiter, err
}

// AdmitIn is [quota.Quota.AdmitIn] under the gate's mode. In observe mode what would be refused or
// delayed is counted as observed. Refused work goes on with the zero Permit and is not charged.
// Delayed work is charged, and its Answer has no Wait. Off, and where there is no quota inside,
// nothing is charged: the Answer is Free.
func (g *Gate) AdmitIn(ctx context.Context, mode quota.Mode, w weir.Work) (weir.Permit, quota.Answer, error) {
	return g.charge(w, func(q *quota.Quota, w weir.Work) (weir.Permit, quota.Answer, error) { return q.AdmitIn(ctx, mode, w) })
}

// AdmitAhead is [quota.Quota.AdmitAhead] under the gate's mode, as AdmitIn is.
func (g *Gate) AdmitAhead(ctx context.Context, w weir.Work) (weir.Permit, quota.Answer, error) {
	return g.charge(w, func(q *quota.Quota, w weir.Work) (weir.Permit, quota.Answer, error) { return q.AdmitAhead(ctx, w) })
}

// ChargeAll is [quota.Quota.ChargeAll] under the gate's mode. What refuses counts as refused. In observe
// mode it makes every charge Alone. One that is Alone and would be refused counts as observed. Off, and
// where there is no quota inside, nothing is charged: each Answer is Free.
func (g *Gate) ChargeAll(ctx context.Context, all []quota.Charge) bool {
	q, in := g.Quota(), level(g.level.Load())
	if q == nil || in == off {
		for i := range all {
			all[i].Answer, all[i].Refused = quota.Answer{Free: true, Decision: quota.Decision{OK: true}}, nil
		}
		return true
	}
	for i := range all {
		all[i].Alone = all[i].Alone || in == observing
	}
	ok := q.ChargeAll(ctx, all)
	for i := range all {
		switch c := &all[i]; {
		case c.Refused == nil:
		case !c.Alone:
			g.countRefusal(c.Work, c.Refused)
		case byQuota(c.Refused):
			g.letThrough(c.Work, c.Refused)
		}
	}
	return ok
}

// byQuota reports whether a quota refuses. A caller that has gone, and a gate that closes, would not be
// refused by it.
func byQuota(r *weir.Rejection) bool {
	return r.Reason != weir.ReasonCanceled && r.Reason != weir.ReasonDraining
}

// Owed is [quota.Quota.Owed] of a gate that enforces; any other delays nobody.
func (g *Gate) Owed(w weir.Work) time.Duration {
	q := g.Quota()
	if q == nil || level(g.level.Load()) != enforcing {
		return 0
	}
	g.toUnit(&w)
	return q.Owed(w)
}

// charge charges the quota inside, as its caller wants it, under the gate's mode.
func (g *Gate) charge(w weir.Work, by func(*quota.Quota, weir.Work) (weir.Permit, quota.Answer, error)) (weir.Permit, quota.Answer, error) {
	free := quota.Answer{Free: true, Decision: quota.Decision{OK: true}}
	q, in := g.Quota(), level(g.level.Load())
	if q == nil || in == off {
		return weir.Permit{}, free, nil
	}
	g.toUnit(&w)
	p, a, err := by(q, w)
	switch {
	case in != observing:
		if err != nil {
			g.reportRefusal(w, err)
		}
		return p, a, err
	case err != nil:
		if r := weir.AsRejection(err); r != nil && byQuota(r) {
			g.letThrough(w, r)
		}
		return p, free, nil
	case a.Wait > 0:
		g.letThrough(w, &weir.Rejection{Gate: g.name, Rule: a.Rule, Bucket: a.Key, Reason: weir.ReasonQuota, Remaining: a.Remaining, RetryAfter: a.Wait, Retryable: true})
		a.Wait = 0
	}
	return p, a, nil
}

// toUnit converts w.Cost to the unit of this gate: tokens as they are, 1 if the gate counts requests,
// else slots, at most limit.MaxLimit.
func (g *Gate) toUnit(w *weir.Work) {
	switch {
	case g.tokens || w.Cost == 0:
	case g.requests.Load():
		w.Cost = 0
	case w.Cost > limit.MaxLimit:
		w.Cost = limit.MaxLimit
	}
}

// observe asks the mechanism, but does not enforce its refusal.
func (g *Gate) observe(w weir.Work) weir.Permit {
	p, err := g.mechanism.TryAdmit(w)
	if err == nil {
		return p
	}
	r := weir.AsRejection(err)
	if r == nil {
		r = &weir.Rejection{Gate: g.name, Cause: err}
	}
	g.letThrough(w, r)
	return weir.Permit{}
}

// letThrough counts a refusal that is not enforced.
func (g *Gate) letThrough(w weir.Work, r *weir.Rejection) {
	g.observed.Add(r.Reason)
	if h := g.hooks.Load(); h.observed != nil {
		h.observed(w, r)
	}
}

// reportRefusal counts an error of the mechanism, if it is a refusal, and calls the hook.
func (g *Gate) reportRefusal(w weir.Work, err error) {
	if r := weir.AsRejection(err); r != nil {
		g.countRefusal(w, r)
	}
}

// countRefusal counts a refusal, and calls the hook.
func (g *Gate) countRefusal(w weir.Work, r *weir.Rejection) {
	g.refused.Add(r.Reason)
	if h := g.hooks.Load(); h.rejected != nil {
		h.rejected(w, r)
	}
}

// Load returns the cost in flight, how much work waits, and the limit, as
// [Gate.Snapshot] does. It is cheaper where the gate has one limit.
func (g *Gate) Load() (inFlight, waiting, limit int64) {
	if l := g.Limiter(); l != nil {
		return l.Load()
	}
	s := g.mechanism.Snapshot()
	return s.InFlight, s.Waiting, s.Limit
}

// Snapshot implements [weir.Snapshotter]. Rejected counts what was really
// refused; see [Gate.Observed] for the rest.
func (g *Gate) Snapshot() weir.Snapshot {
	s := g.mechanism.Snapshot()
	s.Name, s.Mode = g.name, string(g.Mode())
	s.Rejected = g.refused.Counts()
	return s
}

// close ends the gate: new and waiting work is refused as draining, permits in
// flight stay valid.
func (g *Gate) close() {
	if g.closed.CompareAndSwap(false, true) {
		g.mechanism.Close()
	}
}

// closeLater closes the gate once nobody can be waiting in it.
func (g *Gate) closeLater() *time.Timer {
	return time.AfterFunc(time.Duration(g.closesAfter.Load()), g.close)
}

// Limiters returns the gate with a limiter for each key inside, nil for other
// mechanisms. What holds of [Gate.Limiter] holds of it.
func (g *Gate) Limiters() *keyed.Adaptive {
	l, _ := g.mechanism.(*keyed.Adaptive)
	return l
}

// Pools shows a gate with a limit for each key. One controller may size all pools, or each key has
// a controller of its own.
type Pools interface {
	// Usage describes the gate, with the top keys by name.
	Usage(top int) keyed.Usage
	// KeyOf returns the key of the pool that w uses. Key describes a key and reports whether it is
	// known.
	KeyOf(w weir.Work) string
	Key(key string) (keyed.KeyUse, bool)
}

// Pools returns the gate's pools by key. It is nil for a gate without pools, and for one that only
// has a pool of reads and one of writes (see [Gate.Parts]). The pools do not know the gate's mode.
func (g *Gate) Pools() Pools {
	if g.kind == readWrite {
		return nil
	}
	p, _ := g.mechanism.(Pools)
	return p
}

// Parts returns the pools for reads and for writes of a gate that has them for all work together, by
// the words read and write. It is nil for any other gate, and before the first work.
func (g *Gate) Parts() map[string]weir.Snapshot {
	l := g.Limiters()
	if l == nil {
		return nil
	}
	parts := map[string]weir.Snapshot{}
	for _, part := range accesses {
		if s, ok := l.Limiter("", part); ok {
			parts[part] = s
		}
	}
	if len(parts) == 0 {
		return nil
	}
	return parts
}

// Quota returns the quota inside, nil for other mechanisms. What holds of
// [Gate.Limiter] holds of it.
func (g *Gate) Quota() *quota.Quota {
	q, _ := g.mechanism.(*quota.Quota)
	return q
}

// quotaFormat is how answers report a quota, in the words of QuotaSpec.
type quotaFormat struct{ headers, unit string }

// QuotaHeaders says which headers of answers report the quota. It is a word of QuotaSpec.Headers,
// empty for gates of other mechanisms.
func (g *Gate) QuotaHeaders() string { return g.quotaFormat().headers }

// QuotaUnit returns the unit of the quota in answers. It is a word of QuotaSpec.Unit, empty for
// gates of other mechanisms.
func (g *Gate) QuotaUnit() string { return g.quotaFormat().unit }

func (g *Gate) quotaFormat() quotaFormat {
	if f := g.format.Load(); f != nil {
		return *f
	}
	return quotaFormat{}
}

var (
	_ Pools = (*keyed.Pools)(nil)
	_ Pools = (*keyed.Adaptive)(nil)
)
