package proxy

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/hold"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/weirhttp"
)

// Call is what a server knows of a request beside the request itself.
type Call struct {
	// Policy has matched the request, and Route is the route that it found. A nil Policy
	// trusts nobody.
	Policy *policy.Policy
	Route  *policy.Route
	// Work is what the gates of the targets are asked with, and Arrived when the request
	// came.
	Work    weir.Work
	Arrived time.Time
	// Quotas are the gates with a quota that it has passed, or that have refused it.
	Quotas Quotas
	// GRPC says that the request is a call of gRPC; see [IsGRPC].
	GRPC bool
	// Request is the handle of the admitted request. It samples and releases the permit of
	// a target with the others. It is nil where no guard is around: nothing is sampled then.
	Request *weirhttp.Request
	// By is who gives the answer: this package sets it, and zero is the gateway. Status is
	// set by the server's ResponseWriter, for a 101 by this package. Neither is known
	// before the answer begins.
	Status int
	By     Answerer
	ended  int // what the code of a call of gRPC is in HTTP, 0 while that is not known
	// What follows is for the lines about a request. This package adds the wait for a target to
	// Waited. It sets Upstream and Target when it has picked a target. Failure says how the last
	// target failed, in the words of the metrics, or is [CutOff]. Rejection is the refusal that was the answer.
	Waited    time.Duration
	Upstream  string
	Target    string
	Failure   string
	Rejection *weir.Rejection
	// Traceparent is the header of that name for the target, empty to pass on what the client sent.
	// FreshTrace says that the client's trace is not gone on with: its tracestate is left out.
	Traceparent string
	FreshTrace  bool
	// Cutting ends when a shutdown waits for nothing any more, and closes what connections to clients are left: each
	// request is over then. nil is never.
	Cutting context.Context
}

// CutOff is the Failure of a request that a shutdown has cut before its answer was complete.
const CutOff = "shutdown"

// cut reports whether nothing in flight is waited for any more.
func (c *Call) cut() bool { return c.Cutting != nil && c.Cutting.Err() != nil }

// Answerer is who answered a request.
type Answerer uint8

// The answerers.
const (
	ByGateway  Answerer = iota // the gateway: 502, 504, a faulty request; or nobody any more
	ByGate                     // a gate, with a refusal
	ByUpstream                 // the upstream, whatever it said
	NumAnswerers
)

var answererNames = [NumAnswerers]string{"gateway", "gate", "upstream"}

// String returns gateway, gate or upstream.
func (a Answerer) String() string { return answererNames[a] }

// noGRPC is what a call is told that no target can take.
const noGRPC = "the upstream speaks HTTP/1, over which there is no gRPC; its targets have to be h2c://, or https:// and choose HTTP/2"

// Serve passes r on to one of the targets and its answer back to w. r's context ends when the
// client leaves. Serve returns when the answer has been passed on. If the client has left, it
// returns when the upstream has answered, or its expected time is over, or a shutdown cuts it. Only
// then is the slot free.
func (u *Upstream) Serve(w http.ResponseWriter, r *http.Request, call *Call) {
	ctx := r.Context()
	call.Upstream = u.name
	if call.GRPC && !u.mayHTTP2 {
		// Whatever names itself so would be spared the bounds of HTTP, for nothing.
		call.Request.Sample(weir.NoSample)
		u.problem(w, call, http.StatusNotImplemented, noGRPC)
		return
	}
	c, err := u.pickFor(ctx, call, call.Work, nil)
	if err != nil {
		call.Request.Sample(weir.NoSample)
		u.answerUntaken(w, r, call, err)
		return
	}
	call.Request.Attach(c.seat.gate, c.permit)
	x := &exchange{
		upstream: u, client: ctx, in: r, call: call,
		choice: c, route: u.shared.times.Route(call.Work.Op), started: u.now(),
	}
	x.enter()
	x.values.Context = ctx
	x.Context, x.cancel = context.WithCancel(&x.values)
	if d := time.Duration(u.cfg.ResponseTimeout); d > 0 {
		x.deadline = x.started + d
	}
	if call.GRPC {
		x.control = http.NewResponseController(w)
	}
	u.shared.watch.add(x)
	defer x.end()
	out := r.WithContext(x)
	if r.Body != nil && r.Body != http.NoBody {
		x.body = &x.bodies.client
		x.body.body, x.body.x, x.body.whole = r.Body, x, u.mayHTTP2
		out.Body = x.body
	}
	defer x.watchRequest()()
	u.reverse.ServeHTTP(w, out)
}

