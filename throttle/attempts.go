package throttle

import (
	"errors"
	"sync"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/attempt"
)

// Attempts finds out, on the side of a server, whether retries are common among the refusals. If they are,
// clients are told not to come back. A retry would be refused again, and most refusals would be of the same
// work.
//
// Each route has one, beside its gates. It counts refusals only, so it costs nothing while nothing is refused.
// It is safe for concurrent use.
type Attempts struct {
	now   func() time.Duration
	share float64

	mu     sync.Mutex
	window window
}

// Retries are common if there are at least commonAtLeast of them, and they exceed a share of the refusals in
// commonWindow.
const (
	commonAtLeast = 10
	commonWindow  = 30 * time.Second
)

// lastAttempt is the number of a stranger's last attempt, also while retries are rare.
const lastAttempt = 2

// The kinds of events that Attempts counts.
const (
	firsts = iota
	retries
)

// errCommon is the Cause of a refusal that Attempts has made final.
var errCommon = errors.New(attempt.NoRetry)

// NewAttempts makes an Attempts. now is the clock for virtual time, nil for the real one. The error names
// every setting out of range.
func NewAttempts(cfg AttemptsConfig, now func() time.Duration) (*Attempts, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	if now == nil {
		epoch := time.Now()
		now = func() time.Duration { return time.Since(epoch) }
	}
	return &Attempts{now: now, share: cfg.Share, window: newWindow(commonWindow, budgetBins, 2)}, nil
}

// Told counts the refusal of w, and returns the refusal for the client. That is r itself. While retries are
// common, it is a copy of r that is not Retryable and has no RetryAfter. Only refusals for overload are
// changed: a client that has used up a quota may come back at the time in r.
//
// trusted says that w.Attempt comes from a trusted peer. The number of a stranger counts only against the
// stranger. It does not make retries common, and a stranger's third attempt is its last.
func (a *Attempts) Told(w *weir.Work, trusted bool, r *weir.Rejection) *weir.Rejection {
	if !r.Retryable || !overloaded(r.Reason) {
		return r
	}
	if !a.count(w.Attempt, trusted) && (trusted || w.Attempt < lastAttempt) {
		return r
	}
	final := *r
	final.Retryable, final.RetryAfter = false, 0
	if final.Cause == nil {
		final.Cause = errCommon
	}
	return &final
}

// count counts a refused attempt, and reports whether retries are common.
func (a *Attempts) count(attempt int, trusted bool) bool {
	now := a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case attempt <= 0:
		a.window.add(now, firsts)
	case trusted:
		a.window.add(now, retries)
	default:
		a.window.advance(now)
	}
	again := a.window.sums[retries]
	return again >= commonAtLeast && float64(again)/float64(again+a.window.sums[firsts]) > a.share
}

// overloaded reports whether a reason says that the server has too much to do.
func overloaded(r weir.Reason) bool {
	switch r {
	case weir.ReasonLimit, weir.ReasonQueueFull, weir.ReasonQueueTimeout, weir.ReasonDeadline, weir.ReasonShed:
		return true
	}
	return false
}
