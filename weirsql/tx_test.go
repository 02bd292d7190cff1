package weirsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
)

// told returns the statements that the driver was asked to carry out in transactions.
func told(s *server) (texts []string) {
	for _, call := range s.calls() {
		for _, op := range []string{"exec", "preparectx", "prepare", "query"} {
			if text, ok := strings.CutPrefix(call, "#1 "+op+" ["); ok {
				text, _, _ = strings.Cut(text, " [")
				texts = append(texts, strings.TrimSuffix(text, "]"))
			}
		}
	}
	return texts
}

// In a transaction the database is told before each statement how long the statement may take.
func TestBudgetInTransaction(t *testing.T) {
	for _, name := range []string{"modern", "prepare", "ancient"} {
		inBubble(t, kinds[name], 1, func(t *testing.T, db *DB, g *fakeGate, s *server) {
			tx, err := db.Begin()
			check(t, err)
			exec := func(left time.Duration, want ...string) {
				t.Helper()
				s.calls()
				ctx := t.Context()
				if left != 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, left)
					defer cancel()
				}
				_, _ = tx.ExecContext(ctx, "x")
				got := told(s)
				if name != "modern" { // what is carried out was prepared before
					slices.Sort(got)
				}
				if !slices.Equal(got, want) {
					t.Errorf("%s, %v left: %q, want %q", name, left, got, want)
				}
			}
			exec(0, "x")
			exec(time.Second, "SET LOCAL statement_timeout TO 500", "x")
			exec(time.Microsecond, "SET LOCAL statement_timeout TO 1", "x")
			exec(0, "SET LOCAL statement_timeout TO DEFAULT", "x")
			check(t, tx.Commit())
			tx, err = db.Begin() // another one, where nothing was told
			check(t, err)
			exec(0, "x")
			check(t, tx.Commit())
		}, WithBudget(0.5, LocalTimeout))
	}
}

// A prepared statement and a query in a transaction have budgets as well. If the database refuses the text, the
// statement returns that error.
func TestBudgetOfStatements(t *testing.T) {
	inBubble(t, modern, 1, func(t *testing.T, db *DB, g *fakeGate, s *server) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		tx, err := db.BeginTx(ctx, nil)
		check(t, err)
		st, err := tx.PrepareContext(ctx, "SELECT 1")
		check(t, err)
		s.calls()
		_, err = st.ExecContext(ctx)
		check(t, err)
		check(t, st.QueryRowContext(ctx).Scan(new(int)))
		check(t, tx.QueryRowContext(ctx, "SELECT 2").Scan(new(int)))
		const set = "SET LOCAL statement_timeout TO 2500"
		if got, want := told(s), []string{set, set, set, "SELECT 2"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		s.on("exec", fails(stateError("42601")))
		if _, err := tx.QueryContext(ctx, "SELECT 2"); !errors.Is(err, stateError("42601")) {
			t.Error(err)
		}
		check(t, tx.Rollback())
	}, WithBudget(0.25, LocalTimeout))
}

// A failed transaction takes no time-out. A rollback to a savepoint is sent all the same.
func TestBudgetAfterFailure(t *testing.T) {
	for _, name := range []string{"modern", "ancient"} {
		inBubble(t, kinds[name], 1, func(t *testing.T, db *DB, g *fakeGate, s *server) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			tx, err := db.BeginTx(ctx, nil)
			check(t, err)
			s.calls()
			first := true
			failed := func(_ context.Context, op string, _ *core) error {
				if first && (op == "exec" || op == "stmt exec") {
					first = false
					return stateError("25P02")
				}
				return nil
			}
			s.mu.Lock()
			s.fault = failed
			s.mu.Unlock()
			_, err = tx.ExecContext(ctx, "ROLLBACK TO s")
			check(t, err)
			got := told(s)
			slices.Sort(got) // what is carried out was prepared before
			if want := []string{"ROLLBACK TO s", "SET LOCAL statement_timeout TO 10000"}; !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
			check(t, tx.Commit())
		}, WithBudget(1, LocalTimeout))
	}
}

