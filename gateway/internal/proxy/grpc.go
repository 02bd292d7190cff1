package proxy

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/weirgrpc"
)

// IsGRPC reports whether a request is a call of gRPC. gRPC-Web is HTTP with another body, and so is
// what calls itself gRPC over HTTP/1, which has no trailers that a client would see.
func IsGRPC(r *http.Request) bool {
	return r.ProtoMajor == 2 && IsGRPCType(r.Header.Get("Content-Type"))
}

// IsGRPCType reports whether a content type is gRPC's, such as application/grpc+proto. That of gRPC-Web is not.
func IsGRPCType(contentType string) bool {
	const kind = "application/grpc"
	if len(contentType) < len(kind) || !strings.EqualFold(contentType[:len(kind)], kind) {
		return false
	}
	rest := contentType[len(kind):]
	return rest == "" || rest[0] == '+' || rest[0] == ';'
}

// writeGRPCRejection answers a call of gRPC that a gate has refused. Metrics and logs have the status that
// the refusal would have over HTTP: the answer's own is always 200.
func (c *Call) writeGRPCRejection(w http.ResponseWriter, rej *weir.Rejection, httpStatus int) {
	weirgrpc.Statuses{}.SetRefusal(w.Header(), rej)
	c.sendGRPC(w, httpStatus)
}

// writeGRPCProblem answers a call of gRPC that goes no further.
func (c *Call) writeGRPCProblem(w http.ResponseWriter, httpStatus int, detail, upstream string) {
	code := codeOf(httpStatus)
	if c.Failure == failureNames[failedConnect] {
		code = codes.Unavailable // nothing has been sent, so a retry is safe
	}
	weirgrpc.SetStatus(w.Header(), problemStatus(code, httpStatus, detail, upstream))
	c.sendGRPC(w, httpStatus)
}

// ProblemStatus is what a call of gRPC gets in the place of a problem document with an HTTP status.
func ProblemStatus(httpStatus int, detail string) *status.Status {
	return problemStatus(codeOf(httpStatus), httpStatus, detail, "")
}

func problemStatus(code codes.Code, httpStatus int, detail, upstream string) *status.Status {
	info := &errdetails.ErrorInfo{Domain: weirgrpc.Domain, Reason: reasonOf(httpStatus)}
	if upstream != "" {
		info.Metadata = map[string]string{"upstream": upstream}
	}
	st := status.New(code, detail)
	if full, err := st.WithDetails(info); err == nil { // an error is a name that is not UTF-8
		return full
	}
	return st
}

// sendGRPC sends the header, which is the whole answer.
func (c *Call) sendGRPC(w http.ResponseWriter, httpStatus int) {
	boundAnswer(w)
	w.WriteHeader(http.StatusOK)
	c.Status = httpStatus
}

// codeOf is the code that gRPC's clients make of an HTTP status, with three differences. A request that
// came too slowly, and an answer that did, have missed a deadline. Headers that are too large are no better
// next time.
func codeOf(httpStatus int) codes.Code {
	switch httpStatus {
	case http.StatusBadRequest, http.StatusRequestHeaderFieldsTooLarge:
		return codes.Internal
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return codes.Unimplemented
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return codes.DeadlineExceeded
	case http.StatusMisdirectedRequest:
		return codes.Unauthenticated
	}
	return codes.Unavailable
}

