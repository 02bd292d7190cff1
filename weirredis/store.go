package weirredis

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/quota"
)

// Store keeps buckets on a server that several processes share. It is a
// [quota.Store], safe for concurrent use; make it with [New] and Close it in the
// end.
type Store struct {
	cfg    Config
	client atomic.Pointer[client] // nil until connected
	lanes  [lanes]lane
	solos  solos
	leases *leases
	count  counters

	document chan struct{} // has an element while a request for one is under way

	// clock replaces the server's, in microseconds, where it is not nil: for tests
	// that compare with a bucket in memory.
	clock func() int64

	ctx        context.Context // until Close
	cancel     context.CancelFunc
	mu         sync.Mutex // to start something in the background, or to close
	background sync.WaitGroup
}

var _ quota.Store = (*Store)(nil)

// New returns a store for the server that c names.
//
// An error lists every fault of c, or says why the server that answered cannot be
// used: it does not know the user, is older than Redis 6, or could drop buckets. A
// server that cannot be reached is no error, or else an outage of it would keep
// whoever restarts meanwhile from starting: after Config.DialTimeout the store
// begins as down, OnDown has been called, and it connects when it can.
func New(c Config) (*Store, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	s := &Store{cfg: c, document: make(chan struct{}, 1)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.leases = newLeases(s, c.Lease)
	client, fault := connect(s.ctx, &s.cfg)
	switch {
	case fault == nil:
		s.client.Store(client)
	case fault.Reason == Refused && !passing(fault):
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

// Take decides about t by the server's clock. The error is an [*Error], or says
// what is wrong with t.
func (s *Store) Take(ctx context.Context, t *quota.Take) (quota.Result, error) {
	if err := t.Validate(); err != nil {
		return quota.Result{}, err
	}
	if s.leases != nil && t.Mode == quota.Strict && !t.Debt {
		return s.leases.take(ctx, t)
	}
	r, _, err := s.take(ctx, t, 0)
	return r, err
}

// take asks the server, for lease tokens besides if there are as many.
func (s *Store) take(ctx context.Context, t *quota.Take, lease float64) (quota.Result, reply, error) {
	a, err := s.ask(ctx, t.Key, &request{
		mode: uint8(t.Mode), debt: t.Debt, cost: float64(t.Cost), maxWait: t.MaxWait, lease: lease, limits: t.Limits,
	})
	if err != nil {
		return quota.Result{}, a, err
	}
	s.count.takes.Add(1)
	r := t.Decide(a.tokens[:len(t.Limits)], a.now)
	r.OK = a.ok
	return r, a, nil
}

// Give puts tokens back into every window of key, or takes more where they are
// negative, whatever is there. It is sent once: after an error it may or may not
// have been done. The error is as that of [Store.Take].
func (s *Store) Give(ctx context.Context, key string, limits []quota.Limit, tokens float64) error {
	check := quota.Take{Limits: limits}
	if err := check.Validate(); err != nil {
		return err
	}
	if tokens != tokens {
		return errors.New("weirredis: give: tokens are not a number")
	}
	_, err := s.ask(ctx, key, &request{mode: give, cost: -tokens, limits: limits})
	if err == nil {
		s.count.gives.Add(1)
	}
	return err
}

// ask runs the script for key.
func (s *Store) ask(ctx context.Context, key string, r *request) (reply, error) {
	var clock int64
	if s.clock != nil {
		clock = s.clock()
	}
	answer, fault := s.run(ctx, keyOf(s.cfg.Prefix, key), r.pack(make([]byte, 0, 128), s.now(), clock))
	if fault == nil {
		a, err := unpack(answer, len(r.limits))
		if err == nil {
			return a, nil
		}
		fault = fail(Invalid, err)
	}
	s.count.failed[fault.Reason].Add(1)
	if c := s.client.Load(); c != nil {
		fault.busy = s.laneOf(c, keyOf(s.cfg.Prefix, key)).busy(fault.Reason)
	}
	return reply{}, fault
}

// Close gives leases back if the server is there, and closes the connections.
// Decisions under way end with an error.
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
