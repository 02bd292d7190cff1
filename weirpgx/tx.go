package weirpgx

import (
	"cmp"
	"context"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/poolgate"
	"github.com/weir-go/weir/weirsql"
)

// tx is a transaction, or a savepoint in one.
type tx struct {
	pgx.Tx
	use  *use // nil for a savepoint, which frees no connection
	fate *fate
}

// fate is what became of a transaction's statements. Rollback by itself does not tell.
type fate struct {
	mu     sync.Mutex
	failed weir.Outcome // of the last statement that did not end OK; NoSample: there is none
}

func newTx(inner pgx.Tx, u *use) *tx { return &tx{inner, u, &fate{}} }

// statement is one of a transaction. It frees nothing, but the transaction remembers how it ended.
type statement struct {
	fate *fate
	ctx  context.Context
}

func (statement) sample()  {}
func (statement) abandon() {}

func (s statement) end(err error) {
	if err == nil || poolgate.AfterFailure(err) {
		return
	}
	if o := weirsql.Classify(s.ctx, err); o != weir.OK {
		s.fate.mu.Lock()
		defer s.fate.mu.Unlock()
		s.fate.failed = o
	}
}

// end gives the permit back. What was committed is good. Else the last statement that failed says
// more than the end does.
func (t *tx) end(ctx context.Context, err error, committed bool) {
	if t.use == nil {
		statement{t.fate, ctx}.end(err)
		return
	}
	t.fate.mu.Lock()
	o := t.fate.failed
	t.fate.mu.Unlock()
	if o == weir.NoSample || committed {
		o = weirsql.Classify(ctx, err)
	}
	t.use.permit.Done(o)
}

// Commit implements [pgx.Tx]. The connection is back afterwards, whatever it returns.
func (t *tx) Commit(ctx context.Context) error {
	defer t.abandon()
	err := t.Tx.Commit(ctx)
	t.end(ctx, err, err == nil)
	return err
}

// Rollback implements [pgx.Tx]. The connection is back afterwards, whatever it returns. With a context that has
// ended pgx would close the connection: under short deadlines the server then does little but start
// backends. So the transaction is rolled back all the same, within CancelPatience.
func (t *tx) Rollback(ctx context.Context) error {
	defer t.abandon()
	within := ctx
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(context.WithoutCancel(ctx), CancelPatience)
		defer cancel()
	}
	err := t.Tx.Rollback(within)
	t.end(ctx, cmp.Or(err, ctx.Err()), false) // what ended the context is why nothing was of use
	return err
}

func (t *tx) abandon() {
	if t.use != nil {
		t.use.abandon()
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

// Exec implements [pgx.Tx].
func (t *tx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	tag, err := t.Tx.Exec(ctx, sql, args...)
	statement{t.fate, ctx}.end(err)
	return tag, err
}

// Query implements [pgx.Tx].
func (t *tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	inner, err := t.Tx.Query(ctx, sql, args...)
	if err != nil {
		statement{t.fate, ctx}.end(err)
		return inner, err
	}
	return &rows{Rows: inner, account: statement{t.fate, ctx}}, nil
}

// QueryRow implements [pgx.Tx].
func (t *tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return &row{t.Tx.QueryRow(ctx, sql, args...), statement{t.fate, ctx}}
}

// SendBatch implements [pgx.Tx].
func (t *tx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return &batchResults{BatchResults: t.Tx.SendBatch(ctx, b), account: statement{t.fate, ctx}}
}

// CopyFrom implements [pgx.Tx].
func (t *tx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	n, err := t.Tx.CopyFrom(ctx, table, columns, src)
	if src.Err() == nil { // else the caller broke off, which the server calls cancelled
		statement{t.fate, ctx}.end(err)
	}
	return n, err
}

// Conn is a connection of the pool. It holds a slot until it is released.
type Conn struct {
	*poolConn
	use *use
}

// poolConn is embedded by this name, because pgxpool.Conn has a method Conn.
type poolConn = pgxpool.Conn

// Release gives the connection and the slot back. Doing so twice does nothing.
func (c *Conn) Release() {
	defer c.use.abandon()
	c.poolConn.Release()
}

// Hijack takes the connection out of the pool, for good. The slot is free: the pool may open another
// connection in its place. Count what you take, for the gate does not see it.
func (c *Conn) Hijack() *pgx.Conn {
	defer c.use.abandon()
	return c.poolConn.Hijack()
}