// A deadline in the far future is a deadline like any other.
func TestBudgetOfFarDeadline(t *testing.T) {
	for _, share := range []float64{1, 0.9999} {
		inBubble(t, modern, 1, func(t *testing.T, db *DB, g *fakeGate, s *server) {
			ctx, cancel := context.WithDeadline(t.Context(), time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC))
			defer cancel()
			s.on("exec", func(ctx context.Context, _ *core) error { return ctx.Err() })
			_, err := db.ExecContext(ctx, "x")
			check(t, err)
			s.calls()
			tx, err := db.BeginTx(ctx, nil)
			check(t, err)
			_, err = tx.ExecContext(ctx, "x")
			check(t, err)
			if got, want := told(s), []string{"SET LOCAL statement_timeout TO 2147483647", "x"}; !slices.Equal(got, want) {
				t.Errorf("a share of %v: %q, want %q", share, got, want)
			}
			check(t, tx.Commit())
		}, WithBudget(share, LocalTimeout))
	}
}

// No budget is more than the time left, whatever the share.
func TestBudgetIsNoMoreThanIsLeft(t *testing.T) {
	inBubble(t, modern, 1, func(t *testing.T, db *DB, g *fakeGate, s *server) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		check(t, db.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "x")
			return err
		}))
		if got, want := told(s), []string{"SET LOCAL statement_timeout TO 10000", "x"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}, WithBudget(7, LocalTimeout))
}

// The timer of a budget ends with its statement. The context does not end then: rows that were closed in order
// would seem to have been cancelled.
func TestBudgetEndsWithItsStatement(t *testing.T) {
	inBubble(t, modern, 1, func(t *testing.T, db *DB, g *fakeGate, s *server) {
		ctx, cancel := context.WithTimeout(t.Context(), 1000*time.Hour)
		defer cancel()
		var bounded context.Context
		s.on("", func(ctx context.Context, _ *core) error {
			if _, ok := ctx.Deadline(); ok {
				bounded = ctx
			}
			return nil
		})
		free := func(what string) {
			t.Helper()
			over := bounded.Err()
			time.Sleep(100 * time.Hour) // more than the budget
			if over != nil || bounded.Err() != nil {
				t.Errorf("the context of %s ends with %v, and its timer says %v", what, over, bounded.Err())
			}
		}
		_, err := db.ExecContext(ctx, "x")
		check(t, err)
		free("an exec")
		rows, err := db.QueryContext(ctx, "SELECT 1")
		check(t, err)
		check(t, rows.Close())
		free("rows")
		rows, err = db.QueryContext(ctx, "SELECT 1")
		check(t, err)
		time.Sleep(100 * time.Hour)
		if !errors.Is(rows.Err(), context.DeadlineExceeded) {
			t.Errorf("rows that are open after the budget: %v", rows.Err())
		}
		check(t, rows.Close())
	}, WithBudget(0.05, nil))
}

// Rows that are closed within their budget have no error.
func TestBudgetOfClosedRows(t *testing.T) {
	inBubble(t, modern, 1, func(t *testing.T, db *DB, g *fakeGate, s *server) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		for range 500 { // database/sql chooses by chance between what has ended
			rows, err := db.QueryContext(ctx, "SELECT 1")
			check(t, err)
			rows.Next()
			check(t, rows.Close())
			synctest.Wait()
			check(t, rows.Err())
		}
	}, WithBudget(0.5, nil))
}

