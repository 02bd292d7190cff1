//go:build integration

package weirpgx

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/testbed/freeport"
	"github.com/weir-go/weir/internal/testbed/postgres"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/signal"
	"github.com/weir-go/weir/weirsql"
)

// server is one PostgreSQL for all tests; a cluster takes a second or two to make.
var server *postgres.Server

func TestMain(m *testing.M) {
	os.Exit(withServer(m))
}

func withServer(m *testing.M) int {
	program, err := postgres.Find()
	if err != nil && os.Getenv("CI") == "" {
		fmt.Println("skipped:", err)
		return 0
	}
	ports := freeport.Range{First: 22_000, Size: 500}
	server, err = postgres.Start(context.Background(), postgres.Config{Program: program, Ports: &ports, Settings: []string{"max_connections=400"}})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	code := m.Run()
	if err := server.Stop(); err != nil {
		fmt.Println(err)
		return 1
	}
	return code
}

func config(t *testing.T, conns int) *pgxpool.Config {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(fmt.Sprintf("%s&pool_max_conns=%d", server.URL, conns))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func open(t *testing.T, cfg *pgxpool.Config, gate limit.Config, opts ...Option) *Pool {
	t.Helper()
	p, err := Open(t.Context(), cfg, gate, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// table makes a table, and drops it after the test.
func table(t *testing.T, name string) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.WithoutCancel(t.Context()))
	if _, err := c.Exec(t.Context(), fmt.Sprintf(`drop table if exists %s; create table %s (id int primary key, v int, unique (v) deferrable initially deferred)`, name, name)); err != nil {
		t.Fatal(err)
	}
}

// killAll ends all connections to the server but its own, and returns when they have ended.
func killAll(t *testing.T) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.WithoutCancel(t.Context()))
	if _, err := c.Exec(t.Context(), `select pg_terminate_backend(pid, 60000) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()`); err != nil {
		t.Fatal(err)
	}
}

func inFlight(p *Pool) int64 { return p.Gate().(weir.Snapshotter).Snapshot().InFlight }

// eventually waits for what must happen, however slow the machine is.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for begun := time.Now(); !ok(); <-again.C {
		if time.Since(begun) > 3*time.Minute {
			t.Fatalf("it did not happen within three minutes: %s", what)
		}
	}
}

// ending is a context whose deadline passes when the test says so.
type ending struct {
	context.Context
	passed chan struct{}
}

func (e ending) Done() <-chan struct{} { return e.passed }

func (e ending) Err() error {
	select {
	case <-e.passed:
		return context.DeadlineExceeded
	default:
		return e.Context.Err()
	}
}

// stopped is a context whose deadline passes once a statement without an end is at work.
func stopped(t *testing.T) context.Context {
	e := ending{t.Context(), make(chan struct{})}
	atWork(t, func() { close(e.passed) })
	return e
}

// atWork calls then once a statement without an end is at work.
func atWork(t *testing.T, then func()) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	var watch sync.WaitGroup
	t.Cleanup(watch.Wait)
	watch.Go(func() {
		defer c.Close(context.Background())
		again := time.NewTicker(2 * time.Millisecond)
		defer again.Stop()
		for n := 0; n == 0; <-again.C {
			if err := c.QueryRow(t.Context(), `select count(*) from pg_stat_activity where state = 'active' and query like 'select pg_sleep(600)%'`).Scan(&n); err != nil {
				t.Error(err)
				break
			}
		}
		then()
	})
}

// stream sends some rows, which fill the server's buffer, and then no more.
const stream = "select repeat('x', 9000), case when i > 10 then pg_sleep(600) end from generate_series(1, 20) i"

// badScan is a destination that no value fits.
type badScan struct{}

type panicScan struct{}

func (panicScan) Scan(any) error { panic("scan") }

