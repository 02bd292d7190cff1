package control

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"
)

// ProbeConfig configures [NewProbe], [NewProbePair] and [NewProbePools]. The
// zero value of a field means its default; the defaults are MongoDB's.
type ProbeConfig struct {
	// Initial is how many slots there are at first, in both pools together.
	// Default 2 × Cores. What does not fit Min and Max is clamped.
	Initial int64
	// Min and Max bound each pool. Defaults 4 and 128.
	Min, Max int64
	// ReadRatio is the read pool's share. Range (0, 1], default 0.5. [NewProbe]
	// has a single pool and ignores it.
	ReadRatio float64

	// Step is by how much a probe goes up or down, as a share. Range
	// [0.01, 0.5], default 0.1.
	Step float64
	// Weight is that of a successful probe's size in the moving average that
	// is kept as the stable size. Range (0, 1], default 0.2.
	Weight float64
	// Interval is the time between two ticks. Default 100 ms, at least 10 ms.
	Interval time.Duration

	// Cores is for the default of Initial. Default: GOMAXPROCS.
	Cores int64
}

func (cfg *ProbeConfig) validate() error {
	def(&cfg.Cores, int64(runtime.GOMAXPROCS(0)))
	def(&cfg.Initial, 2*min(cfg.Cores, mostLimit))
	def(&cfg.Min, 4)
	def(&cfg.Max, 128)
	def(&cfg.ReadRatio, 0.5)
	def(&cfg.Step, 0.1)
	def(&cfg.Weight, 0.2)
	def(&cfg.Interval, 100*time.Millisecond)
	var f faults
	f.checkBounds(cfg.Min, cfg.Max)
	f.check(cfg.Cores >= 1, "Cores %d: must be at least 1", cfg.Cores)
	f.check(cfg.Initial >= 1, "Initial %d: must be at least 1", cfg.Initial)
	f.check(cfg.ReadRatio > 0 && cfg.ReadRatio <= 1, "ReadRatio %v: must be in (0, 1]", cfg.ReadRatio)
	f.check(cfg.Step >= 0.01 && cfg.Step <= 0.5, "Step %v: must be in [0.01, 0.5]", cfg.Step)
	f.check(cfg.Weight > 0 && cfg.Weight <= 1, "Weight %v: must be in (0, 1]", cfg.Weight)
	f.checkWindow("Interval", cfg.Interval)
	return f.err("probe")
}

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

// ProbeState says what the next tick judges.
type ProbeState string

const (
	// ProbeStable: the pools have their stable size.
	ProbeStable ProbeState = "stable"
	// ProbeUp: they are larger, to see whether that helps.
	ProbeUp ProbeState = "up"
	// ProbeDown: they are smaller.
	ProbeDown ProbeState = "down"
)

// PoolUse is what one pool did since the last tick.
type PoolUse struct {
	// Finished counts what has finished.
	Finished int64
	// Peak is the most that was in use at a time, Used what is in use now.
	Peak, Used int64
}

// ProbeSizes are the sizes of the two pools.
type ProbeSizes struct {
	// Read and Write are in slots.
	Read, Write int64
}

// ProbeStats counts what probing did, under the names of the monitor section of
// MongoDB's serverStatus. There is no resizeDurationMicros: a gate's resize takes
// no time.
type ProbeStats struct {
	// TimesIncreased and TimesDecreased count probes that succeeded.
	TimesIncreased int64 `json:"timesIncreased"`
	TimesDecreased int64 `json:"timesDecreased"`
	// TotalAmountIncreased and TotalAmountDecreased add up by how many slots
	// the stable sizes of both pools then changed.
	TotalAmountIncreased int64 `json:"totalAmountIncreased"`
	TotalAmountDecreased int64 `json:"totalAmountDecreased"`
	// TimesProbedStable, TimesProbedUp and TimesProbedDown count the ticks in
	// each state.
	TimesProbedStable int64 `json:"timesProbedStable"`
	TimesProbedUp     int64 `json:"timesProbedUp"`
	TimesProbedDown   int64 `json:"timesProbedDown"`
}

// ProbePools is throughput probing over a read and a write pool, as a state
// machine: [ProbePools.Tick] is its only input. It is what [Probe] and
// [ProbePair] run; their docs say what it assumes and where it fails. Not safe
// for concurrent use.
type ProbePools struct {
	cfg    ProbeConfig
	ratio  float64 // the read pool's share; 1: there is no write pool
	stable float64 // of both pools, with fractions: they let two probes move a size by one
	state  ProbeState
	sizes  ProbeSizes
	stats  ProbeStats

	started   bool
	baseline  float64 // throughput, finished per µs
	peak      ProbeSizes
	unmetered int64 // finished in ticks of no length
}

// NewProbePools returns the state machine over two pools, or an error that names
// every field out of range.
func NewProbePools(cfg ProbeConfig) (*ProbePools, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return newProbePools(cfg, cfg.ReadRatio, 2), nil
}

