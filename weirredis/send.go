package weirredis

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// call is one script on its way. Two look at it: the goroutine that sends it, and
// the caller, who may stop waiting first. Whoever comes second puts it away.
type call struct {
	done  chan struct{} // gets one element when reply and err are there
	timer *time.Timer
	first atomic.Bool // somebody is through with it

	reply string
	err   *Error
}

var calls = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &call{done: make(chan struct{}, 1), timer: t}
}}

// run runs the script on one key and returns what it said. Nothing is sent twice.
//
// The client is given no deadline: one that has expired leaves it with a goroutine
// for each command that the server has not answered, and nobody can count those.
// Here the goroutine is the store's own, and holds its place in flight until the
// client lets go, which it does when the connection is found dead.
func (s *Store) run(ctx context.Context, key string, arg []byte) (string, *Error) {
	if err := ctx.Err(); err != nil {
		return "", fail(Canceled, err)
	}
	if s.ctx.Err() != nil {
		return "", fail(Closed, nil)
	}
	client := s.client.Load()
	if client == nil {
		return "", fail(Down, s.lanes[0].lastCause())
	}
	l := s.laneOf(client, key)
	alone, err := l.enter(client.places)
	if err != nil {
		return "", err
	}
	if alone && client.single {
		now := time.Now()
		c, wanted := s.solos.borrow(now)
		if c != nil {
			if reply, err, sent := s.alone(ctx, l, c, key, arg, now); sent {
				l.leave()
				return reply, err
			}
		} else if wanted {
			s.prepare(client)
		}
	}
	return s.among(ctx, client, l, key, arg)
}

// among runs the script on a connection that others share.
func (s *Store) among(ctx context.Context, client *client, l *lane, key string, arg []byte) (string, *Error) {
	c := calls.Get().(*call)
	c.timer.Reset(s.cfg.Deadline)
	go s.send(client, l, c, key, rueidis.BinaryString(arg))
	select {
	case <-c.done:
		c.timer.Stop()
		return c.take()
	case <-c.timer.C:
		return s.abandon(l, c, key, errDeadline)
	case <-ctx.Done():
		c.timer.Stop()
		return s.abandon(l, c, key, ctx.Err())
	}
}

var errDeadline = errors.New("no answer within the deadline")

// abandon leaves the call to its goroutine, unless the answer comes in this very
// moment. That a caller's own time is up says nothing about the server.
func (s *Store) abandon(l *lane, c *call, key string, why error) (string, *Error) {
	if !c.first.CompareAndSwap(false, true) {
		<-c.done
		return c.take()
	}
	if why == errDeadline {
		s.failed(l, key, why)
	}
	return "", fail(Timeout, why)
}

// take returns the answer and puts the call away.
func (c *call) take() (string, *Error) {
	reply, err := c.reply, c.err
	c.put()
	return reply, err
}

// send runs the script and counts what came of it, unless the caller has.
func (s *Store) send(client *client, l *lane, c *call, key, arg string) {
	reply, err := client.take(key, arg)
	l.leave()
	if err == nil {
		l.answered()
	}
	if !c.first.CompareAndSwap(false, true) {
		c.put()
		return
	}
	if err == nil {
		l.worked()
	} else if err.Reason != Invalid {
		s.failed(l, key, err)
	}
	c.reply, c.err = reply, err
	c.done <- struct{}{}
}

func (c *call) put() {
	c.reply, c.err = "", nil
	c.first.Store(false)
	calls.Put(c)
}

// understood says what an error of the client means.
func understood(err error) *Error {
	answer, ok := rueidis.IsRedisErr(err)
	switch {
	case err == nil:
		return nil
	case !ok:
		return fail(Broken, err)
	}
	return refused(answer)
}

// refused says what an error that the server answers means.
func refused(err error) *Error {
	if text := err.Error(); strings.Contains(text, "WRONGTYPE") || strings.Contains(text, scriptFault) {
		return fail(Invalid, err) // of this key, not of the server
	}
	return fail(Refused, err)
}
