package control

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
)

// ProbeConfig configures [NewProbe] and [NewProbePair]. The zero value of a field
// means its default; the defaults are MongoDB's.
type ProbeConfig struct {
	// Initial is how many slots there are at first, in both pools together.
	// Default 2 × GOMAXPROCS, clamped to Min and Max.
	Initial int64 `json:",omitempty" min:"1"`
	// Min and Max bound each pool.
	Min int64 `json:",omitempty" default:"4" min:"1"`
	Max int64 `json:",omitempty" default:"128" max:"1073741824"`

	// Size of a probe up or down, as a share.
	Step float64 `json:"step,omitempty" default:"0.1" min:"0.01" max:"0.5"`
	// Weight of a successful probe's size in the moving average that is kept.
	Weight float64 `json:"weight,omitempty" default:"0.2" min:"0.001" max:"1"`
	// The time between two probes.
	Interval time.Duration `json:",omitempty" default:"100ms" min:"10ms"`
	// The part of the slots that is for reads, with read_write.
	ReadRatio float64 `json:"read_ratio,omitempty" default:"0.5" min:"0.001" max:"0.999"`
}

// complete fills in the defaults and checks the result.
func (cfg *ProbeConfig) complete() error {
	var f fault.List
	setting.Complete(cfg, &f)
	cfg.Initial = cmp.Or(cfg.Initial, 2*int64(runtime.GOMAXPROCS(0)))
	checkBounds(&f, cfg.Min, cfg.Max)
	return f.Err("control: probe")
}

// Probe finds a limit by trying. It measures throughput at the present size. Then
// it goes a step up if all slots were in use, or a step down if not. If
// throughput became greater it keeps a part of the step. This is how MongoDB
// sizes its execution tickets, over a single pool; [ProbePair] is the original,
// over two.
//
// # What ships and what is published
//
// The pseudocode in MongoDB's public README differs from what MongoDB ships. Here,
// as shipped:
//
//   - Min and Max bound each pool. The README compares them with the sum of both.
//   - A probe down depends on use: the most that was in use since the last
//     stable tick must be above Min. The README goes by the size, so it shrinks
//     a pool that nobody uses.
//   - Nothing happens if no pool is exhausted and no pool used more than Min.
//     In the README, this holds only if the size is exactly Min.
//   - The peak is read, and set back to what is in use then, in stable ticks
//     only.
//   - Sizes are rounded, a half away from zero, and a pool that would stay as it
//     is moves by one. Without that, pools of 4 never move: 4 × 1.1 is 4 again.
//   - The stable size keeps its fraction, so two successful probes can move a
//     size by one.
//   - The initial size is the total of both pools, and is clamped.
//   - The first tick only starts the account; one of no length is left out.
//
// Here it differs from what ships in this:
//
//   - The bounds hold under that step of one. Shipped, a pool of 4 probes down
//     to 3, and one at 128 up to 129.
//   - Only work that ended OK counts as throughput. Shipped, everything does, so
//     failing fast looks like progress.
//   - The default of Initial is 2 × GOMAXPROCS, not twice the machine's cores: in
//     a container the two differ.
//   - ReadRatio cannot be 0.
//   - There is no stall detection, there are no priority pools, and resizing takes
//     no time.
//
// # Assumptions, and where it fails
//
// One interval must be enough: throughput over 100 ms must differ by the size of the
// pool more than by chance. Below some thousand requests a second chance decides.
// The limit goes up only when all slots are taken, and comes down only when fewer
// slots do strictly more. So under lasting overload noise ratchets it up, to Max
// within minutes. While slots are free it comes down again, also by chance.
//
// Equal throughput from fewer slots does not count, so it does not find the
// smallest size that suffices. It judges throughput, never latency, so with a
// plain queue in the backend it grows to Max. If work costs more than 1, the last
// slots of the pool may never fill. Then the pool is never exhausted.
type Probe struct{ probeRead }

// NewProbe returns a Probe over the one pool of a gate, or an error that names
// every field out of range.
func NewProbe(cfg ProbeConfig) (*Probe, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	return &Probe{probeRead{&ProbePair{pools: newProbePools(cfg, 1)}}}, nil
}