// HTTPStatus is what a code of gRPC is in HTTP, by google.rpc.Code.
func HTTPStatus(code codes.Code) int {
	switch code {
	case codes.OK:
		return http.StatusOK
	case codes.Canceled:
		return 499 // the client left
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		return http.StatusBadRequest
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout
	case codes.NotFound:
		return http.StatusNotFound
	case codes.AlreadyExists, codes.Aborted:
		return http.StatusConflict
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Unimplemented:
		return http.StatusNotImplemented
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// Counted is the status that metrics and logs have. The answer to a call of gRPC is a 200, whatever became of
// the call, so its code counts once that is known.
func (c *Call) Counted() int {
	if c.Status == http.StatusOK && c.ended != 0 {
		return c.ended
	}
	return c.Status
}

// reasonOf is the reason of an ErrorInfo, such as BAD_GATEWAY.
func reasonOf(httpStatus int) string {
	return strings.ToUpper(strings.ReplaceAll(http.StatusText(httpStatus), " ", "_"))
}

// conversation is what the gateway sees of a call of gRPC. The HTTP status of its answer tells
// nothing: the outcome comes with grpc-status, mostly in the trailer.
type conversation struct {
	pending  bool // the outcome is to come
	open     bool // the code is to come
	bothWays bool // the answer began before the request was complete
	bytes    int64
	messages messageCount
	touched  atomic.Int64 // when a part of either body came last, on the upstream's clock; 0: not yet
}

// touch notes that n bytes have come.
func (x *exchange) touch(n int) {
	if x.call.GRPC && n > 0 {
		x.conversation.touched.Store(int64(x.upstream.now()))
	}
}

// idle reports whether neither side of a call has sent anything for too long. While the target works
// on a complete request it owes the answer. The exchange's mutex is held.
func (x *exchange) idle(now time.Duration) bool {
	most := time.Duration(x.upstream.cfg.GRPCIdleTimeout)
	if !x.call.GRPC || most == 0 || !x.answered && !x.paused {
		return false
	}
	return now-max(x.started, time.Duration(x.conversation.touched.Load())) >= most
}

// wholeAnswer is when an answer of one message counts as given, in bytes. A longer one may become a
// stream before its trailer, and a gate that sees long answers only would learn nothing.
const wholeAnswer = 32 << 10

// beginCall samples a call of gRPC at the header of its answer, if there is all to know then.
func (x *exchange) beginCall(res *http.Response, o weir.Outcome) weir.Outcome {
	st, said := weirgrpc.StatusOf(res.Header)
	if IsGRPCType(res.Header.Get("Content-Type")) {
		x.route.AnswersCalls()
	}
	switch {
	case res.StatusCode != http.StatusOK:
		return o
	case said:
		x.call.ended = HTTPStatus(st.Code())
		return weirgrpc.ClassifyStatus(st)
	case res.Body == nil || res.Body == http.NoBody || !IsGRPCType(res.Header.Get("Content-Type")):
		x.call.ended = HTTPStatus(codes.Unknown)
		return weir.Failed
	}
	x.conversation.pending, x.conversation.open = true, true
	x.conversation.bothWays = x.body != nil && !x.body.complete.Load()
	return o
}

// readCall is called with each part of the answer's body, and with the error that ended it.
func (x *exchange) readCall(p []byte, trailer http.Header, err error) {
	c := &x.conversation
	if c.open && err != nil {
		c.open = false
		x.call.ended = x.endOf(trailer, err)
	}
	if !c.pending {
		return
	}
	c.bytes += int64(len(p))
	c.messages.add(p)
	streams := c.bothWays || c.messages.n > 1
	if err == nil && (streams || c.bytes < wholeAnswer) {
		return
	}
	o := weir.OK
	if err != nil {
		o = weir.Failed
		if st, said := weirgrpc.StatusOf(trailer); said && err == io.EOF {
			o = weirgrpc.ClassifyStatus(st)
		} else if x.deadlinePassed() {
			o = weir.Overload
		}
		switch {
		case x.client.Err() != nil:
			o = weir.Abandoned
		case x.cancelledBy() == errIdle:
			o = weir.NoSample
		}
	}
	if streams && o == weir.OK {
		o = weir.NoSample // how long a stream lives is no latency
	}
	c.pending = false
	x.sample(o)
}

// endCall puts a status that says why into the trailer of an answer that broke in the middle of a call. It reports whether
// it has: without one ReverseProxy resets the stream, which is INTERNAL to clients.
func (x *exchange) endCall(res *http.Response) bool {
	httpStatus, detail := http.StatusBadGateway, "the upstream broke its answer off"
	switch {
	case !x.call.GRPC || x.client.Err() != nil:
		return false
	case x.cancelledBy() == errIdle:
		httpStatus, detail = http.StatusGatewayTimeout, x.upstream.idleText()
	case x.body.failure() != nil || x.Context.Err() != nil:
		return false
	case x.deadlinePassed():
		httpStatus, detail = http.StatusGatewayTimeout, textDeadline
	}
	code := codeOf(httpStatus)
	x.call.ended = HTTPStatus(code)
	if res.Trailer == nil {
		res.Trailer = make(http.Header)
	}
	weirgrpc.SetStatus(res.Trailer, problemStatus(code, httpStatus, detail, x.upstream.name))
	delete(res.Trailer, "Content-Type")
	return true
}

// endOf is what the end of a call is in HTTP, 0 if the target has not ended it.
func (x *exchange) endOf(trailer http.Header, err error) int {
	st, said := weirgrpc.StatusOf(trailer)
	switch {
	case said && err == io.EOF:
		return HTTPStatus(st.Code())
	case x.client.Err() != nil || x.cancelledBy() == errIdle:
		return 0
	case x.deadlinePassed():
		return HTTPStatus(codes.DeadlineExceeded)
	}
	return HTTPStatus(codes.Unknown)
}

// messageCount counts the messages in the body of an answer, up to two: then it is a stream.
type messageCount struct {
	n      int
	prefix [5]byte // compressed or not, and the length
	have   int     // bytes of the prefix
	left   uint32  // of the message
}

func (m *messageCount) add(p []byte) {
	for len(p) > 0 && m.n < 2 {
		if skip := min(uint64(m.left), uint64(len(p))); skip > 0 {
			m.left -= uint32(skip)
			p = p[skip:]
			continue
		}
		if m.have == 0 {
			m.n++
		}
		k := copy(m.prefix[m.have:], p)
		m.have, p = m.have+k, p[k:]
		if m.have == len(m.prefix) {
			b := m.prefix[1:]
			m.left = uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
			m.have = 0
		}
	}
}

// requestGrace is how long the request of a call may be under way before the call is a stream. Its
// client takes its time, or streams.
const requestGrace = time.Second

// watchRequest makes a call a stream if its request is not complete after the grace time. It returns
// what stops that.
func (x *exchange) watchRequest() (stop func()) {
	if !x.call.GRPC || x.body == nil {
		return func() {}
	}
	body := x.body
	timer := time.AfterFunc(requestGrace, func() {
		if !body.complete.Load() {
			x.call.Request.ReleaseForStream()
		}
	})
	return func() { timer.Stop() }
}
