// Package cost compares what an admission costs with the least it could cost
// and with what others charge for it.
//
// A figure in nanoseconds says more about the machine than about the code. So every
// [Subject] stands in a [group] beside a floor: the same thing done with bare operations.
// Nobody can do without those: a pair of compare-and-swaps, two clock reads, a channel.
// Subject and floor are timed in turn, many times, in one run, and what counts is the
// ratio. The goals are ratios too.
//
// README.md says how to run it.
package cost

// Loop does n operations. It may be called from several goroutines at once, and
// returns the first error that an operation gave.
type Loop func(n int) error

// Subject is one thing to measure.
type Subject struct {
	Name string
	Goal goal
	// New sets the subject up. stop ends what it started.
	New func() (loop Loop, stop func())
	// Parks tells that it sleeps by nature where several are at it, on a lock for
	// instance. That it does not use its cores then says nothing of the machine.
	Parks bool
}

// goal is how far above its floor a subject may be. The zero Goal is no goal.
type goal struct {
	Ratio float64 // at most this many times the floor
	Extra float64 // at most this many ns above the floor
	// Shared replaces Ratio with several cores at work, where the floor itself
	// is contended. 0 means that Ratio holds there too.
	Shared float64
}

// group is a floor and what is compared with it.
type group struct {
	Name  string
	Floor Subject
	Peers []Subject
	// Pair says that a loop starts the goroutines it needs by itself.
	Pair bool
}

// All returns the floor and its peers.
func (g *group) All() []Subject { return append([]Subject{g.Floor}, g.Peers...) }

// Groups returns everything that is measured.
func Groups() []group {
	return []group{fixed(), sampled(), refusal(), handoff(), call(), tapped(), statement(), query(), request()}
}

// ready makes a New of a loop that needs nothing stopped.
func ready(set func() Loop) func() (Loop, func()) {
	return func() (Loop, func()) { return set(), func() {} }
}