// ProbePair is throughput probing over two gates, one for reads and one for
// writes. Their sizes move together; what both finish decides. See [Probe] for how
// it works, what it assumes and where it fails.
//
// [ProbePair.Read] and [ProbePair.Write] are the controllers of the two gates,
// which may call them from different goroutines. The read gate ticks: every
// Interval its window ends the account of both. The write gate's windows are a
// tenth of that, at least 1 ms. Each adds to the account and takes the size that
// the last tick decided. So writes follow up to a tenth of an Interval late. If
// the read gate is closed, the write pool keeps its size.
//
// Only the read controller is a [Saver]: its limit stands for both.
type ProbePair struct {
	mu      sync.Mutex
	pools   *probePools
	pending poolUse // what the write gate has reported since the last tick
}

// NewProbePair returns the probing of two gates, or an error that names every
// field out of range.
func NewProbePair(cfg ProbeConfig) (*ProbePair, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	return &ProbePair{pools: newProbePools(cfg, cfg.ReadRatio)}, nil
}

// Read returns the read gate's controller, the one that ticks.
func (p *ProbePair) Read() Controller { return probeRead{p} }

// Write returns the write gate's controller.
func (p *ProbePair) Write() Controller { return probeWrite{p} }

type probeRead struct{ pair *ProbePair }

func (probeRead) Name() string { return "probe" }

func (r probeRead) Start() Decision {
	p := r.pair
	p.mu.Lock()
	defer p.mu.Unlock()
	return Decision{Limit: p.pools.sizes.read, Next: p.pools.cfg.Interval, Reason: "initial", Probes: p.pools.probes()}
}

func (r probeRead) Update(w *Window) Decision {
	p := r.pair
	p.mu.Lock()
	defer p.mu.Unlock()
	sizes := p.pools.tick(w.Elapsed, use(w), p.pending)
	p.pending = poolUse{peak: p.pending.used, used: p.pending.used}
	return Decision{Limit: sizes.read, Next: p.pools.cfg.Interval, Reason: p.pools.reason(), Probes: p.pools.probes()}
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
	p := r.pair
	p.mu.Lock()
	defer p.mu.Unlock()
	return Decision{Limit: p.pools.sizes.write, Next: r.next(), Reason: "initial", Probes: p.pools.probes()}
}

func (r probeWrite) Update(w *Window) Decision {
	p := r.pair
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending.finished += max(0, w.OK)
	p.pending.peak = max(p.pending.peak, w.MaxInFlight)
	p.pending.used = w.InFlight
	return Decision{Limit: p.pools.sizes.write, Next: r.next(), Reason: p.pools.reason(), Probes: p.pools.probes()}
}

// next is how often the write gate reports.
func (r probeWrite) next() time.Duration { return max(r.pair.pools.cfg.Interval/10, time.Millisecond) }

// probePools is throughput probing over a read and a write pool, as a state
// machine; tick is its only input.
type probePools struct {
	cfg    ProbeConfig
	ratio  float64 // the read pool's share; 1: there is no write pool
	stable float64 // of both pools, with fractions: they let two probes move a size by one
	state  probeState
	sizes  poolSizes

	started   bool
	baseline  float64 // throughput, finished per µs
	peak      poolSizes
	unmetered int64 // finished in ticks of no length
	tried     Probes
}

// probeState says what the next tick judges.
type probeState int

const (
	probeDown   probeState = iota - 1 // pools are smaller, to see whether that helps
	probeStable                       // pools have their stable size
	probeUp                           // pools are larger
)

// poolUse is what one pool did since the last tick.
type poolUse struct {
	finished   int64
	peak, used int64 // the most in use at a time; in use now
}

// use is what a window says of its pool.
func use(w *Window) poolUse {
	return poolUse{finished: w.OK, peak: w.MaxInFlight, used: w.InFlight}
}

// poolSizes are numbers of slots. A single pool is the read pool; write is 0 then.
type poolSizes struct{ read, write int64 }

func (s poolSizes) total() int64 { return s.read + s.write }

func newProbePools(cfg ProbeConfig, ratio float64) *probePools {
	p := &probePools{cfg: cfg, ratio: ratio}
	p.restart(float64(cfg.Initial))
	return p
}

