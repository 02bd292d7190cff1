//go:build unix

package keyed_test

import (
	"fmt"
	"runtime"
	"runtime/metrics"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/keyed"
)

// BenchmarkMillionKeys has a million keys live and reports the heap they take, what
// of it the garbage collector has to read, the processor time that they add to a
// collection, and which share that is of one in a program whose own live heap is
// 64 MiB of pointers. Beside it the same for a map with a pointer to a counter for
// each key. The time is the process's own, so that other processes do not count.
func BenchmarkMillionKeys(b *testing.B) {
	const n = 1_000_000
	b.Run("gate", func(b *testing.B) {
		measure(b, n, func() any {
			g := weir.Must(keyed.New(keyed.Config{Limit: 100, MaxKeys: n}))
			for i := range n {
				pair(g, weir.Work{Tenant: fmt.Sprintf("tenant-%07d", i)})
			}
			if u := g.Usage(0); u.Keys != n || u.Evicted != 0 {
				b.Fatalf("%+v", u)
			}
			return g
		})
	})
	b.Run("map", func(b *testing.B) {
		type pool struct {
			held    int64
			waiting []weir.Permit
		}
		measure(b, n, func() any {
			m := make(map[string]*pool)
			for i := range n {
				m[fmt.Sprintf("tenant-%07d", i)] = &pool{held: 1, waiting: nil}
			}
			return m
		})
	})
}

func measure(b *testing.B, n int, build func() any) {
	for b.Loop() {
		bare := collect()
		it := build()
		full := collect()
		runtime.KeepAlive(it)
		it = linked(64 << 20)
		program := collect()
		runtime.KeepAlive(it)
		added := max(0, full.cpu-bare.cpu)
		b.ReportMetric(float64(full.live-bare.live)/float64(n), "B/key")
		b.ReportMetric(float64(full.scan-bare.scan)/float64(n), "scanned-B/key")
		b.ReportMetric(added.Seconds()*1e3, "gc-ms")
		b.ReportMetric(100*added.Seconds()/(added+program.cpu).Seconds(), "gc-%")
	}
}

// linked returns size bytes of live pointers.
func linked(size int) any {
	type node struct {
		next *node
		to   [11]*node
	}
	var first *node
	for ; size > 0; size -= 96 {
		first = &node{next: first}
		first.to[0] = first
	}
	return first
}

// heap is what a collection found, and what it took.
type heap struct {
	live, scan int64
	cpu        time.Duration
}

// collect returns the cheapest of many collections, a second of them and at least
// five, on one processor: collectors that wait for each other's work spend time too.
func collect() (h heap) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	runtime.GC() // sweep, and what is freed by finalizers
	h.cpu = time.Hour
	for n, start := 0, time.Now(); n < 5 || time.Since(start) < time.Second; n++ {
		before := spent()
		runtime.GC()
		h.cpu = min(h.cpu, spent()-before)
	}
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/heap:bytes"}}
	metrics.Read(samples)
	h.live, h.scan = int64(samples[0].Value.Uint64()), int64(samples[1].Value.Uint64())
	return h
}

// spent is the processor time of this process.
func spent() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
