package weirredis

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// solo is a connection for decisions that are alone under way. What is asked on a
// connection that is nobody else's, the client sends and reads by itself; in a pipeline
// three goroutines have to wake each other, which costs a lone caller as much again as
// the server does.
type solo struct {
	conn ownConn
	used time.Time
}

// ownConn is what is needed of a [rueidis.DedicatedClient].
type ownConn interface {
	B() rueidis.Builder
	Do(context.Context, rueidis.Completed) rueidis.RedisResult
	Close()
}

// A solo connection is made when decisions come alone within often of each other, and
// left when it has rested for stale: nobody pings it, and the server may have closed it.
const (
	often = 100 * time.Millisecond
	stale = time.Second
)

// solos has at most one solo connection.
type solos struct {
	mu     sync.Mutex
	conn   *solo // of use, or in use
	taken  bool  // in use, or being made
	last   time.Time
	failed time.Time // when one was last left because of an error
	closed bool
}

// borrow returns the connection to who is alone, if there is one. Without, it says
// whether one is to be made: the caller has to, and then to give it.
func (a *solos) borrow(now time.Time) (s *solo, wanted bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	soon := now.Sub(a.last) < often
	a.last = now
	if a.closed || a.taken {
		return nil, false
	}
	if s = a.conn; s != nil && now.Sub(s.used) < stale {
		a.taken = true
		return s, false
	}
	a.dropLocked()
	a.taken = soon && now.Sub(a.failed) >= stale
	return nil, a.taken
}

// give brings a connection back, or says that there is none.
func (a *solos) give(s *solo, now time.Time) {
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

// close breaks the connection, whoever uses it.
func (a *solos) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	a.dropLocked()
}

// prepare makes a connection for those who ask alone. The ping is to find out whether
// there is one: that the server may refuse it does no harm.
func (s *Store) prepare(client *client) {
	if !s.spawn(func() {
		var c *solo
		conn, _ := client.Dedicate()
		if conn.Do(s.ctx, conn.B().Ping().Build()).NonRedisError() == nil {
			c = &solo{conn: conn}
		} else {
			conn.Close()
		}
		s.solos.give(c, time.Now())
	}) {
		s.solos.give(nil, time.Now())
	}
}

// until is a context that only has an end: of its own, no timer watches it.
type until struct {
	context.Context
	end time.Time
}

// Deadline implements [context.Context].
func (u until) Deadline() (time.Time, bool) { return u.end, true }

// alone runs the script on the connection of its own. sent is false if the server has
// not got the script, and done nothing.
func (s *Store) alone(ctx context.Context, l *lane, c *solo, key string, arg []byte, now time.Time) (reply string, err *Error, sent bool) {
	end, own := now.Add(s.cfg.Deadline), true
	if d, ok := ctx.Deadline(); ok && d.Before(end) {
		end, own = d, false
	}
	stop := func() bool { return true }
	if ctx.Done() != nil {
		stop = context.AfterFunc(ctx, c.conn.Close)
	}
	answer := c.conn.Do(until{context.Background(), end}, takeBySHA(c.conn.B(), key, rueidis.BinaryString(arg)))
	left := !stop() // so it is being closed
	reply, fault := answer.ToString()
	e, answered := rueidis.IsRedisErr(fault)
	forgotten := answered && e.IsNoScript()
	switch {
	case fault == nil:
		l.answered()
		l.worked()
	case forgotten:
	case answered:
		if err = refused(e); err.Reason == Refused {
			s.failed(l, key, err)
		}
	default:
		err = s.unheard(ctx, l, key, fault, own)
	}
	if left || fault != nil && !answered || err != nil && err.Reason == Refused {
		c.conn.Close() // whatever it is, another connection may fare better
		c = nil
	}
	s.solos.give(c, now)
	return reply, err, !forgotten
}

// unheard says what it means that a connection broke, or was late by its own deadline.
func (s *Store) unheard(ctx context.Context, l *lane, key string, broken error, own bool) *Error {
	switch late := errors.Is(broken, context.DeadlineExceeded) || errors.Is(broken, os.ErrDeadlineExceeded); {
	case ctx.Err() != nil:
		return fail(Timeout, ctx.Err())
	case late && !own:
		return fail(Timeout, context.DeadlineExceeded)
	case late:
		s.failed(l, key, errDeadline)
		return fail(Timeout, errDeadline)
	}
	return fail(Broken, broken) // one connection is no outage: the others will tell
}
