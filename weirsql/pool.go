package weirsql

import (
	"database/sql"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/weir-go/weir/internal/poolgate"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/signal"
)

// DefaultExempt is how many connections [Open] sets aside for exempt work, such as pings. In a small pool it
// sets aside a quarter.
const DefaultExempt = poolgate.DefaultExempt

// Open returns a DB whose pool and gate are made for each other, or an error that names every setting out of
// range. Close it when it is no longer needed.
//
// maxConns is the most connections that this process may open, at least 1. Take the connections that the
// database allows, less those for its operators. Divide by the number of processes, those of a rolling update
// included.
//
// gate needs a name only: the limit then finds itself, from 1 up. gate.Exempt is how many connections are for
// exempt work. 0 means [DefaultExempt], or a quarter of the pool if that is less. A negative value means none.
// The limit may be at most the rest. A gate.Limit above the rest is an error. A gate.Controller has bounds of
// its own: set its Max to fit.
//
// MaxIdleConns is MaxOpenConns: a connection that is closed after each use costs more than most statements.
// SetConnMaxIdleTime closes idle connections.
func Open(c driver.Connector, maxConns int, gate limit.Config, opts ...Option) (*DB, error) {
	if c == nil {
		return nil, errNoConnector
	}
	guard := newGuard(nil, opts)
	if err := guard.budget.Fault(); err != nil {
		return nil, fmt.Errorf("weirsql: %w", err)
	}
	fitting, err := poolgate.Fit("weirsql", gate, int64(maxConns))
	if err != nil {
		return nil, err
	}
	l, err := poolgate.NewLimiter("weirsql", fitting, int64(maxConns))
	if err != nil {
		return nil, err
	}
	guard.gate, guard.leaks = l, guard.leaks || gate.FindLeaks
	db := newDB(c, guard)
	db.limiter, db.config, db.fitted = l, gate, fitting.Limit
	db.setPool(maxConns)
	return db, nil
}

// SetMaxOpenConns is that of [database/sql.DB]. After [Open] it also sets MaxIdleConns, and moves the ceiling
// of the limit. The controller keeps what it has learned. An n below 1 counts as 1. If your Limit or Exempt does
// not fit, a lower value holds until n is large enough. A connection in use is closed only when it is given
// back. If calls overlap, as from a hook of the gate, one of them carries out the last size.
//
// A Controller of your own keeps its own bounds, whatever n is. The log says once if its limit is above n. A fixed
// limit that was set at the limiter since Open takes the place of your Limit, until the limiter has a controller
// again. All other settings go back to those of Open, so what [limit.Limiter.Reconfigure] has changed is lost.
func (db *DB) SetMaxOpenConns(n int) {
	if db.limiter == nil {
		db.pool.SetMaxOpenConns(n)
		return
	}
	db.conns.Store(int64(max(n, 1)))
	for done := int64(0); done != db.conns.Load() && db.resizing.CompareAndSwap(false, true); {
		done = db.conns.Load()
		func() {
			defer db.resizing.Store(false) // also if a hook panics
			db.resize(done)
		}()
	}
}

func (db *DB) resize(n int64) {
	switch s := db.limiter.Snapshot(); {
	case s.Controller != "fixed":
		db.set = 0
	case s.Limit != db.fitted: // somebody has set it since
		db.set = s.Limit
	}
	gate := db.config
	if db.set > 0 {
		gate.Limit, gate.Controller = db.set, nil
	}
	gate.Exempt = min(poolgate.Exempt(gate, n), n-1)
	gate.Limit = min(gate.Limit, n-max(gate.Exempt, 0))
	gate, err := poolgate.Fit("weirsql", gate, n)
	if err != nil {
		return
	}
	before := db.pool.Stats().MaxOpenConnections
	db.setPool(max(before, int(n)))          // first, because database/sql wakes nobody when a pool grows
	if db.limiter.Reconfigure(gate) != nil { // the gate is closed
		db.setPool(before)
		return
	}
	db.fitted = gate.Limit
	db.setPool(int(n))
	if l := db.limiter.Snapshot().Limit; l > n && db.unbounded.CompareAndSwap(false, true) {
		db.guard.log().Warn("weirsql: the gate's Controller admits more work than the pool has connections. "+
			"Give it a Max that fits", "limit", l, "max_open_conns", n)
	}
}

func (db *DB) setPool(n int) {
	db.pool.SetMaxOpenConns(n)
	db.pool.SetMaxIdleConns(n)
}

// lookEvery is the number of calls between two looks at the pool.
const lookEvery = 64

// look logs once if work has waited in the pool.
func (db *DB) look() {
	if db.calls.Add(1)%lookEvery != 0 || db.logged.Load() {
		return
	}
	s := db.pool.Stats()
	mean, known := db.waits.Since(s.WaitCount, s.WaitDuration)
	if !known || mean < poolgate.WorthALine || !db.logged.CompareAndSwap(false, true) {
		return
	}
	db.guard.log().Warn("weirsql: work waits for a connection in the pool, where no order or bound holds. "+
		"Raise MaxOpenConns above the gate's limit, or lower the limit",
		"max_open_conns", s.MaxOpenConnections, "in_use", s.InUse, "waits", s.WaitCount, "mean_wait", mean)
}

// DefaultPoolWait is the default wait in a pool that counts as a pressure of 1.
const DefaultPoolWait = 10 * time.Millisecond

// PoolWait returns a signal of how long work waits for a connection in a pool. The signal is the mean since the
// last reading, divided by most. A most of 0 means [DefaultPoolWait]. It has no value while nobody waits. It is
// for a pool that is also used past the gate. db is a [DB], a [database/sql.DB], or another type with such
// counters.
func PoolWait(db interface{ Stats() sql.DBStats }, most time.Duration) signal.Signal {
	if most <= 0 {
		most = DefaultPoolWait
	}
	return poolgate.WaitSignal(func() (int64, time.Duration) {
		s := db.Stats()
		return s.WaitCount, s.WaitDuration
	}, false, most)
}
