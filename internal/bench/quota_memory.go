package bench

import (
	"context"
	"runtime"
	"runtime/metrics"
	"slices"
	"time"

	"github.com/weir-go/weir/quota"
)

// Footprint is what a million buckets take beside their decisions.
type Footprint struct {
	// Bytes a bucket takes of the heap, the slack of growth included: the worst of
	// twenty looks on the way to a million, and in the end.
	WorstBytes, Bytes float64
	// GC is the share of the process's CPU time that collections take while somebody
	// else makes garbage, with the million buckets; Without is the same with one.
	GC, Without float64
}

// QuotaFootprint measures it, in about ten seconds.
func QuotaFootprint() (Footprint, error) {
	var f Footprint
	before := heapInUse()
	store, err := quota.NewMemory(quota.MemoryConfig{MaxKeys: Million})
	if err != nil {
		return f, err
	}
	limits := []quota.Limit{{Rate: 1e-3, Burst: 1e6}}
	keys := newKeyring(Million)
	before += int64(len(keys.text)) // which is no cost of the store
	ctx := context.Background()
	for i := range Million {
		if _, err := store.Take(ctx, &quota.Take{Key: keys.at(i), Limits: limits, Cost: 1}); err != nil {
			return f, err
		}
		if n := i + 1; n%(Million/20) == 0 {
			f.Bytes = float64(heapInUse()-before) / float64(n)
			f.WorstBytes = max(f.WorstBytes, f.Bytes)
		}
	}
	small, err := quota.NewMemory(quota.MemoryConfig{})
	if err != nil {
		return f, err
	}
	one := newKeyring(1)
	var with, without []float64
	for range 9 {
		w, err := collecting(store, keys, limits)
		if err != nil {
			return f, err
		}
		wo, err := collecting(small, one, limits)
		if err != nil {
			return f, err
		}
		with, without = append(with, w), append(without, wo)
	}
	runtime.KeepAlive(store)
	slices.Sort(with)
	slices.Sort(without)
	f.GC, f.Without = with[len(with)/2], without[len(without)/2]
	return f, nil
}

func heapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

var garbage []byte

// collecting returns the share of CPU time that collections take for half a second
// of decisions, each with a kilobyte of garbage, as a request makes it.
func collecting(store *quota.Memory, keys *keyring, limits []quota.Limit) (float64, error) {
	samples := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}}
	runtime.GC() // which brings the figures up to date
	metrics.Read(samples)
	gc, used := samples[0].Value.Float64(), cpuTime()
	ctx := context.Background()
	t := &quota.Take{Limits: limits, Cost: 1}
	for begin := time.Now(); time.Since(begin) < 500*time.Millisecond; {
		err := keys.turn(1000, func(key string) error {
			t.Key = key
			garbage = append(garbage[:0:0], make([]byte, 1024)...)
			_, err := store.Take(ctx, t)
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	runtime.GC()
	metrics.Read(samples)
	return (samples[0].Value.Float64() - gc) / (cpuTime() - used).Seconds(), nil
}
