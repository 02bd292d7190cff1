package weirhttp

import (
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/weir-go/weir"
)

// Middleware returns a wrapper that admits each request through g before the
// handler it wraps runs, and answers a refusal with [WriteRejection].
//
// The request waits in g's wait room under its own context, so a client that
// leaves leaves the room too (see [WithBufferedBody] for the limits of that).
// Once admitted, the handler's context carries a [*Request] and, for nested
// calls through the same gate, the permit (see [weir.WithPermit]).
//
// The permit is sampled when the handler begins its answer and given back when
// the handler returns, panics or ends its goroutine; a response that turns into
// a stream gives it back earlier (see [Streams]). A panic is not recovered: it
// goes on to net/http.
//
// A nil g with no [WithSelect] admits everything.
func Middleware(g weir.Gate, opts ...Option) func(http.Handler) http.Handler {
	m := newMiddleware(g, opts)
	return func(next http.Handler) http.Handler {
		h := m
		h.next = next
		return &h
	}
}

func newMiddleware(g weir.Gate, opts []Option) middleware {
	m := middleware{gate: g, yield: true, turns: &turns{epoch: time.Now()}, random: rand.Float64}
	for _, o := range opts {
		o(&m)
	}
	if !m.streamsSet {
		m.streams = NewStreams(StreamsConfig{})
	}
	return m
}

// middleware is one wrapped handler and its settings. It never changes once
// built.
type middleware struct {
	next http.Handler
	gate weir.Gate

	work         func(*http.Request, *weir.Work)
	selectGate   func(*http.Request) (weir.Gate, weir.Work)
	reject       func(http.ResponseWriter, *http.Request, *weir.Rejection)
	streams      *Streams
	streamsSet   bool
	bodies       *bodyBuffers
	writeTimeout writeTimeout
	yield        bool
	turns        *turns
	random       func() float64
}

// ServeHTTP implements [http.Handler].
func (m *middleware) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	gate, work := m.choose(r)
	if gate == nil {
		m.next.ServeHTTP(w, r)
		return
	}
	if m.bodies != nil {
		buffered, release := m.bodies.buffer(r)
		defer release()
		defer handBack(buffered, r)
		r = buffered
	}
	q := m.admit(w, r, gate, work)
	if q == nil {
		return
	}
	inner := r.WithContext(&q.ctx)
	defer func() {
		q.handlerEnded()
		handBack(inner, r)
	}()
	if q.timed {
		m.turns.serve(m.next, q.out.kind(), inner)
	} else {
		m.next.ServeHTTP(q.out.kind(), inner)
	}
	q.returned = true
}

// handBack writes to a request what later handlers found out on a copy of it.
// The server removes the temporary files of a form it knows of; outer handlers
// label their logs by the pattern.
func handBack(from, to *http.Request) {
	if from != to {
		to.MultipartForm, to.Pattern = from.MultipartForm, from.Pattern
	}
}

// choose finds the gate for r and describes r to it.
func (m *middleware) choose(r *http.Request) (weir.Gate, weir.Work) {
	gate, work := m.gate, weir.Work{Op: r.Pattern}
	if m.selectGate != nil {
		gate, work = m.selectGate(r)
	}
	if m.work != nil {
		work = m.described(r, work)
	}
	return gate, work
}

// described is apart from choose because its work is allocated.
func (m *middleware) described(r *http.Request, work weir.Work) weir.Work {
	m.work(r, &work)
	return work
}

// admit asks the gate for a permit. A refusal is answered here, and returns nil.
func (m *middleware) admit(w http.ResponseWriter, r *http.Request, gate weir.Gate, work weir.Work) *Request {
	p, err := gate.Admit(r.Context(), work)
	if err != nil {
		m.refuse(w, r, err)
		return nil
	}
	q := newRequest(r.Context(), gate, p, m.streams)
	if m.yield {
		// Lets the requests that have already arrived reach the wait room
		// before this one takes the processor. Without it a handler that only
		// computes runs to its end before the next request is even counted, and
		// the queue stands where no gate sees it.
		q.timed = m.turns.pass()
	}
	q.out.init(w, q, m.writeTimeout)
	return q
}

func (m *middleware) refuse(w http.ResponseWriter, r *http.Request, err error) {
	m.turns.refusal()
	rej := weir.AsRejection(err)
	if rej == nil {
		rej = foreign(err)
	}
	if m.reject != nil {
		m.reject(w, r, rej)
		return
	}
	writeRejection(w, r, rej, m.random)
}

// foreign makes a Rejection of an error that a gate of the user's own returned.
func foreign(err error) *weir.Rejection {
	switch weir.Classify(err) {
	case weir.Abandoned:
		return &weir.Rejection{Reason: weir.ReasonCanceled, Cause: err}
	case weir.Overload:
		return &weir.Rejection{Reason: weir.ReasonDeadline, Retryable: true, Cause: err}
	}
	return &weir.Rejection{Reason: weir.ReasonStore, Retryable: true, Cause: err}
}
