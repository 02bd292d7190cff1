package server

import (
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/proxy"
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
		weirhttp.WithRejection(refuse),
		weirhttp.WithYield(false), // the handler waits for the network at once
	)}
}

// request is one request on its way through the gateway, and its ResponseWriter. Code with the
// writer finds the request there, without a search through contexts.
type request struct {
	http.ResponseWriter
	handler *handler
	route   *route
	call    proxy.Call
	body    *upload // nil for a request without a body
}

// ServeHTTP leads a request through policy and gates to its upstream.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.s.inFlight.Add(1)
	defer h.s.inFlight.Add(-1)
	defer h.inProgress.Add(-1)
	began := time.Now()
	if most := h.listener.conns.MaxRequests(); h.inProgress.Add(1) > most {
		h.refuseOneTooMany(w, r, most)
		return
	}
	if !h.listener.conns.CertificateValid(r, began) {
		// The client may show another certificate on another connection (RFC 9110, 15.5.20).
		w.Header().Set("Connection", "close")
		proxy.WriteProblem(w, http.StatusMisdirectedRequest,
			"the client certificate of this connection has expired, or its authority is trusted no more; connect anew")
		return
	}
	st := h.s.state.Load()
	rt, work := st.policy.Match(r)
	q := &request{ResponseWriter: w, handler: h, route: st.routes[rt]}
	if q.route == nil {
		h.s.metrics.NoRoute()
		proxy.WriteProblem(q, http.StatusNotFound, "no route of the gateway matches this request")
		return
	}
	q.call = proxy.Call{Policy: st.policy, Route: rt, Quotas: q.route.quotas, Work: work, Arrived: began}
	defer func() {
		took := time.Since(began)
		q.route.stats.Answered(q.call.Status, q.call.By, took)
		h.s.metrics.Tenant(q.call.Work.Tenant, q.call.By, took)
	}()
	if r.Method == http.MethodConnect || r.Method == "PRI" {
		refuseMethod(q, r)
		return
	}
	if policy.Ambiguous(r.URL) { // it may lead to another route at the upstream
		proxy.WriteProblem(q, http.StatusBadRequest,
			"with %2F unescaped, the path has an empty, . or .. segment; servers differ on where it leads")
		return
	}
	if r.Body != nil && r.Body != http.NoBody {
		q.body = newUpload(w, r, time.Duration(h.listener.cfg.ReadTimeout))
		uploading := *r
		uploading.Body = q.body
		r = &uploading
	}
	h.guard.Serve(q, r, rt.Gate(), work, forward)
}

// forward passes on a request that the gates have admitted.
func forward(w http.ResponseWriter, r *http.Request, admitted *weirhttp.Request) {
	q := requestOf(w)
	if q.body != nil {
		q.body.admit(r.Context(), admitted, q.call.Work)
	}
	q.call.Request = admitted
	q.route.upstream.Serve(w, r, &q.call)
}

// refuse answers a request that a gate refused.
func refuse(w http.ResponseWriter, r *http.Request, rej *weir.Rejection) {
	q := requestOf(w)
	if rej.Reason == weir.ReasonCanceled && q.body != nil && q.body.err != nil {
		// net/http reports a body that fails as a client that has left. The client may still be
		// there, and gets an answer that says what was wrong.
		proxy.WriteBodyProblem(w, q.body.err)
		return
	}
	q.call.Refuse(w, r, rej)
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
	if status >= 200 || status == http.StatusSwitchingProtocols {
		q.call.Status = status
		if status != http.StatusSwitchingProtocols && (q.handler.s.draining.Load() || q.handler.listener.closed.Load()) {
			q.Header().Set("Connection", "close")
		}
	}
	q.ResponseWriter.WriteHeader(status)
}

// refuseOneTooMany refuses a request where most are in progress already.
func (h *handler) refuseOneTooMany(w http.ResponseWriter, r *http.Request, most int64) {
	rej := &weir.Rejection{
		Gate: "gateway", Rule: "max_connections", Reason: weir.ReasonQueueFull,
		Value: float64(most), Limit: float64(most), RetryAfter: time.Second, Retryable: true,
	}
	h.s.events.Rejected(weir.Work{}, rej)
	q := &request{ResponseWriter: w, handler: h}
	q.call.Refuse(q, r, rej)
}

