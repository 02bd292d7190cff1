//go:build integration

package weirpgx

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/weirsql"
)

// chaosWorkers is how many goroutines use a pool at random.
const chaosWorkers = 12

// inChaos calls fn again and again from each worker, with a context that may end at any moment, while connections are killed.
// With WEIR_LONG=1 it does so for longer.
func inChaos(t *testing.T, fn func(ctx context.Context, random *rand.Rand)) {
	t.Helper()
	rounds, seed := 150, uint64(1)
	if os.Getenv("WEIR_LONG") != "" {
		rounds, seed = 3000, rand.Uint64()
	}
	t.Log("seed", seed)
	var workers, killer sync.WaitGroup
	ended := make(chan struct{})
	for i := range chaosWorkers {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		workers.Go(func() {
			for range rounds {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(40_000))*time.Microsecond)
				if random.IntN(2) == 0 {
					cancel()
					ctx, cancel = context.WithCancel(t.Context())
				}
				fn(ctx, random)
				cancel()
			}
		})
	}
	killer.Go(func() {
		again := time.NewTicker(100 * time.Millisecond)
		defer again.Stop()
		for {
			select {
			case <-again.C:
				killAll(t)
			case <-ended:
				return
			}
		}
	})
	workers.Wait()
	close(ended)
	killer.Wait()
}

var errOwn = errors.New("the caller's own")

// Whatever is done with a pool, in the end each slot is free and each connection is back.
func TestChaosOfThePool(t *testing.T) {
	table(t, "chaos")
	p := open(t, config(t, 6), limit.Config{Limit: 4, Queue: limit.Queue{Len: 6, MaxWait: 20 * time.Millisecond}},
		WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
	do := []func(ctx context.Context, random *rand.Rand){
		func(ctx context.Context, _ *rand.Rand) { _, _ = p.Exec(ctx, "select pg_sleep(0.001)") },
		func(ctx context.Context, _ *rand.Rand) { _, _ = p.Exec(ctx, "select 1/0") },
		func(ctx context.Context, random *rand.Rand) {
			rows, err := p.Query(ctx, "select generate_series(1, $1::int)", random.IntN(5000))
			if err != nil {
				return
			}
			for n := random.IntN(100); n > 0 && rows.Next(); n-- {
				_, _ = rows.Values()
			}
			rows.Close()
		},
		func(ctx context.Context, _ *rand.Rand) { _ = p.QueryRow(ctx, "select 'x'").Scan(new(int)) },
		func(ctx context.Context, random *rand.Rand) {
			b := queued("select 1")
			b.Queue("select pg_sleep(0.002)")
			b.Queue("select 1/0")
			r := p.SendBatch(ctx, b)
			for range random.IntN(4) {
				_, _ = r.Exec()
			}
			_ = r.Close()
		},
		func(ctx context.Context, random *rand.Rand) {
			_, _ = p.CopyFrom(ctx, pgx.Identifier{"chaos"}, []string{"id", "v"}, pgx.CopyFromFunc(func() ([]any, error) {
				if random.IntN(10) == 0 {
					return nil, errOwn
				}
				return []any{random.Int32(), random.Int32()}, nil
			}))
		},
		func(ctx context.Context, random *rand.Rand) {
			tx, err := p.Begin(ctx)
			if err != nil {
				return
			}
			defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
			_, _ = tx.Exec(ctx, "insert into chaos values ($1, 1)", random.Int32())
			if random.IntN(2) == 0 {
				if inner, err := tx.Begin(ctx); err == nil {
					_, _ = inner.Exec(ctx, "select 1/0")
					_ = inner.Rollback(ctx)
				}
			}
			if random.IntN(3) > 0 {
				_ = tx.Commit(ctx)
			}
		},
		func(ctx context.Context, random *rand.Rand) {
			_ = p.InTx(ctx, pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
				_ = p.QueryRow(ctx, "select 1").Scan(new(int)) // within the same slot
				if random.IntN(3) == 0 {
					return errOwn
				}
				return nil
			})
		},
		func(ctx context.Context, random *rand.Rand) {
			c, err := p.Acquire(ctx)
			if err != nil {
				return
			}
			_, _ = c.Exec(ctx, "select pg_sleep(0.001)")
			if random.IntN(5) == 0 {
				_ = c.Conn().Close(ctx)
			}
			c.Release()
		},
		func(ctx context.Context, _ *rand.Rand) {
			_ = p.InConn(ctx, func(ctx context.Context, c *pgxpool.Conn) error { return c.Ping(ctx) })
		},
	}
	inChaos(t, func(ctx context.Context, random *rand.Rand) { do[random.IntN(len(do))](ctx, random) })
	eventually(t, "all slots are free", func() bool { return inFlight(p) == 0 })
	eventually(t, "all connections are back", func() bool { return p.Unguarded().Stat().AcquiredConns() == 0 })
	eventually(t, "the pool works, without the connections that were killed last", func() bool {
		_, err := p.Exec(t.Context(), "select 1")
		return err == nil
	})
}

