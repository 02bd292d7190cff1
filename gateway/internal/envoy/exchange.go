package envoy

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/hold"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/policy"
)

// exchange is one request and its answer: a stream of Envoy's. Only the goroutine of its handler
// uses it.
type exchange struct {
	Matched
	service *Service
	stream  grpc.ServerStream
	bounds  Bounds
	from    chan message  // what the stream brings; an error is the last
	left    chan struct{} // closed when nobody listens to it any more

	view    policy.View
	header  fields
	grpc    bool
	uploads bool // it has a body
	arrived time.Time

	permit   weir.Permit
	admitted time.Time
	seen     uint8 // a bit for each phase
	answered bool  // the headers of the answer have come
	coded    bool  // the code of the call is known
	costed   bool  // the answer has said what it has cost
	miscost  bool  // it has said something else there, and is counted for it
	unread   bool  // it should say so in its body, which does not come here
	moved    bool  // it has a place among the streams instead of its slot
	crowded  bool  // it found no place there
	grace    *time.Timer

	status int
	by     proxy.Answerer
}

// message is what a stream has brought.
type message struct {
	request *request
	err     error
}

// process serves one stream.
func (s *Service) process(stream grpc.ServerStream, b Bounds, crowded bool) (err error) {
	s.open.Add(1)
	defer s.open.Add(-1)
	x := &exchange{service: s, stream: stream, bounds: b, from: make(chan message), left: make(chan struct{})}
	defer close(x.left)
	go x.receive()
	end := Invalid
	defer func() { // by a panic, too
		x.finish(end)
		s.count(end)
	}()
	end, err = x.serve(crowded)
	return err
}

// receive hands on what the stream brings, until it ends.
func (x *exchange) receive() {
	for {
		m := message{request: new(request)}
		m.err = x.stream.RecvMsg(m.request)
		select {
		case x.from <- m:
		case <-x.left:
			return
		}
		if m.err != nil {
			return
		}
	}
}

// serve answers the messages of a stream, and returns how it ended.
func (x *exchange) serve(crowded bool) (End, error) {
	first, end, err := x.awaitFirst()
	if first == nil {
		return end, err
	}
	switch {
	case first.observing:
		return Invalid, x.unfit("observability_mode is on, in which a processor can refuse nothing; turn it off")
	case first.bodies:
		return Invalid, x.unfit("bodies are to be sent, and weir reads none; write request_body_mode: NONE and response_body_mode: NONE")
	case first.phase == responseHeaders && x.isEnvoys(first):
		x.seen, x.answered = 1<<requestHeaders|1<<responseHeaders, true // no request may follow
		if err := x.send(&response{phase: responseHeaders}); err != nil {
			return Complete, broken(err)
		}
		return x.follow()
	case first.phase != requestHeaders:
		return Invalid, x.unfit("the first message has the " + first.phase.String() + ", and none of the request; write request_header_mode: SEND")
	}
	if refusal, end, err := x.admit(first, crowded); refusal != nil || err != nil || end != Complete {
		if refusal == nil {
			return end, err
		}
		x.status = refusal.status
		return end, x.send(&response{immediate: refusal})
	}
	if err := x.send(&response{phase: requestHeaders, change: x.forward()}); err != nil {
		return Early, err
	}
	x.header, x.view = nil, policy.View{} // headers may be large, and the request long
	return x.follow()
}

// awaitFirst waits for the first message. Without one it returns how the stream ended.
func (x *exchange) awaitFirst() (*request, End, error) {
	late := time.NewTimer(x.bounds.FirstMessage)
	defer late.Stop()
	select {
	case m := <-x.from:
		if m.err == nil {
			return m.request, Complete, nil
		}
		if err := broken(m.err); err != nil {
			return nil, Invalid, err
		}
		return nil, Silent, x.late()
	case <-late.C:
		return nil, Silent, status.Errorf(codes.DeadlineExceeded, "no message within %v", x.bounds.FirstMessage)
	}
}

// broken is the status of a stream with a message that cannot be read. One that Envoy has ended has
// none.
func broken(err error) error {
	if err == nil || isEnd(err) {
		return nil
	}
	return err
}

// isEnd reports whether an error says that Envoy has ended the stream. A time-out of the stream has the
// same effect as a reset. Envoy tells no more of a request on which the backend may still work.
func isEnd(err error) bool {
	code := status.Code(err)
	return errors.Is(err, io.EOF) || code == codes.Canceled || code == codes.DeadlineExceeded
}

// late is what a stream ends with that has no answer and whose time-out has passed; nil for other streams.
// Envoy's clock may be behind ours, and a clean end would let the request in.
func (x *exchange) late() error {
	if err := x.stream.Context().Err(); errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err).Err()
	}
	return nil
}

