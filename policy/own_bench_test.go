//go:build unix

package policy

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

// BenchmarkOwnKeys has keys with a limiter each at work, and reports the memory
// that each takes when it is new and when the windows of its controller have
// filled, and the processor time that it takes in a second in which nothing comes.
func BenchmarkOwnKeys(b *testing.B) {
	for _, controller := range Controllers() {
		if controller == "lag" || controller == "drain" || controller == "resource" {
			continue // one for all is what they are for
		}
		b.Run(controller, func(b *testing.B) {
			for b.Loop() {
				fresh, filled := ownBytes(b, controller, 200)
				b.ReportMetric(fresh, "new-B/key")
				b.ReportMetric(filled, "B/key")
				b.ReportMetric(ownIdle(b, controller, 1000), "idle-ns/key/s")
			}
		})
	}
}

func ownGate(t testing.TB, controller string, keys int, now func() time.Duration) *Gate {
	l := with(controller, LimitSpec{Limit: 20})
	return compile(t, Spec{Gates: map[string]GateSpec{"db": {Limit: &l, Each: &EachSpec{Own: true, MaxKeys: keys}}}}, Options{Now: now}).Gate("db")
}

// ownBytes returns what a key takes, new and after ten seconds of being busy.
func ownBytes(t testing.TB, controller string, keys int) (fresh, filled float64) {
	var now time.Duration
	g := ownGate(t, controller, keys, func() time.Duration { return now })
	names := make([]string, keys)
	for i := range names {
		names[i] = fmt.Sprintf("tenant-%07d", i)
	}
	bare := live()
	for _, name := range names {
		work(t, g, name, 1)
	}
	fresh = float64(live()-bare) / float64(keys)
	for range 1000 {
		for _, name := range names {
			work(t, g, name, 20)
		}
		now += 10 * time.Millisecond
		g.mechanism.Step()
	}
	filled = float64(live()-bare) / float64(keys)
	runtime.KeepAlive(names)
	return fresh, filled
}

// work admits n pieces of work of a key at once, and does them.
func work(t testing.TB, g *Gate, tenant string, n int) {
	var out [64]weir.Permit
	for i := range n {
		p, err := g.TryAdmit(weir.Work{Tenant: tenant})
		if err != nil {
			break // the limit has fallen
		}
		out[i] = p
	}
	for _, p := range out[:n] {
		p.Done(weir.OK)
	}
}

// ownIdle returns the processor time that a key takes in a second, in which nobody
// asks for anything.
func ownIdle(t testing.TB, controller string, keys int) float64 {
	g := ownGate(t, controller, keys, nil)
	for i := range keys {
		work(t, g, fmt.Sprint(i), 1)
	}
	runtime.GC()
	const pause = 2 * time.Second
	before := processor()
	<-time.After(pause)
	return float64(processor()-before) / float64(keys) / pause.Seconds()
}

func live() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// processor is the processor time of this process so far.
func processor() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
