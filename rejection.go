package weir

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// Rejection is the error of a refused Admit. It names the gate, the rule, the
// value against the limit, and when to come back. A Rejection is immutable.
// Gates share one between requests if nothing in it depends on the request, so
// never write to its fields.
type Rejection struct {
	// Gate is the name of the gate that refused.
	Gate string
	// Rule names the rule within the gate, if it has any.
	Rule string
	// Bucket is the key of the bucket that a quota would have charged, as its store
	// knows it. It is empty where there is none. It is for the service's own logs
	// and metrics. It names the bucket's owner, so neither Error nor the HTTP
	// answer to a client contains it.
	Bucket string
	// Window says which limit of the rule refused, counted from 1, if the rule has
	// several. It is 0 if the rule has one limit or none.
	Window int
	// Reason is the cause in one word.
	Reason Reason

	// Value is what the gate measured and Limit what it allows, in the unit of the
	// reason:
	//
	//   - queue_full: the places to wait, all taken. A queue that stands has fewer.
	//   - limit: slots.
	//   - queue_timeout, deadline: the seconds waited, or those it would take if
	//     refused on arrival. Without a Limit the deadline has passed: the
	//     seconds waited until then, or too late on arrival.
	//   - too_large: the cost. quota: tokens.
	//   - shed: the pressure, where 1 is the most that is wanted.
	//   - throttled: the share of such work that is refused now, from 0 to 1. There
	//     is no Limit. A breaker has neither.
	//
	// Remaining is what is left.
	Value, Limit, Remaining float64

	// RetryAfter is when coming back has a fair chance. 0 means that coming
	// back to this gate never helps, or that nobody can tell (see Retryable).
	RetryAfter time.Duration
	// Retryable reports whether the same work may succeed later, here or at
	// another instance. The work has not started, so a retry is always safe.
	Retryable bool

	// Signal names the binding signal, where a signal decided.
	Signal string
	// Cause is the underlying error: the context's, or the store's.
	Cause error
}

// ErrRejected matches every Rejection: errors.Is(err, weir.ErrRejected).
var ErrRejected = errors.New("weir: rejected")

// ErrWaiting is returned by [Arriver.Arrive] for work that was queued. It is
// no failure: the callback brings the answer.
var ErrWaiting = errors.New("weir: waiting")

// ErrClosed is the error of changing the settings of a gate that has been closed.
// Work is refused with a Rejection for [ReasonDraining] instead.
var ErrClosed = errors.New("closed")

// Error says what happened, with numbers.
func (r *Rejection) Error() string {
	var b strings.Builder
	b.WriteString("weir: gate ")
	b.WriteString(strconv.Quote(r.Gate))
	b.WriteString(" refused: ")
	if r.Reason == ReasonLimit && r.Rule == "" && r.Value < r.Limit {
		b.WriteString("not enough slots are free")
	} else {
		b.WriteString(r.Reason.describe())
	}
	if r.Rule != "" {
		b.WriteString(", rule ")
		b.WriteString(strconv.Quote(r.Rule))
	}
	if r.Window > 0 {
		b.WriteString(", window ")
		b.WriteString(strconv.Itoa(r.Window))
	}
	switch {
	case r.Reason == ReasonThrottled && r.Value > 0:
		b.WriteString(" (")
		b.WriteString(strconv.FormatFloat(100*r.Value, 'f', 0, 64))
		b.WriteString(" % of such work is refused now)")
	case r.Limit != 0 || r.Value != 0:
		b.WriteString(" (")
		b.WriteString(r.number(r.Value))
		if r.Limit != 0 {
			b.WriteString(" of ")
			b.WriteString(r.number(r.Limit))
		}
		b.WriteString(")")
	}
	if r.Signal != "" {
		b.WriteString(", bound by ")
		b.WriteString(r.Signal)
	}
	if r.RetryAfter > 0 {
		b.WriteString("; retry after ")
		b.WriteString(r.RetryAfter.String())
	}
	if r.Cause != nil {
		b.WriteString(": ")
		b.WriteString(r.Cause.Error())
	}
	return b.String()
}

// Is makes every Rejection match [ErrRejected].
func (r *Rejection) Is(target error) bool { return target == ErrRejected }

// Unwrap returns Cause, so that errors.Is(err, context.Canceled) works.
func (r *Rejection) Unwrap() error { return r.Cause }

