package weir

import (
	"context"
	"time"
)

// Gate decides whether a piece of work starts now, waits, or is refused.
//
// Admit returns a [Permit] that must be given back with [Permit.Done], or an
// error. The error is a [*Rejection] when the gate refused. When the caller
// stopped waiting, it is a Rejection whose Cause is the context's error. Admit
// never blocks longer than the context, the work's deadline and MaxWait, and
// the gate's own settings allow.
//
// Gates are safe for concurrent use.
type Gate interface {
	Admit(ctx context.Context, w Work) (Permit, error)
}

// TryAdmitter is a Gate that can also decide without ever waiting. It is
// cheaper than Admit with [NoWait], and what [All] uses for every gate but the
// last.
type TryAdmitter interface {
	TryAdmit(w Work) (Permit, error)
}

// Distant is a Gate that may ask a server elsewhere before it decides. Even TryAdmit and
// Arrive then take as long as the network does. A caller that must not wait at all asks
// IsDistant first. Gates without the method decide in this process.
type Distant interface {
	// IsDistant reports whether the gate may ask a server.
	IsDistant() bool
}

// Predictor is a Gate that can predict a refusal without charging or counting
// anything. [All] asks it when work may come back.
type Predictor interface {
	// Predict returns the Rejection that w would get now. It does so only where
	// a free slot cannot help: w lacks what only time brings back, or w can never
	// be admitted. It returns nil if w would be admitted.
	Predict(ctx context.Context, w Work) *Rejection
}

// Arriver is a Gate that can decide without blocking the caller: either at
// once, or later through a callback. Event loops use it where a goroutine for
// each waiter would be wrong, and so does the simulator, on virtual time.
type Arriver interface {
	// Arrive has three answers: (permit, nil) admits, (zero, *Rejection)
	// refuses, and (zero, ErrWaiting) says that the work waits. After
	// ErrWaiting, wake is called exactly once, later, with no lock held. The
	// call comes from another goroutine's Done or from the gate's timer. Cancel
	// takes a waiter back out.
	Arrive(w Work, wake func(Permit, error)) (Permit, Waiter, error)
}

// Waiter is work that [Arriver.Arrive] queued.
type Waiter interface {
	// Cancel takes the work out of the queue and reports whether it was still
	// there. If it was, wake is not called any more. If not, wake has been
	// called or is about to be, and a permit it brings must be given back.
	Cancel() bool
}

// Snapshotter is a Gate that can describe itself at one moment.
type Snapshotter interface {
	Snapshot() Snapshot
}

// Snapshot is a gate at one moment, for dashboards, metrics and tests. The
// counters only grow; the rest are levels. Work that is cancelled counts as
// admitted no more, so Admitted and ExemptAdmitted may fall by that. A counter
// of Prometheus must not fall: give it the highest value so far.
type Snapshot struct {
	Name string `json:"name"`
	// Kind is the mechanism: "limit", "keyed", "quota", "shed", "throttle" or "breaker". For the
	// connections of a gateway's listener it is "connections".
	Kind string `json:"kind"`
	// Mode is "enforce", "observe" or "off".
	Mode string `json:"mode"`

	// Limit is the capacity in the gate's unit. InFlight is how much of it is
	// held now; it may exceed Limit after the limit has shrunk. Waiting is the
	// work in the room.
	Limit    int64 `json:"limit"`
	InFlight int64 `json:"in_flight"`
	Waiting  int64 `json:"waiting"`
	// PerKey says that Limit is that of one key. All else is of all keys together.
	PerKey bool `json:"per_key,omitempty"`

	// WaitingByClass is Waiting by priority. A priority outside of Background to
	// Critical counts as the nearest of these. Priorities with nobody waiting are
	// left out.
	WaitingByClass map[Priority]int64 `json:"waiting_by_class,omitempty"`

	// Exempt is the exempt work in flight, and ExemptAdmitted counts the exempt
	// work admitted so far. InFlight and Admitted do not include them. Outcomes
	// does not count exempt work either.
	Exempt         int64  `json:"exempt,omitempty"`
	ExemptAdmitted uint64 `json:"exempt_admitted,omitempty"`

	Admitted uint64 `json:"admitted"`
	// Rejected counts refusals by reason; reasons never seen are left out.
	Rejected map[Reason]uint64 `json:"rejected,omitempty"`
	// Outcomes counts what became of admitted work; only gates that sample
	// count OK and NoSample apart. A fixed limit counts nothing while nobody waits.
	Outcomes map[Outcome]uint64 `json:"outcomes,omitempty"`

	// Controller names what sets Limit. Signal names the reading that binds Limit,
	// empty if none does. LimitReason says why Limit last changed, or why another
	// signal binds it now.
	Controller  string `json:"controller,omitempty"`
	LimitReason string `json:"limit_reason,omitempty"`
	Signal      string `json:"signal,omitempty"`
	// Estimate is what the controller believes of the backend, nil if nothing.
	Estimate *Estimate `json:"estimate,omitempty"`
	// Probes is what the controller has tried, nil if it is no control.Probe.
	Probes *Probes `json:"probes,omitempty"`
	// Faults counts decisions of the controller that made no sense and were not
	// carried out.
	Faults uint64 `json:"faults,omitempty"`

	// Latency is the service time that the gate now expects of admitted work:
	// the median of the last window. It is 0 if the gate measures none. Wait is
	// the estimated wait of a newcomer of the priority [Normal]. It is 0 if a slot is free, if nothing has been
	// measured, and for gates that make no estimate.
	Latency time.Duration `json:"latency_ns,omitempty"`
	Wait    time.Duration `json:"wait_ns,omitempty"`

	// Leaked counts permits that were dropped without Done and found by the
	// debug option that looks for them.
	Leaked uint64 `json:"leaked,omitempty"`
}