// Outside of transactions a budget is a deadline of the context, and never later than the caller's.
func TestBudgetOutside(t *testing.T) {
	for share, want := range map[float64]time.Duration{0.25: time.Second, 1: 4 * time.Second, 7: 4 * time.Second, -1: 4 * time.Second, 0: 4 * time.Second} {
		inBubble(t, modern, 1, func(t *testing.T, db *DB, g *fakeGate, s *server) {
			st, err := db.Stmt(t.Context(), "SELECT 1")
			check(t, err)
			s.on("", func(ctx context.Context, c *core) error {
				if ctx.Done() == nil {
					return nil
				}
				return blocks(ctx, c)
			})
			for name, call := range map[string]func(context.Context) error{
				"exec":      func(ctx context.Context) error { _, err := db.ExecContext(ctx, "x"); return err },
				"query":     func(ctx context.Context) error { _, err := db.QueryContext(ctx, "SELECT 1"); return err },
				"row":       func(ctx context.Context) error { return db.QueryRowContext(ctx, "SELECT 1").Scan(new(int)) },
				"stmt exec": func(ctx context.Context) error { _, err := st.ExecContext(ctx); return err },
				"stmt row":  func(ctx context.Context) error { return st.QueryRowContext(ctx).Scan(new(int)) },
			} {
				ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
				began := time.Now()
				if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: %v", name, err)
				}
				if took := time.Since(began); took != want {
					t.Errorf("a share of %v: %s was cut off after %v, want %v", share, name, took, want)
				}
				cancel()
			}
			s.on("", fails(nil))
			check(t, st.Close())
		}, WithBudget(share, LocalTimeout))
	}
}

// If the server may still work after its client has left, the permit is held for the expected rest of the work.
func TestHold(t *testing.T) {
	call := func(db *DB, ctx context.Context) error { _, err := db.ExecContext(ctx, "x"); return err }
	inBubble(t, modern, 1, func(t *testing.T, db *DB, g *fakeGate, s *server) {
		held := func(leave, want time.Duration) {
			t.Helper()
			s.on("exec", blocks)
			ctx, cancel := context.WithTimeout(t.Context(), leave)
			defer cancel()
			if call(db, ctx) == nil {
				t.Error("no error")
			}
			s.on("exec", fails(nil))
			began := time.Now()
			check(t, call(db, t.Context())) // waits for the slot
			if took := time.Since(began); took != want {
				t.Errorf("held for %v after %v, want %v", took, leave, want)
			}
		}
		held(time.Second, time.Second) // no mean is known yet: as long again
		s.on("exec", func(context.Context, *core) error { time.Sleep(2 * time.Second); return nil })
		for range 200 {
			check(t, call(db, t.Context()))
		}
		if d := 2*time.Second - time.Duration(db.guard.holds.mean.Load()); d < 0 || d > 50*time.Millisecond {
			t.Errorf("the mean is off by %v", d)
		}
		db.guard.holds.mean.Store(int64(2 * time.Second))
		held(time.Millisecond, 2*time.Second) // the mean
		db.guard.holds.mean.Store(int64(2 * time.Second))
		held(time.Minute, 5*time.Second) // no more than the longest
	}, WithHold(5*time.Second))
}

// A call that waited in the gate is held for the time that the driver took, without the wait.
func TestHoldsWithoutTheWait(t *testing.T) {
	inBubble(t, modern, 1, func(t *testing.T, db *DB, g *fakeGate, s *server) {
		rows, err := db.Query("SELECT 1")
		check(t, err)
		time.AfterFunc(time.Hour, func() { _ = rows.Close() })
		s.on("exec", blocks)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour+time.Second)
		defer cancel()
		if _, err := db.ExecContext(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		s.on("exec", fails(nil))
		began := time.Now()
		_, err = db.Exec("x")
		check(t, err)
		if took := time.Since(began); took != time.Second {
			t.Errorf("held for %v after a wait of an hour and a second of work", took)
		}
	}, WithHold(24*time.Hour))
}

