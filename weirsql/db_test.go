package weirsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
)

var errBroken = stateError("XX000")

func fails(err error) func(context.Context, *core) error {
	return func(context.Context, *core) error { return err }
}

// blocks waits for the context of the call, as a driver does while its server works.
func blocks(ctx context.Context, _ *core) error {
	<-ctx.Done()
	return ctx.Err()
}

// dies breaks the connection for good.
func dies(_ context.Context, c *core) error {
	c.dead = true
	return driver.ErrBadConn
}

func panics(context.Context, *core) error { panic("driver") }

// recovered runs f, which panics.
func recovered(f func()) (caught any) {
	defer func() { caught = recover() }()
	f()
	return nil
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// However a use ends, its permit is given back once, and its sample is right.
func TestEnds(t *testing.T) {
	tests := []struct {
		name string
		run  func(t *testing.T, ctx context.Context, cancel func(), db *DB, g *fakeGate, s *server)
		want string // sampled
	}{
		{"exec", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			_, err := db.ExecContext(ctx, "x", 1)
			check(t, err)
		}, "[ok]"},
		{"exec that fails", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			s.on("", fails(errBroken))
			if _, err := db.ExecContext(ctx, "x"); !errors.Is(err, errBroken) {
				t.Error(err)
			}
		}, "[failed]"},
		{"exec with an argument that does not fit", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			if _, err := db.ExecContext(ctx, "x", make(chan int)); err == nil {
				t.Error("no error")
			}
		}, "[failed]"},
		{"exec whose context ends", func(t *testing.T, ctx context.Context, cancel func(), db *DB, g *fakeGate, s *server) {
			s.on("", blocks)
			time.AfterFunc(time.Second, cancel)
			if _, err := db.ExecContext(ctx, "x"); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}, "[abandoned]"},
		{"rows closed", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			rows, err := db.QueryContext(ctx, "SELECT 1")
			check(t, err)
			if g.held() != 1 {
				t.Error("the permit is not held while the rows are open")
			}
			check(t, rows.Close())
		}, "[ok]"},
		{"rows read to the end", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			rows, err := db.QueryContext(ctx, "SELECT 1")
			check(t, err)
			for rows.Next() {
			}
			check(t, rows.Err())
		}, "[ok]"},
		{"row scanned", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			var a int
			row := db.QueryRowContext(ctx, "SELECT 1")
			if g.held() != 1 {
				t.Error("the permit is not held before Scan")
			}
			check(t, row.Scan(&a))
		}, "[ok]"},
		{"row that cannot be scanned", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			var a time.Time
			if db.QueryRowContext(ctx, "SELECT 1").Scan(&a) == nil {
				t.Error("no error")
			}
		}, "[ok]"},
		{"row of a query that fails", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			s.on("", fails(errBroken))
			var a int
			if err := db.QueryRowContext(ctx, "SELECT 1").Scan(&a); !errors.Is(err, errBroken) {
				t.Error(err)
			}
		}, "[failed]"},
		{"query that fails", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			s.on("", fails(stateError("53300")))
			if _, err := db.QueryContext(ctx, "SELECT 1"); err == nil {
				t.Error("no error")
			}
		}, "[overload]"},
		{"query that is tried again", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			s.on("query", func(ctx context.Context, c *core) error {
				if c.id == 1 {
					return dies(ctx, c)
				}
				return nil
			})
			rows, err := db.QueryContext(ctx, "SELECT 1")
			check(t, err)
			if g.admitted != 1 || g.held() != 1 {
				t.Errorf("%d permits held of %d, want one for both attempts", g.held(), g.admitted)
			}
			check(t, rows.Close())
		}, "[ok]"},
		{"rows open when the context ends", func(t *testing.T, ctx context.Context, cancel func(), db *DB, g *fakeGate, s *server) {
			_, err := db.QueryContext(ctx, "SELECT 1")
			check(t, err)
			cancel()
		}, "[ok]"},
		{"rows whose connection breaks", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			s.on("next", dies)
			rows, err := db.QueryContext(ctx, "SELECT 1")
			check(t, err)
			if rows.Next() {
				t.Error("a row of a broken connection")
			}
		}, "[ok]"},
		{"commit", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			tx, err := db.BeginTx(ctx, nil)
			check(t, err)
			_, err = tx.ExecContext(ctx, "x")
			check(t, err)
			rows, err := tx.QueryContext(ctx, "SELECT 1")
			check(t, err)
			check(t, rows.Close())
			if g.held() != 1 || g.admitted != 1 {
				t.Errorf("%d permits held of %d", g.held(), g.admitted)
			}
			check(t, tx.Commit())
		}, "[ok]"},
		{"commit that fails", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			s.on("commit", fails(stateError("40001")))
			tx, err := db.BeginTx(ctx, nil)
			check(t, err)
			if tx.Commit() == nil {
				t.Error("no error")
			}
		}, "[failed]"},
		{"commit whose connection breaks", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			s.on("commit", dies)
			tx, err := db.BeginTx(ctx, nil)
			check(t, err)
			if !errors.Is(tx.Commit(), driver.ErrBadConn) {
				t.Error("no error")
			}
		}, "[failed]"},
		{"rollback", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			tx, err := db.BeginTx(ctx, nil)
			check(t, err)
			check(t, tx.Rollback())
			if !errors.Is(tx.Rollback(), sql.ErrTxDone) || !errors.Is(tx.Commit(), sql.ErrTxDone) {
				t.Error("ended twice")
			}
		}, "[ok]"},
		{"rollback after a statement that failed", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			tx, err := db.BeginTx(ctx, nil)
			check(t, err)
			s.on("exec", fails(stateError("55P03")))
			_, _ = tx.ExecContext(ctx, "x")
			s.on("exec", fails(stateError("25P02")))
			_, _ = tx.ExecContext(ctx, "x")
			check(t, tx.Rollback())
		}, "[overload]"},
		{"rollback after two statements that failed, with a savepoint between", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			tx, err := db.BeginTx(ctx, nil)
			check(t, err)
			s.on("exec", fails(stateError("XX000")))
			_, _ = tx.ExecContext(ctx, "x")
			s.on("exec", fails(stateError("55P03")))
			_, _ = tx.ExecContext(ctx, "x")
			check(t, tx.Rollback())
		}, "[overload]"},
		{"commit after a statement that failed", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			tx, err := db.BeginTx(ctx, nil)
			check(t, err)
			s.on("exec", fails(stateError("55P03")))
			_, _ = tx.ExecContext(ctx, "x")
			check(t, tx.Commit())
		}, "[ok]"},
		{"connection killed in a transaction", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			tx, err := db.BeginTx(ctx, nil)
			check(t, err)
			s.on("exec", dies)
			if _, err := tx.ExecContext(ctx, "x"); err == nil {
				t.Error("no error")
			}
			if g.held() != 1 {
				t.Error("the permit is gone before the transaction")
			}
			_ = tx.Rollback()
		}, "[failed]"},
		{"context ends in a transaction", func(t *testing.T, ctx context.Context, cancel func(), db *DB, g *fakeGate, s *server) {
			_, err := db.BeginTx(ctx, nil)
			check(t, err)
			cancel()
		}, "[abandoned]"},
		{"context ends with rows open in a transaction", func(t *testing.T, ctx context.Context, cancel func(), db *DB, g *fakeGate, s *server) {
			tx, err := db.BeginTx(ctx, nil)
			check(t, err)
			_, err = tx.QueryContext(ctx, "SELECT 1")
			check(t, err)
			cancel()
		}, "[abandoned]"},
		{"context ends in the middle of a statement of a transaction", func(t *testing.T, ctx context.Context, cancel func(), db *DB, g *fakeGate, s *server) {
			tx, err := db.BeginTx(ctx, nil)
			check(t, err)
			s.on("exec", blocks)
			time.AfterFunc(time.Second, cancel)
			if _, err := tx.ExecContext(ctx, "x"); err == nil {
				t.Error("no error")
			}
		}, "[abandoned]"},
		{"begin that fails", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			s.on("begintx", fails(errBroken))
			if _, err := db.BeginTx(ctx, nil); err == nil {
				t.Error("no error")
			}
		}, "[failed]"},
		{"begin whose connections break", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			s.on("begintx", dies)
			if _, err := db.BeginTx(ctx, nil); !errors.Is(err, driver.ErrBadConn) {
				t.Error(err)
			}
			if s.opened != 3 || g.admitted != 1 {
				t.Errorf("%d connections, %d permits; want 3 attempts under one", s.opened, g.admitted)
			}
		}, "[failed]"},
		{"conn", func(t *testing.T, ctx context.Context, cancel func(), db *DB, g *fakeGate, s *server) {
			c, err := db.Conn(ctx)
			check(t, err)
			cancel() // it bounded the wait only
			ctx = context.Background()
			_, err = c.ExecContext(ctx, "x")
			check(t, err)
			tx, err := c.BeginTx(ctx, nil)
			check(t, err)
			check(t, tx.Commit())
			check(t, c.PingContext(ctx))
			synctest.Wait()
			if g.held() != 1 || g.admitted != 1 {
				t.Errorf("%d permits held of %d", g.held(), g.admitted)
			}
			check(t, c.Close())
		}, "[no_sample]"},
		{"conn that breaks", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			c, err := db.Conn(ctx)
			check(t, err)
			s.on("exec", dies)
			_, _ = c.ExecContext(ctx, "x")
			if !errors.Is(c.Close(), sql.ErrConnDone) {
				t.Error("it is not closed")
			}
		}, "[no_sample]"},
		{"conn that cannot be made", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			s.on("connect", fails(stateError("53300")))
			if _, err := db.Conn(ctx); err == nil {
				t.Error("no error")
			}
		}, "[overload]"},
		{"conn whose driver connection is kept", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			c, err := db.Conn(ctx)
			check(t, err)
			var kept any
			check(t, c.Raw(func(dc any) error { kept = DriverConn(dc); return nil }))
			check(t, c.Close())
			_, _ = kept.(driver.ExecerContext).ExecContext(ctx, "x", nil)
		}, "[no_sample]"},
		{"conn whose Raw panics", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			c, err := db.Conn(ctx)
			check(t, err)
			if recovered(func() { _ = c.Raw(func(any) error { panic("raw") }) }) == nil {
				t.Error("no panic")
			}
		}, "[no_sample]"},
		{"ping", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			check(t, db.PingContext(ctx))
		}, "[no_sample]"},
		{"ping that fails", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			s.on("ping", fails(errBroken))
			if db.PingContext(ctx) == nil {
				t.Error("no error")
			}
		}, "[no_sample]"},
		{"prepare", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			st, err := db.PrepareContext(ctx, "SELECT 1")
			check(t, err)
			if g.held() != 0 {
				t.Error("a prepared statement holds a permit")
			}
			check(t, st.Close())
		}, "[no_sample]"},
		{"prepare that fails", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			s.on("preparectx", fails(errBroken))
			if _, err := db.PrepareContext(ctx, "SELECT 1"); err == nil {
				t.Error("no error")
			}
		}, "[failed]"},
		{"statement", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			st, err := db.Stmt(ctx, "SELECT 1")
			check(t, err)
			defer st.Close()
			_, err = st.ExecContext(ctx, 1)
			check(t, err)
			rows, err := st.QueryContext(ctx)
			check(t, err)
			if g.held() != 1 {
				t.Error("the permit is not held while the rows are open")
			}
			check(t, rows.Close())
			var a int
			check(t, st.QueryRowContext(ctx).Scan(&a))
		}, "[no_sample ok ok ok]"},
		{"statement on another connection", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			st, err := db.Stmt(ctx, "SELECT 1")
			check(t, err)
			defer st.Close()
			c, err := db.Conn(ctx) // takes the one that has it
			check(t, err)
			rows, err := st.QueryContext(ctx)
			check(t, err)
			check(t, rows.Close())
			check(t, c.Close())
			if s.opened != 2 {
				t.Errorf("%d connections", s.opened)
			}
		}, "[no_sample ok no_sample]"},
		{"statement that fails", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			st, err := db.Stmt(ctx, "SELECT 1")
			check(t, err)
			defer st.Close()
			s.on("stmt queryctx", fails(errBroken))
			if _, err := st.QueryContext(ctx); err == nil {
				t.Error("no error")
			}
			s.on("stmt execctx", fails(errBroken))
			if _, err := st.ExecContext(ctx); err == nil {
				t.Error("no error")
			}
		}, "[no_sample failed failed]"},
		{"bare statement", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			st, err := db.PrepareContext(ctx, "SELECT 1")
			check(t, err)
			defer st.Close()
			_, err = st.ExecContext(ctx)
			check(t, err)
			rows, err := st.QueryContext(ctx)
			check(t, err)
			if g.held() != 1 {
				t.Error("the permit is not held while the rows are open")
			}
			check(t, rows.Close())
		}, "[no_sample ok ok]"},
		{"bare statement on another connection", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			st, err := db.PrepareContext(ctx, "SELECT 1")
			check(t, err)
			defer st.Close()
			c, err := db.Conn(ctx)
			check(t, err)
			rows, err := st.QueryContext(ctx)
			check(t, err)
			if g.held() != 2 {
				t.Errorf("%d held", g.held())
			}
			check(t, rows.Close())
			check(t, c.Close())
		}, "[no_sample ok no_sample]"},
		{"bare statement in a transaction", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			st, err := db.PrepareContext(ctx, "SELECT 1")
			check(t, err)
			defer st.Close()
			tx, err := db.BeginTx(ctx, nil)
			check(t, err)
			_, err = tx.StmtContext(ctx, st).ExecContext(ctx)
			check(t, err)
			check(t, tx.Commit())
			if g.admitted != 2 {
				t.Errorf("%d permits", g.admitted)
			}
		}, "[no_sample ok]"},
		{"pool below", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			_, err := db.Pool().ExecContext(ctx, "x")
			check(t, err)
			tx, err := db.Pool().BeginTx(ctx, nil)
			check(t, err)
			_, err = tx.ExecContext(ctx, "x")
			check(t, err)
			check(t, tx.Rollback())
			check(t, db.Pool().PingContext(ctx))
			s.on("exec", dies)
			_, _ = db.Pool().ExecContext(ctx, "x")
		}, "[ok ok failed failed failed]"},
		{"connection that breaks, while its Close blocks", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			rows, err := db.QueryContext(ctx, "SELECT 1")
			check(t, err)
			closing, release, closed := make(chan struct{}), make(chan struct{}), make(chan struct{})
			s.on("next", func(ctx context.Context, c *core) error {
				s.on("close", func(context.Context, *core) error { close(closing); <-release; return nil })
				return dies(ctx, c)
			})
			go func() { rows.Next(); close(closed) }()
			<-closing // database/sql holds a lock meanwhile, and a bubble does not wait for locks
			if g.held() != 0 {
				t.Error("the permit is held while the driver closes what has broken")
			}
			close(release)
			<-closed
		}, "[ok]"},
		{"panic in exec", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			s.on("exec", panics)
			if recovered(func() { _, _ = db.ExecContext(ctx, "x") }) == nil {
				t.Error("no panic")
			}
		}, "[no_sample]"},
		{"panic in exec below the pool", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			s.on("exec", panics)
			if recovered(func() { _, _ = db.Pool().ExecContext(ctx, "x") }) == nil {
				t.Error("no panic")
			}
		}, "[no_sample]"},
		{"in a transaction", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			check(t, db.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
				_, err := db.ExecContext(ctx, "x")
				check(t, err)
				return db.InTx(ctx, nil, func(ctx context.Context, _ *sql.Tx) error { return db.PingContext(ctx) })
			}))
			if g.admitted != 1 {
				t.Errorf("%d permits for calls within", g.admitted)
			}
			synctest.Wait()
			if db.Stats().InUse != 0 {
				t.Error("a connection is in use")
			}
			var ends []string
			for _, call := range s.calls() {
				if strings.HasSuffix(call, " commit") || strings.HasSuffix(call, " rollback") {
					ends = append(ends, call)
				}
			}
			if len(ends) != 2 || !strings.HasSuffix(ends[0], " commit") || !strings.HasSuffix(ends[1], " commit") {
				t.Errorf("%q, want both transactions committed", ends)
			}
		}, "[ok]"},
		{"in a transaction that does not commit", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			s.on("commit", fails(errBroken))
			if err := db.InTx(ctx, nil, func(context.Context, *sql.Tx) error { return nil }); !errors.Is(err, errBroken) {
				t.Error(err)
			}
		}, "[failed]"},
		{"in a transaction that fails", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			if err := db.InTx(ctx, nil, func(context.Context, *sql.Tx) error { return errBroken }); !errors.Is(err, errBroken) {
				t.Error(err)
			}
			if !strings.HasSuffix(strings.Join(s.calls(), ","), "rollback,#1 valid") {
				t.Error("no rollback")
			}
		}, "[ok]"},
		{"in a transaction that panics", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			if recovered(func() { _ = db.InTx(ctx, nil, func(context.Context, *sql.Tx) error { panic("user") }) }) != "user" {
				t.Error("no panic")
			}
		}, "[ok]"},
		{"in a transaction that does not begin", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			s.on("begintx", fails(errBroken))
			if err := db.InTx(ctx, nil, nil); !errors.Is(err, errBroken) {
				t.Error(err)
			}
		}, "[failed]"},
		{"session that cannot be reset", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			_, err := db.ExecContext(ctx, "x")
			check(t, err)
			s.on("reset", dies)
			rows, err := db.QueryContext(ctx, "SELECT 1")
			check(t, err)
			if s.opened != 2 || g.held() != 1 {
				t.Errorf("%d connections, %d permits held", s.opened, g.held())
			}
			check(t, rows.Close())
		}, "[ok ok]"},
		{"connection that is not valid", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			s.on("valid", fails(errBroken))
			rows, err := db.QueryContext(ctx, "SELECT 1")
			check(t, err)
			check(t, rows.Close())
			if s.closed != 1 {
				t.Error("it was not closed")
			}
		}, "[ok]"},
		{"pool closed with rows open", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			rows, err := db.QueryContext(ctx, "SELECT 1")
			check(t, err)
			check(t, db.Close())
			check(t, rows.Close())
			if _, err := db.ExecContext(ctx, "x"); err == nil {
				t.Error("no error")
			}
		}, "[ok failed]"},
		{"server that restarts", func(t *testing.T, ctx context.Context, _ func(), db *DB, g *fakeGate, s *server) {
			var open []*sql.Rows
			for range 3 {
				rows, err := db.QueryContext(ctx, "SELECT 1")
				check(t, err)
				open = append(open, rows)
			}
			s.on("", func(ctx context.Context, c *core) error { // all that were open by then
				if c.id <= 3 {
					return dies(ctx, c)
				}
				return nil
			})
			for _, rows := range open {
				_ = rows.Close()
			}
			_, err := db.ExecContext(ctx, "x")
			check(t, err)
		}, "[ok ok ok ok]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, modern, 4, func(t *testing.T, db *DB, g *fakeGate, s *server) {
				ctx, cancel := context.WithCancel(t.Context())
				tt.run(t, ctx, cancel, db, g, s)
				synctest.Wait()
				if held := g.held(); held != 0 {
					t.Errorf("%d permits held", held)
				}
				if got := g.outcomes(); got != tt.want {
					t.Errorf("sampled %s, want %s", got, tt.want)
				}
				cancel()
				synctest.Wait()
			})
		})
	}
}

