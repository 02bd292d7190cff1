package signal

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
)

// ThrottlingConfig configures [NewThrottling]. The zero value of a field means
// its default.
type ThrottlingConfig struct {
	// Threshold is the share of the scheduler's periods (usually 100 ms each) in
	// which the container may use up its quota. Range (0, 1], default 0.25, where
	// the Kubernetes project's alert CPUThrottlingHigh begins.
	Threshold float64 `default:"0.25" min:"0" max:"1"`
	// Over is the time to look back. Range 1 ms to 1 min, default 1 s.
	Over time.Duration `default:"1s" min:"1ms" max:"1m"`
	// FS is the root of the file system; nil means the machine's.
	FS fs.FS
}

// NewThrottling returns the signal "cpu_throttling". It is the share of periods in which
// a CPU quota stopped this process's control group, or one around it, over Threshold. It
// reads cpu.stat of version 2 or 1 of Linux's control groups. 0 while no quota is set.
func NewThrottling(cfg ThrottlingConfig) (Signal, error) {
	if err := complete("cpu_throttling", &cfg); err != nil {
		return nil, err
	}
	t := &throttling{cfg: cfg, files: filesOf(cfg.FS)}
	return &source{name: "cpu_throttling", every: slowInterval, measure: t.measure}, nil
}

// throttling follows cpu.stat of the groups around the process.
type throttling struct {
	cfg    ThrottlingConfig
	files  files
	groups []group // nil: not searched yet
	spans  []span
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
			t.groups = nil // the process may have moved: search again next time
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

// MemoryConfig configures [NewMemory]. The zero value of a field means its
// default.
type MemoryConfig struct {
	// Threshold is the part of the limit that may be in use. Range (0, 1],
	// default 0.9.
	Threshold float64 `default:"0.9" min:"0" max:"1"`
	// FS is the root of the file system; nil means the machine's.
	FS fs.FS
}

// NewMemory returns the signal "memory": memory in use over Threshold times the limit.
// The fullest counts, of this process's control group and those around it. The limit is
// memory.max or, if lower, memory.high (version 1: memory.limit_in_bytes). File cache
// that has not been used lately does not count, because the kernel frees it first. The
// kubelet does the same.
//
// Without a limit it is the machine's memory: what is not MemAvailable in /proc/meminfo.
// Linux only.
func NewMemory(cfg MemoryConfig) (Signal, error) {
	if err := complete("memory", &cfg); err != nil {
		return nil, err
	}
	m := &memory{cfg: cfg, files: filesOf(cfg.FS)}
	return &source{name: "memory", every: slowInterval, measure: m.measure}, nil
}

// memory follows the groups around the process.
type memory struct {
	cfg    MemoryConfig
	files  files
	groups []group   // nil: not searched yet, or there are none
	none   time.Time // when there were none
}

func (m *memory) measure() (float64, error) {
	if m.groups == nil && time.Since(m.none) >= retryMissing {
		var err error
		m.groups, err = m.files.groups("memory", func(g group) bool { return m.files.has(g.dir + "/" + usageFile(g)) })
		switch {
		case errors.Is(err, errors.ErrUnsupported):
			m.none = time.Now()
		case err != nil:
			return 0, err
		}
	}
	highest, limited := 0.0, false
	for _, g := range m.groups {
		used, limit, err := m.read(g)
		if err != nil {
			m.groups = nil // the process may have moved: search again next time
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
	var unused [1]uint64
	if err := need(data, []string{cache}, unused[:]); err != nil {
		return 0, 0, fmt.Errorf("/%s/memory.stat: %w", g.dir, err)
	}
	return used - min(used, unused[0]), limit, nil
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

// group is a directory of a control group that this process is in.
type group struct {
	dir string
	v1  bool
}

// groups returns the control groups of this process, innermost first, for which has is
// true. They are of version 2. If there is none, they are of version 1, by the
// controller's name. Inside a container the path in /proc may be the host's, and only its end is
// mounted. So every directory on the way up is tried, the mount itself last.
func (f files) groups(controller string, has func(group) bool) ([]group, error) {
	data, err := f.read("proc/self/cgroup")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, unsupported("no control groups here: /proc/self/cgroup does not exist")
	}
	if err != nil {
		return nil, err
	}
	all, err := parseMemberships(data)
	if err != nil {
		return nil, err
	}
	for _, v1 := range []bool{false, true} {
		for _, m := range all {
			names := strings.Split(m.controllers, ",")
			if v1 != (m.controllers != "") || v1 && !slices.Contains(names, controller) {
				continue
			}
			for _, mount := range mounts(m, controller) {
				if found := accepted(mount, m.path, v1, has); len(found) > 0 {
					return found, nil
				}
			}
		}
	}
	return nil, unsupported("no control group of this process has a %s controller", controller)
}

// mounts are the usual places of a hierarchy. In a mixed system version 2 has a
// directory beside those of version 1.
func mounts(m membership, controller string) []string {
	const root = "sys/fs/cgroup"
	if m.controllers == "" {
		return []string{root, root + "/unified"}
	}
	return []string{root + "/" + controller, path.Join(root, path.Clean("/"+m.controllers))}
}

func accepted(mount, below string, v1 bool, has func(group) bool) []group {
	var found []group
	for p := path.Clean("/" + below); ; p = path.Dir(p) {
		if g := (group{path.Join(mount, p), v1}); fs.ValidPath(g.dir) && has(g) {
			found = append(found, g)
		}
		if p == "/" {
			return found
		}
	}
}
