package proxy

import (
	"io"
	"net/http"
	"sync/atomic"

	"github.com/weir-go/weir"
)

// clientBody is the body of a request on its way to the upstream. The time the
// client takes over it is not counted against the upstream, and an error in it
// is the client's.
type clientBody struct {
	body io.ReadCloser
	x    *exchange
	read atomic.Bool  // something has been asked of it
	err  atomic.Value // of type error, other than io.EOF
}

func (b *clientBody) Read(p []byte) (int, error) {
	b.read.Store(true)
	b.x.pause()
	n, err := b.body.Read(p)
	b.x.resume()
	if err != nil && err != io.EOF {
		b.err.CompareAndSwap(nil, clientError{err})
	}
	return n, err
}

// Close closes nothing: net/http closes the body when the handler returns, and
// a failed attempt to connect must not spoil it for the next target.
func (b *clientBody) Close() error { return nil }

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

// answerBody is the body of an answer. Its end is the moment when the upstream
// has nothing left to do.
type answerBody struct {
	io.ReadCloser
	x   *exchange
	res *http.Response
}

func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == nil:
	case err == io.EOF:
		if !b.x.settled {
			b.x.settleCost(b.res.Trailer) // which is complete now
		}
		b.x.permit.Done(weir.NoSample)
	case b.x.Context.Err() == nil:
		b.x.upstream.note(b.x, failedBody, err)
	}
	return n, err
}

// watch puts an answerBody around res's body. That of a 101 is a connection and
// stays what it is.
func (x *exchange) watch(res *http.Response) {
	if res.StatusCode != http.StatusSwitchingProtocols && res.Body != nil && res.Body != http.NoBody {
		x.bodies.answer = answerBody{res.Body, x, res}
		res.Body = &x.bodies.answer
	}
}
