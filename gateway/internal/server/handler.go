package server

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/weirhttp"
)

// bufferedBody is how much of a request's body is read before admission. A
// small body that has been read lets net/http notice a client that leaves the
// wait room, and a slow upload of one holds no slot.
const bufferedBody = 16 << 10

// flight is one request on its way through the gateway, and its ResponseWriter:
// whoever has the writer finds it there, without a search through contexts.
type flight struct {
	http.ResponseWriter
	entrance *entrance
	policy   *policy.Policy // in force when it came
	route    *route
	call     proxy.Call
	body     *upload // nil for a request without a body
	status   int
}

// Unwrap leads http.ResponseController to the server's own writer.
func (f *flight) Unwrap() http.ResponseWriter { return f.ResponseWriter }

// flightOf finds the flight that w belongs to.
func flightOf(w http.ResponseWriter) *flight {
	for {
		if f, ok := w.(*flight); ok {
			return f
		}
		w = w.(interface{ Unwrap() http.ResponseWriter }).Unwrap()
	}
}

// Answering is called when the answer begins. An answer that begins while the
// gateway, or the listener, wants to be rid of its clients tells them so: on
// HTTP/1 it ends the connection, on HTTP/2 net/http turns it into a GOAWAY.
func (f *flight) Answering(status int) {
	f.status = status
	if f.entrance.leaving() && status != http.StatusSwitchingProtocols {
		f.Header().Set("Connection", "close")
	}
}

// leastRequests is how many requests a listener lets in at a time however few
// connections it may have: over HTTP/2 one connection brings many.
const leastRequests = 1000

// handler returns what a public listener serves.
func (s *Server) handler(l *listener) http.Handler {
	return &entrance{s: s, listener: l, guard: weirhttp.NewGuard(
		weirhttp.WithStreams(s.streams),
		weirhttp.WithBufferedBody(bufferedBody),
		weirhttp.WithWriteTimeout(time.Duration(l.cfg.WriteTimeout)),
		weirhttp.WithRejection(s.refuse),
		weirhttp.WithYield(false), // the handler waits for the network at once
	)}
}

// entrance is where a request comes in.
type entrance struct {
	s        *Server
	listener *listener
	guard    *weirhttp.Guard
	inside   atomic.Int64 // requests in progress
}

// ServeHTTP implements http.Handler.
func (e *entrance) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.s.inFlight.Add(1)
	defer e.s.inFlight.Add(-1)
	defer e.inside.Add(-1)
	if e.inside.Add(1) > e.listener.conns.door.requests.Load() {
		e.crowded(w, r)
		return
	}
	if e.listener.asks() && !e.listener.holds(r, time.Now()) {
		e.outdated(w)
		return
	}
	began := time.Now()
	st := e.s.state.Load()
	rt, work := st.policy.Match(r)
	f := &flight{ResponseWriter: w, entrance: e, policy: st.policy, route: st.routes[rt]}
	f.call = proxy.Call{Work: work, Arrived: began, Observer: f}
	if f.route == nil {
		e.noRoute(w, f)
		return
	}
	f.call.Quotas = f.route.quotas
	defer func() {
		took := time.Since(began)
		f.route.stats.Answered(f.status, f.call.By, took)
		e.s.metrics.Tenant(f.call.Work.Tenant, f.call.By, took)
	}()
	if policy.Ambiguous(r.URL) {
		e.ambiguous(w, f)
		return
	}
	if r.Body != nil && r.Body != http.NoBody {
		f.body = newUpload(w, r, time.Duration(e.listener.cfg.ReadTimeout))
		uploading := *r
		uploading.Body = f.body
		r = &uploading
	}
	e.guard.Serve(f, r, rt.Gate(), work, forward)
}

// leaving reports whether clients should come back on another connection.
func (e *entrance) leaving() bool { return e.s.draining.Load() || e.listener.closed.Load() }

// forward is the handler behind the gates.
func forward(w http.ResponseWriter, r *http.Request, q *weirhttp.Request) {
	f := flightOf(w)
	if f.body != nil {
		f.body.admit(r.Context(), q, f.call.Work)
	}
	f.call.Request = q
	f.route.upstream.Serve(w, r, &f.call)
}

// crowded refuses a request that is one too many.
func (e *entrance) crowded(w http.ResponseWriter, r *http.Request) {
	most := float64(e.listener.conns.door.requests.Load())
	rej := &weir.Rejection{
		Gate: "gateway", Rule: "max_connections", Reason: weir.ReasonQueueFull,
		Value: most, Limit: most, RetryAfter: time.Second, Retryable: true,
	}
	e.s.notes.rejected(weir.Work{}, rej)
	e.s.refuse(&flight{ResponseWriter: w, entrance: e}, r, rej)
}

// noRoute answers a request that no route matches.
func (e *entrance) noRoute(w http.ResponseWriter, f *flight) {
	e.s.metrics.NoRoute()
	f.Answering(http.StatusNotFound)
	e.bound(w)
	proxy.WriteProblem(w, proxy.Problem{
		Title: http.StatusText(http.StatusNotFound), Status: http.StatusNotFound,
		Detail: "no route of the gateway matches this request",
	})
}

// ambiguous answers a request whose path leads to one route here and may lead
// elsewhere at the upstream.
func (e *entrance) ambiguous(w http.ResponseWriter, f *flight) {
	f.Answering(http.StatusBadRequest)
	e.bound(w)
	proxy.WriteProblem(w, proxy.Problem{
		Title: http.StatusText(http.StatusBadRequest), Status: http.StatusBadRequest,
		Detail: "with %2F unescaped, the path has an empty, . or .. segment; servers differ on where it leads",
	})
}

// refuse answers a request that a gate refused.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, rej *weir.Rejection) {
	f := flightOf(w)
	if rej.Reason == weir.ReasonCanceled && f.body != nil && f.body.err != nil {
		// To net/http a body that fails is a client that has left. It may well
		// be there, and is told what was wrong.
		f.Answering(proxy.BodyStatus(f.body.err))
		proxy.WriteBodyProblem(w, f.body.err)
		return
	}
	f.call.By = proxy.ByGate
	f.Answering(weirhttp.Status(rej))
	f.call.Quotas.Tell(w.Header(), f.call.Work, rej)
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(shortAnswer))
	if f.route != nil && f.policy.Trusted(r) {
		w = &named{ResponseWriter: w, work: &f.call.Work, key: f.call.Quotas.Key(f.call.Work, rej)}
	}
	weirhttp.WriteRejection(w, r, rej)
}

// shortAnswer bounds the time a client may take to read an answer of the
// gateway itself. It also replaces a deadline that an earlier answer on the
// same connection has left behind.
const shortAnswer = 5 * time.Second

func (e *entrance) bound(w http.ResponseWriter) {
	// A writer without deadlines is no connection: there is nothing to bound.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(shortAnswer))
}
