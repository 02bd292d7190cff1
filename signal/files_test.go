package signal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"
)

func must(t *testing.T) func(Signal, error) Signal {
	return func(s Signal, err error) Signal {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

func value(t *testing.T, s Signal) float64 {
	t.Helper()
	v, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9*max(1, b) }

// load copies a directory of testdata into memory, where a test can change it.
func load(t *testing.T, dir string) fstest.MapFS {
	t.Helper()
	m := fstest.MapFS{}
	root := os.DirFS("testdata/" + dir)
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(root, name)
		m[name] = &fstest.MapFile{Data: data}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func put(m fstest.MapFS, name, text string) { m[name] = &fstest.MapFile{Data: []byte(text)} }

func TestMemory(t *testing.T) {
	const cg = "sys/fs/cgroup/"
	tests := []struct {
		name, dir string
		change    map[string]string // "": removed
		want      float64           // of the limit
	}{
		{"v2: idle file cache left out", "v2", nil, 448.0 / 1024},
		{"v2: high is lower than max", "v2", map[string]string{cg + "memory.high": "939524096"}, 448.0 / 896},
		{"v2: no limit, so the machine", "v2", map[string]string{cg + "memory.max": "max"}, 0.75},
		{"v2: the outermost group has no limit files", "v2",
			map[string]string{cg + "memory.max": "", cg + "memory.high": ""}, 0.75},
		{"v2: the fullest of the groups around", "v2", map[string]string{
			"proc/self/cgroup": "0::/pod/c\n", cg + "pod/c/memory.current": "100", cg + "pod/c/memory.max": "1000",
			cg + "pod/c/memory.stat": "inactive_file 0", cg + "memory.max": "max"}, 0.1},
		{"v2: a namespace seen from a sibling", "v2", map[string]string{"proc/self/cgroup": "0::/../x\n"}, 448.0 / 1024},
		{"v1: only the end of the path is mounted", "v1", nil, 200.0 / 400},
		{"v1: no limit is a large number", "v1",
			map[string]string{cg + "memory/memory.limit_in_bytes": "9223372036854771712"}, 0.75},
		{"no control groups", "v2", map[string]string{"proc/self/cgroup": ""}, 0.75},
		{"more cache than usage", "v2", map[string]string{cg + "memory.stat": "inactive_file 999999999999"}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := load(t, tt.dir)
			for name, text := range tt.change {
				put(m, name, text)
				if text == "" {
					delete(m, name)
				}
			}
			s := must(t)(NewMemory(MemoryConfig{Threshold: 0.5, FS: m}))
			if got := value(t, s); !near(got, tt.want/0.5) {
				t.Errorf("%v, want %v", got, tt.want/0.5)
			}
		})
	}
}

func TestMemoryLooksAgain(t *testing.T) {
	m := load(t, "v2")
	s := must(t)(NewMemory(MemoryConfig{FS: m}))
	value(t, s)
	stat := m["sys/fs/cgroup/memory.stat"]
	delete(m, "sys/fs/cgroup/memory.stat")
	if _, err := s.Read(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is gone: %v", err)
	}
	m["sys/fs/cgroup/memory.stat"] = stat
	value(t, s)
}

// A limit that is set where there was no control group of memory is found within a minute.
func TestMemoryIsLimitedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := load(t, "v2")
		usage := m["sys/fs/cgroup/memory.current"]
		delete(m, "sys/fs/cgroup/memory.current")
		s := must(t)(NewMemory(MemoryConfig{Threshold: 0.5, FS: m}))
		for range 2 {
			if got := value(t, s); !near(got, 0.75/0.5) {
				t.Errorf("%v without a group, want the machine's %v", got, 0.75/0.5)
			}
			time.Sleep(retryMissing / 2)
		}
		m["sys/fs/cgroup/memory.current"] = usage
		if got, want := value(t, s), 448.0/1024/0.5; !near(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}

func TestThrottling(t *testing.T) {
	for dir, file := range map[string]string{"v2": "sys/fs/cgroup/cpu.stat", "v1": "sys/fs/cgroup/cpu,cpuacct/cpu.stat"} {
		t.Run(dir, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { throttle(t, load(t, dir), file) }) })
	}
}

func throttle(t *testing.T, m fstest.MapFS, file string) {
	var before [2]uint64
	if err := need(m[file].Data, periods, before[:]); err != nil {
		t.Fatal(err)
	}
	s := must(t)(NewThrottling(ThrottlingConfig{FS: m}))
	if _, err := s.Read(t.Context()); !errors.Is(err, ErrNoValue) {
		t.Errorf("first reading: %v", err)
	}
	for i, step := range []struct {
		after              time.Duration
		periods, throttled uint64  // more than at first
		want               float64 // a quarter of the periods makes 1
	}{
		{100 * time.Millisecond, 10, 5, 2},
		{100 * time.Millisecond, 10, 5, 2}, // nothing ran
		{100 * time.Millisecond, 20, 5, 1},
		{1100 * time.Millisecond, 120, 10, 0.2}, // the earlier ones are out of the span
	} {
		time.Sleep(step.after)
		put(m, file, fmt.Sprintf("nr_periods %d\nnr_throttled %d\n", before[0]+step.periods, before[1]+step.throttled))
		if got := value(t, s); !near(got, step.want) {
			t.Errorf("step %d: %v, want %v", i, got, step.want)
		}
	}
	put(m, file, "nr_periods 1\nnr_throttled 0\n")
	if _, err := s.Read(t.Context()); !errors.Is(err, ErrNoValue) {
		t.Errorf("counters went backwards: %v", err)
	}
}

