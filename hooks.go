package weir

import "time"

// Hooks are called by gates as things happen. Each may be nil. They run on the
// goroutine that caused the event, with no lock held, so they may call the gate
// again; but they are on the path of a request, so they must be quick, and they
// must not write to the Rejection. The Work comes by value, so that hearing of
// it allocates nothing. They must not panic: the permit of a work whose Admitted
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
	// LimitChanged follows a change of a gate's limit, with the reason its
	// controller gave, or "set" for a change made by hand.
	LimitChanged func(gate string, from, to int64, reason string)
	// Faulty follows the first nonsense that a gate's controller came up with: a
	// limit below 1, a negative window, a panic. The gate keeps the last good
	// limit and counts what follows in its snapshot.
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
