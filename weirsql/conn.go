package weirsql

import (
	"context"
	"database/sql/driver"
	"errors"
	"reflect"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/poolgate"
)

// This file stands between database/sql and a driver. database/sql asks a connection for optional interfaces,
// and does something else without them. So a wrapped connection shows an optional interface if its driver does,
// wherever that makes a difference. It always shows an interface where it can itself do exactly what
// database/sql does without that interface:
//
//	ExecerContext, QueryerContext  as the driver: without, arguments are checked by the statement alone
//	SessionResetter                as the driver: without, a rollback by context ends the connection
//	ColumnConverter (statements)   as the driver: without, arguments are converted in another way
//	Execer, Queryer                as ExecerContext and QueryerContext
//	Validator                      always: it tells when the connection is given back
//	Pinger                         always: without, a ping is nil
//	ConnPrepareContext, ConnBeginTx, StmtExecContext, StmtQueryContext
//	                               always: without, database/sql looks at the context once
//	NamedValueChecker              always: without, as with driver.ErrSkip
//	io.Closer (connectors)         always: without, a pool that is closed leaves the connector alone
//	all of driver.Rows             as the driver: rows are not wrapped

// connector hands out connections that carry permits.
type connector struct {
	driver.Connector
	guard *guard
}

func newConnector(c driver.Connector, g *guard) *connector {
	if c == nil {
		c = noConnector{}
	}
	return &connector{c, g}
}

var errNoConnector = errors.New("weirsql: no connector; take your driver's, such as pgx's stdlib.GetConnector(*cfg)")

// noConnector takes the place of a nil connector where nobody can be told so before the first use. It would panic,
// perhaps in a goroutine of database/sql.
type noConnector struct{}

func (noConnector) Connect(context.Context) (driver.Conn, error) { return nil, errNoConnector }
func (noConnector) Driver() driver.Driver                        { return noConnector{} }
func (noConnector) Open(string) (driver.Conn, error)             { return nil, errNoConnector }

// Connect implements [driver.Connector].
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return wrap(inner, c.guard), nil
}

// Close implements io.Closer. database/sql calls it when a pool is closed.
func (c *connector) Close() error {
	if closer, ok := c.Connector.(interface{ Close() error }); ok {
		return closer.Close()
	}
	return nil
}

// Connector returns a connector for [database/sql.OpenDB] whose connections ask a gate, for code that cannot
// change its type to [DB]. [database/sql.Conn.Raw] sees a wrapper, and code that asserts the driver's own type
// there, as for pgx's CopyFrom, panics. Such code needs [DriverConn].
//
//	db := sql.OpenDB(weirsql.Connector(connector, gate))
//	db.SetMaxOpenConns(64)
//	db.SetMaxIdleConns(64)
//
// Set both to somewhat more than the limit of the gate. By default database/sql opens a connection for each caller, those
// who are refused included, and keeps two.
//
// A wrapper of somebody else, such as one that traces, goes inside: Connector(traced(connector), gate). Above, it must pass
// on [driver.Validator] and [driver.SessionResetter]. If it hides the first, nobody hears when a connection is given back:
// its permit stays with it until it is used again, and the log says so once. If it hides driver.SessionResetter too, or the
// driver has none, the later statements of the connection do not ask, and the log is silent.
//
// The gate admits or refuses, and never lets work wait: the caller has a connection already. Use [New] wherever
// you can. A statement, a transaction and a [database/sql.Conn] ask the gate once each; a ping does not ask. A Conn
// asks for its first statement: if that is a read, all of the Conn counts as a read. The refusal is a
// [*weir.Rejection].
func Connector(c driver.Connector, g weir.Gate, opts ...Option) driver.Connector {
	return newConnector(c, newGuard(g, opts).told())
}

// DriverConn returns the driver's own connection from the wrapped one that [database/sql.Conn.Raw] hands out.
// For instance, pgx's CopyFrom needs it:
//
//	err := conn.Raw(func(c any) error {
//		_, err := weirsql.DriverConn(c).(*stdlib.Conn).Conn().CopyFrom(ctx, table, columns, rows)
//		return err
//	})
//
// It returns any other connection as it is.
func DriverConn(conn any) any {
	if c, ok := conn.(wrapped); ok {
		return c.base().inner
	}
	return conn
}

