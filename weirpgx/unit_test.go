package weirpgx

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/signal"
	"github.com/weir-go/weir/weirsql"
)

// Generated code and libraries need these methods of a pool of pgx.
var _ interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
	Query(context.Context, string, ...any) (pgx.Rows, error)
	QueryRow(context.Context, string, ...any) pgx.Row
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error)
	SendBatch(context.Context, *pgx.Batch) pgx.BatchResults
	Begin(context.Context) (pgx.Tx, error)
	BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error)
	Ping(context.Context) error
	Close()
} = (*Pool)(nil)

// A connection has all methods of pgx's own, also Conn, which has the name of its type.
var _ interface {
	Conn() *pgx.Conn
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
	Begin(context.Context) (pgx.Tx, error)
	Release()
	Hijack() *pgx.Conn
} = (*Conn)(nil)

// nowhere is a configuration for a server that does not exist.
func nowhere(t *testing.T, conns string) *pgxpool.Config {
	t.Helper()
	cfg, err := pgxpool.ParseConfig("postgres://nobody@127.0.0.1:1/none?sslmode=disable&pool_max_conns=" + conns)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestOpenFaults(t *testing.T) {
	for _, cfg := range []*pgxpool.Config{nil, {}} {
		if _, err := Open(t.Context(), cfg, limit.Config{}); err == nil || !strings.Contains(err.Error(), "pgxpool.ParseConfig") {
			t.Errorf("%v", err)
		}
	}
	if _, err := Open(t.Context(), nowhere(t, "4"), limit.Config{Limit: -1}); err == nil {
		t.Error("a limit below 0")
	}
	const want = "weirpgx: WithBudget: a share of 50 will not do; must be from 0"
	if _, err := Open(t.Context(), nowhere(t, "4"), limit.Config{}, WithBudget(50, nil)); err == nil || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
	var log strings.Builder
	New(nil, nil, WithBudget(50, nil), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	if !strings.Contains(log.String(), want) {
		t.Errorf("logged: %s", log.String())
	}
}

// ways are all calls that ask the gate. Each returns its final error.
var ways = map[string]func(context.Context, *Pool) error{
	"exec": func(ctx context.Context, p *Pool) error { _, err := p.Exec(ctx, "select 1"); return err },
	"query": func(ctx context.Context, p *Pool) error {
		rows, err := p.Query(ctx, "select 1")
		for rows.Next() {
			return errors.New("a row")
		}
		if rows.Err() != err || rows.Scan() == nil || rows.CommandTag() != (pgconn.CommandTag{}) || rows.FieldDescriptions() != nil || rows.RawValues() != nil || rows.Conn() != nil || rows.TypeMap() != nil {
			return errors.New("rows of a query that failed")
		}
		if _, again := rows.Values(); again != err {
			return again
		}
		rows.Close()
		return err
	},
	"collect": func(ctx context.Context, p *Pool) error {
		rows, _ := p.Query(ctx, "select 1")
		_, err := pgx.CollectRows(rows, pgx.RowTo[int])
		return err
	},
	"query row": func(ctx context.Context, p *Pool) error { return p.QueryRow(ctx, "select 1").Scan(nil) },
	"batch": func(ctx context.Context, p *Pool) error {
		b := &pgx.Batch{}
		b.Queue("select 1")
		r := p.SendBatch(ctx, b)
		if r.Tx() != nil {
			return errors.New("a transaction that was not asked for")
		}
		return r.Close()
	},
	"batch, not closed": func(ctx context.Context, p *Pool) error {
		b := &pgx.Batch{}
		b.Queue("select 1")
		_, err := p.SendBatch(ctx, b).Exec()
		return err
	},
	"batch in a transaction, not closed": func(ctx context.Context, p *Pool) error {
		b := &pgx.Batch{}
		b.BeginTx(pgx.TxOptions{})
		_, err := p.SendBatch(ctx, b).Exec()
		return err
	},
	"batch in a transaction, closed": func(ctx context.Context, p *Pool) error {
		b := &pgx.Batch{}
		b.BeginTx(pgx.TxOptions{})
		b.Queue("select 1")
		return p.SendBatch(ctx, b).Close()
	},
	"batch in a transaction": func(ctx context.Context, p *Pool) error {
		b := &pgx.Batch{}
		b.BeginTx(pgx.TxOptions{})
		r := p.SendBatch(ctx, b)
		err := r.Close()
		if again := r.Tx().Rollback(ctx); !errors.Is(again, pgx.ErrTxClosed) {
			return again
		}
		return err
	},
	"copy": func(ctx context.Context, p *Pool) error {
		_, err := p.CopyFrom(ctx, pgx.Identifier{"t"}, []string{"a"}, pgx.CopyFromRows([][]any{{1}}))
		return err
	},
	"begin": func(ctx context.Context, p *Pool) error {
		t, err := p.Begin(ctx)
		if t != nil {
			return errors.New("a transaction")
		}
		return err
	},
	"in a transaction": func(ctx context.Context, p *Pool) error {
		return p.InTx(ctx, pgx.TxOptions{}, func(context.Context, pgx.Tx) error { return errors.New("it ran") })
	},
	"acquire": func(ctx context.Context, p *Pool) error {
		c, err := p.Acquire(ctx)
		if c != nil {
			return errors.New("a connection")
		}
		return err
	},
	"with a connection": func(ctx context.Context, p *Pool) error {
		return p.InConn(ctx, func(context.Context, *pgxpool.Conn) error { return errors.New("it ran") })
	},
	"ping": func(ctx context.Context, p *Pool) error { return p.Ping(ctx) },
}

// Every call returns a refusal as a Rejection, and asks the pool for no connection.
func TestRefusals(t *testing.T) {
	gate := weir.Must(limit.New(limit.Config{Name: "db", Limit: 1}))
	p, err := Open(t.Context(), nowhere(t, "4"), limit.Config{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p = New(p.Unguarded(), gate)
	gate.Close()
	for name, way := range ways {
		if r := weir.AsRejection(way(t.Context(), p)); r == nil || r.Reason != weir.ReasonDraining {
			t.Errorf("%s: %v, want a rejection for draining", name, r)
		}
	}
	if n := p.Unguarded().Stat().NewConnsCount(); n != 0 {
		t.Errorf("%d connections were tried", n)
	}
}

// Without a server each call fails, and every slot comes back.
func TestNoServer(t *testing.T) {
	p, err := Open(t.Context(), nowhere(t, "4"), limit.Config{Limit: 1, Queue: limit.Queue{Len: -1}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for name, way := range ways {
		var failed *pgconn.ConnectError
		if err := way(t.Context(), p); !errors.As(err, &failed) {
			t.Errorf("%s: %v, want that the server cannot be reached", name, err)
		}
		if s := p.Gate().(*limit.Limiter).Snapshot(); s.InFlight != 0 || s.Exempt != 0 {
			t.Errorf("%s: %d slots are left, %d exempt", name, s.InFlight, s.Exempt)
		}
	}
}

// Who asks a closed pool is told so.
func TestClosedPool(t *testing.T) {
	p, err := Open(t.Context(), nowhere(t, "4"), limit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	if _, err := p.Exec(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "the Pool or its gate was closed") || weir.AsRejection(err) == nil {
		t.Errorf("an exec: %v", err)
	}
}

// Without a gate everything goes to the pool.
func TestNoGate(t *testing.T) {
	guarded, err := Open(t.Context(), nowhere(t, "4"), limit.Config{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer guarded.Close()
	p := New(guarded.Unguarded(), nil)
	for name, way := range ways {
		var failed *pgconn.ConnectError
		if err := way(t.Context(), p); !errors.As(err, &failed) {
			t.Errorf("%s: %v, want that the server cannot be reached", name, err)
		}
	}
}

// A call that panics before it has a connection leaves no slot behind.
func TestPanics(t *testing.T) {
	cfg := nowhere(t, "64")
	cfg.ConnConfig.Tracer = panicking{}
	p, err := Open(t.Context(), cfg, limit.Config{Limit: 1, Queue: limit.Queue{Len: -1}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for name, way := range ways {
		func() {
			defer func() {
				if got := recover(); got != "tracer" {
					t.Errorf("%s: it panicked with %v", name, got)
				}
			}()
			_ = way(t.Context(), p)
		}()
		if s := p.Gate().(*limit.Limiter).Snapshot(); s.InFlight != 0 || s.Exempt != 0 {
			t.Errorf("%s: %d slots are left, %d exempt", name, s.InFlight, s.Exempt)
		}
	}
}

// panicking is a tracer of pgxpool.
type panicking struct{}

func (panicking) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (panicking) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (panicking) TraceAcquireStart(context.Context, *pgxpool.Pool, pgxpool.TraceAcquireStartData) context.Context {
	panic("tracer")
}
func (panicking) TraceAcquireEnd(context.Context, *pgxpool.Pool, pgxpool.TraceAcquireEndData) {}

// The gate gets the right Work for each call, after WithWork.
func TestWork(t *testing.T) {
	var asked []weir.Work
	gate := gateFunc(func(w weir.Work) error {
		asked = append(asked, w)
		return &weir.Rejection{Gate: "db", Reason: weir.ReasonLimit}
	})
	cfg := nowhere(t, "4")
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := New(pool, gate, WithWork(func(_ context.Context, sql string, w *weir.Work) { w.Tenant, w.User = sql, "u" }))
	defer p.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	by, _ := ctx.Deadline()
	_, _ = p.Query(ctx, "select 1")
	_ = p.QueryRow(ctx, "insert into t values (1) returning id")
	_, _ = p.Exec(ctx, "select 2")
	_, _ = p.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	_, _ = p.Begin(ctx)
	_ = p.Ping(ctx)
	for _, second := range []string{"select 2", "delete from t"} { // a batch is a write if one of its statements is
		b := &pgx.Batch{}
		b.Queue("select 1")
		b.Queue(second)
		_ = p.SendBatch(ctx, b).Close()
	}
	for _, begin := range []pgx.TxOptions{
		{AccessMode: pgx.ReadOnly},
		{AccessMode: pgx.ReadOnly, IsoLevel: pgx.Serializable, DeferrableMode: pgx.Deferrable},
		{},
		{AccessMode: pgx.ReadWrite},
		{BeginQuery: "begin read only; delete from t"},
	} {
		b := &pgx.Batch{}
		b.BeginTx(begin)
		b.Queue("select 1")
		_ = p.SendBatch(ctx, b).Close()
	}
	_, _ = p.CopyFrom(ctx, pgx.Identifier{"t"}, nil, nil)
	_, _ = p.Query(t.Context(), "select 3")
	_, _ = p.Acquire(ctx) // ctx bounds the wait only
	want := []weir.Work{
		{Op: "query", Tenant: "select 1", Deadline: by},
		{Op: "query", Tenant: "insert into t values (1) returning id", Write: true, Deadline: by},
		{Op: "exec", Tenant: "select 2", Write: true, Deadline: by},
		{Op: "begin", Deadline: by},
		{Op: "begin", Write: true, Deadline: by},
		{Op: "ping", Exempt: true, Deadline: by},
		{Op: "batch", Deadline: by},
		{Op: "batch", Write: true, Deadline: by},
		{Op: "batch", Deadline: by},
		{Op: "batch", Deadline: by},
		{Op: "batch", Write: true, Deadline: by},
		{Op: "batch", Write: true, Deadline: by},
		{Op: "batch", Write: true, Deadline: by},
		{Op: "copy", Write: true, Deadline: by},
		{Op: "query", Tenant: "select 3"},
		{Op: "acquire", Write: true},
	}
	if len(asked) != len(want) {
		t.Fatalf("%v", asked)
	}
	for i, w := range asked {
		want[i].User = "u" // WithWork is called for each
		if w != want[i] {
			t.Errorf("%d: %+v, want %+v", i, w, want[i])
		}
	}
}

// Work that would have to wait beyond its deadline is refused at once, with the numbers. The context of Acquire
// bounds the wait only, so Acquire waits.
func TestRefusedBeforeItsDeadline(t *testing.T) {
	for name, tt := range map[string]struct {
		call func(ctx context.Context, p *Pool) error
		took time.Duration
	}{
		"exec":    {ways["exec"], 0},
		"begin":   {ways["begin"], 0},
		"acquire": {ways["acquire"], 500 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			gate := weir.Must(limit.New(limit.Config{Limit: 1, Queue: limit.Queue{Order: limit.FIFO, MaxWait: time.Hour}}))
			defer gate.Close()
			p := New(nil, gate)
			p.warned.Store(true) // there is no pool to look at
			var work sync.WaitGroup
			for range 40 {
				work.Go(func() {
					u, err := p.admit(t.Context(), "exec", "", true)
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(100 * time.Millisecond)
					u.end(nil)
				})
			}
			time.Sleep(2050 * time.Millisecond) // half of them are done, and the gate knows how long that takes
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			began := time.Now()
			r := weir.AsRejection(tt.call(ctx, p))
			if took := time.Since(began); took != tt.took || r == nil || r.Reason != weir.ReasonDeadline {
				t.Errorf("%s: %v after %v, want a rejection for the deadline after %v", name, r, took, tt.took)
			} else if took == 0 && !(r.Limit > 0.49 && r.Limit <= 0.5 && r.Value > 1 && r.RetryAfter > 0) {
				t.Errorf("%s: it says %v", name, r)
			}
			work.Wait()
		})
	}
}

// The priority and the exemption of a scope hold for every call.
func TestScope(t *testing.T) {
	var got weir.Work
	gate := weir.Must(limit.New(limit.Config{Limit: 4, Exempt: 4, Hooks: weir.Hooks{
		Admitted: func(_ string, w weir.Work, _ time.Duration) { got = w }}}))
	defer gate.Close()
	pool, err := pgxpool.NewWithConfig(t.Context(), nowhere(t, "64"))
	if err != nil {
		t.Fatal(err)
	}
	p := New(pool, gate)
	defer p.Close()
	for name, way := range ways {
		_ = way(weir.WithPriority(t.Context(), weir.Background), p)
		if got.Priority != weir.Background || got.Exempt != (name == "ping") {
			t.Errorf("%s: priority %v, exempt %v", name, got.Priority, got.Exempt)
		}
		_ = way(weir.WithExempt(t.Context()), p)
		if got.Priority != weir.Normal || !got.Exempt {
			t.Errorf("%s in an exempt scope: priority %v, exempt %v", name, got.Priority, got.Exempt)
		}
	}
}

type gateFunc func(weir.Work) error

func (g gateFunc) Admit(_ context.Context, w weir.Work) (weir.Permit, error) {
	return weir.Permit{}, g(w)
}

// If nobody has waited, the signal has no value.
func TestPoolWaitUnknown(t *testing.T) {
	pool, err := pgxpool.NewWithConfig(t.Context(), nowhere(t, "4"))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if v, err := PoolWait(pool, 0).Read(t.Context()); !errors.Is(err, signal.ErrNoValue) {
		t.Errorf("%v, %v", v, err)
	}
}

// commits is a transaction of pgx whose commit and rollback end as it says.
type commits struct {
	pgx.Tx
	commit, rollback error
	during           func()
}

func (c commits) Commit(context.Context) error   { c.during(); return c.commit }
func (c commits) Rollback(context.Context) error { return c.rollback }

// unsent is an error that pgx returns if it has sent nothing.
type unsent struct{ error }

func (unsent) SafeToRetry() bool { return true }
func (u unsent) Unwrap() error   { return u.error }

// The error of a commit says whether the transaction was committed.
func TestCommitSays(t *testing.T) {
	broken, no := errors.New("broken pipe"), &pgconn.PgError{Code: "40001", Message: "no"}
	for _, tt := range []struct {
		name     string
		tx       commits
		ends     string // when the context does
		want, is string // nothing, the error as it is, or a part of the text
	}{
		{"in time", commits{}, "", "", ""},
		{"ended after it", commits{}, "during", "", ""},
		{"ended before", commits{commit: broken}, "before", "nothing was committed, the transaction is rolled back: context canceled", ""},
		{"ended before, and broken", commits{rollback: broken}, "before", "nothing was committed: context canceled; the rollback failed as well: broken pipe", ""},
		{"ended before, and over", commits{rollback: pgx.ErrTxClosed}, "before", "", "tx is closed"},
		{"ended before it was sent", commits{commit: unsent{context.Canceled}}, "during", "nothing was committed: context canceled", ""},
		{"ended meanwhile", commits{commit: broken}, "during", "the context ended during the commit (context canceled), so it is not known whether the transaction was committed: broken pipe", ""},
		{"ended meanwhile, and pgx says that it is safe", commits{commit: unsent{pgconn.ErrConnClosed}}, "during",
			"the context ended during the commit (context canceled), so it is not known whether the transaction was committed: conn closed", ""},
		{"ended meanwhile, and the server says no", commits{commit: no}, "during", "", ": no (SQLSTATE 40001)"},
		{"ended meanwhile, and it was rolled back", commits{commit: pgx.ErrTxCommitRollback}, "during", "", pgx.ErrTxCommitRollback.Error()},
		{"broken", commits{commit: broken}, "", "", "broken pipe"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		tt.tx.during = func() {
			if tt.ends == "during" {
				cancel()
			}
		}
		if tt.ends == "before" {
			cancel()
		}
		err := newTx(tt.tx, &use{pool: New(nil, nil), ctx: ctx}).Commit(ctx)
		cancel()
		switch {
		case tt.want != "" && (err == nil || err.Error() != "weirpgx: "+tt.want || !errors.Is(err, context.Canceled)):
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		case tt.want == "" && (err != nil) != (tt.is != "") || tt.is != "" && err.Error() != tt.is:
			t.Errorf("%s: %v, want %q", tt.name, err, tt.is)
		}
	}
}

// broken are rows whose values cannot be read.
type broken struct{ pgx.Rows }

func (broken) Scan(...any) error      { return errBroken }
func (broken) Values() ([]any, error) { return nil, errBroken }
func (broken) Err() error             { return errBroken }

var errBroken = errors.New("cannot be read")

// ends is an account that keeps the last error.
type ends struct{ last error }

func (*ends) sample()                  {}
func (*ends) endUnsampled()            {}
func (*ends) context() context.Context { return context.Background() }

func (e *ends) end(err error) { e.last = err }

// A row that cannot be read closes its rows: pgx does so, and the slot is free then.
func TestRowsThatCannotBeRead(t *testing.T) {
	for name, read := range map[string]func(*rows) error{
		"scan":   func(r *rows) error { return r.Scan() },
		"values": func(r *rows) error { _, err := r.Values(); return err },
	} {
		var e ends
		if err := read(&rows{Rows: broken{}, account: &e}); err != errBroken || e.last != errBroken {
			t.Errorf("%s: %v, and the use ended with %v", name, err, e.last)
		}
	}
}

// script is a transaction of pgx that notes what it is sent. The next Exec fails with fault.
type script struct {
	pgx.Tx
	sent  []string
	fault error
}

func (s *script) Exec(_ context.Context, sql string, _ ...any) (tag pgconn.CommandTag, err error) {
	s.sent = append(s.sent, sql)
	err, s.fault = s.fault, nil
	return tag, err
}

func (s *script) Query(_ context.Context, sql string, _ ...any) (pgx.Rows, error) {
	s.sent = append(s.sent, sql)
	return failedRows{}, nil
}

func (s *script) QueryRow(_ context.Context, sql string, _ ...any) pgx.Row {
	s.sent = append(s.sent, sql)
	return failedRow{}
}

func (s *script) SendBatch(context.Context, *pgx.Batch) pgx.BatchResults {
	s.sent = append(s.sent, "batch")
	return noResults{}
}

// noResults are those of a batch without statements.
type noResults struct{ pgx.BatchResults }

func (noResults) Close() error { return nil }

func (s *script) CopyFrom(context.Context, pgx.Identifier, []string, pgx.CopyFromSource) (int64, error) {
	s.sent = append(s.sent, "copy")
	return 0, nil
}

// inTx are the calls of a transaction that send a statement. Each returns its final error.
var inTx = map[string]func(context.Context, pgx.Tx) error{
	"exec":  func(ctx context.Context, t pgx.Tx) error { _, err := t.Exec(ctx, "exec"); return err },
	"query": func(ctx context.Context, t pgx.Tx) error { _, err := t.Query(ctx, "query"); return err },
	"row":   func(ctx context.Context, t pgx.Tx) error { return t.QueryRow(ctx, "row").Scan() },
	"batch": func(ctx context.Context, t pgx.Tx) error { return t.SendBatch(ctx, &pgx.Batch{}).Close() },
	"copy": func(ctx context.Context, t pgx.Tx) error {
		_, err := t.CopyFrom(ctx, pgx.Identifier{"t"}, nil, pgx.CopyFromRows(nil))
		return err
	},
}

// In a transaction the database is told before each statement how long the statement may take. A failed
// transaction takes no time-out, and the statement is sent all the same. If the database refuses the text for
// another reason, the statement returns that error, and the error counts.
func TestBudgetInTransaction(t *testing.T) {
	failed, no := &pgconn.PgError{Code: "25P02"}, &pgconn.PgError{Code: "40001"}
	for name, send := range inTx {
		synctest.Test(t, func(t *testing.T) {
			s := &script{}
			p := New(nil, nil, WithBudget(0.5, weirsql.LocalTimeout))
			tx := newTx(s, &use{pool: p, ctx: t.Context()})
			try := func(left time.Duration, fault, want error, sent ...string) {
				t.Helper()
				ctx := t.Context()
				if left != 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, left)
					defer cancel()
				}
				s.sent, s.fault = nil, fault
				if err := send(ctx, tx); !errors.Is(err, want) {
					t.Errorf("%s, %v left: %v, want %v", name, left, err, want)
				}
				if !slices.Equal(s.sent, sent) {
					t.Errorf("%s, %v left: sent %q, want %q", name, left, s.sent, sent)
				}
			}
			const half, none = "SET LOCAL statement_timeout TO 500", "SET LOCAL statement_timeout TO DEFAULT"
			try(0, nil, nil, name)
			try(time.Second, failed, nil, half, name)
			if tx.fate.failed != weir.NoSample {
				t.Errorf("%s: the transaction counts as %v", name, tx.fate.failed)
			}
			try(0, nil, nil, name) // nothing was taken
			try(time.Second, nil, nil, half, name)
			try(0, nil, nil, none, name)
			try(time.Second, no, no, half)
			if tx.fate.failed != weir.Failed {
				t.Errorf("%s: the transaction counts as %v", name, tx.fate.failed)
			}
		})
	}
}

// The timer of a budget ends with its statement.
func TestBudgetEndsWithItsStatement(t *testing.T) {
	p := New(nil, nil, WithBudget(0.5, nil))
	for name, tt := range map[string]struct {
		end  func(*use)
		want error
	}{
		"an end":     {func(u *use) { u.end(nil) }, nil},
		"a panic":    {(*use).endUnsampled, nil},
		"still open": {func(*use) {}, context.DeadlineExceeded},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			u := &use{pool: p, ctx: ctx}
			bounded := u.bounded()
			tt.end(u)
			time.Sleep(45 * time.Minute) // more than the budget
			if bounded.Err() != tt.want {
				t.Errorf("%s: the context ends with %v, want %v", name, bounded.Err(), tt.want)
			}
		})
	}
}

// A classifier of the user decides about outcomes, also in a transaction. If it panics, it leaves no slot
// behind.
func TestClassifier(t *testing.T) {
	var got weir.Outcome
	gate := weir.Must(limit.New(limit.Config{Limit: 1, Hooks: weir.Hooks{Done: func(_ string, o weir.Outcome, _ time.Duration) { got = o }}}))
	defer gate.Close()
	panics := false
	p := New(nil, gate, WithClassify(nil), WithClassify(func(_ context.Context, err error) weir.Outcome {
		if panics {
			panic("classifier")
		}
		if err != nil {
			return weir.Overload
		}
		return weir.OK
	}))
	admitted := func() *use {
		permit, err := gate.Admit(t.Context(), weir.Work{})
		if err != nil {
			t.Fatal(err)
		}
		return &use{pool: p, permit: permit, ctx: t.Context()}
	}
	for name, end := range map[string]func(*use){
		"a statement": func(u *use) { u.end(errBroken) },
		"rows":        func(u *use) { _ = (&rows{Rows: broken{}, account: u}).Scan() },
		"a statement of a transaction": func(u *use) {
			tx := newTx(commits{}, u)
			defer func() { _ = tx.Rollback(t.Context()) }()
			statement{tx.fate, t.Context()}.end(errBroken)
		},
	} {
		for panics = range map[bool]bool{false: true, true: true} {
			func() {
				defer func() {
					if r := recover(); (r != nil) != panics {
						t.Errorf("%s: it panicked with %v", name, r)
					}
				}()
				end(admitted())
			}()
			if n := gate.Snapshot().InFlight; n != 0 {
				t.Fatalf("%s: %d slots are left", name, n)
			}
			if !panics && got != weir.Overload {
				t.Errorf("%s: the outcome is %v", name, got)
			}
		}
	}
}

// A committed transaction is OK, and no classifier is called: its context may have ended a moment later.
func TestCommittedIsGood(t *testing.T) {
	got := weir.NoSample
	gate := weir.Must(limit.New(limit.Config{Limit: 1, Hooks: weir.Hooks{Done: func(_ string, o weir.Outcome, _ time.Duration) { got = o }}}))
	defer gate.Close()
	asked := 0
	p := New(nil, gate, WithClassify(func(context.Context, error) weir.Outcome { asked++; return weir.Overload }))
	permit, err := gate.Admit(t.Context(), weir.Work{})
	if err != nil {
		t.Fatal(err)
	}
	tx := newTx(commits{rollback: pgx.ErrTxClosed, during: func() {}}, &use{pool: p, permit: permit, ctx: t.Context()})
	if err := tx.Commit(t.Context()); err != nil || got != weir.OK {
		t.Errorf("%v, counted as %v", err, got)
	}
	if err := tx.Rollback(t.Context()); err != pgx.ErrTxClosed { // as a defer does
		t.Errorf("a rollback after it: %v", err)
	}
	if asked > 0 {
		t.Errorf("the classifier was called %d times", asked)
	}
}

// A Prepare that fails in a transaction counts as any other statement.
func TestPrepareInTransaction(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want weir.Outcome
	}{{nil, weir.NoSample}, {&pgconn.PgError{Code: "55P03"}, weir.Overload}} {
		tx := newTx(prepares{err: tt.err}, &use{pool: New(nil, nil), ctx: t.Context()})
		if _, err := tx.Prepare(t.Context(), "p", "select 1"); err != tt.err || tx.fate.failed != tt.want {
			t.Errorf("%v: %v, the transaction counts as %v", tt.err, err, tx.fate.failed)
		}
	}
}

// prepares is a transaction of pgx whose Prepare ends as it says.
type prepares struct {
	pgx.Tx
	err error
}

func (p prepares) Prepare(context.Context, string, string) (*pgconn.StatementDescription, error) {
	return nil, p.err
}

// wire is a connection that notes its deadlines.
type wire struct {
	net.Conn
	deadlines []time.Time
}

func (w *wire) SetDeadline(at time.Time) error {
	w.deadlines = append(w.deadlines, at)
	return nil
}

// A statement whose context has ended has CancelPatience to stop. That deadline does not bind the next
// statement on its connection.
func TestPatienceEndsWithTheStatement(t *testing.T) {
	cfg := nowhere(t, "1").ConnConfig
	CancelRequests(cfg)
	w := &wire{}
	conn, err := pgconn.Construct(&pgconn.HijackedConn{Conn: w, Frontend: pgproto3.NewFrontend(nil, nil), Config: &cfg.Config, CustomData: map[string]any{}})
	if err != nil {
		t.Fatal(err)
	}
	handler := cfg.BuildContextWatcherHandler(conn)
	before := time.Now()
	handler.HandleCancel(t.Context())
	handler.HandleUnwatchAfterCancel()
	if len(w.deadlines) != 2 || w.deadlines[0].Before(before.Add(CancelPatience)) || w.deadlines[0].After(time.Now().Add(CancelPatience)) || !w.deadlines[1].IsZero() {
		t.Errorf("deadlines %v, want one in %v and then none", w.deadlines, CancelPatience)
	}
}

// The user's OnPgError is still called, and its answer still decides about the connection.
func TestErrorsStayTheUsers(t *testing.T) {
	cfg := nowhere(t, "1").ConnConfig
	var heard []string
	cfg.OnPgError = func(_ *pgconn.PgConn, err *pgconn.PgError) bool {
		heard = append(heard, err.Code)
		return false
	}
	CancelRequests(cfg)
	conn, err := pgconn.Construct(&pgconn.HijackedConn{Conn: &wire{}, Frontend: pgproto3.NewFrontend(nil, nil), Config: &cfg.Config, CustomData: map[string]any{}})
	if err != nil {
		t.Fatal(err)
	}
	if keep := cfg.OnPgError(conn, &pgconn.PgError{Code: "42P01"}); keep || len(heard) != 1 || heard[0] != "42P01" {
		t.Errorf("keeps the connection: %v; heard %v", keep, heard)
	}
	cfg.OnPgError = nil
	CancelRequests(cfg)
	if !cfg.OnPgError(conn, &pgconn.PgError{Code: "42P01"}) {
		t.Error("a connection is closed that nobody wanted closed")
	}
}

// Open changes a copy of the configuration.
func TestOpenLeavesTheConfiguration(t *testing.T) {
	cfg := nowhere(t, "4")
	cfg.ConnConfig.BuildContextWatcherHandler = nil
	p, err := Open(t.Context(), cfg, limit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if cfg.ConnConfig.BuildContextWatcherHandler != nil || p.Unguarded().Config().ConnConfig.BuildContextWatcherHandler == nil {
		t.Error("the caller's configuration was changed, or the pool's was not")
	}
}