// Estimate is what a controller believes of a backend: see control.Estimate.
type Estimate struct {
	// Shape is one of control.Shapes, such as pool. Size is that of the pool.
	Shape string  `json:"shape"`
	Size  float64 `json:"size"`
	// Best is the limit that is worth most, in the mean of all that is believed. The best
	// concurrency is between Low and High with a probability of 0.95.
	Best float64 `json:"best"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
	// Loss is the part of throughput, from 0 to 1, that the limit in force is expected to lose.
	Loss float64 `json:"loss"`
}

// Probes is what a control.Probe has tried: see control.Probes.
type Probes struct {
	// Up and Down are the probes that have ended, UpKept and DownKept those that finished more
	// than the size before. A part of their step is kept.
	Up       uint64 `json:"up"`
	UpKept   uint64 `json:"up_kept"`
	Down     uint64 `json:"down"`
	DownKept uint64 `json:"down_kept"`
	// Nudged counts the pools that a probe moved by one, because rounding would have left them.
	Nudged uint64 `json:"nudged"`
	// Stable is the size between probes, of both pools together. It has a fraction.
	Stable float64 `json:"stable"`
	// Throughput is what was finished in a second before the last probe, and Probed in the last
	// probe that has ended.
	Throughput float64 `json:"throughput"`
	Probed     float64 `json:"probed"`
}

// Hooks are called by gates as things happen. Each may be nil. They run on the
// goroutine that caused the event, with no lock held, so they may call the gate
// again. They are on the path of a request, so they must be quick. They must not
// write to the Rejection. The Work comes by value, so that hearing of it
// allocates nothing. They must not panic: the permit of a work whose Admitted
// panics never reaches its owner.
type Hooks struct {
	// Admitted follows a grant. waited is the time spent in the wait room, 0
	// for work that started at once.
	Admitted func(gate string, w Work, waited time.Duration)
	// Rejected follows a refusal.
	Rejected func(w Work, r *Rejection)
	// Done follows the end of a permit. service is the time from grant to
	// Sample, or to Done if it was never sampled.
	Done func(gate string, o Outcome, service time.Duration)
	// LimitChanged follows a change of a gate's limit. The reason is the one
	// its controller gave, or "set" for a change made by hand.
	LimitChanged func(gate string, from, to int64, reason string)
	// Faulty follows the first decision of a controller that makes no sense: a limit
	// below 1, a negative window, a panic. The gate keeps the last good limit, and
	// its snapshot counts the faults.
	Faulty func(gate, problem string)
	// Leaked follows the discovery of a permit that was dropped without Done.
	// site is the call site that took it. Only gates whose debug option is on
	// look for leaks.
	Leaked func(gate, site string)
}

// Empty reports whether no hook is set.
func (h *Hooks) Empty() bool {
	return h.Admitted == nil && h.Rejected == nil && h.Done == nil &&
		h.LimitChanged == nil && h.Faulty == nil && h.Leaked == nil
}
