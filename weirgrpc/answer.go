package weirgrpc

import (
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/attempt"
	"github.com/weir-go/weir/throttle"
)

// Keys in the metadata of an ErrorInfo, beside gate and rule.
const (
	// retryable is "false" if coming back cannot help. The trailer says the same, but a tap cannot send a trailer.
	retryable = "retryable"
	// relayed is set by a server that passes on the refusal of another server, or of a gate further in. Its own work
	// had begun by then, so clients must not assume that the call never started.
	relayed = "relayed"
)

// answerTo returns the Answer to an attempt that did not succeed. It judges by err, by the trailer, and by
// whether a stream to a server was opened. A server's error has a trailer; that of a message that could not be sent has none.
//
// The time to come back is in [PushbackHeader], or else in a RetryInfo. A refusal by a gate of weir has an
// ErrorInfo of [Domain], whose reason is a [weir.Reason].
func answerTo(err error, trailer metadata.MD, opened bool) throttle.Answer {
	a := throttle.Answer{Outcome: Classify(err)}
	after, final, told := throttle.ParsePushback(trailer[PushbackHeader])
	info, delay := detailsOf(err)
	if !told && delay != nil {
		told, after = true, max(0, delay.GetRetryDelay().AsDuration())
	}
	a.Told, a.After = told && !final, after
	switch rej, ok := refusalIn(info); {
	case ok:
		refused := throttle.AnswerOfRejection(rej)
		a.Outcome, a.Transient, a.Quota, a.Final = refused.Outcome, refused.Transient, refused.Quota, refused.Final
		a.Unstarted = info.Metadata[relayed] == ""
	case status.Code(err) == codes.Unavailable && !opened && attempt.SaysLackOfMeans(status.Convert(err).Message()):
		a.Outcome, a.Unstarted = weir.NoSample, true // nobody knows how the server is; gRPC keeps the cause as text only
	case limitedByEnvoy(status.Code(err), trailer):
		a.Outcome, a.Quota = weir.OK, true
	case status.Code(err) == codes.Unavailable && (!opened || len(trailer["x-envoy-overloaded"]) > 0):
		a.Outcome, a.Unstarted = weir.Overload, true
	case oversized(status.Convert(err)), unsendable(status.Convert(err), opened, len(trailer) > 0): // that says nothing about load
		a.Outcome = weir.NoSample
	case a.Outcome == weir.OK && status.Code(err) == codes.ResourceExhausted:
		a.Quota = true // see Classify
	}
	a.Final = a.Final || final
	return a
}

// limitedByEnvoy reports whether Envoy's rate limit filter has refused the call. It answers Unavailable, unless it is told to
// answer ResourceExhausted.
func limitedByEnvoy(code codes.Code, trailer metadata.MD) bool {
	return (code == codes.Unavailable || code == codes.ResourceExhausted) && len(trailer["x-envoy-ratelimited"]) > 0
}

// unsendable reports whether gRPC has failed in this process, before the server got the call: its text is no UTF-8, its
// metadata cannot be sent, or there are no credentials. Some of that may come from a stranger.
func unsendable(st *status.Status, opened, answered bool) bool {
	switch st.Code() {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled: // no connection was made
		return false
	}
	return !opened || !answered && st.Code() == codes.Internal && strings.HasPrefix(st.Message(), "grpc: error while marshaling")
}

// detailsOf returns two details of a status, each nil if the status does not have it.
func detailsOf(err error) (info *errdetails.ErrorInfo, delay *errdetails.RetryInfo) {
	st, ok := status.FromError(err)
	if !ok || st.Code() == codes.OK {
		return nil, nil
	}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			info = d
		case *errdetails.RetryInfo:
			delay = d
		}
	}
	return info, delay
}

// refusalIn returns the refusal in an ErrorInfo, and false if there is none.
func refusalIn(info *errdetails.ErrorInfo) (*weir.Rejection, bool) {
	if info.GetDomain() != Domain {
		return nil, false
	}
	rej := &weir.Rejection{Retryable: info.Metadata[retryable] != "false"}
	err := rej.Reason.UnmarshalText([]byte(strings.ToLower(info.GetReason())))
	return rej, err == nil
}

// passedOn returns an error that may be returned to others: if it has a refusal, the refusal is marked as
// relayed. Other errors stay as they are.
func passedOn(err error) error {
	info, _ := detailsOf(err)
	if _, refused := refusalIn(info); !refused || info.Metadata[relayed] != "" {
		return err
	}
	p := status.Convert(err).Proto()
	for i, d := range p.Details {
		var known errdetails.ErrorInfo
		if !d.MessageIs(&known) || d.UnmarshalTo(&known) != nil || known.Domain != Domain {
			continue
		}
		if known.Metadata == nil {
			known.Metadata = map[string]string{}
		}
		known.Metadata[relayed] = "true"
		if again, err := anypb.New(proto.Message(&known)); err == nil {
			p.Details[i] = again
		}
	}
	return &passed{status.FromProto(p), err}
}

// passed is an error with a new status.
type passed struct {
	status *status.Status
	err    error
}

// Error implements error.
func (p *passed) Error() string { return p.err.Error() }

// Unwrap returns the original error.
func (p *passed) Unwrap() error { return p.err }

// GRPCStatus returns the status for others.
func (p *passed) GRPCStatus() *status.Status { return p.status }

// ownRefusal makes an error of gRPC from the error of a gate of this process. It wraps the gate's error.
func ownRefusal(err error) error {
	return passedOn(&passed{Status(rejectionOf(err)), err})
}