func newProbePools(cfg ProbeConfig, ratio float64, pools int64) *ProbePools {
	p := &ProbePools{cfg: cfg, ratio: ratio, state: ProbeStable}
	p.stable = within(float64(cfg.Initial), pools*cfg.Min, pools*cfg.Max)
	p.sizes = p.alloc(1)
	return p
}

// Sizes returns the sizes of the pools now.
func (p *ProbePools) Sizes() ProbeSizes { return p.sizes }

// State returns what the next tick judges.
func (p *ProbePools) State() ProbeState { return p.state }

// Stable returns the stable size of both pools together, with its fraction.
func (p *ProbePools) Stable() float64 { return p.stable }

// Stats returns what probing has done so far.
func (p *ProbePools) Stats() ProbeStats { return p.stats }

// Tick takes in what the pools did over the last elapsed and returns the sizes
// that they are to have from now on. The first tick only starts the account, and
// one of no length changes nothing: its work counts in the next.
func (p *ProbePools) Tick(elapsed time.Duration, read, write PoolUse) ProbeSizes {
	p.peak.Read = max(p.peak.Read, read.Peak, read.Used)
	p.peak.Write = max(p.peak.Write, write.Peak, write.Used)
	if !p.started {
		p.started = true
		return p.sizes
	}
	done := p.unmetered + max(0, read.Finished) + max(0, write.Finished)
	if elapsed <= 0 {
		p.unmetered = max(0, done)
		return p.sizes
	}
	p.unmetered = 0
	throughput := float64(done) / (float64(elapsed) / 1e3)
	switch p.state {
	case ProbeUp:
		p.stats.TimesProbedUp++
		p.settle(throughput, &p.stats.TimesIncreased, &p.stats.TotalAmountIncreased, 1)
	case ProbeDown:
		p.stats.TimesProbedDown++
		p.settle(throughput, &p.stats.TimesDecreased, &p.stats.TotalAmountDecreased, -1)
	default:
		p.stats.TimesProbedStable++
		p.probe(throughput)
		p.peak = ProbeSizes{read.Used, write.Used}
	}
	return p.sizes
}

// probe leaves the stable size, up if a pool was exhausted, else down if more
// than the smallest pool was in use.
func (p *ProbePools) probe(throughput float64) {
	p.baseline = throughput
	low, high := p.cfg.Min, p.cfg.Max
	exhausted := func(size, peak int64) bool { return 0 < size && size < high && peak >= size } // 0: there is no such pool
	switch {
	case exhausted(p.sizes.Read, p.peak.Read), exhausted(p.sizes.Write, p.peak.Write):
		p.state = ProbeUp
		p.move(1)
	case p.peak.Read > low, p.peak.Write > low:
		p.state = ProbeDown
		p.move(-1)
	}
}

// move takes a step up or down. A pool that rounding would leave as it is moves
// by one, or else small pools could never move; but never past its bounds.
func (p *ProbePools) move(sign int64) {
	was := p.sizes
	p.sizes = p.alloc(1 + float64(sign)*p.cfg.Step)
	nudge := func(size *int64, was int64) {
		if *size == was {
			*size = min(max(was+sign, p.cfg.Min), p.cfg.Max)
		}
	}
	nudge(&p.sizes.Read, was.Read)
	if p.ratio < 1 {
		nudge(&p.sizes.Write, was.Write)
	}
}

// settle ends a probe. It has succeeded if throughput has become strictly
// greater; then its size goes into the moving average.
func (p *ProbePools) settle(throughput float64, times, amount *int64, sign int64) {
	before := p.alloc(1).total()
	if throughput > p.baseline {
		p.baseline = throughput
		weight := p.cfg.Weight
		p.stable = product(float64(p.sizes.total()), weight) + product(p.stable, 1-weight)
		*times++
		*amount += max(0, sign*(p.alloc(1).total()-before))
	}
	p.state = ProbeStable
	p.sizes = p.alloc(1)
}

// alloc shares out k times the stable size. A half is rounded away from zero.
func (p *ProbePools) alloc(k float64) ProbeSizes {
	share := func(ratio float64) int64 {
		return int64(within(math.Round(p.stable*ratio*k), p.cfg.Min, p.cfg.Max))
	}
	if p.ratio == 1 {
		return ProbeSizes{Read: share(1)}
	}
	return ProbeSizes{Read: share(p.ratio), Write: share(1 - p.ratio)}
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

func (s ProbeSizes) total() int64 { return s.Read + s.Write }

// restart makes total the stable size.
func (p *ProbePools) restart(total float64) {
	pools := int64(2)
	if p.ratio == 1 {
		pools = 1
	}
	p.stable = within(total, pools*p.cfg.Min, pools*p.cfg.Max)
	p.state = ProbeStable
	p.sizes = p.alloc(1)
}