// However a use ends, its slot is free then, and its connection comes back or is closed. The limit is 1 and
// nobody may wait, so a leaked slot makes all later cases fail, too.
func TestEveryEndFreesItsSlot(t *testing.T) {
	table(t, "ends")
	outcomes := make(chan weir.Outcome, 100)
	p := open(t, config(t, 4), limit.Config{Name: "db", Limit: 1, Queue: limit.Queue{Len: -1}, Hooks: weir.Hooks{
		Done: func(_ string, o weir.Outcome, _ time.Duration) { outcomes <- o },
	}})
	held := func(t *testing.T) {
		t.Helper()
		if n := inFlight(p); n != 1 {
			t.Errorf("%d slots are taken meanwhile, want 1", n)
		}
	}
	begin := func(t *testing.T, ctx context.Context) pgx.Tx {
		t.Helper()
		tx, err := p.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		held(t)
		return tx
	}
	query := func(t *testing.T, ctx context.Context, sql string) pgx.Rows {
		t.Helper()
		rows, err := p.Query(ctx, sql)
		if err != nil {
			t.Fatal(err)
		}
		held(t)
		return rows
	}
	const endless, conflict = "select pg_sleep(600)", `do $$ begin raise sqlstate '40001'; end $$`
	tests := []struct {
		name string
		use  func(t *testing.T, ctx context.Context) error
		fail bool
		want weir.Outcome
	}{
		{"exec", func(_ *testing.T, ctx context.Context) error { _, err := p.Exec(ctx, "select 1"); return err }, false, weir.OK},
		{"exec, syntax error", func(_ *testing.T, ctx context.Context) error { _, err := p.Exec(ctx, "selec 1"); return err }, true, weir.OK},
		{"exec, conflict", func(_ *testing.T, ctx context.Context) error { _, err := p.Exec(ctx, conflict); return err }, true, weir.Failed},
		{"exec, context ends", func(t *testing.T, _ context.Context) error {
			_, err := p.Exec(stopped(t), endless)
			return err
		}, true, weir.Overload},
		{"exec, caller leaves", func(t *testing.T, ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			atWork(t, cancel)
			_, err := p.Exec(ctx, endless)
			return err
		}, true, weir.Abandoned},
		{"exec, time-out of the statement", func(_ *testing.T, ctx context.Context) error {
			_, err := p.Exec(ctx, "set statement_timeout = 10; "+endless, pgx.QueryExecModeSimpleProtocol)
			return err
		}, true, weir.Overload},
		{"exec, connection killed", func(_ *testing.T, ctx context.Context) error {
			_, err := p.Exec(ctx, "select pg_terminate_backend(pg_backend_pid())")
			return err
		}, true, weir.Failed},
		{"rows read to the end", func(t *testing.T, ctx context.Context) error {
			rows := query(t, ctx, "select generate_series(1, 3)")
			for rows.Next() {
				held(t)
			}
			return rows.Err()
		}, false, weir.OK},
		{"rows closed early", func(t *testing.T, ctx context.Context) error {
			rows := query(t, ctx, "select generate_series(1, 1000)")
			rows.Next()
			rows.Close()
			rows.Close()
			return rows.Err()
		}, false, weir.OK},
		{"rows closed unread", func(t *testing.T, ctx context.Context) error {
			rows := query(t, ctx, "select generate_series(1, 1000)")
			rows.Close()
			return rows.Err()
		}, false, weir.OK},
		{"no rows", func(t *testing.T, ctx context.Context) error {
			rows := query(t, ctx, "select 1 where false")
			rows.Next()
			return rows.Err()
		}, false, weir.OK},
		{"rows, scan fails", func(t *testing.T, ctx context.Context) error {
			rows := query(t, ctx, "select 1")
			rows.Next()
			held(t)
			return rows.Scan(&badScan{})
		}, true, weir.OK}, // sampled with the first row
		{"rows, scan panics", func(t *testing.T, ctx context.Context) (err error) {
			rows := query(t, ctx, "select 1")
			defer rows.Close()
			defer func() { err = fmt.Errorf("%v", recover()) }()
			rows.Next()
			return rows.Scan(&panicScan{})
		}, true, weir.OK},
		{"rows collected", func(t *testing.T, ctx context.Context) error {
			rows, _ := p.Query(ctx, "select generate_series(1, 3)")
			_, err := pgx.CollectRows(rows, pgx.RowTo[int])
			return err
		}, false, weir.OK},
		{"rows, syntax error", func(t *testing.T, ctx context.Context) error { _, err := p.Query(ctx, "selec 1"); return err }, true, weir.OK},
		{"rows, conflict before the first", func(t *testing.T, ctx context.Context) error {
			rows, err := p.Query(ctx, conflict)
			rows.Next()
			return errors.Join(err, rows.Err())
		}, true, weir.Failed},
		{"rows, failure after the first", func(t *testing.T, ctx context.Context) error {
			rows := query(t, ctx, "select 1 / (2000 - i) from generate_series(1, 4000) i")
			for rows.Next() {
				held(t)
			}
			return rows.Err()
		}, true, weir.OK}, // sampled with the first row
		{"rows open when the context ends", func(t *testing.T, ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			rows := query(t, ctx, stream)
			rows.Next()
			cancel()
			for rows.Next() {
			}
			return rows.Err()
		}, true, weir.OK}, // sampled with the first row
		{"a row", func(t *testing.T, ctx context.Context) error {
			row := p.QueryRow(ctx, "select 1")
			held(t)
			return row.Scan(new(int))
		}, false, weir.OK},
		{"a row that is not there", func(t *testing.T, ctx context.Context) error {
			return p.QueryRow(ctx, "select 1 where false").Scan(new(int))
		}, true, weir.OK},
		{"a row, scan fails", func(t *testing.T, ctx context.Context) error {
			return p.QueryRow(ctx, "select 'x'").Scan(new(int))
		}, true, weir.OK},
		{"a row, scan panics", func(t *testing.T, ctx context.Context) (err error) {
			defer func() { err = fmt.Errorf("%v", recover()) }()
			return p.QueryRow(ctx, "select 1").Scan(&panicScan{})
		}, true, weir.NoSample},
		{"a row, context ends", func(t *testing.T, _ context.Context) error {
			return p.QueryRow(stopped(t), endless).Scan(nil)
		}, true, weir.Overload},
		{"batch", func(t *testing.T, ctx context.Context) error {
			b := &pgx.Batch{}
			b.Queue("select 1")
			b.Queue("select 2").QueryRow(func(r pgx.Row) error { return r.Scan(new(int)) })
			r := p.SendBatch(ctx, b)
			held(t)
			if _, err := r.Exec(); err != nil {
				return err
			}
			held(t)
			return errors.Join(r.Close(), r.Close())
		}, false, weir.OK},
		{"batch, conflict", func(t *testing.T, ctx context.Context) error {
			b := &pgx.Batch{}
			b.Queue("select 1")
			b.Queue(conflict)
			return p.SendBatch(ctx, b).Close()
		}, true, weir.Failed},
		{"batch, context ends", func(t *testing.T, _ context.Context) error {
			b := &pgx.Batch{}
			b.Queue(endless)
			return p.SendBatch(stopped(t), b).Close()
		}, true, weir.Overload},
		{"batch that begins a transaction", func(t *testing.T, ctx context.Context) error {
			b := &pgx.Batch{}
			b.BeginTx(pgx.TxOptions{})
			b.Queue("select 1")
			r := p.SendBatch(ctx, b)
			err := r.Close()
			held(t)
			return errors.Join(err, r.Tx().Commit(ctx))
		}, false, weir.OK},
		{"batch that begins a transaction, conflict", func(t *testing.T, ctx context.Context) error {
			b := &pgx.Batch{}
			b.BeginTx(pgx.TxOptions{})
			b.Queue(conflict)
			r := p.SendBatch(ctx, b)
			err := r.Close()
			held(t)
			return errors.Join(err, r.Tx().Rollback(ctx))
		}, true, weir.Failed},
		{"copy", func(t *testing.T, ctx context.Context) error {
			_, err := p.CopyFrom(ctx, pgx.Identifier{"ends"}, []string{"id", "v"}, pgx.CopyFromRows([][]any{{1, 1}, {2, 2}}))
			return err
		}, false, weir.OK},
		{"copy, key exists", func(t *testing.T, ctx context.Context) error {
			_, err := p.CopyFrom(ctx, pgx.Identifier{"ends"}, []string{"id", "v"}, pgx.CopyFromRows([][]any{{1, 1}}))
			return err
		}, true, weir.OK},
		{"copy, source fails", func(t *testing.T, ctx context.Context) error { // which the server calls cancelled, 57014
			_, err := p.CopyFrom(ctx, pgx.Identifier{"ends"}, []string{"id"}, pgx.CopyFromFunc(func() ([]any, error) { return nil, io.EOF }))
			return err
		}, true, weir.NoSample},
		{"copy, context ends", func(t *testing.T, ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			n := 0
			_, err := p.CopyFrom(ctx, pgx.Identifier{"ends"}, []string{"id"}, pgx.CopyFromFunc(func() ([]any, error) {
				if n++; n == 10_000 { // some are on their way
					cancel()
				}
				return []any{1000 + n}, nil
			}))
			return err
		}, true, weir.Abandoned},
		{"commit", func(t *testing.T, ctx context.Context) error {
			tx := begin(t, ctx)
			_, err := tx.Exec(ctx, "select 1")
			held(t)
			return errors.Join(err, tx.Commit(ctx))
		}, false, weir.OK},
		{"rollback", func(t *testing.T, ctx context.Context) error { return begin(t, ctx).Rollback(ctx) }, false, weir.OK},
		{"rollback, after a conflict", func(t *testing.T, ctx context.Context) error {
			tx := begin(t, ctx)
			_, err := tx.Exec(ctx, conflict)
			return errors.Join(err, tx.Rollback(ctx))
		}, true, weir.Failed},
		{"rollback, after a conflict in rows", func(t *testing.T, ctx context.Context) error {
			tx := begin(t, ctx)
			err := tx.QueryRow(ctx, conflict).Scan(nil)
			return errors.Join(err, tx.Rollback(ctx))
		}, true, weir.Failed},
		{"rollback, after a plain no and what follows it", func(t *testing.T, ctx context.Context) error {
			tx := begin(t, ctx)
			_, _ = tx.Exec(ctx, "select 1 / 0")
			_, err := tx.Exec(ctx, "select 1") // in a failed transaction
			return errors.Join(err, tx.Rollback(ctx))
		}, true, weir.OK},
		{"rollback, after a copy whose source failed", func(t *testing.T, ctx context.Context) error { // which says nothing of the server
			tx := begin(t, ctx)
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"ends"}, []string{"id"}, pgx.CopyFromFunc(func() ([]any, error) { return nil, io.ErrUnexpectedEOF }))
			return errors.Join(err, tx.Rollback(ctx))
		}, true, weir.OK},
		{"rollback, after a copy of a key that exists in a unique index", func(t *testing.T, ctx context.Context) error {
			tx := begin(t, ctx)
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"ends"}, []string{"id", "v"}, pgx.CopyFromRows([][]any{{1, 1}}))
			return errors.Join(err, tx.Rollback(ctx))
		}, true, weir.OK},
		{"commit of what a statement has broken", func(t *testing.T, ctx context.Context) error {
			tx := begin(t, ctx)
			_, _ = tx.Exec(ctx, "select 1 / 0")
			return tx.Commit(ctx)
		}, true, weir.Failed},
		{"commit, key exists", func(t *testing.T, ctx context.Context) error {
			tx := begin(t, ctx)
			if _, err := tx.Exec(ctx, "insert into ends values (10, 1)"); err != nil {
				return err
			}
			return tx.Commit(ctx)
		}, true, weir.OK},
		{"rollback, after a savepoint that was released", func(t *testing.T, ctx context.Context) error {
			tx := begin(t, ctx)
			if err := pgx.BeginFunc(ctx, tx, func(pgx.Tx) error { return nil }); err != nil { // it rolls back once more
				return err
			}
			return tx.Rollback(ctx)
		}, false, weir.OK},
		{"commit, after a savepoint that was rolled back", func(t *testing.T, ctx context.Context) error {
			tx := begin(t, ctx)
			sp, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			_, _ = sp.Exec(ctx, conflict)
			held(t)
			err = sp.Rollback(ctx)
			held(t)
			return errors.Join(err, tx.Commit(ctx))
		}, false, weir.OK},
		{"rollback, with a context that has ended", func(t *testing.T, ctx context.Context) error {
			ended, cancel := context.WithCancel(ctx)
			tx := begin(t, ended)
			cancel()
			return tx.Rollback(ended)
		}, false, weir.Abandoned},
		{"rollback, connection killed", func(t *testing.T, ctx context.Context) error {
			tx := begin(t, ctx)
			_, err := tx.Exec(ctx, "select pg_terminate_backend(pg_backend_pid())")
			return errors.Join(err, tx.Rollback(ctx))
		}, true, weir.Failed},
		{"begin, on a connection that has died", func(t *testing.T, ctx context.Context) error {
			if _, err := p.Exec(ctx, "select 1"); err != nil { // so that there is one
				t.Fatal(err)
			}
			killAll(t)
			defer p.Unguarded().Reset() // the others have died, too
			_, err := p.Begin(ctx)
			return err
		}, true, weir.Failed},
		{"commit, on a connection that has died", func(t *testing.T, ctx context.Context) error {
			defer p.Unguarded().Reset()
			tx := begin(t, ctx)
			killAll(t)
			return tx.Commit(ctx)
		}, true, weir.Failed},
		{"begin, with a context that has ended", func(_ *testing.T, ctx context.Context) error {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			_, err := p.Begin(ended)
			return err
		}, true, weir.NoSample}, // never admitted
		{"a transaction used by two", func(t *testing.T, ctx context.Context) error {
			tx := begin(t, ctx)
			first, cancel := context.WithCancel(ctx)
			var second error
			atWork(t, func() { // in another goroutine, while the first statement is at work
				_, second = tx.Exec(ctx, "select 1") // finds the connection busy
				held(t)
				cancel()
			})
			_, err := tx.Exec(first, endless)
			if second == nil {
				t.Error("both had the connection")
			}
			return errors.Join(err, tx.Rollback(ctx))
		}, true, weir.Abandoned}, // that of the statement that failed last
		{"in a transaction", func(t *testing.T, ctx context.Context) error {
			return p.InTx(ctx, pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
				held(t)
				_, err := p.Exec(ctx, "select 1") // on the same slot
				return err
			})
		}, false, weir.OK},
		{"in a transaction, the function fails", func(t *testing.T, ctx context.Context) error {
			return p.InTx(ctx, pgx.TxOptions{}, func(context.Context, pgx.Tx) error { return io.EOF })
		}, true, weir.OK},
		{"in a transaction, the function panics", func(t *testing.T, ctx context.Context) (err error) {
			defer func() { err = fmt.Errorf("%v", recover()) }()
			return p.InTx(ctx, pgx.TxOptions{}, func(context.Context, pgx.Tx) error { panic("fn") })
		}, true, weir.OK},
		{"with a connection", func(t *testing.T, ctx context.Context) error {
			return p.InConn(ctx, func(ctx context.Context, c *pgxpool.Conn) error {
				held(t)
				_, err1 := c.Exec(ctx, "select 1")
				_, err2 := p.Exec(ctx, "select 1") // on the same slot
				return errors.Join(err1, err2)
			})
		}, false, weir.NoSample},
		{"released twice, in a transaction", func(t *testing.T, ctx context.Context) error {
			c, err := p.Acquire(ctx)
			if err != nil {
				return err
			}
			held(t)
			_, err = c.Begin(ctx)
			c.Release()
			c.Release()
			return err
		}, false, weir.NoSample},
		{"taken out of the pool", func(t *testing.T, ctx context.Context) error {
			c, err := p.Acquire(ctx)
			if err != nil {
				return err
			}
			return c.Hijack().Close(ctx)
		}, false, weir.NoSample},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for len(outcomes) > 0 {
				<-outcomes
			}
			err := tt.use(t, t.Context())
			if (err != nil) != tt.fail {
				t.Errorf("it ended with %v", err)
			}
			if n := inFlight(p); n != 0 {
				t.Fatalf("%d slots are left", n)
			}
			var got weir.Outcome
			for len(outcomes) > 0 {
				got = <-outcomes
			}
			if got != tt.want {
				t.Errorf("the outcome is %v, want %v", got, tt.want)
			}
			eventually(t, "no connection is in use", func() bool { return p.Unguarded().Stat().AcquiredConns() == 0 })
		})
	}
}

