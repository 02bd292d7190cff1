package proxy

import (
	"io"
	"net/http"
	"sync/atomic"

	"github.com/weir-go/weir"
)

// clientBody is the body of a request on its way to the upstream. The time that the client
// takes for it does not count against the upstream, and an error in it is the client's.
type clientBody struct {
	body io.ReadCloser
	x    *exchange
	read atomic.Bool  // something has been asked of it
	err  atomic.Value // of type error, other than io.EOF
	// complete is set when all of it has come.
	complete atomic.Bool
}

func (b *clientBody) Read(p []byte) (int, error) {
	b.read.Store(true)
	b.x.pause()
	n, err := b.body.Read(p)
	b.x.resume()
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

// openBody is the body that targets are sent. A transport that cannot send it closes it, and ReverseProxy lets
// nobody read a body that was closed. So the next target would get none.
type openBody struct{ io.Reader }

func (openBody) Close() error { return nil }

// keepOpen lets the body of a request outlast an attempt.
func (x *exchange) keepOpen(out *http.Request) {
	if out.Body != nil {
		x.bodies.sent = openBody{out.Body}
		out.Body = &x.bodies.sent
	}
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

// untouched reports whether the request can be sent again from the start.
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
