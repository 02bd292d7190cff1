package envoy

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/gateway/internal/rpc"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/weirhttp"
)

// bench is a service at work, and what it has told.
type bench struct {
	*Service
	policy  *policy.Policy
	client  extproc.ExternalProcessorClient
	conn    *grpc.ClientConn
	streams *weirhttp.Streams
	log     *logged
	stores  map[string]quota.Store
	gone    atomic.Int64 // streams that the server knows to have ended
	turned  atomic.Int64 // refusals without a gate

	mu       sync.Mutex
	reports  []Report
	outcomes map[weir.Outcome]int
	most     int64
	release  bool
	longest  time.Duration
	silence  time.Duration
	headers  int
}

// logged keeps what is logged.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// newBench serves a policy, as a listener of the gateway does.
func newBench(t *testing.T, spec policy.Spec, change ...func(*bench)) *bench {
	t.Helper()
	b := &bench{log: new(logged), streams: weirhttp.NewStreams(weirhttp.StreamsConfig{}), outcomes: map[weir.Outcome]int{}, most: 1000, silence: time.Minute}
	for _, c := range change {
		c(b)
	}
	var err error
	if b.policy, err = policy.Compile(spec, policy.Options{Stores: b.stores, Hooks: weir.Hooks{Done: func(_ string, o weir.Outcome, _ time.Duration) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.outcomes[o]++
	}}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.policy.Close)
	b.Service = New(Options{
		Match: b.match, Streams: b.streams, Logger: slog.New(slog.NewTextHandler(b.log, nil)),
		Refused: func(*weir.Rejection) { b.turned.Add(1) },
		Ended: func(r Report) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.reports = append(b.reports, r)
		},
	})
	b.client = b.listen(t)
	return b
}

// listen has one more listener serve it, and returns a client of that. conn is then its connection.
func (b *bench) listen(t *testing.T) extproc.ExternalProcessorClient {
	t.Helper()
	cfg := config.DefaultListener("127.0.0.1:0")
	cfg.MaxConcurrentStreams = 10_000
	conns, err := accept.Open(accept.Options{Config: cfg, Trusted: func(netip.Addr) bool { return false }})
	if err != nil {
		t.Fatal(err)
	}
	server := rpc.New(rpc.Options{Conns: conns, Config: cfg, Crowded: func(string) { b.Crowded() }, Logger: slog.New(slog.NewTextHandler(b.log, nil))})
	b.Register(registrar{server, b}, Bounds{MaxStreams: func() int64 { return b.most }, FirstMessage: b.silence, MaxHeaders: b.headers})
	go func() { _ = server.Serve(conns) }()
	t.Cleanup(func() { _ = server.Close() })
	if b.conn, err = grpc.NewClient(conns.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	conn := b.conn
	t.Cleanup(func() { _ = conn.Close() })
	return extproc.NewExternalProcessorClient(conn)
}

// registrar has the bench hear when a stream ends.
type registrar struct {
	grpc.ServiceRegistrar
	b *bench
}

func (r registrar) RegisterService(d *grpc.ServiceDesc, impl any) {
	handle := d.Streams[0].Handler
	d.Streams[0].Handler = func(impl any, s grpc.ServerStream) error {
		context.AfterFunc(s.Context(), func() { r.b.gone.Add(1) })
		return handle(impl, s)
	}
	r.ServiceRegistrar.RegisterService(d, impl)
}

func (b *bench) match(v *policy.View) Matched {
	rt, w := b.policy.MatchView(v)
	return Matched{Policy: b.policy, Route: rt, Work: w, Quotas: proxy.NewQuotas(rt), Release: b.release, Longest: b.longest}
}

// report returns the only report, when it has come.
func (b *bench) report(t *testing.T) Report {
	t.Helper()
	eventually(t, "a report", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.reports) > 0
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.reports) > 1 {
		t.Errorf("%d reports", len(b.reports))
	}
	return b.reports[0]
}

func (b *bench) gate(t *testing.T) weir.Snapshot {
	t.Helper()
	return b.policy.Gate("api").Snapshot()
}

// heard waits until the gate has heard of this outcome, once.
func (b *bench) heard(t *testing.T, o weir.Outcome) {
	t.Helper()
	eventually(t, "the outcome "+o.String(), func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.outcomes[o] == 1
	})
}

