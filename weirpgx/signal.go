package weirpgx

import (
	"database/sql"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/signal"
	"github.com/weir-go/weir/weirsql"
)

// PoolWait is [weirsql.PoolWait] for a pool of pgx: a signal of how long those waited who found no idle
// connection. It is for pools that others use as well, past the gate. Whoever waits only for a new
// connection to be made counts too, so choose most above what that takes.
func PoolWait(pool *pgxpool.Pool, most time.Duration) signal.Signal {
	return weirsql.PoolWait(counters{pool}, most)
}

// counters are those of a pool as database/sql has them.
type counters struct{ pool *pgxpool.Pool }

// Stats returns what [weirsql.PoolWait] reads.
func (c counters) Stats() sql.DBStats {
	s := c.pool.Stat()
	return sql.DBStats{WaitCount: s.EmptyAcquireCount(), WaitDuration: s.EmptyAcquireWaitTime()}
}
