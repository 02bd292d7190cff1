package weir

import "strconv"

// Reason says why work was refused. Adapters choose a status code by it.
type Reason uint8

// The reasons. The zero value is no reason at all and never part of a
// Rejection that a gate of this module returns.
const (
	ReasonNone Reason = iota
	// ReasonQuota: a rate or a budget is used up. Coming back later helps.
	ReasonQuota
	// ReasonLimit: every slot is taken and the work would not, or could not,
	// wait.
	ReasonLimit
	// ReasonQueueFull: every slot is taken and so is every place to wait, or
	// the place was given to a newcomer, who can still be served in time.
	ReasonQueueFull
	// ReasonQueueTimeout: the work waited as long as it was allowed to, or
	// would have had to wait longer.
	ReasonQueueTimeout
	// ReasonDeadline: the deadline has passed, or would before the work is
	// done.
	ReasonDeadline
	// ReasonShed: its priority is below what the present load lets through.
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
	ReasonQueueTimeout: {"queue_timeout", "waited as long as allowed"},
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