// exchange is one request and its answer, at an upstream. It is the context of the outgoing
// request. It has the values of the incoming context but not its cancellation, because a client
// that leaves does not stop the upstream.
//
// The context below it always has a Done channel. Without one, as in
// context.WithoutCancel, ReverseProxy would watch the client's connection by itself, and
// cancel all the same.
//
// All that a request needs is part of its exchange, so that it is allocated once.
type exchange struct {
	context.Context
	cancel context.CancelFunc
	values detached

	upstream *Upstream
	client   context.Context
	in       *http.Request // as it came
	call     *Call
	choice
	inside    bool // it counts as in progress at its target
	upgrading bool // it is sent there with an upgrade, over HTTP/1
	detached  bool // its permits outlast it
	tried     map[*target]bool
	refusals  int // attempts that a target has refused over HTTP/2; it may have seen them
	rests     int // pauses before further ones
	route     *hold.Route
	started   time.Duration // when it was sent, or is about to be
	url       *url.URL      // of the request, without the target; nil with one target
	costed    bool          // the answer has said what the request cost
	miscost   bool          // it has said something else there, and is counted for it
	events    *events       // of an answer that is to say so in its body, else nil
	body      *clientBody   // nil for a request without a body
	// conversation is for calls of gRPC.
	conversation conversation
	awaited      atomic.Int64 // since when a part of the answer's body is waited for, on the upstream's clock; 0: it is not
	bodies       struct {
		client clientBody
		sent   sentBody // of the first attempt
		answer answerBody
	}

	mu             sync.Mutex
	deadline       time.Duration            // of the wait for the answer, on the upstream's clock; 0: none
	paused         bool                     // the client is waited for
	pausedAt       time.Duration            // since when
	waitedFor      time.Duration            // how long it was waited for before
	answered       bool                     // the wait is over
	left           bool                     // the client left before the answer came
	betweenTargets bool                     // no target works on the request
	cause          error                    // why the gateway itself has cancelled
	control        *http.ResponseController // of a call of gRPC while its handler runs

	next, prev *exchange // in the watch's list; guarded by its mutex
}

// Why an exchange is cancelled by the gateway itself.
var (
	errResponseTimeout = errors.New("the upstream did not answer within response_timeout")
	errClientLeft      = errors.New("the client left")
	errCut             = errors.New("a shutdown has cut the request")
	errSilent          = errors.New("the upstream sent nothing for response_idle_timeout in the middle of its answer")
	errIdle            = errors.New("neither side of the call sent anything for grpc_idle_timeout")
)

type exchangeKey struct{}

// Value finds the exchange itself, without a context of its own around it.
func (x *exchange) Value(key any) any {
	if key == (exchangeKey{}) {
		return x
	}
	return x.Context.Value(key)
}

// detached has the values of a context, but neither its end nor its deadline.
type detached struct{ context.Context }

func (detached) Deadline() (time.Time, bool) { return time.Time{}, false }
func (detached) Done() <-chan struct{}       { return nil }
func (detached) Err() error                  { return nil }

// end runs when the handler returns, by a panic too.
func (x *exchange) end() {
	x.upstream.shared.watch.remove(x)
	x.mu.Lock()
	x.control = nil
	cause := x.cause
	x.mu.Unlock()
	// The connection to the client may have ended before the watch has looked.
	if cause == errCut || cause == nil && x.call.cut() && (x.call.Status == 0 || x.call.By == ByUpstream && x.inside) {
		x.call.Failure = CutOff
	}
	x.settleStream(false)
	x.cancel()
	x.leave()
	if !x.detached {
		x.permit.Done(weir.NoSample)
	}
}

