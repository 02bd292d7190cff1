package weirsql

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/poolgate"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/signal"
)

// The limit and the places for exempt work fit into the pool.
func TestOpen(t *testing.T) {
	tests := []struct {
		conns               int
		gate                limit.Config
		limit, most, exempt int64 // most: what the controller may set, 0 if it is fixed
	}{
		{64, limit.Config{}, 20, 56, 8},
		{20, limit.Config{}, 15, 15, 5},
		{3, limit.Config{}, 3, 3, 0},
		{1, limit.Config{}, 1, 1, 0},
		{20, limit.Config{Exempt: 2}, 18, 18, 2},
		{2, limit.Config{Exempt: 1}, 1, 1, 1},
		{20, limit.Config{Exempt: -1}, 20, 20, 0},
		{20, limit.Config{Limit: 15}, 15, 0, 5},
		{20, limit.Config{Controller: control.Fixed(12)}, 12, 0, 5},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			s := &server{kind: modern}
			db, err := Open(s, tt.conns, tt.gate)
			check(t, err)
			defer db.Close()
			if n := db.Stats().MaxOpenConnections; n != tt.conns {
				t.Errorf("%+v: a pool of %d", tt, n)
			}
			l := db.Gate().(*limit.Limiter)
			if n := l.Snapshot().Limit; n != tt.limit {
				t.Errorf("%+v: a limit of %d", tt, n)
			}
			fitting, err := poolgate.Fit("weirsql", tt.gate, int64(tt.conns))
			check(t, err)
			if n := max(fitting.Exempt, 0); n != tt.exempt {
				t.Errorf("%+v: %d for exempt work", tt, n)
			}
			if tt.most > 0 {
				fitting.Controller.(control.Saver).Restore(control.State{Limit: 1e6})
				if n := fitting.Controller.Start().Limit; n != tt.most {
					t.Errorf("%+v: the controller goes up to %d", tt, n)
				}
			}
			var open []*sql.Conn // MaxIdleConns is MaxOpenConns
			for range min(tt.limit, 4) {
				c, err := db.Conn(t.Context())
				check(t, err)
				open = append(open, c)
			}
			for _, c := range open {
				check(t, c.Close())
			}
			if n := db.Stats().Idle; n != len(open) {
				t.Errorf("%+v: %d idle of %d", tt, n, len(open))
			}
		})
	}
}

func TestOpenFaults(t *testing.T) {
	for _, tt := range []struct {
		conns int
		gate  limit.Config
		want  string
	}{
		{0, limit.Config{}, "weirsql: a pool of 0 connections; open at least 1"},
		{-5, limit.Config{}, "a pool of -5 connections"},
		{20, limit.Config{Exempt: 20}, "Exempt: 20 will not do; must be below the connections, which are 20"},
		{20, limit.Config{Limit: 16}, "Limit: 16 will not do; must be at most 15: there are 20 connections; for exempt work: 5"},
		{20, limit.Config{Queue: limit.Queue{Shares: map[weir.Priority]float64{0: 2}}}, "Queue.Shares"},
		{4, limit.Config{Controller: control.Fixed(50)}, "begins with a limit of 50 before 4 connections"},
	} {
		if _, err := Open(&server{kind: modern}, tt.conns, tt.gate); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %s", err, tt.want)
		}
	}
}

