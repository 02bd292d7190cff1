// Package weirsql puts a weir gate in front of a database, above its pool of connections.
//
//	db, err := weirsql.Open(connector, 64, limit.Config{Name: "db"})
//
// connector is the driver's: for instance that of pgx's stdlib.GetConnector, or of pq.NewConnector. A [DB] has
// the methods of [database/sql.DB] and returns the standard types, so code of sqlc and gorm can use it instead.
// Work that must wait waits in the gate: by priority, for a bounded time, and without a connection. A refusal is a
// [*weir.Rejection].
//
// # What a permit is held for
//
//	Exec, Ping, Prepare    the call
//	Query, QueryRow        until the rows are closed: they have a connection
//	Begin                  until the transaction ends; its statements do not ask
//	Conn                   until it is closed; its statements do not ask
//
// The permit goes back with the connection, also if a context ends or a connection breaks. An exec and a query give
// their sample when their call returns, a wait for a new connection included. So a caller that reads rows slowly
// holds a slot, and gives no slow sample. A transaction is sampled at its end, and a prepare only if it fails. A
// ping and a Conn give no sample. [Classify] says which outcome an error has.
//
// # Inside a transaction
//
// A query on the DB within a transaction takes a second permit and a second connection. So does one while rows
// are open. A few at once may wait for each other, and with a limit of 1 a transaction waits for itself. Use
// the Tx. Code that does not know the Tx can use the context of [DB.InTx], which carries the permit. Then only
// a second connection is needed.
//
// # Prepared statements
//
// A [database/sql.Stmt] gets its connection by itself, below the gate. So it cannot wait, and is refused at
// once if no slot is free. [DB.Stmt] makes a statement that waits.
//
// # The pool
//
// Work that waits for a connection in a [database/sql.DB] is woken at random, and nothing bounds the queue. So
// nobody should wait there. [Open] makes pool and gate together. The limit finds itself; its ceiling is the
// number of connections less some places for exempt work. With [New] and a gate of your own, set MaxOpenConns
// above its limit, and MaxIdleConns to the same. The default of 2 means a new connection for nearly each query
// under load. A DB logs once if work had to wait in the pool. [PoolWait] is a signal for a pool that is also
// used past the gate.
//
// # Deadlines
//
// The deadline of a context is that of the work. The gate refuses at once what would have to wait too long to be
// done by then, but for the first in line. A transaction has to end by the deadline of its context. The context of a Conn bounds the wait
// only, and the gate is told no deadline but that of the request that a handler serves ([weir.WithReceived]).
//
// Work that has to wait is refused, too, if it has less time left than most work takes. Before long transactions and
// short reads with short deadlines, use two gates.
//
// # Contexts that end while the database works
//
// A driver may return at once and leave the server working. With many short deadlines the server then works on
// much more than the limit admits. pgx's stdlib can instead cancel the statement and wait for the server, after
// weirpgx.CancelRequests(config). config is the argument of stdlib.GetConnector. Without weirpgx, set the
// following; each cancel then holds a slot for about 100 ms longer:
//
//	config.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler {
//		return &pgconn.CancelRequestContextWatcherHandler{Conn: c, DeadlineDelay: 5 * time.Second}
//	}
//
// pgx's stdlib still closes the connection of a transaction whose context has ended. Where deadlines are short and
// transactions many, weirpgx keeps it.
//
// For drivers that cannot cancel so, such as those of MySQL, see [WithHold]. [WithBudget] tells the database in
// advance how long a statement may take.
//
// # sqlc, gorm and others
//
// A [DB] has the methods that sqlc's code needs, and those of gorm's ConnPool with its transactions. Pass it as
// it is. Turn off the settings that keep a [database/sql.Stmt]: emit_prepared_queries of sqlc, PrepareStmt of
// gorm. gorm's methods DB and Connection fail, because no [database/sql.DB] stands above the gate.
//
// bun and sqlx want a [database/sql.DB] itself. Give them [DB.Pool], where work is refused and never waits.
//
// # Connections
//
// [database/sql.Conn.Raw] sees a wrapper; [DriverConn] returns the connection of the driver. Keep neither beyond Raw.
//
// A panic of the driver or of an argument gives the permit back, although database/sql may lose the connection. There
// are three exceptions. A driver that panics while rows are closed keeps the permit. So does one that panics in Prepare within a
// transaction or a Conn, because that may go on. After the panic of an argument, or of a driver that counts or converts
// arguments, a transaction or a Conn has none, and its next statement asks the gate anew. Do not go on with such a
// transaction: in Commit and Rollback database/sql may wait for ever, and the new permit is lost.
package weirsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/poolgate"
	"github.com/weir-go/weir/limit"
)

