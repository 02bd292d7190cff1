package kafka

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// Memory for what is held whole, in all connections of a cluster together: requests and answers that are decoded, or put together here. What
// fits into a connection's buffer while it is read or written is not counted, nor is what is copied. Who finds no memory left waits for its turn,
// and reads nothing meanwhile. Everybody gives its share of a budget back in a while, whatever clients do:
//
//   - who has a share of raw waits for its own client, for a time that is bounded. Then it waits for small or large, or for its broker to
//     read;
//   - who has one of small or large waits for its broker, and then for answers. Before it has one nothing is in flight on its connection;
//   - who has one of answers waits for its broker or its client, for a time that is bounded, and for no budget.
//
// So nobody waits for somebody who waits for it.
type budgets struct {
	raw     budget // bytes of requests beyond a buffer
	small   budget // decoded requests that take no more than one that fills a buffer
	large   budget // those that take more; what they are held up by is no concern of small ones
	answers budget // bytes of answers beyond a buffer, with what is decoded of them
}

const (
	// buffer is how much of a request or an answer is moved at a time. Each connection has one a direction while bytes move.
	buffer = 32 << 10
	// heldRequest is the memory of a decoded request, in bytes for each of its own. A topic without a name takes most: 107.
	heldRequest = 128
	// heldRule is the memory of a rule in an answer that describes quotas, in bytes. heldName is that of each byte of whom it is about.
	heldRule, heldName = 3 << 10, 16
	// heldAnswer is the same of an answer, with what is made of it. One to Metadata takes five.
	heldAnswer = 8
	// heldWithin is how long a client may take for each MiB that is held for it, or begins to be, and a broker.
	heldWithin = 10 * time.Second
)

// newBudgets returns the budgets of a server, which are 384 MiB together. The largest request fits once. Of the largest answers those fit that are let in alone.
func newBudgets() *budgets {
	return &budgets{raw: newBudget(64 << 20), small: newBudget(64 << 20), large: newBudget(heldRequest * mostRequest), answers: newBudget(128 << 20)}
}

// patience is how long n bytes may take.
func patience(n int) time.Duration { return heldWithin * time.Duration(1+n>>20) }

// budget is so many bytes of memory that connections share. It is safe for concurrent use.
type budget struct {
	size    int64
	free    *semaphore.Weighted // who comes first is served first
	held    atomic.Int64
	waiting atomic.Int64 // connections
}

func newBudget(size int64) budget { return budget{size: size, free: semaphore.NewWeighted(size)} }

// acquire waits for n bytes. More than there are in all are all of them. crowded is called if it has to wait.
func (b *budget) acquire(ctx context.Context, n int, crowded func()) (*share, error) {
	s := &share{b, min(int64(n), b.size)}
	if !b.free.TryAcquire(s.n) {
		b.waiting.Add(1)
		defer b.waiting.Add(-1)
		crowded()
		if err := b.free.Acquire(ctx, s.n); err != nil {
			return nil, err
		}
	}
	b.held.Add(s.n)
	return s, nil
}

// share is a part of a budget. nil is none. One goroutine uses it at a time.
type share struct {
	of *budget
	n  int64
}

// shrink gives back what is more than n bytes.
func (s *share) shrink(n int) {
	if s == nil || s.n <= int64(n) {
		return
	}
	s.of.held.Add(int64(n) - s.n)
	s.of.free.Release(s.n - int64(n))
	s.n = int64(n)
}

// leave gives all back. A second call does nothing.
func (s *share) leave() { s.shrink(0) }

// held is how many bytes are held, and how many connections wait for some.
func (b *budgets) held() (bytes, waiting int64) {
	for _, one := range []*budget{&b.raw, &b.small, &b.large, &b.answers} {
		bytes, waiting = bytes+one.held.Load(), waiting+one.waiting.Load()
	}
	return bytes, waiting
}

// holding is the memory of a request under way. Only the goroutine of requests uses it.
type holding struct {
	raw, decoded *share
	questions    []*question // whose answers may have shares of their own
}

// acquire waits for n bytes of a budget.
func (r *relay) acquire(of *budget, n int) (*share, error) {
	return of.acquire(r.ctx, n, func() { r.server.crowded(of) })
}

// quiet waits until nothing is in flight.
func (r *relay) quiet() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.state.pending) > 0 && !r.closed {
		r.moved.Wait()
	}
	return r.openLocked()
}

// hold reads a request of n bytes to its end. Beyond a buffer it waits until nothing is in flight, and then until there is memory. Otherwise
// a client that does not read its answers would keep others out.
func (r *relay) hold(frame []byte, n int) (_ []byte, err error) {
	if 4+n <= max(buffer, len(frame)) { // it is whole if its header was large
		return r.rest(frame, n)
	}
	if err := r.quiet(); err != nil {
		return nil, err
	}
	if r.holds.raw, err = r.acquire(&r.server.memory.raw, n); err != nil {
		return nil, err
	}
	defer r.within(patience(n), endErrorf("%d bytes of a request have not come within %v", n, patience(n)))()
	return r.rest(frame, n)
}

// decodable is hold for a request that is decoded, and has a share for that, too: so many bytes of memory.
func (r *relay) decodable(frame []byte, n, memory int) (_ []byte, err error) {
	if n > mostRequest {
		return nil, endErrorf("a request of %d bytes is larger than what is decoded, %d", n, mostRequest)
	}
	if frame, err = r.hold(frame, n); err != nil {
		return nil, err
	}
	if err := r.quiet(); err != nil { // within a buffer hold has not waited: a login does not
		return nil, err
	}
	in := &r.server.memory.small
	if memory > heldRequest*buffer {
		in = &r.server.memory.large
	}
	r.holds.decoded, err = r.acquire(in, memory)
	return frame, err
}

// freeHeld gives back the memory of the request that was under way.
func (r *relay) freeHeld() {
	r.holds.raw.leave()
	r.holds.decoded.leave()
	r.heard()
	r.holds = holding{}
}

// heard gives back the memory of answers to questions. All of them have come, or none comes any more.
func (r *relay) heard() {
	for _, q := range r.holds.questions {
		q.share.leave()
	}
	r.holds.questions = nil
}

// within ends the connection after a while, unless it is stopped.
func (r *relay) within(d time.Duration, why error) (stop func()) {
	late := time.AfterFunc(d, func() {
		r.logEnd(why)
		r.close()
	})
	return func() { late.Stop() }
}

// deliver writes an answer that is held whole.
func (r *relay) deliver(b []byte) error {
	if len(b) > buffer {
		defer r.within(patience(len(b)), endErrorf("an answer of %d bytes has not been read within %v", len(b), patience(len(b))))()
	}
	_, err := r.client.Write(b)
	return err
}

// crowded logs that connections wait for memory of a budget, once in a while.
func (s *Server) crowded(of *budget) {
	s.mu.Lock()
	now := time.Now()
	quiet := now.Sub(s.crowd) < askEvery
	if !quiet {
		s.crowd = now
	}
	s.mu.Unlock()
	if !quiet {
		s.log.Warn("large requests or answers hold the memory for Kafka; connections wait, and go on by themselves when it is free",
			"held_bytes", of.held.Load(), "of_bytes", of.size, "waiting", of.waiting.Load())
	}
}
