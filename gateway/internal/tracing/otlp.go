package tracing

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	resources "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	traces "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// exporter sends spans by OTLP over HTTP, in protobuf. The exporter that comes with the SDK does the
// same. It brings gRPC along, with which the binary would be larger than it may be.
type exporter struct {
	ctx     context.Context // ends when no more is sent
	url     string
	headers http.Header
	client  http.Client
	opts    Options
}

func newExporter(ctx context.Context, url string, headers http.Header, o Options) *exporter {
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true,
		MaxIdleConnsPerHost: 1, MaxConnsPerHost: 2, IdleConnTimeout: 90 * time.Second,
	}
	client := http.Client{Transport: transport, Timeout: exportTimeout, CheckRedirect: stay}
	return &exporter{ctx: ctx, url: url, headers: headers, client: client, opts: o}
}

// stay follows no redirect: the headers may have a secret, which is for this collector only.
func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// ExportSpans implements sdk.SpanExporter. It deals with its errors by itself: the SDK would write
// them to the standard error.
func (x *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	refused, err := x.send(ctx, spans)
	if err != nil {
		refused = len(spans)
	} else if refused = min(max(refused, 0), len(spans)); refused > 0 {
		err = fmt.Errorf("the collector refused %d of %d spans", refused, len(spans))
	}
	x.opts.Counts.sent.Add(uint64(len(spans) - refused))
	x.opts.Counts.lost.Add(uint64(refused))
	if err != nil && x.opts.Failed != nil {
		x.opts.Failed(x.url, err)
	}
	return nil
}

// Shutdown implements sdk.SpanExporter.
func (x *exporter) Shutdown(context.Context) error {
	x.client.CloseIdleConnections()
	return nil
}

// longestReply bounds what is read of a collector's answer.
const longestReply = 64 << 10

// send sends spans, and returns how many of them the collector refused.
func (x *exporter) send(ctx context.Context, spans []sdk.ReadOnlySpan) (refused int, err error) {
	body, err := proto.Marshal(request(spans))
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(x.ctx, cancel)()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, x.url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header = x.headers.Clone()
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("User-Agent", "weir/"+x.opts.Version)
	res, err := x.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	reply, err := io.ReadAll(io.LimitReader(res.Body, longestReply))
	if res.StatusCode/100 != 2 {
		return 0, fmt.Errorf("the collector answered %s", res.Status)
	}
	var parsed collector.ExportTraceServiceResponse
	if err != nil || proto.Unmarshal(reply, &parsed) != nil {
		return 0, nil // it has taken the spans, whatever else it says
	}
	return int(parsed.GetPartialSuccess().GetRejectedSpans()), nil
}

// request is spans as OTLP has them. All are of one tracer.
func request(spans []sdk.ReadOnlySpan) *collector.ExportTraceServiceRequest {
	if len(spans) == 0 {
		return new(collector.ExportTraceServiceRequest)
	}
	all := &traces.ScopeSpans{Scope: &common.InstrumentationScope{Name: spans[0].InstrumentationScope().Name}}
	for _, s := range spans {
		all.Spans = append(all.Spans, spanOf(s))
	}
	return &collector.ExportTraceServiceRequest{ResourceSpans: []*traces.ResourceSpans{{
		Resource:   &resources.Resource{Attributes: attributes(spans[0].Resource().Attributes())},
		ScopeSpans: []*traces.ScopeSpans{all},
	}}}
}

func spanOf(s sdk.ReadOnlySpan) *traces.Span {
	id, trace, parent := s.SpanContext().SpanID(), s.SpanContext().TraceID(), s.Parent()
	flags := uint32(s.SpanContext().TraceFlags()) | uint32(traces.SpanFlags_SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK)
	out := &traces.Span{
		TraceId: trace[:], SpanId: id[:], TraceState: s.SpanContext().TraceState().String(),
		Name: s.Name(), Kind: traces.Span_SPAN_KIND_SERVER,
		StartTimeUnixNano: nanos(s.StartTime()), EndTimeUnixNano: nanos(s.EndTime()),
		Attributes: attributes(s.Attributes()), DroppedAttributesCount: uint32(s.DroppedAttributes()),
	}
	if parent.IsValid() {
		id := parent.SpanID()
		out.ParentSpanId = id[:]
		if parent.IsRemote() {
			flags |= uint32(traces.SpanFlags_SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)
		}
	}
	out.Flags = flags
	for _, e := range s.Events() {
		out.Events = append(out.Events, &traces.Span_Event{Name: e.Name, TimeUnixNano: nanos(e.Time), Attributes: attributes(e.Attributes)})
	}
	if status := s.Status(); status.Code == codes.Error {
		out.Status = &traces.Status{Code: traces.Status_STATUS_CODE_ERROR, Message: status.Description}
	}
	return out
}

func nanos(t time.Time) uint64 { return uint64(max(t.UnixNano(), 0)) }

// attributes are those of the kinds that spans of this package, and resources, have.
func attributes(all []attribute.KeyValue) []*common.KeyValue {
	out := make([]*common.KeyValue, 0, len(all))
	for _, a := range all {
		v := new(common.AnyValue)
		switch a.Value.Type() {
		case attribute.INT64:
			v.Value = &common.AnyValue_IntValue{IntValue: a.Value.AsInt64()}
		case attribute.FLOAT64:
			v.Value = &common.AnyValue_DoubleValue{DoubleValue: a.Value.AsFloat64()}
		case attribute.BOOL:
			v.Value = &common.AnyValue_BoolValue{BoolValue: a.Value.AsBool()}
		default:
			v.Value = &common.AnyValue_StringValue{StringValue: a.Value.String()}
		}
		out = append(out, &common.KeyValue{Key: string(a.Key), Value: v})
	}
	return out
}
