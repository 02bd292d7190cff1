package policy

import (
	"slices"
	"time"

	"github.com/weir-go/weir"
)

// Route is a compiled route: what it matches, the chain of gates its work goes
// through, and what its work is like. A Route is immutable; the gates in it are
// live. The nil Route, which work has that matches none, is empty.
type Route struct {
	name     string
	patterns []string
	gates    []*Gate
	chain    weir.Gate
	work     weir.Work
	timeout  time.Duration
	charging charging
	access   string // read, write; empty: by the method

	demoteAfter int64 // admissions; 0: never
}

// open is the chain of no gates.
var open = weir.All()

// Name returns the route's name.
func (rt *Route) Name() string {
	if rt == nil {
		return ""
	}
	return rt.name
}

// Patterns returns the patterns that the route matches, as the policy wrote
// them.
func (rt *Route) Patterns() []string {
	if rt == nil {
		return nil
	}
	return slices.Clone(rt.patterns)
}

// Gates returns the gates of the chain, in order.
func (rt *Route) Gates() []*Gate {
	if rt == nil {
		return nil
	}
	return slices.Clone(rt.gates)
}

// Gate returns the whole chain as one gate, all or nothing, with the modes
// applied: every gate but the last is tried without waiting. It is a
// weir.TryAdmitter and a weir.Arriver too. The nil Route, and a route without
// gates, admit everything.
func (rt *Route) Gate() weir.Gate {
	if rt == nil {
		return open
	}
	return rt.chain
}

// Work returns what every piece of the route's work has in common: Op,
// Priority, Cost and MaxWait. It has no deadline; add Timeout to the time of
// arrival.
func (rt *Route) Work() weir.Work {
	if rt == nil {
		return weir.Work{}
	}
	return rt.work
}

// Timeout returns how long after its arrival an answer to the route's work is
// useful, 0 for ever.
func (rt *Route) Timeout() time.Duration {
	if rt == nil {
		return 0
	}
	return rt.timeout
}