// rewrite makes the outgoing request of the incoming one. ReverseProxy has removed the hop-by-hop
// headers, the forwarding headers of the client, and what it cannot read of the query. Those of a trusted peer are put back,
// with that peer added, and so is the query, which nothing here reads. The policy's own headers come last.
func (u *Upstream) rewrite(pr *httputil.ProxyRequest) {
	x := pr.In.Context().Value(exchangeKey{}).(*exchange)
	pr.Out.URL.RawQuery = pr.In.URL.RawQuery
	if len(u.seats) > 1 {
		x.url = pr.Out.URL
		pr.Out.URL = x.seat.address(x.url)
	} else {
		x.seat.direct(pr.Out.URL) // which is a copy already
	}
	if pr.Out.Body != nil { // with a length of 0 there is none
		x.body.send(&x.bodies.sent, pr.Out)
	}
	u.setForwarded(pr)
	removeBypasses(pr.Out)
	if u.h2c || !pr.In.ProtoAtLeast(1, 1) { // neither has an upgrade; net/http would not send it over HTTP/2, and blame the target
		pr.Out.Header.Del("Upgrade")
		pr.Out.Header.Del("Connection")
	}
	readable(x.call.Route, pr.Out.Header)
	x.call.setTrace(pr.Out.Header)
	u.policy.Forward(pr.Out.Header, x.in, &x.call.Work, x.call.Arrived)
}

// setTrace says which span the target's own are part of (W3C Trace Context).
func (c *Call) setTrace(h http.Header) {
	if c.Traceparent == "" {
		return
	}
	h["Traceparent"] = []string{c.Traceparent}
	if c.FreshTrace {
		delete(h, "Tracestate")
	}
}

// roundTripper is the transport that ReverseProxy is given. It sends a request to the
// target that was picked for it. If no connection can be made there, or the target begins nothing,
// it tries the others: nothing happens twice.
type roundTripper struct{ u *Upstream }

func (rt roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	x := req.Context().Value(exchangeKey{}).(*exchange)
	for {
		res, err := x.send(req)
		if err == nil {
			return x.answer(res)
		}
		f, o := x.diagnose(err)
		if f >= 0 {
			rt.u.recordFailure(x, f, err)
		}
		if (f == failedConnect || err == errRefused) && x.mayTryAnother() {
			refused := x.tryAnother()
			if refused == nil {
				req = x.address(req)
				continue
			}
			if weir.AsRejection(refused) != nil {
				err, o = refused, weir.NoSample
			}
		}
		x.endWait()
		if x.refusals == 0 && (f == failedConnect || lacksMeans(err)) {
			x.call.Request.SetCost("", 0) // nothing has been sent to anybody
		}
		x.call.Request.Sample(o)
		if x.body.failure() != nil && x.cancelledBy() == nil {
			x.breakOff()
		}
		return nil, err
	}
}

// breakOff keeps the slot of a request whose body the client did not send to its end. The upstream
// has the beginning, and a server that has not waited for the rest works on. Nothing more comes from
// it: its connection has been closed.
func (x *exchange) breakOff() {
	if x.releases() {
		return
	}
	permits := x.call.Request.Detach()
	if permits == nil { // such as those of a body that came too slowly
		return
	}
	x.detached = true
	x.upstream.shared.held.Hold(x.upstream.shared.watch.restOf(x), func() { permits.Done(weir.Abandoned) })
}

