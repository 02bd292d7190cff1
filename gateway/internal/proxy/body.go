package proxy

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/weir-go/weir"
)

// clientBody is the body of a request on its way to the upstream. The time that the client
// takes for it does not count against the upstream, and an error in it is the client's. Its beginning is kept, so that a target
// that has begun nothing, or another one, can get it again.
type clientBody struct {
	body io.ReadCloser
	x    *exchange
	read atomic.Bool  // something has been asked of it
	err  atomic.Value // of type error, other than io.EOF
	// complete is set when all of it has come.
	complete atomic.Bool

	turn sync.Mutex // held while the client is read

	mu      sync.Mutex
	whole   bool      // all that has been read is kept
	kept    []byte    // what has been read, or is still to be sent
	current *sentBody // the attempt that sends it
	at      int       // how much of kept that one has been given
}

// mostKept is how much of a body is kept: HTTP/2's first window of 64 KiB, and a frame that net/http has read beyond it. A
// server that refuses a stream before it opens the window has been sent no more.
const mostKept = 80 << 10

var errAttemptOver = errors.New("the attempt to send the body is over")

// readFor gives an attempt what comes next: of what is kept, else of what the client sends.
func (b *clientBody) readFor(s *sentBody, p []byte) (int, error) {
	if n := b.repeat(s, p); n > 0 {
		return n, nil
	}
	b.read.Store(true)
	b.x.pause()
	b.turn.Lock() // an attempt that is over may still wait for the client
	defer b.turn.Unlock()
	defer b.x.resume()
	if s.over.Load() {
		return 0, errAttemptOver
	}
	if n := b.repeat(s, p); n > 0 {
		return n, nil
	}
	if b.complete.Load() {
		return 0, io.EOF
	}
	n, err := b.body.Read(p)
	b.keep(s, p[:n])
	b.x.touch(n)
	switch err {
	case nil:
	case io.EOF:
		b.complete.Store(true)
	default:
		b.err.CompareAndSwap(nil, clientError{err})
	}
	return n, err
}

// Close closes nothing: net/http closes the body when the handler returns.
func (b *clientBody) Close() error { return nil }

// Read implements io.Reader. Only attempts read.
func (b *clientBody) Read([]byte) (int, error) { return 0, errAttemptOver }

// repeat returns how much of what is kept an attempt gets next.
func (b *clientBody) repeat(s *sentBody, p []byte) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.current != s {
		return 0
	}
	n := copy(p, b.kept[b.at:])
	b.at += n
	b.free()
	return n
}

// keep keeps what an attempt has read. If that one is over, what it has read is the next one's.
func (b *clientBody) keep(s *sentBody, p []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch over := s.over.Load(); {
	case !b.whole:
	case over:
		b.kept = append(b.kept, p...)
	case len(b.kept)+len(p) > mostKept:
		b.whole = false
		b.free()
	default:
		b.kept = append(b.kept, p...)
		b.at += len(p)
	}
}

// free lets go of what is kept once it has been sent, and cannot be asked for again. The mutex is held.
func (b *clientBody) free() {
	if !b.whole && b.at == len(b.kept) {
		b.kept, b.at = nil, 0
	}
}

// settle says that there will be no further attempt.
func (b *clientBody) settle() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.whole = false
	b.free()
}

// repeatable reports whether the request can be sent again from the start.
func (b *clientBody) repeatable() bool {
	if b.untouched() {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.whole
}

// sentBody is the body of a request as one attempt sends it. net/http's transport closes it when the attempt is over, which
// ends nothing else. ReverseProxy's own lets nobody read it then.
type sentBody struct {
	body    *clientBody
	reading atomic.Bool
	over    atomic.Bool
	begun   atomic.Bool // the answer has begun, or a connection of HTTP/1 is used
	abort   func()      // ends the attempt, nil over HTTP/1
}

// send gives a request the body of another attempt. The one before is over, also if nobody has closed its body: what it
// still reads is for the new one.
func (b *clientBody) send(s *sentBody, out *http.Request) {
	s.body = b
	b.mu.Lock()
	if b.current != nil {
		b.current.over.Store(true)
	}
	b.current, b.at = s, 0
	b.mu.Unlock()
	out.Body = s
}

func (s *sentBody) Read(p []byte) (int, error) {
	s.reading.Store(true)
	defer s.reading.Store(false)
	if s.over.Load() {
		return 0, errAttemptOver
	}
	return s.body.readFor(s, p)
}

// Close implements io.Closer. Over HTTP/2 the transport closes a body before the answer only to end a stream, and waits for who
// reads it. The client may never send more, so the attempt is ended instead.
func (s *sentBody) Close() error {
	s.over.Store(true)
	if s.abort != nil && s.reading.Load() && !s.begun.Load() {
		s.abort()
	}
	return nil
}

// failure returns the error of the client's side, nil if there was none.
func (b *clientBody) failure() error {
	if b == nil {
		return nil
	}
	if e, ok := b.err.Load().(clientError); ok {
		return e.error
	}
	return nil
}

// untouched reports whether nothing of the body has been asked for.
func (b *clientBody) untouched() bool { return b == nil || !b.read.Load() }

// clientError gives errors of different types one, as atomic.Value wants it.
type clientError struct{ error }

// answerBody is the body of an answer. When it ends, the upstream has nothing left to do.
type answerBody struct {
	io.ReadCloser
	x   *exchange
	res *http.Response
}

func (b *answerBody) Read(p []byte) (int, error) {
	b.x.awaited.Store(int64(b.x.upstream.now()) + 1) // never 0
	n, err := b.ReadCloser.Read(p)
	b.x.awaited.Store(0)
	b.x.touch(n)
	b.x.readCall(p[:n], b.res.Trailer, err)
	if b.x.events != nil {
		b.x.events.read(p[:n])
	}
	switch {
	case err == nil:
	case err == io.EOF:
		if !b.x.costed {
			b.x.readCost(b.res.Trailer) // which is complete now
		}
		if b.x.costed {
			b.x.events = nil
		}
		b.x.settleStream(true)
		b.x.leave()
		b.x.permit.Done(weir.NoSample)
	case b.x.cancelledBy() == errSilent:
		b.x.upstream.recordFailure(b.x, failedBody, errSilent)
	case b.x.body.failure() != nil: // then the transport ends the answer, too
	case b.x.Context.Err() == nil && !b.x.deadlinePassed():
		b.x.upstream.recordFailure(b.x, failedBody, err)
	}
	if err != nil && err != io.EOF && b.x.endCall(b.res) {
		err = io.EOF
	}
	return n, err
}

// Close implements io.Closer. net/http's transport would wait until the client has sent the rest of its request. A
// call of gRPC is over when its answer is, and its client may never send more.
func (b *answerBody) Close() error {
	if b.x.call.GRPC {
		b.x.cancel()
	}
	return b.ReadCloser.Close()
}

// watchBody puts an answerBody around res's body. The body of a 101 is a connection, and
// stays as it is.
func (x *exchange) watchBody(res *http.Response) {
	if res.StatusCode != http.StatusSwitchingProtocols && res.Body != nil && res.Body != http.NoBody {
		x.bodies.answer = answerBody{res.Body, x, res}
		if !x.costed {
			x.events = eventsOf(x.call.Route, res.StatusCode, res.Header)
		}
		res.Body = &x.bodies.answer
	}
}
