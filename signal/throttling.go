package signal

import (
	"io/fs"
	"time"
)

// ThrottlingConfig configures [NewThrottling]. The zero value of a field means
// its default.
type ThrottlingConfig struct {
	// Threshold is the share of the scheduler's periods (100 ms each, as a
	// rule) in which the container may run out of its quota. Range (0, 1],
	// default 0.25: where the Kubernetes project's alert CPUThrottlingHigh
	// begins.
	Threshold float64
	// Over is the span of time that is looked at. Default 1 s.
	Over time.Duration
	// FS is the root of the file system; nil means the machine's.
	FS fs.FS
}

func (c ThrottlingConfig) withDefaults() ThrottlingConfig {
	def(&c.Threshold, 0.25)
	def(&c.Over, time.Second)
	return c
}

// NewThrottling returns the signal "cpu_throttling": the share of periods in
// which a CPU quota stopped this process's control group, or one around it, over
// Threshold. It reads nr_periods and nr_throttled in cpu.stat, of version 2 or 1
// of Linux's control groups. 0 while no quota is set.
func NewThrottling(cfg ThrottlingConfig) (Signal, error) {
	cfg = cfg.withDefaults()
	var f faults
	f.share("Threshold", cfg.Threshold)
	f.over(cfg.Over)
	if err := f.err("cpu_throttling"); err != nil {
		return nil, err
	}
	return newThrottling(cfg), nil
}

// throttling follows cpu.stat of the groups around the process.
type throttling struct {
	cfg    ThrottlingConfig
	files  files
	groups []group // nil: look for them
	spans  []span
}

func newThrottling(cfg ThrottlingConfig) *source {
	t := &throttling{cfg: cfg, files: filesOf(cfg.FS)}
	return &source{name: "cpu_throttling", every: slowInterval, measure: t.measure}
}

var periods = []string{"nr_periods", "nr_throttled"}

func (t *throttling) measure() (float64, error) {
	if t.groups == nil {
		var err error
		if t.groups, err = t.files.groups("cpu", t.counts); err != nil {
			return 0, err
		}
		t.spans = make([]span, len(t.groups))
		for i := range t.spans {
			t.spans[i].over = t.cfg.Over
		}
	}
	highest, err := 0.0, error(ErrNoValue)
	for i, g := range t.groups {
		n, e := t.read(g)
		if e != nil {
			t.groups = nil // it may have moved: look again next time
			return 0, e
		}
		grown, e := t.spans[i].next(time.Now(), n[0], n[1])
		if e != nil {
			continue
		}
		err = nil
		if grown.a > 0 {
			highest = max(highest, min(1, grown.b/grown.a)/t.cfg.Threshold)
		}
	}
	return highest, err
}

func (t *throttling) read(g group) (n [2]uint64, err error) {
	data, err := t.files.read(g.dir + "/cpu.stat")
	if err != nil {
		return n, err
	}
	return n, need(data, periods, n[:])
}

// counts reports whether a group counts periods. The outermost of version 2
// does not, nor does one whose cpu controller is off.
func (t *throttling) counts(g group) bool {
	_, err := t.read(g)
	return err == nil
}