// DB is a pool of connections with a gate above it. Make one with [Open] or [New]. It is safe for concurrent
// use.
//
// The Work of a call has the method as its Op, and says whether the call is a write. An exec, a conn and a
// begin are writes, except a transaction with ReadOnly. For a query and a prepare, [IsWrite] decides. A ping is exempt.
// [WithWork] can change all of this.
//
// Use one gate for reads and writes. Two gates that find their limits by themselves take slots from each other.
// Two need control.ProbePair or fixed limits.
type DB struct {
	pool  *sql.DB
	guard *guard

	// These show whether work waits in the pool.
	calls  atomic.Uint64
	logged atomic.Bool
	waits  poolgate.Waits

	// Set by Open.
	limiter *limit.Limiter // nil if the user made the gate

	// SetMaxOpenConns takes no lock, because hooks of the gate are called meanwhile, and may call it.
	conns     atomic.Int64 // the last size that was asked for
	resizing  atomic.Bool  // a call carries out sizes, its own and those of others
	config    limit.Config // what the user wants
	set       int64        // the fixed limit that was set since, 0 if there is none; changed only while resizing
	fitted    int64        // the fixed limit that fits the pool, 0 if there is none; likewise
	unbounded atomic.Bool  // the log says already that the limit is above the pool
}

// New returns a DB with a gate of your own. Its pool has the settings of [database/sql.OpenDB]: set MaxOpenConns
// and MaxIdleConns. A nil gate admits everything.
func New(c driver.Connector, g weir.Gate, opts ...Option) *DB {
	return newDB(c, newGuard(g, opts).told())
}

func newDB(c driver.Connector, guard *guard) *DB {
	return &DB{pool: sql.OpenDB(newConnector(c, guard)), guard: guard}
}

// Pool returns the pool, for code that wants a [database/sql.DB]. Work on it asks the gate too, but only when
// it has a connection already. So it is admitted or refused, and never waits.
func (db *DB) Pool() *sql.DB { return db.pool }

// Gate returns the gate. After [Open] it is a *limit.Limiter.
func (db *DB) Gate() weir.Gate { return db.guard.gate }

func (db *DB) admit(ctx context.Context, c call) (*use, error) {
	db.look()
	u, err := db.guard.admit(ctx, c, 0)
	if err != nil && db.limiter != nil {
		if r := weir.AsRejection(err); r != nil && r.Reason == weir.ReasonDraining {
			err = fmt.Errorf("weirsql: the DB or its gate was closed: %w", err)
		}
	}
	return u, err
}

// ExecContext is that of [database/sql.DB], through the gate.
func (db *DB) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	u, err := db.admit(ctx, call{method: methodExec, query: query})
	if err != nil {
		return nil, err
	}
	defer u.end()
	r, err := db.pool.ExecContext(u.bounded(), query, args...)
	u.executed(err)
	return r, err
}

// Exec is ExecContext without a context.
func (db *DB) Exec(query string, args ...any) (sql.Result, error) {
	return db.ExecContext(context.Background(), query, args...)
}

// QueryContext is that of [database/sql.DB], through the gate.
func (db *DB) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	u, err := db.admit(ctx, call{method: methodQuery, query: query})
	if err != nil {
		return nil, err
	}
	defer u.endUnlessKept()
	rows, err := db.pool.QueryContext(u.bounded(), query, args...)
	u.queried(err)
	if err == nil {
		findLeak(u, rows)
	}
	return rows, err
}

// Query is QueryContext without a context.
func (db *DB) Query(query string, args ...any) (*sql.Rows, error) {
	return db.QueryContext(context.Background(), query, args...)
}

// QueryRowContext is that of [database/sql.DB], through the gate. A refusal comes from Scan.
func (db *DB) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	u, err := db.admit(ctx, call{method: methodQuery, query: query})
	if err != nil {
		return db.pool.QueryRowContext(refused{ctx, err}, query, args...)
	}
	defer u.endUnlessKept()
	row := db.pool.QueryRowContext(u.bounded(), query, args...)
	u.queried(row.Err())
	findLeak(u, row)
	return row
}

// QueryRow is QueryRowContext without a context.
func (db *DB) QueryRow(query string, args ...any) *sql.Row {
	return db.QueryRowContext(context.Background(), query, args...)
}

// refused is a context that has ended with a refusal. database/sql checks the context before it looks for a
// connection. No other way makes a [database/sql.Row] with an error.
type refused struct {
	context.Context
	err error
}

var ended = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Done implements [context.Context].
func (r refused) Done() <-chan struct{} { return ended }

// Err implements [context.Context].
func (r refused) Err() error { return r.err }

