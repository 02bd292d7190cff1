package weirredis

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/weir-go/weir/quota"
)

// Store keeps buckets on a server that several processes share. It is a [quota.Store], safe
// for concurrent use. Make it with [New], and Close it in the end.
type Store struct {
	cfg    Config
	client atomic.Pointer[client] // nil until connected
	lanes  [lanes]lane
	solos  solos
	leases *leases
	count  counters
	told   told

	document chan struct{} // full while a request for a document is under way

	// clock, if not nil, replaces the server's clock, in microseconds. It is for tests that
	// compare with a bucket in memory.
	clock func() int64

	ctx        context.Context // until Close
	cancel     context.CancelFunc
	mu         sync.Mutex // to start something in the background, or to close
	background sync.WaitGroup
}

var _ quota.Batcher = (*Store)(nil)

// New returns a store for the server that c names.
//
// The error lists every fault of c, or says why the server cannot be used. Such a server
// does not know the user, is older than Redis 6, or could drop buckets. A server that
// cannot be reached, or refuses only for the moment, is no error: nobody could start
// during an outage. Then, after Config.DialTimeout, the store starts as down, OnDown has
// been called, and it connects when it can.
func New(c Config) (*Store, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	s := &Store{cfg: c, document: make(chan struct{}, 1)}
	for i := range s.lanes {
		s.lanes[i].epoch = time.Now()
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.leases = newLeases(s, c.Lease)
	client, fault := connect(s.ctx, &s.cfg)
	switch {
	case fault == nil:
		s.client.Store(client)
	case fault.Reason == Refused && !temporary(fault):
		s.cancel()
		return nil, fault
	default:
		for range tripAfter {
			s.failed(&s.lanes[0], keyOf(c.Prefix, ""), fault)
		}
	}
	return s, nil
}

// laneOf returns the lane of a key.
func (s *Store) laneOf(c *client, key string) *lane {
	if !c.cluster {
		return &s.lanes[0]
	}
	return &s.lanes[int(slotOf(s.cfg.Prefix, key))*lanes/slots]
}

func (s *Store) now() time.Time { return s.cfg.Now() }

// Decide decides about t by the server's clock. The error is an [*Error], or says what is
// wrong with t.
func (s *Store) Decide(ctx context.Context, t *quota.Request) (quota.Decision, error) {
	one := [1]asked{{request: t}}
	s.decide(ctx, one[:])
	return one[0].decision, one[0].err
}

// DecideAll decides about several requests, each by itself. They are sent together, except to a
// cluster, where each goes to the node of its key.
func (s *Store) DecideAll(ctx context.Context, all []*quota.Request) ([]quota.Decision, []error) {
	work := make([]asked, len(all))
	for i := range all {
		work[i].request = all[i]
	}
	s.decide(ctx, work)
	decisions, errs := make([]quota.Decision, len(all)), make([]error, len(all))
	for i := range work {
		decisions[i], errs[i] = work[i].decision, work[i].err
	}
	return decisions, errs
}

// asked is a request, and what came of it.
type asked struct {
	request  *quota.Request
	decision quota.Decision
	err      error

	loan   loan // what the request takes for its key, if the store leases
	number int  // of the question to the server, from 1; 0: none
}

// decide decides about each request, by the lease of its key or by the server.
func (s *Store) decide(ctx context.Context, all []asked) {
	var few [4]question
	questions := few[:0]
	for i := range all {
		a := &all[i]
		t := a.request
		if a.err = t.Check(); a.err != nil {
			continue
		}
		if s.leases != nil && t.Mode == quota.Strict && !t.Debt {
			var ok bool
			if a.decision, ok = s.leases.decide(t, &a.loan); ok {
				continue
			}
		}
		questions = append(questions, s.question(t.Key, &request{
			mode: uint8(t.Mode), debt: t.Debt, cost: float64(t.Cost), maxWait: t.MaxWait, lease: float64(a.loan.tokens), limits: t.Windows,
		}))
		a.number = len(questions)
	}
	s.runAll(ctx, questions)
	for i := range all {
		if a := &all[i]; a.number > 0 {
			s.conclude(a, &questions[a.number-1])
		}
	}
}

// conclude reads what the server has answered to a request.
func (s *Store) conclude(a *asked, q *question) {
	t := a.request
	r, err := s.replyTo(q, len(t.Windows))
	a.decision, a.err = quota.Decision{}, err
	if err == nil {
		s.count.decisions.Add(1)
		a.decision = t.Decide(r.tokens[:len(t.Windows)], r.now)
		a.decision.OK = r.ok
	}
	if a.loan.held != nil {
		s.leases.learn(t, &a.loan, a.decision, r, err)
	}
}

// Refund gives tokens back to every window of key, or charges more if they are
// negative, whatever is there. It is sent once: after an error it may have been done or
// not. The error is as that of [Store.Decide].
func (s *Store) Refund(ctx context.Context, key string, limits []quota.Window, tokens float64) error {
	check := quota.Request{Windows: limits}
	if err := check.Check(); err != nil {
		return err
	}
	if tokens != tokens {
		return errors.New("weirredis: refund: tokens are not a number")
	}
	one := [1]question{s.refund(key, limits, tokens)}
	s.run(ctx, one[:])
	return s.refunded(&one[0], len(limits))
}

// refund is the question that gives tokens back.
func (s *Store) refund(key string, limits []quota.Window, tokens float64) question {
	return s.question(key, &request{mode: modeRefund, cost: -tokens, limits: limits})
}

// refunded reads what the server has answered to a refund of n windows.
func (s *Store) refunded(q *question, n int) error {
	_, err := s.replyTo(q, n)
	if err == nil {
		s.count.refunds.Add(1)
	}
	return err
}

// question is the question that a request is to the server.
func (s *Store) question(key string, r *request) question {
	var clock int64
	if s.clock != nil {
		clock = s.clock()
	}
	return question{key: keyOf(s.cfg.Prefix, key), arg: rueidis.BinaryString(r.pack(make([]byte, 0, 128), s.now(), clock))}
}

// replyTo returns the reply to a question about n windows.
func (s *Store) replyTo(q *question, n int) (reply, error) {
	fault := q.err
	if fault == nil {
		r, err := unpack(q.reply, n)
		if err == nil {
			return r, nil
		}
		fault = fail(Invalid, err)
	}
	s.count.failed[fault.Reason].Add(1)
	if fault.foreign {
		fault.Key = q.key
		if s.cfg.OnForeign != nil && s.told.first(q.key, s.now()) {
			s.cfg.OnForeign(fault)
		}
	}
	if c := s.client.Load(); c != nil {
		fault.busy = s.laneOf(c, q.key).busy(fault.Reason)
	}
	return reply{}, fault
}

// Close refunds leases if the server can be reached, for at most two seconds, and closes
// the connections. Decisions under way end with an error.
func (s *Store) Close() error {
	s.leases.close()
	s.mu.Lock()
	s.cancel()
	c := s.client.Load()
	s.mu.Unlock()
	s.solos.close()
	if c != nil {
		c.Close()
	}
	s.background.Wait()
	return nil
}

// Stats is what a store has done since it was made, and how it is now. The numbers are read
// one after the other.
type Stats struct {
	// Decisions and Refunds count what the server has answered.
	Decisions, Refunds uint64
	// Failed counts what the server was not asked or did not answer, by [Reason].
	Failed map[Reason]uint64
	// InFlight is the number of scripts under way, also those that nobody waits for any
	// more.
	InFlight int
	// Down says that the server is given up for the moment, Since when, and Why. In a
	// cluster this may be so for some of the keys only.
	Down  bool
	Since time.Time
	Why   error
	// Trips counts how often a server was given up, Probes how often the store has looked
	// whether it is back.
	Trips, Probes uint64
	// Leases is the number of keys with tokens here, if Config.Lease is on. Leased counts
	// decisions by those tokens, Remembered refusals that were repeated without asking.
	Leases             int
	Leased, Remembered uint64
}

// counters are the atomic ones behind Stats.
type counters struct {
	decisions, refunds atomic.Uint64
	failed             [len(reasons)]atomic.Uint64
	trips, probes      atomic.Uint64
	leased, remembered atomic.Uint64
}

// Stats returns what the store has done and how it is now.
func (s *Store) Stats() Stats {
	st := Stats{
		Decisions: s.count.decisions.Load(), Refunds: s.count.refunds.Load(),
		Failed: make(map[Reason]uint64, len(reasons)),
		Trips:  s.count.trips.Load(), Probes: s.count.probes.Load(),
		Leased: s.count.leased.Load(), Remembered: s.count.remembered.Load(),
		Leases: s.leases.held(),
	}
	for r := Down; int(r) < len(reasons); r++ {
		st.Failed[r] = s.count.failed[r].Load()
	}
	for i := range s.lanes {
		l := &s.lanes[i]
		st.InFlight += int(l.inFlight.Load())
		if !l.down.Load() {
			continue
		}
		l.mu.Lock()
		if !st.Down || l.since.Before(st.Since) {
			st.Down, st.Since, st.Why = true, l.since, l.cause
		}
		l.mu.Unlock()
	}
	return st
}