// wrapped is each kind of connection of this package.
type wrapped interface{ base() *dbConn }

// dbConn is a connection of a driver, with the permit of its user. database/sql lets one goroutine at a time
// call it.
type dbConn struct {
	inner driver.Conn
	guard *guard

	use     *use // who uses it until database/sql gives it back; nil if it is idle, or for one call only
	tx      *tx  // the transaction that is open
	invalid bool // to be closed: see tx.Rollback
}

// The kinds of wrapped connections: what a driver may leave out.
type (
	execer   struct{ c *dbConn }
	queryer  struct{ c *dbConn }
	resetter struct{ c *dbConn }

	connE struct {
		*dbConn
		execer
	}
	connQ struct {
		*dbConn
		queryer
	}
	connR struct {
		*dbConn
		resetter
	}
	connEQ struct {
		*dbConn
		execer
		queryer
	}
	connER struct {
		*dbConn
		execer
		resetter
	}
	connQR struct {
		*dbConn
		queryer
		resetter
	}
	connEQR struct {
		*dbConn
		execer
		queryer
		resetter
	}
)

// What drivers from before contexts have instead.
type (
	oldExecer interface {
		Exec(query string, args []driver.Value) (driver.Result, error)
	}
	oldQueryer interface {
		Query(query string, args []driver.Value) (driver.Rows, error)
	}
)

func wrap(inner driver.Conn, g *guard) driver.Conn {
	c := &dbConn{inner: inner, guard: g}
	_, e := inner.(driver.ExecerContext)
	if !e {
		_, e = inner.(oldExecer)
	}
	_, q := inner.(driver.QueryerContext)
	if !q {
		_, q = inner.(oldQueryer)
	}
	_, r := inner.(driver.SessionResetter)
	switch {
	case e && q && r:
		return connEQR{c, execer{c}, queryer{c}, resetter{c}}
	case e && q:
		return connEQ{c, execer{c}, queryer{c}}
	case e && r:
		return connER{c, execer{c}, resetter{c}}
	case q && r:
		return connQR{c, queryer{c}, resetter{c}}
	case e:
		return connE{c, execer{c}}
	case q:
		return connQ{c, queryer{c}}
	case r:
		return connR{c, resetter{c}}
	}
	return c
}

func (c *dbConn) base() *dbConn { return c }

// enter returns the use to which a call belongs. A transaction or a [database/sql.Conn] that has the connection
// has a use, and so does a method of [DB] that has asked the gate. Any other call comes from below the pool, so
// enter asks the gate for it. Then mine is true, and the connection has the permit until it is given back.
func (c *dbConn) enter(ctx context.Context, what call) (u *use, mine bool, err error) {
	if c.invalid { // a Conn may still use it
		return nil, false, driver.ErrBadConn
	}
	if c.use != nil {
		c.use.ask()
		return c.use, false, nil
	}
	if u := useIn(ctx, c.guard); u != nil {
		u.ask()
		return u, false, nil
	}
	u, err = c.guard.admit(ctx, what, weir.NoWait)
	if err != nil {
		return nil, false, err
	}
	u.ask()
	u.answered = true // for later statements of a Conn, which have contexts of their own: leftAt and reading decide
	c.use = u
	return u, true, nil
}

// answer notes the result of a statement. In a transaction the last failure counts, because the transaction may
// have gone back to a savepoint after an earlier one. Above the pool the methods of [DB] take the sample,
// because database/sql may try again.
func (c *dbConn) answer(ctx context.Context, u *use, err error) {
	if err == driver.ErrSkip {
		return
	}
	u.answer(err != nil && ctx.Err() != nil)
	if err == nil {
		u.reading = nil
	}
	switch {
	case c.tx != nil:
		if err == nil || poolgate.AfterFailure(err) {
			return
		}
		if o := c.guard.classify(ctx, err); o != weir.OK {
			u.failed = o
		}
	case c.use == u && u.method != methodConn:
		u.sample(c.guard.classify(ctx, err))
	}
}

