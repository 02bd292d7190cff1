// Package tracing makes a span of OpenTelemetry for each request, and sends spans to a collector.
// Requests never wait for that: spans go into a bounded queue, and what does not fit is dropped. A
// collector that is away costs the spans and nothing else.
package tracing

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/weir-go/weir/gateway/internal/accesslog"
	"github.com/weir-go/weir/gateway/internal/config"
)

// HeadersVariable is the environment variable with headers for the collector, such as a token:
// name=value,name=value. It is the one that all exporters of OpenTelemetry read.
const HeadersVariable = "OTEL_EXPORTER_OTLP_HEADERS"

// Counts is what all tracers of a gateway have made and sent. It is safe for concurrent use.
type Counts struct{ spans, sent, lost atomic.Uint64 }

// Snapshot is what was counted up to one moment. The numbers never fall.
type Snapshot struct {
	// Spans have ended. Of these, Sent have reached the collector, and Lost have not because of an
	// error. The others wait to be sent, or were dropped because too many waited.
	Spans, Sent, Lost uint64
}

// Snapshot returns what was counted so far.
func (c *Counts) Snapshot() Snapshot {
	return Snapshot{Spans: c.spans.Load(), Sent: c.sent.Load(), Lost: c.lost.Load()}
}

// Options is what a Tracer needs beside its settings.
type Options struct {
	Version string
	Counts  *Counts
	// Failed is called when spans were lost, with the collector and the error.
	Failed func(endpoint string, err error)
}

// Tracer makes spans. It is safe for concurrent use. A nil Tracer makes none.
type Tracer struct {
	cfg      config.Tracing
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	counts   *Counts
	abort    context.CancelFunc
	once     sync.Once
}

const (
	// mostWaiting bounds the spans that wait to be sent.
	mostWaiting = 4096
	// batch is how many spans are sent together, and sendEvery how long they wait for that.
	batch     = 512
	sendEvery = 2 * time.Second
	// exportTimeout bounds the time that a collector may take for a batch.
	exportTimeout = 10 * time.Second
)

// Open returns the tracer that cfg asks for, nil for none. It connects to nothing yet. prev goes on
// if it has the same settings; otherwise the caller closes it when no request needs it any more.
func Open(cfg config.Tracing, prev *Tracer, o Options) (*Tracer, error) {
	switch {
	case !cfg.Enabled():
		return nil, nil
	case prev != nil && prev.cfg == cfg:
		return prev, nil
	}
	headers, err := parseHeaders(os.Getenv(HeadersVariable))
	if err != nil {
		return nil, err
	}
	about, err := resource.New(context.Background(), resource.WithFromEnv(), resource.WithAttributes(
		attribute.String("service.name", cfg.ServiceName), attribute.String("service.version", o.Version)))
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES cannot be read; write name=value,name=value: %w", err)
	}
	ctx, abort := context.WithCancel(context.Background())
	provider := sdk.NewTracerProvider(
		sdk.WithSampler(sdk.AlwaysSample()), // Start has decided before
		sdk.WithResource(about),
		sdk.WithRawSpanLimits(sdk.SpanLimits{AttributeValueLengthLimit: longestText, AttributeCountLimit: 64, EventCountLimit: 8, LinkCountLimit: 1}),
		sdk.WithBatcher(newExporter(ctx, cfg.URL(), headers, o),
			sdk.WithMaxQueueSize(mostWaiting), sdk.WithMaxExportBatchSize(batch), sdk.WithBatchTimeout(sendEvery), sdk.WithExportTimeout(exportTimeout)),
	)
	return &Tracer{
		cfg: cfg, provider: provider, tracer: provider.Tracer("github.com/weir-go/weir/gateway"), counts: o.Counts, abort: abort,
	}, nil
}

// longestText bounds what a span has of a text that a client chose.
const longestText = 2048

// parseHeaders reads name=value,name=value, where values may be escaped as in URLs.
func parseHeaders(text string) (http.Header, error) {
	h := make(http.Header)
	for part := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		name, value, ok := strings.Cut(part, "=")
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if name = strings.TrimSpace(name); !ok || name == "" || err != nil {
			return nil, fmt.Errorf("%s cannot be read: write name=value,name=value, with %%2C for a comma in a value", HeadersVariable)
		}
		h.Add(name, value)
	}
	return h, nil
}

