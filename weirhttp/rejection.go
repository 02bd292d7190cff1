package weirhttp

import (
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/weir-go/weir"
)

// StatusClientClosed is the status of a request whose client left while it
// waited. Nobody reads it but access logs; it is what nginx uses, too.
const StatusClientClosed = 499

// Status returns the HTTP status code for a refusal:
//
//	quota, throttled                        429 Too Many Requests
//	limit, queue_full, queue_timeout,
//	deadline, shed, store, draining         503 Service Unavailable
//	too_large                               413 Content Too Large, or for a cost
//	                                        that is none 400 Bad Request
//	blocked                                 403 Forbidden
//	canceled                                499, see [StatusClientClosed]
//	anything else, nil                      503
//
// 429 tells a caller that it asks too much, 503 that the service cannot carry
// more, whoever asks. Both may be retried. 400, 413 and 403 may not: the same request
// is refused again.
func Status(rej *weir.Rejection) int {
	if rej == nil {
		return http.StatusServiceUnavailable
	}
	switch rej.Reason {
	case weir.ReasonQuota, weir.ReasonThrottled:
		return http.StatusTooManyRequests
	case weir.ReasonTooLarge:
		if noCost(rej) {
			return http.StatusBadRequest
		}
		return http.StatusRequestEntityTooLarge
	case weir.ReasonBlocked:
		return http.StatusForbidden
	case weir.ReasonCanceled:
		return StatusClientClosed
	}
	return http.StatusServiceUnavailable
}

// noCost reports whether work was refused because its cost is none.
func noCost(rej *weir.Rejection) bool { return rej.Reason == weir.ReasonTooLarge && rej.Value < 0 }

// WriteRejection answers r with the refusal rej: the status of [Status],
// Retry-After where coming back can help, and a problem document (RFC 9457) of
// at most 2 KB. Nothing of the request is repeated in it, and nothing of
// rej.Cause. A HEAD request gets the headers alone.
//
// Retry-After is in whole seconds, rounded up. For overload (503) up to half as
// much again, and at least a second, is added at random, so that refused clients
// do not come back all at once; but what is added never takes it beyond
// [MaxRetryAfter]. It is never less than the exact time, which the document has in
// milliseconds:
//
//	{"type":"https://pkg.go.dev/github.com/weir-go/weir#ReasonQueueFull",
//	 "title":"The wait room is full","status":503,
//	 "gate":"api","reason":"queue_full","value":256,"limit":256,"remaining":0,
//	 "retryable":true,"retry_after_ms":1250}
//
// rule stands there if the gate has one, window if several limits of it hold together
// (1 is the first), and signal if one decided: the name of
// the reading that binds the limit, such as "cpu_throttling". Numbers that are not finite are null;
// retry_after_ms is left out where nobody can tell. A retryable refusal without
// a time gets a Retry-After of one second, plus the random part.
//
// The body of a refused request is not waited for: an HTTP/1 connection with
// more than a few kilobytes still to come is closed after the answer.
func WriteRejection(w http.ResponseWriter, r *http.Request, rej *weir.Rejection) {
	writeRejection(w, r, rej, rand.Float64)
}

func writeRejection(w http.ResponseWriter, r *http.Request, rej *weir.Rejection, random func() float64) {
	if rej == nil {
		rej = &weir.Rejection{Retryable: true}
	}
	status := Status(rej)
	buf := problemBuffers.Get().(*[]byte)
	defer problemBuffers.Put(buf)
	*buf = appendProblem((*buf)[:0], status, rej)

	h := w.Header()
	for _, name := range bodyHeaders {
		h.Del(name)
	}
	h["Content-Type"] = problemType
	h["Cache-Control"] = noStore
	h["X-Content-Type-Options"] = noSniff
	if seconds, ok := retryAfter(rej, status, random); ok {
		h.Set("Retry-After", strconv.FormatInt(seconds, 10))
	} else {
		h.Del("Retry-After")
	}
	leaveBody(w, r)
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		// The client may have gone; there is nobody left to tell.
		_, _ = w.Write(*buf)
	}
}

// MaxRetryAfter is the longest Retry-After that the random part of [WriteRejection]
// leads to. Overload is over, or another matter, by then.
const MaxRetryAfter = 30 * time.Second

// bodyHeaders may have been set by an outer handler for the body it expected.
var bodyHeaders = [...]string{"Content-Length", "Content-Encoding", "Etag", "Last-Modified", "Trailer"}

// Header values that all refusals share. Nobody writes to the elements of a
// header's values; adding to them copies.
var (
	problemType = []string{"application/problem+json"}
	noStore     = []string{"no-store"}
	noSniff     = []string{"nosniff"}
)

var problemBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 512); return &b }}

// retryAfter returns the seconds of the Retry-After header, or false where
// coming back cannot help.
func retryAfter(rej *weir.Rejection, status int, random func() float64) (int64, bool) {
	d := rej.RetryAfter
	if d <= 0 {
		if !rej.Retryable {
			return 0, false
		}
		d = time.Second
	}
	seconds := int64(d / time.Second)
	if d%time.Second != 0 {
		seconds++
	}
	if status == http.StatusServiceUnavailable {
		spread := min(max(1, seconds/2), int64(MaxRetryAfter/time.Second)-seconds)
		seconds += max(0, min(int64(random()*float64(spread+1)), spread))
	}
	return seconds, true
}

// smallBody is how much of an unread body the server may read to keep an
// HTTP/1 connection: what usually came with the headers.
const smallBody = 4 << 10

// drainTime bounds the time that reading it may take.
const drainTime = time.Second

// leaveBody keeps net/http from reading up to 256 KB of the refused request's
// body before it sends the answer.
func leaveBody(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor != 1 || r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return // HTTP/2 resets the stream after the answer
	}
	if b, ok := r.Body.(*bufferedBody); ok && b.complete {
		return
	}
	if r.ContentLength < 0 || r.ContentLength > smallBody {
		w.Header().Set("Connection", "close")
	}
	// A writer without deadlines is not a server's connection: nothing to bound.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainTime))
}
