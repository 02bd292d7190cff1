package weirredis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// question is one run of the script: on which key, with what, and what came of it.
type question struct {
	key, arg string
	reply    string
	err      *Error
}

// failAll gives every question the same error.
func failAll(all []question, why *Error) {
	for i := range all {
		all[i].err = fail(why.Reason, why.Err)
	}
}

// runAll runs the script on some keys, which need not be of one lane.
func (s *Store) runAll(ctx context.Context, all []question) {
	if len(all) == 0 {
		return
	}
	if c := s.client.Load(); len(all) == 1 || c == nil || !c.cluster && int64(len(all)) <= c.places {
		s.run(ctx, all)
		return
	}
	apart := slices.Clone(all)
	var asked sync.WaitGroup
	for i := range apart {
		asked.Go(func() { s.run(ctx, apart[i:i+1]) })
	}
	asked.Wait()
	copy(all, apart)
}

// run runs the script on some keys of one lane, which are sent together, and fills in what came of
// each. It sends nothing twice.
//
// The client gets no deadline. With an expired one it would keep a goroutine for each
// command that the server has not answered. Nobody could count those. Here the goroutine
// is the store's own. It keeps its places in flight until the client returns, at the
// latest when the connection is found dead.
func (s *Store) run(ctx context.Context, all []question) {
	if err := ctx.Err(); err != nil {
		failAll(all, fail(Canceled, err))
		return
	}
	if s.ctx.Err() != nil {
		failAll(all, fail(Closed, nil))
		return
	}
	client := s.client.Load()
	if client == nil {
		failAll(all, fail(Down, s.lanes[0].lastCause()))
		return
	}
	l := s.laneOf(client, all[0].key)
	alone, err := l.enter(len(all), client.places)
	if err != nil {
		failAll(all, err)
		return
	}
	if alone && client.single {
		now := time.Now()
		c, wanted := s.solos.borrow(now)
		if c != nil {
			s.runAlone(ctx, l, c, all, now)
			l.leave(len(all))
			return
		}
		if wanted {
			s.dialSolo(client)
		}
	}
	s.runShared(ctx, client, l, all)
}

var calls = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &call{done: make(chan struct{}, 1), timer: t}
}}

// runShared runs the script on the connection that all share.
func (s *Store) runShared(ctx context.Context, client *client, l *lane, all []question) {
	c := calls.Get().(*call)
	c.questions = append(c.questions[:0], all...)
	c.timer.Reset(s.cfg.Deadline)
	go s.send(client, l, c)
	select {
	case <-c.done:
		c.timer.Stop()
		c.result(all)
	case <-c.timer.C:
		s.abandon(l, c, all, errDeadline)
	case <-ctx.Done():
		c.timer.Stop()
		s.abandon(l, c, all, ctx.Err())
	}
}

var errDeadline = errors.New("no answer within Deadline (in a file timeout)")

// abandon leaves the call to its goroutine, unless the answer comes at this moment. The end
// of the caller's own time says nothing about the server.
func (s *Store) abandon(l *lane, c *call, all []question, why error) {
	c.left = why != errDeadline
	if !c.first.CompareAndSwap(false, true) {
		<-c.done
		c.result(all)
		return
	}
	if why == errDeadline {
		s.failed(l, all[0].key, why)
	}
	failAll(all, fail(Timeout, why))
}

// send asks the questions of a call and counts their outcome, unless the caller has.
func (s *Store) send(client *client, l *lane, c *call) {
	// A context without an end: see Store.run.
	ask(context.Background(), client, c.questions)
	l.leave(len(c.questions))
	bad, good := worst(c.questions)
	if good {
		l.answered()
	}
	if !c.first.CompareAndSwap(false, true) {
		if bad != nil && c.left {
			s.failed(l, bad.key, bad.err)
		}
		c.recycle()
		return
	}
	if bad != nil {
		s.failed(l, bad.key, bad.err)
	} else if good {
		l.succeeded()
	}
	c.done <- struct{}{}
}

// worst returns the first question whose error says something bad about the server, nil if there is none. good
// says whether any was answered with a decision.
func worst(all []question) (bad *question, good bool) {
	for i := range all {
		switch r := &all[i]; {
		case r.err == nil:
			good = true
		case r.err.Reason != Invalid && bad == nil:
			bad = r
		}
	}
	return bad, good
}

// call is questions under way. The goroutine that asks them and the caller share it. The
// caller may stop waiting first. The second of the two recycles the call.
type call struct {
	done  chan struct{} // gets one element when the questions have their answers
	timer *time.Timer
	first atomic.Bool // one of the two is done with it
	left  bool        // the caller was first, and has counted no failure

	questions []question
}

// result copies the answers to all, and recycles the call.
func (c *call) result(all []question) {
	copy(all, c.questions)
	c.recycle()
}

// recycle gives the call back for other questions.
func (c *call) recycle() {
	clear(c.questions)
	c.left = false
	c.first.Store(false)
	calls.Put(c)
}

// commander is the part of a client, or of a connection of its own, that runs commands.
type commander interface {
	B() rueidis.Builder
	Do(context.Context, rueidis.Completed) rueidis.RedisResult
	DoMulti(context.Context, ...rueidis.Completed) []rueidis.RedisResult
}

// ask asks all questions in one write. A server that does not know it says so and
// does nothing; then the whole script is sent.
func ask(ctx context.Context, c commander, all []question) {
	if len(all) == 1 {
		all[0].read(ctx, c, c.Do(ctx, scriptCommand(c.B(), all[0].key, all[0].arg)))
		return
	}
	commands := make([]rueidis.Completed, len(all))
	for i := range all {
		commands[i] = scriptCommand(c.B(), all[i].key, all[i].arg)
	}
	for i, answer := range c.DoMulti(ctx, commands...) {
		all[i].read(ctx, c, answer)
	}
}

