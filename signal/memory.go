package signal

import (
	"errors"
	"fmt"
	"io/fs"
)

// MemoryConfig configures [NewMemory]. The zero value of a field means its
// default.
type MemoryConfig struct {
	// Threshold is the part of the limit that may be in use. Range (0, 1],
	// default 0.9.
	Threshold float64
	// FS is the root of the file system; nil means the machine's.
	FS fs.FS
}

func (c MemoryConfig) withDefaults() MemoryConfig {
	def(&c.Threshold, 0.9)
	return c
}

// NewMemory returns the signal "memory": memory in use over Threshold times the
// limit, of this process's control group or one around it, whichever is
// fullest. The limit is memory.max or, where lower, memory.high (version 1:
// memory.limit_in_bytes). File cache that has not been used lately does not
// count, because the kernel takes it back first; the kubelet reckons likewise.
//
// Without such a limit it is the machine's memory: what is not MemAvailable in
// /proc/meminfo. Linux only.
func NewMemory(cfg MemoryConfig) (Signal, error) {
	cfg = cfg.withDefaults()
	var f faults
	f.share("Threshold", cfg.Threshold)
	if err := f.err("memory"); err != nil {
		return nil, err
	}
	return newMemory(cfg), nil
}

// memory follows the groups around the process.
type memory struct {
	cfg    MemoryConfig
	files  files
	groups []group // nil: look for them
	none   bool    // there are none
}

func newMemory(cfg MemoryConfig) *source {
	m := &memory{cfg: cfg, files: filesOf(cfg.FS)}
	return &source{name: "memory", every: slowInterval, measure: m.measure}
}

func (m *memory) measure() (float64, error) {
	if m.groups == nil && !m.none {
		var err error
		m.groups, err = m.files.groups("memory", func(g group) bool { return m.files.has(g.dir + "/" + usageFile(g)) })
		if m.none = errors.Is(err, errors.ErrUnsupported); err != nil && !m.none {
			return 0, err
		}
	}
	highest, limited := 0.0, false
	for _, g := range m.groups {
		used, limit, err := m.read(g)
		if err != nil {
			m.groups = nil // it may have moved: look again next time
			return 0, err
		}
		if limit != noLimit {
			limited = true
			highest = max(highest, float64(used)/float64(max(1, limit)))
		}
	}
	if !limited {
		var err error
		if highest, err = m.machine(); err != nil {
			return 0, err
		}
	}
	return highest / m.cfg.Threshold, nil
}

// read returns what a group uses and may use.
func (m *memory) read(g group) (used, limit uint64, err error) {
	limits, cache := []string{"memory.max", "memory.high"}, "inactive_file"
	if g.v1 {
		limits, cache = []string{"memory.limit_in_bytes"}, "total_inactive_file"
	}
	limit = noLimit
	for _, name := range limits {
		n, err := m.number(g.dir + "/" + name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the outermost group has none
		}
		if err != nil {
			return 0, 0, err
		}
		limit = min(limit, n)
	}
	if limit == noLimit {
		return 0, limit, nil
	}
	if used, err = m.number(g.dir + "/" + usageFile(g)); err != nil {
		return 0, 0, err
	}
	data, err := m.files.read(g.dir + "/memory.stat")
	if err != nil {
		return 0, 0, err
	}
	var idle [1]uint64
	if err := need(data, []string{cache}, idle[:]); err != nil {
		return 0, 0, fmt.Errorf("/%s/memory.stat: %w", g.dir, err)
	}
	return used - min(used, idle[0]), limit, nil
}

func (m *memory) number(name string) (uint64, error) {
	data, err := m.files.read(name)
	if err != nil {
		return 0, err
	}
	n, err := parseLimit(data)
	if err != nil {
		return 0, fmt.Errorf("/%s: %w", name, err)
	}
	return n, nil
}

// machine is the part of the machine's memory that is not available.
func (m *memory) machine() (float64, error) {
	data, err := m.files.read("proc/meminfo")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, unsupported("neither a control group with a memory limit nor /proc/meminfo")
	}
	if err != nil {
		return 0, err
	}
	var n [2]uint64
	if err := need(data, []string{"MemTotal", "MemAvailable"}, n[:]); err != nil {
		return 0, fmt.Errorf("/proc/meminfo: %w", err)
	}
	return 1 - min(1, float64(n[1])/float64(max(1, n[0]))), nil
}

func usageFile(g group) string {
	if g.v1 {
		return "memory.usage_in_bytes"
	}
	return "memory.current"
}
