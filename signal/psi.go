package signal

import (
	"errors"
	"fmt"
	"io/fs"
	"time"
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
	Resource Resource
	// Cgroup looks at the process's own control group (version 2) instead of
	// the whole machine.
	Cgroup bool
	// Full counts the time during which all tasks stalled, instead of that
	// during which at least one did. The machine's CPU has no such figure.
	Full bool
	// Threshold is the share of time that may be lost. Range (0, 1]. Default
	// 0.1 for Memory, which is systemd's default (MemoryPressureThresholdSec,
	// 200 ms in 2 s), and 0.5 for CPU and IO, for which no figure is
	// published: watch yours before you rely on it.
	Threshold float64
	// Over is the span of time that is looked at. Default 1 s.
	Over time.Duration
	// FS is the root of the file system; nil means the machine's.
	FS fs.FS
}

// NewPSI returns a signal of Linux's pressure stall information: the growth of
// the file's total over the time passed, over Threshold. The kernel's own
// averages, over 10 s and more, would be late. Its name is psi_cpu, psi_io or
// psi_memory, cgroup_psi_cpu and so on for the control group, with _full at the
// end for Full.
//
// CPU stalls are those of threads. A Go process has no more running threads than
// GOMAXPROCS, so what queues inside it does not show here but in
// [NewSchedLatency]; other processes that compete do, and a quota.
func NewPSI(cfg PSIConfig) (Signal, error) {
	if cfg.Resource == Memory {
		def(&cfg.Threshold, 0.1)
	}
	def(&cfg.Threshold, 0.5)
	def(&cfg.Over, time.Second)
	var f faults
	f.check(cfg.Resource == CPU || cfg.Resource == IO || cfg.Resource == Memory,
		"Resource %q: must be %s, %s or %s", cfg.Resource, CPU, IO, Memory)
	f.check(!cfg.Full || cfg.Cgroup || cfg.Resource != CPU,
		"Full: the kernel has no such figure for the machine's CPU; leave it out, or set Cgroup")
	f.share("Threshold", cfg.Threshold)
	f.over(cfg.Over)
	if err := f.err("psi"); err != nil {
		return nil, err
	}
	p := &psi{cfg: cfg, files: filesOf(cfg.FS), span: span{over: cfg.Over}}
	return &source{name: p.name(), every: slowInterval, measure: p.measure}, nil
}

// psi follows one pressure file.
type psi struct {
	cfg   PSIConfig
	files files
	file  string // empty: look for it
	span  span
}

func (p *psi) name() string {
	name := "psi_" + string(p.cfg.Resource)
	if p.cfg.Cgroup {
		name = "cgroup_" + name
	}
	if p.cfg.Full {
		name += "_full"
	}
	return name
}

func (p *psi) measure() (float64, error) {
	if p.file == "" {
		if err := p.find(); err != nil {
			return 0, err
		}
	}
	name := p.file
	data, err := p.files.read(name)
	if err != nil {
		p.file = "" // it may have moved: look again next time
		if errors.Is(err, fs.ErrNotExist) {
			return 0, unsupported("/%s does not exist: PSI needs Linux 4.20 or later and may have to be switched on with psi=1", name)
		}
		return 0, err
	}
	s, err := parsePressure(data)
	if err != nil {
		return 0, fmt.Errorf("/%s: %w", name, err)
	}
	total := s.some
	if p.cfg.Full {
		if total = s.full; !s.hasFull {
			return 0, unsupported("/%s has no line \"full\": that needs Linux 5.13 or later", name)
		}
	}
	g, err := p.span.next(time.Now(), total, 0)
	if err != nil {
		return 0, err
	}
	lost := g.a * float64(time.Microsecond) / float64(g.elapsed)
	return min(1, lost) / p.cfg.Threshold, nil
}

func (p *psi) find() error {
	if !p.cfg.Cgroup {
		p.file = "proc/pressure/" + string(p.cfg.Resource)
		return nil
	}
	file := "/" + string(p.cfg.Resource) + ".pressure"
	groups, err := p.files.groups("", func(g group) bool { return !g.v1 && p.files.has(g.dir+file) })
	if errors.Is(err, errors.ErrUnsupported) {
		return unsupported("no %s of this process's control group: that needs version 2 and Linux 4.20 or later", file[1:])
	}
	if err != nil {
		return err
	}
	p.file = groups[0].dir + file
	return nil
}