// A query that panics takes its connection with it: database/sql never gets it back. The permit is free.
func TestPanicInQuery(t *testing.T) {
	for name, query := range map[string]func(*DB) (*sql.Rows, error){
		"above":     func(db *DB) (*sql.Rows, error) { return db.Query("SELECT ?", 1) },
		"below":     func(db *DB) (*sql.Rows, error) { return db.Pool().Query("SELECT ?", 1) },
		"row below": func(db *DB) (*sql.Rows, error) { return nil, db.Pool().QueryRow("SELECT ?", 1).Err() },
	} {
		for _, tt := range []struct {
			op   string
			kind func(*core) driver.Conn
		}{{"query", modern}, {"prepare", ancient}, {"preparectx", skipping}, {"inputs", skipping}, {"converter", kinds["convert"]}, {"convert", kinds["convert"]}} {
			t.Run(name+", "+tt.op, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g, s := newFakeGate(1), &server{kind: tt.kind}
					db := New(s, g)
					defer db.Close()
					s.on(tt.op, panics)
					if recovered(func() { _, _ = query(db) }) == nil {
						t.Error("no panic")
					}
					if g.held() != 0 {
						t.Error("the permit is held")
					}
				})
			})
		}
	}
}

// After a panic in a query or a statement of a transaction or a Conn, database/sql waits for itself when that is to end.
// The permit is free all the same, and InTx lets the panic go on.
func TestPanicInATransaction(t *testing.T) {
	for name, tt := range map[string]struct {
		op  string
		use func(ctx context.Context, db *DB) error
	}{
		"query in a transaction": {"query", func(ctx context.Context, db *DB) error {
			return db.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.QueryContext(ctx, "SELECT 1")
				return err
			})
		}},
		"statement in a transaction": {"stmt execctx", func(ctx context.Context, db *DB) error {
			return db.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
				s, err := tx.PrepareContext(ctx, "x")
				if err == nil {
					_, err = s.ExecContext(ctx)
				}
				return err
			})
		}},
		"argument in a transaction": {"none", func(ctx context.Context, db *DB) error {
			return db.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.QueryContext(ctx, "SELECT 1", panicking{})
				return err
			})
		}},
		"argument of a statement": {"none", func(ctx context.Context, db *DB) error {
			return db.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
				s, err := tx.PrepareContext(ctx, "x")
				if err == nil {
					_, err = s.ExecContext(ctx, panicking{})
				}
				return err
			})
		}},
		"argument of nil in a transaction of one's own": {"none", func(ctx context.Context, db *DB) error {
			tx, err := db.BeginTx(ctx, nil)
			if err == nil {
				_, err = tx.QueryContext(ctx, "SELECT 1", (*nilPanics)(nil))
			}
			return err
		}},
		"ping on a conn": {"ping", func(ctx context.Context, db *DB) error {
			c, err := db.Conn(ctx)
			if err == nil {
				err = c.PingContext(ctx)
			}
			return err
		}},
		"query on a conn": {"query", func(ctx context.Context, db *DB) error {
			c, err := db.Conn(ctx)
			if err == nil {
				_, err = c.QueryContext(ctx, "SELECT 1")
			}
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) { // not in a bubble: database/sql keeps a goroutine for good
			g, s := newFakeGate(1), &server{kind: modern}
			db := New(s, g)
			s.on(tt.op, panics)
			caught := make(chan any, 1)
			go func() {
				caught <- recovered(func() {
					if err := tt.use(context.Background(), db); err != nil {
						t.Error(err)
					}
				})
			}()
			select {
			case c := <-caught:
				if c == nil {
					t.Error("no panic")
				}
			case <-time.After(time.Minute):
				t.Fatal("the panic never arrives")
			}
			if g.held() != 0 {
				t.Error("the permit is held")
			}
		})
	}
}

