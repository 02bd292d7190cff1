package weirhttp

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

func lowest() float64  { return 0 }
func highest() float64 { return math.Nextafter(1, 0) }

func TestStatusAndRetryAfter(t *testing.T) {
	const s = time.Second
	tests := []struct {
		reason    weir.Reason
		after     time.Duration
		retryable bool
		status    int
		low, high string // Retry-After at the ends of the random range
	}{
		{weir.ReasonQuota, 1500 * time.Millisecond, true, 429, "2", "2"},
		{weir.ReasonQuota, 0, true, 429, "1", "1"},
		{weir.ReasonThrottled, 3 * s, true, 503, "3", "4"},
		{weir.ReasonThrottled, 0, false, 503, "", ""},
		{weir.ReasonLimit, 1, true, 503, "1", "2"},
		{weir.ReasonLimit, 0, true, 503, "1", "2"},
		{weir.ReasonQueueFull, 10 * s, true, 503, "10", "15"},
		{weir.ReasonQueueTimeout, 10*s + 1, true, 503, "11", "16"},
		{weir.ReasonDeadline, 0, false, 503, "", ""},
		{weir.ReasonShed, 2 * s, true, 503, "2", "3"},
		{weir.ReasonStore, s, true, 503, "1", "2"},
		{weir.ReasonDraining, 0, true, 503, "1", "2"},
		{weir.ReasonTooLarge, 0, false, 413, "", ""},
		{weir.ReasonBlocked, 0, false, 403, "", ""},
		{weir.ReasonBlocked, time.Minute, true, 403, "60", "60"}, // blocked for a while
		{weir.ReasonCanceled, 0, false, 499, "", ""},
		{weir.Reason(200), -5 * s, true, 503, "1", "2"},
		{weir.ReasonQueueFull, math.MaxInt64, true, 503, "9223372037", "9223372037"},
		{weir.ReasonQueueFull, 19 * s, true, 503, "19", "28"},
		{weir.ReasonQueueFull, 21 * s, true, 503, "21", "30"}, // not 31
		{weir.ReasonQueueFull, 29*s + 1, true, 503, "30", "30"},
		{weir.ReasonQueueFull, 30 * s, true, 503, "30", "30"},     // not 45
		{weir.ReasonDraining, time.Minute, true, 503, "60", "60"}, // not sooner than it says
		{weir.ReasonQuota, time.Hour, true, 429, "3600", "3600"},
	}
	for _, tt := range tests {
		rej := &weir.Rejection{Gate: "g", Reason: tt.reason, RetryAfter: tt.after, Retryable: tt.retryable}
		for random, want := range map[*func() float64]string{ptr(lowest): tt.low, ptr(highest): tt.high} {
			w := httptest.NewRecorder()
			writeRejection(w, httptest.NewRequest("GET", "/", nil), rej, told{}, *random)
			if w.Code != tt.status {
				t.Errorf("%v: status %d, want %d", tt.reason, w.Code, tt.status)
			}
			if got := w.Header().Get("Retry-After"); got != want {
				t.Errorf("%v after %v: Retry-After %q, want %q", tt.reason, tt.after, got, want)
			}
		}
	}
	if got := Status(nil); got != 503 {
		t.Errorf("Status(nil) = %d", got)
	}
}

func ptr(f func() float64) *func() float64 { return &f }

func TestEveryReasonHasAProblem(t *testing.T) {
	for _, r := range weir.Reasons() {
		if _, ok := problemKinds[r]; !ok {
			t.Errorf("reason %v has no title", r)
		}
	}
}

