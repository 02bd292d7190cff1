package weirhttp

import (
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/weir-go/weir"
)

// reasonDocs is where the type of a problem is explained: at the constant.
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
	weir.ReasonQueueTimeout: {"ReasonQueueTimeout", "No slot came free in time"},
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
func appendProblem(b []byte, status int, rej *weir.Rejection) []byte {
	kind, ok := problemKinds[rej.Reason]
	switch {
	case !ok:
		kind = unknownProblem
	case noCost(rej):
		kind.title = "The cost of the request cannot be read"
	}
	b = append(b, `{"type":"`+reasonDocs...)
	b = append(b, kind.constant...)
	b = append(b, `","title":"`...)
	b = append(b, kind.title...)
	b = append(b, `","status":`...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, `,"gate":`...)
	b = appendName(b, rej.Gate)
	if rej.Rule != "" {
		b = append(b, `,"rule":`...)
		b = appendName(b, rej.Rule)
	}
	if rej.Window > 0 {
		b = append(b, `,"window":`...)
		b = strconv.AppendInt(b, int64(rej.Window), 10)
	}
	b = append(b, `,"reason":"`...)
	b = append(b, rej.Reason.String()...)
	b = append(b, '"')
	if rej.Signal != "" {
		b = append(b, `,"signal":`...)
		b = appendName(b, rej.Signal)
	}
	b = append(b, `,"value":`...)
	b = appendNumber(b, 0-thousandths(-rej.Value))
	b = append(b, `,"limit":`...)
	b = appendNumber(b, rej.Limit)
	b = append(b, `,"remaining":`...)
	b = appendNumber(b, thousandths(rej.Remaining))
	b = append(b, `,"retryable":`...)
	b = strconv.AppendBool(b, rej.Retryable)
	if rej.RetryAfter > 0 {
		b = append(b, `,"retry_after_ms":`...)
		b = strconv.AppendInt(b, milliseconds(rej.RetryAfter), 10)
	}
	return append(b, '}', '\n')
}

// milliseconds rounds up: a client that comes back a fraction early is refused
// again.
func milliseconds(d time.Duration) int64 {
	ms := int64(d / time.Millisecond)
	if d%time.Millisecond != 0 {
		ms++
	}
	return ms
}

// thousandths rounds down, as what is left has to be: whoever is refused for want of a
// token has less than one left, in what is said too. What is used is rounded up, so that
// both still make the limit. More digits are those of the processor's arithmetic.
func thousandths(f float64) float64 {
	const most = 1e12 // there a float64 holds thousandths only just
	if !(math.Abs(f) < most) {
		return f
	}
	return math.Floor(f*1000+1e-6)/1000 + 0 // no minus zero
}

// appendNumber appends f, or null where JSON has no word for it.
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
func appendName(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	cut := len(s) > maxName
	if cut {
		s = s[:maxName]
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
