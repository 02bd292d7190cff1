package weirhttp

import (
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/attempt"
)

// StatusClientClosed is the status of a request whose client left while the request waited. Only access logs
// show it; nginx uses it, too.
const StatusClientClosed = 499

// Status returns the HTTP status code for a refusal:
//
//	quota                                   429 Too Many Requests
//	limit, queue_full, queue_timeout,
//	deadline, shed, throttled, store,
//	draining                                503 Service Unavailable
//	too_large                               413 Content Too Large, or 400 Bad
//	                                        Request if the cost cannot be read
//	blocked                                 403 Forbidden
//	canceled                                499, see [StatusClientClosed]
//	anything else, nil                      503
//
// 429 means that this caller asks too much, 503 that the service cannot serve more for anybody. If the throttle
// of a handler refuses a call to another service, the answer is 503, because the caller is not at fault. Both
// may be retried. 400, 413 and 403 may not: the same request is refused again.
func Status(rej *weir.Rejection) int {
	if rej == nil {
		return http.StatusServiceUnavailable
	}
	switch rej.Reason {
	case weir.ReasonQuota:
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

// noCost reports whether work was refused because its cost cannot be read.
func noCost(rej *weir.Rejection) bool { return rej.Reason == weir.ReasonTooLarge && rej.Value < 0 }

// WriteRejection answers r with the refusal rej. The answer has the status of [Status], and
// Retry-After if coming back can help. Its body is a problem document (RFC 9457) of at most 2 KB.
// It repeats nothing of the request and nothing of rej.Cause. A HEAD request gets the headers
// alone, and X-Weir-Retryable: false if coming back cannot help.
//
// Retry-After is in whole seconds, rounded up. For overload (503) a random time is added, so that
// refused clients do not come back all at once. It is at most half as much again, or a second if
// that is more. The random part never takes the time beyond 30 s. Retry-After is never less than
// the exact time, which the document has in milliseconds:
//
//	{"type":"https://pkg.go.dev/github.com/weir-go/weir#ReasonQueueFull",
//	 "title":"The wait room is full","status":503,
//	 "gate":"api","reason":"queue_full","value":256,"limit":256,"remaining":0,
//	 "retryable":true,"retry_after_ms":1250}
//
// There may be five more members. "detail" says "overloaded, do not retry" where a [throttle.Attempts] has made the
// refusal final, because retries are common. "rule" is the rule of the gate. If a rule has several windows, "window" is
// the number, from 1, of the window that refused. "signal" is what binds the limit, such as "cpu_throttling".
// "relayed" is true: a handler that writes a refusal may have begun its own work, so [Transport] repeats no POST.
// [Middleware] itself leaves it out, and so does [WriteRejectionTo] for what has not begun. Numbers that are not
// finite are null. Without an estimate, retry_after_ms is left out, and a
// retryable refusal has a Retry-After of one second plus the random part.
//
// The body of a refused request is not read. If more than a few kilobytes are still to come on
// HTTP/1, the connection is closed after the answer.
func WriteRejection(w http.ResponseWriter, r *http.Request, rej *weir.Rejection) {
	writeRejection(w, r, rej, told{relayed: true}, rand.Float64)
}

// WriteRejectionTo is [WriteRejection] for a front: a proxy, or a function of [WithRejection]. It says that nothing
// has begun, and then [Transport] repeats even a POST, unless a [Middleware] has admitted the request.
//
// work is for trusted clients; it is nil for all others. With it the document has three more members: the class
// and the tenant of the work, and the key of the bucket that refused. The tenant may be somebody else's name,
// and the class tells a stranger which class to claim.
func WriteRejectionTo(w http.ResponseWriter, r *http.Request, rej *weir.Rejection, work *weir.Work) {
	writeRejection(w, r, rej, told{work, begun(r)}, rand.Float64)
}

// told is what a document says in addition to the refusal.
type told struct {
	work    *weir.Work // nil for strangers
	relayed bool       // the handler's own work had begun
}

// begun reports whether a request has been admitted, so that only its handler can refuse it.
func begun(r *http.Request) bool { return FromContext(r.Context()) != nil }

func writeRejection(w http.ResponseWriter, r *http.Request, rej *weir.Rejection, more told, random func() float64) {
	if rej == nil {
		rej = &weir.Rejection{Retryable: true}
	}
	status := Status(rej)
	buf := problemBuffers.Get().(*[]byte)
	defer problemBuffers.Put(buf)
	*buf = appendProblem((*buf)[:0], status, rej, more)

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
	skipBody(w, r)
	if r.Method == http.MethodHead {
		if !rej.Retryable {
			h[retryableHeader] = notRetryable
		}
		w.WriteHeader(status)
		return
	}
	w.WriteHeader(status)
	// An error means that the client has gone.
	_, _ = w.Write(*buf)
}

// skipBody keeps net/http from reading up to 256 KB of the refused request's
// body before it sends the answer.
func skipBody(w http.ResponseWriter, r *http.Request) {
	if !onTheWire(r) {
		return
	}
	if isLong(r) {
		w.Header().Set("Connection", "close")
	}
	// A writer without deadlines is not a server's connection: nothing to bound.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainTime))
}

// onTheWire reports whether the server may have to read a body of r after the answer. HTTP/2 resets the stream instead.
func onTheWire(r *http.Request) bool {
	if r.ProtoMajor != 1 || r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return false
	}
	b, ok := r.Body.(*bufferedBody)
	return !ok || !b.complete
}

// isLong reports whether the body of r is too long, or may be, to read it for the sake of the connection.
func isLong(r *http.Request) bool { return r.ContentLength < 0 || r.ContentLength > smallBody }

// smallBody is how much of an unread body the server may read to keep an HTTP/1 connection. So much has usually
// arrived with the headers.
const smallBody = 4 << 10

// drainTime bounds the time for reading such a body.
const drainTime = time.Second

// maxRetryAfter is the longest Retry-After after the random part of [WriteRejection] is added. By then the
// overload is over, or needs another remedy.
const maxRetryAfter = 30 * time.Second

// bodyHeaders may have been set by an outer handler for the body it expected.
var bodyHeaders = [...]string{"Content-Length", "Content-Encoding", "Etag", "Last-Modified", "Trailer"}

// Header values that all refusals share. Nobody writes to the elements of a
// header's values; adding to them copies.
var (
	problemType = []string{"application/problem+json"}
	noStore     = []string{"no-store"}
	noSniff     = []string{"nosniff"}

	notRetryable = []string{"false"}
)

// retryableHeader says to a HEAD request what "retryable" says in the document.
const retryableHeader = "X-Weir-Retryable"

var problemBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 512); return &b }}

