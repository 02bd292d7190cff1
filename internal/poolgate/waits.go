package poolgate

import (
	"context"
	"sync"
	"time"

	"github.com/weir-go/weir/signal"
)

// WorthALine is the shortest mean wait in a pool that is logged. A permit is back a moment before its connection, so
// waits of microseconds are normal.
const WorthALine = time.Millisecond

// Waits finds out how long work waits for a connection in a pool, from two counters of the pool that only grow: of
// waits, and of the time waited. It is safe for concurrent use. The zero Waits begins with a pool that is new.
type Waits struct {
	// Ended says that the pool counts a wait when it ends, as pgx does. database/sql counts it when it begins, and
	// its time when it ends. So it is not known there how many have ended.
	Ended bool

	mu     sync.Mutex
	count  int64
	waited time.Duration
	before int64 // how many were counted between the last two calls
}

// Since returns the mean of the waits that have ended since the last call. It is unknown without any. If the pool
// counts waits when they begin, Since takes the larger of two numbers: those counted since the last call, and since
// the one before.
func (w *Waits) Since(count int64, waited time.Duration) (mean time.Duration, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, d := count-w.count, waited-w.waited
	if d == 0 && n >= 0 { // nobody waited, or all still wait
		return 0, false
	}
	before := w.before
	w.count, w.waited, w.before = count, waited, n
	if n < 0 || d < 0 { // another pool, or its counters started again from 0
		w.before = 0
		return 0, false
	}
	if w.Ended {
		before = 0
	}
	return d / time.Duration(max(1, n, before)), true
}

// WaitSignal is a signal of the mean wait since the last reading, divided by most. It has no value while nobody waits.
// read reads the counters; ended is as in [Waits].
func WaitSignal(read func() (count int64, waited time.Duration), ended bool, most time.Duration) signal.Signal {
	w := &Waits{Ended: ended}
	w.count, w.waited = read() // earlier waits do not count
	return signal.Func("pool_wait", func(context.Context) (float64, error) {
		mean, known := w.Since(read())
		if !known {
			return 0, signal.ErrNoValue
		}
		return float64(mean) / float64(most), nil
	})
}
