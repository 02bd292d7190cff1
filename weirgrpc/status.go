package weirgrpc

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/attempt"
)

// Domain is the domain of the ErrorInfo in refusals.
const Domain = "github.com/weir-go/weir"

// PushbackHeader is the trailer that tells clients when to try again, in milliseconds. -1 means
// never. Clients with a retry policy in their service config obey it.
const PushbackHeader = "grpc-retry-pushback-ms"

// Statuses says how refusals become statuses. [Status] uses the zero value.
type Statuses struct {
	// Overload is the code of refusals for overload. The default, OK, means Unavailable. ResourceExhausted is
	// for clients and proxies to which Unavailable means that the server is gone.
	Overload codes.Code
}

// Status returns the gRPC status of a refusal:
//
//	quota                                  RESOURCE_EXHAUSTED
//	limit, queue_full, queue_timeout,
//	shed, throttled, store, draining       UNAVAILABLE
//	deadline                               DEADLINE_EXCEEDED if it has passed,
//	                                       UNAVAILABLE if it would have
//	too_large                              RESOURCE_EXHAUSTED, or INVALID_ARGUMENT
//	                                       if the cost cannot be read
//	blocked                                PERMISSION_DENIED
//	canceled                               CANCELLED
//	anything else, nil                     UNAVAILABLE
//
// The details of the status are an ErrorInfo with the gate, its rule, and the reason in upper case, such as
// QUEUE_FULL. If coming back cannot help, the metadata of the ErrorInfo has retryable: false. A RetryInfo has
// the exact time, if it is known. A QuotaFailure says that the caller has used up its quota. The details
// contain nothing of the tenant's name, of the request, or of the refusal's Cause.
func Status(rej *weir.Rejection) *status.Status { return Statuses{}.Of(rej) }

// Of is [Status] with these settings.
func (s Statuses) Of(rej *weir.Rejection) *status.Status {
	if rej == nil {
		rej = &weir.Rejection{Retryable: true}
	}
	told := *rej
	told.Gate, told.Rule, told.Cause = bounded(rej.Gate), bounded(rej.Rule), nil
	message := told.Error()
	if attempt.Final(rej) {
		message += ": " + attempt.NoRetry
	}
	st := status.New(s.Code(rej), message)
	info := &errdetails.ErrorInfo{Domain: Domain, Reason: strings.ToUpper(rej.Reason.String()), Metadata: map[string]string{"gate": told.Gate}}
	if told.Rule != "" {
		info.Metadata["rule"] = told.Rule
	}
	details := []protoadapt.MessageV1{info}
	switch {
	case !rej.Retryable: // whatever the gate has set as the time to come back
		info.Metadata[retryable] = "false"
	case rej.RetryAfter > 0:
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(rej.RetryAfter)})
	}
	if rej.Reason == weir.ReasonQuota {
		details = append(details, &errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{{
			Subject: told.Gate + "/" + told.Rule, Description: "the quota is used up",
		}}})
	}
	full, err := st.WithDetails(details...)
	if err != nil { // impossible: the messages are complete, and their strings are UTF-8
		return st
	}
	return full
}

// Code returns the code of [Statuses.Of] without building the status.
func (s Statuses) Code(rej *weir.Rejection) codes.Code {
	if rej == nil {
		return s.overload()
	}
	switch rej.Reason {
	case weir.ReasonQuota:
		return codes.ResourceExhausted
	case weir.ReasonDeadline:
		if rej.Limit == 0 { // the deadline has passed; otherwise Limit is the time that was left
			return codes.DeadlineExceeded
		}
		return s.overload()
	case weir.ReasonTooLarge:
		if rej.Value < 0 {
			return codes.InvalidArgument
		}
		return codes.ResourceExhausted
	case weir.ReasonBlocked:
		return codes.PermissionDenied
	case weir.ReasonCanceled:
		return codes.Canceled
	}
	return s.overload()
}

func (s Statuses) overload() codes.Code {
	if s.Overload == codes.OK {
		return codes.Unavailable
	}
	return s.Overload
}

// Pushback returns the value of [PushbackHeader] for a refusal: whole milliseconds, rounded up, or -1 if coming
// back cannot help. It returns false if the client may come back, but the time is unknown. Then the client's
// own back-off applies.
func Pushback(rej *weir.Rejection) (ms string, ok bool) {
	if rej == nil {
		return "", false
	}
	switch {
	case !rej.Retryable:
		return "-1", true
	case rej.RetryAfter > 0:
		n := int64(rej.RetryAfter / time.Millisecond)
		if rej.RetryAfter%time.Millisecond != 0 {
			n++
		}
		return strconv.FormatInt(min(n, math.MaxInt32), 10), true
	}
	return "", false
}

// maxName bounds the names in a status, in bytes. Gates and rules have short names; a rule made
// from a key may not.
const maxName = 80

func bounded(name string) string {
	if len(name) > maxName {
		name = name[:maxName]
	}
	return strings.ToValidUTF8(name, "")
}

// rejectionOf makes a Rejection from the error of a gate. The user's own gates may return other errors.
func rejectionOf(err error) *weir.Rejection {
	if rej := weir.AsRejection(err); rej != nil {
		return rej
	}
	switch weir.Classify(err) {
	case weir.Abandoned:
		return &weir.Rejection{Reason: weir.ReasonCanceled, Cause: err}
	case weir.Overload:
		return &weir.Rejection{Reason: weir.ReasonDeadline, Retryable: true, Cause: err}
	}
	return &weir.Rejection{Reason: weir.ReasonStore, Retryable: true, Cause: err}
}

// Classify maps the error of a call to an outcome. [weir.Classify] does not know gRPC: to it, a status is an
// unknown error. Classify maps codes as [weir.ClassifyGRPC] does, with one difference: RESOURCE_EXHAUSTED is a
// plain "no", which is OK, if the caller has asked too much. It says so by a QuotaFailure among its details, or
// because a message or the cost is too large. [weir.Classify] decides about errors without a status.
func Classify(err error) weir.Outcome {
	if err == nil || weir.AsRejection(err) != nil {
		return weir.Classify(err)
	}
	var withStatus interface{ GRPCStatus() *status.Status }
	if errors.As(err, &withStatus) {
		if st := withStatus.GRPCStatus(); st != nil {
			return ClassifyStatus(st)
		}
	}
	return weir.Classify(err)
}

// ClassifyStatus is [Classify] for a status. A nil status is OK.
func ClassifyStatus(st *status.Status) weir.Outcome {
	if st.Code() == codes.ResourceExhausted && (oversized(st) || slices.ContainsFunc(st.Details(), asksTooMuch)) {
		return weir.OK
	}
	return weir.ClassifyGRPC(int(st.Code()))
}

// asksTooMuch reports whether a detail of a status says that the caller has asked too much.
func asksTooMuch(detail any) bool {
	switch d := detail.(type) {
	case *errdetails.QuotaFailure:
		return true
	case *errdetails.ErrorInfo:
		return d.Domain == Domain && d.Reason == "TOO_LARGE"
	}
	return false
}

// oversized reports whether a message was larger than its sender or its receiver takes. The code means other
// things, too, so the text decides: it is that of gRPC in Go, C++ or Java.
func oversized(st *status.Status) bool {
	said := st.Message()
	return st.Code() == codes.ResourceExhausted && (strings.Contains(said, "larger than max") || strings.Contains(said, "exceeds maximum size"))
}
