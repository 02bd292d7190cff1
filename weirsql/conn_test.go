package weirsql

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/weir-go/weir"
)

// kinds are connections with each of the optional interfaces, alone and together.
var kinds = map[string]func(*core) driver.Conn{
	"modern":   modern,
	"ancient":  ancient,
	"skipping": skipping,
	"ping": func(c *core) driver.Conn {
		return struct {
			*core
			hasPing
		}{c, hasPing{c}}
	},
	"exec": func(c *core) driver.Conn {
		return struct {
			*core
			hasExec
		}{c, hasExec{c}}
	},
	"old exec and query": func(c *core) driver.Conn {
		return struct {
			*core
			hasOldExec
			hasOldQuery
		}{c, hasOldExec{c}, hasOldQuery{c}}
	},
	"old exec, reset": func(c *core) driver.Conn {
		return struct {
			*core
			hasOldExec
			hasReset
		}{c, hasOldExec{c}, hasReset{c}}
	},
	"query": func(c *core) driver.Conn {
		return struct {
			*core
			hasQuery
		}{c, hasQuery{c}}
	},
	"query, reset, valid": func(c *core) driver.Conn {
		return struct {
			*core
			hasQuery
			hasReset
			hasValid
		}{c, hasQuery{c}, hasReset{c}, hasValid{c}}
	},
	"prepare": func(c *core) driver.Conn {
		return struct {
			*core
			hasPrepare
		}{c, hasPrepare{c}}
	},
	"begin": func(c *core) driver.Conn {
		return struct {
			*core
			hasBegin
		}{c, hasBegin{c}}
	},
	"reset": func(c *core) driver.Conn {
		return struct {
			*core
			hasReset
		}{c, hasReset{c}}
	},
	"valid": func(c *core) driver.Conn {
		return struct {
			*core
			hasValid
		}{c, hasValid{c}}
	},
	"check": func(c *core) driver.Conn {
		return struct {
			*core
			hasCheck
		}{c, hasCheck{c}}
	},
	"check, exec": func(c *core) driver.Conn {
		return struct {
			*core
			hasCheck
			hasExec
		}{c, hasCheck{c}, hasExec{c}}
	},
	"convert": func(c *core) driver.Conn { return converting{c} },
	"convert, check": func(c *core) driver.Conn {
		return struct {
			converting
			hasCheck
		}{converting{c}, hasCheck{c}}
	},
	"all but exec": func(c *core) driver.Conn {
		return struct {
			*core
			hasPing
			hasQuery
			hasPrepare
			hasBegin
			hasReset
			hasValid
			hasCheck
		}{c, hasPing{c}, hasQuery{c}, hasPrepare{c}, hasBegin{c}, hasReset{c}, hasValid{c}, hasCheck{c}}
	},
	"all but reset": func(c *core) driver.Conn {
		return struct {
			*core
			hasPing
			hasExec
			hasQuery
			hasPrepare
			hasBegin
			hasValid
			hasCheck
		}{c, hasPing{c}, hasExec{c}, hasQuery{c}, hasPrepare{c}, hasBegin{c}, hasValid{c}, hasCheck{c}}
	},
	"all but valid": func(c *core) driver.Conn {
		return struct {
			*core
			hasPing
			hasExec
			hasQuery
			hasPrepare
			hasBegin
			hasReset
			hasCheck
		}{c, hasPing{c}, hasExec{c}, hasQuery{c}, hasPrepare{c}, hasBegin{c}, hasReset{c}, hasCheck{c}}
	},
}

// converting is a connection whose statements convert their arguments column by column.
type converting struct{ *core }

func (c converting) Prepare(query string) (driver.Stmt, error) {
	if err := c.do(context.Background(), "prepare", query); err != nil {
		return nil, err
	}
	return &convertStmt{oldStmt{c.core}}, nil
}

// database/sql makes the same calls to a driver, and returns the same results, whether its connections are
// wrapped or not.
func TestTransparent(t *testing.T) {
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bare, wrapped := &server{kind: kind}, &server{kind: kind}
				want := play(t, bare, sql.OpenDB(bare))
				got := play(t, wrapped, sql.OpenDB(Connector(wrapped, newFakeGate(8))))
				for i := range max(len(want), len(got)) {
					w, g := line(want, i), line(got, i)
					if w != g {
						t.Fatalf("line %d:\n%s\nwant\n%s\nafter\n%v", i, g, w, want[:min(i, len(want))])
					}
				}
			})
		})
	}
}