// Close sends the spans that wait, until ctx ends. Later spans are dropped. A nil Tracer has nothing
// to close.
func (t *Tracer) Close(ctx context.Context) {
	if t == nil {
		return
	}
	t.once.Do(func() {
		_ = t.provider.Shutdown(ctx) // what could not be sent is counted
		t.abort()
	})
}

// Span is the span of one request. A nil Span does nothing.
type Span struct {
	tracer *Tracer
	span   trace.Span
	// Parent is the header traceparent for the upstream. Fresh reports that the request brought no
	// trace that it could go on with.
	Parent string
	Fresh  bool
}

var propagator propagation.TraceContext

// Start begins the span of a request that arrived at the given time, or returns nil for a request
// without one. A trusted peer decides by the flag of its trace whether there is a span. Everybody
// else's requests have one with the probability in the settings, so that no client can fill a
// collector.
func (t *Tracer) Start(r *http.Request, trusted bool, arrived time.Time) *Span {
	if t == nil {
		return nil
	}
	ctx := context.Background()
	if len(r.Header["Traceparent"]) == 1 { // several are no parent, says W3C Trace Context
		ctx = propagator.Extract(ctx, propagation.HeaderCarrier(r.Header))
	}
	before := trace.SpanContextFromContext(ctx)
	if before.IsValid() && trusted {
		if !before.IsSampled() {
			return nil
		}
	} else if t.cfg.Sample < 1 && rand.Float64() >= t.cfg.Sample {
		return nil
	}
	ctx, span := t.tracer.Start(ctx, method(r.Method), trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(arrived))
	carrier := propagation.MapCarrier{}
	propagator.Inject(ctx, carrier)
	return &Span{tracer: t, span: span, Parent: carrier["traceparent"], Fresh: !before.IsValid()}
}

// method is the method as OpenTelemetry has it: others than the known ones are one.
func method(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodConnect, http.MethodOptions, http.MethodTrace:
		return m
	}
	return "_OTHER"
}

// End ends the span of a request, with what the access log says of it. The names of the attributes are
// OpenTelemetry's own where there are such, and begin with weir where there are not. decided reports
// that gates were asked: they had decided after e.Waited.
func (s *Span) End(r *http.Request, e *accesslog.Entry, decided bool) {
	if s == nil {
		return
	}
	name := method(e.Method)
	attrs := make([]attribute.KeyValue, 0, 24)
	text := func(key, value string) {
		if value != "" {
			attrs = append(attrs, attribute.String(key, strings.ToValidUTF8(value, "\ufffd")))
		}
	}
	text("http.request.method", name)
	if name != e.Method {
		text("http.request.method_original", e.Method)
	}
	text("url.scheme", map[bool]string{true: "https", false: "http"}[r.TLS != nil])
	text("url.path", e.Path)
	text("server.address", e.Host)
	text("client.address", e.Client)
	text("network.protocol.version", strings.TrimSuffix(strings.TrimPrefix(e.Proto, "HTTP/"), ".0"))
	text("http.route", e.Route)
	text("weir.by", e.By)
	text("weir.class", e.Class)
	text("weir.upstream", e.Upstream)
	text("weir.target", e.Target)
	text("weir.gate", e.Gate)
	text("weir.rule", e.Rule)
	text("weir.reason", e.Reason)
	attrs = append(attrs,
		attribute.Int("http.response.status_code", e.Status),
		attribute.Int64("http.response.body.size", e.Bytes),
		attribute.Float64("weir.waited", e.Waited.Seconds()),
	)
	if e.Status >= 500 {
		text("error.type", strconv.Itoa(e.Status))
		s.span.SetStatus(codes.Error, e.Reason)
	}
	if e.Route != "" {
		s.span.SetName(name + " " + e.Route)
	}
	if decided {
		s.span.AddEvent(map[bool]string{true: "refused", false: "admitted"}[e.Gate != ""], trace.WithTimestamp(e.Time.Add(e.Waited)))
	}
	s.span.SetAttributes(attrs...)
	s.tracer.counts.spans.Add(1)
	s.span.End(trace.WithTimestamp(e.Time.Add(e.Duration)))
}
