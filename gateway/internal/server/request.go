package server

import (
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/gateway/internal/tracing"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/weirhttp"
)

// bufferedBody is how much of a request's body is read before admission. Once a small body has been
// read, net/http can notice a client that leaves the wait room. And a slow upload of a small body
// holds no slot.
const bufferedBody = 16 << 10

// handler serves the requests of a public listener.
type handler struct {
	s          *Server
	listener   *listener
	guard      *weirhttp.Guard
	inProgress atomic.Int64
}

// handler returns what a public listener serves.
func (s *Server) handler(l *listener) http.Handler {
	return &handler{s: s, listener: l, guard: weirhttp.NewGuard(
		weirhttp.WithStreams(s.streams),
		weirhttp.WithBufferedBody(bufferedBody),
		weirhttp.WithWriteTimeout(time.Duration(l.cfg.WriteTimeout)),
		weirhttp.WithRejection(writeRefusal),
		weirhttp.WithYield(false), // the handler goes to the network at once, so there is no need to yield
	)}
}

// request is one request on its way through the gateway, and its ResponseWriter. Code with the
// writer finds the request there, without a search through contexts.
type request struct {
	http.ResponseWriter
	handler *handler
	route   *route // nil if none matches
	call    proxy.Call
	body    *upload       // nil for a request without a body, and for calls of gRPC
	bytes   int64         // of the answer's body
	span    *tracing.Span // nil for none
	asked   bool          // the gates have decided
	final   bool          // a client of HTTP/1.0: it takes the first answer for the last (RFC 9110, 15.2)
}

// ServeHTTP leads a request through policy and gates to its upstream.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	inProgress := h.inProgress.Add(1) // first: who sees it in inFlight may rely on that
	h.s.inFlight.Add(1)
	defer h.s.inFlight.Add(-1)
	defer h.inProgress.Add(-1)
	q := &request{ResponseWriter: w, handler: h, final: !r.ProtoAtLeast(1, 1), call: proxy.Call{Arrived: time.Now(), GRPC: proxy.IsGRPC(r), Cutting: h.s.cutting}}
	defer h.s.finished(q, r)
	if most := h.listener.conns.MaxRequests(); inProgress > most {
		h.refuseOneTooMany(q, r, most)
		return
	}
	if !h.listener.conns.CertificateValid(r, q.call.Arrived) {
		// The client may show another certificate on another connection (RFC 9110, 15.5.20).
		w.Header().Set("Connection", "close")
		q.call.WriteProblem(q, http.StatusMisdirectedRequest,
			"the client certificate of this connection has expired, or its authority is trusted no more; connect anew")
		return
	}
	st := h.s.state.Load()
	if st.tracer != nil {
		q.trace(st.tracer.Start(r, st.policy.Trusted(r), q.call.Arrived))
	}
	if host := proxy.SentHost(r.Host); host != r.Host { // or the route would be that of another host than the upstream's
		named := *r
		named.Host = host
		r = &named
	}
	rt, work := st.policy.Match(r)
	if q.route = st.routes[rt]; q.route == nil {
		h.s.metrics.NoRoute()
		q.call.WriteProblem(q, http.StatusNotFound, "no route of the gateway matches this request")
		return
	}
	q.call.Policy, q.call.Route, q.call.Quotas, q.call.Work = st.policy, rt, q.route.quotas, work
	if r.Method == http.MethodConnect || r.Method == "PRI" {
		refuseMethod(q, r)
		return
	}
	if !proxy.Sendable(r) {
		q.call.WriteProblem(q, http.StatusBadRequest, "the method, the host or the query has characters that HTTP does not allow there, or a known method is not in upper case")
		return
	}
	if policy.Ambiguous(r.URL) { // it may lead to another route at the upstream
		q.call.WriteProblem(q, http.StatusBadRequest, policy.AmbiguousText)
		return
	}
	if st.policy.AmbiguousHost(r.Host) {
		q.call.WriteProblem(q, http.StatusBadRequest, policy.AmbiguousHostText)
		return
	}
	if r.Body != nil && r.Body != http.NoBody && !q.call.GRPC {
		q.body = newUpload(w, r, time.Duration(h.listener.cfg.ReadTimeout))
		uploading := *r
		uploading.Body = q.body
		r = &uploading
	}
	h.guard.Serve(q, r, rt.Gate(), work, forward)
}

// finished runs when all has been done for a request: it counts it, and writes its line.
func (s *Server) finished(q *request, r *http.Request) {
	q.body.end()
	took := time.Since(q.call.Arrived)
	if q.route != nil {
		q.route.stats.Answered(q.call.Counted(), q.call.By, took)
		s.metrics.Tenant(q.call.Work.Tenant, q.call.By, took)
	}
	access := s.access.Load()
	if access == nil && q.span == nil {
		return
	}
	e := q.entry(r)
	e.Duration = took
	s.logAccess(access, &e)
	q.span.End(r, &e, q.asked)
}

// trace gives the request a span, nil for none.
func (q *request) trace(span *tracing.Span) {
	if span != nil {
		q.span, q.call.Traceparent, q.call.FreshTrace = span, span.Parent, span.Fresh
	}
}