func line(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "nothing"
}

// play uses every part of a database, and returns the calls to the driver with their results.
func play(t *testing.T, s *server, db *sql.DB) (log []string) {
	ctx := t.Context()
	step := func(name string, f func() error) {
		err := f()
		synctest.Wait()
		log = append(log, name)
		log = append(log, s.calls()...)
		// The words are database/sql's own where it has noticed the fault, and ours where we have.
		log = append(log, fmt.Sprint(name, " failed: ", err != nil))
	}
	exec := func(args ...any) func() error {
		return func() error { _, err := db.ExecContext(ctx, "x", args...); return err }
	}
	query := func(args ...any) func() error {
		return func() error {
			rows, err := db.QueryContext(ctx, "SELECT 1", args...)
			if err == nil {
				err = rows.Close()
			}
			return err
		}
	}
	begin := func(ctx context.Context, opts *sql.TxOptions, end func(*sql.Tx) error) func() error {
		return func() error {
			tx, err := db.BeginTx(ctx, opts)
			if err != nil {
				return err
			}
			return end(tx)
		}
	}
	step("ping", func() error { return db.PingContext(ctx) })
	step("exec", exec(1, "a"))
	step("exec special", exec(special{1, 2}))
	step("exec named", exec(sql.Named("n", 1)))
	step("query", query(2))
	step("query special", query(special{1, 2}))
	step("query named", query(sql.Named("n", 1)))
	step("begin", begin(ctx, nil, (*sql.Tx).Commit))
	step("begin to read", begin(ctx, &sql.TxOptions{ReadOnly: true}, (*sql.Tx).Rollback))
	step("begin serializable", begin(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable}, (*sql.Tx).Rollback))
	step("prepared", func() error {
		st, err := db.PrepareContext(ctx, "SELECT 1")
		if err != nil {
			return err
		}
		if _, err = st.ExecContext(ctx, special{1, 2}); err == nil {
			_, err = st.ExecContext(ctx, 1)
		}
		rows, err2 := st.QueryContext(ctx, 3)
		if err2 == nil {
			err2 = rows.Close()
		}
		if err == nil {
			err = err2
		}
		_ = st.Close()
		return err
	})
	ending, cancel := context.WithCancel(ctx)
	step("context of a transaction ends", begin(ending, nil, func(*sql.Tx) error { cancel(); return nil }))
	step("after that", exec(1))
	ending, cancel = context.WithCancel(ctx)
	step("context of a transaction on a conn ends", func() error {
		c, err := db.Conn(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.BeginTx(ending, nil); err != nil {
			return err
		}
		cancel()
		synctest.Wait()
		_, err = c.ExecContext(ctx, "x")
		return err
	})
	step("after that", exec(1))
	ending, cancel = context.WithCancel(ctx)
	step("context of a transaction with statements ends", func() error {
		st, err := db.PrepareContext(ctx, "SELECT 1")
		if err != nil {
			return err
		}
		tx, err := db.BeginTx(ending, nil) // on the connection that has it
		if err != nil {
			return err
		}
		if rows, err := st.QueryContext(ctx); err == nil { // and on another
			_ = rows.Close()
		}
		_, err = tx.StmtContext(ctx, st).ExecContext(ctx)
		_, err2 := tx.PrepareContext(ctx, "SELECT 2")
		cancel()
		synctest.Wait()
		return errors.Join(err, err2, st.Close())
	})
	step("after that", exec(1))
	over, cancel := context.WithCancel(ctx)
	cancel()
	step("context that is over", func() error {
		c, err := db.Conn(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.ExecContext(over, "x")
		_, err2 := c.QueryContext(over, "x")
		synctest.Wait() // for what database/sql does in the background
		_, err3 := c.BeginTx(over, nil)
		synctest.Wait()
		_, err4 := c.PrepareContext(over, "x")
		return fmt.Errorf("%v %v %v %v", err, err2, err3, err4)
	})
	step("rows left to a context", func() error {
		ending, cancel := context.WithCancel(ctx)
		defer cancel()
		rows, err := db.QueryContext(ending, "SELECT 1")
		if err != nil {
			return err
		}
		rows.Next()
		return nil
	})
	s.on("", fails(driver.ErrBadConn))
	step("broken", exec(1))
	step("broken query", query(1))
	step("broken begin", begin(ctx, nil, (*sql.Tx).Commit))
	s.on("", fails(nil))
	step("close", db.Close)
	return log
}

// A rollback just after the context has ended returns the result of the rollback, and not that the connection
// will be closed. A Conn makes no further calls on that connection.
func TestRollbackAfterItsContext(t *testing.T) {
	inBubble(t, kinds["all but valid"], 2, func(t *testing.T, db *DB, g *fakeGate, s *server) {
		ctx, cancel := context.WithCancel(t.Context())
		tx, err := db.BeginTx(ctx, nil)
		check(t, err)
		cancel()
		if err := tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) { // database/sql may have been first
			t.Error(err)
		}
		c, err := db.Conn(t.Context())
		check(t, err)
		ctx, cancel = context.WithCancel(t.Context())
		_, err = c.BeginTx(ctx, nil)
		check(t, err)
		cancel()
		synctest.Wait()
		s.calls()
		if err := c.PingContext(t.Context()); !errors.Is(err, driver.ErrBadConn) {
			t.Errorf("a ping on it: %v", err)
		}
		if _, err := c.ExecContext(t.Context(), "x"); !errors.Is(err, sql.ErrConnDone) {
			t.Errorf("a statement on it: %v", err)
		}
		if got := s.calls(); len(got) != 1 || !strings.HasSuffix(got[0], " close") {
			t.Errorf("the driver was asked %q", got)
		}
	})
}

