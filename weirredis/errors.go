package weirredis

import (
	"errors"
	"fmt"
	"strings"

	"github.com/weir-go/weir/quota"
)

// Reason says why the server did not decide.
type Reason uint8

// The reasons. All but Timeout and Broken mean that nothing was charged.
const (
	// Down: the store has given the server up for the moment and looks by itself
	// whether it is back. Nothing was sent.
	Down Reason = iota + 1
	// Full: Config.MaxInFlight decisions are under way already, or for a [Document]
	// another request. Nothing was sent.
	Full
	// Canceled: the caller's context was over before anything was sent.
	Canceled
	// Timeout: no answer within Config.Deadline, or within the caller's own. The
	// script may have run.
	Timeout
	// Broken: the connection broke, or could not be made. The script may have run.
	Broken
	// Refused: the server answered with an error: a right is missing, its memory is
	// full, it is a replica, or it is loading. Nothing was charged.
	Refused
	// Closed: the store was closed before. What was under way then is Broken.
	Closed
	// Invalid: what is stored under the key is not a bucket, or the clocks of server
	// and process are periods of a calendar apart. Other keys are not concerned.
	Invalid
)

var reasons = [...]string{"", "down", "full", "canceled", "timeout", "broken", "refused", "closed", "invalid"}

// String returns the word for metrics and logs: down, full, canceled, timeout, broken,
// refused, closed or invalid.
func (r Reason) String() string {
	if int(r) < len(reasons) {
		return reasons[r]
	}
	return ""
}

// ErrUnavailable is what every [Error] is, for errors.Is: the server did not
// decide, and whoever asked goes by its own setting: open, closed, or by a bucket
// of its own.
var ErrUnavailable = errors.New("the quota store is not available")

// Error says why the server did not decide.
type Error struct {
	Reason Reason
	// Err is the cause: what the connection or the server said.
	Err error

	busy bool // nothing need be wrong with the server
}

// Error returns the reason and the cause in a sentence.
func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("quota store %s", e.Reason)
	}
	return fmt.Sprintf("quota store %s: %v", e.Reason, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports that target is ErrUnavailable, or [quota.ErrBusy] where it is Full, or is
// late or given up for that, and the server has not been silent for a second.
func (e *Error) Is(target error) bool {
	return target == ErrUnavailable || target == quota.ErrBusy && e.busy
}

// Charged reports whether the decision may have been charged although nobody was
// told. It is never sent again.
func (e *Error) Charged() bool { return e.Reason == Timeout || e.Reason == Broken }

func fail(r Reason, err error) *Error { return &Error{Reason: r, Err: err} }

// passing reports whether what the server answered may be otherwise soon: it is
// starting, or a part of its cluster is not there.
func passing(e *Error) bool {
	for _, word := range []string{"LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY"} {
		if strings.HasPrefix(e.Err.Error(), word) {
			return true
		}
	}
	return false
}
