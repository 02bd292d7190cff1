package weirpgx

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/poolgate"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/signal"
	"github.com/weir-go/weir/weirsql"
)

// Pool is a pgxpool.Pool behind a gate. It is safe for concurrent use.
type Pool struct {
	pool *pgxpool.Pool
	gate weir.Gate
	own  *limit.Limiter // the one that Open made, closed with the pool
	work func(ctx context.Context, sql string, w *weir.Work)
	log  *slog.Logger

	classify func(context.Context, error) weir.Outcome
	budget   poolgate.Budget // of each statement

	// These show whether work waits in the pool.
	calls  atomic.Uint64
	warned atomic.Bool
	waits  poolgate.Waits
	made   atomic.Int64 // connections, at the last look; -1 if one was being made
}

// Option changes what [New] and [Open] do by default.
type Option func(*Pool)

// WithWork lets fn describe a piece of work before the gate is asked: who asks, its priority and cost, whether
// it writes or is exempt. Op is query, exec, batch, copy, begin, acquire or ping, and Write is set as the
// package's documentation says. A ping is Exempt. Deadline is that of ctx, except for acquire: its ctx bounds the
// wait only. sql is the statement; it is empty for a transaction, a connection, a batch, a copy and a ping.
func WithWork(fn func(ctx context.Context, sql string, w *weir.Work)) Option {
	return func(p *Pool) { p.work = fn }
}

// WithClassify replaces [weirsql.Classify], also for arguments that pgx cannot send. nil leaves it. ctx is the caller's own context. err is nil for work
// that succeeded. fn is not called for a transaction that was committed.
func WithClassify(fn func(ctx context.Context, err error) weir.Outcome) Option {
	return func(p *Pool) {
		if fn != nil {
			p.classify = fn
		}
	}
}

// WithBudget gives each statement a share of the time that is left until its context's deadline: from 0 to
// 1, which is all of it. Default 0: no budgets. A statement without a deadline has no budget. A batch and a copy are
// one statement. [Open] returns an error for another share. [New] logs it, and takes the nearest.
//
// Outside of transactions a budget is a deadline of the context, and includes reading the rows. In a
// transaction the Pool tells the database before each statement, with the text that tell returns, such as that
// of [weirsql.LocalTimeout]. That is one more round trip. With an empty text the last time-out stays. In a
// batch, PostgreSQL gives each statement the whole budget. tell is called with 0 for a statement without a
// deadline after one with a deadline. With a nil tell, statements in transactions have no budget. Begin,
// Commit, Rollback, Ping and the statements of a [Conn] have none either. In a transaction, other calls than
// Exec, Query, QueryRow, SendBatch and CopyFrom have the last time-out. Those of large objects are an example.
func WithBudget(share float64, tell func(d time.Duration) string) Option {
	return func(p *Pool) { p.budget = poolgate.NewBudget(share, tell) }
}

// WithLogger sets the logger for the one line that says that work waits in the pool. Default slog.Default().
func WithLogger(log *slog.Logger) Option {
	return func(p *Pool) {
		if log != nil {
			p.log = log
		}
	}
}

// New puts a gate before a pool that exists. Close of the new Pool closes pool, but not gate. The gate should
// not admit more work than the pool has connections. A nil gate admits everything. Call [CancelRequests] with
// the pool's configuration before you make the pool.
func New(pool *pgxpool.Pool, gate weir.Gate, opts ...Option) *Pool {
	p := settings(opts)
	p.pool, p.gate = pool, gate
	if err := p.budget.Fault(); err != nil {
		p.log.Error("weirpgx: " + err.Error())
	}
	return p
}

// settings returns a Pool without a pool and a gate.
func settings(opts []Option) *Pool {
	p := &Pool{log: slog.Default(), classify: classify, waits: poolgate.Waits{Ended: true}}
	for _, o := range opts {
		o(p)
	}
	return p
}

// DefaultExempt is how many connections [Open] sets aside for exempt work. In a small pool it sets aside a
// quarter.
const DefaultExempt = poolgate.DefaultExempt

// Open makes a pool of connections and a limiter that fits it. cfg comes from pgxpool.ParseConfig. Open copies
// it, and calls [CancelRequests] with the copy.
//
// The limiter never admits more than there are connections. gate.Exempt is how many connections are for exempt
// work. 0 means [DefaultExempt], or a quarter of the pool if that is less. A negative value means none. The
// rest is the ceiling of the default controller, whose limit goes down to 1. A gate.Limit above the ceiling is
// an error. A gate.Controller must have a maximum that fits.
//
// Close closes both. As with pgxpool, Open returns no error if the server cannot be reached.
func Open(ctx context.Context, cfg *pgxpool.Config, gate limit.Config, opts ...Option) (*Pool, error) {
	if cfg == nil || cfg.ConnConfig == nil {
		return nil, errors.New("weirpgx: the configuration does not come from pgxpool.ParseConfig")
	}
	p := settings(opts)
	if err := p.budget.Fault(); err != nil {
		return nil, fmt.Errorf("weirpgx: %w", err)
	}
	gate, err := poolgate.Fit("weirpgx", gate, int64(cfg.MaxConns))
	if err != nil {
		return nil, err
	}
	limiter, err := poolgate.NewLimiter("weirpgx", gate, int64(cfg.MaxConns))
	if err != nil {
		return nil, err
	}
	cfg = cfg.Copy()
	CancelRequests(cfg.ConnConfig)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		limiter.Close()
		return nil, err
	}
	p.pool, p.gate, p.own = pool, limiter, limiter
	return p, nil
}

// Close closes the gate, if [Open] has made it, and then the pool. It returns when all connections
// have come back.
func (p *Pool) Close() {
	if p.own != nil {
		p.own.Close()
	}
	p.pool.Close()
}

// Gate returns the gate. After [Open] it is a *limit.Limiter.
func (p *Pool) Gate() weir.Gate { return p.gate }

// Unguarded returns the pool behind the gate, for its Stat, Config and Reset. Statements on it do not ask the
// gate.
func (p *Pool) Unguarded() *pgxpool.Pool { return p.pool }

// use is one piece of work. It holds a permit until its connection is back.
type use struct {
	pool   *Pool
	permit weir.Permit
	ctx    context.Context // the caller's
	within context.Context // of the statement, with its budget; nil if that is ctx
	free   func()          // frees the timer of the budget; nil if there is none
}

// bounded returns the context for a statement outside of a transaction. Its timer ends with the use.
func (u *use) bounded() context.Context {
	u.within, u.free = u.pool.budget.Bound(u.ctx)
	return u.within
}

func (u *use) context() context.Context {
	if u.within != nil {
		return u.within
	}
	return u.ctx
}

// sample tells the gate that the first row has arrived. If it arrives after the caller's deadline, the end of
// the use gives the sample instead.
func (u *use) sample() {
	if by, ok := u.ctx.Deadline(); ok && !time.Now().Before(by) {
		return
	}
	u.permit.Sample(weir.OK)
}

// end gives the permit back. Only the first call counts.
func (u *use) end(err error) {
	defer u.endUnsampled() // a classifier may panic
	u.permit.Done(u.pool.classify(u.ctx, err))
}

// endUnsampled gives the permit back without a sample.
func (u *use) endUnsampled() {
	if u.free != nil {
		u.free()
	}
	u.permit.Done(weir.NoSample)
}

// endUnless is deferred by calls that hand the permit over, and may panic before that.
func (u *use) endUnless(handedOver *bool) {
	if !*handedOver {
		u.endUnsampled()
	}
}

// admit asks the gate. Nothing is held while it waits. The caller must end the use, also after a panic.
func (p *Pool) admit(ctx context.Context, op, sql string, write bool) (*use, error) {
	return p.admitWork(ctx, sql, weir.Work{Op: op, Write: write})
}

func (p *Pool) admitWork(ctx context.Context, sql string, w weir.Work) (*use, error) {
	if w.Op != "acquire" { // ctx bounds the wait for a connection, and not its use, which may well last longer
		w.Deadline, _ = ctx.Deadline()
	}
	if p.work != nil {
		p.work(ctx, sql, &w)
	}
	var permit weir.Permit
	if p.gate != nil {
		var err error
		if permit, err = p.gate.Admit(ctx, w); err != nil {
			if r := weir.AsRejection(err); p.own != nil && r != nil && r.Reason == weir.ReasonDraining {
				err = fmt.Errorf("weirpgx: the Pool or its gate was closed: %w", err)
			}
			return nil, err
		}
	}
	u, looked := &use{pool: p, permit: permit, ctx: ctx}, false
	defer u.endUnless(&looked) // a logger may panic
	p.look(w.Op)
	looked = true
	return u, nil
}

// lookEvery is how many pieces of work pass between two looks at the pool, which takes a lock that all share.
const lookEvery = 16

// look logs once if work that was admitted has waited for a connection that others had. The pool counts the wait for a
// new connection as well, when that is made. So a look says nothing if any was begun or made since the last.
func (p *Pool) look(op string) {
	if p.calls.Add(1)%lookEvery != 0 || p.warned.Load() {
		return
	}
	s := p.pool.Stat()
	mean, known := p.waits.Since(s.EmptyAcquireCount(), s.EmptyAcquireWaitTime())
	made := s.NewConnsCount()
	if s.ConstructingConns() > 0 {
		made = -1
	}
	if p.made.Swap(made) != made || made < 0 || !known || mean < poolgate.WorthALine || !p.warned.CompareAndSwap(false, true) {
		return
	}
	p.log.Warn("weirpgx: work waits for a connection in the pool, where no order holds. "+
		"Raise MaxConns above the gate's limit, or lower the limit",
		"op", op, "max_conns", s.MaxConns(), "mean_wait", mean)
}

// PoolWait is [weirsql.PoolWait] for a pool of pgx: a signal of how long work waits that finds no idle
// connection. It is for a pool that is also used past the gate. A wait for a new connection counts too, so
// choose a most above the time to connect.
func PoolWait(pool *pgxpool.Pool, most time.Duration) signal.Signal {
	return poolgate.WaitSignal(waits(pool), true, cmp.Or(max(most, 0), weirsql.DefaultPoolWait))
}

// waits reads how many pieces of work have waited in a pool, and for how long together.
func waits(pool *pgxpool.Pool) func() (int64, time.Duration) {
	return func() (int64, time.Duration) {
		s := pool.Stat()
		return s.EmptyAcquireCount(), s.EmptyAcquireWaitTime()
	}
}

// Exec is pgxpool.Pool.Exec behind the gate. A refusal is a *weir.Rejection.
func (p *Pool) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	u, err := p.admit(ctx, "exec", sql, true)
	if err != nil {
		return tag, err
	}
	defer u.endUnsampled()
	tag, err = p.pool.Exec(u.bounded(), sql, args...)
	u.end(err)
	return tag, stoppedBy(u.context(), err)
}

// Query is pgxpool.Pool.Query behind the gate. Close the rows, or read them to their end. A refusal is
// a *weir.Rejection, here and in the rows.
func (p *Pool) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	u, err := p.admit(ctx, "query", sql, isWrite(sql))
	if err != nil {
		return failedRows{err}, err
	}
	handedOver := false
	defer u.endUnless(&handedOver)
	inner, err := p.pool.Query(u.bounded(), sql, args...)
	handedOver = true
	if err != nil {
		u.end(err)
		return inner, stoppedBy(u.context(), err)
	}
	return &rows{Rows: inner, account: u}, nil
}

// QueryRow is pgxpool.Pool.QueryRow behind the gate. Scan returns what went wrong, such as a
// refusal.
func (p *Pool) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	u, err := p.admit(ctx, "query", sql, isWrite(sql))
	if err != nil {
		return failedRow{err}
	}
	handedOver := false
	defer u.endUnless(&handedOver)
	inner := p.pool.QueryRow(u.bounded(), sql, args...)
	handedOver = true
	return &row{inner, u}
}

// SendBatch is pgxpool.Pool.SendBatch behind the gate. A batch is one piece of work. It counts as a write if
// one of its statements does. Close the results: their methods return a refusal.
func (p *Pool) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	write := false
	for i, q := range b.QueuedQueries {
		write = write || isWrite(q.SQL) && (i > 0 || !beginsReads(q.SQL))
	}
	u, err := p.admit(ctx, "batch", "", write)
	if err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	handedOver := false
	defer u.endUnless(&handedOver)
	inner := p.pool.SendBatch(u.bounded(), b)
	handedOver = true
	if reflect.TypeOf(inner) == reflect.TypeOf(pgx.FailedBatchResults(b, nil)) { // the pool had no connection for it
		u.end(inner.Close())
		return inner
	}
	r := &batchResults{BatchResults: inner, account: u, within: u.context()}
	if began := inner.Tx(); began != nil {
		r.tx = newTx(began, u)
		r.account = statement{r.tx.fate, ctx}
	}
	return r
}