// A Connector asks the gate once for each use, and refuses without waiting.
func TestConnector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, s := newFakeGate(1), &server{kind: modern}
		db := sql.OpenDB(Connector(s, g))
		defer db.Close()
		refused := func(name string, err error) {
			t.Helper()
			if r := weir.AsRejection(err); r == nil {
				t.Errorf("%s: %v, want a refusal", name, err)
			}
		}
		tx, err := db.Begin()
		check(t, err)
		for range 3 {
			_, err = tx.Exec("x")
			check(t, err)
		}
		_, err = db.Exec("x")
		refused("exec", err)
		_, err = db.Query("SELECT 1")
		refused("query", err)
		refused("row", db.QueryRow("SELECT 1").Scan(new(int)))
		_, err = db.Prepare("SELECT 1")
		refused("prepare", err)
		_, err = db.Begin()
		refused("begin", err)
		check(t, db.Ping())
		check(t, tx.Commit())

		c, err := db.Conn(t.Context()) // holds none before it does something
		check(t, err)
		_, err = db.Exec("x")
		check(t, err)
		_, err = c.ExecContext(t.Context(), "x")
		check(t, err)
		_, err = db.Exec("x")
		refused("exec beside a conn", err)
		check(t, c.Close())
		rows, err := db.Query("SELECT 1")
		check(t, err)
		_, err = db.Exec("x")
		refused("exec beside rows", err)
		check(t, rows.Close())
		synctest.Wait()
		if g.held() != 0 || g.twice != 0 || g.admitted != 4 {
			t.Errorf("%d held, %d twice, %d admitted", g.held(), g.twice, g.admitted)
		}
	})
}

// tracing is a connector of somebody else above ours. Its connections show all but driver.Validator.
type tracing struct{ driver.Connector }

func (t tracing) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := t.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return struct {
		driver.Conn
		driver.ExecerContext
		driver.QueryerContext
		driver.ConnBeginTx
		driver.SessionResetter
	}{c, c.(driver.ExecerContext), c.(driver.QueryerContext), c.(driver.ConnBeginTx), c.(driver.SessionResetter)}, nil
}

// silent is a connector as tracing is. Its connections show no driver.SessionResetter either.
type silent struct{ driver.Connector }

func (t silent) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := t.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return struct {
		driver.Conn
		driver.ExecerContext
		driver.QueryerContext
		driver.ConnBeginTx
	}{c, c.(driver.ExecerContext), c.(driver.QueryerContext), c.(driver.ConnBeginTx)}, nil
}