// isEnvoys reports whether Envoy itself has given an answer that comes without its request. It refuses what is
// malformed, and a filter before this one may answer anything: a CORS preflight, a redirect. An answer of the
// service says that a mode is wrong. Envoy's router marks those; where it may not, no request has come so far.
func (x *exchange) isEnvoys(m *request) bool {
	if codeOf(m.fields) >= 400 || m.last && m.fields.get(statusHeader) != "" {
		return true
	}
	return x.service.asked.Load() && m.fields.get(serviceTimeHeader) == ""
}

// unfit refuses a stream in a mode that cannot work, and logs each reason once.
func (x *exchange) unfit(why string) error {
	if _, said := x.service.unfit.LoadOrStore(why, true); !said {
		x.service.opts.Logger.Error("an ext_proc stream is refused: " + why)
	}
	return status.Error(codes.FailedPrecondition, why)
}

// admit asks the gates. It returns the answer of a request that is refused. A request that may pass
// has neither answer nor error, and ends as Complete so far.
func (x *exchange) admit(m *request, crowded bool) (*immediate, End, error) {
	x.seen = 1 << requestHeaders
	x.service.asked.Store(true)
	x.arrived = time.Now()
	x.by = proxy.ByGateway
	fault := x.look(m)
	x.Matched = x.service.opts.Match(&x.view)
	switch {
	case m.tooMany: // first: the path may be among those that were not read
		return x.problem(http.StatusRequestHeaderFieldsTooLarge, fmt.Sprintf("there are more than %d headers", mostFields)), Refused, nil
	case fault != "":
		return x.problem(http.StatusBadRequest, fault), Refused, nil
	case x.Policy != nil && x.Policy.AmbiguousHost(x.view.Header.Host()):
		return x.problem(http.StatusBadRequest, policy.AmbiguousHostText), Refused, nil
	case x.crams():
		return x.problem(http.StatusRequestHeaderFieldsTooLarge, "the request has more headers than Envoy takes, with those that are added here"), Refused, nil
	}
	if crowded {
		most := float64(x.bounds.MaxStreams())
		rej := &weir.Rejection{Gate: "gateway", Rule: "max_connections", Reason: weir.ReasonQueueFull,
			Value: most, Limit: most, RetryAfter: time.Second, Retryable: true}
		x.service.opts.Refused(rej)
		x.by = proxy.ByGate
		return x.refusal(rej), Crowded, nil
	}
	p, err := x.awaitPermit()
	var broke invalid
	switch {
	case err == nil && x.stream.Context().Err() != nil: // a store was slow to answer
		p.Cancel()
		return nil, GaveUp, x.late()
	case err == nil:
		x.permit, x.admitted = p, time.Now()
		return nil, Complete, nil
	case errors.Is(err, errGone):
		return nil, GaveUp, x.late()
	case errors.As(err, &broke):
		return nil, Invalid, broke.error
	}
	rej := weir.AsRejection(err)
	if rej == nil {
		rej = &weir.Rejection{Reason: weir.ReasonStore, Retryable: true, Cause: err}
	}
	x.by = proxy.ByGate
	rej = x.Route.Told(&x.Work, x.Policy != nil && x.Policy.TrustedView(&x.view), rej)
	return x.refusal(rej), Refused, nil
}

// look reads the request, and returns what is wrong with it.
func (x *exchange) look(m *request) (fault string) {
	x.header = m.fields
	x.grpc = proxy.IsGRPCType(m.fields.get("content-type"))
	x.uploads = !m.last
	x.view = policy.View{
		Method: m.fields.get(":method"), Header: header(m.fields),
		Peer: policy.ParsePeer(m.attributes.source), Certificate: m.attributes.certificate(),
	}
	if m.attributes.source == "" && x.service.blind.CompareAndSwap(false, true) {
		x.service.opts.Logger.Warn("Envoy does not say where requests come from, so all are strangers without an address; " +
			"add source.address to request_attributes of its ext_proc filter")
	}
	if !proxy.SendableMethod(x.view.Method) {
		return "the method has characters that HTTP does not allow there, or is a known one that is not in upper case"
	}
	u, err := url.ParseRequestURI(m.fields.get(":path"))
	if err != nil {
		return "the path of the request cannot be read"
	}
	x.view.Path, x.view.RawPath = u.Path, u.RawPath
	if policy.Ambiguous(u) {
		return policy.AmbiguousText
	}
	return ""
}