// nilPanics is an argument that may not be nil.
type nilPanics struct{ text string }

func (n *nilPanics) Value() (driver.Value, error) { return n.text, nil }

// A driver that panics while it prepares leaves a transaction and a Conn their permit, and the rest of them goes on with that.
func TestPrepareThatPanics(t *testing.T) {
	type preparer interface {
		PrepareContext(context.Context, string) (*sql.Stmt, error)
		ExecContext(context.Context, string, ...any) (sql.Result, error)
	}
	for name, open := range map[string]func(db *DB) (p preparer, end func() error, err error){
		"transaction":       func(db *DB) (preparer, func() error, error) { tx, err := db.Begin(); return tx, tx.Commit, err },
		"transaction below": func(db *DB) (preparer, func() error, error) { tx, err := db.Pool().Begin(); return tx, tx.Commit, err },
		"conn":              func(db *DB) (preparer, func() error, error) { c, err := db.Conn(t.Context()); return c, c.Close, err },
	} {
		g, s := newFakeGate(1), &server{kind: modern}
		db := New(s, g)
		p, end, err := open(db)
		check(t, err)
		s.on("preparectx", panics)
		if recovered(func() { _, _ = p.PrepareContext(t.Context(), "x") }) == nil {
			t.Errorf("%s: no panic", name)
		}
		if g.held() != 1 {
			t.Errorf("%s: it is open, and has no permit", name)
		}
		s.on("none", panics)
		_, err = p.ExecContext(t.Context(), "x")
		check(t, err)
		check(t, end())
		if g.held() != 0 {
			t.Errorf("%s: the permit is held", name)
		}
	}
}

