package keyed_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/keyed"
	"github.com/weir-go/weir/limit"
)

func pair(g weir.Gate, w weir.Work) {
	p, err := g.Admit(context.Background(), w)
	if err == nil {
		p.Done(weir.OK)
	}
}

// names returns n keys like those of a service.
func names(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("tenant-%07d", i)
	}
	return keys
}

func TestNoAllocations(t *testing.T) {
	lag := weir.Must(control.NewLagMap(control.LagMapConfig{}))
	for name, cfg := range map[string]keyed.Config{
		"fixed": {Limit: 4}, "controller": {Controller: lag}, "evicting": {Limit: 4, MaxKeys: 8},
		"overrides": {Limit: 4, Overrides: map[string]keyed.Override{"tenant-0000001": {Limit: 9}}},
	} {
		g := weir.Must(keyed.New(cfg))
		keys, i := names(100), 0
		cycle := func() {
			w := weir.Work{Tenant: keys[i%len(keys)], User: "u", Priority: weir.High}
			i++
			p, err := g.TryAdmit(w)
			if err != nil {
				t.Fatal(err)
			}
			p.Sample(weir.OK)
			p.Done(weir.OK)
			pair(g, w)
		}
		for range 2000 { // until every table has its size
			cycle()
		}
		if n := testing.AllocsPerRun(1000, cycle); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
		g.Close()
	}
}

// counters is the least that a pool for each key can be: a map, a count, a lock.
// It forgets nobody, and its permits can be given back twice.
type counters struct {
	mu sync.Mutex
	of map[string]*int64
}

func (c *counters) pair(key string) {
	for _, d := range []int64{1, -1} {
		c.mu.Lock()
		n := c.of[key]
		if n == nil {
			n = new(int64)
			c.of[key] = n
		}
		*n += d
		c.mu.Unlock()
	}
}

// BenchmarkAdmit is one admission and its release. Its metrics are the time beside
// that of others, taken in turns of 10,000: x-limiter of a limiter with a fixed
// limit, x-controlled of one with a controller, which takes its lock as well, and
// x-map of a map of counters.
func BenchmarkAdmit(b *testing.B) {
	plain := weir.Must(limit.New(limit.Config{Limit: 100}))
	defer plain.Close()
	controlled := weir.Must(limit.New(limit.Config{Controller: weir.Must(control.NewLagMap(control.LagMapConfig{}))}))
	defer controlled.Close()
	for _, n := range []int{1, 1000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			g := weir.Must(keyed.New(keyed.Config{Limit: 100, MaxKeys: max(n, 1000)}))
			defer g.Close()
			keys := names(n)
			for _, k := range keys {
				pair(g, weir.Work{Tenant: k})
			}
			rand.Shuffle(n, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
			floor := &counters{of: make(map[string]*int64)}
			for _, k := range keys {
				floor.pair(k)
			}
			var spent [4]time.Duration
			b.ReportAllocs()
			b.ResetTimer()
			at := 0
			for done := 0; done < b.N; done += turn {
				for i, gate := range []weir.Gate{g, plain, controlled} {
					if i > 0 {
						b.StopTimer()
					}
					spent[i] += timeTurn(gate, keys, at)
					b.StartTimer()
				}
				b.StopTimer()
				start := time.Now()
				for i := range turn {
					floor.pair(keys[(at+i)%n])
				}
				spent[3] += time.Since(start)
				b.StartTimer()
				at += turn
			}
			b.ReportMetric(float64(spent[0])/float64(at), "ns/pair")
			b.ReportMetric(float64(spent[0])/float64(spent[1]), "x-limiter")
			b.ReportMetric(float64(spent[0])/float64(spent[2]), "x-controlled")
			b.ReportMetric(float64(spent[0])/float64(spent[3]), "x-map")
		})
	}
}

const turn = 10_000

// timeTurn times a turn. Of the gates only the keyed one reads what is in a key, so
// with many keys the memory's slowness is part of its time.
func timeTurn(g weir.Gate, keys []string, at int) time.Duration {
	start := time.Now()
	for i := range turn {
		pair(g, weir.Work{Tenant: keys[(at+i)%len(keys)]})
	}
	return time.Since(start)
}

func BenchmarkAdmitParallel(b *testing.B) {
	g := weir.Must(keyed.New(keyed.Config{Limit: 100}))
	defer g.Close()
	keys := names(1000)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := rand.IntN(len(keys)); pb.Next(); i++ {
			pair(g, weir.Work{Tenant: keys[i%len(keys)]})
		}
	})
}

// BenchmarkNewKeys is work of a key that was never seen before, at a gate that is
// full of idle ones: each evicts another.
func BenchmarkNewKeys(b *testing.B) {
	g := weir.Must(keyed.New(keyed.Config{Limit: 1}))
	defer g.Close()
	key := []byte("tenant-0000000000")
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		for j, n := len(key)-1, i; n > 0; j, n = j-1, n/10 {
			key[j] = byte('0' + n%10)
		}
		pair(g, weir.Work{Tenant: string(key)})
	}
}

func BenchmarkLongKey(b *testing.B) {
	g := weir.Must(keyed.New(keyed.Config{Limit: 1}))
	defer g.Close()
	w := weir.Work{Tenant: string(make([]byte, 10<<10))}
	b.ReportAllocs()
	for b.Loop() {
		pair(g, w)
	}
}

// BenchmarkHandOff is work that has to wait and is served when the one before it is
// done, told by a callback or to a goroutine that blocks; at a gate with pools, and
// at a limiter beside it.
func BenchmarkHandOff(b *testing.B) {
	for name, g := range map[string]weir.Arriver{
		"gate":    weir.Must(keyed.New(keyed.Config{Limit: 1})),
		"limiter": weir.Must(limit.New(limit.Config{Limit: 1})),
	} {
		b.Run(name+"/callback", func(b *testing.B) { handOn(b, g) })
		b.Run(name+"/blocked", func(b *testing.B) { passOn(b, g.(weir.Gate)) })
	}
}

func handOn(b *testing.B, g weir.Arriver) {
	var held weir.Permit
	wake := func(p weir.Permit, _ error) { held = p }
	held, _, _ = g.Arrive(weir.Work{}, wake)
	b.ReportAllocs()
	for b.Loop() {
		last := held
		if _, _, err := g.Arrive(weir.Work{}, wake); err != weir.ErrWaiting {
			b.Fatal(err)
		}
		last.Done(weir.OK)
	}
	held.Done(weir.OK)
}

// passOn has four goroutines pass one slot round: who has it lets the others come
// to wait for it.
func passOn(b *testing.B, g weir.Gate) {
	b.ReportAllocs()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range b.N / 4 {
				p, err := g.Admit(context.Background(), weir.Work{})
				if err != nil {
					b.Error(err)
					return
				}
				runtime.Gosched()
				p.Done(weir.OK)
			}
		})
	}
	all.Wait()
}