// certificate returns what Envoy says of a client's certificate, as far as it tells names. It is
// nil if there is none.
func (a *attributes) certificate() *x509.Certificate {
	if !a.mutual {
		return nil
	}
	cert := new(x509.Certificate)
	if u, err := url.Parse(a.uri); err == nil && a.uri != "" {
		cert.URIs = []*url.URL{u}
	}
	if a.dns != "" {
		cert.DNSNames = []string{a.dns}
	}
	return cert
}

var errGone = errors.New("Envoy has ended the stream")

// invalid is what a stream ends with because of what it has brought while its request waited. To end it
// without an error would let the request in.
type invalid struct{ error }

// awaitPermit asks the gates of the route, and waits for their answer while the stream is there.
func (x *exchange) awaitPermit() (weir.Permit, error) {
	gate, ok := x.Route.Gate().(weir.Arriver)
	if !ok { // cannot be: the gates of policies are
		return x.Route.Gate().Admit(x.stream.Context(), x.Work)
	}
	if x.Route.LongestWait() < 0 && (x.Work.MaxWait == 0 || x.Work.MaxWait > unboundedWait) {
		x.Work.MaxWait = unboundedWait
	}
	type answer struct {
		weir.Permit
		error
	}
	answers := make(chan answer, 1)
	p, waiter, err := gate.Arrive(x.Work, func(p weir.Permit, err error) { answers <- answer{p, err} })
	if !errors.Is(err, weir.ErrWaiting) {
		return p, err
	}
	var broke error
	gone := x.send(&response{patience: x.patience()}) != nil
	for !gone {
		select {
		case a := <-answers:
			return a.Permit, a.error
		case m := <-x.from:
			gone = true
			if broke = broken(m.err); m.err == nil {
				broke = x.unfit("bodies are sent before the answer to the headers; write request_body_mode: NONE")
			}
		}
	}
	if !waiter.Cancel() {
		a := <-answers
		a.Permit.Cancel()
	}
	if broke != nil {
		return weir.Permit{}, invalid{broke}
	}
	return weir.Permit{}, errGone
}

// margin is what Envoy waits beyond the longest wait at a gate, so that it hears the refusal.
const margin = time.Second

// unboundedWait is the longest wait at a gate that has no bound. Envoy has to hear of one, and ignores what is
// above its max_message_timeout.
const unboundedWait = 30 * time.Second

// patience returns how long Envoy is to wait for the answer.
func (x *exchange) patience() time.Duration {
	longest := x.Route.LongestWait()
	if longest < 0 || x.Work.MaxWait > 0 && x.Work.MaxWait < longest {
		longest = x.Work.MaxWait
	}
	if !x.Work.Deadline.IsZero() {
		longest = min(longest, time.Until(x.Work.Deadline))
	}
	return max(longest, 0) + margin
}

// follow answers what comes after the request's headers, until the stream ends.
func (x *exchange) follow() (End, error) {
	x.grace = time.NewTimer(time.Hour)
	defer x.grace.Stop()
	x.grace.Stop()
	for {
		select {
		case m := <-x.from:
			if err := broken(m.err); err != nil {
				return Invalid, err
			}
			if m.err != nil {
				return x.over(), nil
			}
			if x.seen&(1<<m.request.phase) != 0 {
				return Invalid, status.Errorf(codes.InvalidArgument, "the %s came twice", m.request.phase)
			}
			if err := x.reply(m.request); err != nil && isEnd(err) {
				return x.over(), nil // at this moment
			} else if err != nil {
				return Invalid, err
			}
		case <-x.service.draining:
			return Drained, nil
		case <-x.grace.C:
			x.move()
		}
	}
}

// over returns how a stream has ended that Envoy has ended.
func (x *exchange) over() End {
	if !x.answered {
		return Early
	}
	return Complete
}

// reply answers one message.
func (x *exchange) reply(m *request) error {
	out := &response{phase: m.phase}
	switch m.phase {
	case 0:
		return status.Error(codes.InvalidArgument, "a message without headers or trailers")
	case requestBody, responseBody:
		return x.unfit("bodies are sent, and weir reads none; write request_body_mode: NONE and response_body_mode: NONE")
	case responseTrailers:
		if !x.answered {
			return status.Error(codes.InvalidArgument, "the response trailers came before the response headers")
		}
		out.change = x.settleLate(m.fields)
		x.readCode(m.fields, true)
	case responseHeaders:
		out.change = x.sample(m)
	}
	x.seen |= 1 << m.phase
	return x.send(out)
}

