package limit

import (
	"fmt"
	"hash/maphash"
	"runtime"
	"strings"
	"time"

	"github.com/weir-go/weir"
)

// PermitDone implements [weir.Holder].
func (l *Limiter) PermitDone(p weir.Permit, o weir.Outcome) {
	now := l.now()
	l.mu.Lock()
	if !l.slow {
		p.Slot().Free(p)
		l.mu.Unlock()
		return
	}
	if l.byTime != nil {
		l.chargeTime(p, now)
	}
	b, sampled := l.release(now, p)
	if b == nil {
		l.mu.Unlock()
		return
	}
	service := now - b.start
	if !sampled {
		l.sample(now, b, o)
	}
	if l.quiet(now) {
		if l.word != inSlow {
			l.publish()
		}
		l.mu.Unlock()
	} else {
		answered := l.settle(now)
		l.mu.Unlock()
		answered.Deliver()
	}
	if !sampled && l.hooks.Load().Done != nil {
		l.finished(o, service)
	}
}

// PermitSampled implements [weir.Holder].
func (l *Limiter) PermitSampled(p weir.Permit, o weir.Outcome) {
	now := l.now()
	l.mu.Lock()
	if !l.slow || !p.Slot().MarkSampled(p) {
		l.mu.Unlock()
		return
	}
	b := l.berth(p.Slot())
	service := now - b.start
	l.sample(now, b, o)
	l.mu.Unlock()
	l.finished(o, service)
}

// PermitCancelled implements [weir.Holder].
func (l *Limiter) PermitCancelled(p weir.Permit) {
	now := l.now()
	l.mu.Lock()
	if !l.slow {
		if live, _ := p.Slot().Free(p); live {
			l.count.cancelled.Add(1)
		}
		l.mu.Unlock()
		return
	}
	if b, _ := l.release(now, p); b != nil {
		l.count.cancelled.Add(1)
	}
	answered := l.settle(now)
	l.mu.Unlock()
	answered.Deliver()
}

// SlotFreed implements [weir.Holder].
func (l *Limiter) SlotFreed(s *weir.Slot) {
	now := l.now()
	l.mu.Lock()
	l.freed(now, s)
	answered := l.settle(now)
	l.mu.Unlock()
	answered.Deliver()
}

// sample counts the outcome of what the berth holds, or held until now.
func (l *Limiter) sample(now time.Duration, b *berth, o weir.Outcome) {
	if int(o) < len(l.outcomes) {
		l.outcomes[o]++
	}
	service := max(0, now-b.start)
	if l.window.Sample(o, b.start, service, l.window.Area(now)-b.area) {
		l.service.Add(service)
	}
}

// account says whose share the work in a slot is part of, and how much it has
// been charged. It counts while the slot is held with the permit it names. The
// strings live on until the slot is used again, or the limiter shifts up.
type account struct {
	permit       weir.Permit
	user, tenant string
	cost         int64   // in units
	ratio        float64 // how many times that it has been charged; 1 but for ByTime
	class        int8
}

// largestCost bounds what a cost known afterwards may say: beyond it the share is
// gone for longer than anybody waits, and sums must not overflow.
const largestCost = MaxLimit

// open notes whom p was granted to. In the fast gear, and until somebody who
// names a user or a tenant has had to wait, nobody knows: nobody's share is short
// then, and the path of all work must not pay for it.
func (l *Limiter) open(p weir.Permit, class int8, user, tenant string, cost int64) {
	id := int(p.Slot().ID())
	if id >= len(l.accounts) {
		l.accounts = append(l.accounts, make([]account, len(*l.table.Load())-len(l.accounts))...)
	}
	l.accounts[id] = account{permit: p, class: class, user: user, tenant: tenant, cost: cost, ratio: 1}
}

// closeAccounts forgets whose work is in flight, because the core has shifted up
// and will no longer tell.
func (l *Limiter) closeAccounts() { l.accounting, l.accounts = false, nil }

// PermitCost implements [weir.CostHolder]: what work has really cost, in the unit
// of Work.Cost, is settled against the share of its tenant, who has to wait the
// longer for the next turn, or less long. The slots it holds stay what they are.
// Nothing is free: what says that it has cost less than 1 is charged 1. It does
// nothing once the permit is done.
func (l *Limiter) PermitCost(p weir.Permit, gate string, units int64) {
	if gate != "" && gate != l.name {
		return
	}
	now := l.now()
	var answered answers
	l.mu.Lock()
	if a := l.account(p); a != nil {
		units = min(max(units, 1), largestCost)
		l.room.Settle(int(a.class), a.user, a.tenant, float64(units-a.cost)*a.ratio)
		a.cost = units
		answered = l.settle(now) // somebody else may go next now, who fits
	}
	l.mu.Unlock()
	answered.Deliver()
}

// account returns what is known of a live permit, nil if nothing is.
func (l *Limiter) account(p weir.Permit) *account {
	id := int(p.Slot().ID())
	if !l.slow || id >= len(l.accounts) || l.accounts[id].permit != p || !p.Live() {
		return nil
	}
	return &l.accounts[id]
}

