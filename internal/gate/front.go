// Package gate is what the gates of this module have in common. That is a name,
// a clock, hooks, counts of refusals, the refusals that every gate has, and the
// way work waits. The mechanism itself (slots, tokens, levels) is each gate's
// own.
//
//   - [Front] is the side that callers meet: name, clock, hooks, common refusals.
//   - [Waiter], [Answers] and [Line] are the way through a wait room: bounds,
//     enqueueing, the blocking wait, the answer.
//   - [Drain] estimates how fast slots come back. [Accounts] say to whose share
//     work is charged.
//   - [Sizer] asks a controller and refuses decisions that make no sense.
//   - [Pool] keeps the slots that permits are issued from.
//   - [Exempt] admits exempt work, up to a cap.
//
// Only Sizer and Exempt have a lock. The gate's own lock guards the rest, as far as it
// is not atomic.
package gate

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/room"
)

// Front is what callers meet of any gate. Set it up with [Front.Init].
type Front struct {
	name  string
	clock func() time.Duration // nil: the monotonic clock
	epoch time.Time
	hooks atomic.Pointer[weir.Hooks]

	places    sync.Pool // of *Waiter
	findLeaks atomic.Bool
	leaked    atomic.Uint64
	rejected  Refusals
}

// Refusals counts refusals by their reasons.
type Refusals [32]atomic.Uint64 // room for every weir.Reason

// Add counts one refusal.
func (c *Refusals) Add(r weir.Reason) { c[r].Add(1) }

// Counts returns the counts. Reasons that never occurred are left out; the map is nil if
// none did.
func (c *Refusals) Counts() (counts map[weir.Reason]uint64) {
	for _, r := range weir.Reasons() {
		Count(&counts, r, c[r].Load())
	}
	return counts
}

// UnknownWait is when to come back where nothing has been measured.
const UnknownWait = time.Second

// Init sets what never changes. A nil clock means the monotonic clock.
func (f *Front) Init(name string, clock func() time.Duration) {
	f.name, f.clock, f.epoch = name, clock, time.Now()
	f.hooks.Store(new(weir.Hooks))
}

// Name returns the gate's name.
func (f *Front) Name() string { return f.name }

// IsVirtual reports whether the gate's clock is not the machine's.
func (f *Front) IsVirtual() bool { return f.clock != nil }

// Now returns the time since the gate's epoch.
func (f *Front) Now() time.Duration {
	if f.clock != nil {
		return f.clock()
	}
	return time.Since(f.epoch)
}

// Clock returns the clock from the configuration. A gate with one starts no timers.
func (f *Front) Clock() func() time.Duration { return f.clock }

// Timed reports whether the gate sets timers of its own.
func (f *Front) Timed() bool { return f.clock == nil }

// SetHooks replaces the hooks. They must not be written to afterwards.
func (f *Front) SetHooks(h *weir.Hooks) { f.hooks.Store(h) }

// Hooks returns the hooks. Callers that want to avoid a call check here first.
func (f *Front) Hooks() *weir.Hooks { return f.hooks.Load() }

// Refuse counts a refusal by its reason and calls the hook. No lock may be held.
func (f *Front) Refuse(w *weir.Work, r *weir.Rejection) *weir.Rejection {
	f.rejected.Add(r.Reason)
	if h := f.hooks.Load(); h.Rejected != nil {
		h.Rejected(*w, r)
	}
	return r
}

// Admitted calls the hook. No lock may be held.
func (f *Front) Admitted(w *weir.Work, waited time.Duration) {
	if h := f.hooks.Load(); h.Admitted != nil {
		h.Admitted(f.name, *w, waited)
	}
}

// Answered is what a gate returns once it has decided about w: a permit, a refusal,
// or neither if w was queued. It calls the hooks unless w was queued.
func (f *Front) Answered(w *weir.Work, p weir.Permit, queued bool, refused *weir.Rejection) (weir.Permit, bool, error) {
	switch {
	case refused != nil:
		return weir.Permit{}, false, f.Refuse(w, refused)
	case queued:
		return weir.Permit{}, true, nil
	}
	f.Admitted(w, 0)
	return f.Track(p), false, nil
}

// Finished calls the hook. No lock may be held.
func (f *Front) Finished(o weir.Outcome, service time.Duration) {
	if h := f.hooks.Load(); h.Done != nil {
		h.Done(f.name, o, service)
	}
}

// Rejected returns the counts of refusals.
func (f *Front) Rejected() map[weir.Reason]uint64 { return f.rejected.Counts() }

// ByPriority is how many wait, for a snapshot. It is nil if nobody does.
func ByPriority(classes [room.Classes]int) (counts map[weir.Priority]int64) {
	for class, n := range classes {
		Count(&counts, weir.PriorityOf(class), int64(n))
	}
	return counts
}

// ByOutcome is how work ended, for a snapshot. It is nil if none did.
func ByOutcome(outcomes []uint64) (counts map[weir.Outcome]uint64) {
	for o, n := range outcomes {
		Count(&counts, weir.Outcome(o), n)
	}
	return counts
}