// BeginTx is that of [database/sql.DB], through the gate. The transaction holds its permit to its end. A query
// on the DB meanwhile takes a second one: see [DB.InTx].
func (db *DB) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	u, err := db.admit(ctx, call{method: methodBegin, opts: opts})
	if err != nil {
		return nil, err
	}
	return db.begin(u, opts)
}

func (db *DB) begin(u *use, opts *sql.TxOptions) (*sql.Tx, error) {
	defer u.endUnlessKept()
	tx, err := db.pool.BeginTx(u, opts)
	u.kept = err == nil
	if err != nil {
		u.executed(err)
	}
	return tx, err
}

// Begin is BeginTx without a context and options.
func (db *DB) Begin() (*sql.Tx, error) { return db.BeginTx(context.Background(), nil) }

// InTx calls fn in a transaction. It commits if fn returns nil. Otherwise, and if fn panics, it rolls back. It
// returns the error of fn or of the commit, or a [*weir.Rejection] if the transaction did not begin.
//
// The context of fn carries the permit. So a call through the same gate, such as a query on the DB, takes no
// second permit. It does take a second connection, so prefer tx.
func (db *DB) InTx(ctx context.Context, opts *sql.TxOptions, fn func(ctx context.Context, tx *sql.Tx) error) error {
	u, err := db.admit(ctx, call{method: methodBegin, opts: opts})
	if err != nil {
		return err
	}
	permit := u.permit
	tx, err := db.begin(u, opts)
	if err != nil {
		return err
	}
	panics := true
	defer func() {
		if panics {
			u.abort(tx)
			return
		}
		_ = tx.Rollback() // after a commit it does nothing
	}()
	if err = fn(weir.WithPermit(ctx, db.guard.gate, permit), tx); err == nil {
		err = tx.Commit()
	}
	panics = false
	return err
}

// Conn is that of [database/sql.DB], through the gate. It holds its permit until it is closed. ctx bounds the
// wait only.
func (db *DB) Conn(ctx context.Context) (*sql.Conn, error) {
	u, err := db.admit(ctx, call{method: methodConn})
	if err != nil {
		return nil, err
	}
	defer u.endUnlessKept()
	conn, err := db.pool.Conn(u)
	if err != nil {
		u.executed(err)
		return nil, err
	}
	u.answered = true
	err = conn.Raw(func(c any) error {
		c.(wrapped).base().attach(u)
		return nil
	})
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	u.kept = true
	findLeak(u, conn)
	return conn, nil
}

// PrepareContext is that of [database/sql.DB], through the gate. The statement that it returns never waits, and
// may be refused: see [DB.Stmt].
func (db *DB) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	u, err := db.admit(ctx, call{method: methodPrepare, query: query})
	if err != nil {
		return nil, err
	}
	defer u.end()
	s, err := db.pool.PrepareContext(u.bounded(), query)
	if err != nil {
		u.executed(err)
	}
	u.answered = err == nil
	return s, err
}

// Prepare is PrepareContext without a context.
func (db *DB) Prepare(query string) (*sql.Stmt, error) {
	return db.PrepareContext(context.Background(), query)
}

// PingContext is that of [database/sql.DB], through the gate as exempt work.
func (db *DB) PingContext(ctx context.Context) error {
	u, err := db.admit(ctx, call{method: methodPing})
	if err != nil {
		return err
	}
	defer u.end()
	err = db.pool.PingContext(u)
	u.answered = err == nil
	return err
}

// Ping is PingContext without a context.
func (db *DB) Ping() error { return db.PingContext(context.Background()) }

// Close closes the gate if [Open] has made it, and then the pool. Work that waits in the gate is refused. A
// connection in use is closed when it is given back.
func (db *DB) Close() error {
	if db.limiter != nil {
		db.limiter.Close()
	}
	return db.pool.Close()
}

// Driver returns the driver of the connector.
func (db *DB) Driver() driver.Driver { return db.pool.Driver() }

// Stats returns the statistics of the pool. Nobody should wait in the pool.
func (db *DB) Stats() sql.DBStats { return db.pool.Stats() }

// SetMaxIdleConns is that of [database/sql.DB].
func (db *DB) SetMaxIdleConns(n int) { db.pool.SetMaxIdleConns(n) }

// SetConnMaxLifetime is that of [database/sql.DB].
func (db *DB) SetConnMaxLifetime(d time.Duration) { db.pool.SetConnMaxLifetime(d) }

// SetConnMaxIdleTime is that of [database/sql.DB].
func (db *DB) SetConnMaxIdleTime(d time.Duration) { db.pool.SetConnMaxIdleTime(d) }
