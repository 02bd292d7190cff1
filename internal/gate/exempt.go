package gate

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/room"
	"github.com/weir-go/weir/slot"
)

// DefaultExempt is the most exempt work at once where a gate's setting Exempt is 0.
const DefaultExempt = 1024

// Exempt admits exempt work, up to a cap. It has slots and a lock of its own. Exempt
// work waits for nobody, and the controller sees nothing of it. A permit's slot says
// where it was counted, so the counts stay right if the settings change before it ends.
//
// Where both locks are needed, the gate's own is taken first.
type Exempt struct {
	front   *Front
	drained func()       // the gate checks whether it is idle, once it is closed
	most    atomic.Int64 // at once; negative: nothing is exempt

	mu       sync.Mutex
	slots    Pool[time.Duration] // when each was taken
	inFlight int64
	admitted uint64
	closed   bool
	drain    Drain
	service  room.Service

	refusal   *weir.Rejection // shared for as long as RefreshEvery
	refreshAt time.Duration
}

// RefreshEvery bounds how often a refusal that many share is made anew for a changed
// estimate of the wait.
const RefreshEvery = 100 * time.Millisecond

// Init sets the gate's front, and what to call, with no lock held, when work has ended
// in a closed gate.
func (e *Exempt) Init(f *Front, drained func()) {
	e.front, e.drained = f, drained
	e.slots.Init(e, 0, 0)
	e.drain.Reset(f.Now())
}

// Configure sets the cap. More than that may be in flight after it has shrunk.
func (e *Exempt) Configure(most int64) {
	e.most.Store(max(-1, cmp.Or(most, DefaultExempt)))
	e.mu.Lock()
	e.refusal = nil
	e.mu.Unlock()
}

// Applies reports whether w is exempt here.
func (e *Exempt) Applies(w *weir.Work) bool { return w.Exempt && e.most.Load() >= 0 }

// Admit admits exempt work up to the cap.
func (e *Exempt) Admit(now time.Duration) (weir.Permit, *weir.Rejection) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return weir.Permit{}, e.front.Draining()
	}
	if most := e.most.Load(); e.inFlight >= most {
		return weir.Permit{}, e.overCap(now, most)
	}
	e.inFlight++
	e.admitted++
	return weir.NewPermit(e.slots.Issue(&now)), nil
}

// overCap is the refusal beyond the cap. RetryAfter is estimated from how fast exempt
// work ended while some was refused, or else from how long it takes.
func (e *Exempt) overCap(now time.Duration, most int64) *weir.Rejection {
	e.drain.Want(now)
	if e.refusal != nil && now < e.refreshAt {
		return e.refusal
	}
	wait := Wait(0, e.drain.Current(now), most, e.service.Median())
	e.refreshAt = now + RefreshEvery
	e.refusal = &weir.Rejection{Gate: e.front.name, Rule: "exempt", Reason: weir.ReasonLimit,
		Value: float64(e.inFlight), Limit: float64(most), RetryAfter: wait, Retryable: true}
	return e.refusal
}

// end takes t back and returns how long it was held, or false if t was not live.
func (e *Exempt) end(t slot.Ticket, started bool) (held time.Duration, sampled, ok bool) {
	now := e.front.Now()
	e.mu.Lock()
	var start time.Duration
	sampled, ok = e.slots.Recall(t, &start)
	if !ok {
		e.mu.Unlock()
		return 0, false, false
	}
	held = max(0, now-start)
	full := e.inFlight >= e.most.Load()
	e.inFlight--
	e.drain.Finish(now, 1, full)
	e.drain.Idle() // nobody waits for the cap
	if started {
		e.service.Add(held)
	} else {
		e.admitted--
	}
	closed := e.closed
	e.mu.Unlock()
	if closed {
		e.drained()
	}
	return held, sampled, true
}

// Done implements [slot.Holder].
func (e *Exempt) Done(t slot.Ticket, outcome uint8) {
	if held, sampled, ok := e.end(t, true); ok && !sampled {
		e.front.Finished(weir.Outcome(outcome), held)
	}
}

// Cancel implements [slot.Holder].
func (e *Exempt) Cancel(t slot.Ticket) { e.end(t, false) }

// Sample implements [slot.Holder]. The hook hears of it, nobody else.
func (e *Exempt) Sample(t slot.Ticket, outcome uint8) {
	now := e.front.Now()
	e.mu.Lock()
	if !t.MarkSampled() {
		e.mu.Unlock()
		return
	}
	held := max(0, now-e.slots.At(t).Use)
	e.mu.Unlock()
	e.front.Finished(weir.Outcome(outcome), held)
}

// SetCost implements [slot.Holder]; exempt work has no cost.
func (e *Exempt) SetCost(slot.Ticket, string, int64) {}

// Close refuses all work that comes from now on.
func (e *Exempt) Close() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
}

// Read returns what is in flight, and what has been admitted.
func (e *Exempt) Read() (inFlight int64, admitted uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.inFlight, e.admitted
}
