//go:build integration

package weirpgx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/weirsql"
)

// openSQL opens a pool of database/sql through pgx's stdlib, as the documentation of weirsql says.
func openSQL(t *testing.T, conns int, gate limit.Config, opts ...weirsql.Option) *weirsql.DB {
	t.Helper()
	return openSQLWith(t, CancelRequests, conns, gate, opts...)
}

// pgxCancels is what the documentation of weirsql says for programs without weirpgx.
func pgxCancels(cfg *pgx.ConnConfig) {
	cfg.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: c, DeadlineDelay: time.Minute}
	}
}

func openSQLWith(t *testing.T, cancels func(*pgx.ConnConfig), conns int, gate limit.Config, opts ...weirsql.Option) *weirsql.DB {
	t.Helper()
	cfg, err := pgx.ParseConfig(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	cancels(cfg)
	db, err := weirsql.Open(stdlib.GetConnector(*cfg), conns, gate, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func inUse(db *weirsql.DB) int64 { return db.Gate().(weir.Snapshotter).Snapshot().InFlight }

// The same as TestEveryEndFreesItsSlot, for weirsql above pgx's stdlib.
func TestEveryEndOfSQL(t *testing.T) {
	const endless, conflict = "select pg_sleep(600)", `do $$ begin raise sqlstate '40001'; end $$`
	outcomes := make(chan weir.Outcome, 100)
	db := openSQL(t, 6, limit.Config{Name: "db", Limit: 2, Queue: limit.Queue{Len: -1}, Hooks: weir.Hooks{
		Done: func(_ string, o weir.Outcome, _ time.Duration) { outcomes <- o },
	}})
	kill := func(ctx context.Context, tx *sql.Tx) error {
		var pid int
		if err := tx.QueryRowContext(ctx, "select pg_backend_pid()").Scan(&pid); err != nil {
			return err
		}
		other, err := pgx.Connect(ctx, server.URL)
		if err != nil {
			return err
		}
		defer other.Close(context.WithoutCancel(ctx))
		_, err = other.Exec(ctx, "select pg_terminate_backend($1, 10000)", pid)
		return err
	}
	tests := []struct {
		name string
		use  func(ctx context.Context) error
		fail bool
		want []weir.Outcome
	}{
		{"exec", func(ctx context.Context) error { _, err := db.ExecContext(ctx, "select 1"); return err }, false, []weir.Outcome{weir.OK}},
		{"exec, conflict", func(ctx context.Context) error { _, err := db.ExecContext(ctx, conflict); return err }, true, []weir.Outcome{weir.Failed}},
		{"exec, syntax error", func(ctx context.Context) error { _, err := db.ExecContext(ctx, "selec 1"); return err }, true, []weir.Outcome{weir.OK}},
		{"exec, context ends", func(context.Context) error {
			_, err := db.ExecContext(stopped(t), endless)
			return err
		}, true, []weir.Outcome{weir.Overload}},
		{"exec, time-out of the statement", func(ctx context.Context) error {
			_, err := db.ExecContext(ctx, "set statement_timeout = 10; "+endless, pgx.QueryExecModeSimpleProtocol)
			return err
		}, true, []weir.Outcome{weir.Overload}},
		{"rows closed", func(ctx context.Context) error {
			rows, err := db.QueryContext(ctx, "select generate_series(1, 1000)")
			if err != nil {
				return err
			}
			rows.Next()
			return rows.Close()
		}, false, []weir.Outcome{weir.OK}},
		{"rows open when the context ends", func(context.Context) error {
			ctx, end := ended(t, context.DeadlineExceeded)
			rows, err := db.QueryContext(ctx, stream)
			if err != nil {
				return err
			}
			defer rows.Close()
			rows.Next()
			end()
			for rows.Next() {
			}
			return rows.Err()
		}, true, []weir.Outcome{weir.OK}}, // sampled with the first row
		{"row scanned", func(ctx context.Context) error { return db.QueryRowContext(ctx, "select 1").Scan(new(int)) }, false, []weir.Outcome{weir.OK}},
		{"no rows", func(ctx context.Context) error {
			err := db.QueryRowContext(ctx, "select 1 where false").Scan(new(int))
			if !errors.Is(err, sql.ErrNoRows) {
				return fmt.Errorf("not ErrNoRows: %w", err)
			}
			return nil
		}, false, []weir.Outcome{weir.OK}},
		{"commit", func(ctx context.Context) error {
			return db.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error { _, err := tx.ExecContext(ctx, "select 1"); return err })
		}, false, []weir.Outcome{weir.OK}},
		{"rollback after a conflict", func(ctx context.Context) error {
			return db.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error { _, err := tx.ExecContext(ctx, conflict); return err })
		}, true, []weir.Outcome{weir.Failed}},
		{"context ends in a transaction", func(context.Context) error {
			return db.InTx(stopped(t), nil, func(ctx context.Context, tx *sql.Tx) error { _, err := tx.ExecContext(ctx, endless); return err })
		}, true, []weir.Outcome{weir.Overload}},
		{"connection killed in a transaction", func(ctx context.Context) error {
			return db.InTx(ctx, nil, kill)
		}, true, []weir.Outcome{weir.Failed}},
		{"conn", func(ctx context.Context) error {
			c, err := db.Conn(ctx)
			if err != nil {
				return err
			}
			_, err = c.ExecContext(ctx, "select 1")
			return errors.Join(err, c.Close())
		}, false, []weir.Outcome{weir.NoSample}},
		{"statement on another connection", func(ctx context.Context) error {
			st, err := db.Stmt(ctx, "select $1::int")
			if err != nil {
				return err
			}
			defer st.Close()
			c, err := db.Conn(ctx)
			if err != nil {
				return err
			}
			err = st.QueryRowContext(ctx, 1).Scan(new(int))
			return errors.Join(err, c.Close())
		}, false, []weir.Outcome{weir.NoSample, weir.OK, weir.NoSample}},
		{"bare statement", func(ctx context.Context) error {
			st, err := db.PrepareContext(ctx, "select $1::int")
			if err != nil {
				return err
			}
			defer st.Close()
			return st.QueryRowContext(ctx, 1).Scan(new(int))
		}, false, []weir.Outcome{weir.NoSample, weir.OK}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.use(t.Context()); (err != nil) != tt.fail {
				t.Errorf("error: %v", err)
			}
			eventually(t, "the slot is free", func() bool { return inUse(db) == 0 })
			for i := range tt.want {
				if got := <-outcomes; got != tt.want[i] {
					t.Errorf("%d: %v, want %v", i, got, tt.want)
				}
			}
		})
	}
}

