package signal

import (
	"math"
	"runtime"
	"runtime/metrics"
	"time"

	"github.com/weir-go/weir/internal/fault"
)

// SchedLatencyConfig configures [NewSchedLatency]. The zero value of a field
// means its default.
type SchedLatencyConfig struct {
	// Wait is how long a goroutine may wait for a processor. Default 10 ms, the
	// scheduler's own time slice. What waits longer waits behind more than one slice. Go's
	// run time keeps a histogram of waits, and Wait is rounded up to its next bucket. That
	// is by 25 % at most, 10 ms to 10.5 ms. Range 10 µs to 10 s.
	Wait time.Duration `default:"10ms" min:"10us" max:"10s"`
	// Share of the goroutines that may wait longer. Range (0, 1], default 0.1. With
	// this share, shedding was measured with a service of 2 ms of processor time a
	// request. Under twice the load the service stayed at 0.9 to 1.0 of its
	// capacity (one run of each on two cores).
	Share float64 `default:"0.1" min:"0" max:"1"`
	// Over is the time to look back. Default 50 ms. The run time measures only one in
	// eight of the scheduler's decisions, so a shorter time has few of them. Range
	// 1 ms to 1 min.
	Over time.Duration `default:"50ms" min:"1ms" max:"1m"`
}

// NewSchedLatency returns the signal "sched_latency": the share of goroutines
// that waited longer than Wait for a processor, over Share. It reads the run
// time's histogram /sched/latencies:seconds, without allocating.
//
// It sees the queue that an in-flight count misses: requests that the process has not
// started yet. It does not see locks, I/O, a slow backend, or a garbage collection that
// no goroutine waits for. With fewer than ten measured goroutines the share is computed
// as if there were ten. So one late goroutine in an idle process is no overload.
func NewSchedLatency(cfg SchedLatencyConfig) (Signal, error) {
	if err := complete("sched_latency", &cfg); err != nil {
		return nil, err
	}
	sample := []metrics.Sample{{Name: "/sched/latencies:seconds"}}
	s := span{over: cfg.Over}
	return &source{name: "sched_latency", every: fastInterval, measure: func() (float64, error) {
		metrics.Read(sample)
		if sample[0].Value.Kind() != metrics.KindFloat64Histogram {
			return 0, unsupported("this Go has no %s", sample[0].Name)
		}
		all, late := waited(sample[0].Value.Float64Histogram(), cfg.Wait)
		g, err := s.next(time.Now(), all, late)
		if err != nil {
			return 0, err
		}
		return shareOf(g.b, g.a) / cfg.Share, nil
	}}, nil
}

// fewest is the least number of timed goroutines that a share is computed of.
const fewest = 10

// shareOf returns the share of the late among all timed goroutines.
func shareOf(late, all float64) float64 { return late / max(all, fewest) }

// waited counts all waits, and those in buckets that begin at wait or later.
func waited(h *metrics.Float64Histogram, wait time.Duration) (all, late uint64) {
	for i, n := range h.Counts {
		all += n
		if h.Buckets[i] >= wait.Seconds() {
			late += n
		}
	}
	return all, late
}

// RunnableConfig configures [NewRunnable]. The zero value of a field means its
// default.
type RunnableConfig struct {
	// PerProc is how many goroutines may wait for each processor (GOMAXPROCS).
	// Default 32, the threshold at which CockroachDB's admission control takes
	// slots away. At most 1,000,000.
	PerProc float64 `default:"32" min:"0" max:"1000000"`
}

// NewRunnable returns the signal "runnable": goroutines that wait for a
// processor at this moment, over PerProc times GOMAXPROCS. It needs the run
// time's metric /sched/goroutines/runnable:goroutines (Go 1.26). A single reading
// is noisy: smooth it with Watch.Smooth.
func NewRunnable(cfg RunnableConfig) (Signal, error) {
	if err := complete("runnable", &cfg); err != nil {
		return nil, err
	}
	return counted("runnable", "/sched/goroutines/runnable:goroutines", func() float64 {
		return cfg.PerProc * float64(runtime.GOMAXPROCS(0))
	}), nil
}

