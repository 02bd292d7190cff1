package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/weirhttp"
)

// What is told of a quota, to the second.
func TestQuotaState(t *testing.T) {
	var (
		ten   = quota.Window{Rate: 10, Burst: 20}
		hour  = quota.Per(1000, time.Hour)
		month = quota.PerCalendar(5000, quota.Month, nil)
		now   = time.Date(2026, 2, 10, 0, 0, 0, 0, time.UTC)
	)
	refusal := func(window int, left float64, wait time.Duration) *weir.Rejection {
		return &weir.Rejection{Gate: "api", Rule: "r", Window: window, Reason: weir.ReasonQuota, Remaining: left, RetryAfter: wait}
	}
	tests := []struct {
		name   string
		limits []quota.Window
		result quota.Decision
		rej    *weir.Rejection
		policy string
		limit  string
	}{
		{"some left", []quota.Window{ten}, quota.Decision{OK: true, Remaining: 7}, nil, `"api/r";q=20;w=2`, `"api/r";r=7;t=2`},
		{"all left", []quota.Window{ten}, quota.Decision{OK: true, Remaining: 20}, nil, `"api/r";q=20;w=2`, `"api/r";r=20`},
		{"less than one left", []quota.Window{hour}, quota.Decision{Remaining: 0.5, Wait: 1800 * time.Millisecond}, nil, `"api/r";q=1000;w=3600`, `"api/r";r=0;t=2`},
		{"less than the next costs", []quota.Window{hour}, quota.Decision{Remaining: 900, Wait: time.Hour}, nil, `"api/r";q=1000;w=3600`, `"api/r";r=900;t=360`},
		{"a debt", []quota.Window{ten}, quota.Decision{Remaining: -5, Wait: 501 * time.Millisecond}, nil, `"api/r";q=20;w=2`, `"api/r";r=0;t=1`},
		{
			"the second window is nearest to its end", []quota.Window{ten, hour, month}, quota.Decision{OK: true, Window: 1, Remaining: 100}, nil,
			`"api/r";q=20;w=2, "api/r#2";q=1000;w=3600, "api/r#3";q=5000;w=2419200`, `"api/r#2";r=100;t=3240`,
		},
		{
			"a month", []quota.Window{month}, quota.Decision{OK: true, Remaining: 4999}, nil,
			`"api/r";q=5000;w=2419200`, `"api/r";r=4999;t=1641600`, // 19 days
		},
		{
			"what it was refused for, whatever is there since", []quota.Window{ten, hour}, quota.Decision{OK: true, Remaining: 3}, refusal(2, 0.2, 2880*time.Millisecond),
			`"api/r";q=20;w=2, "api/r#2";q=1000;w=3600`, `"api/r#2";r=0;t=3`,
		},
		{
			"two windows of one burst", []quota.Window{{Rate: 10, Burst: 20}, {Rate: 1, Burst: 20}, {Rate: 5, Burst: 20}}, quota.Decision{}, refusal(3, 0, time.Second),
			`"api/r";q=20;w=2, "api/r#2";q=20;w=20, "api/r#3";q=20;w=4`, `"api/r#3";r=0;t=1`,
		},
		{"a debt that is never paid", []quota.Window{ten}, quota.Decision{}, refusal(0, -1e15, 0), `"api/r";q=20;w=2`, `"api/r";r=0`},
		{"never enough", []quota.Window{ten}, quota.Decision{Remaining: 0.5, Wait: math.MaxInt64}, nil, `"api/r";q=20;w=2`, `"api/r";r=0`},
	}
	for _, tt := range tests {
		said := passed("api", &quota.Answer{Rule: "r", Windows: tt.limits, Decision: tt.result}, now)
		if tt.rej != nil {
			said = refused(tt.rej, tt.limits, now)
		}
		h := http.Header{}
		weirhttp.SetRateLimit(h, said.policies, said.left)
		if got := h.Get("RateLimit-Policy"); got != tt.policy {
			t.Errorf("%s: RateLimit-Policy %s, want %s", tt.name, got, tt.policy)
		}
		if got := h.Get("RateLimit"); got != tt.limit {
			t.Errorf("%s: RateLimit %s, want %s", tt.name, got, tt.limit)
		}
	}
}

// A rule that has fewer windows since it refused has nothing to tell.
func TestQuotaStateOfAChangedRule(t *testing.T) {
	rej := &weir.Rejection{Gate: "api", Rule: "r", Window: 2, Reason: weir.ReasonQuota}
	if said := refused(rej, []quota.Window{quota.Per(1, time.Second)}, time.Now()); said != nil {
		t.Errorf("%+v, want nothing", said)
	}
}

// What it costs to tell in an answer what is left of a quota.
func BenchmarkQuotaHeaders(b *testing.B) {
	p, err := policy.Compile(policy.Spec{
		Gates: map[string]policy.GateSpec{"api": {Quota: &policy.QuotaSpec{
			QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "10/s"}, By: []string{"user"},
		}}},
		Routes: []policy.RouteSpec{{Match: []string{"/"}, Gates: []string{"api"}}},
	}, policy.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	qs, h, w := NewQuotas(p.Route("/")), http.Header{}, weir.Work{User: "alice"}
	b.ReportAllocs()
	for b.Loop() {
		clear(h)
		qs.SetHeaders(h, w, nil)
	}
	if h.Get("RateLimit") == "" {
		b.Error("nothing is told")
	}
}

// Only who is still there is told what is wrong with a body.
func TestClientLeft(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	for _, tt := range []struct {
		request context.Context
		err     error
		want    bool
	}{
		{t.Context(), errors.New("malformed chunked encoding"), false},
		{t.Context(), os.ErrDeadlineExceeded, false},
		{t.Context(), errors.New("client disconnected"), true},
		{ended, io.ErrUnexpectedEOF, true},
		{ended, fmt.Errorf("%w", os.ErrDeadlineExceeded), false}, // net/http ends the context over HTTP/1
	} {
		if got := clientLeft(tt.request, tt.err); got != tt.want {
			t.Errorf("%v, ended %v: %v", tt.err, tt.request.Err() != nil, got)
		}
	}
}

// What the rate limit filter of an Envoy behind refuses says nothing of its service.
func TestRefusalOfAnEnvoyBehind(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Envoy-Ratelimited", "true")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	u := makeUpstream(t, config.Upstream{Targets: []string{server.URL}}, io.Discard, nil)
	defer u.ReplacedBy(nil)
	gate, w, r := newSampled(), httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
	weirhttp.NewGuard().Serve(w, r, gate, weir.Work{}, func(w http.ResponseWriter, r *http.Request, q *weirhttp.Request) {
		u.Serve(w, r, &Call{Request: q})
	})
	if gate.outcome != weir.NoSample {
		t.Errorf("%d is sampled as %v", w.Code, gate.outcome)
	}
}