// If a pool becomes smaller than the connections in use, it closes those that come back. The limit moves with
// it.
func TestResize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{kind: modern}
		db, err := Open(s, 20, limit.Config{Limit: 12})
		check(t, err)
		defer db.Close()
		var open []*sql.Rows
		for range 12 {
			rows, err := db.Query("SELECT 1")
			check(t, err)
			open = append(open, rows)
		}
		db.SetMaxOpenConns(5)
		l := db.Gate().(*limit.Limiter)
		if got := l.Snapshot(); got.Limit != 4 || got.InFlight != 12 {
			t.Errorf("a limit of %d with %d in flight", got.Limit, got.InFlight)
		}
		for _, rows := range open {
			check(t, rows.Close())
		}
		if n := db.Stats().OpenConnections; n > 5 {
			t.Errorf("%d connections are open", n)
		}
		_, err = db.Exec("x")
		check(t, err)
		db.SetMaxOpenConns(-3)
		if n := db.Stats().MaxOpenConnections; n != 1 {
			t.Errorf("a pool of %d", n)
		}
		db.SetMaxOpenConns(30)
		if n := l.Snapshot().Limit; n != 12 {
			t.Errorf("a limit of %d again", n)
		}
		check(t, db.Close())
		db.SetMaxOpenConns(40)
		if n := db.Stats().MaxOpenConnections; n != 30 {
			t.Errorf("a closed pool of %d", n)
		}
	})
	learns, err := Open(&server{kind: modern}, 64, limit.Config{})
	check(t, err)
	defer learns.Close()
	found := learns.Gate().(*limit.Limiter)
	check(t, found.SetLimit(31))
	for _, step := range []struct {
		conns int
		limit int64
	}{{48, 31}, {20, 15}, {80, 15}} {
		learns.SetMaxOpenConns(step.conns)
		if n := found.Snapshot().Limit; n != step.limit {
			t.Errorf("with %d connections a limit of %d, want %d", step.conns, n, step.limit)
		}
	}
	small, err := Open(&server{kind: modern}, 16, limit.Config{Exempt: 8})
	check(t, err)
	defer small.Close()
	small.SetMaxOpenConns(4) // fewer than are for exempt work
	if n, g := small.Stats().MaxOpenConnections, small.Gate().(*limit.Limiter).Snapshot(); n != 4 || g.Limit != 1 {
		t.Errorf("a pool of %d, a limit of %d", n, g.Limit)
	}
	db := New(&server{kind: modern}, nil)
	defer db.Close()
	db.SetMaxOpenConns(7)
	if n := db.Stats().MaxOpenConnections; n != 7 {
		t.Errorf("a pool of %d", n)
	}
}

// A fixed limit that an operator sets holds on when the pool is resized, as far as it fits.
func TestResizeKeepsTheOperatorsLimit(t *testing.T) {
	for name, gate := range map[string]limit.Config{"limit": {Limit: 12}, "controller": {Controller: control.Fixed(12)}} {
		db, err := Open(&server{kind: modern}, 20, gate)
		check(t, err)
		defer db.Close()
		l := db.Gate().(*limit.Limiter)
		set := func(n int64) func() error { return func() error { return l.SetLimit(n) } }
		for i, step := range []struct {
			operator func() error
			conns    int
			limit    int64
		}{
			{nil, 18, 12},
			{set(6), 16, 6},
			{nil, 4, 3},
			{nil, 30, 6},
			{set(20), 25, 19},
			{nil, 40, 20},
			{func() error { return l.Reconfigure(limit.Config{Limit: 9}) }, 39, 9},
			{func() error { return l.Reconfigure(limit.Config{}) }, 38, 12}, // back to a controller
		} {
			if step.operator != nil {
				check(t, step.operator())
			}
			db.SetMaxOpenConns(step.conns)
			if n := l.Snapshot().Limit; n != step.limit {
				t.Errorf("%s, %d: with %d connections a limit of %d, want %d", name, i, step.conns, n, step.limit)
			}
		}
	}
}

// When a pool grows, the gate admits no more before the pool has the connections: database/sql would leave those
// who come in between waiting.
func TestResizeGrowsThePoolFirst(t *testing.T) {
	var db *DB
	raised := 0
	db, err := Open(&server{kind: modern}, 64, limit.Config{Limit: 48, Hooks: weir.Hooks{LimitChanged: func(_ string, from, to int64, _ string) {
		if n := db.Stats().MaxOpenConnections; to > from {
			if raised++; int64(n) < to {
				t.Errorf("a limit of %d before a pool of %d", to, n)
			}
		}
	}}})
	check(t, err)
	defer db.Close()
	db.SetMaxOpenConns(4)
	db.SetMaxOpenConns(64)
	if raised == 0 {
		t.Error("the limit has not risen")
	}
}

