package proxy

import (
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
)

// target is one server of an upstream. It outlives reloads of the configuration
// that keep its URL.
type target struct {
	url *url.URL
	key string // as configured
	h2c bool

	requests  atomic.Uint64
	failures  [numFailures]atomic.Uint64
	ejections atomic.Uint64

	// out is the end of the present ejection in nanoseconds since the epoch of
	// the clock, 0 for a target in rotation.
	out atomic.Int64

	row atomic.Int32 // failures in a row
}

// failure says how a target failed, for metrics.
type failure int

const (
	failedConnect failure = iota // no connection: refused, unreachable, name unknown
	failedTimeout                // no connection or no answer in time
	failedReset                  // the connection broke, or what came was no HTTP
	failedBody                   // the connection broke after the headers of the answer
	failedStatus                 // it answered 502 or 504
	numFailures
)

var failureNames = [numFailures]string{"connect", "timeout", "reset", "body", "status"}

// seat is a target as one configuration sees it: with its gate.
type seat struct {
	*target
	gate weir.Gate // nil: no limit
}

// succeeded ends a row of failures, and reports whether that brought the target
// back into rotation.
func (t *target) succeeded() (back bool) {
	if t.row.Load() == 0 {
		return false
	}
	t.row.Store(0)
	return t.out.Swap(0) != 0
}

// failed counts a failure and reports whether it put the target out of
// rotation. alone says that no other target is left in rotation: the last one is
// never put out.
func (t *target) failed(f failure, now time.Duration, e ejection, alone func() bool) bool {
	t.failures[f].Add(1)
	if e.failures <= 0 || t.row.Add(1) < int32(e.failures) {
		return false
	}
	out := t.out.Load()
	if out > int64(now) || alone() || !t.out.CompareAndSwap(out, int64(now+e.lasts)) {
		return false
	}
	t.ejections.Add(1)
	return true
}

// inRotation reports whether the target is used without conditions.
func (t *target) inRotation() bool { return t.out.Load() == 0 }

// usable reports whether a request may go to the target: it is in rotation, or
// its ejection is over and this request is the one that tries it. The next one
// tries only after another such time, unless this one succeeds.
func (t *target) usable(now time.Duration, e ejection) bool {
	out := t.out.Load()
	return out == 0 || out <= int64(now) && t.out.CompareAndSwap(out, int64(now+e.lasts))
}

// ejection is when a target is left out, and for how long.
type ejection struct {
	failures int
	lasts    time.Duration
}

// address returns where in goes at this target.
func (t *target) address(in *url.URL) *url.URL {
	out := *in
	t.direct(&out)
	return &out
}

// direct makes u lead to this target: its scheme and host, and its path before
// the path of u.
func (t *target) direct(u *url.URL) {
	u.Scheme, u.Host = t.url.Scheme, t.url.Host
	base := strings.TrimSuffix(t.url.EscapedPath(), "/")
	if base == "" {
		return
	}
	escaped := base + "/" + strings.TrimPrefix(u.EscapedPath(), "/")
	path, err := url.PathUnescape(escaped)
	if err != nil { // cannot be: both halves come from parsed URLs
		path = escaped
	}
	u.Path, u.RawPath = path, escaped
}
