package weirhttp

import (
	"net/http"
	"runtime"
	"sync/atomic"
	"time"
)

// yielder lets other requests go first. Between its admission and its handler, a request yields the
// processor, so that requests that have arrived reach the gate.
//
// runtime.Gosched runs the goroutines that are ready. A request that has arrived is not ready until
// a thread has polled the network. While there is anything to run, the scheduler leaves that to a
// thread that polls every 10 ms. If handlers compute, arrivals are therefore seen 10 ms late, after
// all admitted requests have computed. So an admitted request waits for a poll of the network while
// requests are being refused, if handlers take long enough for it to pay. The poll costs 2 to 3 µs.
type yielder struct {
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

// yield lets other requests go first. It reports whether handlers are to be timed.
func (y *yielder) yield() (timed bool) {
	timed = y.underPressure()
	if timed && y.mean.Load() >= int64(longHandler) {
		pollNetwork()
	}
	runtime.Gosched()
	return timed
}

// serve runs the handler and measures its time. Concurrent updates may be lost: it
// is a mean of many.
func (y *yielder) serve(next http.Handler, w http.ResponseWriter, r *http.Request) {
	begin := time.Now()
	next.ServeHTTP(w, r)
	mean := y.mean.Load()
	y.mean.Store(mean + (int64(time.Since(begin))-mean)/8)
}

func (y *yielder) recordRefusal() { y.refused.Store(int64(time.Since(y.epoch)) + 1) }

// underPressure reports whether requests are being refused.
func (y *yielder) underPressure() bool {
	last := y.refused.Load()
	return last != 0 && time.Since(y.epoch)-time.Duration(last-1) < pressure
}