// The mean counts calls of the driver, each with no more than the longest. It does not count how long their
// connection was in use.
func TestMeanOfHolds(t *testing.T) {
	pause := func() { time.Sleep(time.Hour) }
	takes := func(d time.Duration) func(context.Context, *core) error {
		return func(context.Context, *core) error { time.Sleep(d); return nil }
	}
	exec := func(db *DB) error { _, err := db.Exec("x"); return err }
	for name, tt := range map[string]struct {
		op    string
		takes time.Duration
		use   func(db *DB) error
		want  time.Duration
	}{
		"exec":      {"exec", time.Second, exec, time.Second},
		"slow exec": {"exec", time.Hour, exec, time.Minute},
		"rows read slowly": {"query", time.Second, func(db *DB) error {
			rows, err := db.Query("SELECT 1")
			if err != nil {
				return err
			}
			pause()
			return rows.Close()
		}, time.Second},
		"transaction": {"exec", time.Second, func(db *DB) error {
			return db.InTx(context.Background(), nil, func(_ context.Context, tx *sql.Tx) error {
				pause()
				_, err := tx.Exec("x")
				pause()
				return err
			})
		}, time.Second},
		"conn": {"exec", time.Second, func(db *DB) error {
			c, err := db.Conn(context.Background())
			if err != nil {
				return err
			}
			defer c.Close()
			pause()
			_, err = c.ExecContext(context.Background(), "x")
			pause()
			return err
		}, time.Second},
		"ping": {"ping", time.Second, (*DB).Ping, 0},
		"prepare": {"preparectx", time.Second, func(db *DB) error {
			st, err := db.Prepare("SELECT 1")
			if err != nil {
				return err
			}
			return st.Close()
		}, 0},
	} {
		inBubble(t, modern, 1, func(t *testing.T, db *DB, g *fakeGate, s *server) {
			s.on(tt.op, takes(tt.takes))
			check(t, tt.use(db))
			if got := time.Duration(db.guard.holds.mean.Load()); got != tt.want {
				t.Errorf("%s: the mean is %v, want %v", name, got, tt.want)
			}
		}, WithHold(time.Minute))
	}
}

// The context of the statement counts, with its budget, also in a transaction or on a Conn.
func TestHoldsStatements(t *testing.T) {
	dies := func(ctx context.Context, c *core) error { _ = blocks(ctx, c); c.dead = true; return ctx.Err() }
	for name, use := range map[string]func(ctx context.Context, db *DB) error{
		"exec": func(ctx context.Context, db *DB) error { _, err := db.ExecContext(ctx, "x"); return err },
		"transaction": func(ctx context.Context, db *DB) error {
			return db.InTx(context.Background(), nil, func(_ context.Context, tx *sql.Tx) error { _, err := tx.ExecContext(ctx, "x"); return err })
		},
		"conn": func(ctx context.Context, db *DB) error {
			c, err := db.Conn(context.Background())
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.ExecContext(ctx, "x")
			return err
		},
	} {
		inBubble(t, modern, 1, func(t *testing.T, db *DB, g *fakeGate, s *server) {
			s.on("exec", dies)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if err := use(ctx, db); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
			if g.held() != 1 {
				t.Errorf("%s: the permit is free while the server works on", name)
			}
			s.on("exec", fails(nil))
			check(t, use(t.Context(), db)) // waits for the slot
			synctest.Wait()
			if g.held() != 0 {
				t.Errorf("%s: what was answered is held", name)
			}
		}, WithBudget(0.5, nil), WithHold(time.Minute))
	}
}

// cutOff leaves rows open until their context ends.
func cutOff(ctx context.Context, rows *sql.Rows, err error) error {
	if err != nil {
		return err
	}
	rows.Next()
	<-ctx.Done()
	synctest.Wait()
	return rows.Err()
}