// A mistake of the caller that pgx finds says nothing against the database.
func TestMistakes(t *testing.T) {
	table(t, "mistakes")
	outcomes := make(chan weir.Outcome, 1)
	p := open(t, config(t, 1), limit.Config{Limit: 1, Hooks: weir.Hooks{
		Done: func(_ string, o weir.Outcome, _ time.Duration) { outcomes <- o },
	}})
	const conflict = `do $$ begin raise sqlstate '40001'; end $$`
	for _, tt := range []struct {
		name string
		use  func(ctx context.Context, mode pgx.QueryExecMode) error
		want weir.Outcome
	}{
		{"argument too large", func(ctx context.Context, mode pgx.QueryExecMode) error {
			return p.QueryRow(ctx, "select $1::int", mode, int64(1)<<40).Scan(new(int))
		}, weir.NoSample},
		{"argument of another type", func(ctx context.Context, mode pgx.QueryExecMode) error {
			_, err := p.Exec(ctx, "select $1::int", mode, struct{}{})
			return err
		}, weir.NoSample},
		{"too few arguments", func(ctx context.Context, mode pgx.QueryExecMode) error {
			_, err := p.Exec(ctx, "select $1::int + $2::int", mode, 1)
			return err
		}, weir.NoSample},
		{"too many arguments", func(ctx context.Context, mode pgx.QueryExecMode) error {
			return p.QueryRow(ctx, "select $1::int", mode, 1, 2).Scan(new(int))
		}, weir.NoSample},
		{"no such argument", func(ctx context.Context, mode pgx.QueryExecMode) error {
			_, err := p.Exec(ctx, "select @a::int", mode, pgx.StrictNamedArgs{"b": 1})
			return err
		}, weir.NoSample},
		{"argument of another type in the simple protocol", func(ctx context.Context, _ pgx.QueryExecMode) error {
			_, err := p.Exec(ctx, "select $1::int", pgx.QueryExecModeSimpleProtocol, struct{}{})
			return err
		}, weir.NoSample},
		{"argument of a batch", func(ctx context.Context, mode pgx.QueryExecMode) error {
			b := &pgx.Batch{}
			b.Queue("select 1")
			b.Queue("select $1::int", mode, struct{}{})
			return p.SendBatch(ctx, b).Close()
		}, weir.NoSample},
		{"argument in a transaction", func(ctx context.Context, mode pgx.QueryExecMode) error {
			return p.InTx(ctx, pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "select $1::int", mode, struct{}{})
				return err
			})
		}, weir.OK}, // the transaction began and was rolled back
		{"argument after a conflict", func(ctx context.Context, mode pgx.QueryExecMode) error {
			return p.InTx(ctx, pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
				_, failed := tx.Exec(ctx, conflict)
				_, err := tx.Exec(ctx, "select $1::int", pgx.QueryExecModeExec, struct{}{})
				return errors.Join(failed, err)
			})
		}, weir.Failed},
		{"row of a copy", func(ctx context.Context, _ pgx.QueryExecMode) error {
			_, err := p.CopyFrom(ctx, pgx.Identifier{"mistakes"}, []string{"id"}, pgx.CopyFromRows([][]any{{1}, {"x"}}))
			return err
		}, weir.NoSample},
		{"short row of a copy", func(ctx context.Context, _ pgx.QueryExecMode) error {
			_, err := p.CopyFrom(ctx, pgx.Identifier{"mistakes"}, []string{"id"}, pgx.CopyFromRows([][]any{{}}))
			return err
		}, weir.NoSample},
		{"result of another type", func(ctx context.Context, mode pgx.QueryExecMode) error {
			return p.QueryRow(ctx, "select 'x'", mode).Scan(new(int))
		}, weir.OK},
		{"too few destinations", func(ctx context.Context, mode pgx.QueryExecMode) error {
			return p.QueryRow(ctx, "select 1, 2", mode).Scan(new(int))
		}, weir.OK},
		{"too many destinations", func(ctx context.Context, mode pgx.QueryExecMode) error {
			return p.QueryRow(ctx, "select 1", mode).Scan(new(int), new(int))
		}, weir.OK},
		{"a destination that does not last", func(ctx context.Context, mode pgx.QueryExecMode) error {
			return p.QueryRow(ctx, "select 'x'::bytea", mode).Scan(new(pgtype.DriverBytes))
		}, weir.OK},
	} {
		for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec} {
			if err := tt.use(t.Context(), mode); err == nil {
				t.Errorf("%s, %s: no error", tt.name, mode)
			} else if got := <-outcomes; got != tt.want {
				t.Errorf("%s, %s: the outcome is %v, want %v: %v", tt.name, mode, got, tt.want, err)
			}
		}
	}
}