// reads leaves the connection with u for the rows of a query. Rows that are cut off break the connection: see free.
func (c *dbConn) reads(u *use, ctx context.Context) {
	u.reading = ctx
	u.answered = u.answered || u.method == methodQuery
	c.attach(u)
}

// attach leaves the connection with u, until it is given back.
func (c *dbConn) attach(u *use) {
	if c.use == nil {
		c.use = u
	}
}

// free ends the use, because the connection is given back or closed. On a broken connection the server may
// still work on rows that were cut off. Before a sound one is given back, its driver has read them.
func (c *dbConn) free(broken bool) {
	u := c.use
	c.use, c.tx = nil, nil
	if u != nil {
		if broken && u.reading != nil && u.reading.Err() != nil && u.leftAt.IsZero() {
			u.leftAt = endOf(u.reading)
		}
		u.end()
	}
}

// endOf returns when a context has ended: at its deadline, even if that is noticed after a pause. When one was cancelled, it
// does not tell, so that is now.
func endOf(ctx context.Context) time.Time {
	now := time.Now()
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(now) && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return deadline
	}
	return now
}

// freeUnless is deferred by calls to the driver. After a panic database/sql may lose the connection, and then never
// gives it back.
func (c *dbConn) freeUnless(returned *bool) {
	if !*returned {
		c.free(false)
	}
}

// IsValid implements [driver.Validator]. database/sql calls it when the connection is given back.
func (c *dbConn) IsValid() (valid bool) {
	defer func() { c.free(!valid) }() // also if the driver panics
	if c.invalid {
		return false
	}
	v, ok := c.inner.(driver.Validator)
	return !ok || v.IsValid()
}

// ResetSession implements [driver.SessionResetter]. database/sql calls it when the connection is taken from the pool. Whoever
// still has it then has given it back, and IsValid was not called.
func (r resetter) ResetSession(ctx context.Context) error {
	if r.c.use != nil {
		r.c.guard.hidden()
		r.c.free(false)
	}
	return r.c.inner.(driver.SessionResetter).ResetSession(ctx)
}

// Close implements [driver.Conn]. The permit is free first, because a driver may block.
func (c *dbConn) Close() error {
	c.free(true)
	return c.inner.Close()
}

// Ping implements [driver.Pinger].
func (c *dbConn) Ping(ctx context.Context) error {
	if c.invalid {
		return driver.ErrBadConn
	}
	p, ok := c.inner.(driver.Pinger)
	if !ok {
		return nil
	}
	returned := false
	defer c.freeUnless(&returned)
	err := p.Ping(ctx)
	returned = true
	return err
}

// CheckNamedValue implements [driver.NamedValueChecker].
func (c *dbConn) CheckNamedValue(v *driver.NamedValue) error {
	n, _ := c.inner.(driver.NamedValueChecker)
	return c.check(n, v)
}

// check lets the driver check an argument, if it has a checker. If that leaves it to database/sql, a user's Valuer is asked
// here already: its panic there would keep the permit for good.
func (c *dbConn) check(n driver.NamedValueChecker, v *driver.NamedValue) error {
	returned := false
	defer c.freeUnless(&returned)
	err := driver.ErrSkip
	if n != nil {
		err = n.CheckNamedValue(v)
	}
	if err == driver.ErrSkip {
		err = askValuer(v)
	}
	returned = true
	return err
}

// askValuer replaces a Valuer by its value, and leaves the rest to database/sql. So it does with what cannot be a value, and with
// nil pointers to a type that has Value itself: database/sql makes NULL of those, and asks all others.
func askValuer(v *driver.NamedValue) error {
	valuer, ok := v.Value.(driver.Valuer)
	if !ok {
		return driver.ErrSkip
	}
	if p := reflect.ValueOf(valuer); p.Kind() == reflect.Pointer && p.IsNil() && p.Type().Elem().Implements(reflect.TypeFor[driver.Valuer]()) {
		return driver.ErrSkip
	}
	value, err := valuer.Value()
	if err != nil {
		return err
	}
	if driver.IsValue(value) {
		v.Value = value
	}
	return driver.ErrSkip
}

