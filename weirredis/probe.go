package weirredis

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

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
