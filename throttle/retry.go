package throttle

import (
	"cmp"
	"errors"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/attempt"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
)

// Answer describes an attempt that did not succeed.
type Answer struct {
	// Outcome is what the gates are told. Only [weir.Overload] may be tried again, and [weir.Failed]
	// if Transient is set.
	Outcome weir.Outcome
	// Transient says that the fault may be gone next time, such as a broken connection.
	Transient bool
	// Unstarted says that the work has not begun: the server refused it, or was never reached. A
	// retry is safe then, whatever the work does.
	Unstarted bool
	// Final says that no further attempt should follow, mostly because the server asked for none.
	Final bool
	// Quota says that the caller has used up its quota. That is no sign of overload, and the call may be tried
	// again at the time that the server names.
	Quota bool
	// Told says that the server named a time to come back. After is how long that is from now.
	Told  bool
	After time.Duration
}

// Stop says why a call is not tried again. The zero value, [Again], says that it is tried again.
type Stop string

// Why a call is not tried again.
const (
	Again       Stop = ""
	StopDone    Stop = "done"     // a retry cannot help
	StopAsked   Stop = "asked"    // the answer is Final
	StopUnsafe  Stop = "unsafe"   // the work may have begun, and must not be done twice
	StopTries   Stop = "attempts" // Retry.Attempts is reached
	StopLong    Stop = "long"     // the server named a time beyond MaxTold
	StopLate    Stop = "late"     // the wait does not fit the deadline
	StopBudget  Stop = "budget"   // the target's budget is used up
	StopRefused Stop = "refused"  // a gate of this process refused
)

// Next decides what follows an attempt. attempt is its number, 0 for the first. safe says that the work may be
// done twice. left is the time until the caller's deadline, negative if there is none. random is from 0 up to
// 1. Next returns how long to wait before the next attempt, or why there is none.
//
// The wait has full jitter: it is uniform between 0 and the back-off. If the server named a time, that is
// added. So clients that were told the same time do not all come back at once. If the wait does not fit the
// deadline, the call ends now.
func (r *Retry) Next(attempt int, a Answer, safe bool, left time.Duration, random float64) (time.Duration, Stop) {
	r = r.whole()
	again := a.Outcome == weir.Overload || a.Quota || a.Outcome == weir.Failed && a.Transient
	switch {
	case a.Final:
		return 0, StopAsked
	case !again:
		return 0, StopDone
	case !safe && !a.Unstarted:
		return 0, StopUnsafe
	case attempt < 0 || attempt >= r.Attempts-1:
		return 0, StopTries
	case a.Told && a.After > r.MaxTold:
		return 0, StopLong
	}
	wait := time.Duration(random * float64(r.backoff(attempt, a.Quota)))
	if a.Told {
		wait += max(0, a.After)
	}
	if left >= 0 && wait >= left {
		return 0, StopLate
	}
	return wait, Again
}

// whole returns r with its defaults. Those of a [Caller] are filled in already.
func (r *Retry) whole() *Retry {
	if r.Attempts != 0 && r.Backoff != 0 && r.MaxBackoff != 0 && r.MaxTold != 0 {
		return r
	}
	whole := *r
	setting.Complete(&whole, new(fault.List)) // a value out of range stays as it is
	return &whole
}

// backoffs are the longest wait after the first attempt, and after any.
func (r *Retry) backoffs(quota bool) (first, most time.Duration) {
	if quota {
		return cmp.Or(r.QuotaBackoff, r.Backoff), cmp.Or(r.MaxQuotaBackoff, r.MaxBackoff)
	}
	return r.Backoff, r.MaxBackoff
}

// backoff is the longest wait after an attempt.
func (r *Retry) backoff(attempt int, quota bool) time.Duration {
	first, most := r.backoffs(quota)
	if shift := min(attempt, 30); first <= most>>shift { // so that the shift does not overflow
		return first << shift
	}
	return most
}

