package signal

import (
	"math"
	"runtime/metrics"
)

// HeapConfig configures [NewHeap]. The zero value of a field means its default.
type HeapConfig struct {
	// Threshold is the part of GOMEMLIMIT that may be in use for good. Range
	// (0, 1], default 0.8: then a collection has to run each time a quarter of
	// the live heap has been allocated, four times as often as by GOGC=100, and
	// beyond it collecting soon takes more processor time than the service.
	Threshold float64
}

func (c HeapConfig) withDefaults() HeapConfig {
	def(&c.Threshold, 0.8)
	return c
}

// NewHeap returns the signal "heap": memory that a collection cannot give back
// (the heap that the last one found alive, stacks, and the run time's own),
// over Threshold times GOMEMLIMIT. Garbage does not count: a process with a
// memory limit fills what it has. Unsupported while no limit is set.
//
// The live heap is known as of the last collection. With little garbage made
// that may be minutes ago; close to the limit, collections are frequent.
func NewHeap(cfg HeapConfig) (Signal, error) {
	cfg = cfg.withDefaults()
	var f faults
	f.share("Threshold", cfg.Threshold)
	if err := f.err("heap"); err != nil {
		return nil, err
	}
	return newHeap(cfg), nil
}

func newHeap(cfg HeapConfig) *source {
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
	}}
}