// Count adds n to a count. A map is made for the first that is not 0.
func Count[K comparable, N int64 | uint64](counts *map[K]N, key K, n N) {
	if n == 0 {
		return
	}
	if *counts == nil {
		*counts = make(map[K]N)
	}
	(*counts)[key] += n
}

// Unfit is the refusal of work that must not start even if slots are free: its
// cost is negative or its context is done. It is nil for all other work.
func (f *Front) Unfit(ctx context.Context, w *weir.Work) *weir.Rejection {
	if w.Cost < 0 {
		return &weir.Rejection{Gate: f.name, Reason: weir.ReasonTooLarge, Value: float64(w.Cost)}
	}
	if ctx.Err() != nil {
		return f.GivenUp(ctx)
	}
	return nil
}

// GivenUp is the refusal of work whose context is done. After a deadline it says
// how much too late the work comes. For work that has waited, Await says how long.
func (f *Front) GivenUp(ctx context.Context) *weir.Rejection {
	r := &weir.Rejection{Gate: f.name, Reason: weir.ReasonCanceled, Cause: ctx.Err()}
	if r.Cause == context.DeadlineExceeded {
		r.Reason = weir.ReasonDeadline
		if at, ok := ctx.Deadline(); ok && f.clock == nil {
			r.Value = time.Since(at).Seconds()
		}
	}
	return r
}

// Draining is the refusal of all work once the gate is closed.
func (f *Front) Draining() *weir.Rejection {
	return &weir.Rejection{Gate: f.name, Reason: weir.ReasonDraining, Retryable: true}
}

// Late is the refusal of work whose deadline has passed. A negative time is one of centuries, too long for a Duration.
func (f *Front) Late(by time.Duration) *weir.Rejection {
	if by < 0 {
		by = math.MaxInt64
	}
	return &weir.Rejection{Gate: f.name, Reason: weir.ReasonDeadline, Value: by.Seconds(), Cause: context.DeadlineExceeded}
}

// Oversize is the refusal of a cost above the limit. It is not retryable, even if
// the limit may grow: a client that waits for that may wait for ever.
func (f *Front) Oversize(cost, limit int64, signal string) *weir.Rejection {
	return &weir.Rejection{Gate: f.name, Reason: weir.ReasonTooLarge, Value: float64(cost),
		Limit: float64(limit), Signal: signal}
}

// Expired is the refusal of a waiter whose time is up. The gate adds when to come
// back, and the signal.
func (f *Front) Expired(now time.Duration, w *Waiter) *weir.Rejection {
	r := &weir.Rejection{Gate: f.name, Reason: w.ExpiresWith, Retryable: true,
		Value: (now - w.Arrived).Seconds(), Limit: (w.Expires - w.Arrived).Seconds()}
	if r.Reason == weir.ReasonDeadline {
		r.Cause = context.DeadlineExceeded
	}
	return r
}

// Bounds are until when work may wait.
type Bounds struct {
	Patience time.Duration // by its own MaxWait and the room's
	Deadline time.Duration // by when it has to be done; room.Never without one
}

// Bounds returns until when w may wait in a room with this longest wait. It
// returns a refusal if the deadline of w has passed. Work that does not wait has
// no patience.
func (f *Front) Bounds(w *weir.Work, now time.Duration, waits bool, longest time.Duration) (Bounds, *weir.Rejection) {
	until := Bounds{now, room.Never}
	if waits {
		if w.MaxWait > 0 {
			longest = min(longest, w.MaxWait)
		}
		until.Patience = After(now, longest)
	}
	if w.Deadline.IsZero() {
		return until, nil
	}
	until.Deadline = f.Deadline(now, w.Deadline)
	if until.Deadline <= now {
		return until, f.Late(now - until.Deadline)
	}
	return until, nil
}

// Deadline converts a time of day to the gate's clock. It counts from the present
// time of day, not from the epoch's. Otherwise a deadline without a monotonic
// reading would be wrong by every step of the system's clock since then.
func (f *Front) Deadline(now time.Duration, t time.Time) time.Duration {
	if f.clock != nil {
		return t.Sub(weir.VirtualEpoch)
	}
	return After(now, time.Until(t))
}

// Until returns how long it is until a time of day.
func (f *Front) Until(t time.Time) time.Duration {
	if f.clock != nil {
		return t.Sub(weir.VirtualEpoch) - f.clock()
	}
	return time.Until(t)
}

// allow reports whether there is time for a wait, and for the service after it.
func (b *Bounds) allow(now, wait, service time.Duration) bool {
	return wait <= b.Patience-now && wait <= b.Deadline-now-service
}

// After adds two times without overflow.
func After(now, d time.Duration) time.Duration {
	if d >= room.Never-now {
		return room.Never
	}
	return now + d
}

// Seconds converts to a duration, without overflow when one more is added to it.
func Seconds(s float64) time.Duration {
	const most = 1 << 30
	return time.Duration(min(s, most) * float64(time.Second))
}
