package weirpgx

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

// CancelPatience is how long a server may take to stop a statement whose context has ended. After that its
// connection is closed, and its slot is free. Where the server does not answer at all, a ping may last that
// much longer than the PingTimeout of the pool. A Rollback after the end of its context may hold its slot for twice
// as long.
const CancelPatience = 5 * time.Second

// CancelRequests makes connections ask the server to stop when a context ends, and wait until it has. See the
// package's documentation for why. [Open] calls it by itself. For a pool, cfg is the ConnConfig of its
// configuration. For database/sql, cfg is the argument of stdlib.GetConnector. CancelRequests sets
// BuildContextWatcherHandler, and an OnPgError that calls the previous one. It is not for connections that wait
// for notifications.
func CancelRequests(cfg *pgx.ConnConfig) {
	cfg.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		c := &canceller{conn: conn, after: cancelAfter, late: lateCancel}
		conn.CustomData()[cancellerKey] = c
		return c
	}
	before := cfg.OnPgError
	cfg.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		if c, ok := conn.CustomData()[cancellerKey].(*canceller); ok && isCancel(err) {
			c.stopped.Store(true)
		}
		return before == nil || before(conn, err)
	}
}

const cancellerKey = "weirpgx.canceller"

// isCancel reports whether a cancel request stopped a statement. A statement time-out has the same code and
// another text. If the server's messages are not English, no cancel is recognised, and each costs lateCancel.
func isCancel(err *pgconn.PgError) bool {
	return err.Code == "57014" && err.Message == "canceling statement due to user request"
}

// stoppedBy adds to a server's answer that a statement was cancelled the error of the context whose end has asked for that.
// pgx by itself returns the context's error alone.
func stoppedBy(ctx context.Context, err error) error {
	var answer *pgconn.PgError
	if ctx.Err() == nil || !errors.As(err, &answer) || !isCancel(answer) || errors.Is(err, ctx.Err()) {
		return err
	}
	return fmt.Errorf("%w: %w", ctx.Err(), err)
}

// lateCancel is how long a connection rests if its statement ended by itself after a cancel was sent. The
// server may still deliver the cancel, which would stop the next statement. pgx waits as long.
const lateCancel = 100 * time.Millisecond

// cancelAfter is the time between the end of a context and the first cancel. Most statements end by themselves
// in that time. A cancel would come too late for them, and the connection would rest.
const cancelAfter = 20 * time.Millisecond

// cancelAgain is the time between two cancels. The server drops a cancel that arrives before the statement has
// begun.
const cancelAgain = 500 * time.Millisecond

// canceller asks the server to stop a connection's statement when its context ends.
// pgconn.CancelRequestContextWatcherHandler does so too, but it asks once and rests after each cancel. A
// canceller does not rest if the server says that the cancel stopped the statement. Then no other cancel is on
// its way.
type canceller struct {
	conn        *pgconn.PgConn
	after, late time.Duration // cancelAfter, lateCancel
	stopped     atomic.Bool   // the server says that the cancel stopped this statement
	ended       chan struct{} // closed when the statement has ended
	giveUp      context.CancelFunc
	asked       chan int // how often the server was asked
}

// HandleCancel implements [ctxwatch.Handler].
func (c *canceller) HandleCancel(context.Context) {
	c.stopped.Store(false)
	until := time.Now().Add(CancelPatience)
	_ = c.conn.Conn().SetDeadline(until) // fails only if the connection is closed already
	ctx, giveUp := context.WithDeadline(context.Background(), until)
	c.ended, c.giveUp, c.asked = make(chan struct{}), giveUp, make(chan int, 1)
	go c.requestCancel(ctx)
}

// requestCancel asks the server to cancel, again and again, until the statement or ctx has ended.
func (c *canceller) requestCancel(ctx context.Context) {
	next := time.NewTimer(c.after)
	defer next.Stop()
	for n := 0; ; n++ {
		select {
		case <-c.ended:
			c.asked <- n
			return
		case <-ctx.Done():
			c.asked <- n
			return
		case <-next.C:
			_ = c.conn.CancelRequest(ctx) // returns when the server has received it; an error changes nothing here
			next.Reset(cancelAgain)
		}
	}
}

// HandleUnwatchAfterCancel implements [ctxwatch.Handler]. It is called when the statement has ended.
func (c *canceller) HandleUnwatchAfterCancel() {
	stopped := c.stopped.Load()
	close(c.ended)
	if !stopped {
		c.giveUp()
	}
	asked := <-c.asked
	c.giveUp()
	if late := asked > 1 || asked == 1 && !stopped; late && !c.conn.IsClosed() {
		time.Sleep(c.late)
	}
	_ = c.conn.Conn().SetDeadline(time.Time{})
}
