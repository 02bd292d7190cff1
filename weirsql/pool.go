package weirsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"log/slog"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/poolgate"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/signal"
)

// DefaultExempt is how many connections [Open] sets aside for exempt work, such as pings, if the pool is large
// enough. They are no more than a quarter of it.
const DefaultExempt = poolgate.DefaultExempt

// Open returns a DB whose pool and gate are made for each other, or an error that names every setting out of
// range. Close it when it is no longer needed.
//
// maxConns is the most connections that this process may open, at least 1. Take what the database allows,
// less what it keeps for its operators, and divide by the processes, those of a rolling update included.
//
// gate may have no more than a name: the limit then finds itself, from 1 up. gate.Exempt connections are for exempt work.
// 0 means [DefaultExempt], or a quarter of the pool if that is less. With a negative value there are none. The
// rest is the most that the limit may be. A gate.Limit above it is an error. A gate.Controller has bounds of
// its own: set its Max to fit.
//
// MaxIdleConns is MaxOpenConns: a connection that is closed after each use costs more than most statements.
// Idle connections go by SetConnMaxIdleTime.
func Open(c driver.Connector, maxConns int, gate limit.Config, opts ...Option) (*DB, error) {
	fitting, err := poolgate.Fit("weirsql", gate, int64(maxConns))
	if err != nil {
		return nil, err
	}
	l, err := limit.New(fitting)
	if err != nil {
		return nil, err
	}
	if gate.FindLeaks {
		opts = append(opts, WithFindLeaks())
	}
	db := New(c, l, opts...)
	db.limiter, db.config = l, gate
	db.setPool(maxConns)
	return db, nil
}

// SetMaxOpenConns is that of [database/sql.DB]. After [Open] it sets MaxIdleConns too, and moves the bound of the
// limit. What has been learned is kept. n is then at least 1. A Limit or an Exempt of your own that does
// not fit is lowered for as long. Nothing in use is closed before it is given back.
func (db *DB) SetMaxOpenConns(n int) {
	if db.limiter == nil {
		db.pool.SetMaxOpenConns(n)
		return
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	n = max(n, 1)
	gate := db.config
	gate.Exempt = min(poolgate.Exempt(gate, int64(n)), int64(n-1))
	gate.Limit = min(gate.Limit, int64(n)-max(gate.Exempt, 0))
	gate, err := poolgate.Fit("weirsql", gate, int64(n))
	if err == nil {
		err = db.limiter.Reconfigure(gate)
	}
	if err == nil { // or the gate is closed
		db.setPool(n)
	}
}

func (db *DB) setPool(n int) {
	db.pool.SetMaxOpenConns(n)
	db.pool.SetMaxIdleConns(n)
}

const (
	// lookEvery is how many calls pass between two looks at the pool.
	lookEvery = 64
	// worthALine is the mean wait in the pool from which it is worth a line. A permit is back a moment
	// before its connection is, so waits of microseconds are normal.
	worthALine = time.Millisecond
)

// look logs once if work has waited in the pool.
func (db *DB) look() {
	if db.calls.Add(1)%lookEvery != 0 || db.logged.Load() {
		return
	}
	s := db.pool.Stats()
	mean, known := db.waits.since(s)
	if !known || mean < worthALine || !db.logged.CompareAndSwap(false, true) {
		return
	}
	l := db.guard.logger
	if l == nil {
		l = slog.Default()
	}
	l.Warn("weirsql: work waits for a connection in the pool, at random and without a bound; "+
		"raise MaxOpenConns above the gate's limit, or lower the limit",
		"max_open_conns", s.MaxOpenConnections, "in_use", s.InUse, "waits", s.WaitCount, "mean_wait", mean)
}

// waits are the waits of a pool that have been seen.
type waits struct {
	mu       sync.Mutex
	count    int64
	duration time.Duration
}

// since returns the mean of the waits that have ended since the last call. It is unknown without any.
func (w *waits) since(s sql.DBStats) (mean time.Duration, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	count, duration := s.WaitCount-w.count, s.WaitDuration-w.duration
	if count < 0 || duration < 0 { // another pool, or counters that began again
		w.count, w.duration = s.WaitCount, s.WaitDuration
		return 0, false
	}
	if duration == 0 { // nobody waited, or nobody has stopped yet
		return 0, false
	}
	w.count, w.duration = s.WaitCount, s.WaitDuration
	return duration / time.Duration(max(1, count)), true
}

// DefaultPoolWait is the wait in a pool that counts as a pressure of 1 where nothing else is said.
const DefaultPoolWait = 10 * time.Millisecond

// PoolWait returns a signal of how long work waits for a connection in a pool. It is the mean since the last
// reading, over the most that is wanted, where 0 means [DefaultPoolWait]. It has no value while nobody waits. It
// is for pools that others share. db is a [DB], a [database/sql.DB], or whatever has such counters.
func PoolWait(db interface{ Stats() sql.DBStats }, most time.Duration) signal.Signal {
	if most <= 0 {
		most = DefaultPoolWait
	}
	w := new(waits)
	w.since(db.Stats()) // what was before does not count
	return signal.Func("pool_wait", func(context.Context) (float64, error) {
		mean, known := w.since(db.Stats())
		if !known {
			return 0, signal.ErrNoValue
		}
		return float64(mean) / float64(most), nil
	})
}
