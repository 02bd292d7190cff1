package signal

import (
	"errors"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestConfigFaults(t *testing.T) {
	made := func(s Signal, err error) error {
		if (s == nil) == (err == nil) {
			t.Errorf("signal %v with error %v", s, err)
		}
		return err
	}
	tests := []struct {
		err  error
		want []string
	}{
		{made(NewSchedLatency(SchedLatencyConfig{Wait: -1, Share: 2, Over: time.Hour})), []string{"sched_latency", "Wait: is -1ns", "Share: is 2", "Over: is 1h0m0s"}},
		{made(NewRunnable(RunnableConfig{PerProc: math.NaN()})), []string{"runnable", "PerProc: NaN"}},
		{made(NewCPU(CPUConfig{Threshold: -1, Over: 1})), []string{"cpu", "Threshold: is -1", "Over: is 1ns"}},
		{made(NewThrottling(ThrottlingConfig{Threshold: 1.1, Over: -1})), []string{"cpu_throttling", "Threshold: is 1.1", "Over: is -1ns"}},
		{made(NewMemory(MemoryConfig{Threshold: math.Inf(1)})), []string{"memory", "Threshold: is +Inf"}},
		{made(NewPSI(PSIConfig{Resource: "disk", Threshold: 3, Over: -1})), []string{"psi", `Resource: "disk"`, "Threshold: is 3", "Over"}},
		{made(NewPSI(PSIConfig{})), []string{"psi", "Resource: missing"}},
		{made(NewHeap(HeapConfig{Threshold: 90})), []string{"heap", "Threshold: is 90"}},
		{made(NewGoroutines(GoroutinesConfig{})), []string{"goroutines", "Max: 0", "no default"}},
	}
	for _, tt := range tests {
		for _, want := range tt.want {
			if tt.err == nil || !strings.Contains(tt.err.Error(), want) {
				t.Errorf("%v: want it to say %q", tt.err, want)
			}
		}
	}
}

// Every signal works with its defaults on the machine that runs the tests, or
// says that it is not supported.
func TestDefaultsHere(t *testing.T) {
	all := Default()
	all = append(all,
		must(t)(NewRunnable(RunnableConfig{})), must(t)(NewCPU(CPUConfig{})), must(t)(NewGoroutines(GoroutinesConfig{Max: 1e6})),
		must(t)(NewPSI(PSIConfig{Resource: CPU})), must(t)(NewPSI(PSIConfig{Resource: Memory})))
	for _, s := range all {
		for range 3 {
			v, err := s.Read(t.Context())
			if err == nil && !sane(v) || err != nil && !errors.Is(err, ErrNoValue) && !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("%s: %v, %v", s.Name(), v, err)
			}
		}
	}
}

func TestFuncWithoutFunction(t *testing.T) {
	if _, err := Func("x", nil).Read(t.Context()); err == nil {
		t.Error("no error")
	}
}

func TestWaited(t *testing.T) {
	h := &metrics.Float64Histogram{
		Buckets: []float64{math.Inf(-1), 0, 0.008, 0.010, 0.012, math.Inf(1)},
		Counts:  []uint64{0, 100, 20, 3, 1},
	}
	for wait, late := range map[time.Duration]uint64{9 * time.Millisecond: 4, 10 * time.Millisecond: 4, 11 * time.Millisecond: 1, time.Second: 0} {
		if all, got := waited(h, wait); all != 124 || got != late {
			t.Errorf("%v: %d of %d, want %d of 124", wait, got, all, late)
		}
	}
}

// One late goroutine in an idle process is no overload: a share is of ten at least.
func TestShareOfFew(t *testing.T) {
	for _, tt := range []struct{ late, all, want float64 }{{1, 1, 0.1}, {0, 0, 0}, {5, 9, 0.5}, {5, 10, 0.5}, {5, 100, 0.05}} {
		if got := shareOf(tt.late, tt.all); got != tt.want {
			t.Errorf("%v late of %v: %v, want %v", tt.late, tt.all, got, tt.want)
		}
	}
}

// The histogram that this Go really has tells waits from no waits.
func TestWaitedHere(t *testing.T) {
	sample := []metrics.Sample{{Name: "/sched/latencies:seconds"}}
	metrics.Read(sample)
	h := sample[0].Value.Float64Histogram()
	for i := range h.Counts {
		h.Counts[i] = 1
	}
	all, late := waited(h, 10*time.Millisecond)
	edge := h.Buckets[len(h.Buckets)-1-int(late)]
	if late == 0 || late == all || edge < 0.010 || edge > 0.0125 {
		t.Errorf("%d of %d buckets are late, from %v s on", late, all, edge)
	}
}

func TestSpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := span{over: time.Second}
		start := time.Now()
		if _, err := s.next(start, 0, 0); !errors.Is(err, ErrNoValue) {
			t.Errorf("first: %v", err)
		}
		if _, err := s.next(start, 5, 0); !errors.Is(err, ErrNoValue) {
			t.Errorf("no time passed: %v", err)
		}
		for ms := uint64(1); ms <= 5000; ms++ {
			g, err := s.next(start.Add(time.Duration(ms)*time.Millisecond), ms, 2*ms)
			passed := float64(g.elapsed.Milliseconds())
			if err != nil || g.a != passed || g.b != 2*passed || ms > 1100 && (passed < 1000 || passed > 1050) {
				t.Fatalf("after %d ms: %+v, %v", ms, g, err)
			}
			if len(s.marks) > marksASpan+2 {
				t.Fatalf("%d marks kept", len(s.marks))
			}
		}
		if _, err := s.next(start, 9000, 90000); !errors.Is(err, ErrNoValue) {
			t.Errorf("the clock went backwards: %v", err)
		}
		if g, err := s.next(start.Add(time.Minute), 9001, 90001); err != nil || g.a != 1 || g.elapsed != time.Minute {
			t.Errorf("a minute without readings: %+v, %v", g, err)
		}
		for i, back := range [][2]uint64{{9000, 90001}, {9002, 90000}} { // the process has moved to another group
			if g, err := s.next(start.Add(time.Duration(i+2)*time.Minute), back[0], back[1]); !errors.Is(err, ErrNoValue) {
				t.Errorf("a counter went backwards: %+v, %v", g, err)
			}
		}
	})
}

func TestCPUShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var used time.Duration
		s := newCPU(CPUConfig{Threshold: 0.5, Over: time.Second}, func() (time.Duration, error) { return used, nil })
		if _, err := s.Read(t.Context()); !errors.Is(err, ErrNoValue) {
			t.Errorf("first reading: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
		used += time.Duration(runtime.GOMAXPROCS(0)) * 75 * time.Millisecond
		if got := value(t, s); !near(got, 1.5) {
			t.Errorf("75 %% used, 50 %% wanted: %v", got)
		}
	})
}

func TestProcessTime(t *testing.T) {
	before, err := processTime()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		now, err := processTime()
		if err != nil || now < before {
			t.Fatalf("%v after %v, %v", now, before, err)
		}
		if now > before {
			return // busy as this loop is, it used some
		}
		if time.Now().After(deadline) {
			t.Fatal("no processor time used in 10 s of work")
		}
	}
}

func TestHeapAgainstLimit(t *testing.T) {
	old := debug.SetMemoryLimit(256 << 20)
	defer debug.SetMemoryLimit(old)
	ballast := make([]byte, 64<<20)
	runtime.GC()
	got := value(t, must(t)(NewHeap(HeapConfig{Threshold: 0.5})))
	runtime.KeepAlive(ballast)
	if got < 64./128 || got > 110./128 {
		t.Errorf("64 MB alive, 128 wanted: %v", got)
	}
	runtime.GC()                                     // the ballast is garbage
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // and stays what follows
	garbage := make([]byte, 64<<20)
	runtime.KeepAlive(garbage)
	if got := value(t, must(t)(NewHeap(HeapConfig{Threshold: 0.5}))); got > 46./128 {
		t.Errorf("garbage counts: %v", got)
	}
}

func TestGoroutines(t *testing.T) {
	stop := make(chan struct{})
	defer close(stop)
	for range 100 {
		go func() { <-stop }()
	}
	if got := value(t, must(t)(NewGoroutines(GoroutinesConfig{Max: 100}))); got < 1 || got > 2 {
		t.Errorf("100 more than a few, 100 wanted: %v", got)
	}
}

func TestRunnableKnown(t *testing.T) {
	known := slices.ContainsFunc(metrics.All(), func(d metrics.Description) bool {
		return d.Name == "/sched/goroutines/runnable:goroutines"
	})
	_, err := must(t)(NewRunnable(RunnableConfig{})).Read(t.Context())
	if known != (err == nil) || err != nil && !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("this Go has the metric: %v; error %v", known, err)
	}
}

// What a reading costs here: go test -bench . ./signal
func BenchmarkRead(b *testing.B) {
	psi := func(r Resource) Signal {
		s, err := NewPSI(PSIConfig{Resource: r})
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	runnable, err1 := NewRunnable(RunnableConfig{})
	cpu, err2 := NewCPU(CPUConfig{})
	goroutines, err3 := NewGoroutines(GoroutinesConfig{Max: 1e6})
	if err := errors.Join(err1, err2, err3); err != nil {
		b.Fatal(err)
	}
	old := debug.SetMemoryLimit(1 << 40)
	defer debug.SetMemoryLimit(old)
	for _, s := range append(Default(), runnable, cpu, goroutines, psi(CPU), psi(IO), psi(Memory)) {
		b.Run(s.Name(), func(b *testing.B) {
			if _, err := s.Read(b.Context()); err != nil && !errors.Is(err, ErrNoValue) {
				b.Skip(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Read(b.Context()); err != nil && !errors.Is(err, ErrNoValue) {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestMain(m *testing.M) {
	debug.SetMemoryLimit(math.MaxInt64) // whatever GOMEMLIMIT says
	os.Exit(m.Run())
}
