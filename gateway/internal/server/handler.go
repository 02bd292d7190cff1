package server

import (
	"bytes"
	"context"
	"encoding/json"
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

// named is a ResponseWriter that adds class and tenant of the work to the document
// of a refusal, and the key of the bucket if a quota has refused. They are for trusted peers, which have said or may know them: to
// anybody else a tenant may be another's name, and a class a hint at what to
// pretend.
type named struct {
	http.ResponseWriter
	work *weir.Work
	key  string
}

// Unwrap leads http.ResponseController to the server's own writer.
func (n *named) Unwrap() http.ResponseWriter { return n.ResponseWriter }

// Write takes a document, which comes in one piece.
func (n *named) Write(document []byte) (int, error) {
	open, ok := bytes.CutSuffix(document, []byte("}\n"))
	if !ok {
		return n.ResponseWriter.Write(document)
	}
	who, err := json.Marshal(struct {
		Class  string `json:"class"`
		Tenant string `json:"tenant,omitempty"`
		Key    string `json:"key,omitempty"`
	}{n.work.Priority.String(), n.work.Tenant, n.key})
	if err != nil { // cannot be: strings
		return n.ResponseWriter.Write(document)
	}
	whole := append(append(bytes.Clone(open), ','), who[1:]...)
	if _, err := n.ResponseWriter.Write(append(whole, '\n')); err != nil {
		return 0, err
	}
	return len(document), nil
}

const (
	// uploadRate is the slowest body, in bytes a second, that may take longer
	// than the read time-out.
	uploadRate = 4 << 10
	// slotRate is the slowest body, in bytes a second, that keeps the slot of
	// its request.
	slotRate = 64 << 10
	// slotStall is how long such a body may keep the gateway waiting besides.
	slotStall = time.Second
)

// upload is the body of a request as it comes in. A client gets the read
// time-out, and then a second more for each uploadRate bytes it has sent: one
// that sends a byte at a time is cut, one that sends a large file over a slow
// line is not. Nobody may be silent for longer than the read time-out, however
// much was sent before.
//
// A body that does not come at slotRate, or is still arriving after the time-out,
// holds no slot any more: it becomes a stream, so that neither stalled bodies nor
// those without end can fill a gate. While it comes, the upstream waits for the
// client too. Before it is told of the end the request is admitted anew, because
// then it has work to do; refused, it never sees the end.
type upload struct {
	io.ReadCloser
	control *http.ResponseController
	started time.Time
	timeout time.Duration
	stall   time.Duration
	length  int64 // as announced, -1 if it was not
	n       int64
	err     error // what went wrong with it
	refused error // why it was not admitted when it was complete

	// What follows is for bodies of admitted requests.
	ctx      context.Context // of the request
	work     weir.Work
	admitted time.Time

	mu       sync.Mutex        // against the timer
	request  *weirhttp.Request // nil before admission
	timer    *time.Timer       // nil before the first wait
	blocked  time.Duration     // how long the client has been waited for
	reading  bool
	moved    bool // has given up its slot
	complete bool
}

func newUpload(w http.ResponseWriter, r *http.Request, timeout time.Duration) *upload {
	return &upload{
		ReadCloser: r.Body, control: http.NewResponseController(w), started: time.Now(),
		timeout: timeout, stall: min(slotStall, timeout/2), length: r.ContentLength,
	}
}

// admit says that the request has a slot, which the body can lose.
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
	u.bound(began)
	u.begin(began)
	n, err := u.ReadCloser.Read(p)
	u.n += int64(n)
	complete := err == io.EOF || err == nil && u.n == u.length
	if complete {
		// net/http goes on to watch the connection for the client's departure;
		// a deadline that passes there would look like one.
		_ = u.control.SetReadDeadline(time.Time{})
	} else if err != nil {
		// The deadline stays: net/http reads what is left of a body before it
		// answers.
		u.err = err
	}
	if u.finish(time.Since(began), complete) {
		if u.refused = u.comeBack(); u.refused != nil {
			return 0, u.refused // with the rest the upstream could begin
		}
	}
	return n, err
}

// bound sets the time by which the client must have sent more.
func (u *upload) bound(now time.Time) {
	allowed := u.timeout + time.Duration(float64(u.n)/uploadRate*float64(time.Second))
	deadline := u.started.Add(allowed)
	if silent := now.Add(u.timeout); silent.Before(deadline) {
		deadline = silent
	}
	_ = u.control.SetReadDeadline(deadline) // without one there is nothing to bound
}

// begin bounds the time for which the slot is held while the client is waited
// for.
func (u *upload) begin(now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.request == nil || u.moved || u.complete {
		return
	}
	u.reading = true
	left := u.stall + time.Duration(float64(u.n)/slotRate*float64(time.Second)) - u.blocked
	switch {
	case left <= 0 || now.Sub(u.started) > u.timeout:
		u.leave()
	case u.timer == nil:
		u.timer = time.AfterFunc(left, u.late)
	default:
		u.timer.Reset(left)
	}
}

// late runs when the client has been waited for long enough.
func (u *upload) late() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.reading {
		u.leave()
	}
}

// leave gives the slot up, if there is a place for it among the streams. u.mu is
// held.
func (u *upload) leave() { u.moved = u.request.Stream() }

// finish ends a wait for the client, and reports whether the body has just come
// to its end without a slot.
func (u *upload) finish(took time.Duration, complete bool) bool {
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

// comeBack gets a new slot for a request that has given its own up. What the
// client took to send the body does not count against the request's deadline.
func (u *upload) comeBack() error {
	if !u.work.Deadline.IsZero() {
		u.work.Deadline = u.work.Deadline.Add(time.Since(u.admitted))
	}
	return u.request.Return(u.ctx, u.work)
}
