// Package yield lets work that has arrived reach its gate before admitted work
// takes the processor. The middleware of HTTP and the interceptors of gRPC do so.
//
// runtime.Gosched runs the goroutines that are ready. A request that has arrived is not ready until
// a thread has polled the network. While there is anything to run, the scheduler leaves that to a
// thread that polls every 10 ms. If handlers compute, arrivals are therefore seen 10 ms late, after
// all admitted requests have computed. So an admitted request waits for a poll of the network if handlers
// take long enough for it to pay. It does so while requests are being refused or wait for the processor. Refusals
// alone are no sign: where arrivals are not seen, they wait outside until their clients leave. The poll costs 2 to 3 µs.
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
	pressed atomic.Int64 // when there was last a sign of overload, since epoch, plus 1; 0: never
	mean    atomic.Int64 // of the time that handlers take, in ns; while under pressure
}

const (
	// pressure is how long a sign of overload counts.
	pressure = time.Second
	// longHandler is the mean time of handlers that makes a poll pay. Whoever let others go first for as long
	// has waited for their handlers.
	longHandler = 250 * time.Microsecond
)

// New returns a Yielder that has seen no overload.
func New() *Yielder { return &Yielder{epoch: time.Now()} }

// Yield lets other requests go first. It reports whether the handler is to be timed, and
// [Yielder.HandlerTook] to be called.
func (y *Yielder) Yield() (timed bool) {
	began := time.Since(y.epoch)
	timed = y.underPressure(began)
	if timed && y.mean.Load() >= int64(longHandler) {
		pollNetwork()
	}
	runtime.Gosched()
	if now := time.Since(y.epoch); now-began >= longHandler {
		y.press(now)
		timed = true
	}
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
func (y *Yielder) Refused() { y.press(time.Since(y.epoch)) }

func (y *Yielder) press(now time.Duration) { y.pressed.Store(int64(now) + 1) }

// underPressure reports whether there was a sign of overload lately.
func (y *Yielder) underPressure(now time.Duration) bool {
	last := y.pressed.Load()
	return last != 0 && now-time.Duration(last-1) < pressure
}
