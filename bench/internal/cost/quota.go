package cost

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	"golang.org/x/time/rate"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/bench/internal/rig"
	"github.com/weir-go/weir/quota"
)

// quotaGroups returns what is measured of quotas: decisions about one key that is
// always the same, and about random ones of so many keys.
func quotaGroups(keys int) []group {
	hot, many := hotKey(), manyKeys(keys)
	hot.Peers = append(hot.Peers, quotaPeers(0)...)
	many.Peers = append(many.Peers, quotaPeers(keys)...)
	return []group{hot, many}
}

// hotKey is a decision about a key that everybody asks for.
func hotKey() group {
	return group{
		Name:  "quota, a hot key",
		Floor: Subject{Name: "clock read and a compare-and-swap", New: ready(cellRate)},
		Peers: []Subject{
			{Name: "weir Memory.Decide, plenty left", Goal: goal{Ratio: 1.3}, New: weirDecide(quota.Window{Rate: 1, Burst: 1e14}, 0)},
			{Name: "weir Memory.Decide, always full again", New: weirDecide(quota.Window{Rate: 1e12, Burst: 1e12}, 0)},
			{Name: "weir Memory.Decide, refused", New: weirDecide(quota.Window{Rate: 1e-9, Burst: 1}, 0)},
			{Name: "weir Quota.Admit + Done, by user", New: ready(weirQuota)},
			{Name: "weir Memory.Decide, two windows", New: weirDecide(quota.Window{Rate: 1, Burst: 1e14}, 0, quota.Window{Rate: 2, Burst: 1e14})},
		},
	}
}

// million is the number of keys that the goals are about.
const million = 1_000_000

// manyKeys is a decision about one of many keys, most of which were not asked for
// lately.
func manyKeys(keys int) group {
	return group{
		Name:  fmt.Sprintf("quota, random keys of %d", keys),
		Floor: Subject{Name: "hash, bare open-addressed table of arrival times", New: ready(func() Loop { return bareTable(keys) })},
		Peers: []Subject{
			{Name: "weir Memory.Decide, plenty left", Goal: goal{Ratio: 1.5}, New: weirDecide(quota.Window{Rate: 1e-6, Burst: 1e6}, keys)},
			{Name: "weir Memory.Decide, always full again", New: weirDecide(quota.Window{Rate: 1e9, Burst: 1e6}, keys)},
			{Name: "weir Memory.Decide, refused", New: weirDecide(quota.Window{Rate: 1e-9, Burst: 1}, keys)},
		},
	}
}

// theOne is the key that is always the same. Neither side pays for finding it.
const theOne = "someone in particular"

var errOutOfTokens = errors.New("refused, and it should not be")

// cellRate is the least a rate limit can be: the generic cell rate algorithm on one
// word.
func cellRate() Loop {
	var arrival atomic.Int64
	epoch := time.Now()
	return func(n int) error {
		for range n {
			if !conform(&arrival, int64(time.Since(epoch))) {
				return errOutOfTokens
			}
		}
		return nil
	}
}

// conform is one decision: increment and tolerance are such that it lets through.
func conform(arrival *atomic.Int64, now int64) bool {
	const increment, tolerance = 1, int64(time.Hour)
	for {
		was := arrival.Load()
		if was-tolerance > now {
			return false
		}
		if arrival.CompareAndSwap(was, max(was, now)+increment) {
			return true
		}
	}
}

// keyring is random keys, side by side in the order in which they are asked for. The
// store is to miss the processor's caches, not the benchmark.
type keyring struct {
	text string
	next atomic.Uint32
}

const keyLen = 16

func newKeyring(n int) *keyring {
	r := rand.New(rand.NewPCG(1, 2))
	var b []byte
	for range n {
		b = binary.LittleEndian.AppendUint64(b, r.Uint64())
		b = binary.LittleEndian.AppendUint64(b, r.Uint64())
	}
	return &keyring{text: string(b)}
}

func (k *keyring) len() int { return len(k.text) / keyLen }

func (k *keyring) at(i int) string { return k.text[i*keyLen : (i+1)*keyLen] }

// turn calls do for the next n keys.
func (k *keyring) turn(n int, do func(key string) error) error {
	i := int(k.next.Add(uint32(n))) % k.len()
	for range n {
		if i++; i >= k.len() {
			i = 0
		}
		if err := do(k.at(i)); err != nil {
			return err
		}
	}
	return nil
}

