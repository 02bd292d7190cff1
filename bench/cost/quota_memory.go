package cost

import (
	"context"
	"math"
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
	// GC is the share of the process's CPU time that collections take while each
	// decision about a million buckets makes a kilobyte of garbage; Without is the
	// same with one bucket. There are more collections then, as the heap is smaller.
	GC, Without float64
	// Tables is the share that the buckets themselves take of it: what one collection
	// takes longer with them than without, times how often there is one.
	Tables float64
}

// QuotaFootprint measures it, in about fifteen seconds.
func QuotaFootprint() (Footprint, error) {
	var f Footprint
	limits := []quota.Window{{Rate: 1e-3, Burst: 1e6}}
	keys := newKeyring(Million)
	store, err := f.fill(keys, limits)
	if err != nil {
		return f, err
	}
	var longer []float64
	for range 7 {
		with := collection()
		runtime.KeepAlive(store)
		store = nil
		longer = append(longer, with-collection())
		if store, err = f.fill(keys, limits); err != nil {
			return f, err
		}
	}
	return f, f.compare(store, keys, limits, middle(longer))
}

// fill makes a store of a million buckets, and notes what it takes on the way.
func (f *Footprint) fill(keys *keyring, limits []quota.Window) (*quota.Memory, error) {
	before := heapInUse()
	store, err := quota.NewMemory(quota.MemoryConfig{MaxKeys: Million})
	if err != nil {
		return nil, err
	}
	for i := range Million {
		if _, err := store.Decide(context.Background(), &quota.Request{Key: keys.at(i), Windows: limits, Cost: 1}); err != nil {
			return nil, err
		}
		if n := i + 1; n%(Million/20) == 0 {
			f.Bytes = float64(heapInUse()-before) / float64(n)
			f.WorstBytes = max(f.WorstBytes, f.Bytes)
		}
	}
	return store, nil
}

// compare measures the shares of collections, if each takes so many seconds longer
// because of the store.
func (f *Footprint) compare(store *quota.Memory, keys *keyring, limits []quota.Window, longer float64) error {
	small, err := quota.NewMemory(quota.MemoryConfig{})
	if err != nil {
		return err
	}
	one := newKeyring(1)
	var with, without, often []float64
	for range 9 {
		w, rate, err := collecting(store, keys, limits)
		if err != nil {
			return err
		}
		wo, _, err := collecting(small, one, limits)
		if err != nil {
			return err
		}
		with, without, often = append(with, w), append(without, wo), append(often, rate)
	}
	f.GC, f.Without, f.Tables = middle(with), middle(without), longer*middle(often)
	runtime.KeepAlive(store)
	return nil
}

func middle(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}

// collection returns the seconds of CPU time that one takes: the least of many, as
// whatever else runs on the machine only adds to it.
func collection() float64 {
	runtime.GC()
	least := math.Inf(1)
	for range 101 {
		begin := cpuTime()
		runtime.GC()
		least = min(least, (cpuTime() - begin).Seconds())
	}
	return least
}

func heapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

var garbage []byte

// collecting returns the share of CPU time that collections take for half a second
// of decisions, each with a kilobyte of garbage, as a request makes it, and how many
// there are in a second of CPU time.
func collecting(store *quota.Memory, keys *keyring, limits []quota.Window) (share, often float64, err error) {
	samples := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/gc/cycles/total:gc-cycles"}}
	runtime.GC() // which brings the figures up to date
	metrics.Read(samples)
	gc, cycles, used := samples[0].Value.Float64(), samples[1].Value.Uint64(), cpuTime()
	ctx := context.Background()
	t := &quota.Request{Windows: limits, Cost: 1}
	for begin := time.Now(); time.Since(begin) < 500*time.Millisecond; {
		err := keys.turn(1000, func(key string) error {
			t.Key = key
			garbage = append(garbage[:0:0], make([]byte, 1024)...)
			_, err := store.Decide(ctx, t)
			return err
		})
		if err != nil {
			return 0, 0, err
		}
	}
	runtime.GC()
	metrics.Read(samples)
	seconds := (cpuTime() - used).Seconds()
	return (samples[0].Value.Float64() - gc) / seconds, float64(samples[1].Value.Uint64()-cycles) / seconds, nil
}
