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
	"github.com/weir-go/weir/throttle"
)

// What the metadata of an ErrorInfo say beside gate and rule.
const (
	// retryable is "false" where coming back cannot help. The trailer says the same, but a tap has none.
	retryable = "retryable"
	// relayed is told by whoever passes on a refusal that another server has sent to it. Its own work
	// had begun then, so the call as a whole must not be taken for one that has not.
	relayed = "relayed"
)

// answerTo returns what came of an attempt that did not succeed. It judges by err, by the trailer, and
// by whether a stream to a server was ever opened.
//
// The time to come back is that of [PushbackHeader], else that of a RetryInfo. A refusal by a gate of
// weir is one with an ErrorInfo of [Domain] whose reason is a [weir.Reason].
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
	case status.Code(err) == codes.Unavailable && (!opened || len(trailer["x-envoy-overloaded"]) > 0):
		a.Outcome, a.Unstarted = weir.Overload, true
	case a.Outcome == weir.OK && status.Code(err) == codes.ResourceExhausted:
		a.Quota = true // see Classify
	}
	a.Final = a.Final || final
	return a
}

// detailsOf returns what a status has for clients, nil for what it has not.
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

// refusalIn returns the refusal that an ErrorInfo tells of, as far as it does.
func refusalIn(info *errdetails.ErrorInfo) (*weir.Rejection, bool) {
	if info.GetDomain() != Domain {
		return nil, false
	}
	rej := &weir.Rejection{Retryable: info.Metadata[retryable] != "false"}
	err := rej.Reason.UnmarshalText([]byte(strings.ToLower(info.GetReason())))
	return rej, err == nil
}

// passedOn returns an error as it may be returned to others: a refusal in it is marked as relayed.
// All other errors stay as they are.
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

// passed is an error with another status than it came with.
type passed struct {
	status *status.Status
	err    error
}

// Error implements error.
func (p *passed) Error() string { return p.err.Error() }

// Unwrap returns the error as it came.
func (p *passed) Unwrap() error { return p.err }

// GRPCStatus returns the status for others.
func (p *passed) GRPCStatus() *status.Status { return p.status }

// ownRefusal makes an error of gRPC of what a gate of this process has answered. The gate's own error can
// be found in it.
func ownRefusal(err error) error {
	return passedOn(&passed{Status(rejectionOf(err)), err})
}