// Rows of a transaction or a Conn that their context has cut off are held, because their connection is broken.
func TestHoldsRowsCutOff(t *testing.T) {
	onConn := func(ctx context.Context, c *sql.Conn, err error) error {
		if err != nil {
			return err
		}
		defer c.Close()
		rows, err := c.QueryContext(ctx, "SELECT 1")
		return cutOff(ctx, rows, err)
	}
	for name, use := range map[string]func(ctx context.Context, db *DB) error{
		"transaction": func(ctx context.Context, db *DB) error {
			return db.InTx(context.Background(), nil, func(_ context.Context, tx *sql.Tx) error {
				rows, err := tx.QueryContext(ctx, "SELECT 1")
				return cutOff(ctx, rows, err)
			})
		},
		"statement of a transaction": func(ctx context.Context, db *DB) error {
			return db.InTx(context.Background(), nil, func(_ context.Context, tx *sql.Tx) error {
				st, err := tx.PrepareContext(context.Background(), "SELECT 1")
				if err != nil {
					return err
				}
				rows, err := st.QueryContext(ctx)
				return cutOff(ctx, rows, err)
			})
		},
		"conn": func(ctx context.Context, db *DB) error {
			c, err := db.Conn(context.Background())
			return onConn(ctx, c, err)
		},
		"conn below the pool": func(ctx context.Context, db *DB) error {
			c, err := db.Pool().Conn(context.Background())
			return onConn(ctx, c, err)
		},
		"rows below the pool": func(ctx context.Context, db *DB) error {
			rows, err := db.Pool().QueryContext(ctx, "SELECT 1")
			return cutOff(ctx, rows, err)
		},
	} {
		inBubble(t, modern, 1, func(t *testing.T, db *DB, g *fakeGate, s *server) {
			s.fault = func(_ context.Context, op string, c *core) error {
				switch op {
				case "query", "stmt queryctx":
					time.Sleep(2 * time.Second)
				case "rows close":
					c.dead = true
				}
				return nil
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if err := use(ctx, db); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
			synctest.Wait()
			if g.held() != 1 {
				t.Errorf("%s: the permit is free while the server works on", name)
			}
			time.Sleep(2 * time.Second) // as long as the query took, without the time in which rows were read
			synctest.Wait()
			if g.held() != 0 {
				t.Errorf("%s: the permit is held for longer", name)
			}
		}, WithHold(time.Minute))
	}
}

// user is a transaction or a Conn.
type user interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}

// users begin each kind of user. end ends it.
var users = map[string]func(t *testing.T, db *DB) (u user, end func() error){
	"transaction": func(t *testing.T, db *DB) (user, func() error) {
		tx, err := db.Begin()
		check(t, err)
		return tx, tx.Rollback
	},
	"conn": func(t *testing.T, db *DB) (user, func() error) {
		c, err := db.Conn(context.Background())
		check(t, err)
		return c, c.Close
	},
}

// leaves is a fault of a server whose execs go on when their context ends, and whose queries take a second. Afterwards the
// connection is closed.
func leaves(ctx context.Context, op string, c *core) error {
	switch op {
	case "exec":
		<-ctx.Done()
		return ctx.Err()
	case "query":
		time.Sleep(time.Second)
	case "rows close":
		c.dead = true
	case "rollback", "valid":
		return driver.ErrBadConn
	}
	return nil
}

