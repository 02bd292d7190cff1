//go:build integration

package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/bench/internal/rig"
	"github.com/weir-go/weir/internal/testbed/mariadb"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/weirsql"
)

// maria is a MariaDB, and a pool with nothing before it for what the tests do beside.
type maria struct {
	server *mariadb.Server
	bare   *sql.DB
}

func startMaria(t *testing.T) *maria {
	t.Helper()
	program, err := mariadb.Find()
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	m := new(maria)
	if m.server, err = mariadb.Start(t.Context(), mariadb.Config{Program: program, Ports: &rig.Ports}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.server.Stop(); err != nil {
			t.Error(err)
		}
	})
	m.bare = sql.OpenDB(m.connector(t, "weir", m.server.Password))
	t.Cleanup(func() { m.bare.Close() })
	for _, q := range []string{
		"CREATE TABLE rows_ (id INT PRIMARY KEY, n INT NOT NULL) ENGINE = InnoDB",
		"INSERT INTO rows_ VALUES (1, 0), (2, 0)",
		"CREATE USER few IDENTIFIED BY 'few' WITH MAX_USER_CONNECTIONS 1",
		"CREATE USER plain IDENTIFIED BY 'plain'",
	} {
		m.exec(t, q)
	}
	return m
}

func (m *maria) connector(t *testing.T, user, password string) driver.Connector {
	t.Helper()
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.User, cfg.Passwd = "tcp", m.server.Addr, user, password
	if user == "weir" {
		cfg.DBName = "weir"
	}
	cfg.Logger = new(mysql.NopLogger)
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (m *maria) exec(t *testing.T, query string, args ...any) {
	t.Helper()
	if _, err := m.bare.Exec(query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// working returns the ids of the connections whose statement the server works on, and has this mark.
func (m *maria) working(t *testing.T, mark string) []int {
	t.Helper()
	rows, err := m.bare.Query("SHOW FULL PROCESSLIST")
	if err != nil {
		t.Error(err)
		return nil
	}
	defer rows.Close()
	var ids []int
	for rows.Next() {
		var id int
		var user, host, db, command, state, info, progress sql.NullString
		var seconds sql.NullInt64
		if err := rows.Scan(&id, &user, &host, &db, &command, &seconds, &state, &info, &progress); err != nil {
			t.Error(err)
			return nil
		}
		if command.String != "Sleep" && strings.Contains(info.String, mark) {
			ids = append(ids, id)
		}
	}
	if err := rows.Err(); err != nil {
		t.Error(err)
	}
	return ids
}

// until returns when it is so. It gives up after a time that only a fault takes.
func until(t *testing.T, what string, so func() bool) {
	t.Helper()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(3 * time.Minute); !so(); <-again.C {
		if time.Now().After(end) {
			t.Fatalf("after three minutes still not: %s", what)
		}
	}
}

func number(err error) (uint16, bool) {
	var e *mysql.MySQLError
	if !errors.As(err, &e) {
		return 0, false
	}
	return e.Number, true
}

var classifyMaria = weirsql.ClassifyMySQL(number)

// open opens a DB with a limit, and without a queue: who cannot have a slot is refused.
func (m *maria) open(t *testing.T, fixed int64, done func(weir.Outcome), opts ...weirsql.Option) *weirsql.DB {
	t.Helper()
	cfg := limit.Config{Name: "db", Limit: fixed, Queue: limit.Queue{Len: -1}}
	if done != nil {
		cfg.Hooks.Done = func(_ string, o weir.Outcome, _ time.Duration) { done(o) }
	}
	db, err := weirsql.Open(m.connector(t, "weir", m.server.Password), int(fixed)+4, cfg, append(opts, weirsql.WithClassify(classifyMaria))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func inFlight(db interface{ Gate() weir.Gate }) int64 {
	return db.Gate().(weir.Snapshotter).Snapshot().InFlight
}

// abandon runs statements that their callers leave while the server works, one after the other, and returns how
// many were refused.
func (m *maria) abandon(t *testing.T, db *weirsql.DB, n int, query string) (refused int) {
	t.Helper()
	for i := range n {
		mark := fmt.Sprintf("/* %s %d %d */", t.Name(), i, time.Now().UnixNano())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := db.ExecContext(ctx, query+" "+mark)
			ended <- err
		}()
		var err error
		until(t, "the server works on it, or it has ended", func() bool {
			select {
			case err = <-ended:
				return true
			default:
				return len(m.working(t, mark)) > 0
			}
		})
		cancel()
		if err == nil {
			err = <-ended
		}
		switch {
		case errors.Is(err, weir.ErrRejected):
			refused++
		case !errors.Is(err, context.Canceled):
			t.Errorf("it ended with %v", err)
		}
	}
	return refused
}

// The driver closes the connection when a context ends, and MariaDB works on. Without a hold the next
// callers come on top; with one the limit is the server's, too.
func TestMariaDBHold(t *testing.T) {
	t.Parallel()
	m := startMaria(t)
	t.Run("without", func(t *testing.T) {
		const statement = "DO /* without */ SLEEP(600)"
		db := m.open(t, 2, nil)
		if refused := m.abandon(t, db, 6, statement); refused != 0 {
			t.Errorf("%d refused: the permits of those who left are not free", refused)
		}
		ids := m.working(t, "/* without */")
		if len(ids) != 6 {
			t.Errorf("the server works on %d statements, and not on all 6", len(ids))
		}
		for _, id := range ids {
			m.exec(t, fmt.Sprintf("KILL %d", id))
		}
	})
	t.Run("with", func(t *testing.T) {
		// The calls that are answered take 4 s, and those that are left 2 s. So a permit is free 2 s after
		// its statement has ended. A machine that is slow by more shows nothing.
		const answered, statement, mean, spare = "DO SLEEP(4)", "DO /* with */ SLEEP(2)", 4 * time.Second, 2 * time.Second
		db := m.open(t, 2, nil, weirsql.WithHold(time.Minute))
		if _, err := db.ExecContext(t.Context(), answered); err != nil {
			t.Fatal(err)
		}
		stop := m.watch(t, "/* with */")
		began := time.Now()
		refused, held := m.abandon(t, db, 6, statement), inFlight(db)
		if took := time.Since(began); took >= mean {
			t.Logf("six calls took %v: the machine is too slow to tell", took)
		} else if refused != 4 || held != 2 {
			t.Errorf("%d of 6 were refused, and %d permits are held; not the 4 above the limit, and 2", refused, held)
		}
		until(t, "a permit is free again", func() bool { return m.abandon(t, db, 1, statement) == 0 })
		if d := time.Since(began); d < mean {
			t.Errorf("a permit was free after %v, before %v had passed", d, mean)
		}
		until(t, "no permit is held", func() bool { return inFlight(db) == 0 })
		if most, gap := stop(); gap >= spare {
			t.Logf("for %v nobody looked: the machine is too slow to tell", gap)
		} else if most != 2 {
			t.Errorf("the server worked on %d statements at once; the limit is 2", most)
		}
	})
	t.Run("of a transaction", func(t *testing.T) { // with a context of its own, which the transaction outlives
		const mark = "/* tx */"
		db := m.open(t, 1, nil, weirsql.WithHold(time.Minute))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- db.InTx(t.Context(), nil, func(_ context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, "DO "+mark+" SLEEP(600)")
				return err
			})
		}()
		var ids []int
		until(t, "the server works on it", func() bool { ids = m.working(t, mark); return len(ids) > 0 })
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
		if n := inFlight(db); n != 1 || len(m.working(t, mark)) != 1 {
			t.Errorf("%d permits are held while the server works on", n)
		}
		m.exec(t, fmt.Sprintf("KILL %d", ids[0]))
	})
	t.Run("longest", func(t *testing.T) {
		const longest = 50 * time.Millisecond
		db := m.open(t, 1, nil, weirsql.WithHold(longest))
		m.abandon(t, db, 1, "DO SLEEP(2)")
		until(t, "no permit is held", func() bool { return inFlight(db) == 0 })
	})
}

// watch counts what the server works on, until it is stopped. Then it says how much that was at most, and the longest time
// between two looks.
func (m *maria) watch(t *testing.T, mark string) (stop func() (most int, gap time.Duration)) {
	var most int
	var gap time.Duration
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		again := time.NewTicker(10 * time.Millisecond)
		defer again.Stop()
		for last := time.Now(); ; last = time.Now() {
			most = max(most, len(m.working(t, mark)))
			select {
			case <-end:
				return
			case <-again.C:
			}
			gap = max(gap, time.Since(last))
		}
	})
	return func() (int, time.Duration) {
		close(end)
		wg.Wait()
		return most, gap
	}
}

