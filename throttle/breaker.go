package throttle

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/gate"
	"github.com/weir-go/weir/slot"
)

// Breaker is a gate in a client that refuses everything for a while when too much work has failed. Then it
// admits a few probes, and their results close it or open it again. Nothing waits in it. A [Throttle] is
// usually the better choice: it refuses only what the server cannot take, and never stops sending.
//
// A failure is [weir.Overload] or [weir.Failed], a success [weir.OK]. Other outcomes say nothing, and neither does
// a time-out below MinTimeout. A probe that ends with one of those, or is cancelled, gives its place back. If all
// places are taken, and no probe has begun or ended for BreakerConfig.Open, other probes get the places. The result
// of a probe that has lost its place still counts. Exempt work is always admitted and does not count.
//
// The refusal of an open breaker says when to come back. While all places of probes are taken, nobody knows, so
// a refusal has no RetryAfter then.
type Breaker struct {
	front gate.Front

	mu      sync.Mutex // guards what follows
	core    breaker
	permits gate.Pool[use]
	counters
}

// State is the state of a [Breaker].
type State uint8

// The states.
const (
	// Closed admits everything.
	Closed State = iota
	// Open refuses everything.
	Open
	// HalfOpen admits a few probes.
	HalfOpen
)

// String returns the name: closed, open, half_open.
func (s State) String() string {
	switch s {
	case Closed:
		return "closed"
	case Open:
		return "open"
	case HalfOpen:
		return "half_open"
	}
	return "state(" + strconv.Itoa(int(s)) + ")"
}

// breaker is a Breaker without a clock or a lock.
type breaker struct {
	cfg    BreakerConfig
	state  State
	era    uint32 // changes with the state, and when the places of probes are given up
	since  uint32 // the era in which the state began; results of earlier eras do not count
	window window // of results while closed
	run    int    // failures in a row while closed
	until  time.Duration
	probes int // in flight, of this era
	passed int // probes that succeeded in a row
	moved  time.Duration
	last   time.Duration // the latest moment seen
	reason string
}

// The kinds of results that a breaker counts while it is closed.
const (
	succeeded = iota
	failed
)

func newBreaker(cfg *BreakerConfig) breaker {
	return breaker{cfg: *cfg, window: newWindow(cfg.Window, bins, 2), reason: "nothing has failed yet"}
}

// admit admits work of the present era. Otherwise it returns when to come back, or 0 if that is unknown.
func (b *breaker) admit(now time.Duration) (retry time.Duration, ok bool) {
	now = b.tick(now)
	switch b.state {
	case Open:
		return b.until - now, false
	case HalfOpen:
		if b.probes >= b.cfg.Probes {
			return 0, false
		}
		b.probes++
		b.moved = now
	}
	return 0, true
}

// tick does what is due by time alone. An open breaker becomes half-open, and probes that have not ended lose
// their places. tick returns the present moment: time that goes backwards counts as no time.
func (b *breaker) tick(now time.Duration) time.Duration {
	b.last = max(b.last, now)
	now = b.last
	switch {
	case b.state == Open && now >= b.until:
		b.setState(HalfOpen, now, fmt.Sprintf("open for %v: %d probes", b.cfg.Open, b.cfg.Probes))
	case b.state == HalfOpen && b.probes >= b.cfg.Probes && now-b.moved >= b.cfg.Open:
		b.era++
		b.probes, b.moved = 0, now
		b.reason = fmt.Sprintf("no probe has ended for %v: others in their places", b.cfg.Open)
	}
	return now
}

// sample counts the outcome of work of an era. If known is false, the outcome is neither a failure nor a
// success. A probe that has lost its place counts, but gives no place back. If it did not count, a server that
// answers more slowly than cfg.Open would be probed for ever.
func (b *breaker) sample(now time.Duration, era uint32, failure, known bool) {
	now = b.tick(now)
	if b.era-era > b.era-b.since { // by difference, because the counter may overflow
		return
	}
	switch {
	case b.state == HalfOpen:
		if era == b.era {
			b.probes--
		}
		b.moved = now
		b.probed(now, failure, known)
	case b.state == Closed && known:
		b.counted(now, failure)
	}
}

// probed changes the state by the result of a probe.
func (b *breaker) probed(now time.Duration, failure, known bool) {
	switch {
	case !known:
	case failure:
		b.open(now, "a probe failed")
	default:
		if b.passed++; b.passed >= b.cfg.Probes {
			b.setState(Closed, now, fmt.Sprintf("%d probes in a row succeeded", b.passed))
		}
	}
}

// counted counts a result while closed, and may open the breaker.
func (b *breaker) counted(now time.Duration, failure bool) {
	if !failure {
		b.run = 0
		b.window.add(now, succeeded)
		return
	}
	b.run++
	b.window.add(now, failed)
	bad := b.window.sums[failed]
	all := bad + b.window.sums[succeeded]
	switch {
	case b.cfg.Run > 0 && b.run >= b.cfg.Run:
		b.open(now, fmt.Sprintf("%d failures in a row", b.run))
	case all >= uint64(b.cfg.Least) && float64(bad)/float64(all) >= b.cfg.Rate: // a quotient: a product could miss a decimal rate
		b.open(now, fmt.Sprintf("%d of %d results in %v failed", bad, all, b.cfg.Window))
	}
}

func (b *breaker) open(now time.Duration, reason string) {
	b.until = gate.After(now, b.cfg.Open)
	b.setState(Open, now, reason)
}

// setState changes the state. Results of work that was admitted before no longer count.
func (b *breaker) setState(to State, now time.Duration, reason string) {
	b.state, b.moved, b.reason = to, now, reason
	b.era++
	b.since = b.era
	b.probes, b.passed, b.run = 0, 0, 0
	b.window.forget()
}

