package policy

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/fault"
)

// grpcTimeout is the header of gRPC over HTTP/2. Its form is fixed: at most eight digits and a unit.
const grpcTimeout = "Grpc-Timeout"

// timeoutHeaders are read where the spec does not say which.
var timeoutHeaders = []string{"grpc-timeout", "X-Request-Timeout"}

// longestTimeout is the longest timeout; a longer one counts as this one. It keeps sums of times in
// range.
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

// positive returns ns as a time, at most longestTimeout.
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

// Forward makes out, the header of a request that a proxy passes on, say what the
// policy has decided about in, the request as it came. w is the work of in, and
// arrived when it came.
//
// Of the headers that identities are read from, tenant, user and client are passed
// on if the peer is trusted and does not contradict itself, and taken out
// otherwise; priority says what the work has, in the word that brought it or else
// by its name. Addresses that stand in for a user are told to nobody: they are no
// proof of who somebody is.
//
// Of the deadlines that the request and the route bring, the time that is left of
// the earliest is written into each header that brought one. If none did and the
// route has a Timeout, it is written into grpc-timeout for requests of gRPC, and
// into the first other header of [DeadlineSpec] for the rest. Values that were not
// understood go on as they came.
func (p *Policy) Forward(out http.Header, in *http.Request, w *weir.Work, arrived time.Time) {
	p.identity.forward(out, in, w)
	p.forwardAdmissions(out, in, w)
	p.ForwardDeadline(out, in, w, arrived)
}

func (id *identity) forward(out http.Header, in *http.Request, w *weir.Work) {
	trusted := id.trustsPeer(in)
	for _, s := range [3]source{id.tenant, id.user, id.client} {
		if s.kind != headerSource {
			continue
		}
		delete(out, s.key)
		if values := in.Header[s.key]; trusted && single(values) != "" {
			out[s.key] = values[:1:1]
		}
	}
	if s := id.priority; s.kind == headerSource {
		values := in.Header[s.key]
		if p, ok := id.parseClass(single(values)); ok && trusted && p == w.Priority {
			out[s.key] = values[:1:1]
		} else {
			out[s.key] = []string{w.Priority.String()}
		}
	}
}

// ForwardDeadline is the part of [Policy.Forward] that depends on the time, for a
// request that is sent again.
func (p *Policy) ForwardDeadline(out http.Header, in *http.Request, w *weir.Work, arrived time.Time) {
	if len(p.timeouts) == 0 {
		return
	}
	sent, found, _ := timeoutOf(p.timeouts, in)
	if !found && w.Deadline.IsZero() {
		return
	}
	now := p.time()
	left := longestTimeout
	if !w.Deadline.IsZero() {
		left = w.Deadline.Sub(now)
	}
	if found {
		left = min(left, sent-now.Sub(arrived))
	}
	left = max(left, time.Millisecond)
	if found {
		for _, h := range p.timeouts {
			if _, value, _ := h.sent(in); value != "" {
				out[h.key] = []string{h.format(left, value)}
			}
		}
		return
	}
	if h := p.timeoutFor(in); h != nil && len(in.Header[h.key]) == 0 {
		out[h.key] = []string{h.format(left, "")}
	}
}

// timeoutFor returns the header that tells an upstream of a deadline which the request did not
// bring, nil if there is none for its kind.
func (p *Policy) timeoutFor(in *http.Request) *timeoutHeader {
	grpc := strings.HasPrefix(in.Header.Get("Content-Type"), "application/grpc")
	for i := range p.timeouts {
		if h := &p.timeouts[i]; (h.key == grpcTimeout) == grpc {
			return h
		}
	}
	return nil
}

// forwardAdmissions tells the next server how often the operation has been admitted,
// this time included.
func (p *Policy) forwardAdmissions(out http.Header, in *http.Request, w *weir.Work) {
	if p.admissions == "" {
		return
	}
	n, _ := p.admissionsOf(in, p.Trusted(in))
	if rt := p.byName[w.Op]; rt != nil && len(rt.gates) > 0 {
		n++
	}
	delete(out, p.admissions)
	if n > 0 {
		out[p.admissions] = []string{strconv.FormatInt(n, 10)}
	}
}