// The same for weirsql above pgx's stdlib.
func TestChaosOfSQL(t *testing.T) {
	table(t, "chaos_sql")
	db := openSQL(t, 6, limit.Config{Limit: 4, Queue: limit.Queue{Len: 6, MaxWait: 20 * time.Millisecond}},
		weirsql.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
	prepared, err := db.PrepareContext(t.Context(), "select $1::int")
	if err != nil {
		t.Fatal(err)
	}
	defer prepared.Close()
	do := []func(ctx context.Context, random *rand.Rand){
		func(ctx context.Context, _ *rand.Rand) { _, _ = db.ExecContext(ctx, "select pg_sleep(0.001)") },
		func(ctx context.Context, _ *rand.Rand) { _, _ = db.ExecContext(ctx, "select 1/0") },
		func(ctx context.Context, random *rand.Rand) {
			rows, err := db.QueryContext(ctx, "select generate_series(1, $1::int)", random.IntN(5000))
			if err != nil {
				return
			}
			defer rows.Close()
			for n := random.IntN(100); n > 0 && rows.Next(); n-- {
				_ = rows.Scan(new(int))
			}
		},
		func(ctx context.Context, _ *rand.Rand) { _ = db.QueryRowContext(ctx, "select 'x'").Scan(new(int)) },
		func(ctx context.Context, _ *rand.Rand) { _ = prepared.QueryRowContext(ctx, 1).Scan(new(int)) },
		func(ctx context.Context, _ *rand.Rand) {
			s, err := db.PrepareContext(ctx, "select pg_sleep(0.001)")
			if err != nil {
				return
			}
			_, _ = s.ExecContext(ctx)
			_ = s.Close()
		},
		func(ctx context.Context, random *rand.Rand) {
			tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: random.IntN(2) == 0})
			if err != nil {
				return
			}
			defer func() { _ = tx.Rollback() }()
			_, _ = tx.ExecContext(ctx, "insert into chaos_sql values ($1, 1)", random.Int32())
			if random.IntN(3) > 0 {
				_ = tx.Commit()
			}
		},
		func(ctx context.Context, random *rand.Rand) {
			_ = db.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
				_, _ = tx.ExecContext(ctx, "select 1")
				if random.IntN(3) == 0 {
					return errOwn
				}
				return nil
			})
		},
		func(ctx context.Context, random *rand.Rand) {
			c, err := db.Conn(ctx)
			if err != nil {
				return
			}
			defer c.Close()
			_ = c.PingContext(ctx)
			_ = c.Raw(func(any) error {
				if random.IntN(2) == 0 {
					return errOwn
				}
				return nil
			})
		},
		func(ctx context.Context, _ *rand.Rand) { _ = db.PingContext(ctx) },
	}
	inChaos(t, func(ctx context.Context, random *rand.Rand) { do[random.IntN(len(do))](ctx, random) })
	eventually(t, "all slots are free", func() bool { return inUse(db) == 0 })
	eventually(t, "all connections are back", func() bool { return db.Stats().InUse == 0 })
	eventually(t, "the pool works, without the connections that were killed last", func() bool {
		_, err := db.ExecContext(t.Context(), "select 1")
		return err == nil
	})
}