// A controller of the user keeps its own bounds, and one line says that they do not fit.
func TestResizeBelowAController(t *testing.T) {
	var out bytes.Buffer
	db, err := Open(&server{kind: modern}, 64, limit.Config{Controller: weir.Must(control.NewBelief(control.BeliefConfig{Min: 10, Max: 50}))},
		WithLogger(slog.New(slog.NewTextHandler(&out, nil))))
	check(t, err)
	defer db.Close()
	for _, tt := range []struct{ conns, lines int }{{60, 0}, {8, 1}, {7, 1}} {
		db.SetMaxOpenConns(tt.conns)
		if n := strings.Count(out.String(), "limit="); n != tt.lines {
			t.Errorf("%d lines with %d connections: %s", n, tt.conns, &out)
		}
	}
}

// A hook of the gate may change the size of the pool. The last size holds.
func TestResizeInAHook(t *testing.T) {
	var db *DB
	calls := 0
	gate := limit.Config{Limit: 12, Hooks: weir.Hooks{LimitChanged: func(string, int64, int64, string) {
		if calls++; calls == 1 {
			db.SetMaxOpenConns(9)
		}
	}}}
	db, err := Open(&server{kind: modern}, 20, gate)
	check(t, err)
	defer db.Close()
	resized := make(chan struct{})
	go func() { db.SetMaxOpenConns(5); close(resized) }()
	select {
	case <-resized:
	case <-time.After(time.Minute):
		t.Fatal("the hook waits for its own caller")
	}
	if n, l := db.Stats().MaxOpenConnections, db.Gate().(*limit.Limiter).Snapshot().Limit; n != 9 || l != 7 {
		t.Errorf("a pool of %d, a limit of %d", n, l)
	}
}

// Work that waits when a DB is closed is refused.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, err := Open(&server{kind: modern}, 2, limit.Config{Limit: 1})
		check(t, err)
		rows, err := db.Query("SELECT 1")
		check(t, err)
		done := make(chan error)
		go func() { _, err := db.Exec("x"); done <- err }()
		synctest.Wait()
		check(t, db.Close())
		if r := weir.AsRejection(<-done); r == nil || r.Reason != weir.ReasonDraining {
			t.Errorf("who waited: %v", r)
		}
		check(t, rows.Close())
	})
}

// Pings are admitted while all other work waits, as long as exempt places are free.
func TestPingsWhileFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{kind: modern}
		db, err := Open(s, 3, limit.Config{Exempt: 2})
		check(t, err)
		defer db.Close()
		rows, err := db.Query("SELECT 1")
		check(t, err)
		s.on("ping", blocks)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		for range 2 {
			go func() { done <- db.PingContext(ctx) }()
		}
		synctest.Wait()
		if r := weir.AsRejection(db.Ping()); r == nil || r.Reason != weir.ReasonLimit {
			t.Errorf("a third ping: %v", r)
		}
		if n := db.Stats().WaitCount; n != 0 {
			t.Errorf("%d waited in the pool", n)
		}
		cancel()
		for range 2 {
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		check(t, rows.Close())
	})
}

// One line says that work waits in the pool. A wait as short as the moment between a permit and its connection
// writes no line.
func TestPoolWaitIsLogged(t *testing.T) {
	for name, tt := range map[string]struct {
		wait time.Duration
		want int
	}{"long": {time.Second, 1}, "a moment": {10 * time.Microsecond, 0}} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			inBubble(t, modern, 100, func(t *testing.T, db *DB, g *fakeGate, s *server) {
				db.SetMaxOpenConns(1)
				for range 3 {
					rows, err := db.Query("SELECT 1")
					check(t, err)
					go func() {
						time.Sleep(tt.wait)
						_ = rows.Close()
					}()
					for range lookEvery {
						_, err := db.Exec("x")
						check(t, err)
					}
					check(t, rows.Close())
				}
				if n := strings.Count(out.String(), "\n"); n != tt.want {
					t.Errorf("%d lines: %s", n, &out)
				}
				if tt.want > 0 && !strings.Contains(out.String(), "max_open_conns=1 ") {
					t.Errorf("no numbers: %s", &out)
				}
			}, WithLogger(slog.New(slog.NewTextHandler(&out, nil))))
		})
	}
}

