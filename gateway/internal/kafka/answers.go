package kafka

import (
	"encoding/binary"
	"io"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/rawconn"
)

// answers moves answers until the broker closes its connection.
func (r *relay) answers() error {
	head := r.size[1][:]
	for {
		if _, err := io.ReadFull(r.broker, head); err != nil {
			return err
		}
		n := int(int32(binary.BigEndian.Uint32(head)))
		if n < 4 {
			return endErrorf("the broker announces an answer of %d bytes", n)
		}
		if err := r.oneAnswer(n); err != nil {
			return err
		}
		r.answered()
		if err := r.ownAnswers(); err != nil {
			return err
		}
	}
}

// incoming is an answer of the broker whose beginning has been read.
type incoming struct {
	pending
	size  int    // in bytes, without the size of the frame
	frame []byte // what has been read of it
	wait  int32  // the throttle time for the client, in milliseconds
	share *share // of the memory for answers; nil if it needs none
}

// oneAnswer moves the answer to the first request in flight, of n bytes.
func (r *relay) oneAnswer(n int) error {
	pooled := buffers.Get().(*[buffer]byte)
	defer buffers.Put(pooled)
	a, err := r.beginAnswer(n, pooled)
	if err != nil {
		return err
	}
	charged := r.chargeAnswer(&a)
	defer charged.Done(weir.OK)
	if a.passes() {
		return r.pass(&a, pooled[:])
	}
	defer func() { a.share.free() }()
	resp, header, err := r.decodeAnswer(&a)
	switch {
	case err != nil:
		return err
	case a.question != nil:
		r.mu.Lock()
		defer r.mu.Unlock()
		a.question.answer, a.question.share = resp, a.share // the asking goroutine wakes when this answer counts as written
		a.share = nil
		return nil
	}
	return r.rewrite(&a, resp, header)
}

// beginAnswer reads the beginning of an answer of n bytes, and finds out which request it is for.
func (r *relay) beginAnswer(n int, pooled *[buffer]byte) (a incoming, err error) {
	a.size = n
	a.frame = append(pooled[:0], r.size[1][:]...)
	a.frame = a.frame[:min(len(pooled), 4+n)]
	got, err := io.ReadAtLeast(r.broker, a.frame[4:], min(n, mostAnswerHeader))
	if err != nil {
		return a, err
	}
	a.frame = a.frame[:4+got]
	r.mu.Lock()
	defer r.mu.Unlock()
	a.pending, err = r.state.requestFor(int32(binary.BigEndian.Uint32(a.frame[4:])))
	return a, err
}

// chargeAnswer charges the client for an answer to a fetch. It sets a.wait to the time that the client must wait, for that charge or for
// produced bytes.
func (r *relay) chargeAnswer(a *incoming) (charged weir.Permit) {
	switch quotas, t := r.server.opts.Quotas(), &r.server.counts.throttled; a.key {
	case keyProduce:
		a.until = r.owed(quotas.Produce, &a.pending, &t.produce)
	case keyFetch, keyShareFetch:
		charged = r.charge(quotas.Fetch, &a.pending, a.size, &t.fetch)
	}
	a.wait = throttleOf(a.until, time.Now())
	return charged
}

// passes reports whether an answer is copied. In an answer to Fetch, the wait is in the first bytes.
func (a *incoming) passes() bool {
	told := a.key == keyProduce && a.version >= produceThrottles && a.wait > 0
	return a.question == nil && a.mutation == nil && !a.decoded() && !told
}

// pass copies an answer.
func (r *relay) pass(a *incoming, buf []byte) error {
	if a.key == keyFetch && a.wait > 0 {
		if err := raiseFetch(a.frame[4:], a.version, a.wait); err != nil {
			return err
		}
	}
	r.countAnswer(&a.request, 4+a.size)
	if _, err := r.client.Write(a.frame); err != nil {
		return err
	}
	left, err := r.splice(4 + a.size - len(a.frame))
	if err != nil {
		return err
	}
	return copyN(r.client, r.broker, left, buf)
}