// A caller leaves a call of a second, and pauses before it ends its transaction or Conn. It holds the permit for what is
// left of a second more. Only where rows were cancelled, the second begins after the pause.
func TestHoldsWithoutThePause(t *testing.T) {
	exec := func(ctx context.Context, _ func(), u user) error {
		_, err := u.ExecContext(ctx, "x")
		return err
	}
	rows := func(ctx context.Context, _ func(), u user) error {
		rows, err := u.QueryContext(ctx, "SELECT 1")
		return cutOff(ctx, rows, err)
	}
	cancelled := func(ctx context.Context, cancel func(), u user) error {
		rows, err := u.QueryContext(ctx, "SELECT 1")
		cancel()
		return cutOff(ctx, rows, err)
	}
	for _, tt := range []struct {
		name        string
		leave       func(ctx context.Context, cancel func(), u user) error
		within      time.Duration
		pause, want time.Duration
	}{
		{"exec", exec, time.Second, 0, time.Second},
		{"exec", exec, time.Second, 600 * time.Millisecond, 400 * time.Millisecond},
		{"exec", exec, time.Second, time.Hour, 0},
		{"rows", rows, 3 * time.Second, 0, time.Second},
		{"rows", rows, 3 * time.Second, 600 * time.Millisecond, 400 * time.Millisecond},
		{"rows", rows, 3 * time.Second, time.Hour, 0},
		{"cancelled rows", cancelled, 3 * time.Second, 600 * time.Millisecond, time.Second},
		{"cancelled rows", cancelled, 3 * time.Second, time.Hour, time.Second},
	} {
		for name, open := range users {
			inBubble(t, modern, 1, func(t *testing.T, db *DB, g *fakeGate, s *server) {
				u, end := open(t, db)
				s.fault = leaves
				ctx, cancel := context.WithTimeout(t.Context(), tt.within)
				defer cancel()
				if err := tt.leave(ctx, cancel, u); err == nil || !errors.Is(err, ctx.Err()) {
					t.Errorf("%s of a %s: %v", tt.name, name, err)
				}
				time.Sleep(tt.pause)
				_ = end()
				began := time.Now()
				s.on("none", blocks)
				_, err := db.Exec("x") // waits for the slot
				check(t, err)
				if held := time.Since(began); held != tt.want {
					t.Errorf("%s of a %s: held for %v after a pause of %v, want %v", tt.name, name, held, tt.pause, tt.want)
				}
			}, WithHold(24*time.Hour))
		}
	}
}