// cell is a key's place in a bare table: 21 bytes a key with what is left free.
type cell struct{ id, arrival atomic.Int64 }

func bareTable(n int) Loop {
	keys := newKeyring(n)
	cells := make([]cell, n*4/3)
	seed := maphash.MakeSeed()
	find := func(key string) *cell {
		h := maphash.String(seed, key)
		id := int64(h | 1)
		for i, _ := bits.Mul64(h, uint64(len(cells))); ; {
			c := &cells[i]
			switch c.id.Load() {
			case id:
				return c
			case 0:
				if c.id.CompareAndSwap(0, id) {
					return c
				}
				continue
			}
			if i++; i == uint64(len(cells)) {
				i = 0
			}
		}
	}
	for i := range n {
		find(keys.at(i))
	}
	epoch := time.Now()
	return func(n int) error {
		return keys.turn(n, func(key string) error {
			if !conform(&find(key).arrival, int64(time.Since(epoch))) {
				return errOutOfTokens
			}
			return nil
		})
	}
}

// weirQuota is the whole gate: rule, key, bucket and permit.
func weirQuota() Loop {
	gate := weir.Must(quota.New(quota.Config{Name: "api", Rules: []quota.Rule{{User: quota.Every, Windows: []quota.Window{{Rate: 1, Burst: 1e14}}}}}))
	ctx := context.Background()
	w := weir.Work{User: "someone"}
	return func(n int) error {
		for range n {
			p, err := gate.Admit(ctx, w)
			if err != nil {
				return err
			}
			p.Done(weir.OK)
		}
		return nil
	}
}

// weirDecide is a decision about one token, of one key or of random ones of several. A burst
// of one is used up before, so that everything is refused.
func weirDecide(limit quota.Window, keys int, more ...quota.Window) func() (Loop, func()) {
	return ready(func() Loop {
		store := weir.Must(quota.NewMemory(quota.MemoryConfig{MaxKeys: max(keys, 1024)}))
		ctx := context.Background()
		limits := append([]quota.Window{limit}, more...)
		refused := limit.Burst == 1
		one := func(t *quota.Request) error {
			r, err := store.Decide(ctx, t)
			if err == nil && r.OK == refused {
				return errOutOfTokens
			}
			return err
		}
		if keys == 0 {
			_, _ = store.Decide(ctx, &quota.Request{Key: theOne, Windows: limits, Cost: 1})
			return func(n int) error {
				t := &quota.Request{Key: theOne, Windows: limits, Cost: 1}
				for range n {
					if r, err := store.Decide(ctx, t); err != nil || r.OK == refused {
						return errors.Join(errOutOfTokens, err)
					}
				}
				return nil
			}
		}
		ring := newKeyring(keys)
		for i := range 2 * keys { // a second time, as tables grow for buckets that are full again
			_, _ = store.Decide(ctx, &quota.Request{Key: ring.at(i % keys), Windows: limits, Cost: 1})
		}
		return func(n int) error {
			t := &quota.Request{Windows: limits, Cost: 1}
			return ring.turn(n, func(key string) error {
				t.Key = key
				return one(t)
			})
		}
	})
}

// decide is one decision about a key by somebody else's limiter. Rates and bursts
// are so high that nothing is refused.
type decide func(key string) error

// quotaPeers are the limiters of others that keep their state in memory. They are at
// their defaults but for bounds on keys. The number is that of keys; 0 means one.
func quotaPeers(keys int) []Subject {
	return []Subject{
		{Name: "golang.org/x/time/rate Allow, in a map with a mutex", New: asked(keys, xrate)},
		{Name: "throttled GCRA, memory", New: asked(keys, throttledGCRA)},
		{Name: "sethvargo/go-limiter, memory", New: asked(keys, goLimiter)},
	}
}

func asked(keys int, peer func(ctx context.Context) (decide, func())) func() (Loop, func()) {
	return func() (Loop, func()) {
		do, stop := peer(context.Background())
		if keys == 0 {
			_ = do(theOne) // what is wrong, the loop says
			return func(n int) error {
				for range n {
					if err := do(theOne); err != nil {
						return err
					}
				}
				return nil
			}, stop
		}
		ring := newKeyring(keys)
		for i := range ring.len() {
			_ = do(ring.at(i))
		}
		return func(n int) error { return ring.turn(n, do) }, stop
	}
}