// AsRejection returns the Rejection in err's chain, or nil.
func AsRejection(err error) *Rejection {
	var r *Rejection
	if errors.As(err, &r) {
		return r
	}
	return nil
}

// number writes a value in the unit of the reason: seconds as a duration, the
// rest as it is.
func (r *Rejection) number(f float64) string {
	if r.Reason != ReasonQueueTimeout && r.Reason != ReasonDeadline {
		return strconv.FormatFloat(f, 'g', 6, 64)
	}
	const longest = math.MaxInt64 - 1023 // of a Duration, as a float64 holds it
	return time.Duration(min(f*float64(time.Second), longest)).Round(100 * time.Microsecond).String()
}

// Reason says why work was refused. Adapters choose a status code by it.
type Reason uint8

// The reasons. The zero value is no reason at all and never part of a
// Rejection that a gate of this module returns.
const (
	ReasonNone Reason = iota
	// ReasonQuota: a rate or a budget is used up. Coming back later helps.
	ReasonQuota
	// ReasonLimit: every slot is taken, or fewer are free than the work costs. And it
	// would not, or could not, wait.
	ReasonLimit
	// ReasonQueueFull: all slots and all places to wait are taken. Or the work
	// lost its place to a newcomer that can still be served in time.
	ReasonQueueFull
	// ReasonQueueTimeout: the work waited as long as it was allowed to. Or it
	// was refused on arrival because it would have had to wait longer.
	ReasonQueueTimeout
	// ReasonDeadline: the deadline has passed, or would before the work is
	// done.
	ReasonDeadline
	// ReasonShed: its priority is too low to be admitted under the present load.
	ReasonShed
	// ReasonThrottled: the caller's own throttle refused, to spare the server.
	ReasonThrottled
	// ReasonTooLarge: the cost can never be met by this gate, or is no cost at
	// all (negative). Coming back never helps.
	ReasonTooLarge
	// ReasonBlocked: a rule forbids it.
	ReasonBlocked
	// ReasonStore: the store behind the gate did not answer and the gate is
	// set to refuse then.
	ReasonStore
	// ReasonDraining: the gate is being closed. Another instance may serve it.
	ReasonDraining
	// ReasonCanceled: the caller stopped waiting; its context was cancelled.
	ReasonCanceled

	numReasons = iota
)

// reasonWords are a reason's name and what it means in an error.
var reasonWords = [numReasons]struct{ name, text string }{
	ReasonNone:         {"none", "no reason given"},
	ReasonQuota:        {"quota", "quota used up"},
	ReasonLimit:        {"limit", "every slot is taken"},
	ReasonQueueFull:    {"queue_full", "the wait room is full"},
	ReasonQueueTimeout: {"queue_timeout", "the wait is too long"},
	ReasonDeadline:     {"deadline", "the deadline cannot be met"},
	ReasonShed:         {"shed", "shed by priority"},
	ReasonThrottled:    {"throttled", "throttled by the caller's own side"},
	ReasonTooLarge:     {"too_large", "the cost can never be met"},
	ReasonBlocked:      {"blocked", "blocked by a rule"},
	ReasonStore:        {"store", "the store did not answer"},
	ReasonDraining:     {"draining", "the gate is draining"},
	ReasonCanceled:     {"canceled", "the caller stopped waiting"},
}

// String returns the name used in metrics, logs and problem documents.
func (r Reason) String() string {
	if int(r) < len(reasonWords) {
		return reasonWords[r].name
	}
	return "reason(" + itoa(int64(r)) + ")"
}

// describe says in an error what the reason means.
func (r Reason) describe() string {
	if int(r) < len(reasonWords) {
		return reasonWords[r].text
	}
	return r.String()
}

// MarshalText makes Reason a readable JSON map key.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText is the inverse of [Reason.MarshalText] for the reasons of [Reasons].
func (r *Reason) UnmarshalText(text []byte) error { return parseName(r, Reasons(), text) }

// parseName sets to to the one of all that is called so.
func parseName[T interface{ String() string }](to *T, all []T, name []byte) error {
	for _, v := range all {
		if v.String() == string(name) {
			*to = v
			return nil
		}
	}
	return errors.New("weir: " + strconv.Quote(string(name)) + " is not known")
}

// Reasons returns every reason a Rejection can have, for code that keeps a
// counter for each.
func Reasons() []Reason {
	rs := make([]Reason, 0, numReasons-1)
	for r := ReasonNone + 1; r < numReasons; r++ {
		rs = append(rs, r)
	}
	return rs
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }
