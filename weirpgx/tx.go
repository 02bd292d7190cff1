package weirpgx

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/poolgate"
)

// tx is a transaction, or a savepoint in one.
type tx struct {
	pgx.Tx
	use  *use // nil for a savepoint, which frees no connection
	fate *fate
}

// fate is the outcome of a transaction's statements. A Rollback alone does not show it.
type fate struct {
	pool   *Pool
	mu     sync.Mutex
	failed weir.Outcome // of the last statement that did not end OK; NoSample if there is none
	told   bool         // the database has a time-out from us; a rollback to a savepoint may restore it
}

func newTx(inner pgx.Tx, u *use) *tx { return &tx{inner, u, &fate{pool: u.pool}} }

// tell tells the database how long the next statement may take.
func (t *tx) tell(ctx context.Context) error {
	t.fate.mu.Lock()
	told := t.fate.told
	t.fate.mu.Unlock()
	text := t.fate.pool.budget.Text(ctx, told)
	if text == "" {
		return nil
	}
	_, err := t.Tx.Exec(ctx, text)
	switch {
	case poolgate.AfterFailure(err):
		return nil // the statement may be a rollback to a savepoint
	case err != nil:
		statement{t.fate, ctx}.end(err)
		return err
	}
	t.fate.mu.Lock()
	t.fate.told = true
	t.fate.mu.Unlock()
	return nil
}

// statement is a statement of a transaction. Its end frees nothing, but the transaction remembers its outcome.
type statement struct {
	fate *fate
	ctx  context.Context
}

func (statement) sample()                    {}
func (statement) endUnsampled()              {}
func (s statement) context() context.Context { return s.ctx }

func (s statement) end(err error) {
	if err == nil || poolgate.AfterFailure(err) || errors.Is(err, pgx.ErrTxClosed) { // then nothing was sent
		return
	}
	if o := s.fate.pool.classify(s.ctx, err); o != weir.OK && o != weir.NoSample {
		s.fate.mu.Lock()
		defer s.fate.mu.Unlock()
		s.fate.failed = o
	}
}

// end gives the permit back. A committed transaction is OK. Otherwise the outcome is that of the last failed
// statement, which says more than err.
func (t *tx) end(ctx context.Context, err error, committed bool) {
	if t.use == nil {
		statement{t.fate, ctx}.end(err)
		return
	}
	t.fate.mu.Lock()
	o := t.fate.failed
	t.fate.mu.Unlock()
	switch {
	case committed:
		o = weir.OK
	case o == weir.NoSample && !errors.Is(err, pgx.ErrTxClosed): // such as a rollback after the commit
		o = t.fate.pool.classify(ctx, err)
	}
	t.use.permit.Done(o)
}

// Commit implements [pgx.Tx]. The connection is back afterwards, whatever it returns. If ctx has ended before,
// no commit is sent. The transaction is rolled back as by Rollback, and the error says that nothing was
// committed. If ctx ends during the commit and the server has not answered, the error says that the result is
// unknown.
func (t *tx) Commit(ctx context.Context) error {
	if ctx.Err() != nil {
		return t.uncommitted(ctx, t.Rollback(ctx))
	}
	defer t.endUnsampled()
	err := t.Tx.Commit(ctx)
	t.end(ctx, err, err == nil)
	return ofCommit(ctx, err)
}

// uncommitted is the error of a commit that was not sent. rollback is the error of the rollback in its place.
func (t *tx) uncommitted(ctx context.Context, rollback error) error {
	switch {
	case errors.Is(rollback, pgx.ErrTxClosed): // the transaction had ended before
		return rollback
	case rollback != nil:
		return fmt.Errorf("weirpgx: nothing was committed: %w; the rollback failed as well: %w", ctx.Err(), rollback)
	}
	if t.use == nil {
		return fmt.Errorf("weirpgx: nothing was committed of the savepoint, and its transaction goes on: %w", ctx.Err())
	}
	return fmt.Errorf("weirpgx: nothing was committed, the transaction is rolled back: %w", ctx.Err())
}

// ofCommit is the error of a commit that was sent, or was about to be sent. If the server has answered, its
// answer says whether the commit succeeded.
func ofCommit(ctx context.Context, err error) error {
	var answer *pgconn.PgError
	switch {
	case err == nil || ctx.Err() == nil || errors.As(err, &answer) || errors.Is(err, pgx.ErrTxClosed) || errors.Is(err, pgx.ErrTxCommitRollback):
		return err
	case pgconn.SafeToRetry(err) && !errors.Is(err, pgconn.ErrConnClosed):
		// The context ended just before pgx would have sent the commit. ErrConnClosed does not prove that:
		// pgx also calls that error safe to retry if the connection breaks after the commit was sent.
		return fmt.Errorf("weirpgx: nothing was committed: %w", err)
	}
	return fmt.Errorf("weirpgx: the context ended during the commit (%w), so it is not known whether the transaction was committed: %w", ctx.Err(), err)
}

// Rollback implements [pgx.Tx]. The connection is back afterwards, whatever it returns. If ctx has ended, pgx
// would close the connection. With many short deadlines the server would then do little but start backends. So
// the transaction is rolled back all the same. It takes at most twice CancelPatience: once until the server is
// asked to stop the rollback, and once until the connection is closed.
func (t *tx) Rollback(ctx context.Context) error {
	defer t.endUnsampled()
	within := ctx
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(context.WithoutCancel(ctx), CancelPatience)
		defer cancel()
	}
	err := t.Tx.Rollback(within)
	t.end(ctx, cmp.Or(err, ctx.Err()), false) // the reason why the context ended decides the outcome
	return err
}

func (t *tx) endUnsampled() {
	if t.use != nil {
		t.use.endUnsampled()
	}
}

// Begin implements [pgx.Tx]. It makes a savepoint, which needs no slot.
func (t *tx) Begin(ctx context.Context) (pgx.Tx, error) {
	inner, err := t.Tx.Begin(ctx)
	if err != nil {
		statement{t.fate, ctx}.end(err)
		return nil, err
	}
	return &tx{inner, nil, t.fate}, nil
}

// Prepare implements [pgx.Tx].
func (t *tx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	prepared, err := t.Tx.Prepare(ctx, name, sql)
	statement{t.fate, ctx}.end(err)
	return prepared, stoppedBy(ctx, err)
}

// Exec implements [pgx.Tx].
func (t *tx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := t.tell(ctx); err != nil {
		return pgconn.CommandTag{}, err
	}
	tag, err := t.Tx.Exec(ctx, sql, args...)
	statement{t.fate, ctx}.end(err)
	return tag, stoppedBy(ctx, err)
}

// Query implements [pgx.Tx].
func (t *tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.tell(ctx); err != nil {
		return failedRows{err}, err
	}
	inner, err := t.Tx.Query(ctx, sql, args...)
	if err != nil {
		statement{t.fate, ctx}.end(err)
		return inner, stoppedBy(ctx, err)
	}
	return &rows{Rows: inner, account: statement{t.fate, ctx}}, nil
}

// QueryRow implements [pgx.Tx].
func (t *tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.tell(ctx); err != nil {
		return failedRow{err}
	}
	return &row{t.Tx.QueryRow(ctx, sql, args...), statement{t.fate, ctx}}
}

// SendBatch implements [pgx.Tx].
func (t *tx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := t.tell(ctx); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return &batchResults{BatchResults: t.Tx.SendBatch(ctx, b), account: statement{t.fate, ctx}, within: ctx}
}

// CopyFrom implements [pgx.Tx].
func (t *tx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	if err := t.tell(ctx); err != nil {
		return 0, err
	}
	n, err := t.Tx.CopyFrom(ctx, table, columns, src)
	if src.Err() == nil { // else the caller broke off, which the server calls cancelled
		statement{t.fate, ctx}.end(err)
	}
	return n, stoppedBy(ctx, err)
}

// Conn is a connection of the pool. It holds a slot until it is released.
type Conn struct {
	*poolConn
	use *use
}

// poolConn is embedded by this name, because pgxpool.Conn has a method Conn.
type poolConn = pgxpool.Conn

// Release gives the connection and the slot back. A second call does nothing.
func (c *Conn) Release() {
	defer c.use.endUnsampled()
	c.poolConn.Release()
}

// Hijack takes the connection out of the pool, for good. The slot is free, and the pool may open another
// connection in its place. Count the connections that you take, because the gate does not see them.
func (c *Conn) Hijack() *pgx.Conn {
	defer c.use.endUnsampled()
	return c.poolConn.Hijack()
}