// DriverConn returns pgx's own connection, which can copy.
func TestCopyThroughSQL(t *testing.T) {
	table(t, "copied")
	db := openSQL(t, 2, limit.Config{Name: "db"})
	c, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	err = c.Raw(func(dc any) error {
		_, err := weirsql.DriverConn(dc).(*stdlib.Conn).Conn().CopyFrom(t.Context(), pgx.Identifier{"copied"}, []string{"id", "v"},
			pgx.CopyFromRows([][]any{{1, 1}, {2, 2}}))
		return err
	})
	var n int
	if err := errors.Join(err, c.QueryRowContext(t.Context(), "select count(*) from copied").Scan(&n)); err != nil || n != 2 {
		t.Errorf("%d rows, %v", n, err)
	}
}

// The server knows the budget of a statement in a transaction, and ends one that takes longer.
func TestBudgetOnServer(t *testing.T) {
	db := openSQL(t, 2, limit.Config{Name: "db"}, weirsql.WithBudget(0.5, weirsql.LocalTimeout))
	timeout := func(ctx context.Context, tx *sql.Tx) time.Duration {
		t.Helper()
		var ms int64
		if err := tx.QueryRowContext(ctx, "select setting from pg_settings where name = 'statement_timeout'").Scan(&ms); err != nil {
			t.Error(err)
		}
		return time.Duration(ms) * time.Millisecond
	}
	err := db.InTx(t.Context(), nil, func(ctx context.Context, tx *sql.Tx) error {
		if got := timeout(ctx, tx); got != 0 {
			t.Errorf("%v without a deadline", got)
		}
		late, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		if got := timeout(late, tx); got < 20*time.Minute || got > 30*time.Minute {
			t.Errorf("%v with an hour left", got)
		}
		if got := timeout(ctx, tx); got != 0 {
			t.Errorf("%v without a deadline again", got)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	db = openSQL(t, 2, limit.Config{Name: "db"}, weirsql.WithBudget(1e-5, weirsql.LocalTimeout)) // 36 ms of an hour
	err = db.InTx(t.Context(), nil, func(ctx context.Context, tx *sql.Tx) error {
		ctx, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		_, err := tx.ExecContext(ctx, "select pg_sleep(600)")
		return err
	})
	var e *pgconn.PgError
	if !errors.As(err, &e) || e.Code != "57014" {
		t.Errorf("%v, want a statement that was cancelled", err)
	}
}

// With budgets, a transaction can go back to a savepoint after a failure. A budget may be longer than
// PostgreSQL can express.
func TestBudgetOfSavepoint(t *testing.T) {
	db := openSQL(t, 2, limit.Config{Name: "db"}, weirsql.WithBudget(1, weirsql.LocalTimeout))
	ctx, cancel := context.WithTimeout(t.Context(), 100*24*time.Hour)
	defer cancel()
	err := db.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "savepoint s"); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "select 1 / 0"); err == nil {
			t.Error("one over nothing")
		}
		if _, err := tx.ExecContext(ctx, "rollback to s"); err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, "select 1").Scan(new(int))
	})
	if err != nil {
		t.Error(err)
	}
}