// tick reads what the pools did over the last elapsed and returns their sizes from
// now on. The first tick only starts the account. One of no length changes
// nothing: its work counts in the next.
func (p *probePools) tick(elapsed time.Duration, read, write poolUse) poolSizes {
	p.peak.read = max(p.peak.read, read.peak, read.used)
	p.peak.write = max(p.peak.write, write.peak, write.used)
	if !p.started {
		p.started = true
		return p.sizes
	}
	done := p.unmetered + max(0, read.finished) + max(0, write.finished)
	if elapsed <= 0 {
		p.unmetered = max(0, done)
		return p.sizes
	}
	p.unmetered = 0
	throughput := float64(done) / (float64(elapsed) / 1e3)
	if p.state != probeStable {
		p.conclude(throughput)
		return p.sizes
	}
	p.probe(throughput)
	p.peak = poolSizes{read.used, write.used}
	return p.sizes
}

// probe leaves the stable size: up if a pool was exhausted, else down if more than
// Min was in use.
func (p *probePools) probe(throughput float64) {
	p.baseline = throughput
	p.tried.Throughput = perSecond(throughput)
	low, high := p.cfg.Min, p.cfg.Max
	exhausted := func(size, peak int64) bool { return size < high && peak >= size }
	switch {
	case exhausted(p.sizes.read, p.peak.read), p.ratio < 1 && exhausted(p.sizes.write, p.peak.write):
		p.state = probeUp
	case p.peak.read > low, p.peak.write > low:
		p.state = probeDown
	default:
		return
	}
	was := p.sizes
	p.sizes = p.sized(1 + float64(p.state)*p.cfg.Step)
	// A pool that rounding would leave as it is moves by one. Otherwise small
	// pools could never move. No pool moves past its bounds.
	nudge := func(size *int64, was int64) {
		if *size != was {
			return
		}
		if *size = min(max(was+int64(p.state), low), high); *size != was {
			p.tried.Nudged++
		}
	}
	nudge(&p.sizes.read, was.read)
	if p.ratio < 1 {
		nudge(&p.sizes.write, was.write)
	}
}

// conclude ends a probe. It has succeeded if throughput has become strictly
// greater; then its size goes into the moving average.
func (p *probePools) conclude(throughput float64) {
	kept := throughput > p.baseline
	p.tried.count(p.state, kept)
	p.tried.Probed = perSecond(throughput)
	if kept {
		p.baseline = throughput
		weight := p.cfg.Weight
		p.stable = product(float64(p.sizes.total()), weight) + product(p.stable, 1-weight)
	}
	p.state = probeStable
	p.sizes = p.sized(1)
}

// count counts a probe that has ended.
func (t *Probes) count(direction probeState, kept bool) {
	all, ok := &t.Up, &t.UpKept
	if direction == probeDown {
		all, ok = &t.Down, &t.DownKept
	}
	if *all++; kept {
		*ok++
	}
}

// probes is what has been tried, and the size between probes.
func (p *probePools) probes() Probes {
	t := p.tried
	t.Stable = p.stable
	return t
}

// perSecond converts what was finished in a microsecond.
func perSecond(throughput float64) float64 { return throughput * 1e6 }

// sized shares k times the stable size among the pools. A half is rounded away
// from zero.
func (p *probePools) sized(k float64) poolSizes {
	share := func(ratio float64) int64 {
		return int64(within(math.Round(p.stable*ratio*k), p.cfg.Min, p.cfg.Max))
	}
	if p.ratio == 1 {
		return poolSizes{read: share(1)}
	}
	return poolSizes{read: share(p.ratio), write: share(1 - p.ratio)}
}

// restart makes total the stable size.
func (p *probePools) restart(total float64) {
	pools := int64(2)
	if p.ratio == 1 {
		pools = 1
	}
	p.stable = within(total, pools*p.cfg.Min, pools*p.cfg.Max)
	p.state = probeStable
	p.sizes = p.sized(1)
}

func (p *probePools) reason() string {
	switch p.state {
	case probeUp:
		return fmt.Sprintf("probing up from %.1f slots", p.stable)
	case probeDown:
		return fmt.Sprintf("probing down from %.1f slots", p.stable)
	}
	return fmt.Sprintf("stable at %.1f slots", p.stable)
}
