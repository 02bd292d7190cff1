package signal

import (
	"runtime"
	"time"
)

// CPUConfig configures [NewCPU]. The zero value of a field means its default.
type CPUConfig struct {
	// Threshold is the share of GOMAXPROCS processors that may be busy. Range
	// (0, 1], default 0.85.
	Threshold float64
	// Over is the span of time that is looked at. Default 500 ms.
	Over time.Duration
}

// NewCPU returns the signal "cpu": the processor time that this process used,
// user and system, over Threshold times GOMAXPROCS times the time passed. Go
// 1.25 and later set GOMAXPROCS from a container's quota, so it is the share of
// what the process may use.
//
// It cannot say how much too much there is (it ends at 1/Threshold), and it
// counts what the process got: where others took the processor it reads low.
// Prefer [NewSchedLatency]; use this one to keep processor time free for
// something else.
func NewCPU(cfg CPUConfig) (Signal, error) {
	def(&cfg.Threshold, 0.85)
	def(&cfg.Over, 500*time.Millisecond)
	var f faults
	f.share("Threshold", cfg.Threshold)
	f.over(cfg.Over)
	if err := f.err("cpu"); err != nil {
		return nil, err
	}
	return newCPU(cfg, processTime), nil
}

// newCPU takes the processor time used so far from used.
func newCPU(cfg CPUConfig, used func() (time.Duration, error)) *source {
	s := span{over: cfg.Over}
	return &source{name: "cpu", every: slowInterval, measure: func() (float64, error) {
		t, err := used()
		if err != nil {
			return 0, err
		}
		g, err := s.next(time.Now(), uint64(max(0, t)), 0)
		if err != nil {
			return 0, err
		}
		most := float64(g.elapsed) * float64(runtime.GOMAXPROCS(0))
		return g.a / most / cfg.Threshold, nil
	}}
}