// A transaction that goes on after a panic has freed its permit asks anew.
func TestTransactionWithoutItsPermit(t *testing.T) {
	for _, op := range []string{"inputs", "converter", "convert"} {
		g, s := newFakeGate(1), &server{kind: kinds["convert"]}
		tx, err := New(s, g).Begin()
		check(t, err)
		s.on(op, panics)
		if recovered(func() { _, _ = tx.Exec("x", 1) }) == nil {
			t.Errorf("%s: no panic", op)
		}
		s.on("none", panics)
		other, err := g.Admit(t.Context(), weir.Work{})
		check(t, err)
		if _, err := tx.Exec("x"); weir.AsRejection(err) == nil {
			t.Errorf("%s: %v, want a refusal", op, err)
		}
		other.Done(weir.OK)
		_, err = tx.Exec("x")
		check(t, err)
		if g.admitted != 3 || g.held() != 1 {
			t.Errorf("%s: %d admitted, want 3; %d held, want 1", op, g.admitted, g.held())
		}
	}
}

// panicking is an argument whose value nobody gets.
type panicking struct{}

func (panicking) Value() (driver.Value, error) { panic("value") }

// A driver that panics when it closes a statement after its rows leaves no permit behind.
func TestPanicAfterRows(t *testing.T) {
	g, s := newFakeGate(1), &server{kind: skipping}
	db := New(s, g)
	s.on("stmt close", panics)
	rows, err := db.Query("SELECT 1")
	check(t, err)
	if recovered(func() { _ = rows.Close() }) == nil {
		t.Error("no panic")
	}
	if g.held() != 0 {
		t.Error("the permit is held")
	}
}