func TestProblemBodies(t *testing.T) {
	const base = `{"type":"https://pkg.go.dev/github.com/weir-go/weir#`
	tests := []struct {
		name string
		rej  *weir.Rejection
		want string
	}{
		{
			"queue full",
			&weir.Rejection{Gate: "api", Reason: weir.ReasonQueueFull, Value: 256, Limit: 256, RetryAfter: 1250 * time.Millisecond, Retryable: true},
			base + `ReasonQueueFull","title":"The wait room is full","status":503,"gate":"api","reason":"queue_full","value":256,"limit":256,"remaining":0,"retryable":true,"retry_after_ms":1250}`,
		},
		{
			"quota with a rule",
			&weir.Rejection{Gate: "writes", Rule: "user=alice", Reason: weir.ReasonQuota, Value: -0.5, Limit: 100, Remaining: 1e-9, RetryAfter: 1, Retryable: true},
			base + `ReasonQuota","title":"The quota is used up","status":429,"gate":"writes","rule":"user=alice","reason":"quota","value":-0.5,"limit":100,"remaining":0,"retryable":true,"retry_after_ms":1}`,
		},
		{
			"tokens come back all the time",
			&weir.Rejection{Gate: "writes", Reason: weir.ReasonQuota, Value: 19.830115999999999, Limit: 20, Remaining: 0.16988400000000023, RetryAfter: 1, Retryable: true},
			base + `ReasonQuota","title":"The quota is used up","status":429,"gate":"writes","reason":"quota","value":19.831,"limit":20,"remaining":0.169,"retryable":true,"retry_after_ms":1}`,
		},
		{
			"almost a token",
			&weir.Rejection{Gate: "writes", Reason: weir.ReasonQuota, Value: 0.0001, Limit: 1, Remaining: 0.9999, RetryAfter: 1, Retryable: true},
			base + `ReasonQuota","title":"The quota is used up","status":429,"gate":"writes","reason":"quota","value":0.001,"limit":1,"remaining":0.999,"retryable":true,"retry_after_ms":1}`,
		},
		{
			"the second window of a rule",
			&weir.Rejection{Gate: "api", Rule: "user=*", Bucket: "api/user=mallory", Window: 2, Reason: weir.ReasonQuota, Value: 1000, Limit: 1000, Retryable: true},
			base + `ReasonQuota","title":"The quota is used up","status":429,"gate":"api","rule":"user=*","window":2,"reason":"quota","value":1000,"limit":1000,"remaining":0,"retryable":true}`,
		},
		{
			"bound by a signal",
			&weir.Rejection{Gate: "api", Reason: weir.ReasonLimit, Value: 8, Limit: 8, Signal: "cpu", Retryable: true},
			base + `ReasonLimit","title":"Every slot is taken","status":503,"gate":"api","reason":"limit","signal":"cpu","value":8,"limit":8,"remaining":0,"retryable":true}`,
		},
		{
			"retries are common",
			&weir.Rejection{Gate: "api", Reason: weir.ReasonLimit, Value: 8, Limit: 8, Cause: errors.New("a secret")},
			base + `ReasonLimit","title":"Every slot is taken","detail":"overloaded, do not retry","status":503,"gate":"api","reason":"limit","value":8,"limit":8,"remaining":0,"retryable":false}`,
		},
		{
			"never",
			&weir.Rejection{Gate: "api", Reason: weir.ReasonTooLarge, Value: 11, Limit: 10},
			base + `ReasonTooLarge","title":"The request costs more than can ever be granted","status":413,"gate":"api","reason":"too_large","value":11,"limit":10,"remaining":0,"retryable":false}`,
		},
		{
			"a cost that is none",
			&weir.Rejection{Gate: "api", Reason: weir.ReasonTooLarge, Value: -1},
			base + `ReasonTooLarge","title":"The cost of the request cannot be read","status":400,"gate":"api","reason":"too_large","value":-1,"limit":0,"remaining":0,"retryable":false}`,
		},
		{
			"not finite, and a name that bites",
			&weir.Rejection{Gate: "a\"b\\c\r\n<x>\xff", Reason: weir.Reason(77), Value: math.NaN(), Limit: math.Inf(1), Remaining: math.Inf(-1)},
			base + `Reason","title":"The request was refused","status":503,"gate":"a\"b\\c\u000d\u000a\u003cx\u003e\ufffd","reason":"reason(77)","value":null,"limit":null,"remaining":null,"retryable":false}`,
		},
		{
			"no rejection at all",
			nil,
			base + `Reason","title":"The request was refused","status":503,"gate":"","reason":"none","value":0,"limit":0,"remaining":0,"retryable":true}`,
		},
	}
	for _, tt := range tests {
		w := httptest.NewRecorder()
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Content-Length", "99")
		WriteRejectionTo(w, httptest.NewRequest("GET", "/", nil), tt.rej, nil)
		if got := w.Body.String(); got != tt.want+"\n" {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, got, tt.want)
		}
		h := w.Header()
		if h.Get("Content-Type") != "application/problem+json" || h.Get("Content-Encoding") != "" ||
			h.Get("Content-Length") != "" {
			t.Errorf("%s: headers %v", tt.name, h)
		}
	}
}

// A refusal must not be cached, and browsers must not guess its type. A time that an outer handler has set must
// not stay in it.
func TestRefusalHeaders(t *testing.T) {
	w := httptest.NewRecorder()
	h := w.Header()
	h.Set("Cache-Control", "max-age=3600")
	h.Set("Retry-After", "9")
	WriteRejection(w, httptest.NewRequest("GET", "/", nil), &weir.Rejection{Reason: weir.ReasonBlocked})
	if got := h.Values("Cache-Control"); len(got) != 1 || got[0] != "no-store" {
		t.Errorf("Cache-Control %q", got)
	}
	if got := h.Get("X-Content-Type-Options"); got != "nosniff" {
		t.Errorf("X-Content-Type-Options %q", got)
	}
	if got, ok := h["Retry-After"]; ok {
		t.Errorf("Retry-After %q where coming back cannot help", got)
	}
}