// xrate is how programs keep x/time/rate by key.
func xrate(context.Context) (decide, func()) {
	var mu sync.Mutex
	limiters := map[string]*rate.Limiter{}
	return func(key string) error {
		mu.Lock()
		l := limiters[key]
		if l == nil {
			l = rate.NewLimiter(1e6, 1<<40)
			limiters[key] = l
		}
		mu.Unlock()
		if !l.Allow() {
			return errOutOfTokens
		}
		return nil
	}, func() {}
}

func throttledGCRA(ctx context.Context) (decide, func()) {
	store := weir.Must(memstore.NewCtx(0)) // no bound
	l := weir.Must(throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerSec(1e6), MaxBurst: 1 << 40}))
	l.SetMaxCASAttemptsLimit(1000)
	return func(key string) error {
		limited, _, err := l.RateLimitCtx(ctx, key, 1)
		if limited {
			return errOutOfTokens
		}
		return err
	}, func() {}
}

func goLimiter(ctx context.Context) (decide, func()) {
	store := weir.Must(memorystore.New(&memorystore.Config{Tokens: 1 << 40, Interval: time.Hour}))
	return func(key string) error {
		_, _, _, ok, err := store.Take(ctx, key)
		if err == nil && !ok {
			return errOutOfTokens
		}
		return err
	}, func() { _ = store.Close(ctx) }
}

// footprint is what a million buckets take beside their decisions.
type footprint struct {
	// Bytes a bucket takes of the heap, the slack of growth included. They are the worst
	// of twenty looks on the way to a million, and in the end.
	WorstBytes, Bytes float64
	// GC is the share of the process's CPU time that collections take while each decision
	// about a million buckets makes a kilobyte of garbage. Without is the same with one
	// bucket. There are more collections then, as the heap is smaller.
	GC, Without float64
	// Tables is the share that the buckets themselves take of it. It is how much longer
	// one collection takes with them than without, times how often there is one.
	Tables float64
}

// quotaFootprint measures it, in about fifteen seconds.
func quotaFootprint() (footprint, error) {
	var f footprint
	limits := []quota.Window{{Rate: 1e-3, Burst: 1e6}}
	keys := newKeyring(million)
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
	return f, f.compare(store, keys, limits, kit.SpreadOf(longer).Median)
}

// fill makes a store of a million buckets, and notes what it takes on the way.
func (f *footprint) fill(keys *keyring, limits []quota.Window) (*quota.Memory, error) {
	before := heapInUse()
	store, err := quota.NewMemory(quota.MemoryConfig{MaxKeys: million})
	if err != nil {
		return nil, err
	}
	for i := range million {
		if _, err := store.Decide(context.Background(), &quota.Request{Key: keys.at(i), Windows: limits, Cost: 1}); err != nil {
			return nil, err
		}
		if n := i + 1; n%(million/20) == 0 {
			f.Bytes = float64(heapInUse()-before) / float64(n)
			f.WorstBytes = max(f.WorstBytes, f.Bytes)
		}
	}
	return store, nil
}

// compare measures the shares of collections, if each takes so many seconds longer
// because of the store.
func (f *footprint) compare(store *quota.Memory, keys *keyring, limits []quota.Window, longer float64) error {
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
	f.GC, f.Without, f.Tables = kit.SpreadOf(with).Median, kit.SpreadOf(without).Median, longer*kit.SpreadOf(often).Median
	runtime.KeepAlive(store)
	return nil
}

// collection returns the seconds of CPU time that one takes: the least of many, as
// whatever else runs on the machine only adds to it.
func collection() float64 {
	runtime.GC()
	least := math.Inf(1)
	for range 101 {
		begin := rig.ProcessTime()
		runtime.GC()
		least = min(least, (rig.ProcessTime() - begin).Seconds())
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

// collecting decides for half a second. Each decision makes a kilobyte of garbage, as
// a request does. It returns the share of CPU time that collections take, and how many
// there are in a second of CPU time.
func collecting(store *quota.Memory, keys *keyring, limits []quota.Window) (share, often float64, err error) {
	samples := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/gc/cycles/total:gc-cycles"}}
	runtime.GC() // which brings the figures up to date
	metrics.Read(samples)
	gc, cycles, used := samples[0].Value.Float64(), samples[1].Value.Uint64(), rig.ProcessTime()
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
	seconds := (rig.ProcessTime() - used).Seconds()
	return (samples[0].Value.Float64() - gc) / seconds, float64(samples[1].Value.Uint64()-cycles) / seconds, nil
}
