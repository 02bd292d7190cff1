package poolgate

import (
	"sync"
	"time"
)

// WorthALine is the shortest mean wait in a pool that is logged. A permit is back a moment before its connection, so
// waits of microseconds are normal.
const WorthALine = time.Millisecond

// Waits finds out how long work waits for a connection in a pool, from two counters of the pool that only grow. It
// is safe for concurrent use.
type Waits struct {
	mu       sync.Mutex
	count    int64
	duration time.Duration
	begun    int64 // between the last two calls
}

// Begin says what the counters are, for a pool that has been in use. Earlier waits do not count then.
func (w *Waits) Begin(count int64, duration time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count, w.duration, w.begun = count, duration, 0
}

// Since returns the mean of the waits that have ended since the last call. It is unknown without any. database/sql
// counts a wait when it begins, and its time when it ends. So the number of those that have ended is not known. Since
// takes the larger of two numbers: those that have begun since the last call, and since the one before.
func (w *Waits) Since(count int64, duration time.Duration) (mean time.Duration, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	begun, waited := count-w.count, duration-w.duration
	if waited == 0 && begun >= 0 { // nobody waited, or all still wait
		return 0, false
	}
	before := w.begun
	w.count, w.duration, w.begun = count, duration, begun
	if begun < 0 || waited < 0 { // another pool, or its counters started again from 0
		w.begun = 0
		return 0, false
	}
	return waited / time.Duration(max(1, begun, before)), true
}
