package weirredis

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/weir-go/weir/quota"
)

// ErrUnavailable matches every [Error]: the server has not decided, and the gate does what
// its OnStoreError says.
var ErrUnavailable = errors.New("the quota store is not available")

// Error says why the server has not decided.
type Error struct {
	Reason Reason
	// Err is the cause: what the connection or the server said.
	Err error
	// Key is the server's key if its value is no bucket, else empty. Such a value does not
	// expire: somebody has to delete it. It is not in the text, which strangers may see.
	Key string

	busy    bool // the server may be well
	foreign bool // the value of the key is no bucket
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

// Is reports whether target is ErrUnavailable. It also matches [quota.ErrBusy] if the
// error is Full, or if answers are late but the server was not silent for a second.
func (e *Error) Is(target error) bool {
	return target == ErrUnavailable || target == quota.ErrBusy && e.busy
}

// Charged reports whether the decision may have been charged. It is never sent again.
func (e *Error) Charged() bool { return e.Reason == Timeout || e.Reason == Broken }

// Reason says why the server has not decided.
type Reason uint8

// The reasons. After all but Timeout and Broken, nothing was charged.
const (
	// Down: the store has given the server up for the moment, and probes it. Nothing was
	// sent.
	Down Reason = iota + 1
	// Full: Config.MaxInFlight decisions are under way, or for a [Document] another
	// request. Nothing was sent.
	Full
	// Canceled: the caller's context was over before anything was sent.
	Canceled
	// Timeout: no answer within Config.Deadline, or within the caller's own. The
	// script may have run.
	Timeout
	// Broken: the connection broke, or could not be made. The script may have run.
	Broken
	// Refused: the server answered with an error. A right is missing, its memory is full,
	// it is a replica, or it is loading.
	Refused
	// Closed: the store was closed before. Decisions under way then are Broken.
	Closed
	// Invalid: the value of the key is no bucket, or the clocks of server and process are
	// several periods of a calendar apart. Other keys are not concerned.
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

// errorOf classifies an error of the client.
func errorOf(err error) *Error {
	answer, ok := rueidis.IsRedisErr(err)
	switch {
	case err == nil:
		return nil
	case !ok:
		return fail(Broken, err)
	}
	return serverError(answer)
}

// serverError classifies an error that the server has answered.
func serverError(err error) *Error {
	text := err.Error()
	foreign := strings.Contains(text, "WRONGTYPE") || strings.Contains(text, foreignFault)
	if foreign || strings.Contains(text, scriptFault) {
		return &Error{Reason: Invalid, Err: err, foreign: foreign} // of this key, not of the server
	}
	return fail(Refused, err)
}

// told says which keys with foreign values were told lately.
type told struct {
	mu    sync.Mutex
	since time.Time
	keys  map[string]struct{}
}

const (
	tellAgain = time.Minute
	mostTold  = 16 // within tellAgain
)

// first reports whether a key was not told lately, and is to be told now.
func (t *told) first(key string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.keys == nil || now.Sub(t.since) >= tellAgain {
		t.since, t.keys = now, map[string]struct{}{}
	}
	if _, ok := t.keys[key]; ok || len(t.keys) >= mostTold {
		return false
	}
	t.keys[key] = struct{}{}
	return true
}

func fail(r Reason, err error) *Error { return &Error{Reason: r, Err: err} }

// replica reports whether the server says that it is a replica. Its name may lead to another
// server by now, and only a new connection finds out.
func replica(err error) bool {
	// Redis before 7.0 puts the text of the script's error before it.
	return strings.Contains(err.Error(), "READONLY") || strings.Contains(err.Error(), "MASTERDOWN")
}

// temporary reports whether the server's error may pass soon: it is starting, it has too many
// clients, or a part of its cluster is missing.
func temporary(e *Error) bool {
	// The client leaves out ERR.
	for _, words := range []string{"LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "max number of clients"} {
		if strings.HasPrefix(e.Err.Error(), words) {
			return true
		}
	}
	return false
}