// What a caller has left is over once the server answers something later on the same connection.
func TestHoldsNothingAfterALaterAnswer(t *testing.T) {
	for name, open := range users {
		inBubble(t, modern, 1, func(t *testing.T, db *DB, g *fakeGate, s *server) {
			u, end := open(t, db)
			s.fault = leaves
			db.guard.holds.mean.Store(int64(time.Minute))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := u.ExecContext(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
			st, err := u.PrepareContext(t.Context(), "x")
			check(t, err)
			check(t, st.Close())
			_ = end()
			if g.held() != 0 {
				t.Errorf("%s: the permit is held", name)
			}
		}, WithHold(time.Hour))
	}
}

// The permit of rows that are open when the budget ends is held, too. That of a caller that left before it had
// a connection is not.
func TestHoldsWhatTheServerHas(t *testing.T) {
	inBubble(t, modern, 1, func(t *testing.T, db *DB, g *fakeGate, s *server) {
		db.guard.holds.mean.Store(int64(time.Minute))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		s.on("connect", blocks)
		if _, err := db.ExecContext(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if g.held() != 0 {
			t.Error("what never had a connection is held")
		}
		s.on("connect", fails(nil))
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		rows, err := db.QueryContext(ctx, "SELECT 1")
		check(t, err)
		time.Sleep(6 * time.Second) // more than the budget
		if rows.Next() || g.held() != 0 {
			t.Error("rows that were cut off are held, although the driver has ended them on a sound connection")
		}
		s.on("valid", fails(errBroken))
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		rows, err = db.QueryContext(ctx, "SELECT 1")
		check(t, err)
		time.Sleep(6 * time.Second)
		if rows.Next() || g.held() != 1 {
			t.Error("the permit of rows is free while the server may send more")
		}
		s.on("valid", fails(nil))
		time.Sleep(time.Minute)
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		rows, err = db.QueryContext(ctx, "SELECT 1")
		check(t, err)
		check(t, rows.Close())
		if g.held() != 0 {
			t.Error("rows that were closed in time are held")
		}
		s.on("exec", blocks)
		if _, err := db.Pool().ExecContext(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if g.held() != 1 {
			t.Error("the permit of a statement below the pool is free while the server works on")
		}
		time.Sleep(time.Minute)
	}, WithBudget(0.5, nil), WithHold(time.Hour))
}

// A permit is not held once the server has answered. That is so for an exec that is done, an idle transaction
// that was rolled back, and a Conn whose context has ended. It is also so for a connection that answers again
// after an abandoned statement. Below the pool it is so for an exec, and for a Conn whose statements were done
// before their contexts ended.
func TestHoldsNothingAnswered(t *testing.T) {
	inBubble(t, modern, 1, func(t *testing.T, db *DB, g *fakeGate, s *server) {
		free := func(name string) {
			t.Helper()
			synctest.Wait()
			if g.held() != 0 {
				t.Errorf("%s is held", name)
			}
		}
		db.guard.holds.mean.Store(int64(time.Hour)) // so a permit held by mistake is noticed
		ctx, cancel := context.WithCancel(t.Context())
		s.on("exec", func(context.Context, *core) error { cancel(); return nil })
		_, err := db.ExecContext(ctx, "x")
		check(t, err)
		free("an exec")
		ctx, cancel = context.WithCancel(t.Context())
		_, err = db.BeginTx(ctx, nil)
		check(t, err)
		cancel()
		free("a transaction")
		ctx, cancel = context.WithCancel(t.Context())
		c, err := db.Conn(ctx)
		check(t, err)
		cancel()
		check(t, c.Close())
		free("a conn")
		left, leave := context.WithCancel(t.Context())
		s.on("exec", func(context.Context, *core) error { leave(); return context.Canceled })
		tx, err := db.Begin()
		check(t, err)
		_, _ = tx.ExecContext(left, "x")
		check(t, tx.Rollback())
		free("a transaction that was rolled back")
		c, err = db.Conn(t.Context())
		check(t, err)
		_, _ = c.ExecContext(left, "x")
		check(t, c.QueryRowContext(t.Context(), "SELECT 1").Scan(new(int)))
		check(t, c.Close())
		free("a conn that answers again")
		c, err = db.Conn(t.Context())
		check(t, err)
		ctx, cancel = context.WithCancel(t.Context())
		check(t, c.QueryRowContext(ctx, "SELECT 1").Scan(new(int)))
		cancel()
		s.on("valid", fails(errBroken))
		_, err = c.ExecContext(t.Context(), "x")
		check(t, err)
		_ = c.Close()
		free("a conn that broke after its last answer")
		ctx, cancel = context.WithCancel(t.Context())
		s.on("exec", func(context.Context, *core) error { cancel(); return nil })
		_, err = db.Pool().ExecContext(ctx, "x")
		check(t, err)
		free("an exec below the pool")
		for what, statement := range map[string]func(context.Context, *sql.Conn) error{
			"an exec": func(ctx context.Context, c *sql.Conn) error { _, err := c.ExecContext(ctx, "x"); return err },
			"a query": func(ctx context.Context, c *sql.Conn) error { return c.QueryRowContext(ctx, "SELECT 1").Scan(new(int)) },
		} {
			s.on("exec", fails(nil))
			c, err = db.Pool().Conn(t.Context())
			check(t, err)
			ctx, cancel = context.WithCancel(t.Context())
			check(t, statement(ctx, c))
			cancel()
			check(t, c.Close())
			free("a conn below the pool after " + what)
		}
	}, WithHold(time.Hour))
}

// What was rolled back is not held, although its connection is closed and its rows were cut off.
func TestHoldsNothingRolledBack(t *testing.T) {
	inBubble(t, kinds["all but valid"], 1, func(t *testing.T, db *DB, g *fakeGate, s *server) {
		ctx, cancel := context.WithCancel(t.Context())
		tx, err := db.BeginTx(ctx, nil)
		check(t, err)
		_, err = tx.QueryContext(ctx, "SELECT 1")
		check(t, err)
		time.Sleep(time.Second)
		cancel()
		synctest.Wait()
		if n := db.Stats().OpenConnections; n != 0 || g.held() != 0 {
			t.Errorf("%d permits are held, and %d connections are open", g.held(), n)
		}
	}, WithHold(time.Hour))
}

// A classifier of the user decides about outcomes, with the caller's own context.
func TestWithClassify(t *testing.T) {
	var mu sync.Mutex
	var seen []error
	inBubble(t, modern, 1, func(t *testing.T, db *DB, g *fakeGate, s *server) {
		s.on("exec", fails(errBroken))
		_, _ = db.Exec("x")
		if got := g.outcomes(); got != "[abandoned]" || len(seen) != 1 || seen[0] != errBroken {
			t.Errorf("%s of %v", got, seen)
		}
	}, WithClassify(func(ctx context.Context, err error) weir.Outcome {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, err)
		return weir.Abandoned
	}))
}

// A transaction that several goroutines use at once still has one permit.
func TestTxOfSeveralGoroutines(t *testing.T) {
	inBubble(t, modern, 2, func(t *testing.T, db *DB, g *fakeGate, s *server) {
		tx, err := db.Begin()
		check(t, err)
		s.on("exec", fails(stateError("40001")))
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				switch i % 4 {
				case 0, 1:
					_, _ = tx.Exec("x")
				case 2:
					if rows, err := tx.Query("SELECT 1"); err == nil {
						_ = rows.Close()
					}
				case 3:
					_ = tx.Rollback()
				}
			})
		}
		wg.Wait()
		if err := tx.Commit(); !errors.Is(err, sql.ErrTxDone) {
			t.Error(err)
		}
		if g.admitted != 1 || g.held() != 0 {
			t.Errorf("%d permits, %d held", g.admitted, g.held())
		}
	})
}