// retryAfter returns the seconds of the Retry-After header, or false if coming back cannot
// help.
func retryAfter(rej *weir.Rejection, status int, random func() float64) (int64, bool) {
	d := rej.RetryAfter
	if d <= 0 {
		if !rej.Retryable {
			return 0, false
		}
		d = time.Second
	}
	seconds := roundUp(d, time.Second)
	if status == http.StatusServiceUnavailable {
		spread := min(max(1, seconds/2), int64(maxRetryAfter/time.Second)-seconds)
		seconds += max(0, min(int64(random()*float64(spread+1)), spread))
	}
	return seconds, true
}

// reasonDocs is the address of the constants that explain the types of problems.
const reasonDocs = "https://pkg.go.dev/github.com/weir-go/weir#"

// maxName bounds the names in a document, in bytes. Gates, rules and signals have
// short names; a rule made from a key may not.
const maxName = 80

// problemKind is what a problem's type and title say.
type problemKind struct{ constant, title string }

var problemKinds = map[weir.Reason]problemKind{
	weir.ReasonQuota:        {"ReasonQuota", "The quota is used up"},
	weir.ReasonLimit:        {"ReasonLimit", "Every slot is taken"},
	weir.ReasonQueueFull:    {"ReasonQueueFull", "The wait room is full"},
	weir.ReasonQueueTimeout: {"ReasonQueueTimeout", "The wait for a slot is too long"},
	weir.ReasonDeadline:     {"ReasonDeadline", "The deadline cannot be met"},
	weir.ReasonShed:         {"ReasonShed", "Only more important work is served now"},
	weir.ReasonThrottled:    {"ReasonThrottled", "Throttled before it was sent"},
	weir.ReasonTooLarge:     {"ReasonTooLarge", "The request costs more than can ever be granted"},
	weir.ReasonBlocked:      {"ReasonBlocked", "A rule forbids the request"},
	weir.ReasonStore:        {"ReasonStore", "Admission cannot be decided now"},
	weir.ReasonDraining:     {"ReasonDraining", "The service is shutting down"},
	weir.ReasonCanceled:     {"ReasonCanceled", "The client stopped waiting"},
}