// AnswerOf returns the Answer for an error that ended an attempt. A [*weir.Rejection] sets all fields. If no
// connection was made, directly or through a proxy, the work has not begun. If that is for want of a file descriptor or
// memory here, it is no sign of overload, and a retry would lack the same. An error whose HTTPStatus() or StatusCode() is 429
// tells of a quota that is used up, as an answer of HTTP does.
func AnswerOf(err error) Answer {
	if r := weir.AsRejection(err); r != nil {
		return AnswerOfRejection(r)
	}
	a := Answer{Outcome: weir.Classify(err)}
	if a.Outcome == weir.Overload && statusOf(err) == http.StatusTooManyRequests {
		a.Outcome, a.Quota = weir.OK, true
	}
	var op *net.OpError
	if a.Outcome != weir.Abandoned && errors.As(err, &op) {
		a.Transient = true
		switch op.Op {
		case "dial", "proxyconnect", "socks connect": // net/http says the latter two of a proxy
			if a.Outcome, a.Unstarted = weir.Overload, true; attempt.LacksMeans(op) {
				a.Outcome = weir.NoSample // nobody knows how the server is
			}
		}
	}
	return a
}

// statusOf returns the HTTP status of an error, in the order of [weir.Classify], and 0 if it has none.
func statusOf(err error) int {
	var status interface{ HTTPStatus() int }
	if errors.As(err, &status) {
		return status.HTTPStatus()
	}
	var code interface{ StatusCode() int }
	if errors.As(err, &code) {
		return code.StatusCode()
	}
	return 0
}

// AnswerOfRejection returns the Answer for a refusal by the server.
func AnswerOfRejection(r *weir.Rejection) Answer {
	a := Answer{
		Outcome: weir.Classify(r), Unstarted: true, Final: !r.Retryable,
		Told: r.RetryAfter > 0, After: r.RetryAfter,
	}
	switch r.Reason {
	case weir.ReasonQuota:
		a.Outcome, a.Quota = weir.OK, true
	case weir.ReasonDraining:
		a.Transient = true // another instance may take the work
	}
	return a
}

// ParseRetryAfter reads the values of the header Retry-After: whole seconds, or a date. now is the time of day, by
// the server's clock if its answer has a Date. It returns false if no value can be read. A date that has passed means now. Of several values, the longest
// counts. A proxy may have joined several with commas. Of many, the first sixteen are read.
func ParseRetryAfter(values []string, now time.Time) (after time.Duration, ok bool) {
	for _, line := range values[:min(len(values), mostJoined)] {
		day := "" // of a date, which has a comma itself
		for _, v := range strings.SplitN(line, ",", mostJoined) {
			if v = strings.TrimSpace(v); v != "" && strings.Trim(v, letters) == "" {
				day = v + ", "
				continue
			}
			if d, read := parseRetryAfter(day+v, now); read {
				after, ok = max(after, d), true
			}
			day = ""
		}
	}
	return after, ok
}

const (
	// mostJoined bounds the lines that are read, and the parts of each.
	mostJoined = 16
	letters    = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

func parseRetryAfter(v string, now time.Time) (time.Duration, bool) {
	if v == "" || len(v) > 64 {
		return 0, false
	}
	if strings.Trim(v, "0123456789") == "" {
		seconds, err := strconv.ParseInt(v, 10, 64)
		if err != nil || seconds > math.MaxInt64/int64(time.Second) {
			return math.MaxInt64, true
		}
		return time.Duration(seconds) * time.Second, true
	}
	date, err := http.ParseTime(v)
	if err != nil {
		return 0, false
	}
	return max(0, date.Sub(now)), true
}

// ParsePushback reads the trailer grpc-retry-pushback-ms: milliseconds to wait. final says that the server
// asked for no further attempt. It does so by a negative number, by a value that is not a number, or by several
// values. ok says whether there is a value.
func ParsePushback(values []string) (after time.Duration, final, ok bool) {
	if len(values) == 0 {
		return 0, false, false
	}
	ms, err := strconv.ParseInt(values[0], 10, 32)
	if err != nil || ms < 0 || len(values) > 1 {
		return 0, true, true
	}
	return time.Duration(ms) * time.Millisecond, false, true
}