// With many time-outs at once, no more statements are at work than there are slots.
func TestCancelStormOfSQL(t *testing.T) {
	t.Run("weirpgx", func(t *testing.T) { cancelStormOfSQL(t, CancelRequests) })
	t.Run("pgx", func(t *testing.T) { cancelStormOfSQL(t, pgxCancels) })
}

func cancelStormOfSQL(t *testing.T, cancels func(*pgx.ConnConfig)) {
	const slots, clients, each = 8, 24, 2
	const statement = `/* sql storm */ do $$ begin
		perform pg_sleep(5);
	exception when query_canceled then
		perform pg_sleep(0.2);
	end $$`
	db := openSQLWith(t, cancels, 4*slots, limit.Config{Limit: slots, Queue: limit.Queue{MaxWait: time.Minute, Order: limit.FIFO}})
	watcher, err := pgx.Connect(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close(context.WithoutCancel(t.Context()))
	var storm sync.WaitGroup
	var most atomic.Int64
	for range clients {
		storm.Go(func() {
			// On a busy machine, opening a connection may take longer than the time-out. Then the next time-out is longer.
			for i := 0; i < each || most.Load() == 0 && i < 10 && t.Context().Err() == nil; i++ {
				// The wait is not part of the time-out, so the permit comes first.
				err := weir.Do(t.Context(), db.Gate(), weir.Work{}, func(ctx context.Context) error {
					ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond<<i)
					defer cancel()
					_, err := db.ExecContext(ctx, statement)
					return err
				})
				if weir.AsRejection(err) != nil {
					t.Error(err)
				}
			}
		})
	}
	over := make(chan struct{})
	go func() { storm.Wait(); close(over) }()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for running := true; running; {
		select {
		case <-over:
			running = false
		case <-again.C:
		}
		var n int64
		if err := watcher.QueryRow(t.Context(), `select count(*) from pg_stat_activity where state = 'active' and query like '/* sql storm */%'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		most.Store(max(most.Load(), n))
	}
	if n := most.Load(); n == 0 || n > slots+1 {
		t.Errorf("%d statements at work at a time with %d slots", n, slots)
	}
	if n := inUse(db); n != 0 {
		t.Errorf("%d slots are left", n)
	}
	t.Logf("at most %d at work; %d connections are open", most.Load(), db.Stats().OpenConnections)
}
