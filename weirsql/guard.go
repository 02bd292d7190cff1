package weirsql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/poolgate"
)

// guard is a gate, and the settings for asking it. The settings never change once it is built.
type guard struct {
	gate     weir.Gate
	work     func(context.Context, string, *weir.Work)
	classify func(context.Context, error) weir.Outcome
	logger   *slog.Logger
	budget   poolgate.Budget // of each statement
	holds    *holds          // nil: nothing is held when a context ends
	leaks    bool            // find uses that are dropped
	warned   atomic.Bool     // the log says already that a wrapper hides when connections are given back
}

// Option adjusts [New], [Open] and [Connector].
type Option func(*guard)

func newGuard(g weir.Gate, opts []Option) *guard {
	guard := &guard{gate: g, classify: Classify}
	for _, o := range opts {
		o(guard)
	}
	return guard
}

// told logs what is wrong with the options, for those who return no error.
func (g *guard) told() *guard {
	if err := g.budget.Fault(); err != nil {
		g.log().Error("weirsql: " + err.Error())
	}
	return g
}

// hidden logs once that nobody hears when a connection is given back.
func (g *guard) hidden() {
	if g.warned.CompareAndSwap(false, true) {
		g.log().Error("weirsql: a wrapper above weirsql.Connector does not pass driver.Validator on, so idle connections hold slots of the gate. " +
			"Wrap the driver's connector instead: weirsql.Connector(traced(connector), gate)")
	}
}

// WithWork lets fn describe the work: tenant, user, priority, cost. Op is already query, exec, prepare, begin,
// conn or ping, and Write is set: see [DB]. A ping is Exempt. Deadline is that of ctx, except for a conn: its ctx
// bounds the wait only. fn can change all of it. query is the text; it is empty for a transaction, a conn and a
// ping.
func WithWork(fn func(ctx context.Context, query string, w *weir.Work)) Option {
	return func(g *guard) { g.work = fn }
}

// WithClassify replaces [Classify], for instance by [ClassifyMySQL]. nil leaves it.
func WithClassify(fn func(ctx context.Context, err error) weir.Outcome) Option {
	return func(g *guard) {
		if fn != nil {
			g.classify = fn
		}
	}
}

// WithLogger sets the logger for the one line that says that work waits in the pool, and for the one of
// [DB.SetMaxOpenConns]. Default [slog.Default].
func WithLogger(l *slog.Logger) Option {
	return func(g *guard) { g.logger = l }
}

func (g *guard) log() *slog.Logger {
	if g.logger == nil {
		return slog.Default()
	}
	return g.logger
}

// WithBudget gives each statement a share of the time that is left until its context's deadline: from 0 to
// 1, which is all of it. Default 0: no budgets. A statement without a deadline has no budget. [Open] returns an
// error for another share. [New] and [Connector] log it, and take the nearest.
//
// Outside of transactions a budget is a deadline of the context, and includes reading the rows. In a
// transaction the DB tells the database before each statement, with the text that tell returns, such as that of
// [LocalTimeout]. That is one more round trip, or two with a driver that prepares each statement. With an empty text the last time-out stays. tell is called with
// 0 for a statement without a deadline after one with a deadline. With a nil tell, statements in transactions
// have no budget. Outside of transactions, only the methods of [DB] and [Stmt] give budgets. Statements of a
// [database/sql.Conn], of the Pool and of a [Connector] have none there. Begin, Commit, Rollback and Ping have
// none either.
func WithBudget(share float64, tell func(d time.Duration) string) Option {
	return func(g *guard) { g.budget = poolgate.NewBudget(share, tell) }
}

// WithHold keeps the permit of a call whose context has ended before its answer. It is for drivers, such as
// those of MySQL, that return when the context ends although the server works on. The permit is held for as long as
// this call took, or as calls take in the mean, if that is longer. Only execs and queries count, from when the driver
// is called to its answer. The time runs from that answer, or from the deadline that cut rows off. So a pause before a transaction
// ends holds nothing for longer. Rows that a cancel has cut off are the exception: their time runs from the end of the
// transaction or Conn. The permit is never held for more than longest. For a transaction and a
// [database/sql.Conn], the context of the last statement counts too. Rows that this context has cut off are held if
// their connection is broken. A call within [DB.InTx] has no permit of its own, so nothing is held for it.
func WithHold(longest time.Duration) Option {
	return func(g *guard) {
		if longest > 0 {
			g.holds = &holds{longest: longest}
		}
	}
}

// WithFindLeaks gives back the permits of rows and connections that are dropped without being closed, once the
// garbage collector has found them. A gate that looks for leaks reports the call site; a limiter does so with
// limit.Config.FindLeaks. The connection itself stays lost to the pool. This is a debug option, because each
// query costs a cleanup. It finds only what was taken through [DB] and [Stmt]. It does not find what database/sql
// keeps: transactions, rows of a [Stmt], and rows under a context that can still end. A row whose Scan reads a long
// rest of the result may be reported by mistake.
func WithFindLeaks() Option {
	return func(g *guard) { g.leaks = true }
}

// The methods of a call, which are the Op of the work.
const (
	methodQuery   = "query"
	methodExec    = "exec"
	methodPrepare = "prepare"
	methodBegin   = "begin"
	methodConn    = "conn"
	methodPing    = "ping"
)

// call is one call to a database, before it is made.
type call struct {
	method string
	query  string         // of a query, exec or prepare
	opts   *sql.TxOptions // of a begin; may be nil
}

// isWrite reports whether the call may change something.
func (c *call) isWrite() bool {
	switch c.method {
	case methodPing:
		return false
	case methodBegin:
		return c.opts == nil || !c.opts.ReadOnly
	case methodQuery, methodPrepare:
		return IsWrite(c.query)
	}
	return true
}

// admit asks the gate for one use of the database.
func (g *guard) admit(ctx context.Context, c call, maxWait time.Duration) (*use, error) {
	u := &use{Context: ctx, guard: g, method: c.method}
	if g.gate == nil {
		return u, nil
	}
	w := weir.Work{Op: c.method, Write: c.isWrite(), Exempt: c.method == methodPing}
	if c.method != methodConn { // ctx bounds the wait for a Conn, and not its use, which may well last longer
		w.Deadline, _ = ctx.Deadline()
	}
	if g.work != nil {
		w = g.described(ctx, c, w)
	}
	if maxWait != 0 {
		w.MaxWait = maxWait
	}
	p, err := g.gate.Admit(ctx, w)
	if err != nil {
		return nil, notBadConn(err)
	}
	u.permit = p
	return u, nil
}

// described is a function of its own because its work escapes to the heap.
func (g *guard) described(ctx context.Context, c call, w weir.Work) weir.Work {
	g.work(ctx, c.query, &w)
	return w
}

// notBadConn wraps the error of a gate so that it never matches [driver.ErrBadConn]. Otherwise database/sql
// would try three times in all.
func notBadConn(err error) error {
	if errors.Is(err, driver.ErrBadConn) {
		return refusal{err}
	}
	return err
}

type refusal struct{ err error }

func (r refusal) Error() string      { return r.err.Error() }
func (r refusal) As(target any) bool { return errors.As(r.err, target) }
func (r refusal) Is(target error) bool {
	return target != driver.ErrBadConn && errors.Is(r.err, target)
}