// A wrapper that hides when a connection is given back leaves the permit to the connection until it is taken again. Each
// use asks the gate, and one line names the cause. A wrapper that hides the next use as well leaves it for good, and only the
// first use asks. Inside, and where nothing is hidden, the wrapper does no harm.
func TestWrapperHidesTheEnd(t *testing.T) {
	type wrap = func(driver.Connector, weir.Gate, *slog.Logger) driver.Connector
	for name, tt := range map[string]struct {
		wrap               wrap
		asked, held, lines int
	}{
		"above": {func(c driver.Connector, g weir.Gate, l *slog.Logger) driver.Connector {
			return tracing{Connector(c, g, WithLogger(l))}
		}, 9, 1, 1},
		"above, without a reset": {func(c driver.Connector, g weir.Gate, l *slog.Logger) driver.Connector {
			return silent{Connector(c, g, WithLogger(l))}
		}, 1, 1, 0},
		"inside": {func(c driver.Connector, g weir.Gate, l *slog.Logger) driver.Connector {
			return Connector(tracing{c}, g, WithLogger(l))
		}, 9, 0, 0},
		"none": {func(c driver.Connector, g weir.Gate, l *slog.Logger) driver.Connector {
			return Connector(c, g, WithLogger(l))
		}, 9, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			g := newFakeGate(1)
			db := sql.OpenDB(tt.wrap(&server{kind: modern}, g, slog.New(slog.NewTextHandler(&out, nil))))
			for range 3 {
				_, err := db.Exec("x")
				check(t, err)
				check(t, db.QueryRow("SELECT 1").Scan(new(int)))
				tx, err := db.Begin()
				check(t, err)
				check(t, tx.Commit())
			}
			if g.admitted != tt.asked || g.held() != tt.held {
				t.Errorf("%d uses asked, want %d; %d permits held, want %d", g.admitted, tt.asked, g.held(), tt.held)
			}
			if n := strings.Count(out.String(), "driver.Validator"); n != tt.lines {
				t.Errorf("%d lines, want %d: %s", n, tt.lines, &out)
			}
			check(t, db.Close())
			if g.held() != 0 || g.twice != 0 {
				t.Errorf("%d permits held at the end, %d given back twice", g.held(), g.twice)
			}
		})
	}
}

// closable is a connector that has something to close.
type closable struct {
	*server
	err error
}

func (c closable) Close() error { return c.err }

// A connector that can be closed is closed with the pool.
func TestConnectorCloses(t *testing.T) {
	failure := errors.New("the pipe is broken")
	if err := sql.OpenDB(Connector(closable{&server{kind: modern}, failure}, nil)).Close(); err != failure {
		t.Errorf("%v, want the connector's error", err)
	}
	check(t, sql.OpenDB(Connector(&server{kind: modern}, nil)).Close())
}

// Raw returns the wrapper. DriverConn unwraps it, and returns other connections as they are.
func TestDriver(t *testing.T) {
	for name, kind := range kinds {
		inBubble(t, kind, 1, func(t *testing.T, db *DB, g *fakeGate, s *server) {
			c, err := db.Conn(t.Context())
			check(t, err)
			check(t, c.Raw(func(dc any) error {
				inner := DriverConn(dc)
				if want := reflect.TypeOf(kind(nil)); reflect.TypeOf(inner) != want {
					t.Errorf("%s: a %T, want %v", name, inner, want)
				}
				if DriverConn(inner) != inner {
					t.Errorf("%s: the driver's own is changed", name)
				}
				return nil
			}))
			check(t, c.Close())
		})
	}
	if DriverConn(nil) != nil {
		t.Error("nil is something")
	}
}

// A wrapped connection shows ExecerContext, QueryerContext and SessionResetter as its driver does.
func TestShown(t *testing.T) {
	shown := func(c driver.Conn) []bool {
		_, e := c.(driver.ExecerContext)
		_, oldE := c.(oldExecer)
		_, q := c.(driver.QueryerContext)
		_, oldQ := c.(oldQueryer)
		_, r := c.(driver.SessionResetter)
		return []bool{e || oldE, q || oldQ, r}
	}
	for name, kind := range kinds {
		inner := kind(nil)
		if got, want := shown(wrap(inner, newGuard(nil, nil))), shown(inner); !slices.Equal(got, want) {
			t.Errorf("%s: shows %v, its driver %v", name, got, want)
		}
	}
}
