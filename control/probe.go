package control

import (
	"fmt"
	"sync"
	"time"
)

// Probe finds a limit by trying: in turn it measures throughput at the present
// size, goes a step up if all slots were in use (else a step down), and keeps a
// part of the step if throughput became greater. It is MongoDB's throughput
// probing of execution tickets as it ships, over a single pool; [ProbePair] is
// the original, over two.
//
// # What ships and what is published
//
// The pseudocode in MongoDB's public README differs from what it ships. Here,
// as shipped:
//
//   - Min and Max bound each pool. The README compares them with the sum of both.
//   - A probe down depends on use: the most that was in use since the last
//     stable tick must be above Min. The README looks at the size, so it shrinks
//     a pool that nobody uses.
//   - Nothing happens if no pool is exhausted and no pool used more than Min;
//     in the README, only if the size is exactly Min.
//   - The peak is read, and set back to what is in use then, in stable ticks
//     only.
//   - Sizes are rounded, a half away from zero, and a pool that would stay as it
//     is moves by one. Without that, pools of 4 never move: 4 × 1.1 is 4 again.
//   - The stable size keeps its fraction, so two successful probes can move a
//     size by one.
//   - The initial size is the total of both pools, and is clamped.
//   - The first tick only starts the account; one of no length is left out.
//
// And different from what ships:
//
//   - The bounds hold under that step of one: shipped, a pool of 4 probes down
//     to 3, and one at 128 up to 129.
//   - Only work that ended OK counts as throughput. Shipped, everything does, so
//     failing fast looks like progress.
//   - Initial 0 means 2 × GOMAXPROCS, not the machine's cores: in a container
//     the two differ.
//   - ReadRatio cannot be 0; call the pool that has it all the read pool.
//   - There is no stall detection, no priority pools, and no time for resizing
//     to leave out.
//
// It assumes that one interval tells: that throughput over 100 ms differs more
// by the size of the pool than by chance. Where it fails: below some thousand
// requests a second chance decides, and since it goes up only when exhausted and
// comes down only when fewer slots do strictly more, noise ratchets the limit up
// under lasting overload. Equal throughput from fewer slots is thrown away, so
// it does not find the smallest size that suffices. It judges throughput, never
// latency, so a plain queue behind the backend grows to Max. Work of a cost above
// 1 may leave a rest of the pool that never fills: then it is not exhausted.
type Probe struct {
	pools *ProbePools
}

// NewProbe returns a Probe over the one pool of a gate, or an error that names
// every field out of range.
func NewProbe(cfg ProbeConfig) (*Probe, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Probe{pools: newProbePools(cfg, 1, 1)}, nil
}

// Name implements [Controller].
func (p *Probe) Name() string { return "probe" }

// Start implements [Controller].
func (p *Probe) Start() Decision {
	return Decision{Limit: p.pools.sizes.Read, Next: p.pools.cfg.Interval, Reason: "initial"}
}

// Update implements [Controller].
func (p *Probe) Update(w *Window) Decision {
	sizes := p.pools.Tick(w.Elapsed, use(w), PoolUse{})
	return Decision{Limit: sizes.Read, Next: p.pools.cfg.Interval, Reason: p.pools.reason()}
}

// State returns what the next tick judges.
func (p *Probe) State() ProbeState { return p.pools.State() }

// Stats returns what probing has done so far.
func (p *Probe) Stats() ProbeStats { return p.pools.Stats() }

// Save implements [Saver].
func (p *Probe) Save() State { return State{Limit: p.pools.stable} }

// Restore implements [Saver].
func (p *Probe) Restore(s State) {
	if s.Limit >= 1 { // false for NaN too
		p.pools.restart(s.Limit)
	}
}

// use is what a window says of its pool.
func use(w *Window) PoolUse {
	return PoolUse{Finished: w.OK, Peak: w.MaxInFlight, Used: w.InFlight}
}