// forward passes on a request that the gates have admitted.
func forward(w http.ResponseWriter, r *http.Request, admitted *weirhttp.Request) {
	q := requestOf(w)
	q.decided()
	if q.body != nil {
		q.body.admitted(r.Context(), admitted, q.call.Work, q.crowded)
	}
	q.call.Request = admitted
	q.route.upstream.Serve(w, r, &q.call)
}

// crowded reports whether a limit on the request's way has no slot free: of a gate, of its pool there, or of a target.
func (q *request) crowded() bool {
	return q.route.upstream.Crowded() || slices.ContainsFunc(q.call.Route.Gates(), func(g *policy.Gate) bool {
		if g.Mode() != policy.Enforce {
			return false // it makes nobody wait
		}
		if p := g.Pools(); p != nil {
			use, known := p.Key(p.KeyOf(q.call.Work))
			return known && use.InFlight >= use.Limit
		}
		s := g.Snapshot()
		return s.Kind == "limit" && s.InFlight >= s.Limit
	})
}

// writeRefusal answers a request that a gate refused.
func writeRefusal(w http.ResponseWriter, r *http.Request, rej *weir.Rejection) {
	q := requestOf(w)
	q.decided()
	if rej.Reason == weir.ReasonCanceled && q.body != nil && q.body.err != nil {
		// net/http reports a body that fails as a client that has left. The client may still be
		// there, and gets an answer that says what was wrong.
		q.call.WriteBodyProblem(w, r.Context(), q.body.err)
		return
	}
	q.call.WriteRejection(w, r, rej)
}

// decided is called when the gates of the route have decided. It notes how long they took, without
// the time that a small body took to arrive.
func (q *request) decided() {
	asked := q.call.Arrived
	if q.body != nil && q.body.readAt.After(asked) {
		asked = q.body.readAt
	}
	q.call.Waited, q.asked = time.Since(asked), true
}

// requestOf finds the request that w belongs to.
func requestOf(w http.ResponseWriter) *request {
	for {
		if q, ok := w.(*request); ok {
			return q
		}
		w = w.(interface{ Unwrap() http.ResponseWriter }).Unwrap()
	}
}

// Unwrap leads http.ResponseController to the server's own writer.
func (q *request) Unwrap() http.ResponseWriter { return q.ResponseWriter }

// WriteHeader begins the answer. A gateway or listener that is closing tells its clients to go: on
// HTTP/1 the answer ends the connection, on HTTP/2 net/http sends a GOAWAY.
func (q *request) WriteHeader(status int) {
	if status < 200 && q.final {
		return
	}
	if status >= 200 || status == http.StatusSwitchingProtocols {
		q.call.Status = status
		if h := q.Header(); q.call.By == proxy.ByUpstream && h["Content-Type"] == nil {
			h["Content-Type"] = nil // net/http would guess one from the body, which may be a script then
		}
		if status != http.StatusSwitchingProtocols && (q.handler.s.draining.Load() || q.handler.listener.closed.Load()) {
			q.Header().Set("Connection", "close")
		}
	}
	q.ResponseWriter.WriteHeader(status)
}

// Write writes a part of the answer's body, and counts it.
func (q *request) Write(p []byte) (int, error) {
	n, err := q.ResponseWriter.Write(p)
	q.bytes += int64(n)
	return n, err
}

// refuseOneTooMany refuses a request while most others are in progress, the number that
// max_connections allows.
func (h *handler) refuseOneTooMany(q *request, r *http.Request, most int64) {
	rej := &weir.Rejection{
		Gate: "gateway", Rule: "max_connections", Reason: weir.ReasonQueueFull,
		Value: float64(most), Limit: float64(most), RetryAfter: time.Second, Retryable: true,
	}
	h.s.metrics.Crowded()
	h.s.events.Rejected(weir.Work{}, rej)
	q.call.WriteRejection(q, r, rej)
}

// refuseMethod answers hop-by-hop methods, which are never forwarded. The bytes after such a request
// are no request, so the connection ends.
func refuseMethod(q *request, r *http.Request) {
	q.Header().Set("Connection", "close")
	if r.Method == http.MethodConnect {
		q.Header().Set("Allow", "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT")
		q.call.WriteProblem(q, http.StatusMethodNotAllowed, "the gateway opens no tunnels: it does not forward CONNECT")
		return
	}
	q.call.WriteProblem(q, http.StatusBadRequest,
		"PRI begins a connection in HTTP/2 and is not a method; this listener speaks HTTP/2 under TLS, and without TLS only with h2c: true")
}

// hooks returns what the gates call, whatever happens to a request at them.
func (s *Server) hooks() weir.Hooks {
	return weir.Hooks{
		Admitted: s.metrics.Admitted,
		Done:     s.metrics.Done,
		Rejected: func(w weir.Work, r *weir.Rejection) {
			s.metrics.Rejected(w, r)
			s.events.Rejected(w, r)
		},
		LimitChanged: s.events.LimitChanged,
		Faulty:       s.events.Faulty,
		Leaked:       s.events.Leaked,
	}
}