func (b *bench) idle(t *testing.T) {
	t.Helper()
	eventually(t, "nothing in flight", func() bool { s := b.gate(t); return s.InFlight == 0 && s.Waiting == 0 })
}

func (b *bench) counted(t *testing.T, end End, n uint64) {
	t.Helper()
	eventually(t, "a stream that ended as "+end.String(), func() bool { return b.Snapshot().Ended[end] == n })
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	await.That(t, what, ok)
}

// limited is a policy with one gate of so many slots, where so many may wait.
func limited(limit int64, wait int) policy.Spec {
	l := &policy.LimitSpec{Limit: limit}
	l.Queue.Len, l.Queue.MaxWait = wait, policy.Duration(30*time.Second)
	return policy.Spec{
		Gates:  map[string]policy.GateSpec{"api": {Limit: l}},
		Routes: []policy.RouteSpec{{Name: "all", Match: []string{"/"}, Gates: []string{"api"}}},
	}
}

// stream is one stream of an Envoy.
type stream struct {
	t *testing.T
	extproc.ExternalProcessor_ProcessClient
	leave context.CancelFunc
}

// dial opens a stream and sends nothing.
func (b *bench) dial(t *testing.T) stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	t.Cleanup(cancel)
	s, err := b.client.Process(ctx, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return stream{t, s, cancel}
}

// open opens a stream for a request with these headers beside the usual.
func (b *bench) open(t *testing.T, pairs ...string) stream {
	t.Helper()
	s := b.dial(t)
	s.send(asks(pairs...))
	return s
}

func (s stream) send(m *extproc.ProcessingRequest) {
	s.t.Helper()
	if err := s.Send(m); err != nil {
		s.t.Fatal(err)
	}
}

// next returns the next answer.
func (s stream) next() *extproc.ProcessingResponse {
	s.t.Helper()
	m, err := s.Recv()
	if err != nil {
		s.t.Fatalf("no answer: %v", err)
	}
	return m
}

// admitted wants the answer of a request that may pass.
func (s stream) admitted() *extproc.HeadersResponse {
	s.t.Helper()
	m := s.next()
	if m.GetRequestHeaders() == nil {
		s.t.Fatalf("not admitted: %v", m)
	}
	return m.GetRequestHeaders()
}

// refused wants the answer of a request that is refused.
func (s stream) refused() *extproc.ImmediateResponse {
	s.t.Helper()
	m := s.next()
	if m.GetImmediateResponse() == nil {
		s.t.Fatalf("not refused: %v", m)
	}
	return m.GetImmediateResponse()
}

// asks is the message with the headers of a request: those that each request has, then those of pairs.
// A pair replaces what stands before it under its name.
func asks(pairs ...string) *extproc.ProcessingRequest {
	all := []string{":method", "GET", ":path", "/", ":authority", "test", "x-forwarded-for", "10.1.2.3"}
	place := make(map[string]int, (len(all)+len(pairs))/2)
	for i := 0; i < len(all); i += 2 {
		place[all[i]] = i + 1
	}
	for i := 0; i < len(pairs); i += 2 {
		if at, ok := place[pairs[i]]; ok {
			all[at] = pairs[i+1]
			continue
		}
		place[pairs[i]] = len(all) + 1
		all = append(all, pairs[i], pairs[i+1])
	}
	attributes, err := structpb.NewStruct(map[string]any{"source.address": "127.0.0.1:4444"})
	if err != nil {
		panic(err)
	}
	return &extproc.ProcessingRequest{
		Request:    &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{Headers: headers(all...), EndOfStream: true}},
		Attributes: map[string]*structpb.Struct{"envoy.filters.http.ext_proc": attributes},
	}
}

// says is the message with the headers of an answer.
func says(last bool, pairs ...string) *extproc.ProcessingRequest {
	return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extproc.HttpHeaders{Headers: headers(pairs...), EndOfStream: last},
	}}
}

func headers(pairs ...string) *core.HeaderMap {
	m := new(core.HeaderMap)
	for i := 0; i < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &core.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return m
}

// quotaOf is a quota of so many requests, which come back too slowly to matter.
func quotaOf(burst float64) *policy.QuotaSpec {
	return &policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "1/h", Burst: burst}}
}