// read reads the answer to r.
func (r *question) read(ctx context.Context, c commander, answer rueidis.RedisResult) {
	if e, ok := rueidis.IsRedisErr(answer.Error()); ok && e.IsNoScript() {
		answer = c.Do(ctx, c.B().Eval().Script(script).Numkeys(1).Key(r.key).Arg(r.arg).Build())
	}
	var err error
	r.reply, err = answer.ToString()
	r.err = errorOf(err)
}

// scriptCommand runs the script on one key, on a server that knows it.
func scriptCommand(b rueidis.Builder, key, arg string) rueidis.Completed {
	return b.Evalsha().Sha1(scriptSHA).Numkeys(1).Key(key).Arg(arg).Build()
}

// lanes is the number of parts into which a cluster's hash slots are divided. So a node
// that is gone affects only its own keys.
const lanes = 16

// tripAfter is how many failures in a row take a lane down: one connection that breaks while
// idle is no outage.
const tripAfter = 3

// lane is the way to one part of the keys. It counts what is under way there, and is down
// while nothing is sent.
type lane struct {
	epoch    time.Time
	inFlight atomic.Int64
	failures atomic.Int64 // in a row
	down     atomic.Bool
	spoke    atomic.Int64 // when the server answered last or owed no answer, since epoch

	mu    sync.Mutex
	since time.Time // down since
	cause error     // of the last failure
}

// enter claims wanted places in flight; alone says that there are no others. The error says why there
// are none. Call leave when the client has returned, however long after the caller.
func (l *lane) enter(wanted int, places int64) (alone bool, err *Error) {
	if l.down.Load() {
		return false, fail(Down, l.lastCause())
	}
	for {
		n := l.inFlight.Load()
		if n+int64(wanted) > places {
			return false, fail(Full, nil)
		}
		if l.inFlight.CompareAndSwap(n, n+int64(wanted)) {
			if n == 0 {
				l.answered()
			}
			return n == 0, nil
		}
	}
}

func (l *lane) leave(places int) { l.inFlight.Add(-int64(places)) }

// silence is how long the server must have owed an answer before late answers count as its
// fault. Otherwise whoever keeps this process busy could open its gates.
const silence = time.Second

// answered records that the server has answered, however late, or owed no answer until now.
func (l *lane) answered() { l.spoke.Store(int64(time.Since(l.epoch))) }

// busy reports whether a failure for this reason may have nothing to do with the server.
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
		return time.Since(l.epoch)-time.Duration(l.spoke.Load()) < silence
	}
	return false
}

// late reports whether an answer was late, and nothing else was wrong.
func late(cause error) bool {
	var e *Error
	return errors.Is(cause, errDeadline) || errors.As(cause, &e) && e.Reason == Timeout
}

// succeeded ends a series of failures.
func (l *lane) succeeded() {
	if l.failures.Load() != 0 {
		l.failures.Store(0)
	}
}

// failed counts a failure, and reports whether it took the lane down. Then the caller starts
// to probe.
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

// up ends the outage and returns how long it was.
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

// setCause records why a lane is still down.
func (l *lane) setCause(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cause = err
}

// A lane that is down is probed after about firstProbe, and then ever more rarely, up to
// about every lastProbe. Each wait is random, from half of that to one and a half times
// as much. So many processes that lost the same server do not come back at once.
const (
	firstProbe = 20 * time.Millisecond
	lastProbe  = time.Second
)

// backoff computes the wait before the next probe.
type backoff struct{ base time.Duration }

func (b *backoff) next(random float64) time.Duration {
	b.base = min(max(2*b.base, firstProbe), lastProbe)
	return b.base/2 + time.Duration(random*float64(b.base))
}

// failed counts a decision that failed, and starts to probe if it took the lane down.
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

// spawn runs work that Close waits for. It returns false if the store is closed.
func (s *Store) spawn(work func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.background.Go(work)
	return true
}

// recover probes a lane that is down until it works, one probe at a time. Nothing else is
// sent there meanwhile.
func (s *Store) recover(l *lane, key string) {
	var b backoff
	for s.pause(b.next(rand.Float64())) {
		s.count.probes.Add(1)
		if err := s.probe(key); err != nil {
			if errors.Is(err, errProtocol) || replica(err) {
				s.cfg.guards.breakAll()
			}
			l.setCause(err)
			continue
		}
		down := l.up(s.now())
		if s.cfg.OnUp != nil {
			s.cfg.OnUp(down)
		}
		return
	}
}

// probe makes a decision about a key of its own, in the slot of the one that failed. It needs
// the same node, the same rights, and room in memory. It fails if it is slower than a
// decision may be.
func (s *Store) probe(key string) error {
	c := s.client.Load()
	if c == nil {
		return s.connect()
	}
	if err := c.checkNodeOf(s.ctx, &s.cfg, key); err != nil {
		return err
	}
	begin := time.Now()
	probe := [1]question{{key: probeKey(key), arg: probeArg}}
	ask(context.Background(), c, probe[:])
	if probe[0].err != nil {
		return probe[0].err
	}
	if _, err := unpack(probe[0].reply, 1); err != nil {
		return fail(Invalid, fmt.Errorf("%w: %w", errProtocol, err))
	}
	s.laneOf(c, key).answered()
	if took := time.Since(begin); took > s.cfg.Deadline {
		return fail(Timeout, fmt.Errorf("a probe took %v, longer than Deadline (in a file timeout), %v", took, s.cfg.Deadline))
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

// pause waits, and returns false if the store was closed.
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