// What a real server answers is classified as the documentation says, and no permit is left behind.
func TestMariaDBEnds(t *testing.T) {
	t.Parallel()
	m := startMaria(t)
	var mu sync.Mutex
	var outcomes []weir.Outcome
	db := m.open(t, 3, func(o weir.Outcome) {
		mu.Lock()
		defer mu.Unlock()
		outcomes = append(outcomes, o)
	})
	exec := func(query string) func(context.Context) error {
		return func(ctx context.Context) error { _, err := db.ExecContext(ctx, query); return err }
	}
	// while does something to the connection that works on a statement with this mark.
	while := func(mark, do string, run func(context.Context) error) func(context.Context) error {
		return func(ctx context.Context) error {
			ended := make(chan error, 1)
			go func() { ended <- run(ctx) }()
			var ids []int
			until(t, "the server works on it", func() bool { ids = m.working(t, mark); return len(ids) > 0 })
			m.exec(t, fmt.Sprintf(do, ids[0]))
			return <-ended
		}
	}
	inTx := func(queries ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			return db.InTx(ctx, nil, func(ctx context.Context, tx *sql.Tx) error {
				for _, q := range queries {
					if _, err := tx.ExecContext(ctx, q); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	holder, err := m.bare.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback()
	if _, err := holder.Exec("UPDATE rows_ SET n = 1 WHERE id = 1"); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		use    func(context.Context) error
		number uint16 // 0: no error; 1: one without a number
		want   weir.Outcome
	}{
		{"exec", exec("DO 1"), 0, weir.OK},
		{"lock wait time-out", exec("SET STATEMENT innodb_lock_wait_timeout = 1 FOR UPDATE rows_ SET n = 2 WHERE id = 1"), 1205, weir.Overload},
		{"lock, no wait", exec("SELECT n FROM rows_ WHERE id = 1 FOR UPDATE NOWAIT"), 1205, weir.Overload},
		{"lock wait in a transaction", inTx("DO 1", "SET STATEMENT innodb_lock_wait_timeout = 1 FOR UPDATE rows_ SET n = 2 WHERE id = 1"), 1205, weir.Overload},
		{"statement time", exec("SET STATEMENT max_statement_time = 0.1 FOR SELECT COUNT(*) FROM information_schema.collations a, information_schema.collations b, information_schema.collations c"), 1969, weir.Overload},
		{"query killed", while("/* q */", "KILL QUERY %d", exec("SELECT n FROM rows_ WHERE id = 1 FOR UPDATE /* q */")), 1317, weir.Overload},
		{"connection killed", while("/* c */", "KILL %d", exec("DO /* c */ SLEEP(600)")), 1, weir.Failed},
		{"connection killed in a transaction", while("/* t */", "KILL %d", inTx("DO /* t */ SLEEP(600)")), 1, weir.Failed},
		{"syntax", exec("DOO 1"), 1064, weir.OK},
		{"no such table", exec("SELECT 1 FROM nowhere"), 1146, weir.OK},
		{"duplicate", exec("INSERT INTO rows_ VALUES (2, 0)"), 1062, weir.OK},
		{"signal", exec("SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'"), 1644, weir.OK},
		{"no rows", func(ctx context.Context) error {
			err := db.QueryRowContext(ctx, "SELECT n FROM rows_ WHERE id = ?", 99).Scan(new(int))
			if !errors.Is(err, sql.ErrNoRows) {
				return fmt.Errorf("not ErrNoRows: %w", err)
			}
			return nil
		}, 0, weir.OK},
		{"row with arguments", func(ctx context.Context) error {
			return db.QueryRowContext(ctx, "SELECT n FROM rows_ WHERE id = ?", 2).Scan(new(int))
		}, 0, weir.OK},
		{"rows closed early", func(ctx context.Context) error {
			rows, err := db.QueryContext(ctx, "SELECT n FROM rows_")
			if err != nil {
				return err
			}
			rows.Next()
			return rows.Close()
		}, 0, weir.OK},
		{"rows left open until the context ends", func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			rows, err := db.QueryContext(ctx, "SELECT n FROM rows_ WHERE id > ?", 0)
			if err == nil {
				rows.Next()
			}
			cancel()
			return err
		}, 0, weir.OK},
		{"prepared", func(ctx context.Context) error {
			s, err := db.Stmt(ctx, "UPDATE rows_ SET n = ? WHERE id = 2")
			if err != nil {
				return err
			}
			_, err = s.ExecContext(ctx, 7)
			return errors.Join(err, s.Close())
		}, 0, weir.OK},
		{"prepared, duplicate", func(ctx context.Context) error {
			s, err := db.Stmt(ctx, "INSERT INTO rows_ VALUES (?, 0)")
			if err != nil {
				return err
			}
			defer s.Close()
			_, err = s.ExecContext(ctx, 2)
			return err
		}, 1062, weir.OK},
		{"commit", inTx("UPDATE rows_ SET n = 3 WHERE id = 2"), 0, weir.OK},
		{"conn", func(ctx context.Context) error {
			c, err := db.Conn(ctx)
			if err != nil {
				return err
			}
			_, err = c.ExecContext(ctx, "DO 1")
			return errors.Join(err, c.Close())
		}, 0, weir.NoSample},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			mu.Lock()
			outcomes = nil
			mu.Unlock()
			err := test.use(t.Context())
			n, _ := number(err)
			switch test.number {
			case 0:
				if err != nil {
					t.Error(err)
				}
			case 1:
				if err == nil {
					t.Error("no error")
				}
				t.Logf("%v", err)
			default:
				if n != test.number {
					t.Errorf("the error is %v, not number %d", err, test.number)
				}
			}
			until(t, "no permit is held", func() bool { return inFlight(db) == 0 })
			mu.Lock()
			defer mu.Unlock()
			if last := len(outcomes) - 1; last < 0 || outcomes[last] != test.want {
				t.Errorf("outcomes %v, and not %v at the end", outcomes, test.want)
			}
		})
	}
}

