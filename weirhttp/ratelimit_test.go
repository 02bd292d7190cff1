package weirhttp

import (
	"math"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestRateLimitFields(t *testing.T) {
	const name = "api/user=*"
	tests := []struct {
		what     string
		policies []RateLimitPolicy
		limits   []RateLimit
		policy   string
		limit    string
	}{
		{"nothing", nil, nil, "", ""},
		{
			"a bucket", []RateLimitPolicy{BucketPolicy(name, 10, 20)},
			[]RateLimit{{Name: name, Remaining: 7.9, Reset: 1210 * time.Millisecond}},
			`"api/user=*";q=20;w=2`, `"api/user=*";r=7;t=2`,
		},
		{
			"two windows, one of which speaks",
			[]RateLimitPolicy{BucketPolicy("a", 10, 10), BucketPolicy("b", 1000./3600, 1000)},
			[]RateLimit{{Name: "b", Remaining: 3, Reset: time.Hour}},
			`"a";q=10;w=1, "b";q=1000;w=3600`, `"b";r=3;t=3600`,
		},
		{
			"units and keys", []RateLimitPolicy{{Name: "bytes", Quota: 65535, Unit: "content-bytes", Window: 10 * time.Second, Key: []byte("acme")}},
			[]RateLimit{{Name: "bytes", Key: []byte("acme"), Remaining: 300, Reset: 1}},
			`"bytes";q=65535;qu="content-bytes";w=10;pk=:YWNtZQ==:`, `"bytes";r=300;t=1;pk=:YWNtZQ==:`,
		},
		{
			"a debt that is never paid", []RateLimitPolicy{{Name: "x", Quota: 5}},
			[]RateLimit{{Name: "x", Remaining: -12.5, Reset: forever}}, `"x";q=5`, `"x";r=0`,
		},
		{
			"beyond what a field can say", []RateLimitPolicy{{Name: "x", Quota: 1e300, Window: forever - 1}},
			[]RateLimit{{Name: "x", Remaining: math.Inf(1), Reset: -1}, {Name: "y", Remaining: math.NaN()}},
			`"x";q=999999999999999;w=9223372037`, `"x";r=999999999999999, "y";r=0`,
		},
		{
			"names that bite", []RateLimitPolicy{{Name: "a\"b\\c\r\nX: y%é\x00", Quota: 1}}, nil,
			`"a\"b\\c%0D%0AX: y%25%C3%A9%00";q=1`, "",
		},
		{"a full bucket", nil, []RateLimit{{Name: "x", Remaining: 2.9999999999}}, "", `"x";r=3`},
	}
	for _, tt := range tests {
		h := http.Header{"Ratelimit": {"old"}, "Ratelimit-Policy": {"old"}}
		SetRateLimit(h, tt.policies, tt.limits...)
		if got := h.Get("RateLimit-Policy"); got != tt.policy {
			t.Errorf("%s: RateLimit-Policy %s, want %s", tt.what, got, tt.policy)
		}
		if got := h.Get("RateLimit"); got != tt.limit {
			t.Errorf("%s: RateLimit %s, want %s", tt.what, got, tt.limit)
		}
	}
}

func TestBucketPolicy(t *testing.T) {
	tests := []struct {
		rate, burst float64
		want        string
	}{
		{10, 10, `"b";q=10;w=1`},
		{10, 15, `"b";q=15;w=2`},   // in no less time than that
		{100, 10, `"b";q=100;w=1`}, // 10 at once, and yet 100 a second
		{0.5, 1, `"b";q=1;w=2`},
		{0.5, 0.5, `"b";q=1;w=2`}, // nobody is told of half a request
		{5000. / 86400, 5000, `"b";q=5000;w=86400`},
		{1. / 3, 1, `"b";q=1;w=3`},
		{1e-9, 1, `"b";q=1;w=1000000000`},
		{1e15, 1e15, `"b";q=999999999999999;w=1`},
		{0, 3, `"b";q=3`},
		{math.NaN(), 3, `"b";q=3`},
		{1e-300, 3, `"b";q=3`},
	}
	for _, tt := range tests {
		h := http.Header{}
		SetRateLimit(h, []RateLimitPolicy{BucketPolicy("b", tt.rate, tt.burst)})
		if got := h.Get("RateLimit-Policy"); got != tt.want {
			t.Errorf("%v a second, burst %v: %s, want %s", tt.rate, tt.burst, got, tt.want)
		}
	}
}

func TestLongNamesInFields(t *testing.T) {
	for _, name := range []string{strings.Repeat("a", 10_000), strings.Repeat("\xff", 10_000), strings.Repeat(`"`, 10_000)} {
		got := string(appendString(nil, name))
		if len(got) > longestName+2 || len(got) < longestName-2 || strings.HasSuffix(strings.TrimSuffix(got, `"`), `%`) {
			t.Errorf("%.10s...: %d bytes: %s", name, len(got), got)
		}
	}
}

func TestLegacyFields(t *testing.T) {
	h := http.Header{}
	SetLegacyRateLimit(h, BucketPolicy("x", 10, 20), RateLimit{Remaining: -3, Reset: 1001 * time.Millisecond})
	for name, want := range map[string]string{"X-RateLimit-Limit": "20", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "2"} {
		if got := h.Values(name); len(got) != 1 || got[0] != want {
			t.Errorf("%s: %q, want %s", name, got, want)
		}
	}
}

// For all names and numbers, the fields are a list of strings with parameters, as defined by RFC 9651.
func FuzzRateLimitFields(f *testing.F) {
	f.Add("api/user=*", 10., 20., 3.5, int64(time.Second), []byte("k"))
	f.Add("\xff\"\\\r\n", math.Inf(1), -1., math.NaN(), int64(-1), []byte{})
	f.Fuzz(func(t *testing.T, name string, rate, burst, left float64, reset int64, key []byte) {
		p := BucketPolicy(name, rate, burst)
		p.Key = key
		l := RateLimit{Name: name, Remaining: left, Reset: time.Duration(reset), Key: key}
		h := http.Header{}
		SetRateLimit(h, []RateLimitPolicy{p, p}, l, l)
		for field, required := range map[string]string{"RateLimit-Policy": "q", "RateLimit": "r"} {
			items, err := parseItems(h.Get(field))
			if err != "" || len(items) != 2 {
				t.Fatalf("%s: %s: %s", field, h.Get(field), err)
			}
			if _, ok := items[0][required]; !ok {
				t.Fatalf("%s without %s: %s", field, required, h.Get(field))
			}
		}
	})
}

// parseItems reads a list of strings with parameters, more strictly than the RFC demands. fault is empty if
// there is no fault.
func parseItems(s string) (items []map[string]string, fault string) {
	for {
		end := stringEnd(s)
		if end < 0 {
			return nil, "no string at " + s
		}
		item := map[string]string{}
		for s = s[end:]; strings.HasPrefix(s, ";"); {
			name, rest, ok := strings.Cut(s[1:], "=")
			if !ok || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz") != "" {
				return nil, "no parameter at " + s
			}
			n := valueEnd(rest)
			if n <= 0 {
				return nil, "no value at " + rest
			}
			item[name], s = rest[:n], rest[n:]
		}
		items = append(items, item)
		if s == "" {
			return items, ""
		}
		if !strings.HasPrefix(s, ", ") {
			return nil, "no comma at " + s
		}
		s = s[2:]
	}
}

func stringEnd(s string) int {
	if !strings.HasPrefix(s, `"`) {
		return -1
	}
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return i + 1
		case c == '\\':
			if i++; i == len(s) || s[i] != '"' && s[i] != '\\' {
				return -1
			}
		case c < ' ' || c > '~':
			return -1
		}
	}
	return -1
}

func valueEnd(s string) int {
	if strings.HasPrefix(s, ":") {
		return strings.IndexByte(s[1:], ':') + 2
	}
	digits := len(s) - len(strings.TrimLeft(s, "0123456789"))
	if digits > 15 {
		return -1
	}
	return digits
}
