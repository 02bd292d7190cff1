package weirpgx

import (
	"database/sql"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/signal"
	"github.com/weir-go/weir/weirsql"
)

// PoolWait is [weirsql.PoolWait] for a pool of pgx: a signal of how long work waits that finds no idle
// connection. It is for a pool that is also used past the gate. A wait for a new connection counts too, so
// choose a most above the time to connect.
func PoolWait(pool *pgxpool.Pool, most time.Duration) signal.Signal {
	return weirsql.PoolWait(counters{pool}, most)
}

// counters shows the counters of a pgx pool as database/sql does.
type counters struct{ pool *pgxpool.Pool }

// Stats returns what [weirsql.PoolWait] reads.
func (c counters) Stats() sql.DBStats {
	s := c.pool.Stat()
	return sql.DBStats{WaitCount: s.EmptyAcquireCount(), WaitDuration: s.EmptyAcquireWaitTime()}
}