// sample tells the gates of the answer, and returns what changes in its headers.
func (x *exchange) sample(m *request) mutation {
	x.answered, x.by, x.status = true, proxy.ByUpstream, codeOf(m.fields)
	o := outcome(m.fields, x.status, x.grpc)
	if o == weir.OK {
		x.service.times.Add(x.service.times.Route(x.Work.Op), x.worked(time.Since(x.admitted)), 0)
	}
	if !m.last && proxy.IsGRPCType(m.fields.get("content-type")) { // an answer of headers alone may be Envoy's own
		x.service.times.Route(x.Work.Op).AnswersCalls()
	}
	change := x.settle(m.fields)
	x.unread = x.Route.SettlesByEvent() && !m.last && x.status >= 200 && x.status < 300
	x.readCode(m.fields, m.last)
	x.permit.Sample(o)
	switch {
	case m.last:
	case x.status == http.StatusSwitchingProtocols || strings.HasPrefix(m.fields.get("content-type"), "text/event-stream"):
		x.move()
	default:
		x.grace.Reset(x.service.opts.Streams.Grace())
	}
	return change
}

// readCode counts a call of gRPC by its code, which is in headers or trailers. The answer itself is a 200. A call that has
// ended without a code is as unknown as one whose code cannot be read.
func (x *exchange) readCode(answer fields, ended bool) {
	text := answer.get(statusHeader)
	if !x.grpc || x.status != http.StatusOK || text == "" && (!ended || x.coded) {
		return
	}
	x.coded = true
	code := codes.Unknown
	if n, ok := decimal(text); ok {
		code = codes.Code(n)
	}
	x.status = proxy.HTTPStatus(code)
}

// move exchanges the slot for a place among the streams. Without a free place it tries again later. What has no slot
// needs no place.
func (x *exchange) move() {
	if !x.permit.Live() {
		return
	}
	streams := x.service.opts.Streams
	if !streams.Enter(x.Work.User) {
		if !x.crowded {
			x.crowded = true
			streams.Overflow()
		}
		x.grace.Reset(streams.Grace())
		return
	}
	x.moved = true
	x.permit = x.permit.Release(weir.NoSample) // a quota's charge is left: the trailers may say the cost
}

// send sends an answer.
func (x *exchange) send(r *response) error { return x.stream.SendMsg(r) }

// finish releases what the exchange has, and reports it.
func (x *exchange) finish(end End) {
	if end == Complete && x.unread && !x.costed {
		x.unsettled()
	}
	switch {
	case x.moved:
		x.service.opts.Streams.Leave(x.Work.User)
		x.permit.Done(weir.NoSample)
	case end == Early && !x.releases() && x.permit != (weir.Permit{}): // without a gate there is no slot
		x.service.held.Hold(x.rest(time.Since(x.admitted)), abandon(x.permit))
	case end == Early:
		x.permit.Done(weir.Abandoned)
	default:
		x.permit.Done(weir.NoSample)
	}
	if !x.arrived.IsZero() && end != Drained {
		x.service.opts.Ended(Report{Matched: x.Matched, Status: x.status, By: x.by, Took: time.Since(x.arrived)})
	}
}

// releases reports whether the slot of a client that has left is free at once. Envoy resets a call of gRPC at the service, and
// servers of gRPC heed that. Anything may call itself gRPC, so that counts only where calls have been answered.
func (x *exchange) releases() bool {
	return x.Release || x.grpc && x.service.times.Route(x.Work.Op).HasAnsweredCalls()
}

// rest returns for how long the slot of a request is held whose client has left after so long. Without
// Longest, what is known of the route's answers is the only bound.
func (x *exchange) rest(taken time.Duration) time.Duration {
	rest := x.service.times.Rest(x.service.times.Route(x.Work.Op), x.worked(taken), 0)
	switch {
	case x.Longest > 0 && rest > 0:
		return max(0, min(x.Longest-taken, rest))
	case x.Longest > 0:
		return max(0, x.Longest-taken)
	case rest > 0:
		return rest
	}
	return max(0, hold.Unknown-taken)
}

// worked returns how much of the time that a request has taken counts as work. Envoy does not say when
// a body was complete, and a client that sends slowly is no slow server. So a request with a body
// counts for twice what its route is known to take, at most. The mean still finds its way to what most
// answers take. The few that are slow on purpose cannot lead it away.
func (x *exchange) worked(taken time.Duration) time.Duration {
	if !x.uploads {
		return taken
	}
	usual := x.service.times.Rest(x.service.times.Route(x.Work.Op), 0, 0)
	if usual == 0 {
		return min(taken, hold.Unknown)
	}
	return min(taken, 2*usual)
}

// abandon keeps of an exchange what its end needs.
func abandon(p weir.Permit) func() {
	return func() { p.Done(weir.Abandoned) }
}