// Prepared statements are calls, too.
func TestPoolWaitOfStatementsIsLogged(t *testing.T) {
	var out bytes.Buffer
	inBubble(t, modern, 100, func(t *testing.T, db *DB, g *fakeGate, s *server) {
		stmt, err := db.Stmt(t.Context(), "x")
		check(t, err)
		defer stmt.Close()
		db.SetMaxOpenConns(1)
		for range 3 {
			rows, err := stmt.Query()
			check(t, err)
			go func() {
				time.Sleep(time.Second)
				_ = rows.Close()
			}()
			for range lookEvery {
				_, err := stmt.Exec()
				check(t, err)
			}
			check(t, rows.Close())
		}
		if n := strings.Count(out.String(), "\n"); n != 1 {
			t.Errorf("%d lines: %s", n, &out)
		}
	}, WithLogger(slog.New(slog.NewTextHandler(&out, nil))))
}

// stats is a pool whose counters a test sets.
type stats sql.DBStats

func (s *stats) Stats() sql.DBStats { return sql.DBStats(*s) }

func TestPoolWait(t *testing.T) {
	pool := &stats{WaitCount: 100, WaitDuration: time.Hour}
	s := PoolWait(pool, 20*time.Millisecond)
	if s.Name() != "pool_wait" {
		t.Error(s.Name())
	}
	for i, step := range []struct {
		count    int64
		duration time.Duration
		want     float64 // -1: unknown
	}{
		{0, 0, -1},
		{2, 20 * time.Millisecond, 0.5},
		{0, 0, -1},
		{3, 0, -1},                     // they still wait
		{0, 180 * time.Millisecond, 3}, // and have waited
		{-1000, -time.Hour, -1},        // other counters
		{1, 10 * time.Millisecond, 0.5},
	} {
		pool.WaitCount += step.count
		pool.WaitDuration += step.duration
		got, err := s.Read(t.Context())
		if step.want < 0 {
			if !errors.Is(err, signal.ErrNoValue) {
				t.Errorf("%d: %v, %v; want no value", i, got, err)
			}
			continue
		}
		if err != nil || got != step.want {
			t.Errorf("%d: %v, %v; want %v", i, got, err, step.want)
		}
	}
	if _, err := PoolWait(pool, 0).Read(t.Context()); !errors.Is(err, signal.ErrNoValue) {
		t.Error(err)
	}
}

// The priority and the exemption of a scope hold for every call, above the pool and below it.
func TestScope(t *testing.T) {
	var got weir.Work
	gate := weir.Must(limit.New(limit.Config{Limit: 4, Exempt: 4, Hooks: weir.Hooks{
		Admitted: func(_ string, w weir.Work, _ time.Duration) { got = w }}}))
	defer gate.Close()
	db := New(&server{kind: modern}, gate)
	defer db.Close()
	below := sql.OpenDB(Connector(&server{kind: modern}, gate))
	defer below.Close()
	exec := func(db interface {
		ExecContext(context.Context, string, ...any) (sql.Result, error)
	}) func(context.Context) error {
		return func(ctx context.Context) error { _, err := db.ExecContext(ctx, "x"); return err }
	}
	for name, way := range map[string]func(context.Context) error{
		"exec":           exec(db),
		"below the pool": exec(below),
		"row":            func(ctx context.Context) error { return db.QueryRowContext(ctx, "SELECT 1").Scan(new(int)) },
		"transaction": func(ctx context.Context) error {
			return db.InTx(ctx, nil, func(context.Context, *sql.Tx) error { return nil })
		},
		"statement": func(ctx context.Context) error {
			st, err := db.Stmt(ctx, "x")
			check(t, err)
			defer st.Close()
			_, err = st.ExecContext(ctx)
			return err
		},
	} {
		check(t, way(weir.WithPriority(t.Context(), weir.Background)))
		if got.Priority != weir.Background || got.Exempt {
			t.Errorf("%s: priority %v, exempt %v", name, got.Priority, got.Exempt)
		}
		check(t, way(weir.WithExempt(t.Context())))
		if got.Priority != weir.Normal || !got.Exempt {
			t.Errorf("%s in an exempt scope: priority %v, exempt %v", name, got.Priority, got.Exempt)
		}
	}
}