// rowless is a driver that returns neither rows nor an error.
type rowless struct{ *core }

func (rowless) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return nil, nil
}

func (r rowless) Prepare(string) (driver.Stmt, error) { return rowlessStmt{&oldStmt{r.core}}, nil }

type rowlessStmt struct{ *oldStmt }

func (rowlessStmt) Query([]driver.Value) (driver.Rows, error) { return nil, nil }

// stmtless is a driver that returns neither a statement nor an error.
type stmtless struct{ *core }

func (stmtless) Prepare(string) (driver.Stmt, error) { return nil, nil }

func TestNoStatement(t *testing.T) {
	inBubble(t, func(c *core) driver.Conn { return stmtless{c} }, 1, func(t *testing.T, db *DB, g *fakeGate, _ *server) {
		for name, q := range map[string]interface {
			QueryContext(context.Context, string, ...any) (*sql.Rows, error)
		}{"above": db, "below": db.Pool()} {
			if _, err := q.QueryContext(t.Context(), "SELECT 1"); err == nil || !strings.Contains(err.Error(), "no statement and no error") {
				t.Errorf("%s: %v", name, err)
			}
			if g.held() != 0 {
				t.Errorf("%s: the permit is held", name)
			}
		}
	})
}

func TestNoRows(t *testing.T) {
	inBubble(t, func(c *core) driver.Conn { return rowless{c} }, 1, func(t *testing.T, db *DB, g *fakeGate, _ *server) {
		if _, err := db.Query("SELECT 1"); err == nil || !strings.Contains(err.Error(), "no rows and no error") {
			t.Errorf("a query: %v", err)
		}
		s, err := db.Stmt(t.Context(), "SELECT 1")
		check(t, err)
		if _, err := s.Query(); err == nil || !strings.Contains(err.Error(), "no rows and no error") {
			t.Errorf("a statement: %v", err)
		}
		check(t, s.Close())
	})
}

