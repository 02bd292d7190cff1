package weirhttp

import (
	"net/http"
	"time"

	"github.com/weir-go/weir"
)

// Option adjusts [Middleware].
type Option func(*middleware)

// WithWork fills in who asks for what: tenant, user, priority, cost. The Work
// comes with Op set to the request's pattern, which is empty where the
// middleware wraps the mux instead of a handler inside it; set Op to something
// with few values, never to the path. fn runs on each request before anything
// is known about it, so it must be quick, and must not believe headers that any
// client can send.
func WithWork(fn func(r *http.Request, w *weir.Work)) Option {
	return func(m *middleware) { m.work = fn }
}

// WithSelect chooses the gate and the work request by request, in place of the
// gate given to [Middleware]. A nil gate lets the request through untouched:
// with no permit, no [*Request] in its context and no place in [Streams].
// [WithWork], if given too, runs afterwards.
func WithSelect(fn func(*http.Request) (weir.Gate, weir.Work)) Option {
	return func(m *middleware) { m.selectGate = fn }
}

// WithStreams shares a pool of streams between middlewares. By default each
// Middleware has a pool of its own with the default settings. With nil no
// response ever becomes a stream: each keeps its permit until its handler
// returns or its hijacked connection is closed.
func WithStreams(s *Streams) Option {
	return func(m *middleware) { m.streams, m.streamsSet = s, true }
}

// WithBufferedBody reads request bodies of up to limit bytes, at most
// [MaxBuffered], before the request asks for admission. Default: no body is
// touched.
//
// An HTTP/1 server notices that a client has left only once the request's body
// has been read, because until then the departure hides behind the unread
// bytes. A request without a body leaves the wait room at once when its client
// goes; one with an unread body stays until its turn or its time-out. Reading
// small bodies first closes that gap, and a slow upload then holds no slot. The
// price is that the body of a request that is refused later has been read too.
// HTTP/2 notices departures in any case.
//
// A body that is longer, or whose client waits for "100 Continue", is left
// alone, and so is every body while [MaxBuffered] bytes are already held. A
// body that fails to arrive fails later, when the handler reads it.
func WithBufferedBody(limit int64) Option {
	return func(m *middleware) {
		if limit <= 0 {
			m.bodies = nil
			return
		}
		m.bodies = &bodyBuffers{max: min(limit, MaxBuffered)}
	}
}

// WithWriteTimeout cuts responses whose client has stopped reading: each write
// of up to 128 KiB must be taken within d. The deadline is renewed with every
// write, so it bounds a stall and not the length of a download. Default: none.
// A longer Server.WriteTimeout no longer applies to responses of more than a
// few kilobytes; a handler that sets a write deadline itself turns this one off
// for its response. Responses that were cut are counted in [StreamsSnapshot].
func WithWriteTimeout(d time.Duration) Option {
	return func(m *middleware) { m.writeTimeout = writeTimeout(d) }
}

// WithRejection replaces [WriteRejection] for answering refused requests, for
// instance to log or count them before calling it. fn must not read the
// request's body.
func WithRejection(fn func(http.ResponseWriter, *http.Request, *weir.Rejection)) Option {
	return func(m *middleware) { m.reject = fn }
}

// WithYield says whether an admitted request lets others go first before its
// handler starts. Default true: where handlers compute rather than wait, it is
// what moves the queue from the scheduler, where nobody sees it, into the wait
// room.
//
// While nothing is refused it is runtime.Gosched, a fraction of a microsecond
// when the process is idle. Within a second of a refusal, and where handlers
// take 250 µs or more, it is also a poll of the network, so that arrivals are
// seen between any two handlers and not every 10 ms: 2 to 3 µs a request (on
// Unix; elsewhere it stays at Gosched). A proxy, whose handlers wait for the
// network at once, can do without both.
func WithYield(on bool) Option {
	return func(m *middleware) { m.yield = on }
}
