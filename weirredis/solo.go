package weirredis

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"
)

// solo is a connection for a decision that is the only one under way. On a connection of its
// own the caller sends and reads by itself. In the shared pipeline three goroutines wake each
// other, which costs a lone caller as much again as the server does.
type solo struct {
	conn ownConn
	used time.Time
}

// ownConn is the part of a [rueidis.DedicatedClient] that is needed here.
type ownConn interface {
	commander
	Close()
}

// A solo connection is made when lone decisions come within soloWithin of each other. It is
// closed when it has rested for soloRest: nobody pings it, and the server may have closed it.
const (
	soloWithin = 100 * time.Millisecond
	soloRest   = time.Second
)

// solos has at most one solo connection.
type solos struct {
	mu     sync.Mutex
	conn   *solo // ready, or in use
	taken  bool  // in use, or being dialled
	last   time.Time
	failed time.Time // when one was last closed because of an error
	closed bool
}

// borrow returns the connection, if there is one that is ready. If not, wanted says that the
// caller has to dial one, and give it back.
func (a *solos) borrow(now time.Time) (s *solo, wanted bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	soon := now.Sub(a.last) < soloWithin
	a.last = now
	if a.closed || a.taken {
		return nil, false
	}
	if s = a.conn; s != nil && now.Sub(s.used) < soloRest {
		a.taken = true
		return s, false
	}
	a.dropLocked()
	a.taken = soon && now.Sub(a.failed) >= soloRest
	return nil, a.taken
}

// giveBack returns a connection, or nil if there is none.
func (a *solos) giveBack(s *solo, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.taken = false
	if s == nil || a.closed {
		a.failed = now
		a.dropLocked()
		if s != nil {
			s.conn.Close()
		}
		return
	}
	s.used, a.conn = now, s
}

func (a *solos) dropLocked() {
	if a.conn != nil {
		a.conn.conn.Close()
		a.conn = nil
	}
}

// close closes the connection, also if it is in use.
func (a *solos) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	a.dropLocked()
}

// dialSolo dials a connection for lone callers. The ping finds out whether it works. A server
// that refuses pings does no harm.
func (s *Store) dialSolo(client *client) {
	if !s.spawn(func() {
		var c *solo
		conn, _ := client.Dedicate()
		// A context that can be cancelled, and has no deadline, would leave the connection to goroutines
		// of the client's own. No later deadline would count then.
		within := until{context.Background(), time.Now().Add(s.cfg.DialTimeout)}
		defer context.AfterFunc(s.ctx, conn.Close)()
		if conn.Do(within, conn.B().Ping().Build()).NonRedisError() == nil {
			c = &solo{conn: conn}
		} else {
			conn.Close()
		}
		s.solos.giveBack(c, time.Now())
	}) {
		s.solos.giveBack(nil, time.Now())
	}
}

// until is a context with a deadline that no timer watches.
type until struct {
	context.Context
	end time.Time
}

// Deadline implements [context.Context].
func (u until) Deadline() (time.Time, bool) { return u.end, true }

// runAlone asks questions on the connection c.
func (s *Store) runAlone(ctx context.Context, l *lane, c *solo, all []question, now time.Time) {
	end, own := now.Add(s.cfg.Deadline), true
	if d, ok := ctx.Deadline(); ok && d.Before(end) {
		end, own = d, false
	}
	stop := func() bool { return true }
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, c.conn.Close)
	}
	ask(until{context.Background(), end}, c.conn, all)
	left := !stop() // the caller has left, so c is being closed
	broken := false
	for i := range all {
		if q := &all[i]; q.err != nil && q.err.Reason == Broken {
			q.err = s.noAnswer(ctx, q.err.Err, own)
			broken = true
		}
	}
	bad, good := worst(all)
	switch {
	case bad == nil && good:
		l.answered()
		l.succeeded()
	case bad != nil && (bad.err.Reason == Refused || bad.err.Err == errDeadline):
		s.failed(l, bad.key, bad.err.Err)
	}
	if left || broken || bad != nil {
		c.conn.Close() // another connection may fare better
		c = nil
	}
	s.solos.giveBack(c, now)
}

// noAnswer classifies that a connection broke, or that its answer was late.
func (s *Store) noAnswer(ctx context.Context, broken error, own bool) *Error {
	switch late := errors.Is(broken, context.DeadlineExceeded) || errors.Is(broken, os.ErrDeadlineExceeded); {
	case ctx.Err() != nil:
		return fail(Timeout, ctx.Err())
	case late && !own:
		return fail(Timeout, context.DeadlineExceeded)
	case late:
		return fail(Timeout, errDeadline)
	}
	return fail(Broken, broken) // one connection is no outage; the shared ones decide that
}