// A driver that blocks in Close holds no permit. A driver that ignores contexts holds one only while it works.
func TestDriversThatBlock(t *testing.T) {
	inBubble(t, modern, 1, func(t *testing.T, db *DB, g *fakeGate, s *server) {
		release := make(chan struct{})
		s.on("close", func(context.Context, *core) error { <-release; return nil })
		rows, err := db.Query("SELECT 1")
		check(t, err)
		db.SetMaxIdleConns(-1)
		closed := make(chan error)
		go func() { closed <- rows.Close() }()
		synctest.Wait()
		if g.held() != 0 {
			t.Error("a permit is held while a connection is closed")
		}
		close(release)
		check(t, <-closed)

		answers := make(chan struct{})
		s.on("exec", func(context.Context, *core) error { <-answers; return nil })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { _, err := db.ExecContext(ctx, "x"); done <- err }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		if g.held() != 1 {
			t.Error("the permit is free while the driver works on")
		}
		close(answers)
		check(t, <-done)
	})
}

// After the end of a use its context carries no permit. The next call with that context asks the gate like any
// other.
func TestContextOfAnEndedUse(t *testing.T) {
	inBubble(t, modern, 2, func(t *testing.T, db *DB, g *fakeGate, s *server) {
		var kept context.Context
		s.on("exec", func(ctx context.Context, _ *core) error { kept = ctx; return nil })
		_, err := db.Exec("x")
		check(t, err)
		_, err = db.Pool().ExecContext(kept, "x")
		check(t, err)
		if g.admitted != 2 {
			t.Errorf("%d permits", g.admitted)
		}
		other := New(&server{kind: modern}, newFakeGate(0))
		defer other.Close()
		s.on("exec", func(ctx context.Context, _ *core) error {
			_, err := other.Pool().ExecContext(ctx, "x") // a driver that uses another DB
			if weir.AsRejection(err) == nil {
				t.Errorf("the permit of one DB opens another: %v", err)
			}
			return nil
		})
		_, err = db.Exec("x")
		check(t, err)

		var inner context.Context
		check(t, db.InTx(t.Context(), nil, func(ctx context.Context, _ *sql.Tx) error { inner = ctx; return nil }))
		_, err = db.ExecContext(inner, "x")
		check(t, err)
		if g.admitted != 5 {
			t.Errorf("%d permits", g.admitted)
		}
	})
}