// Of two transactions that wait for each other one fails, and that is no sign of too much.
func TestMariaDBDeadlock(t *testing.T) {
	t.Parallel()
	m := startMaria(t)
	outcomes := make(chan weir.Outcome, 2)
	db := m.open(t, 2, func(o weir.Outcome) { outcomes <- o })
	var both sync.WaitGroup
	both.Add(2)
	cross := func(first, second int) error {
		return db.InTx(t.Context(), nil, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE rows_ SET n = n + 1 WHERE id = ?", first)
			both.Done()
			if err != nil {
				return err
			}
			both.Wait()
			_, err = tx.ExecContext(ctx, "UPDATE rows_ SET n = n + 1 WHERE id = ?", second)
			return err
		})
	}
	errs := make(chan error, 2)
	go func() { errs <- cross(1, 2) }()
	go func() { errs <- cross(2, 1) }()
	won, lost := <-errs, <-errs
	if won != nil {
		won, lost = lost, won
	}
	if n, _ := number(lost); won != nil || n != 1213 {
		t.Errorf("one ended with %v, the other with %v", won, lost)
	}
	seen := map[weir.Outcome]int{<-outcomes: 1}
	seen[<-outcomes]++
	if seen[weir.OK] != 1 || seen[weir.Failed] != 1 {
		t.Errorf("the outcomes are %v", seen)
	}
	until(t, "no permit is held", func() bool { return inFlight(db) == 0 })
}

