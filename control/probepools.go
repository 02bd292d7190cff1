package control

import (
	"math"
	"runtime"
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
	exhausted := func(size, peak int64) bool { return size < high && peak >= size }
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