// splice lets the kernel move the last n bytes of a large answer from socket to socket. It returns how many bytes must still be copied.
// These are all n if n is small, with TLS on either side, or if the bound on splices is reached.
func (r *relay) splice(n int) (left int, err error) {
	in, out := rawconn.TCP(r.broker), rawconn.TCP(r.client)
	if n < leastMoved || in == nil || out == nil {
		return n, nil
	}
	select {
	case answerSplices <- struct{}{}:
		defer func() { <-answerSplices }()
	default:
		return n, nil
	}
	moved, err := out.ReadFrom(&io.LimitedReader{R: in, N: int64(n)})
	if err == nil && moved < int64(n) {
		err = io.ErrUnexpectedEOF
	}
	return 0, err
}

// decodeAnswer reads an answer to its end.
func (r *relay) decodeAnswer(a *incoming) (resp kmsg.Response, header []byte, err error) {
	if a.size > mostDecoded {
		return nil, nil, endErrorf("an answer of %d bytes is too large; answers of at most %d bytes are decoded", a.size, mostDecoded)
	}
	whole := a.frame[4:]
	if 4+a.size > buffer {
		if a.share, err = r.acquire(r.server.memory.forAnswer(&a.request), heldAnswer*a.size); err != nil {
			return nil, nil, err
		}
	}
	if len(whole) < a.size || a.question != nil { // whose answer outlives the buffer
		if whole, err = r.restOfAnswer(whole, a.size); err != nil {
			return nil, nil, err
		}
	}
	resp, body, err := a.decode(whole)
	if err != nil {
		return nil, nil, err
	}
	return resp, whole[:body], nil
}

// restOfAnswer reads an answer of n bytes to its end.
func (r *relay) restOfAnswer(begin []byte, n int) ([]byte, error) {
	if 4+n > buffer {
		defer r.within(patience(n), endErrorf("an answer of %d bytes was not complete within %v", n, patience(n)))()
	}
	whole := make([]byte, n)
	_, err := io.ReadFull(r.broker, whole[copy(whole, begin):])
	return whole, err
}

// rewrite writes a decoded answer, after the changes by quotas and logins, and with the addresses of nodes that clients can reach.
func (r *relay) rewrite(a *incoming, resp kmsg.Response, header []byte) error {
	switch {
	case a.makes:
		a.wait = throttleOf(r.chargeMade(&a.request, resp), time.Now())
	case a.mutation != nil:
		resp = r.finishMutation(&a.pending, resp)
		a.wait = throttleOf(a.mutation.longer(a.until), time.Now())
	}
	if err := r.loggedIn(a.step, resp); err != nil {
		return err
	}
	replace(resp, r.server.nodes.advertised)
	raise(resp, a.wait)
	out := encode(header, resp)
	if a.share.shrink(len(out)); len(out) <= buffer {
		a.share.free() // because nothing bounds how long the client takes to read it
	}
	r.countAnswer(&a.request, len(out))
	return r.deliver(out)
}

// loggedIn handles the broker's answer to a login request.
func (r *relay) loggedIn(s step, resp kmsg.Response) error {
	if resp, ok := resp.(*kmsg.SASLAuthenticateResponse); ok && s.user.token != "" && s.agrees(resp) {
		s.user = r.server.ownerOf(r.ctx, s.user.token)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.hurry()
	l := &r.state.login
	switch resp := resp.(type) {
	case *kmsg.SASLHandshakeResponse:
		l.handshaken(s, resp)
	case *kmsg.SASLAuthenticateResponse:
		ended, err := l.authenticated(s, resp)
		switch {
		case err != nil:
			return err
		case ended && l.user.known:
			r.server.counts.logins.ok.Add(1)
		case ended:
			r.server.counts.logins.unnamed.Add(1)
		case resp.ErrorCode != 0:
			r.server.counts.logins.failed.Add(1)
		}
	}
	return nil
}

// ownAnswers writes the gateway's own answers that are next, unless the other goroutine writes them.
func (r *relay) ownAnswers() error {
	r.mu.Lock()
	own := r.state.firstOwn()
	r.mu.Unlock()
	for own != nil {
		if err := r.deliver(own); err != nil {
			return err
		}
		r.mu.Lock()
		own = r.state.nextOwn()
		r.moved.Broadcast()
		r.mu.Unlock()
	}
	return nil
}

// answered removes the first pending answer, which has been written.
func (r *relay) answered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.answered()
	r.moved.Broadcast()
}

// awaitAnswers waits until nothing is in flight, or the connection has ended.
func (r *relay) awaitAnswers() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.state.over() && !r.closed {
		r.moved.Wait()
	}
}
