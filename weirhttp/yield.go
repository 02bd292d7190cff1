package weirhttp

import (
	"net/http"
	"runtime"
	"sync/atomic"
	"time"
)

// turns lets others go first: between being admitted and running its handler, a
// request yields the processor so that those that have arrived reach the gate.
//
// runtime.Gosched lets the goroutines run that are ready. A request that has
// arrived is not, until somebody has polled the network; while there is anything
// to run the scheduler leaves that to a thread that looks every 10 ms. So where
// handlers compute, arrivals are seen 10 ms late, and only after all that were
// admitted before have computed. While requests are being refused, and handlers
// take long enough for it to pay, an admitted request therefore waits for a poll
// of the network. It costs 2 to 3 µs.
type turns struct {
	epoch   time.Time
	refused atomic.Int64 // when a request was last refused, since epoch, plus 1; 0: never
	mean    atomic.Int64 // of the time that handlers take, in ns; while under pressure
}

// pass returns when others have had their turn. It reports whether handlers are
// to be timed.
func (t *turns) pass() (timed bool) {
	timed = t.underPressure()
	if timed && t.mean.Load() >= int64(longHandler) {
		pollNetwork()
	}
	runtime.Gosched()
	return timed
}

// serve runs the handler and takes its time. Concurrent updates may be lost: it
// is a mean of many.
func (t *turns) serve(next http.Handler, w http.ResponseWriter, r *http.Request) {
	begin := time.Now()
	next.ServeHTTP(w, r)
	mean := t.mean.Load()
	t.mean.Store(mean + (int64(time.Since(begin))-mean)/8)
}

// refusal notes that a request was refused.
func (t *turns) refusal() { t.refused.Store(int64(time.Since(t.epoch)) + 1) }

// underPressure reports whether requests are being refused.
func (t *turns) underPressure() bool {
	last := t.refused.Load()
	return last != 0 && time.Since(t.epoch)-time.Duration(last-1) < pressure
}

// Under pressure is whoever has refused a request within the last second.
const pressure = time.Second

// longHandler is how long handlers take, on the mean, from where a poll pays.
const longHandler = 250 * time.Microsecond