// Prepare implements [driver.Conn].
func (c *dbConn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

// PrepareContext implements [driver.ConnPrepareContext].
func (c *dbConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	u, _, err := c.enter(ctx, call{method: methodPrepare, query: query})
	if err != nil {
		return nil, err
	}
	returned := false
	if c.tx == nil && u.method != methodConn { // the permit of a transaction or a Conn is for what follows, too
		defer c.freeUnless(&returned)
	}
	s, err := prepare(ctx, c.inner, query)
	if err != nil {
		c.answer(ctx, u, err)
	}
	returned = true
	if err != nil {
		return nil, err
	}
	return wrapStmt(s, c, query), nil
}

// prepare returns an error if a driver returns neither a statement nor an error. database/sql would panic.
func prepare(ctx context.Context, inner driver.Conn, query string) (s driver.Stmt, err error) {
	p, knowsContexts := inner.(driver.ConnPrepareContext)
	if knowsContexts {
		s, err = p.PrepareContext(ctx, query)
	} else {
		s, err = inner.Prepare(query)
	}
	switch {
	case err != nil:
		return nil, err
	case s == nil:
		return nil, errors.New("weirsql: the driver returned no statement and no error")
	case !knowsContexts && ctx.Err() != nil:
		_ = s.Close()
		return nil, ctx.Err()
	}
	return s, nil
}

// ExecContext implements [driver.ExecerContext].
func (e execer) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	c := e.c
	u, mine, err := c.enter(ctx, call{method: methodExec, query: query})
	if err != nil {
		return nil, err
	}
	returned := false
	if mine { // else it belongs to a transaction or a Conn, which database/sql gives back
		defer c.freeUnless(&returned)
	}
	var r driver.Result
	if err = c.tell(ctx); err == nil {
		r, err = exec(ctx, c.inner, query, args)
	}
	c.answer(ctx, u, err)
	returned = true
	return r, err
}

func exec(ctx context.Context, inner driver.Conn, query string, args []driver.NamedValue) (driver.Result, error) {
	if e, ok := inner.(driver.ExecerContext); ok {
		return e.ExecContext(ctx, query, args)
	}
	e, ok := inner.(oldExecer)
	if !ok {
		return nil, driver.ErrSkip
	}
	values, err := unnamed(ctx, args)
	if err != nil {
		return nil, err
	}
	return e.Exec(query, values)
}

// QueryContext implements [driver.QueryerContext].
func (q queryer) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	c := q.c
	u, _, err := c.enter(ctx, call{method: methodQuery, query: query})
	if err != nil {
		return nil, err
	}
	returned := false
	defer c.freeUnless(&returned)
	var r driver.Rows
	if err = c.tell(ctx); err == nil {
		r, err = rowsOf(c.query(ctx, query, args))
	}
	c.answer(ctx, u, err) // it may panic, too
	if err == nil {
		c.reads(u, ctx)
	}
	returned = true
	return r, err
}

// rowsOf is an error if a driver returns neither rows nor an error. database/sql would panic, and not give the connection
// back.
func rowsOf(r driver.Rows, err error) (driver.Rows, error) {
	if r == nil && err == nil {
		err = errors.New("weirsql: the driver returned no rows and no error")
	}
	return r, err
}

func (c *dbConn) query(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if q, ok := c.inner.(driver.QueryerContext); ok {
		return q.QueryContext(ctx, query, args)
	}
	values, err := unnamed(ctx, args)
	if err != nil {
		return nil, err
	}
	return c.inner.(oldQueryer).Query(query, values)
}

// unnamed returns arguments for a driver that knows neither names nor contexts.
func unnamed(ctx context.Context, args []driver.NamedValue) ([]driver.Value, error) {
	values := make([]driver.Value, len(args))
	for i, a := range args {
		if a.Name != "" {
			return nil, errors.New("weirsql: the driver knows no named parameters, such as " + a.Name + "; use positions")
		}
		values[i] = a.Value
	}
	return values, ctx.Err()
}
