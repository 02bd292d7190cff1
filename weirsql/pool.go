package weirsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"log/slog"
	"sync"
	"time"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/signal"
)

// Config configures [Open]. The zero value of a field means its default.
type Config struct {
	// MaxOpenConns is the most connections that this process may open. Take what the database allows, less
	// what it keeps for its operators, and divide by the processes, those of a rolling update included.
	// Default [DefaultMaxOpenConns].
	MaxOpenConns int
	// Gate is the gate. It may be left empty: the limit then finds itself, and never exceeds MaxOpenConns less
	// Gate.Exempt. A Limit of your own must fit as well. A Controller of your own has its own bounds, so set
	// its Max. Gate.Exempt is [DefaultExempt] if it is 0.
	Gate limit.Config
}

const (
	// DefaultMaxOpenConns is the size of a pool where nothing is said. One process fits into what
	// PostgreSQL allows without settings, which is 97.
	DefaultMaxOpenConns = 64
	// DefaultExempt is how many of the connections are for exempt work, such as pings.
	DefaultExempt = 8
)

// Open returns a DB whose pool and gate are made for each other, or an error that names every setting out of
// range. Close it when it is no longer needed.
//
// MaxIdleConns is MaxOpenConns: a connection that is closed after each use costs more than most statements.
// Idle connections go by SetConnMaxIdleTime.
func Open(c driver.Connector, cfg Config, opts ...Option) (*DB, error) {
	full, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	l, err := limit.New(full.Gate)
	if err != nil {
		return nil, err
	}
	if full.Gate.FindLeaks {
		opts = append(opts, WithFindLeaks())
	}
	db := New(c, l, opts...)
	db.limiter, db.config = l, cfg
	db.setPool(full.MaxOpenConns)
	return db, nil
}

// complete returns cfg with all defaults, or an error that names every setting out of range.
func (cfg Config) complete() (Config, error) {
	if cfg.MaxOpenConns == 0 {
		cfg.MaxOpenConns = DefaultMaxOpenConns
	}
	if cfg.Gate.Exempt == 0 {
		cfg.Gate.Exempt = min(DefaultExempt, int64(max(cfg.MaxOpenConns-1, 0)))
	}
	if cfg.Gate.Exempt == 0 {
		cfg.Gate.Exempt = -1 // a single connection has no place for exempt work
	}
	places := int64(cfg.MaxOpenConns) - max(cfg.Gate.Exempt, 0)
	var f fault.List
	f.Check(cfg.MaxOpenConns > 0, fault.Path{"MaxOpenConns"}, cfg.MaxOpenConns, "must be at least 1")
	if cfg.MaxOpenConns > 0 {
		f.Check(places > 0, fault.Path{"Gate", "Exempt"}, cfg.Gate.Exempt, "must be below MaxOpenConns, which is %d", cfg.MaxOpenConns)
	}
	if places > 0 {
		f.Check(cfg.Gate.Limit <= places, fault.Path{"Gate", "Limit"}, cfg.Gate.Limit,
			"must be at most MaxOpenConns less Gate.Exempt, which is %d", places)
	}
	if err := f.Err("weirsql"); err != nil {
		return cfg, err
	}
	if cfg.Gate.Controller == nil && cfg.Gate.Limit == 0 {
		belief, err := control.NewBelief(control.BeliefConfig{Min: min(2, places), Max: places})
		if err != nil {
			return cfg, err
		}
		cfg.Gate.Controller = belief
	}
	return cfg, nil
}

// SetMaxOpenConns is that of [database/sql.DB]. After [Open] it sets MaxIdleConns too, and moves the bound of the
// limit. What has been learned is kept. n is then at least 1, and a Limit or an Exempt of your own that does
// not fit any more is lowered. Nothing in use is closed before it is given back.
func (db *DB) SetMaxOpenConns(n int) {
	if db.limiter == nil {
		db.pool.SetMaxOpenConns(n)
		return
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	cfg := db.config
	cfg.MaxOpenConns = max(n, 1)
	cfg.Gate.Exempt = min(cfg.Gate.Exempt, int64(cfg.MaxOpenConns-1))
	if cfg.Gate.Limit > 0 {
		cfg.Gate.Limit = max(1, min(cfg.Gate.Limit, int64(cfg.MaxOpenConns)-max(cfg.exempt(), 0)))
	}
	full, err := cfg.complete()
	if err == nil {
		err = db.limiter.Reconfigure(full.Gate)
	}
	if err != nil {
		return // the gate is closed
	}
	db.setPool(full.MaxOpenConns)
}

func (cfg Config) exempt() int64 {
	if cfg.Gate.Exempt == 0 {
		return min(DefaultExempt, int64(cfg.MaxOpenConns-1))
	}
	return cfg.Gate.Exempt
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

// PoolWait returns a signal: how long work waits for a connection in a pool, in the mean since the last reading,
// over the most that is wanted. 0 for that means [DefaultPoolWait]. It has no value while nobody waits. It is
// for pools that others share. db is a [DB], a [database/sql.DB], or whatever has such counters.
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
