package weir

import (
	"context"
	"errors"
	"net"
	"os"
)

// Outcome is what became of admitted work, as the controller of a gate needs
// to know it. Use [Classify] to get one from an error.
type Outcome uint8

// The outcomes. The zero value teaches nothing, so that a forgotten outcome
// does no harm.
const (
	// NoSample says nothing about the backend: an upgrade, a hijacked connection,
	// an answer from a cache.
	NoSample Outcome = iota
	// OK is a completed answer; the time it took is a latency sample.
	OK
	// Failed is an answer that was wrong for reasons of its own. It is counted
	// but its latency is no sample: a fast 500 is no good news.
	Failed
	// Overload is a sign of too much: a time-out, a 429 or 503 from below.
	Overload
	// Abandoned is work whose client left before the answer: waste, and a sign
	// of too much.
	Abandoned

	numOutcomes = iota
)

var outcomeNames = [numOutcomes]string{"no_sample", "ok", "failed", "overload", "abandoned"}

// String returns the name used in metrics: no_sample, ok, failed, overload,
// abandoned.
func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return "outcome(" + itoa(int64(o)) + ")"
}

// MarshalText makes Outcome a readable JSON map key.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText is the inverse of [Outcome.MarshalText].
func (o *Outcome) UnmarshalText(text []byte) error { return parseName(o, Outcomes(), text) }

// Outcomes returns all outcomes, for code that keeps a counter for each.
func Outcomes() []Outcome { return []Outcome{NoSample, OK, Failed, Overload, Abandoned} }

// Classify maps the error of a piece of work to an Outcome:
//
//	nil                                                    OK
//	context.Canceled                                       Abandoned
//	context.DeadlineExceeded, os.ErrDeadlineExceeded,
//	any error with Timeout() true                          Overload
//	a Rejection for quota, limit, queue_full,
//	queue_timeout, deadline, shed, throttled, store        Overload
//	any other Rejection (too_large, blocked, draining)     Failed
//	an error with HTTPStatus() or StatusCode() int         as ClassifyHTTP
//	an error with GRPCCode() int                           as ClassifyGRPC
//	anything else                                          Failed
//
// A wrapped error counts as what it wraps.
func Classify(err error) Outcome {
	if err == nil {
		return OK
	}
	if r := AsRejection(err); r != nil {
		return classifyRejection(r)
	}
	var timeout interface{ Timeout() bool }
	var status interface{ HTTPStatus() int }
	var statusCode interface{ StatusCode() int }
	var grpcCode interface{ GRPCCode() int }
	switch {
	case errors.Is(err, context.Canceled):
		return Abandoned
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return Overload
	case errors.As(err, &status):
		return ClassifyHTTP(status.HTTPStatus())
	case errors.As(err, &statusCode):
		return ClassifyHTTP(statusCode.StatusCode())
	case errors.As(err, &grpcCode):
		return ClassifyGRPC(grpcCode.GRPCCode())
	case errors.As(err, &timeout) && timeout.Timeout():
		return Overload
	}
	return Failed
}

var _ interface{ Timeout() bool } = net.Error(nil)

func classifyRejection(r *Rejection) Outcome {
	switch r.Reason {
	case ReasonCanceled:
		return Abandoned
	case ReasonTooLarge, ReasonBlocked, ReasonDraining:
		return Failed
	}
	return Overload
}

// ClassifyHTTP maps an HTTP status code to an Outcome:
//
//	101                       NoSample   the connection lives on as something else
//	1xx, 2xx, 3xx, 4xx        OK         except:
//	408, 429, 503, 504        Overload   a time-out or a refusal from below
//	499                       Abandoned  a proxy's word for "the client left"
//	any other 5xx, 0, unknown Failed     counted, but a fast 500 is no good news
func ClassifyHTTP(status int) Outcome {
	switch status {
	case 101:
		return NoSample
	case 408, 429, 503, 504:
		return Overload
	case 499:
		return Abandoned
	}
	if status >= 100 && status < 500 {
		return OK
	}
	return Failed
}

// ClassifyGRPC maps a gRPC status code, by number, to an Outcome:
//
//	0 OK, 3 InvalidArgument, 5 NotFound, 6 AlreadyExists,
//	7 PermissionDenied, 9 FailedPrecondition, 10 Aborted,
//	11 OutOfRange, 16 Unauthenticated                       OK
//	4 DeadlineExceeded, 8 ResourceExhausted, 14 Unavailable Overload
//	1 Canceled                                              Abandoned
//	2 Unknown, 12 Unimplemented, 13 Internal, 15 DataLoss   Failed
//
// The answers in the first row are a caller's mistake or a plain "no". The
// backend did its work, and the time it took is a fair sample.
func ClassifyGRPC(code int) Outcome {
	switch code {
	case 0, 3, 5, 6, 7, 9, 10, 11, 16:
		return OK
	case 4, 8, 14:
		return Overload
	case 1:
		return Abandoned
	}
	return Failed
}