// A server that is full refuses connections. The gate takes that for too much, and gets its permit back.
func TestMariaDBFull(t *testing.T) {
	t.Parallel()
	m := startMaria(t)
	full := func(user, password string, want uint16) {
		outcomes := make(chan weir.Outcome, 1)
		db := weirsql.New(m.connector(t, user, password), mustLimit(t, outcomes), weirsql.WithClassify(classifyMaria))
		defer db.Close()
		err := db.QueryRowContext(t.Context(), "SELECT 1").Scan(new(int))
		if n, _ := number(err); n != want {
			t.Errorf("%s gets %v, not number %d", user, err, want)
		}
		if o := <-outcomes; o != weir.Overload {
			t.Errorf("of %d the outcome is %v", want, o)
		}
		if n := inFlight(db); n != 0 {
			t.Errorf("%d permits are held", n)
		}
	}
	occupy := func(user, password string) error {
		db := sql.OpenDB(m.connector(t, user, password))
		t.Cleanup(func() { db.Close() })
		return db.PingContext(t.Context())
	}
	if err := occupy("few", "few"); err != nil {
		t.Fatal(err)
	}
	full("few", "few", 1226)
	m.exec(t, "SET GLOBAL max_connections = 10")
	var err error
	for range 11 {
		err = errors.Join(err, occupy("plain", "plain"))
	}
	if n, _ := number(err); n != 1040 {
		t.Fatalf("11 connections to a server with 10: %v", err)
	}
	full("plain", "plain", 1040)
}

func mustLimit(t *testing.T, outcomes chan<- weir.Outcome) *limit.Limiter {
	t.Helper()
	l, err := limit.New(limit.Config{Name: "db", Limit: 1, Hooks: weir.Hooks{Done: func(_ string, o weir.Outcome, _ time.Duration) { outcomes <- o }}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}
