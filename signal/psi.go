package signal

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
)

// Resource is what tasks stall on.
type Resource string

// The resources of [NewPSI].
const (
	CPU    Resource = "cpu"
	IO     Resource = "io"
	Memory Resource = "memory"
)

// PSIConfig configures [NewPSI]. The zero value of a field but Resource means
// its default.
type PSIConfig struct {
	// Resource is CPU, IO or Memory.
	Resource Resource `enum:"cpu,io,memory"`
	// Threshold is the share of time that may be lost. Range (0, 1]. Default
	// 0.1 for Memory, which is systemd's (MemoryPressureThresholdSec, 200 ms in
	// 2 s). Default 0.5 for CPU and IO, for which nobody publishes a figure:
	// watch yours before you rely on it.
	Threshold float64 `default:"0.5" min:"0" max:"1"`
	// Over is the time to look back. Range 1 ms to 1 min, default 1 s.
	Over time.Duration `default:"1s" min:"1ms" max:"1m"`
	// FS is the root of the file system; nil means the machine's.
	FS fs.FS
}

// NewPSI returns a signal of Linux's pressure stall information for the machine.
// It is the share of time in which at least one task stalled, over Threshold. It
// is computed from the file's total, because the kernel's own averages, over 10 s
// and more, would be late. Its name is psi_cpu, psi_io or psi_memory.
//
// CPU stalls are those of threads. A Go process has no more running threads than
// GOMAXPROCS. So a queue inside it does not show here but in [NewSchedLatency].
// Other processes that compete do show, and so does a quota.
func NewPSI(cfg PSIConfig) (Signal, error) {
	if cfg.Resource == Memory && cfg.Threshold == 0 {
		cfg.Threshold = 0.1
	}
	var f fault.List
	f.Require(cfg.Resource != "", fault.Path{"Resource"}, "missing: must be %s, %s or %s", CPU, IO, Memory)
	setting.Complete(&cfg, &f)
	if err := f.Err("signal: psi"); err != nil {
		return nil, err
	}
	files, s, name := filesOf(cfg.FS), span{over: cfg.Over}, "proc/pressure/"+string(cfg.Resource)
	return &source{name: "psi_" + string(cfg.Resource), every: slowInterval, measure: func() (float64, error) {
		data, err := files.read(name)
		if errors.Is(err, fs.ErrNotExist) {
			return 0, unsupported("/%s does not exist: PSI needs Linux 4.20 or later, and some systems start without it unless psi=1 is set", name)
		}
		if err != nil {
			return 0, err
		}
		total, err := parsePressure(data)
		if err != nil {
			return 0, fmt.Errorf("/%s: %w", name, err)
		}
		g, err := s.next(time.Now(), total, 0)
		if err != nil {
			return 0, err
		}
		lost := g.a * float64(time.Microsecond) / float64(g.elapsed)
		return min(1, lost) / cfg.Threshold, nil
	}}, nil
}