// valued is an argument that is a value, or fails to be one.
type valued struct {
	value any
	err   error
}

func (v *valued) Value() (driver.Value, error) { return v.value, v.err }

// Arguments with a value of their own reach the driver as they do without weir.
func TestValuers(t *testing.T) {
	no := errors.New("no")
	for name, arg := range map[string]any{
		"a value": &valued{value: "text"}, "nothing": &valued{}, "no value": &valued{value: struct{}{}}, "an error": &valued{err: no}, "a nil pointer": (*time.Time)(nil),
		"a value by value": sql.NullInt64{Int64: 3, Valid: true}, "a nil pointer to one": (*sql.NullInt64)(nil), "one not fit": &valued{value: int8(1)},
	} {
		t.Run(name, func(t *testing.T) {
			for kind, open := range kinds {
				told := func(db interface {
					Exec(string, ...any) (sql.Result, error)
				}, s *server) string {
					_, err := db.Exec("x", arg)
					var args []string
					for _, line := range s.calls() {
						if strings.Contains(line, "exec") {
							args = append(args, line)
						}
					}
					return fmt.Sprint(err, args)
				}
				with, without := &server{kind: open}, &server{kind: open}
				a, b := New(with, newFakeGate(1)), sql.OpenDB(without)
				if got, want := told(a, with), told(b, without); got != want {
					t.Errorf("%s: %s, want %s", kind, got, want)
				}
				check(t, a.Close())
				check(t, b.Close())
			}
		})
	}
}

// A panic that database/sql survives rolls back, before InTx lets it go on.
func TestPanicRollsBack(t *testing.T) {
	for name, tt := range map[string]struct {
		kind func(*core) driver.Conn
		op   string
		fn   func(tx *sql.Tx) error
	}{
		"of fn":                       {modern, "none", func(*sql.Tx) error { panic("fn's own") }},
		"of the driver in an exec":    {modern, "exec", func(tx *sql.Tx) error { _, err := tx.Exec("x"); return err }},
		"of a driver without an exec": {skipping, "stmt execctx", func(tx *sql.Tx) error { _, err := tx.Exec("x", 1); return err }},
	} {
		t.Run(name, func(t *testing.T) {
			g, s := newFakeGate(1), &server{kind: tt.kind}
			db := New(s, g)
			defer db.Close()
			s.on(tt.op, panics)
			if recovered(func() { _ = db.InTx(t.Context(), nil, func(_ context.Context, tx *sql.Tx) error { return tt.fn(tx) }) }) == nil {
				t.Error("no panic")
			}
			if log := strings.Join(s.calls(), "\n"); !strings.Contains(log, "rollback") || g.held() != 0 {
				t.Errorf("%d held after\n%s", g.held(), log)
			}
		})
	}
}

// A classifier that panics leaves no permit behind, above the pool and below it.
func TestPanicInClassify(t *testing.T) {
	for what, call := range map[string]func(*DB){
		"exec":          func(db *DB) { _, _ = db.Exec("x") },
		"query":         func(db *DB) { _, _ = db.Query("SELECT 1") },
		"row":           func(db *DB) { _ = db.QueryRow("SELECT 1").Scan() },
		"begin":         func(db *DB) { _, _ = db.Begin() },
		"prepare":       func(db *DB) { _, _ = db.Prepare("x") },
		"exec below":    func(db *DB) { _, _ = db.Pool().Exec("x") },
		"query below":   func(db *DB) { _, _ = db.Pool().Query("SELECT 1") },
		"begin below":   func(db *DB) { _, _ = db.Pool().Begin() },
		"prepare below": func(db *DB) { _, _ = db.Pool().Prepare("x") },
		"commit": func(db *DB) {
			_ = db.InTx(context.Background(), nil, func(context.Context, *sql.Tx) error { return nil })
		},
		"rollback": func(db *DB) {
			tx, err := db.Begin()
			check(t, err)
			_ = tx.Rollback()
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, s := newFakeGate(1), &server{kind: modern}
				fails := errors.New("the statement is wrong")
				fault := map[string]string{"begin": "begintx", "prepare": "preparectx", "commit": "commit"} // where they succeed, the classifier is not called
				if op, _, _ := strings.Cut(what, " "); fault[op] != "" {
					s.on(fault[op], func(context.Context, *core) error { return fails })
				}
				db := New(s, g, WithClassify(func(context.Context, error) weir.Outcome { panic("classify") }))
				defer db.Close()
				if recovered(func() { call(db) }) == nil {
					t.Error("no panic")
				}
				if g.held() != 0 {
					t.Error("the permit is held")
				}
			})
		})
	}
}

