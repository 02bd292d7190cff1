package policy

import (
	"github.com/weir-go/weir/internal/fault"

	"net/http"
	"strconv"
	"strings"
	"time"
)

// grpcTimeout is the one header of which the form is laid down: at most eight
// digits and a unit, as in the protocol of gRPC over HTTP/2.
const grpcTimeout = "Grpc-Timeout"

// timeoutHeaders are read where the spec does not say which.
var timeoutHeaders = []string{"grpc-timeout", "X-Request-Timeout"}

// longestTimeout is the longest timeout that a request can bring; a longer one is
// taken for it. It keeps sums of times in range.
const longestTimeout = 365 * 24 * time.Hour

// longestTimeoutText bounds what is parsed.
const longestTimeoutText = 32

// timeoutHeader is a header that timeouts are read from.
type timeoutHeader struct {
	key string
	// parse reads a value, and reports false for one that is to be ignored.
	parse func(string) (time.Duration, bool)
	// format writes the time left in the form of the value that was sent, empty
	// if none was.
	format func(left time.Duration, sent string) string
}

func newTimeoutHeader(name string) timeoutHeader {
	key := http.CanonicalHeaderKey(name)
	switch {
	case key == grpcTimeout:
		return timeoutHeader{key, parseGRPCTimeout, formatGRPCTimeout}
	case strings.HasSuffix(key, "-Ms"):
		return timeoutHeader{key, parseMillis, formatMillis}
	}
	return timeoutHeader{key, parseSeconds, formatSeconds}
}

// sent returns the shortest timeout that a request brings in the header, and the
// value that said so. bad counts the values that were not understood.
func (h timeoutHeader) sent(r *http.Request) (d time.Duration, value string, bad int) {
	for _, v := range r.Header[h.key] {
		v = strings.TrimSpace(v)
		t, ok := time.Duration(0), false
		if len(v) <= longestTimeoutText {
			t, ok = h.parse(v)
		}
		switch {
		case !ok:
			bad++
		case value == "" || t < d:
			d, value = t, v
		}
	}
	return d, value, bad
}

// timeoutOf returns the shortest timeout that a request brings, false if it brings
// none, and how many values were not understood.
func timeoutOf(headers []timeoutHeader, r *http.Request) (d time.Duration, found bool, bad int) {
	for _, h := range headers {
		t, value, n := h.sent(r)
		bad += n
		if value != "" && (!found || t < d) {
			d, found = t, true
		}
	}
	return d, found, bad
}

var grpcUnits = []struct {
	letter byte
	unit   time.Duration
}{
	{'n', time.Nanosecond}, {'u', time.Microsecond}, {'m', time.Millisecond},
	{'S', time.Second}, {'M', time.Minute}, {'H', time.Hour},
}

// parseGRPCTimeout reads up to eight digits and a unit. The grammar asks for a
// positive integer, but clients whose time is over send 0.
func parseGRPCTimeout(v string) (time.Duration, bool) {
	if len(v) < 2 || len(v) > 9 || strings.Trim(v[:len(v)-1], "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(v[:len(v)-1], 10, 64)
	if err != nil {
		return 0, false
	}
	for _, u := range grpcUnits {
		if u.letter == v[len(v)-1] {
			if n > int64(longestTimeout/u.unit) {
				return longestTimeout, true
			}
			return time.Duration(n) * u.unit, true
		}
	}
	return 0, false
}

// formatGRPCTimeout writes the time in the smallest unit that has room for it,
// rounded down.
func formatGRPCTimeout(left time.Duration, _ string) string {
	for _, u := range grpcUnits {
		if n := int64(left / u.unit); n < 1e8 {
			return strconv.FormatInt(n, 10) + string(u.letter)
		}
	}
	return "99999999H"
}

// parseSeconds reads a number of seconds, or a duration with units.
func parseSeconds(v string) (time.Duration, bool) {
	if isNumber(v) {
		f, err := strconv.ParseFloat(v, 64)
		return positive(f*float64(time.Second), err)
	}
	d, err := time.ParseDuration(v)
	return positive(float64(d), err)
}

// formatSeconds writes milliseconds, in seconds or with a unit as they came.
func formatSeconds(left time.Duration, sent string) string {
	ms := wholeMillis(left)
	if sent != "" && !isNumber(sent) {
		return strconv.FormatInt(ms, 10) + "ms"
	}
	return strconv.FormatFloat(float64(ms)/1000, 'f', -1, 64)
}

func parseMillis(v string) (time.Duration, bool) {
	if !isNumber(v) {
		return 0, false
	}
	f, err := strconv.ParseFloat(v, 64)
	return positive(f*float64(time.Millisecond), err)
}

func formatMillis(left time.Duration, _ string) string {
	return strconv.FormatInt(wholeMillis(left), 10)
}

// wholeMillis rounds down, but not to 0, which to many means no bound at all.
func wholeMillis(d time.Duration) int64 { return max(1, int64(d/time.Millisecond)) }

// isNumber reports whether v is a plain decimal number: no sign, exponent or
// digits of another base.
func isNumber(v string) bool {
	return v != "" && strings.Trim(v, "0123456789.") == ""
}

// positive returns a time of ns, at most longestTimeout.
func positive(ns float64, err error) (time.Duration, bool) {
	switch {
	case err != nil || !(ns >= 1):
		return 0, false
	case ns >= float64(longestTimeout):
		return longestTimeout, true
	}
	return time.Duration(ns), true
}

func (c *compiler) checkTimeouts() []timeoutHeader {
	names := c.spec.Deadline.Headers
	if names == nil {
		names = timeoutHeaders
	}
	at := fault.Path{"deadline", "headers"}
	var headers []timeoutHeader
	for i, name := range names {
		if !isToken(name) {
			c.Add(at.Index(i), strconv.Quote(name)+" is no header name", "write letters, digits and dashes, such as X-Request-Timeout")
			continue
		}
		h := newTimeoutHeader(name)
		for _, earlier := range headers {
			if earlier.key == h.key {
				c.Add(at.Index(i), strconv.Quote(name)+" is in the list already", "name each header once")
			}
		}
		headers = append(headers, h)
	}
	return headers
}