// answer is called with the header of an answer. It ends the wait, and samples the request.
func (x *exchange) answer(res *http.Response) (*http.Response, error) {
	here := x.endWait()
	x.body.settle()
	x.call.Failure = "" // of a target before, which is not the one that is named
	x.upstream.reached(x.seat.target)
	switch res.StatusCode {
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		// The target is a proxy itself and has lost its own upstream. A 503 does not say that.
		// Ejecting a target because it is busy would send its load to the others, until all are
		// ejected.
		x.upstream.recordFailure(x, failedStatus, errStatus(res.StatusCode))
	default:
		if x.seat.succeeded() {
			x.upstream.log.Info("upstream target is back", "upstream", x.upstream.name, "target", x.seat.key)
		}
	}
	x.mu.Lock()
	worked, waited := x.work(x.upstream.now())
	x.mu.Unlock()
	o := weir.ClassifyHTTP(res.StatusCode)
	if x.call.GRPC {
		o = x.beginCall(res, o)
	}
	if o == weir.OK {
		x.upstream.shared.times.Add(x.route, worked, waited)
	}
	if res.Header.Get("X-Envoy-Ratelimited") != "" {
		o = weir.NoSample // the rate limit filter of an Envoy behind has refused, and the service saw nothing
	}
	if !here {
		o = weir.Abandoned
	}
	x.readCost(res.Header)
	if !x.costed {
		x.readCost(res.Trailer) // which is announced at most: the client hears nothing of it
	}
	if here && x.conversation.pending {
		x.call.Request.HoldSample()
	} else {
		x.sample(o)
	}
	if !here {
		res.Body.Close()
		return nil, errClientLeft
	}
	x.watchBody(res)
	return res, nil
}

// sample tells the gates the outcome of an answer.
func (x *exchange) sample(o weir.Outcome) {
	if o == weir.OK && x.rests > 0 {
		o = weir.NoSample // its latency would count the pauses before attempts as the target's work
	}
	x.call.Request.Sample(o)
}

// readCost tells the gates what the request has really cost, if the answer says so.
func (x *exchange) readCost(answer http.Header) {
	units, ok, bad := x.call.Route.Settle(answer)
	if ok {
		x.upstream.policy.SetCost(x.call.Request.SetCost, units)
		x.costed = true
	}
	if bad {
		x.unsettled()
	}
}

// unsettled counts an answer whose cost is missing or cannot be read, once.
func (x *exchange) unsettled() {
	if !x.miscost {
		x.miscost = true
		x.call.Route.Unsettled()
	}
}

// diagnose returns the target's failure, -1 if err is not the target's fault, and the
// outcome to sample.
func (x *exchange) diagnose(err error) (failure, weir.Outcome) {
	var dial *net.OpError
	cause := x.cancelledBy()
	switch {
	case cause == errResponseTimeout:
		return failedTimeout, weir.Overload
	case x.body.failure() != nil:
		return -1, weir.NoSample
	case cause != nil:
		return -1, weir.Abandoned
	case errors.Is(err, errNotHTTP2), lacksMeans(err):
		return -1, weir.NoSample // the target may be well: it cannot take a call, or was never reached
	case errors.As(err, &dial) && dial.Op == "dial":
		if dial.Timeout() {
			return failedConnect, weir.Overload
		}
		return failedConnect, weir.Failed
	case timedOut(err):
		return failedTimeout, weir.Overload
	case x.deadlinePassed():
		return -1, weir.Overload // the client's deadline may be shorter than any target could meet
	case x.seat.http2.Load() && x.upgrading:
		return -1, weir.NoSample // it may know no HTTP/1
	}
	return failedReset, weir.Failed
}

// deadlinePassed reports whether a call of gRPC has missed its deadline. A server then resets the
// stream, often before anything else is known of it here.
func (x *exchange) deadlinePassed() bool {
	return x.call.GRPC && x.upstream.policy.DeadlinePassed(x.in, &x.call.Work, x.call.Arrived)
}

func timedOut(err error) bool {
	var t interface{ Timeout() bool }
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &t) && t.Timeout()
}

