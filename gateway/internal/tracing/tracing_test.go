package tracing

import (
	"context"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	traces "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/weir-go/weir/gateway/internal/accesslog"
	"github.com/weir-go/weir/gateway/internal/config"
)

// receiver is a collector: what it was sent, and how it answers.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	spans    []*traces.Span
	resource []*common.KeyValue
	header   http.Header
	refused  int64
	status   int
}

func newReceiver(t *testing.T) *receiver {
	c := &receiver{status: http.StatusOK}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

func (c *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var req collector.ExportTraceServiceRequest
	body, err := io.ReadAll(r.Body)
	if err != nil || proto.Unmarshal(body, &req) != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.header = r.Header.Clone()
	for _, rs := range req.ResourceSpans {
		c.resource = rs.Resource.Attributes
		for _, ss := range rs.ScopeSpans {
			c.spans = append(c.spans, ss.Spans...)
		}
	}
	reply, err := proto.Marshal(&collector.ExportTraceServiceResponse{
		PartialSuccess: &collector.ExportTracePartialSuccess{RejectedSpans: c.refused, ErrorMessage: "too many"},
	})
	if err != nil {
		panic(err)
	}
	w.WriteHeader(c.status)
	_, _ = w.Write(reply)
}

// attrs are attributes as text.
func attrs(all []*common.KeyValue) map[string]string {
	m := make(map[string]string, len(all))
	for _, a := range all {
		_, text, _ := strings.Cut(a.Value.String(), ":")
		m[a.Key] = strings.Trim(text, `"`)
	}
	return m
}

func open(t *testing.T, endpoint string, sample float64, o Options) *Tracer {
	t.Helper()
	if o.Counts == nil {
		o.Counts = new(Counts)
	}
	tr, err := Open(config.Tracing{Endpoint: endpoint, Sample: sample, ServiceName: "edge"}, nil, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { finish(t, tr) })
	return tr
}

func finish(t *testing.T, tr *Tracer) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tr.Close(ctx)
	if ctx.Err() != nil {
		t.Error("the tracer does not close")
	}
}

const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func asked(traceparent string) *http.Request {
	r := httptest.NewRequest("BREW", "http://shop.example/v1/pots?x=1", nil)
	if traceparent != "" {
		r.Header["Traceparent"] = strings.Split(traceparent, "|")
		r.Header.Set("Tracestate", "vendor=1")
	}
	return r
}

