package weirsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/poolgate"
)

// tx is a transaction of a driver. It has the permit with which it began; its statements do not ask.
type tx struct {
	driver.Tx
	c    *dbConn
	ctx  context.Context // of BeginTx
	told bool            // the database has a time-out from us; a rollback to a savepoint may restore it
}

// Begin implements [driver.Conn].
func (c *dbConn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

// BeginTx implements [driver.ConnBeginTx].
func (c *dbConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	u, _, err := c.enter(ctx, call{method: methodBegin, opts: &sql.TxOptions{ReadOnly: opts.ReadOnly}})
	if err != nil {
		return nil, err
	}
	returned := false
	defer c.freeUnless(&returned)
	t, err := begin(ctx, c.inner, opts)
	if err != nil {
		c.answer(ctx, u, err)
	}
	returned = true
	if err != nil {
		return nil, err
	}
	c.attach(u)
	c.tx = &tx{Tx: t, c: c, ctx: ctx}
	return c.tx, nil
}

func begin(ctx context.Context, inner driver.Conn, opts driver.TxOptions) (driver.Tx, error) {
	if b, ok := inner.(driver.ConnBeginTx); ok {
		return b.BeginTx(ctx, opts)
	}
	switch {
	case opts.Isolation != 0:
		return nil, errors.New("weirsql: the driver supports only its default isolation level; leave the level out")
	case opts.ReadOnly:
		return nil, errors.New("weirsql: the driver does not support read-only transactions; leave ReadOnly out")
	}
	//lint:ignore SA1019 drivers from before contexts have nothing else
	t, err := inner.Begin()
	if err == nil && ctx.Err() != nil {
		_ = t.Rollback()
		return nil, ctx.Err()
	}
	return t, err
}

// freeUnless is deferred by the methods that end a transaction. After a panic, database/sql never gives the
// connection back.
func (t *tx) freeUnless(ended *bool) {
	if !*ended {
		t.c.free(false)
	}
}

// Commit implements [driver.Tx].
func (t *tx) Commit() error {
	ended := false
	defer t.freeUnless(&ended)
	err := t.Tx.Commit()
	t.end(err == nil, err) // it may panic, too
	ended = true
	return err
}

// Rollback implements [driver.Tx]. database/sql calls it by itself when the context has ended. It then keeps
// the connection if the connection can be reset and checked. A wrapped connection can always be checked. If the
// driver's own connection cannot be checked, Rollback marks it invalid, so that database/sql closes it as it
// does without weir. An error would close it, too. But then database/sql would keep the statements of the
// transaction for ever, and with them the statements from which they were made.
func (t *tx) Rollback() error {
	ended := false
	defer t.freeUnless(&ended)
	err := t.Tx.Rollback()
	t.end(false, err) // it may panic, too
	ended = true
	_, resets := t.c.inner.(driver.SessionResetter)
	_, checks := t.c.inner.(driver.Validator)
	t.c.invalid = t.c.invalid || resets && !checks && t.ctx.Err() != nil
	return err
}

// end tells the gate the outcome of the transaction. If it has not committed, that is the outcome of its last
// failed statement, or the reason why its context ended.
func (t *tx) end(committed bool, err error) {
	u := t.c.use
	t.c.tx = nil
	if u == nil {
		return
	}
	if err == nil {
		u.leftAt, u.reading = time.Time{}, nil
	}
	if u.method != methodBegin {
		return // a Conn has the permit, for longer
	}
	u.answered = err == nil
	switch {
	case committed:
		u.sample(weir.OK)
	case u.failed != weir.NoSample:
		u.sample(u.failed)
	case err == nil:
		u.sample(t.c.guard.classify(t.ctx, t.ctx.Err()))
	default:
		u.sample(t.c.guard.classify(t.ctx, err))
	}
}

// tell tells the database how long the next statement of a transaction may take.
func (c *dbConn) tell(ctx context.Context) error {
	if c.tx == nil {
		return nil
	}
	text := c.guard.budget.Text(ctx, c.tx.told)
	if text == "" {
		return nil
	}
	_, err := exec(ctx, c.inner, text, nil)
	if errors.Is(err, driver.ErrSkip) {
		err = c.execPrepared(ctx, text)
	}
	if poolgate.AfterFailure(err) {
		return nil // the statement may be a rollback to a savepoint
	}
	c.tx.told = c.tx.told || err == nil
	return err
}

func (c *dbConn) execPrepared(ctx context.Context, query string) error {
	inner, err := prepare(ctx, c.inner, query)
	if err != nil {
		return err
	}
	defer inner.Close()
	_, err = (&stmt{inner: inner, c: c}).exec(ctx, nil)
	return err
}

// LocalTimeout returns the statement that tells PostgreSQL the budget of the next statement in a transaction.
// It is for [WithBudget]. It replaces the time-out of the session for the transaction, even if that is shorter.
// A budget of more than 24 days, which PostgreSQL cannot express, becomes 24 days.
func LocalTimeout(d time.Duration) string {
	if d <= 0 {
		return "SET LOCAL statement_timeout TO DEFAULT"
	}
	return "SET LOCAL statement_timeout TO " + strconv.FormatInt(min(max(1, d.Milliseconds()), math.MaxInt32), 10)
}