// PermitCost implements [weir.CostHolder].
func (t *tracer) PermitCost(p weir.Permit, gate string, units int64) {
	if p.Live() {
		t.inner.SetCost(gate, units)
	}
}

// byTime makes shares parts of the time that slots are held. What work takes is
// known when it is done; until then it is charged what that of its tenant took
// lately. Without such a guess a tenant with long work would get as many of the
// slots that a growing limit adds as one with short work, the mean work inside
// would grow with the limit, and a controller that compares the two would take
// that for contention.
//
// It remembers so many tenants, each in the one place that its name hashes to; of
// two with the same place the later stays. Who is not known is taken to be like
// the median.
type byTime struct {
	seed    maphash.Seed
	guesses [1 << 10]guess
}

// guess is how long a tenant's work takes, in medians.
type guess struct {
	who   uint64
	ratio float64
}

func newByTime(on bool, before *byTime) *byTime {
	switch {
	case !on:
		return nil
	case before != nil:
		return before
	}
	return &byTime{seed: maphash.MakeSeed()}
}

func (t *byTime) of(user, tenant string) (*guess, uint64) {
	who := maphash.String(t.seed, user)*31 + maphash.String(t.seed, tenant) | 1
	return &t.guesses[who>>1%uint64(len(t.guesses))], who
}

// expect returns how many medians the tenant's work takes.
func (t *byTime) expect(user, tenant string) float64 {
	if g, who := t.of(user, tenant); g.who == who {
		return g.ratio
	}
	return 1
}

// learn takes up what it took once.
func (t *byTime) learn(user, tenant string, ratio float64) {
	g, who := t.of(user, tenant)
	if g.who != who {
		*g = guess{who, ratio}
		return
	}
	g.ratio += (ratio - g.ratio) / 8
}

// chargeAhead charges what p, just granted to somebody who has waited, will
// presumably take beyond its cost, or less than that.
func (l *Limiter) chargeAhead(p weir.Permit) {
	a := &l.accounts[p.Slot().ID()]
	a.ratio = l.byTime.expect(a.user, a.tenant)
	l.room.Settle(int(a.class), a.user, a.tenant, float64(a.cost)*(a.ratio-1))
}

// chargeTime settles, when work is done, what it was charged in advance with the
// time that it has held its slots. What takes the median time is charged its cost,
// what takes ten times that ten times its cost.
func (l *Limiter) chargeTime(p weir.Permit, now time.Duration) {
	a, median := l.account(p), l.service.Median()
	if a == nil || median <= 0 {
		return
	}
	took := max(0, now-l.berth(p.Slot()).start).Seconds() / median.Seconds()
	l.room.Settle(int(a.class), a.user, a.tenant, float64(a.cost)*(took-a.ratio))
	l.byTime.learn(a.user, a.tenant, took)
}

// tracer stands between a caller and its permit while leaks are looked for: the
// caller's permit points at the tracer and nothing else does, so when the
// garbage collector takes the tracer, nobody can ever end the permit again.
type tracer struct {
	slot   weir.Slot
	common weir.Slots // its attention stays raised: every release comes through here
	inner  weir.Permit
}

// track returns p, or a permit that reports its own loss.
func (l *Limiter) track(p weir.Permit, site string) weir.Permit {
	if site == "" {
		return p
	}
	t := &tracer{inner: p}
	t.common.Attention.Store(1)
	t.slot.Init(t, &t.common, 0)
	runtime.AddCleanup(t, func(lost weir.Permit) {
		if !lost.Live() {
			return
		}
		lost.Done(weir.NoSample)
		l.count.leaked.Add(1)
		if h := l.hooks.Load(); h.Leaked != nil {
			h.Leaked(l.name, site)
		}
	}, p)
	return t.slot.Issue()
}

// site returns the call site outside the gates, or "" if nobody looks for leaks.
func (l *Limiter) site() string {
	if !l.findLeaks.Load() {
		return ""
	}
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		f, more := frames.Next()
		inside := strings.HasPrefix(f.Function, "github.com/weir-go/weir.") ||
			strings.HasPrefix(f.Function, "github.com/weir-go/weir/limit.(*Limiter)") ||
			strings.HasPrefix(f.Function, "github.com/weir-go/weir/policy.(*Gate)")
		if !inside || !more {
			return fmt.Sprintf("%s (%s:%d)", f.Function, f.File, f.Line)
		}
	}
}

// PermitDone implements [weir.Holder]. The tracer stays until the permit is back:
// the collector would take what is being given back right now for lost.
func (t *tracer) PermitDone(p weir.Permit, o weir.Outcome) {
	if live, _ := t.slot.Recall(p); live {
		t.inner.Done(o)
		runtime.KeepAlive(t)
	}
}

// PermitSampled implements [weir.Holder].
func (t *tracer) PermitSampled(p weir.Permit, o weir.Outcome) {
	if t.slot.MarkSampled(p) {
		t.inner.Sample(o)
	}
}

// PermitCancelled implements [weir.Holder].
func (t *tracer) PermitCancelled(p weir.Permit) {
	if live, _ := t.slot.Recall(p); live {
		t.inner.Cancel()
		runtime.KeepAlive(t)
	}
}

// SlotFreed implements [weir.Holder].
func (t *tracer) SlotFreed(*weir.Slot) {}
