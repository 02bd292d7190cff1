// Package yield lets work that has arrived reach its gate before admitted work
// takes the processor. The middleware of HTTP and the interceptors of gRPC do so.
//
// runtime.Gosched runs the goroutines that are ready. A request that has arrived is not ready until
// a thread has polled the network. While there is anything to run, the scheduler leaves that to a
// thread that polls every 10 ms. If handlers compute, arrivals are therefore seen 10 ms late, after
// all admitted requests have computed. So an admitted request waits for a poll of the network while
// requests are being refused, if handlers take long enough for it to pay. The poll costs 2 to 3 µs.
package yield

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Yielder lets other requests go first, between the admission of a request and its handler.
// Make one with [New].
type Yielder struct {
	epoch   time.Time
	refused atomic.Int64 // when a request was last refused, since epoch, plus 1; 0: never
	mean    atomic.Int64 // of the time that handlers take, in ns; while under pressure
}

const (
	// pressure is how long a refusal counts as a sign of overload.
	pressure = time.Second
	// longHandler is the mean time of handlers that makes a poll pay.
	longHandler = 250 * time.Microsecond
)

// New returns a Yielder that has seen no refusal.
func New() *Yielder { return &Yielder{epoch: time.Now()} }

// Yield lets other requests go first. It reports whether the handler is to be timed, and
// [Yielder.HandlerTook] to be called.
func (y *Yielder) Yield() (timed bool) {
	timed = y.underPressure()
	if timed && y.mean.Load() >= int64(longHandler) {
		pollNetwork()
	}
	runtime.Gosched()
	return timed
}

// HandlerTook counts the time that a handler took. Concurrent updates may be lost: it is a
// mean of many.
func (y *Yielder) HandlerTook(took time.Duration) {
	mean := y.mean.Load()
	y.mean.Store(mean + (int64(took)-mean)/8)
}

// Mean returns the moving mean of the times that were counted.
func (y *Yielder) Mean() time.Duration { return time.Duration(y.mean.Load()) }

// Refused says that a request was refused just now.
func (y *Yielder) Refused() { y.refused.Store(int64(time.Since(y.epoch)) + 1) }

// underPressure reports whether requests are being refused.
func (y *Yielder) underPressure() bool {
	last := y.refused.Load()
	return last != 0 && time.Since(y.epoch)-time.Duration(last-1) < pressure
}