// A driver that panics at the end of a transaction leaves no permit behind, either.
func TestPanicAtTheEnd(t *testing.T) {
	for what, end := range map[string]func(*sql.Tx) error{"commit": (*sql.Tx).Commit, "rollback": (*sql.Tx).Rollback} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, s := newFakeGate(1), &server{kind: modern}
				db := New(s, g)
				defer db.Close()
				tx, err := db.Begin()
				check(t, err)
				s.on(what, panics)
				if recovered(func() { _ = end(tx) }) == nil {
					t.Error("no panic")
				}
				if g.held() != 0 {
					t.Error("the permit is held")
				}
			})
		})
	}
}

// Drivers of every age give their permits back.
func TestEndsOnAllKinds(t *testing.T) {
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			inBubble(t, kind, 2, func(t *testing.T, db *DB, g *fakeGate, s *server) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				_, err := db.ExecContext(ctx, "x", 1)
				check(t, err)
				_, err = db.Pool().ExecContext(ctx, "x", 1) // a driver may need a statement for it
				check(t, err)
				rows, err := db.QueryContext(ctx, "SELECT 1")
				check(t, err)
				if g.held() != 1 {
					t.Errorf("%d held with rows open", g.held())
				}
				check(t, rows.Close())
				tx, err := db.BeginTx(ctx, nil)
				check(t, err)
				_, err = tx.ExecContext(ctx, "x")
				check(t, err)
				check(t, tx.Commit())
				st, err := db.Stmt(ctx, "SELECT 1")
				check(t, err)
				rows, err = st.QueryContext(ctx)
				check(t, err)
				if g.held() != 1 {
					t.Errorf("%d held with rows of a statement open", g.held())
				}
				check(t, rows.Close())
				check(t, st.Close())
				_, err = db.BeginTx(ctx, nil)
				check(t, err)
				cancel()
				synctest.Wait()
				if g.held() != 0 {
					t.Errorf("%d held", g.held())
				}
				if got := g.outcomes(); got != "[ok ok ok ok no_sample ok abandoned]" {
					t.Errorf("sampled %s", got)
				}
			})
		})
	}
}

// Work that waits has no connection, and work from below the pool does not wait.
func TestWhoWaits(t *testing.T) {
	inBubble(t, modern, 1, func(t *testing.T, db *DB, g *fakeGate, s *server) {
		bare, err := db.Prepare("SELECT 1")
		check(t, err)
		guarded, err := db.Stmt(t.Context(), "SELECT 1")
		check(t, err)
		rows, err := db.Query("SELECT 1")
		check(t, err)
		calls := map[string]func() error{
			"exec":     func() error { _, err := db.Exec("x"); return err },
			"begin":    func() error { return db.InTx(t.Context(), nil, func(context.Context, *sql.Tx) error { return nil }) },
			"row":      func() error { var a int; return db.QueryRow("SELECT 1").Scan(&a) },
			"stmt":     func() error { _, err := guarded.Exec(); return err },
			"stmt row": func() error { var a int; return guarded.QueryRow().Scan(&a) },
		}
		done := make(chan error)
		for _, call := range calls {
			go func() { done <- call() }()
		}
		synctest.Wait()
		if n := db.Stats().InUse; n != 1 {
			t.Errorf("%d connections in use by one that works and %d that wait", n, len(calls))
		}
		for name, call := range map[string]func() error{
			"exec":  func() error { _, err := bare.Exec(); return err },
			"query": func() error { _, err := bare.Query(); return err },
			"row":   func() error { var a int; return bare.QueryRow().Scan(&a) },
			"pool":  func() error { _, err := db.Pool().Exec("x"); return err },
			"begin": func() error { _, err := db.Pool().Begin(); return err },
		} {
			if r := weir.AsRejection(call()); r == nil || r.Reason != weir.ReasonLimit {
				t.Errorf("%s below the pool is not refused: %v", name, r)
			}
		}
		check(t, rows.Close())
		for range calls {
			check(t, <-done)
		}
		check(t, bare.Close())
		check(t, guarded.Close())
	})
}

// Every method returns a refusal. The gate is asked once, and no connection is used.
func TestRefusals(t *testing.T) {
	rejection := &weir.Rejection{Gate: "db", Reason: weir.ReasonQueueFull, Retryable: true, Cause: driver.ErrBadConn}
	inBubble(t, modern, 1, func(t *testing.T, db *DB, g *fakeGate, s *server) {
		bare, err := db.Prepare("SELECT 1")
		check(t, err)
		guarded, err := db.Stmt(t.Context(), "SELECT 1")
		check(t, err)
		ctx := t.Context()
		g.refuse = rejection
		var a int
		above := map[string]func() error{
			"exec":       func() error { _, err := db.Exec("x"); return err },
			"query":      func() error { _, err := db.Query("SELECT 1"); return err },
			"row":        func() error { return db.QueryRow("SELECT 1").Scan(&a) },
			"begin":      func() error { _, err := db.Begin(); return err },
			"in tx":      func() error { return db.InTx(ctx, nil, nil) },
			"conn":       func() error { _, err := db.Conn(ctx); return err },
			"prepare":    func() error { _, err := db.Prepare("x"); return err },
			"stmt":       func() error { _, err := db.Stmt(ctx, "x"); return err },
			"ping":       db.Ping,
			"stmt exec":  func() error { _, err := guarded.Exec(); return err },
			"stmt query": func() error { _, err := guarded.Query(); return err },
			"stmt row":   func() error { return guarded.QueryRow().Scan(&a) },
			"bare exec":  func() error { _, err := bare.Exec(); return err },
			"bare query": func() error { _, err := bare.Query(); return err },
			"pool":       func() error { _, err := db.Pool().Query("SELECT 1"); return err },
			"pool begin": func() error { _, err := db.Pool().Begin(); return err },
		}
		for name, call := range above {
			s.calls()
			asked := len(g.works)
			err := call()
			if weir.AsRejection(err) != rejection || !errors.Is(err, weir.ErrRejected) || errors.Is(err, driver.ErrBadConn) {
				t.Errorf("%s: %v", name, err)
			}
			if err.Error() != rejection.Error() {
				t.Errorf("%s: says %q", name, err)
			}
			if n := len(g.works) - asked; n != 1 {
				t.Errorf("%s: the gate was asked %d times", name, n)
			}
			for _, c := range s.calls() {
				if _, op, _ := strings.Cut(c, " "); !slices.Contains([]string{"reset", "valid", "inputs"}, op) {
					t.Errorf("%s: the driver was asked: %s", name, c)
				}
			}
		}
		check(t, bare.Close())
		check(t, guarded.Close())
	})
}