// limit is the state as a number of slots, for hooks: -1 for no limit.
func (b *breaker) limit() int64 {
	switch b.state {
	case Open:
		return 0
	case HalfOpen:
		return int64(b.cfg.Probes)
	}
	return -1
}

// NewBreaker makes a Breaker, closed. The error names every setting out of range.
func NewBreaker(cfg BreakerConfig) (*Breaker, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	return newBreakerGate(&cfg), nil
}

// newBreakerGate makes a breaker from complete settings.
func newBreakerGate(cfg *BreakerConfig) *Breaker {
	b := &Breaker{core: newBreaker(cfg)}
	b.front.Init(cfg.Name, cfg.Now)
	hooks := cfg.Hooks
	b.front.SetHooks(&hooks)
	b.permits.Init(b, 0, 0)
	return b
}

// Admit implements [weir.Gate]. It never waits.
func (b *Breaker) Admit(ctx context.Context, w weir.Work) (weir.Permit, error) {
	return admit(ctx, b, &b.front, w)
}

// TryAdmit implements [weir.TryAdmitter].
func (b *Breaker) TryAdmit(w weir.Work) (weir.Permit, error) {
	now := b.front.Now()
	until, r := fit(&b.front, &w, now)
	if r != nil {
		return weir.Permit{}, b.front.Refuse(&w, r)
	}
	var p weir.Permit
	var refused *weir.Rejection
	b.change(func() {
		if retry, ok := time.Duration(0), true; !w.Exempt {
			if retry, ok = b.core.admit(now); !ok {
				refused = &weir.Rejection{Gate: b.front.Name(), Rule: b.core.state.String(), Reason: weir.ReasonThrottled, RetryAfter: retry, Retryable: true}
				return
			}
		}
		u := use{start: now, until: until, era: b.core.era}
		b.issued(&w, &u)
		p = weir.NewPermit(b.permits.Issue(&u))
	})
	if refused != nil {
		return weir.Permit{}, b.front.Refuse(&w, refused)
	}
	b.front.Admitted(&w, 0)
	return p, nil
}

// Arrive implements [weir.Arriver]. It never calls wake.
func (b *Breaker) Arrive(w weir.Work, _ func(weir.Permit, error)) (weir.Permit, weir.Waiter, error) {
	p, err := b.TryAdmit(w)
	return p, nil, err
}

// change runs do with b.mu locked, and then calls the hook if the state has changed.
func (b *Breaker) change(do func()) {
	b.mu.Lock()
	era, from := b.core.era, b.core.limit()
	do()
	turned, to, reason := b.core.era != era, b.core.limit(), b.core.reason
	b.mu.Unlock()
	if h := b.front.Hooks(); turned && from != to && h.LimitChanged != nil {
		h.LimitChanged(b.front.Name(), from, to, reason)
	}
}

// Done implements [slot.Holder].
func (b *Breaker) Done(ticket slot.Ticket, outcome uint8) {
	now, o := b.front.Now(), weir.Outcome(outcome)
	var u use
	var sampled, ok bool
	b.change(func() {
		if sampled, ok = b.permits.Recall(ticket, &u); ok {
			b.returned(&u)
		}
		if ok && !sampled {
			b.sample(&u, now, o)
		}
	})
	if ok && !sampled {
		b.front.Finished(o, now-u.start)
	}
}

// Sample implements [slot.Holder].
func (b *Breaker) Sample(ticket slot.Ticket, outcome uint8) {
	now, o := b.front.Now(), weir.Outcome(outcome)
	var u use
	var ok bool
	b.change(func() {
		if ok = ticket.MarkSampled(); ok {
			u = b.permits.At(ticket).Use
			b.sample(&u, now, o)
		}
	})
	if ok {
		b.front.Finished(o, now-u.start)
	}
}

// Cancel implements [slot.Holder]: the work was not sent. A probe gives its place back.
func (b *Breaker) Cancel(ticket slot.Ticket) {
	now := b.front.Now()
	b.change(func() {
		var u use
		sampled, ok := b.permits.Recall(ticket, &u)
		if !ok {
			return
		}
		b.returned(&u)
		b.unsent(&u)
		if u.class >= 0 && !sampled {
			b.core.sample(now, u.era, false, false)
		}
	})
}

// SetCost implements [slot.Holder]. Every piece of work counts as one request.
func (b *Breaker) SetCost(slot.Ticket, string, int64) {}

// sample counts an outcome. b.mu is locked.
func (b *Breaker) sample(u *use, now time.Duration, o weir.Outcome) {
	b.sampled(u, o)
	if u.class < 0 {
		return
	}
	failure := o == weir.Overload && !u.ranOut(now, b.core.cfg.MinTimeout) || o == weir.Failed
	b.core.sample(now, u.era, failure, failure || o == weir.OK)
}

// State returns the present state.
func (b *Breaker) State() (s State) {
	now := b.front.Now()
	b.change(func() {
		b.core.tick(now)
		s = b.core.state
	})
	return s
}

// Snapshot implements [weir.Snapshotter]. Limit is how much work may be in flight: 0 while open, the probes
// while half-open, and -1 for no limit. LimitReason says why.
func (b *Breaker) Snapshot() weir.Snapshot {
	state := b.State()
	s := weir.Snapshot{Name: b.front.Name(), Kind: "breaker", Mode: "enforce", Rejected: b.front.Rejected()}
	b.mu.Lock()
	defer b.mu.Unlock()
	s.Limit, s.LimitReason = b.core.limit(), state.String()+": "+b.core.reason
	b.addTo(&s)
	return s
}
