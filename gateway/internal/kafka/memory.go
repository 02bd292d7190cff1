package kafka

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// budgets bound the memory of all connections of a cluster together for requests and answers that are decoded or composed here. Bytes that
// fit into a connection's buffer, or that are copied, do not count. A connection that finds no memory waits for its turn, and reads nothing
// meanwhile. Each connection gives its share of a budget back after a bounded time, whatever clients do:
//
//   - with a share of raw, it waits for its own client, for a bounded time. Then it waits for small or large, or for its broker to read;
//   - with a share of small or large, it waits for its broker, and then for answers. When it gets such a share, nothing is in flight on it;
//   - with a share of answers or consumed, it waits for its broker or its client, for a bounded time, and for no budget.
//
// So no two connections wait for each other.
type budgets struct {
	raw      budget // bytes of requests beyond a buffer
	small    budget // decoded requests of up to one buffer
	large    budget // larger decoded requests; so they do not delay small ones
	answers  budget // bytes of answers beyond a buffer, and their decoded form
	consumed budget // the same of answers to consumers of share groups; so their records delay no other answers
}

const (
	// buffer is how much of a request or an answer is moved at a time. A connection has a buffer for each direction while bytes move.
	buffer = 32 << 10
	// heldRequest is the memory of a decoded request, as a multiple of its bytes. A topic without a name takes most: 107.
	heldRequest = 128
	// heldRule is the memory of a rule in an answer that describes quotas, in bytes. heldName is the memory of each byte of its entity's
	// name.
	heldRule, heldName = 3 << 10, 16
	// heldAnswer is the memory of an answer with its decoded form, as a multiple of its bytes. An answer to Metadata takes five.
	heldAnswer = 8
	// heldWithin is how long a client or a broker may take for each MiB, or part of one, that is held for it.
	heldWithin = 10 * time.Second
)

// newBudgets returns the budgets of a server, which are 512 MiB together. The largest request fits once. An answer larger than its budget
// takes all of it.
func newBudgets() *budgets {
	return &budgets{
		raw: newBudget(64 << 20), small: newBudget(64 << 20), large: newBudget(heldRequest * mostRequest),
		answers: newBudget(128 << 20), consumed: newBudget(128 << 20),
	}
}

// forAnswer returns the budget for an answer to a request.
func (b *budgets) forAnswer(to *request) *budget {
	if to.key == keyShareFetch || to.key == keyShareAck {
		return &b.consumed
	}
	return &b.answers
}

// patience is how long n bytes may take.
func patience(n int) time.Duration { return heldWithin * time.Duration(1+n>>20) }

// budget is an amount of memory, in bytes, that connections share. It is safe for concurrent use.
type budget struct {
	size    int64
	free    *semaphore.Weighted // first come, first served
	held    atomic.Int64
	waiting atomic.Int64 // connections
}

func newBudget(size int64) budget { return budget{size: size, free: semaphore.NewWeighted(size)} }

// acquire waits for n bytes, or for the whole budget if n is larger. It calls crowded if it has to wait.
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

// share is a part of a budget. nil is no memory. One goroutine uses it at a time.
type share struct {
	of *budget
	n  int64
}

// shrink gives back all but n bytes.
func (s *share) shrink(n int) {
	if s == nil || s.n <= int64(n) {
		return
	}
	s.of.held.Add(int64(n) - s.n)
	s.of.free.Release(s.n - int64(n))
	s.n = int64(n)
}

// free gives all back. A second call does nothing.
func (s *share) free() { s.shrink(0) }

// held is how many bytes are held, and how many connections wait for memory.
func (b *budgets) held() (bytes, waiting int64) {
	for _, one := range []*budget{&b.raw, &b.small, &b.large, &b.answers, &b.consumed} {
		bytes, waiting = bytes+one.held.Load(), waiting+one.waiting.Load()
	}
	return bytes, waiting
}

// holding is the memory of the request in progress. Only the goroutine of requests uses it.
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

// hold reads a request of n bytes to its end. If the request is larger than a buffer, hold first waits until nothing is in flight, and then
// until there is memory. Otherwise a client that does not read its answers would block others.
func (r *relay) hold(frame []byte, n int) (_ []byte, err error) {
	if 4+n <= max(buffer, len(frame)) { // after a large header, frame may be the whole request
		return r.rest(frame, n)
	}
	if err := r.quiet(); err != nil {
		return nil, err
	}
	if r.holds.raw, err = r.acquire(&r.server.memory.raw, n); err != nil {
		return nil, err
	}
	defer r.within(patience(n), endErrorf("a request of %d bytes was not complete within %v", n, patience(n)))()
	return r.rest(frame, n)
}

// decodable is hold for a request that is decoded. It also acquires that many bytes of memory for the decoded form.
func (r *relay) decodable(frame []byte, n, memory int) (_ []byte, err error) {
	if n > mostRequest {
		return nil, endErrorf("a request of %d bytes is too large; requests of at most %d bytes are decoded", n, mostRequest)
	}
	if frame, err = r.hold(frame, n); err != nil {
		return nil, err
	}
	if err := r.quiet(); err != nil { // hold has not waited for a request that fits into a buffer
		return nil, err
	}
	in := &r.server.memory.small
	if memory > heldRequest*buffer {
		in = &r.server.memory.large
	}
	r.holds.decoded, err = r.acquire(in, memory)
	return frame, err
}

// freeHeld gives back the memory of the request that was in progress.
func (r *relay) freeHeld() {
	r.holds.raw.free()
	r.holds.decoded.free()
	r.freeAnswers()
	r.holds = holding{}
}

// freeAnswers gives back the memory of answers to questions. All answers have come, or no more will come.
func (r *relay) freeAnswers() {
	for _, q := range r.holds.questions {
		q.share.free()
	}
	r.holds.questions = nil
}

// within ends the connection after d, unless stop is called before.
func (r *relay) within(d time.Duration, why error) (stop func()) {
	late := time.AfterFunc(d, func() {
		r.logEnd(why)
		r.close()
	})
	return func() { late.Stop() }
}

// deliver writes an answer that is in memory.
func (r *relay) deliver(b []byte) error {
	if len(b) > buffer {
		defer r.within(patience(len(b)), endErrorf("the client has not read an answer of %d bytes within %v", len(b), patience(len(b))))()
	}
	_, err := r.client.Write(b)
	return err
}

// crowded logs that connections wait for memory of a budget, once in a while.
func (s *Server) crowded(of *budget) {
	if s.due(&s.crowd, askEvery) {
		s.log.Warn("large requests or answers fill the memory that is there for them; connections of Kafka wait, and go on when some of it is free",
			"held_bytes", of.held.Load(), "of_bytes", of.size, "waiting", of.waiting.Load())
	}
}