// GoroutinesConfig configures [NewGoroutines].
type GoroutinesConfig struct {
	// Max is how many there may be. It has no default: how many are too many
	// depends on what each of them uses.
	Max int64
}

// NewGoroutines returns the signal "goroutines": how many there are, over Max.
func NewGoroutines(cfg GoroutinesConfig) (Signal, error) {
	var f fault.List
	f.Check(cfg.Max >= 1, fault.Path{"Max"}, cfg.Max, "must be at least 1; it has no default")
	if err := f.Err("signal: goroutines"); err != nil {
		return nil, err
	}
	s := counted("goroutines", "/sched/goroutines:goroutines", func() float64 { return float64(cfg.Max) })
	s.every = slowInterval
	return s, nil
}

// counted is one of the run time's counts over the most that is wanted.
func counted(name, metric string, most func() float64) *source {
	sample := []metrics.Sample{{Name: metric}}
	return &source{name: name, every: fastInterval, measure: func() (float64, error) {
		metrics.Read(sample)
		if sample[0].Value.Kind() != metrics.KindUint64 {
			return 0, unsupported("this Go has no %s", metric)
		}
		return float64(sample[0].Value.Uint64()) / most(), nil
	}}
}

// HeapConfig configures [NewHeap]. The zero value of a field means its default.
type HeapConfig struct {
	// Threshold is the share of GOMEMLIMIT that live memory may take. Range (0, 1],
	// default 0.8. Then a collection runs each time a quarter of the live heap has
	// been allocated, four times as often as with GOGC=100. Beyond, collecting soon
	// takes more processor time than the service.
	Threshold float64 `default:"0.8" min:"0" max:"1"`
}

// NewHeap returns the signal "heap": memory that a collection cannot free, over
// Threshold times GOMEMLIMIT. Such memory is the live heap, stacks, and the run time's
// own. Garbage does not count: a process with a memory limit fills what it has.
// Unsupported while no limit is set.
//
// The live heap is known as of the last collection. With little garbage made
// that may be minutes ago; close to the limit, collections are frequent.
func NewHeap(cfg HeapConfig) (Signal, error) {
	if err := complete("heap", &cfg); err != nil {
		return nil, err
	}
	sample := []metrics.Sample{
		{Name: "/gc/gomemlimit:bytes"},
		{Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
	}
	return &source{name: "heap", every: slowInterval, measure: func() (float64, error) {
		metrics.Read(sample)
		var v [7]float64
		for i := range sample {
			if sample[i].Value.Kind() != metrics.KindUint64 {
				return 0, unsupported("this Go has no %s", sample[i].Name)
			}
			v[i] = float64(sample[i].Value.Uint64())
		}
		limit, live, total := v[0], v[1], v[2]
		if limit >= math.MaxInt64 {
			return 0, unsupported("no memory limit is set: set GOMEMLIMIT, or call debug.SetMemoryLimit")
		}
		other := max(0, total-v[3]-v[4]-v[5]-v[6])
		return (live + other) / (max(1, limit) * cfg.Threshold), nil
	}}, nil
}

// CPUConfig configures [NewCPU]. The zero value of a field means its default.
type CPUConfig struct {
	// Threshold is the share of GOMAXPROCS processors that may be busy. Range
	// (0, 1], default 0.85.
	Threshold float64 `default:"0.85" min:"0" max:"1"`
	// Over is the time to look back. Range 1 ms to 1 min, default 500 ms.
	Over time.Duration `default:"500ms" min:"1ms" max:"1m"`
}

// NewCPU returns the signal "cpu". It is the processor time that this process
// used, user and system, over Threshold times GOMAXPROCS times the time passed.
// Go 1.25 and later set GOMAXPROCS from a container's quota, so it is the share
// of what the process may use.
//
// It ends at 1/Threshold, so it cannot say how much is too much. It counts what the
// process got, so it is low where others took the processor. Prefer [NewSchedLatency];
// use this one to keep processor time free for something else.
func NewCPU(cfg CPUConfig) (Signal, error) {
	if err := complete("cpu", &cfg); err != nil {
		return nil, err
	}
	return newCPU(cfg, processTime), nil
}

// newCPU reads the processor time used so far with used.
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