// A span says what became of the request, and is part of the client's trace.
func TestSpan(t *testing.T) {
	t.Setenv(HeadersVariable, "X-Token=a%2Cb, x-team = ops")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test,service.name=other")
	to := newReceiver(t)
	counts := new(Counts)
	tr := open(t, to.URL, 1, Options{Version: "v1", Counts: counts})
	r := asked(parent)
	arrived := time.Now()
	span := tr.Start(r, true, arrived)
	span.End(r, &accesslog.Entry{
		Time: arrived, Duration: 3 * time.Second, Waited: 2 * time.Second, Client: "203.0.113.9", Method: "BREW", Host: "shop.example",
		Path: "/v1/pots", Query: "x=1", Proto: "HTTP/2.0", Status: 503, Bytes: 12, By: "gate", Route: "/v1/", Class: "high",
		Gate: "api", Reason: "queue_timeout",
	}, true)
	finish(t, tr)

	if len(to.spans) != 1 {
		t.Fatalf("%d spans, want 1", len(to.spans))
	}
	s := to.spans[0]
	if got := "00-" + hex.EncodeToString(s.TraceId) + "-" + hex.EncodeToString(s.SpanId) + "-01"; got != span.Parent || span.Fresh ||
		hex.EncodeToString(s.TraceId) != parent[3:35] || hex.EncodeToString(s.ParentSpanId) != parent[36:52] || s.TraceState != "vendor=1" || s.Flags != 0x301 {
		t.Errorf("the span is %s below %x, flags %#x, state %q; the upstream was told %s", got, s.ParentSpanId, s.Flags, s.TraceState, span.Parent)
	}
	if s.Name != "_OTHER /v1/" || s.Kind != traces.Span_SPAN_KIND_SERVER || s.EndTimeUnixNano-s.StartTimeUnixNano != 3e9 ||
		s.Status.GetCode() != traces.Status_STATUS_CODE_ERROR || s.Status.GetMessage() != "queue_timeout" {
		t.Errorf("the span is %v", s)
	}
	if len(s.Events) != 1 || s.Events[0].Name != "refused" || s.Events[0].TimeUnixNano-s.StartTimeUnixNano != 2e9 {
		t.Errorf("events %v, want the refusal after two seconds", s.Events)
	}
	got := attrs(s.Attributes)
	for key, want := range map[string]string{
		"http.request.method": "_OTHER", "http.request.method_original": "BREW", "url.scheme": "http", "url.path": "/v1/pots",
		"server.address": "shop.example", "client.address": "203.0.113.9", "network.protocol.version": "2", "http.route": "/v1/",
		"http.response.status_code": "503", "http.response.body.size": "12", "error.type": "503",
		"weir.by": "gate", "weir.class": "high", "weir.gate": "api", "weir.reason": "queue_timeout", "weir.waited": "2",
	} {
		if got[key] != want {
			t.Errorf("%s is %q, want %q", key, got[key], want)
		}
		delete(got, key)
	}
	if len(got) > 0 {
		t.Errorf("further attributes %v", got)
	}
	if about := attrs(to.resource); about["service.name"] != "edge" || about["service.version"] != "v1" || about["deployment.environment"] != "test" {
		t.Errorf("the resource is %v", about)
	}
	if to.header.Get("X-Token") != "a,b" || to.header.Get("X-Team") != "ops" || to.header.Get("User-Agent") != "weir/v1" {
		t.Errorf("sent the headers %v", to.header)
	}
	if c := counts.Snapshot(); c != (Snapshot{Spans: 1, Sent: 1}) {
		t.Errorf("counted %+v", c)
	}
}

// Only a trusted peer decides whether its requests have spans.
func TestWhoDecides(t *testing.T) {
	unsampled := parent[:len(parent)-1] + "0"
	for _, tt := range []struct {
		name        string
		traceparent string
		trusted     bool
		sample      float64
		want, fresh bool
	}{
		{"trusted, sampled", parent, true, 0, true, false},
		{"trusted, not sampled", unsampled, true, 1, false, false},
		{"trusted, without a trace", "", true, 1, true, true},
		{"trusted, without a trace, none wanted", "", true, 0, false, false},
		{"trusted, a faulty trace", parent + "-x", true, 1, true, true},
		{"a stranger, sampled, none wanted", parent, false, 0, false, false},
		{"a stranger, not sampled", unsampled, false, 1, true, false},
		{"a stranger, without a trace", "", false, 1, true, true},
		{"trusted, two traces", parent + "|" + parent, true, 1, true, true},
	} {
		tr := open(t, "http://127.0.0.1:1", tt.sample, Options{})
		s := tr.Start(asked(tt.traceparent), tt.trusted, time.Now())
		if (s != nil) != tt.want || s != nil && (s.Fresh != tt.fresh || !tt.fresh && s.Parent[3:35] != parent[3:35]) {
			t.Errorf("%s: %+v; want a span %v, of a new trace %v", tt.name, s, tt.want, tt.fresh)
		}
	}
	if (*Tracer)(nil).Start(asked(parent), true, time.Now()) != nil {
		t.Error("no tracer began a span")
	}
	(*Span)(nil).End(nil, nil, false)
}

// end makes n spans and closes the tracer.
func end(t *testing.T, tr *Tracer, n int) {
	t.Helper()
	for range n {
		r := asked("")
		tr.Start(r, false, time.Now()).End(r, &accesslog.Entry{Time: time.Now(), Method: "GET"}, false)
	}
}

