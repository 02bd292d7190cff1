package server

import (
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	traces "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

const (
	traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	tracestate  = "vendor=1,other=2"
)

// traced sends a request that is part of a trace.
func traced(t *testing.T, url string) *http.Response {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Traceparent", traceparent)
	req.Header.Set("Tracestate", tracestate)
	res, _ := do(t, req)
	return res
}

// echo tells the client what trace the upstream was told.
func echo(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Seen", r.Header.Get("Traceparent")+" "+r.Header.Get("Tracestate"))
}

// Without tracing, and for strangers, the trace is passed on as it came.
func TestTraceContextIsPassedOn(t *testing.T) {
	for _, trusted := range []string{"127.0.0.0/8", "10.0.0.0/8"} {
		cfg := baseConfig(t, upstreamOf(t, echo).URL)
		cfg.Identity.Trusted = []string{trusted}
		g := start(t, cfg, Options{})
		if got := traced(t, g.url).Header.Get("Seen"); got != traceparent+" "+tracestate {
			t.Errorf("trusted %s: the upstream saw %q", trusted, got)
		}
	}
}

// A span that goes on with no trace of the client has nothing of that trace's state.
func TestFreshTraceHasNoState(t *testing.T) {
	cfg := baseConfig(t, upstreamOf(t, echo).URL)
	cfg.Tracing = config.Tracing{Endpoint: upstreamOf(t, func(http.ResponseWriter, *http.Request) {}).URL, Sample: 1, ServiceName: "weir"}
	g := start(t, cfg, Options{})
	req, err := http.NewRequest(http.MethodGet, g.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Traceparent", "00-"+strings.Repeat("0", 32)+traceparent[35:])
	req.Header.Set("Tracestate", tracestate)
	res, _ := do(t, req)
	if id, state, _ := strings.Cut(res.Header.Get("Seen"), " "); traceID([]string{id}) == "" || state != "" {
		t.Errorf("the upstream saw the trace %q with the state %q, want a fresh one without", id, state)
	}
}

// A collector gets a span for each request, with what was decided. The upstream is told the span.
func TestSpans(t *testing.T) {
	var mu sync.Mutex
	var spans []*traces.Span
	to := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req collector.ExportTraceServiceRequest
		if body, err := io.ReadAll(r.Body); err != nil || proto.Unmarshal(body, &req) != nil {
			t.Errorf("%q is no OTLP: %v", body, err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, rs := range req.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				spans = append(spans, ss.Spans...)
			}
		}
	}))
	defer to.Close()
	cfg, file := logged(t, upstreamOf(t, echo).URL)
	cfg.Tracing = config.Tracing{Endpoint: to.URL, Sample: 1, ServiceName: "weir"}
	cfg.Routes = append(cfg.Routes, config.Route{
		RouteSpec: policy.RouteSpec{Match: []string{"/never"}, Gates: []string{"never"}}, Upstream: gateName,
	})
	cfg.Gates["never"] = policy.GateSpec{Quota: &policy.QuotaSpec{Rules: []policy.QuotaRuleSpec{{Rule: quota.Rule{Blocked: true}}}}}
	g := start(t, cfg, Options{})
	seen := traced(t, g.url).Header.Get("Seen")
	traced(t, g.url+"/never")
	g.idle()
	lines := linesOf(t, file, 2)
	if err := g.stop(); err != nil {
		t.Fatal(err)
	}
	if len(spans) != 2 {
		t.Fatalf("%d spans, want 2", len(spans))
	}
	for i, want := range []string{"weir.by:upstream", "weir.gate:never"} {
		s := spans[i]
		var all []string
		for _, a := range s.Attributes {
			all = append(all, a.Key+":"+a.Value.GetStringValue())
		}
		if hex.EncodeToString(s.TraceId) != traceparent[3:35] || hex.EncodeToString(s.ParentSpanId) != traceparent[36:52] || !strings.Contains(strings.Join(all, " "), want) {
			t.Errorf("span %d is %v, want %s in it", i, s, want)
		}
		if lines[i].TraceID != traceparent[3:35] {
			t.Errorf("line %d is of trace %q", i, lines[i].TraceID)
		}
	}
	if want := "00-" + traceparent[3:35] + "-" + hex.EncodeToString(spans[0].SpanId) + "-01 " + tracestate; seen != want {
		t.Errorf("the upstream saw %q, want %q", seen, want)
	}
	if c := g.Tracing(); c.Sent != 2 || c.Lost != 0 {
		t.Errorf("counted %+v", c)
	}
}

// A collector that never answers holds up no request, no reload and no shutdown for long.
func TestSpansToNobody(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	cfg := baseConfig(t, upstreamOf(t, echo).URL)
	cfg.Tracing = config.Tracing{Endpoint: "http://" + ln.Addr().String(), Sample: 1}
	next := *cfg
	next.Tracing.Sample = 0.5
	g := start(t, cfg, Options{Load: func() (*config.Config, error) { return &next, nil }})
	for range 20 {
		if res := traced(t, g.url); res.StatusCode != http.StatusOK {
			t.Fatal(res.Status)
		}
	}
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	traced(t, g.url)
	if err := g.stop(); err != nil {
		t.Error(err)
	}
	if c := g.Tracing(); c.Spans < 20 || c.Sent != 0 {
		t.Errorf("counted %+v", c)
	}
}