func TestPSI(t *testing.T) {
	tests := []struct {
		cfg  PSIConfig
		name string
		file string
		base int
	}{
		{PSIConfig{Resource: CPU}, "psi_cpu", "proc/pressure/cpu", 2811880414},
		{PSIConfig{Resource: IO}, "psi_io", "proc/pressure/io", 74250500},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := load(t, "v2")
				tt.cfg.FS, tt.cfg.Threshold = m, 0.2
				s := must(t)(NewPSI(tt.cfg))
				if s.Name() != tt.name {
					t.Errorf("name %q", s.Name())
				}
				if _, err := s.Read(t.Context()); !errors.Is(err, ErrNoValue) {
					t.Errorf("first reading: %v", err)
				}
				time.Sleep(500 * time.Millisecond)
				put(m, tt.file, fmt.Sprintf("some avg10=0.00 total=%d\nfull avg10=0.00 total=0\n", tt.base+200_000))
				if got := value(t, s); !near(got, 0.4/0.2) {
					t.Errorf("200 ms of 500 lost, 20 %% wanted: %v", got)
				}
			})
		})
	}
}

func TestUnsupported(t *testing.T) {
	empty := fstest.MapFS{}
	tests := map[string]Signal{
		"/proc/pressure/cpu":      must(t)(NewPSI(PSIConfig{Resource: CPU, FS: empty})),
		"/proc/self/cgroup":       must(t)(NewThrottling(ThrottlingConfig{FS: empty})),
		"neither a control group": must(t)(NewMemory(MemoryConfig{FS: empty})),
		"no_such_metric":          counted("x", "/no_such_metric", nil),
		"set GOMEMLIMIT":          must(t)(NewHeap(HeapConfig{})),
		"has a cpu controller":    must(t)(NewThrottling(ThrottlingConfig{FS: fstest.MapFS{"proc/self/cgroup": {Data: []byte("0::/\n")}}})),
	}
	for want, s := range tests {
		_, err := s.Read(t.Context())
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want unsupported: %q", s.Name(), err, want)
		}
	}
}

func TestGarbageFiles(t *testing.T) {
	garbage := []string{"", "\x00\xff", "some\n", "some total=\n", "some total=-1\n", "some avg10=1 total=1e9\n",
		"nr_periods x\nnr_throttled 0\n", "nr_periods\n", "99999999999999999999999\n", "-1\n", strings.Repeat("a", maxFile+1)}
	for i, text := range garbage {
		m := load(t, "v2")
		put(m, "proc/pressure/cpu", text)
		put(m, "sys/fs/cgroup/memory.current", text)
		for _, s := range []Signal{
			must(t)(NewPSI(PSIConfig{Resource: CPU, FS: m})), must(t)(NewMemory(MemoryConfig{FS: m})),
		} {
			if _, err := s.Read(t.Context()); err == nil || errors.Is(err, ErrNoValue) || errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("garbage %d: %s: %v", i, s.Name(), err)
			}
		}
		m = load(t, "v2")
		s := must(t)(NewThrottling(ThrottlingConfig{FS: m}))
		if _, err := s.Read(t.Context()); !errors.Is(err, ErrNoValue) {
			t.Fatal(err)
		}
		put(m, "sys/fs/cgroup/cpu.stat", text)
		if _, err := s.Read(t.Context()); err == nil || errors.Is(err, ErrNoValue) {
			t.Errorf("garbage %d: %s: %v", i, s.Name(), err)
		}
		m = load(t, "v2")
		put(m, "proc/self/cgroup", "no such\n"+text)
		if _, err := must(t)(NewMemory(MemoryConfig{FS: m})).Read(t.Context()); err == nil {
			t.Errorf("garbage %d in /proc/self/cgroup is taken", i)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, dir := range []string{"testdata/v1", "testdata/v2"} {
		err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := os.ReadFile(dir + "/" + name)
			f.Add(data)
			return err
		})
		if err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		root := fstest.MapFS{}
		for name := range load(t, "v2") {
			root[name] = &fstest.MapFile{Data: data}
		}
		for _, s := range []Signal{
			must(t)(NewPSI(PSIConfig{Resource: CPU, FS: root})),
			must(t)(NewMemory(MemoryConfig{FS: root})),
			must(t)(NewThrottling(ThrottlingConfig{FS: root})),
		} {
			for range 2 {
				if v, err := s.Read(context.Background()); !sane(v) || err != nil && v != 0 {
					t.Errorf("%s: %v, %v", s.Name(), v, err)
				}
			}
		}
		if p, err := parsePressure(data); err != nil && p != 0 {
			t.Errorf("%+v with %v", p, err)
		}
		members, err := parseMemberships(data)
		for _, m := range members {
			for _, mount := range mounts(m, "cpu") {
				for _, g := range accepted(mount, m.path, true, func(group) bool { return true }) {
					if !strings.HasPrefix(g.dir, "sys/fs/cgroup") {
						t.Errorf("%q leads to %q (%v)", data, g.dir, err)
					}
				}
			}
		}
	})
}
