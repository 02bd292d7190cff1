package weirhttp

import (
	"encoding/base64"
	"math"
	"net/http"
	"strconv"
	"time"
)

// RateLimitPolicy is a quota in the field RateLimit-Policy. It is the same for every client, however much is
// left.
type RateLimitPolicy struct {
	// Name is the policy's name. The field knows printable ASCII only; other bytes,
	// and percent signs, are escaped as in URLs. At most 128 bytes are sent.
	Name string
	// Quota is how much there is for each Window, in whole units, rounded down. The
	// field has Window in whole seconds, so it is rounded up; 0 is left out.
	Quota  float64
	Window time.Duration
	// Unit is what is counted, a name from the field's registry: "requests",
	// "content-bytes" or "concurrent-requests". Empty means requests.
	Unit string
	// Key, if any, names the bucket, for a client with several accounts under one policy. It is sent to the
	// client, so it must not contain a secret.
	Key []byte
}

// RateLimit is the rest of a quota, in the field RateLimit.
type RateLimit struct {
	// Name and Key are the Name and Key of the policy.
	Name string
	Key  []byte
	// Remaining is how much is left until Reset, in whole units, rounded down; 0 for a
	// debt.
	Remaining float64
	// Reset is sent in whole seconds, rounded up. It is left out if it is 0 or
	// never.
	Reset time.Duration
}

// BucketPolicy describes a token bucket that gets rate tokens a second and has room for burst. The field cannot
// express a burst. So the quota is a full bucket, and the window is the time to fill it. For example, 10 a
// second with a burst of 20 is 20 in 2 s. If the bucket fills in less than a second, the quota is the tokens of
// one second.
func BucketPolicy(name string, rate, burst float64) RateLimitPolicy {
	p := RateLimitPolicy{Name: name, Quota: burst}
	switch {
	case !(rate > 0):
		return p
	case burst < 1:
		p.Quota = 1
	case rate > burst:
		p.Quota = rate
	}
	p.Window = seconds(p.Quota / rate)
	return p
}

// seconds returns a duration. It rounds to the microsecond, so that the error of a float64 does not add a
// second.
func seconds(s float64) time.Duration {
	if s = math.Round(s * 1e6); s < math.MaxInt64/1e3 {
		return time.Duration(s) * time.Microsecond
	}
	return forever
}

// forever is a time that never comes.
const forever = time.Duration(math.MaxInt64)

// SetRateLimit sets the fields RateLimit-Policy and RateLimit, as of
// draft-ietf-httpapi-ratelimit-headers-11 (May 2026), in the syntax of RFC 9651:
//
//	RateLimit-Policy: "api/user=*";q=20;w=2
//	RateLimit: "api/user=*";r=7;t=2
//
// q is the quota, w its window in seconds, qu the unit and pk the key. r is how much is left, for the next t
// seconds.
//
// Without policies, or without limits, the field is removed. If several quotas apply, give all policies, and
// the limit with the least left.
func SetRateLimit(h http.Header, policies []RateLimitPolicy, limits ...RateLimit) {
	var buf [256]byte
	b := buf[:0]
	for i := range policies {
		b = policies[i].append(separate(b))
	}
	setField(h, "Ratelimit-Policy", b)
	b = b[:0]
	for i := range limits {
		b = limits[i].append(separate(b))
	}
	setField(h, "Ratelimit", b)
}

func setField(h http.Header, name string, value []byte) {
	if len(value) == 0 {
		delete(h, name)
		return
	}
	h[name] = []string{string(value)}
}

// SetLegacyRateLimit sets X-RateLimit-Limit, -Remaining and -Reset, for clients that know nothing else. Servers
// never agreed on their meaning. Here X-RateLimit-Reset is in seconds from now, as Envoy sends it, and not a
// time of day, as GitHub sends it.
func SetLegacyRateLimit(h http.Header, p RateLimitPolicy, l RateLimit) {
	h["X-Ratelimit-Limit"] = []string{strconv.FormatInt(whole(p.Quota), 10)}
	h["X-Ratelimit-Remaining"] = []string{strconv.FormatInt(whole(l.Remaining), 10)}
	reset, _ := wholeSeconds(l.Reset)
	h["X-Ratelimit-Reset"] = []string{strconv.FormatInt(reset, 10)}
}

func (p *RateLimitPolicy) append(b []byte) []byte {
	b = appendString(b, p.Name)
	b = strconv.AppendInt(append(b, ";q="...), whole(p.Quota), 10)
	if p.Unit != "" {
		b = appendString(append(b, ";qu="...), p.Unit)
	}
	if w, ok := wholeSeconds(p.Window); ok {
		b = strconv.AppendInt(append(b, ";w="...), w, 10)
	}
	return appendKey(b, p.Key)
}

func (l *RateLimit) append(b []byte) []byte {
	b = appendString(b, l.Name)
	b = strconv.AppendInt(append(b, ";r="...), whole(l.Remaining), 10)
	if t, ok := wholeSeconds(l.Reset); ok {
		b = strconv.AppendInt(append(b, ";t="...), t, 10)
	}
	return appendKey(b, l.Key)
}

func separate(b []byte) []byte {
	if len(b) == 0 {
		return b
	}
	return append(b, ", "...)
}

// mostInteger is the largest integer of structured fields: fifteen digits.
const mostInteger = 999_999_999_999_999

// whole rounds down to an integer of the fields. The error of a float64 does not subtract a
// unit.
func whole(f float64) int64 {
	if f = math.Floor(f + 1e-6); !(f > 0) {
		return 0
	}
	return int64(min(f, mostInteger))
}

// wholeSeconds rounds up. It reports false for 0 and for never.
func wholeSeconds(d time.Duration) (int64, bool) {
	if d <= 0 || d == forever {
		return 0, false
	}
	return roundUp(d, time.Second), true
}

// appendKey appends a key as a byte sequence.
func appendKey(b, key []byte) []byte {
	if len(key) == 0 {
		return b
	}
	return append(base64.StdEncoding.AppendEncode(append(b, ";pk=:"...), key), ':')
}

// longestName bounds a name in a field, in bytes as they are sent.
const longestName = 128

// appendString appends a structured field's string.
func appendString(b []byte, s string) []byte {
	const digits = "0123456789ABCDEF"
	b = append(b, '"')
	for i, begin := 0, len(b); i < len(s) && len(b)-begin <= longestName-3; i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c > '~' || c == '%':
			b = append(b, '%', digits[c>>4], digits[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}
