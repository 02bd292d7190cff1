package peers

import (
	"context"
	"sync"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/sim"
)

// Peer is somebody to compare with, or weir itself.
type Peer struct {
	// Name is shown in tables.
	Name string
	// Weir marks our own default, which the verdict is about.
	Weir bool
	// Told marks a peer that was given the backend's best concurrency, which
	// somebody would have to measure first and keep up to date.
	Told bool
	// Untold keeps the deadline from the gate: Work.Deadline is not set, and
	// late work counts as good.
	Untold bool
	// Computing says that the peer reads the backend's usage as its own
	// processor's.
	Computing bool

	make func(*Env) (limiter, error)
	// alone, if set, is held while the peer runs: it keeps something in its
	// process.
	alone *sync.Mutex
}

// Env is what a peer is made for: one run.
type Env struct {
	// Scenario is what will be run, Seed with which random numbers.
	Scenario *sim.Scenario
	Seed     uint64
	// Best is the concurrency at which the backend's throughput is highest.
	Best int

	ctx   context.Context // ends with the run
	usage *usage
}

// Peers returns everybody, weir first.
func Peers() []Peer {
	return []Peer{
		{Name: "weir", Weir: true, make: newWeir},
		{Name: "weir (deadline not told)", Untold: true, make: newWeir},
		{Name: "no control", make: newOpen},
		{Name: "semaphore (waiting)", Told: true, make: newSemaphore(true)},
		{Name: "semaphore (refusing)", Told: true, make: newSemaphore(false)},
		{Name: "failsafe-go", make: newFailsafe},
		{Name: "failsafe-go (queueing)", make: newFailsafeQueueing},
		{Name: "aegis BBR (waiting)", make: newBBR(false)},
		{Name: "aegis BBR (computing)", Computing: true, make: newBBR(true)},
		{Name: "go-zero (waiting)", make: newGoZero(false), alone: &oneGoZero},
		{Name: "go-zero (computing)", Computing: true, make: newGoZero(true), alone: &oneGoZero},
		{Name: "Kubernetes APF", Told: true, make: newQueueSet},
		{Name: "AIMD", make: bare(newAIMD)},
		{Name: "Vegas", make: bare(newVegas(control.TakeMean))},
		{Name: "Vegas (minimum)", make: bare(newVegas(control.TakeMin))},
		{Name: "Gradient2", make: bare(newGradient2(control.TakeMean))},
		{Name: "Gradient2 (minimum)", make: bare(newGradient2(control.TakeMin))},
	}
}
