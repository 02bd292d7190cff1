package policy

import (
	"context"
	"slices"
	"time"

	"github.com/weir-go/weir/signal"
)

// reading is what a policy knows of something that a signal can read.
type reading struct {
	word string
	keys []string // settings of SignalSpec that mean something to it
	fast bool     // worth reading every 10 ms
	raw  bool     // no pressure yet: what is read is divided by the threshold, if one is given
	make func(SignalSpec) (signal.Signal, error)
}

// readings are what signals can read.
var readings = append([]reading{
	{word: "sched_latency", keys: []string{"threshold", "wait", "over"}, fast: true, make: func(s SignalSpec) (signal.Signal, error) {
		return signal.NewSchedLatency(signal.SchedLatencyConfig{
			Wait: time.Duration(s.Wait), Share: s.Threshold, Over: time.Duration(s.Over),
		})
	}},
	{word: "runnable", keys: []string{"threshold"}, fast: true, make: func(s SignalSpec) (signal.Signal, error) {
		return signal.NewRunnable(signal.RunnableConfig{PerProc: s.Threshold})
	}},
	{word: "cpu", keys: []string{"threshold", "over"}, make: func(s SignalSpec) (signal.Signal, error) {
		return signal.NewCPU(signal.CPUConfig{Threshold: s.Threshold, Over: time.Duration(s.Over)})
	}},
	{word: "cpu_throttling", keys: []string{"threshold", "over"}, make: func(s SignalSpec) (signal.Signal, error) {
		return signal.NewThrottling(signal.ThrottlingConfig{Threshold: s.Threshold, Over: time.Duration(s.Over)})
	}},
	{word: "memory", keys: []string{"threshold"}, make: func(s SignalSpec) (signal.Signal, error) {
		return signal.NewMemory(signal.MemoryConfig{Threshold: s.Threshold})
	}},
	{word: "heap", keys: []string{"threshold"}, make: func(s SignalSpec) (signal.Signal, error) {
		return signal.NewHeap(signal.HeapConfig{Threshold: s.Threshold})
	}},
	{word: "goroutines", keys: []string{"threshold"}, make: func(s SignalSpec) (signal.Signal, error) {
		return signal.NewGoroutines(signal.GoroutinesConfig{Max: int64(min(s.Threshold, 1e15))})
	}},
	{word: "file", keys: []string{"threshold", "path", "field"}, raw: true, make: func(s SignalSpec) (signal.Signal, error) {
		return signal.Func("file", s.fromFile), nil
	}},
	{word: "http", keys: []string{"threshold", "url", "field"}, raw: true, make: func(s SignalSpec) (signal.Signal, error) {
		return signal.Func("http", s.fromHTTP), nil
	}},
}, stalls()...)

// stalls are the pressure stall signals: of the machine and of the control
// group, of what each stalls some or all of the time.
func stalls() []reading {
	var all []reading
	for _, cgroup := range []bool{false, true} {
		for _, full := range []bool{false, true} {
			for _, resource := range []signal.Resource{signal.CPU, signal.IO, signal.Memory} {
				if full && !cgroup && resource == signal.CPU {
					continue // the machine has no such figure
				}
				word := "psi_" + string(resource)
				if cgroup {
					word = "cgroup_" + word
				}
				if full {
					word += "_full"
				}
				all = append(all, reading{word: word, keys: []string{"threshold", "over"}, make: func(s SignalSpec) (signal.Signal, error) {
					return signal.NewPSI(signal.PSIConfig{
						Resource: resource, Cgroup: cgroup, Full: full, Threshold: s.Threshold, Over: time.Duration(s.Over),
					})
				}})
			}
		}
	}
	return all
}

// SignalKinds returns the words for SignalSpec.Read.
func SignalKinds() []string {
	words := make([]string, len(readings))
	for i, r := range readings {
		words[i] = r.word
	}
	return words
}

// Words for SignalSpec.Then, the default first.
var thens = []string{"ignore", "safe"}

// external is a reading of Options.Signals.
func external(name string, s signal.Signal) reading {
	return reading{word: name, keys: []string{"threshold"}, raw: true, make: func(SignalSpec) (signal.Signal, error) { return s, nil }}
}

// reads returns what the signal of that name reads, false if there is no such
// thing.
func (c *compiler) reads(name string) (reading, bool) {
	word := c.spec.Signals[name].Read
	if word == "" {
		word = name
	}
	if s, ok := c.opts.Signals[word]; ok && s != nil {
		return external(word, s), true
	}
	i := slices.IndexFunc(readings, func(r reading) bool { return r.word == word })
	if i < 0 {
		return reading{}, false
	}
	return readings[i], true
}

// watch returns how the signal of that name is polled.
func (r *reading) watch(name string, spec SignalSpec) (signal.Watch, error) {
	s, err := r.make(spec)
	if err != nil {
		return signal.Watch{}, err
	}
	w := signal.Watch{
		Interval: time.Duration(spec.Interval), Timeout: time.Duration(spec.Timeout),
		Hold: time.Duration(spec.Hold), Smooth: time.Duration(spec.Smooth),
		SafeValue: spec.SafeValue,
	}
	if w.Interval == 0 && r.fast {
		w.Interval = 10 * time.Millisecond
	}
	if spec.Then == "safe" {
		w.Then = signal.Safe
	}
	w.Signal = signal.Func(name, s.Read)
	if r.raw && spec.Threshold != 0 {
		w.Signal = signal.Func(name, func(ctx context.Context) (float64, error) {
			v, err := s.Read(ctx)
			return v / spec.Threshold, err
		})
	}
	return w, nil
}