func TestRejectionRepeatsNothingPrivate(t *testing.T) {
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "/"+strings.Repeat("secret", 1000), nil)
	WriteRejection(w, r, &weir.Rejection{
		Gate: strings.Repeat("é", 5000), Rule: strings.Repeat("\x00", 5000), Window: math.MaxInt, Signal: strings.Repeat("&", 5000),
		Reason: weir.ReasonTooLarge, Value: -1.0 / 3 * 1e20, Limit: -1.0 / 3 * 1e20, Remaining: -1.0 / 3e5, RetryAfter: math.MaxInt64, Cause: errors.New("dial tcp secret:6379"),
	})
	if strings.Contains(w.Body.String(), "secret") {
		t.Errorf("body repeats the request or the cause: %s", w.Body)
	}
	if n := w.Body.Len(); n > 2<<10 {
		t.Errorf("body has %d bytes", n)
	}
}

func TestHeadGetsNoBody(t *testing.T) {
	w := httptest.NewRecorder()
	WriteRejection(w, httptest.NewRequest("HEAD", "/", nil), &weir.Rejection{Reason: weir.ReasonLimit})
	if w.Body.Len() != 0 || w.Code != 503 {
		t.Errorf("status %d, body %q", w.Code, w.Body)
	}
}

// FuzzRejection: whatever a Rejection holds, the answer is valid HTTP, valid
// JSON and small.
func FuzzRejection(f *testing.F) {
	f.Add("api", "user=alice", uint8(1), 1.0, 2.0, 3.0, int64(time.Second), true, 0.5)
	f.Add("a\r\nX-Evil: 1", "\x00\xff\u2028", uint8(3), math.NaN(), math.Inf(1), math.Inf(-1), int64(math.MaxInt64), false, 0.999)
	f.Add(strings.Repeat("é", 64)+"x", strings.Repeat("\xe2\x82", 100), uint8(255), math.Copysign(0, -1), 5e-324, math.MaxFloat64, int64(math.MinInt64), true, 0.0)
	f.Fuzz(func(t *testing.T, gate, rule string, reason uint8, value, limit, remaining float64, after int64, retryable bool, random float64) {
		if !(random >= 0 && random < 1) {
			random = 0
		}
		rej := &weir.Rejection{
			Gate: gate, Rule: rule, Reason: weir.Reason(reason), Value: value, Limit: limit,
			Remaining: remaining, RetryAfter: time.Duration(after), Retryable: retryable,
			Cause: errors.New(gate), Signal: rule,
		}
		w := httptest.NewRecorder()
		writeRejection(w, httptest.NewRequest("POST", "/", strings.NewReader("x")), rej, told{}, func() float64 { return random })
		checkProblem(t, w, rej)
		checkHeaders(t, w.Header(), rej)
	})
}

func checkProblem(t *testing.T, w *httptest.ResponseRecorder, rej *weir.Rejection) {
	t.Helper()
	if w.Body.Len() > 2<<10 {
		t.Errorf("body of %d bytes", w.Body.Len())
	}
	var doc struct {
		Type, Title, Gate, Rule, Reason string
		Status                          int
		Value, Limit, Remaining         *float64
		RetryAfterMs                    int64 `json:"retry_after_ms"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
		t.Fatalf("%v in %q", err, w.Body)
	}
	if doc.Status != w.Code || doc.Reason != rej.Reason.String() || doc.Type == "" || doc.Title == "" {
		t.Errorf("%+v for %+v", doc, rej)
	}
	if math.IsNaN(rej.Value) || math.IsInf(rej.Value, 0) {
		if doc.Value != nil {
			t.Errorf("value %v for %v", *doc.Value, rej.Value)
		}
	} else if doc.Value == nil || math.Abs(*doc.Value-rej.Value) > 0.001+1e-12*math.Abs(rej.Value) {
		t.Errorf("value %v for %v", doc.Value, rej.Value)
	}
	if finite := !math.IsNaN(rej.Remaining) && !math.IsInf(rej.Remaining, 0); finite != (doc.Remaining != nil) {
		t.Errorf("remaining %v for %v", doc.Remaining, rej.Remaining)
	}
	if exact := time.Duration(doc.RetryAfterMs) * time.Millisecond; rej.RetryAfter > 0 && rej.RetryAfter < math.MaxInt64/2 && exact < rej.RetryAfter {
		t.Errorf("retry after %v is less than %v", exact, rej.RetryAfter)
	}
}

func checkHeaders(t *testing.T, h http.Header, rej *weir.Rejection) {
	t.Helper()
	for name, values := range h {
		for _, v := range values {
			if strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Errorf("header %s: %q", name, v)
			}
		}
	}
	after := h.Get("Retry-After")
	if can := rej.RetryAfter > 0 || rej.Retryable; can != (after != "") {
		t.Errorf("Retry-After %q for %+v", after, rej)
	}
	if after == "" {
		return
	}
	seconds, err := strconv.ParseInt(after, 10, 64)
	if err != nil || seconds < 1 || float64(seconds) < rej.RetryAfter.Seconds() {
		t.Errorf("Retry-After %q for %v", after, rej.RetryAfter)
	}
}