// The gate gets the right Work for each call.
func TestWork(t *testing.T) {
	name := WithWork(func(_ context.Context, query string, w *weir.Work) { w.Tenant = query })
	inBubble(t, modern, 1, func(t *testing.T, db *DB, g *fakeGate, s *server) {
		_, _ = db.Exec("a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		by, _ := ctx.Deadline()
		_, _ = db.ExecContext(ctx, "b")
		_ = db.QueryRowContext(ctx, "SELECT 1").Scan(new(int))
		check(t, db.PingContext(ctx))
		tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
		check(t, err)
		check(t, tx.Rollback())
		_, _ = db.Pool().ExecContext(ctx, "c")
		tx, err = db.Pool().BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
		check(t, err)
		check(t, tx.Rollback())
		c, err := db.Conn(ctx) // which bounds the wait only
		check(t, err)
		check(t, c.Close())
		want := []weir.Work{
			{Op: "exec", Tenant: "a", Write: true},
			{Op: "exec", Tenant: "b", Write: true, Deadline: by},
			{Op: "query", Tenant: "SELECT 1", Deadline: by},
			{Op: "ping", Exempt: true, Deadline: by},
			{Op: "begin", Deadline: by},
			{Op: "exec", Tenant: "c", Write: true, MaxWait: weir.NoWait, Deadline: by},
			{Op: "begin", MaxWait: weir.NoWait, Deadline: by},
			{Op: "conn", Write: true},
		}
		for i, w := range want {
			if i >= len(g.works) || g.works[i] != w {
				t.Errorf("%d: %+v, want %+v", i, g.works[i:], w)
			}
		}
	}, name)
}

// Work that would have to wait beyond its deadline is refused at once, with the numbers. The context of a Conn
// bounds the wait only, so a Conn waits.
func TestRefusedBeforeItsDeadline(t *testing.T) {
	for name, tt := range map[string]struct {
		call func(ctx context.Context, db *DB) error
		took time.Duration
	}{
		"exec":        {func(ctx context.Context, db *DB) error { _, err := db.ExecContext(ctx, "x"); return err }, 0},
		"transaction": {func(ctx context.Context, db *DB) error { return db.InTx(ctx, nil, nil) }, 0},
		"conn":        {func(ctx context.Context, db *DB) error { _, err := db.Conn(ctx); return err }, 500 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &server{kind: modern}
			db, err := Open(s, 4, limit.Config{Limit: 1, Queue: limit.Queue{Order: limit.FIFO, MaxWait: time.Hour}})
			check(t, err)
			defer db.Close()
			s.on("exec", func(context.Context, *core) error { time.Sleep(100 * time.Millisecond); return nil })
			var work sync.WaitGroup
			for range 40 {
				work.Go(func() {
					if _, err := db.Exec("x"); err != nil {
						t.Error(err)
					}
				})
			}
			time.Sleep(2050 * time.Millisecond) // half of them are done, and the gate knows how long that takes
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			began := time.Now()
			r := weir.AsRejection(tt.call(ctx, db))
			if took := time.Since(began); took != tt.took || r == nil || r.Reason != weir.ReasonDeadline {
				t.Errorf("%s: %v after %v, want a rejection for the deadline after %v", name, r, took, tt.took)
			} else if took == 0 && !(r.Limit > 0.49 && r.Limit <= 0.5 && r.Value > 1 && r.RetryAfter > 0) {
				t.Errorf("%s: it says %v", name, r)
			}
			work.Wait()
		})
	}
}

// A DB has every method of a sql.DB, with the same signature. So it fits wherever an interface is wanted.
func TestMethods(t *testing.T) {
	own, std := reflect.TypeFor[*DB](), reflect.TypeFor[*sql.DB]()
	for n := range std.NumMethod() {
		m := std.Method(n)
		got, ok := own.MethodByName(m.Name)
		if !ok {
			t.Errorf("there is no %s", m.Name)
			continue
		}
		for i := 1; i < m.Type.NumIn(); i++ {
			if got.Type.NumIn() != m.Type.NumIn() || got.Type.In(i) != m.Type.In(i) {
				t.Errorf("%s is a %v, want %v", m.Name, got.Type, m.Type)
			}
		}
		for i := range m.Type.NumOut() {
			if got.Type.NumOut() != m.Type.NumOut() || got.Type.Out(i) != m.Type.Out(i) {
				t.Errorf("%s is a %v, want %v", m.Name, got.Type, m.Type)
			}
		}
	}
}

// No gate admits everything.
func TestNoGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{kind: modern}
		db := New(s, nil)
		defer db.Close()
		check(t, db.InTx(t.Context(), nil, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.Exec("x")
			return err
		}))
		_, err := db.Exec("x")
		check(t, err)
	})
}