// mayTryAnother reports whether the request can be sent to a target that has not been tried. All that was
// read of its body must be kept, and its client must be there.
func (x *exchange) mayTryAnother() bool {
	if len(x.upstream.seats) == 1 || !x.body.repeatable() || x.client.Err() != nil {
		return false
	}
	if x.tried == nil {
		x.tried = make(map[*target]bool)
	}
	x.tried[x.seat.target] = true
	return len(x.tried) < len(x.upstream.seats)
}

// tryAnother moves the exchange to a target that has not been tried. It may wait for a slot there,
// unless the request has waited at a target before. If the new target's gate refuses, the client
// gets that refusal. The full target is the reason, not the one that cannot be reached.
func (x *exchange) tryAnother() error {
	w := x.call.Work
	if x.waited {
		w.MaxWait = weir.NoWait
	}
	x.permit.Cancel() // the target has nothing to do
	x.leave()
	x.permit = weir.Permit{}
	x.pauseBetweenTargets()
	c, err := x.upstream.pickFor(x.client, x.call, w, x.tried)
	if err != nil {
		return err
	}
	x.restart()
	c.waited = c.waited || x.waited
	x.choice = c
	x.enter()
	x.call.Request.Attach(c.seat.gate, c.permit)
	return nil
}

// enter counts a request as in progress at its target.
func (x *exchange) enter() {
	x.inside = true
	x.seat.inside.Add(1)
}

// leave is the end of that: the target has nothing left to do for it. It may be called again.
func (x *exchange) leave() {
	if x.inside {
		x.inside = false
		x.seat.inside.Add(-1)
	}
}

// address returns a copy of req for another attempt at the present target, which says how much time is left
// now.
func (x *exchange) address(req *http.Request) *http.Request {
	out := *req
	if x.url != nil {
		out.URL = x.seat.address(x.url)
	}
	if req.Body != nil {
		x.body.send(new(sentBody), &out)
	}
	out.Header = req.Header.Clone() // the first may still be looked at
	x.upstream.policy.ForwardDeadline(out.Header, x.in, &x.call.Work, x.call.Arrived)
	return &out
}

// recordFailure counts and logs a failure of the present target.
func (u *Upstream) recordFailure(x *exchange, f failure, err error) {
	t := x.seat.target
	x.call.Failure = failureNames[f]
	if f == failedTimeout && x.cancelledBy() == errResponseTimeout { // else err says that something was cancelled
		err = errors.New("no answer within " + u.cfg.ResponseTimeout.String())
	}
	eject := u.eject
	if err == errRefused || x.cutOff(err) { // it may be busy, as with a 503, or dislike what a client has sent
		eject = ejection{}
	}
	out := t.recordFailure(f, u.now(), eject, func() bool { return u.alone(t) })
	u.log.Debug("upstream failed", "upstream", u.name, "target", t.key, "kind", failureNames[f], "error", err)
	u.events.UpstreamFailed(u.name, t.key, failureNames[f], err)
	if out {
		u.log.Warn("upstream target ejected after too many failures in a row", "upstream", u.name, "target", t.key,
			"failures_in_a_row", t.inRow.Load(), "for", u.eject.lasts.String(), "error", err)
	}
}

// cutOff reports whether the connection broke while the request's body was sent. A target may have answered and closed it,
// such as with 413. net/http's transport then often reports the broken write, and drops the answer.
func (x *exchange) cutOff(err error) bool {
	var broken *net.OpError
	return !x.body.untouched() && !x.body.complete.Load() && errors.As(err, &broken) &&
		(broken.Op == "write" || broken.Op == "readfrom") // TCP reads a body of known length by itself, around the write
}

// alone reports whether all targets but t are out: ejected or unhealthy.
func (u *Upstream) alone(t *target) bool {
	for _, s := range u.seats {
		if s.target != t && !s.ejected() && !u.unhealthy(s.target) {
			return false
		}
	}
	return true
}

// errStatus is an answer that counts as a failure.
type errStatus int

func (e errStatus) Error() string { return "it answered " + strconv.Itoa(int(e)) }