// Work that waits in the gate holds no connection, and goes on when the slot is free.
func TestWaitersHoldNoConnection(t *testing.T) {
	p := open(t, config(t, 8), limit.Config{Limit: 1, Queue: limit.Queue{MaxWait: time.Minute}})
	tx, err := p.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var waiters sync.WaitGroup
	for range 5 {
		waiters.Go(func() {
			if _, err := p.Exec(t.Context(), "select 1"); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "five wait", func() bool { return p.Gate().(*limit.Limiter).Snapshot().Waiting == 5 })
	if n := p.Unguarded().Stat().AcquiredConns(); n != 1 {
		t.Errorf("%d connections are in use, want that of the transaction", n)
	}
	if err := p.Ping(t.Context()); err != nil { // exempt
		t.Error(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	waiters.Wait()
}

// A caller that reads rows slowly holds its slot, but gives its sample with the first row.
func TestSampleWithTheFirstRow(t *testing.T) {
	p := open(t, config(t, 4), limit.Config{}) // a fixed limit takes no samples
	count := func() weir.Snapshot { return p.Gate().(*limit.Limiter).Snapshot() }
	rows, err := p.Query(t.Context(), "select generate_series(1, 3)")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	if n := count().Outcomes[weir.OK]; n != 0 {
		t.Errorf("%d samples before the first row", n)
	}
	rows.Next()
	if s := count(); s.Outcomes[weir.OK] != 1 || s.InFlight != 1 {
		t.Errorf("with the first row: %v, %d slots taken", s.Outcomes, s.InFlight)
	}
	for rows.Next() {
	}
	if s := count(); s.Outcomes[weir.OK] != 1 || s.InFlight != 0 {
		t.Errorf("at the end: %v, %d slots taken", s.Outcomes, s.InFlight)
	}
}

// After the end of a transaction its context carries no permit.
func TestContextAfterItsTransaction(t *testing.T) {
	p := open(t, config(t, 8), limit.Config{Limit: 1, Queue: limit.Queue{Len: -1}})
	var kept context.Context
	if err := p.InTx(t.Context(), pgx.TxOptions{}, func(ctx context.Context, _ pgx.Tx) error { kept = ctx; return nil }); err != nil {
		t.Fatal(err)
	}
	tx, err := p.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := p.Exec(kept, "select 1"); weir.AsRejection(err) == nil {
		t.Errorf("beyond the limit it ended with %v", err)
	}
}

// Rows that nobody closes are found and reported with their call site.
func TestLeaks(t *testing.T) {
	found := make(chan string, 1)
	gate := weir.Must(limit.New(limit.Config{Name: "db", Limit: 1, FindLeaks: true, Hooks: weir.Hooks{Leaked: func(_, site string) { found <- site }}}))
	defer gate.Close()
	pool, err := pgxpool.NewWithConfig(t.Context(), config(t, 4))
	if err != nil {
		t.Fatal(err)
	}
	forget(t, New(pool, gate)) // the pool is not closed: it would wait for the connection
	for {
		runtime.GC()
		select {
		case site := <-found:
			if !strings.Contains(site, "weirpgx.forget ") {
				t.Errorf("leaked at %s", site)
			}
			return
		default:
		}
	}
}

//go:noinline
func forget(t *testing.T, p *Pool) {
	if _, err := p.Query(t.Context(), "select 1"); err != nil {
		t.Fatal(err)
	}
}

// counted are the hooks that a user has set on a pool. They are still called.
type counted struct{ prepared, released, traced, acquired atomic.Int64 }

func (c *counted) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.traced.Add(1)
	return ctx
}
func (*counted) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (c *counted) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	c.acquired.Add(1)
	return ctx
}
func (*counted) TraceAcquireEnd(context.Context, *pgxpool.Pool, pgxpool.TraceAcquireEndData) {}

func TestHooksStayTheUsers(t *testing.T) {
	var c counted
	cfg := config(t, 4)
	cfg.ConnConfig.Tracer = &c
	cfg.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) { c.prepared.Add(1); return true, nil }
	cfg.AfterRelease = func(*pgx.Conn) bool { c.released.Add(1); return true }
	p := open(t, cfg, limit.Config{Limit: 1})
	for range 3 {
		if _, err := p.Exec(t.Context(), "select 1"); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "three connections are released", func() bool { return c.released.Load() == 3 })
	if c.prepared.Load() != 3 || c.traced.Load() != 3 || c.acquired.Load() != 3 {
		t.Errorf("%d prepared, %d traced, %d acquired, want 3 each", c.prepared.Load(), c.traced.Load(), c.acquired.Load())
	}
}

// If a gate admits more work than the pool has connections, one line says so, and the signal shows the wait.
func TestPoolTooSmall(t *testing.T) {
	var out bytes.Buffer
	gate := weir.Must(limit.New(limit.Config{Limit: lookEvery}))
	defer gate.Close()
	pool, err := pgxpool.NewWithConfig(t.Context(), config(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	wait := PoolWait(pool, time.Nanosecond)
	p := New(pool, gate, WithLogger(slog.New(slog.NewTextHandler(&out, nil))))
	defer p.Close()
	tx, err := p.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wait.Read(t.Context()); err != nil && !errors.Is(err, signal.ErrNoValue) { // the first connection was made
		t.Error(err)
	}
	var waiters sync.WaitGroup
	for range lookEvery - 1 { // together with the transaction, enough for one look
		waiters.Go(func() {
			if _, err := p.Exec(t.Context(), "select 1"); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "all are admitted", func() bool { return gate.Snapshot().InFlight == lookEvery })
	if _, err := tx.Exec(t.Context(), "select pg_sleep(0.1)"); err != nil { // while they wait
		t.Error(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	waiters.Wait()
	for range 2 * lookEvery { // enough for a look at those that have waited
		if _, err := p.Exec(t.Context(), "select 1"); err != nil {
			t.Error(err)
		}
	}
	if n := strings.Count(out.String(), "waits for a connection"); n != 1 {
		t.Errorf("it was told %d times:\n%s", n, &out)
	}
	if v, err := wait.Read(t.Context()); err != nil || v <= 1 {
		t.Errorf("the signal reads %v, %v", v, err)
	}
	if v, err := wait.Read(t.Context()); !errors.Is(err, signal.ErrNoValue) {
		t.Errorf("without anybody who waited it reads %v, %v", v, err)
	}
}

// A pool that fits its gate is no reason for a line, while its connections are made and afterwards.
func TestPoolThatFits(t *testing.T) {
	var out bytes.Buffer
	p := open(t, config(t, 4), limit.Config{Limit: 3}, WithLogger(slog.New(slog.NewTextHandler(&out, nil))))
	var workers sync.WaitGroup
	for range 3 {
		workers.Go(func() {
			for range 2 * lookEvery {
				if _, err := p.Exec(t.Context(), "select 1"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
	p.Unguarded().Reset() // so that they are made again
	for range 2 * lookEvery {
		if _, err := p.Exec(t.Context(), "select 1"); err != nil {
			t.Error(err)
		}
	}
	if out.Len() > 0 {
		t.Error(&out)
	}
}

// When a server restarts, the work in progress fails, and no work after that.
func TestRestart(t *testing.T) {
	p := open(t, config(t, 4), limit.Config{Limit: 2, Queue: limit.Queue{Len: -1}})
	tx, err := p.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rows, err := p.Query(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
	}
	var failed *pgconn.PgError
	if err := rows.Err(); !errors.As(err, &failed) {
		t.Errorf("the rows ended with %v", err)
	}
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("a transaction outlived its server")
	}
	if n := inFlight(p); n != 0 {
		t.Errorf("%d slots are left", n)
	}
	p.Unguarded().Reset() // connections of before the restart
	if _, err := p.Exec(t.Context(), "select 1"); err != nil {
		t.Error(err)
	}
}

// cancelled runs a statement that sleeps for ten minutes, and cancels it once it sleeps. It returns how long
// the statement took to end, and its error, which is nil if it ended by itself.
func cancelled(t *testing.T, p *Pool, statement string) (took time.Duration, err error) {
	t.Helper()
	watcher, err := pgx.Connect(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close(context.WithoutCancel(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	over := make(chan error)
	go func() {
		_, err := p.Exec(ctx, statement)
		over <- err
	}()
	for sleeps := false; !sleeps; {
		err := watcher.QueryRow(t.Context(), `select count(*) > 0 from pg_stat_activity where query = $1 and wait_event = 'PgSleep'`, statement).Scan(&sleeps)
		if err != nil {
			t.Fatal(err)
		}
	}
	begun := time.Now()
	cancel()
	err = <-over
	return time.Since(begun), err
}

// resting returns a pool of one connection. after is the time until the first cancel, late how long the
// connection rests.
func resting(t *testing.T, after, late time.Duration) *Pool {
	t.Helper()
	cfg := config(t, 1)
	CancelRequests(cfg.ConnConfig)
	build := cfg.ConnConfig.BuildContextWatcherHandler
	cfg.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		h := build(conn)
		h.(*canceller).after, h.(*canceller).late = after, late
		return h
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return New(pool, nil)
}

// A connection can be used at once if the server has stopped its statement. Otherwise it would rest for an
// hour.
func TestStoppedStatementCostsNothing(t *testing.T) {
	p := resting(t, time.Millisecond, time.Hour)
	for range 10 {
		cancelled(t, p, `/* stops */ select pg_sleep(600)`)
		if _, err := p.Exec(t.Context(), `select 1`); err != nil {
			t.Fatalf("the cancel came once more: %v", err)
		}
	}
	if n := p.Unguarded().Stat().NewConnsCount(); n != 1 {
		t.Errorf("%d connections were made", n)
	}
}

// A statement that does not stop for the cancel ends by itself. Then the connection rests. The server signals
// each cancel twice. Sometimes the second signal comes after the statement's handler and stops the statement.
// Then the statement is run again.
func TestLateCancelIsWaitedFor(t *testing.T) {
	const late = 300 * time.Millisecond
	p := resting(t, time.Millisecond, late)
	for range 20 {
		took, err := cancelled(t, p, `/* goes on */ do $$ begin perform pg_sleep(600); exception when query_canceled then null; end $$`)
		if err != nil {
			continue
		}
		if took < late {
			t.Errorf("the connection was free after %v", took)
		}
		return
	}
	t.Error("the server stopped each of twenty statements that do not stop for a cancel")
}

// If the server drops a cancel, another follows. This statement goes on after the first cancel.
func TestCancelAgain(t *testing.T) {
	p := resting(t, time.Millisecond, time.Millisecond)
	cancelled(t, p, `/* twice */ do $$ begin perform pg_sleep(600); exception when query_canceled then perform pg_sleep(600); end $$`)
	if _, err := p.Exec(t.Context(), `select 1`); err != nil {
		t.Error(err)
	}
	if n := p.Unguarded().Stat().NewConnsCount(); n != 1 {
		t.Errorf("%d connections were made", n)
	}
}

// A statement that ends soon after its context is not cancelled, and its connection does not rest. The
// transaction is rolled back, and the next one can use the connection.
func TestShortDeadlinesKeepConnections(t *testing.T) {
	p := resting(t, time.Hour, time.Hour)
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		err := pgx.BeginFunc(ctx, p, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `create temporary table if not exists t (n int); insert into t values (1)`); err != nil {
				return err
			}
			go cancel()
			_, err := tx.Exec(ctx, `select pg_sleep(0.05)`)
			<-ctx.Done()
			return errors.Join(err, ctx.Err())
		})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		var open string
		if err := p.QueryRow(t.Context(), `select coalesce(pg_current_xact_id_if_assigned()::text, 'none')`).Scan(&open); err != nil || open != "none" {
			t.Fatalf("transaction %s is open: %v", open, err)
		}
	}
	if n := p.Unguarded().Stat().NewConnsCount(); n != 1 {
		t.Errorf("%d connections were made", n)
	}
}

// A savepoint that is not released after its context says so. Its transaction goes on.
func TestSavepointAfterItsContext(t *testing.T) {
	table(t, "savepoint")
	p := open(t, config(t, 1), limit.Config{Limit: 1})
	tx, err := p.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), "insert into savepoint values (1, 1)"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	inner, err := tx.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_, err = inner.Exec(ctx, "insert into savepoint values (2, 2)")
	cancel()
	if err := errors.Join(err, inner.Commit(ctx)); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "its transaction goes on") {
		t.Errorf("the savepoint: %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	var rows int
	if err := p.QueryRow(t.Context(), "select count(*) from savepoint").Scan(&rows); err != nil || rows != 1 {
		t.Errorf("%d rows, %v; want that of the transaction", rows, err)
	}
}

// A commit whose context has ended before commits nothing, says so, and keeps its connection. pgx would close
// the connection.
func TestCommitAfterItsContext(t *testing.T) {
	table(t, "late")
	outcomes := make(chan weir.Outcome, 10)
	p := open(t, config(t, 1), limit.Config{Limit: 1, Hooks: weir.Hooks{
		Done: func(_ string, o weir.Outcome, _ time.Duration) { outcomes <- o },
	}})
	for _, tt := range []struct {
		name   string
		commit func(ctx context.Context, end func()) error
	}{
		{"commit", func(ctx context.Context, end func()) error {
			tx, err := p.Begin(ctx)
			if err != nil {
				return err
			}
			_, err = tx.Exec(ctx, `insert into late values (1, 1)`)
			end()
			err = errors.Join(err, tx.Commit(ctx))
			if again := tx.Rollback(ctx); !errors.Is(again, pgx.ErrTxClosed) {
				t.Errorf("a rollback after it: %v", again)
			}
			if again := tx.Commit(ctx); again != pgx.ErrTxClosed {
				t.Errorf("a second commit: %v", again)
			}
			return err
		}},
		{"in a transaction", func(ctx context.Context, end func()) error {
			return p.InTx(ctx, pgx.TxOptions{}, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `insert into late values (1, 1)`)
				end()
				return err
			})
		}},
		{"batch that begins a transaction", func(ctx context.Context, end func()) error {
			b := &pgx.Batch{}
			b.BeginTx(pgx.TxOptions{})
			b.Queue(`insert into late values (1, 1)`)
			r := p.SendBatch(ctx, b)
			err := r.Close()
			end()
			return errors.Join(err, r.Tx().Commit(ctx))
		}},
		{"savepoint", func(ctx context.Context, end func()) error {
			tx, err := p.Begin(t.Context())
			if err != nil {
				return err
			}
			sp, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			_, err = sp.Exec(ctx, `insert into late values (1, 1)`)
			end()
			return errors.Join(err, sp.Commit(ctx), tx.Commit(t.Context()))
		}},
	} {
		for why, outcome := range map[error]weir.Outcome{context.Canceled: weir.Abandoned, context.DeadlineExceeded: weir.Overload} {
			t.Run(tt.name+", "+why.Error(), func(t *testing.T) {
				ctx, end := ended(t, why)
				err := tt.commit(ctx, end)
				if !errors.Is(err, why) || !strings.Contains(err.Error(), "nothing was committed") {
					t.Errorf("%v", err)
				}
				if got := <-outcomes; got != outcome && tt.name != "savepoint" { // its transaction was committed
					t.Errorf("the outcome is %v, want %v", got, outcome)
				}
				var n int
				if err := p.QueryRow(t.Context(), `select count(*) from late`).Scan(&n); err != nil || n != 0 {
					t.Errorf("%d rows are there: %v", n, err)
				}
				<-outcomes
				if made := p.Unguarded().Stat().NewConnsCount(); made != 1 {
					t.Fatalf("%d connections were made", made)
				}
			})
		}
	}
}

// ended returns a context, and a function that ends it with an error.
func ended(t *testing.T, why error) (context.Context, func()) {
	if why == context.Canceled {
		return context.WithCancel(t.Context())
	}
	e := ending{t.Context(), make(chan struct{})}
	return e, func() { close(e.passed) }
}

// If a context ends during a commit, the error says whether the server has committed if the server answered.
// Otherwise it says that this is unknown.
func TestContextEndsInCommit(t *testing.T) {
	table(t, "slow")
	holder, err := pgx.Connect(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close(context.WithoutCancel(t.Context()))
	for _, sql := range []string{
		`create or replace function wait_for_18() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock(18); return null; end $$`,
		`create constraint trigger waits after insert on slow deferrable initially deferred for each row execute function wait_for_18()`,
		`select pg_advisory_lock(18)`,
	} {
		if _, err := holder.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	p := open(t, config(t, 1), limit.Config{Limit: 1})
	commit := func(meanwhile func(pgx.Tx)) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		tx, err := p.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(ctx, `insert into slow values (1, 1)`); err != nil {
			t.Fatal(err)
		}
		over := make(chan error)
		go func() { over <- tx.Commit(ctx) }()
		eventually(t, "the commit waits for the lock", func() bool {
			var n int
			err := holder.QueryRow(t.Context(), `select count(*) from pg_locks where locktype = 'advisory' and not granted`).Scan(&n)
			return err == nil && n == 1
		})
		cancel()
		meanwhile(tx)
		return <-over
	}
	var stop *pgconn.PgError
	if err := commit(func(pgx.Tx) {}); !errors.As(err, &stop) || stop.Code != "57014" {
		t.Errorf("the server has stopped it, and it ended with %v", err)
	}
	if n := p.Unguarded().Stat().NewConnsCount(); n != 1 {
		t.Errorf("%d connections were made", n)
	}
	conn := make(chan error, 1)
	err = commit(func(tx pgx.Tx) { conn <- tx.Conn().PgConn().Conn().Close() })
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "not known") || <-conn != nil {
		t.Errorf("nobody has answered, and it ended with %v", err)
	}
	if n := inFlight(p); n != 0 {
		t.Errorf("%d slots are left", n)
	}
}

// Other errors with the same code are not cancels.
func TestIsCancel(t *testing.T) {
	p := open(t, config(t, 1), limit.Config{})
	var stop *pgconn.PgError
	_, err := p.Exec(t.Context(), `set statement_timeout = 10; select pg_sleep(600)`)
	if !errors.As(err, &stop) || stop.Code != "57014" || isCancel(stop) {
		t.Errorf("a statement time-out: %v", err)
	}
	_, err = p.Exec(t.Context(), `set statement_timeout = 0; select pg_cancel_backend(pg_backend_pid()), pg_sleep(600)`)
	if !errors.As(err, &stop) || !isCancel(stop) {
		t.Errorf("a cancel: %v", err)
	}
}

// With many time-outs at once, the server never works on more statements than there are slots, although it
// needs a while to stop one.
func TestCancelStorm(t *testing.T) {
	const slots, clients, each = 8, 24, 2
	const statement = `/* storm */ do $$ begin
		perform pg_sleep(600);
	exception when query_canceled then
		perform pg_sleep(0.2);
	end $$`
	p := open(t, config(t, 4*slots), limit.Config{Limit: slots, Queue: limit.Queue{MaxWait: time.Minute, Order: limit.FIFO}})
	watcher, err := pgx.Connect(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close(context.WithoutCancel(t.Context()))
	var storm sync.WaitGroup
	var most atomic.Int64
	for range clients {
		storm.Go(func() {
			for i := 0; i < each || most.Load() == 0 && t.Context().Err() == nil; i++ {
				u, err := p.admitWork(t.Context(), "", weir.Work{}) // the wait is not part of the time-out
				if err != nil {
					t.Error(err)
					return
				}
				ctx, cancel := context.WithTimeout(weir.WithPermit(t.Context(), p.gate, u.permit), 50*time.Millisecond)
				_, err = p.Exec(ctx, statement)
				cancel()
				u.end(err)
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
		if err := watcher.QueryRow(t.Context(), `select count(*) from pg_stat_activity where state = 'active' and query like '/* storm */%'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		most.Store(max(most.Load(), n))
	}
	if n := most.Load(); n > slots+1 {
		t.Errorf("%d statements at work at a time with %d slots", n, slots)
	}
	if n := inFlight(p); n != 0 {
		t.Errorf("%d slots are left", n)
	}
	t.Logf("at most %d at work; %d connections were made", most.Load(), p.Unguarded().Stat().NewConnsCount())
}

func queued(sql string) *pgx.Batch {
	b := &pgx.Batch{}
	b.Queue(sql)
	return b
}

// The same of a batch with a transaction of its own, which its budget stops.
func TestStoppedBatchSaysWhy(t *testing.T) {
	p := open(t, config(t, 2), limit.Config{Limit: 1}, WithBudget(0.1, weirsql.LocalTimeout))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	b := &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{})
	b.Queue("select pg_sleep(60)")
	r := p.SendBatch(ctx, b)
	err := r.Close()
	_ = r.Tx().Rollback(ctx)
	var answer *pgconn.PgError
	if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &answer) || answer.Code != "57014" {
		t.Error(err)
	}
}

// The error of a statement that the server has stopped says both: why it was asked to, and that it did.
func TestStoppedStatementsSayWhy(t *testing.T) {
	p := open(t, config(t, 2), limit.Config{Limit: 1})
	const long = "select pg_sleep(60)"
	for name, run := range map[string]func(ctx context.Context) error{
		"exec": func(ctx context.Context) error { _, err := p.Exec(ctx, long); return err },
		"row":  func(ctx context.Context) error { return p.QueryRow(ctx, long).Scan(new(string)) },
		"rows": func(ctx context.Context) error {
			rows, err := p.Query(ctx, long)
			if err == nil {
				for rows.Next() {
				}
				err = rows.Err()
			}
			return err
		},
		"in a transaction": func(ctx context.Context) error {
			return p.InTx(t.Context(), pgx.TxOptions{}, func(_ context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, long)
				return err
			})
		},
		"a statement of a batch": func(ctx context.Context) error {
			r := p.SendBatch(ctx, queued(long))
			defer r.Close()
			_, err := r.Exec()
			return err
		},
		"rows of a batch": func(ctx context.Context) error {
			r := p.SendBatch(ctx, queued(long))
			defer r.Close()
			rows, err := r.Query()
			if err == nil {
				for rows.Next() {
				}
				err = rows.Err()
			}
			return err
		},
		"a row of a batch": func(ctx context.Context) error {
			r := p.SendBatch(ctx, queued(long))
			defer r.Close()
			return r.QueryRow().Scan(new(string))
		},
		"a row in a transaction": func(ctx context.Context) error {
			return p.InTx(t.Context(), pgx.TxOptions{}, func(_ context.Context, tx pgx.Tx) error {
				return tx.QueryRow(ctx, long).Scan(new(string))
			})
		},
	} {
		for want, end := range map[error]func(context.Context) (context.Context, context.CancelFunc){
			context.DeadlineExceeded: func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, 200*time.Millisecond)
			},
			context.Canceled: func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(200*time.Millisecond, cancel)
				return ctx, cancel
			},
		} {
			for { // on a busy machine a context may end before its statement is sent
				ctx, cancel := end(t.Context())
				err := run(ctx)
				cancel()
				var answer *pgconn.PgError
				if !errors.As(err, &answer) && errors.Is(err, want) {
					continue
				}
				if !errors.Is(err, want) || answer == nil || answer.Code != "57014" {
					t.Errorf("%s, %v: %v", name, want, err)
				}
				break
			}
		}
	}
}