var unknownProblem = problemKind{"Reason", "The request was refused"}

// appendProblem appends the problem document of rej.
func appendProblem(b []byte, status int, rej *weir.Rejection, more told) []byte {
	kind, ok := problemKinds[rej.Reason]
	switch {
	case !ok:
		kind = unknownProblem
	case noCost(rej):
		kind.title = "The cost of the request cannot be read"
	}
	b = append(append(b, `{"type":"`+reasonDocs...), kind.constant...)
	b = append(append(b, `","title":"`...), kind.title...)
	if attempt.Final(rej) {
		b = append(append(b, `","detail":"`...), attempt.NoRetry...)
	}
	b = strconv.AppendInt(append(b, `","status":`...), int64(status), 10)
	b = appendName(append(b, `,"gate":`...), rej.Gate)
	if rej.Rule != "" {
		b = appendName(append(b, `,"rule":`...), rej.Rule)
	}
	if rej.Window > 0 {
		b = strconv.AppendInt(append(b, `,"window":`...), int64(rej.Window), 10)
	}
	b = append(append(b, `,"reason":"`...), rej.Reason.String()...)
	b = append(b, '"')
	if rej.Signal != "" {
		b = appendName(append(b, `,"signal":`...), rej.Signal)
	}
	b = appendNumber(append(b, `,"value":`...), 0-thousandths(-rej.Value))
	b = appendNumber(append(b, `,"limit":`...), rej.Limit)
	b = appendNumber(append(b, `,"remaining":`...), thousandths(rej.Remaining))
	b = strconv.AppendBool(append(b, `,"retryable":`...), rej.Retryable)
	if rej.RetryAfter > 0 {
		b = strconv.AppendInt(append(b, `,"retry_after_ms":`...), roundUp(rej.RetryAfter, time.Millisecond), 10)
	}
	if more.relayed {
		b = append(b, `,"relayed":true`...)
	}
	if work := more.work; work != nil {
		b = append(append(b, `,"class":"`...), work.Priority.String()...)
		b = append(b, '"')
		if work.Tenant != "" {
			b = appendText(append(b, `,"tenant":`...), work.Tenant, longestText)
		}
		if rej.Bucket != "" {
			b = appendText(append(b, `,"key":`...), rej.Bucket, longestText)
		}
	}
	return append(b, '}', '\n')
}

// roundUp returns d in whole units. A client that comes back a fraction early is refused again.
func roundUp(d, unit time.Duration) int64 {
	n := int64(d / unit)
	if d%unit != 0 {
		n++
	}
	return n
}

// thousandths rounds down what is left, so that a client that is refused because a token is missing never reads
// that one is left. The used part is rounded up, so that both still add up to the limit. Further digits are
// only floating-point error.
func thousandths(f float64) float64 {
	const most = 1e12 // up to here a float64 has thousandths
	if !(math.Abs(f) < most) {
		return f
	}
	return math.Floor(f*1000+1e-6)/1000 + 0 // no minus zero
}

// appendNumber appends f, or null if it is not finite.
func appendNumber(b []byte, f float64) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(b, "null"...)
	}
	format := byte('f')
	if abs := math.Abs(f); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	return strconv.AppendFloat(b, f, format, -1, 64)
}

// appendName appends s as a JSON string of bounded length.
func appendName(b []byte, s string) []byte { return appendText(b, s, maxName) }

// longestText bounds the names that only a trusted peer gets.
const longestText = 2 << 10

func appendText(b []byte, s string, longest int) []byte {
	const hex = "0123456789abcdef"
	cut := len(s) > longest
	if cut {
		s = s[:longest]
	}
	b = append(b, '"')
	for i := 0; i < len(s); {
		c, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case c == utf8.RuneError && size == 1:
			if !cut || len(s)-i >= utf8.UTFMax {
				b = append(b, `\ufffd`...)
			}
		case c == '"' || c == '\\':
			b = append(b, '\\', byte(c))
		case c < ' ' || c == '<' || c == '>' || c == '&' || c == 0x7f:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			b = append(b, s[i:i+size]...)
		}
		i += size
	}
	return append(b, '"')
}