// A collector that is away, refuses, or never answers costs spans. They are counted, and said.
func TestCollectorInTrouble(t *testing.T) {
	gone := newReceiver(t)
	gone.Close()
	broken, picky := newReceiver(t), newReceiver(t)
	broken.status, picky.refused = http.StatusServiceUnavailable, 1
	for _, tt := range []struct {
		name, endpoint, says string
		lost                 uint64
	}{
		{"gone", gone.URL, "connect", 3},
		{"broken", broken.URL, "503 Service Unavailable", 3},
		{"another path", picky.URL + "/other", "400 Bad Request", 3},
		{"picky", picky.URL + "/", "refused 1 of 3 spans", 1},
	} {
		var said []string
		counts := new(Counts)
		tr := open(t, tt.endpoint, 1, Options{Counts: counts, Failed: func(_ string, err error) { said = append(said, err.Error()) }})
		end(t, tr, 3)
		finish(t, tr)
		if c := counts.Snapshot(); c != (Snapshot{Spans: 3, Sent: 3 - tt.lost, Lost: tt.lost}) || len(said) != 1 || !strings.Contains(said[0], tt.says) {
			t.Errorf("%s: counted %+v, said %q; want %d lost because of %q", tt.name, c, said, tt.lost, tt.says)
		}
	}
}

// While a collector takes connections and never answers, spans are dropped and nobody waits. Close
// waits no longer than it is told to.
func TestCollectorHangs(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	counts := new(Counts)
	tr := open(t, "http://"+ln.Addr().String(), 1, Options{Counts: counts})
	end(t, tr, 3*mostWaiting)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	tr.Close(ctx)
	if c := counts.Snapshot(); c.Spans != 3*mostWaiting || c.Sent != 0 {
		t.Errorf("counted %+v", c)
	}
}

// Settings that are the same go on with the tracer; off is none.
func TestOpen(t *testing.T) {
	tr := open(t, "http://127.0.0.1:1", 1, Options{})
	if again, err := Open(tr.cfg, tr, Options{}); again != tr || err != nil {
		t.Errorf("another tracer, %v", err)
	}
	if none, err := Open(config.Tracing{}, tr, Options{}); none != nil || err != nil {
		t.Errorf("%v, %v; want none", none, err)
	}
	t.Setenv(HeadersVariable, "no header")
	if _, err := Open(config.Tracing{Endpoint: "http://127.0.0.1:1"}, nil, Options{}); err == nil || !strings.Contains(err.Error(), HeadersVariable) {
		t.Errorf("%v, want the variable named", err)
	}
}

// BenchmarkSpan is what a span costs its request.
func BenchmarkSpan(b *testing.B) {
	to := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	defer to.Close()
	tr, err := Open(config.Tracing{Endpoint: to.URL, Sample: 1}, nil, Options{Counts: new(Counts)})
	if err != nil {
		b.Fatal(err)
	}
	defer tr.Close(context.Background())
	r := asked(parent)
	e := accesslog.Entry{Time: time.Now(), Method: "GET", Path: "/v1/pots", Route: "/v1/", Status: 200, Client: "203.0.113.9", By: "upstream", Class: "normal", Upstream: "app", Target: "http://127.0.0.1:3000"}
	b.ReportAllocs()
	for b.Loop() {
		tr.Start(r, true, e.Time).End(r, &e, true)
	}
}

// The headers for the collector may have a secret. Another host does not get them by a redirect.
func TestCollectorRedirects(t *testing.T) {
	asked := make(chan struct{}, 10)
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{} }))
	defer other.Close()
	collector := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer collector.Close()
	t.Setenv(HeadersVariable, "x-api-key=secret")
	counts, failed := new(Counts), make(chan error, 10)
	tr, err := Open(config.Tracing{Endpoint: collector.URL, Sample: 1, ServiceName: "weir"}, nil,
		Options{Counts: counts, Failed: func(_ string, err error) { failed <- err }})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("GET", "/", nil)
	tr.Start(r, false, time.Now()).End(r, &accesslog.Entry{Time: time.Now()}, true)
	tr.Close(t.Context())
	if err := <-failed; !strings.Contains(err.Error(), "307") {
		t.Errorf("%v, want the status of the redirect named", err)
	}
	if len(asked) != 0 || counts.lost.Load() != 1 {
		t.Errorf("%d requests to another host, %d spans lost; want 0 and 1", len(asked), counts.lost.Load())
	}
}