// CopyFrom is pgxpool.Pool.CopyFrom behind the gate. A copy is one piece of work.
func (p *Pool) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (n int64, err error) {
	u, err := p.admit(ctx, "copy", "", true)
	if err != nil {
		return 0, err
	}
	defer u.endUnsampled()
	n, err = p.pool.CopyFrom(u.bounded(), table, columns, src)
	if src.Err() == nil { // otherwise the source failed, and the server reports a cancelled copy
		u.end(err)
	}
	return n, stoppedBy(u.context(), err)
}

// Ping is pgxpool.Pool.Ping as exempt work, for health checks. It waits for no other work, if the gate has places for exempt
// work. In a pool of fewer than 4 connections that [Open] made, there is none.
func (p *Pool) Ping(ctx context.Context) error {
	u, err := p.admitWork(ctx, "", weir.Work{Op: "ping", Exempt: true})
	if err != nil {
		return err
	}
	defer u.endUnsampled()
	err = p.pool.Ping(ctx)
	u.end(err)
	return err
}

// Acquire is pgxpool.Pool.Acquire behind the gate. Release the connection.
func (p *Pool) Acquire(ctx context.Context) (*Conn, error) {
	u, err := p.admit(ctx, "acquire", "", true)
	if err != nil {
		return nil, err
	}
	handedOver := false
	defer u.endUnless(&handedOver)
	c, err := p.pool.Acquire(ctx)
	handedOver = true
	if err != nil {
		u.end(err)
		return nil, err
	}
	return &Conn{c, u}, nil
}

// InConn acquires a connection, calls fn, and releases the connection. The context of fn carries the
// slot.
func (p *Pool) InConn(ctx context.Context, fn func(ctx context.Context, c *pgxpool.Conn) error) error {
	c, err := p.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release()
	return fn(weir.WithPermit(ctx, p.gate, c.use.permit), c.poolConn)
}

// Begin is pgxpool.Pool.Begin behind the gate: BeginTx with the default options.
func (p *Pool) Begin(ctx context.Context) (pgx.Tx, error) { return p.BeginTx(ctx, pgx.TxOptions{}) }

// BeginTx is pgxpool.Pool.BeginTx behind the gate. A transaction holds one slot until Commit or
// Rollback. A query on the Pool inside it takes a second one, and a second connection: see [Pool.InTx].
//
// The gate takes the deadline of ctx for that of the whole transaction, because mostly all of it has the same ctx.
// If ctx is for the begin alone, [WithWork] can take the deadline out.
func (p *Pool) BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error) {
	t, err := p.begin(ctx, opts)
	if err != nil {
		return nil, err // not a nil *tx
	}
	return t, nil
}

func (p *Pool) begin(ctx context.Context, opts pgx.TxOptions) (*tx, error) {
	u, err := p.admit(ctx, "begin", "", opts.AccessMode != pgx.ReadOnly)
	if err != nil {
		return nil, err
	}
	handedOver := false
	defer u.endUnless(&handedOver)
	inner, err := p.pool.BeginTx(ctx, opts)
	handedOver = true
	if err != nil {
		u.end(err)
		return nil, stoppedBy(ctx, err)
	}
	return newTx(inner, u), nil
}

// InTx begins a transaction, calls fn, and commits. If fn returns an error or panics, it rolls back.
// The context of fn carries the slot, so that a call on the same gate takes no second one.
func (p *Pool) InTx(ctx context.Context, opts pgx.TxOptions, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, p, opts, func(t pgx.Tx) error {
		return fn(weir.WithPermit(ctx, p.gate, t.(*tx).use.permit), t)
	})
}

// beginsReads reports whether a statement is one by which pgx begins a read-only transaction.
func beginsReads(sql string) bool {
	return strings.HasPrefix(sql, "begin ") && strings.Contains(sql, " read only") && !strings.ContainsAny(sql, ";-/")
}

// isWrite reports whether a statement may change something.
func isWrite(sql string) bool {
	return weirsql.IsWrite(sql)
}
