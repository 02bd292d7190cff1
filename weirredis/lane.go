package weirredis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

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

// call is one script on its way. Two look at it: the goroutine that sends it, and
// the caller, who may stop waiting first. Whoever comes second puts it away.
type call struct {
	done  chan struct{} // gets one element when reply and err are there
	timer *time.Timer
	first atomic.Bool // somebody is through with it

	reply string
	err   *Error
}

// take returns the answer and puts the call away.
func (c *call) take() (string, *Error) {
	reply, err := c.reply, c.err
	c.put()
	return reply, err
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

// lanes is into how many parts of neighbouring hash slots a cluster's keys are
// divided, so that a node that is gone takes only its own keys with it.
const lanes = 16

// tripAfter is how many decisions in a row fail before the store gives up sending:
// one connection that breaks while idle is no outage.
const tripAfter = 3

// lane is the way to one part of the keys: what is under way there, and whether
// anything is sent at all.
type lane struct {
	inFlight atomic.Int64
	failures atomic.Int64 // in a row
	down     atomic.Bool
	silent   atomic.Int64 // since when the server owes an answer, or had any to give

	mu    sync.Mutex
	since time.Time // down since
	cause error     // of the last failure
}

// enter claims one of the places in flight, and says whether it is the only one that
// is taken, or why there is none. Whoever has one calls leave when the client has let
// go of the decision, however long after the caller has.
func (l *lane) enter(places int64) (alone bool, err *Error) {
	if l.down.Load() {
		return false, fail(Down, l.lastCause())
	}
	for {
		n := l.inFlight.Load()
		if n >= places {
			return false, fail(Full, nil)
		}
		if l.inFlight.CompareAndSwap(n, n+1) {
			if n == 0 {
				l.answered()
			}
			return n == 0, nil
		}
	}
}

func (l *lane) leave() { l.inFlight.Add(-1) }

// silence is for how long the server has to say nothing to a question until it is held
// to be its fault that answers are late: whoever keeps this process busy must not be able
// to open its gates.
const silence = time.Second

// epoch is what times of answers are counted from.
var epoch = time.Now()

// answered notes that the server has, however late, or that it owed no answer till now.
func (l *lane) answered() { l.silent.Store(int64(time.Since(epoch))) }

// busy reports whether a failure for this reason says nothing about the server.
func (l *lane) busy(why Reason) bool {
	switch why {
	case Full:
		return true
	case Down:
		if !late(l.lastCause()) {
			return false
		}
		fallthrough
	case Timeout:
		return time.Since(epoch)-time.Duration(l.silent.Load()) < silence
	}
	return false
}

// late reports whether all that was wrong is that an answer took its time.
func late(cause error) bool {
	var e *Error
	return errors.Is(cause, errDeadline) || errors.As(cause, &e) && e.Reason == Timeout
}

// worked ends a row of failures.
func (l *lane) worked() {
	if l.failures.Load() != 0 {
		l.failures.Store(0)
	}
}

// failed counts a failure, and reports whether this one took the lane down: the
// caller then starts the probing.
func (l *lane) failed(now time.Time, err error) (tripped bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cause = err
	if l.failures.Add(1) < tripAfter || l.down.Load() {
		return false
	}
	l.since = now
	l.down.Store(true)
	return true
}

// up opens the lane again and returns for how long it was closed.
func (l *lane) up(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures.Store(0)
	l.down.Store(false)
	return now.Sub(l.since)
}

func (l *lane) lastCause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// still keeps why a lane that is down is not up yet.
func (l *lane) still(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cause = err
}

// A store that is down looks whether its server is back: first after about
// firstProbe, then ever more seldom, up to about every lastProbe. Each wait is
// drawn between half of that and one and a half, so that many processes that lost
// the same server do not come back in step.
const (
	firstProbe = 20 * time.Millisecond
	lastProbe  = time.Second
)

// backoff is the wait before the next probe.
type backoff struct{ base time.Duration }

func (b *backoff) next(random float64) time.Duration {
	b.base = min(max(2*b.base, firstProbe), lastProbe)
	return b.base/2 + time.Duration(random*float64(b.base))
}

// failed counts a decision that failed, and starts looking for the server when it
// was one too many.
func (s *Store) failed(l *lane, key string, err error) {
	if s.ctx.Err() != nil || !l.failed(s.now(), err) {
		return
	}
	s.count.trips.Add(1)
	if s.cfg.OnDown != nil {
		s.cfg.OnDown(err)
	}
	s.spawn(func() { s.recover(l, key) })
}

// spawn runs work that Close waits for, unless the store is closed; it reports whether
// it does.
func (s *Store) spawn(work func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.background.Go(work)
	return true
}

// recover probes a lane that is down until it works. It is the only one to send
// anything there, one probe at a time.
func (s *Store) recover(l *lane, key string) {
	var b backoff
	for s.pause(b.next(rand.Float64())) {
		s.count.probes.Add(1)
		if err := s.probe(key); err != nil {
			if errors.Is(err, errLies) {
				s.cfg.guards.breakAll()
			}
			l.still(err)
			continue
		}
		down := l.up(s.now())
		if s.cfg.OnUp != nil {
			s.cfg.OnUp(down)
		}
		return
	}
}

// probe does what a decision does, on a key of its own beside the one that failed:
// it needs the same node, the same rights and room in memory. It counts only if it
// is as quick as a decision has to be.
func (s *Store) probe(key string) error {
	c := s.client.Load()
	if c == nil {
		return s.connect()
	}
	if err := c.fitHere(s.ctx, &s.cfg, key); err != nil {
		return err
	}
	begin := time.Now()
	answer, err := c.take(probeKey(key), probeArg)
	if err != nil {
		return err
	}
	if _, err := unpack(answer, 1); err != nil {
		return fail(Invalid, fmt.Errorf("%w: %w", errLies, err))
	}
	s.laneOf(c, key).answered()
	if took := time.Since(begin); took > s.cfg.Deadline {
		return fail(Timeout, errors.New("a probe took "+took.Round(time.Millisecond).String()))
	}
	return nil
}

// connect connects for the first time, if New could not.
func (s *Store) connect() error {
	c, err := connect(s.ctx, &s.cfg)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		c.Close()
		return fail(Closed, nil)
	}
	s.client.Store(c)
	return nil
}

// pause waits, and reports false if the store was closed.
func (s *Store) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}