// Rows that nobody closes are found and reported with their call site, and their permit is free again.
func TestLeaks(t *testing.T) {
	for name, drop := range map[string]func(t *testing.T, db *DB){
		"rows": func(t *testing.T, db *DB) { _, err := db.Query("SELECT 1"); check(t, err) },
		"row":  func(t *testing.T, db *DB) { db.QueryRow("SELECT 1") },
		"conn": func(t *testing.T, db *DB) { _, err := db.Conn(context.Background()); check(t, err) },
		"row of a statement": func(t *testing.T, db *DB) {
			st, err := db.Stmt(t.Context(), "SELECT 1")
			check(t, err)
			st.QueryRow()
		},
	} {
		t.Run(name, func(t *testing.T) {
			found := make(chan string, 1)
			db, err := Open(&server{kind: modern}, 2, limit.Config{
				Limit: 1, Exempt: 1, FindLeaks: true, Hooks: weir.Hooks{Leaked: func(_, site string) { found <- site }}})
			check(t, err)
			defer db.Close()
			drop(t, db)
			var site string
			for site == "" {
				runtime.GC()
				select {
				case site = <-found:
				default:
				}
			}
			if !strings.Contains(site, "TestLeaks") {
				t.Errorf("named %s", site)
			}
			_, err = db.Exec("x") // on the other connection
			check(t, err)
		})
	}
}

// Who means per cent is told so.
func TestShareOutOfRange(t *testing.T) {
	const want = "weirsql: WithBudget: a share of 50 will not do; must be from 0"
	if _, err := Open(&server{kind: modern}, 4, limit.Config{}, WithBudget(50, nil)); err == nil || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
	var log strings.Builder
	opts := []Option{WithBudget(50, nil), WithLogger(slog.New(slog.NewTextHandler(&log, nil)))}
	New(&server{kind: modern}, nil, opts...)
	Connector(&server{kind: modern}, nil, opts...)
	if strings.Count(log.String(), want) != 2 {
		t.Errorf("logged: %s", log.String())
	}
}

// Who has no connector is told so, by Open at once and by the others at each use.
func TestNoConnector(t *testing.T) {
	_, opened := Open(nil, 4, limit.Config{})
	db, below := New(nil, nil), sql.OpenDB(Connector(nil, nil))
	_, opens := db.Driver().Open("x")
	for name, err := range map[string]error{"Open": opened, "New": db.Ping(), "Connector": below.Ping(), "Driver": opens} {
		if err == nil || !strings.Contains(err.Error(), "no connector") {
			t.Errorf("%s: %v", name, err)
		}
	}
	check(t, db.Close())
	check(t, below.Close())
}

// Who asks a closed DB is told so.
func TestClosedDB(t *testing.T) {
	db, err := Open(&server{kind: modern}, 4, limit.Config{Name: "db"})
	check(t, err)
	check(t, db.Close())
	if _, err := db.Exec("x"); err == nil || !strings.Contains(err.Error(), "the DB or its gate was closed") || weir.AsRejection(err) == nil {
		t.Errorf("an exec: %v", err)
	}
}

// A hook that panics leaves a pool that can be resized.
func TestResizeAfterAPanic(t *testing.T) {
	broken := true
	db, err := Open(&server{kind: modern}, 16, limit.Config{Name: "db", Hooks: weir.Hooks{LimitChanged: func(string, int64, int64, string) {
		if broken {
			panic("hook")
		}
	}}})
	check(t, err)
	if recovered(func() { db.SetMaxOpenConns(4) }) == nil {
		t.Error("no panic")
	}
	broken = false
	db.SetMaxOpenConns(2)
	if got := db.Stats().MaxOpenConnections; got != 2 {
		t.Errorf("%d connections, want 2", got)
	}
}
