package weirpgx

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/signal"
)

// PoolWait is a signal of how long callers wait in a pool: the mean wait of those who found no idle
// connection since the last reading, over most. It is for pools that others use as well, past the
// gate. Whoever waits only for a new connection to be made counts too, so choose most above what that
// takes. While nobody waits the signal has no value. A most of 0 means 10 ms.
func PoolWait(pool *pgxpool.Pool, most time.Duration) signal.Signal {
	if most <= 0 {
		most = 10 * time.Millisecond
	}
	var count int64
	var waited time.Duration
	return signal.Func("pool_wait", func(context.Context) (float64, error) {
		s := pool.Stat()
		n, d := s.EmptyAcquireCount()-count, s.EmptyAcquireWaitTime()-waited
		count, waited = s.EmptyAcquireCount(), s.EmptyAcquireWaitTime()
		if n <= 0 {
			return 0, signal.ErrNoValue
		}
		return float64(max(0, d)) / float64(n) / float64(most), nil
	})
}