func (p *ProbePools) reason() string {
	switch p.state {
	case ProbeUp:
		return fmt.Sprintf("probing up from %.1f", p.stable)
	case ProbeDown:
		return fmt.Sprintf("probing down from %.1f", p.stable)
	}
	return fmt.Sprintf("stable at %.1f", p.stable)
}

// ProbePair is throughput probing over two gates, one for reads and one for
// writes, whose sizes move together: what helps is judged by what both finish.
// See [Probe] for how it works, what it assumes and where it fails.
//
// [ProbePair.Read] and [ProbePair.Write] are the controllers of the two gates,
// which may call them from different goroutines. The read gate ticks: every
// Interval its window closes the account of both. The write gate's windows are a
// tenth of that, at least 1 ms; each adds what it saw to the account and takes
// up the size that the last tick gave it, so writes follow up to a tenth of an
// Interval late. If the read gate is closed, the write pool keeps its size.
//
// Only the read controller is a [Saver]: its limit stands for both.
type ProbePair struct {
	mu      sync.Mutex
	pools   *ProbePools
	pending PoolUse // what the write gate has reported since the last tick
}

// NewProbePair returns the probing of two gates, or an error that names every
// field out of range. ReadRatio must be below 1.
func NewProbePair(cfg ProbeConfig) (*ProbePair, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.ReadRatio == 1 {
		return nil, fmt.Errorf("control: probe: ReadRatio 1: leaves nothing to write with; use NewProbe")
	}
	return &ProbePair{pools: newProbePools(cfg, cfg.ReadRatio, 2)}, nil
}

// Read returns the read gate's controller, the one that ticks.
func (p *ProbePair) Read() Controller { return probeRead{p} }

// Write returns the write gate's controller.
func (p *ProbePair) Write() Controller { return probeWrite{p} }

// Sizes returns the sizes of the pools now.
func (p *ProbePair) Sizes() ProbeSizes {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pools.Sizes()
}

// State returns what the next tick judges.
func (p *ProbePair) State() ProbeState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pools.State()
}

// Stats returns what probing has done so far.
func (p *ProbePair) Stats() ProbeStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pools.Stats()
}

type probeRead struct{ pair *ProbePair }

func (probeRead) Name() string { return "probe" }

func (r probeRead) Start() Decision {
	return Decision{Limit: r.pair.Sizes().Read, Next: r.pair.pools.cfg.Interval, Reason: "initial"}
}

func (r probeRead) Update(w *Window) Decision {
	p := r.pair
	p.mu.Lock()
	defer p.mu.Unlock()
	sizes := p.pools.Tick(w.Elapsed, use(w), p.pending)
	p.pending = PoolUse{Peak: p.pending.Used, Used: p.pending.Used}
	return Decision{Limit: sizes.Read, Next: p.pools.cfg.Interval, Reason: p.pools.reason()}
}

// Save implements [Saver].
func (r probeRead) Save() State {
	p := r.pair
	p.mu.Lock()
	defer p.mu.Unlock()
	return State{Limit: within(p.pools.stable*p.pools.ratio, p.pools.cfg.Min, p.pools.cfg.Max)}
}

// Restore implements [Saver].
func (r probeRead) Restore(s State) {
	p := r.pair
	if !(s.Limit >= 1) { // NaN too
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pools.restart(s.Limit / p.pools.ratio)
}

type probeWrite struct{ pair *ProbePair }

func (probeWrite) Name() string { return "probe" }

func (r probeWrite) Start() Decision {
	return Decision{Limit: r.pair.Sizes().Write, Next: r.next(), Reason: "initial"}
}

func (r probeWrite) Update(w *Window) Decision {
	p := r.pair
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending.Finished += max(0, w.OK)
	p.pending.Peak = max(p.pending.Peak, w.MaxInFlight)
	p.pending.Used = w.InFlight
	return Decision{Limit: p.pools.sizes.Write, Next: r.next(), Reason: p.pools.reason()}
}

// next is how often the write gate reports.
func (r probeWrite) next() time.Duration { return max(r.pair.pools.cfg.Interval/10, time.Millisecond) }