// refuseMethod answers methods that are between two neighbours and are never forwarded. The bytes
// after such a request are no request, so the connection ends.
func refuseMethod(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Connection", "close")
	if r.Method == http.MethodConnect {
		w.Header().Set("Allow", "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT")
		proxy.WriteProblem(w, http.StatusMethodNotAllowed, "the gateway opens no tunnels: it does not forward CONNECT")
		return
	}
	proxy.WriteProblem(w, http.StatusBadRequest,
		"PRI begins a connection in HTTP/2 and is no method; this listener speaks HTTP/2 under TLS, and without TLS only with h2c: true")
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

const (
	// uploadRate is the slowest body, in bytes a second, that may take longer than the read
	// time-out.
	uploadRate = 4 << 10
	// slotRate is the slowest body, in bytes a second, that keeps the slot of its request.
	slotRate = 64 << 10
	// slotStall is how long in all a body may be slower than slotRate.
	slotStall = time.Second
)

// upload is the body of a request as it comes in. A client has the read time-out, and a second more
// for each uploadRate bytes that it has sent. That cuts off a client that sends a byte at a time,
// but not one that sends a large file over a slow line. No client may be silent for longer than the
// read time-out, however much it sent before.
//
// A body loses its slot if it comes slower than slotRate, or is still coming after the time-out.
// The request becomes a stream, so neither stalled nor endless bodies can fill a gate. While the
// body comes, the upstream waits for the client too. When the body is complete the upstream has
// work to do. So the request is admitted again before the upstream sees the end. If it is refused,
// the upstream never sees the end.
type upload struct {
	io.ReadCloser
	control *http.ResponseController
	started time.Time
	timeout time.Duration
	stall   time.Duration
	length  int64 // as announced, -1 if it was not
	n       int64 // bytes read
	err     error // of the client
	refused error // why it was not admitted again

	// What follows is for bodies of admitted requests.
	ctx      context.Context // of the request
	work     weir.Work
	admitted time.Time

	mu       sync.Mutex        // guards what follows against the timer
	request  *weirhttp.Request // nil before admission
	timer    *time.Timer       // nil before the first wait
	blocked  time.Duration     // time spent waiting for the client
	reading  bool
	moved    bool // it is a stream, and has no slot
	complete bool
}

func newUpload(w http.ResponseWriter, r *http.Request, timeout time.Duration) *upload {
	return &upload{
		ReadCloser: r.Body, control: http.NewResponseController(w), started: time.Now(),
		timeout: timeout, stall: min(slotStall, timeout/2), length: r.ContentLength,
	}
}

// admit is called when the request has got a slot, which the body can lose.
func (u *upload) admit(ctx context.Context, q *weirhttp.Request, w weir.Work) {
	u.ctx, u.work, u.admitted = ctx, w, time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.request = q
}

// Read implements io.Reader.
func (u *upload) Read(p []byte) (int, error) {
	if u.refused != nil {
		return 0, u.refused
	}
	began := time.Now()
	u.setDeadline(began)
	u.startClock(began)
	n, err := u.ReadCloser.Read(p)
	u.n += int64(n)
	complete := err == io.EOF || err == nil && u.n == u.length
	if complete {
		// net/http goes on reading, to notice a client that leaves. A deadline that passes
		// then would look like one.
		_ = u.control.SetReadDeadline(time.Time{})
	} else if err != nil {
		// The deadline stays: net/http reads the rest of a body before it answers.
		u.err = err
	}
	if u.stopClock(time.Since(began), complete) {
		if u.refused = u.readmit(); u.refused != nil {
			return 0, u.refused // without these bytes, or the upstream would begin
		}
	}
	return n, err
}

// setDeadline sets the time when the client must have sent more.
func (u *upload) setDeadline(now time.Time) {
	allowed := u.timeout + time.Duration(float64(u.n)/uploadRate*float64(time.Second))
	deadline := u.started.Add(allowed)
	if silent := now.Add(u.timeout); silent.Before(deadline) {
		deadline = silent
	}
	_ = u.control.SetReadDeadline(deadline) // without one there is nothing to bound
}

// startClock bounds how long the request keeps its slot while the gateway waits for the client.
func (u *upload) startClock(now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.request == nil || u.moved || u.complete {
		return
	}
	u.reading = true
	left := u.stall + time.Duration(float64(u.n)/slotRate*float64(time.Second)) - u.blocked
	switch {
	case left <= 0 || now.Sub(u.started) > u.timeout:
		u.becomeStream()
	case u.timer == nil:
		u.timer = time.AfterFunc(left, u.timeIsUp)
	default:
		u.timer.Reset(left)
	}
}

// timeIsUp runs when the client has been waited for long enough.
func (u *upload) timeIsUp() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.reading {
		u.becomeStream()
	}
}

// becomeStream gives the slot up, unless there are too many streams. u.mu is held.
func (u *upload) becomeStream() { u.moved = u.request.ReleaseForStream() }

// stopClock ends a wait for the client, and reports whether the body has just become complete
// without a slot.
func (u *upload) stopClock(took time.Duration, complete bool) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.reading {
		u.reading = false
		u.blocked += took
		if u.timer != nil {
			u.timer.Stop()
		}
	}
	first := complete && !u.complete
	u.complete = u.complete || complete
	return first && u.moved
}

// readmit gets a new slot for a request that gave its own up. The time that the client took
// for the body does not count against the request's deadline.
func (u *upload) readmit() error {
	if !u.work.Deadline.IsZero() {
		u.work.Deadline = u.work.Deadline.Add(time.Since(u.admitted))
	}
	return u.request.Reacquire(u.ctx, u.work)
}
