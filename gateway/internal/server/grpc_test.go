package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/weirgrpc"
)

// callee is a gRPC server behind the gateway.
type callee struct {
	testgrpc.UnimplementedTestServiceServer
	unary  func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error)
	output func(testgrpc.TestService_StreamingOutputCallServer) error
	duplex func(testgrpc.TestService_FullDuplexCallServer) error
}

func (c *callee) UnaryCall(ctx context.Context, in *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	return c.unary(ctx, in)
}

func (c *callee) StreamingOutputCall(_ *testgrpc.StreamingOutputCallRequest, s testgrpc.TestService_StreamingOutputCallServer) error {
	return c.output(s)
}

func (c *callee) FullDuplexCall(s testgrpc.TestService_FullDuplexCallServer) error {
	return c.duplex(s)
}

// serveGRPC starts the callee and returns its address.
func serveGRPC(t *testing.T, c *callee, opts ...grpc.ServerOption) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(opts...)
	testgrpc.RegisterTestServiceServer(s, c)
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) }) // it ends with Stop
	t.Cleanup(func() { s.Stop(); serving.Wait() })
	return l.Addr().String()
}

// callers starts a gateway before the callee, and returns a client of it.
func callers(t *testing.T, c *callee, edit func(*config.Config), opts ...grpc.ServerOption) (*running, testgrpc.TestServiceClient) {
	t.Helper()
	cfg := baseConfig(t, "h2c://"+serveGRPC(t, c, opts...))
	cfg.Listeners[0].H2C = true
	if edit != nil {
		edit(cfg)
	}
	g := start(t, cfg, Options{})
	return g, dialGRPC(t, g)
}

func dialGRPC(t *testing.T, g *running) testgrpc.TestServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+g.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return testgrpc.NewTestServiceClient(conn)
}

// patient is a context that only ends what hangs.
func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	t.Cleanup(cancel)
	return ctx
}

func answered(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	return new(testgrpc.SimpleResponse), nil
}

// reasonIn returns the reason of the ErrorInfo in a status.
func reasonIn(st *status.Status) string {
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.Reason
		}
	}
	return ""
}

// The outcome of a call is what its grpc-status says, in headers or trailers. The call is counted, and has a line, by what that is in
// HTTP.
func TestGRPCOutcomes(t *testing.T) {
	t.Parallel()
	send := func(n, size int, err error) func(testgrpc.TestService_StreamingOutputCallServer) error {
		return func(s testgrpc.TestService_StreamingOutputCallServer) error {
			for range n {
				if err := s.Send(&testgrpc.StreamingOutputCallResponse{Payload: &testgrpc.Payload{Body: make([]byte, size)}}); err != nil {
					return err
				}
			}
			return err
		}
	}
	quota := weirgrpc.Status(&weir.Rejection{Gate: "below", Reason: weir.ReasonQuota}).Err()
	overloaded, broken := status.Error(codes.Unavailable, "busy"), status.Error(codes.DataLoss, "broken")
	for _, tt := range []struct {
		name   string
		unary  error
		output func(testgrpc.TestService_StreamingOutputCallServer) error
		want   weir.Outcome
		status int // as it is counted
	}{
		{name: "ok", want: weir.OK, status: 200},
		{name: "a no", unary: status.Error(codes.NotFound, "none"), want: weir.OK, status: 404},
		{name: "overloaded", unary: overloaded, want: weir.Overload, status: 503},
		{name: "over a quota", unary: quota, want: weir.OK, status: 429},
		{name: "broken", unary: broken, want: weir.Failed, status: 500},
		{name: "one message", output: send(1, 10, nil), want: weir.OK, status: 200},
		{name: "one long message", output: send(1, 100<<10, nil), want: weir.OK, status: 200},
		{name: "one message, then an error", output: send(1, 10, overloaded), want: weir.Overload, status: 503},
		{name: "a stream", output: send(3, 10, nil), want: weir.NoSample, status: 200},
		{name: "a stream that fails", output: send(3, 10, broken), want: weir.Failed, status: 500},
		{name: "an error in the trailer", output: func(s testgrpc.TestService_StreamingOutputCallServer) error {
			if err := s.SendHeader(metadata.Pairs("x", "y")); err != nil {
				return err
			}
			return overloaded
		}, want: weir.Overload, status: 503},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "access.log")
			g, client := callers(t, &callee{unary: func(ctx context.Context, in *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
				if tt.unary != nil {
					return nil, tt.unary
				}
				return answered(ctx, in)
			}, output: tt.output}, func(cfg *config.Config) { cfg.AccessLog = config.AccessLog{To: file, Format: "json"} })
			if tt.output == nil {
				_, err := client.UnaryCall(patient(t), new(testgrpc.SimpleRequest))
				if status.Code(err) != status.Code(tt.unary) {
					t.Errorf("the client got %v, want %v", err, tt.unary)
				}
			} else {
				s, err := client.StreamingOutputCall(patient(t), new(testgrpc.StreamingOutputCallRequest))
				for err == nil {
					_, err = s.Recv()
				}
			}
			g.idle()
			want := map[weir.Outcome]uint64{tt.want: 1}
			if got := g.gate().Outcomes; len(got) != 1 || got[tt.want] != 1 {
				t.Errorf("outcomes %v, want %v", got, want)
			}
			if line := fmt.Sprintf(`weir_http_requests_total{by="upstream",code="%dxx",route="/"} 1`, tt.status/100); !strings.Contains(g.scrape(), line) {
				t.Errorf("no %s", line)
			} else if tt.status >= 400 { // of the others none has a line, for the sample is 0
				if l := linesOf(t, file, 1)[0]; l.Status != tt.status || l.By != "upstream" {
					t.Errorf("%+v, want a line with the status %d", l, tt.status)
				}
			}
		})
	}
}

// An upstream that ends a call without a status has failed, and so has one that breaks it off.
func TestGRPCWithoutStatus(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"at once": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", "application/grpc") },
		"after a message": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/grpc")
			_, _ = w.Write([]byte{0, 0, 0, 0, 0})
		},
		"no gRPC": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
		"broken off": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/grpc")
			_, _ = w.Write([]byte{0, 0, 0, 0, 9})
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
		"nonsense": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set("Grpc-Status", "x")
		},
	} {
		t.Run(name, func(t *testing.T) {
			up := h2cUpstream(t, handler)
			cfg := baseConfig(t, "h2c://"+up)
			cfg.Listeners[0].H2C = true
			g := start(t, cfg, Options{})
			if _, err := dialGRPC(t, g).UnaryCall(patient(t), new(testgrpc.SimpleRequest)); err == nil {
				t.Error("the client got an answer")
			}
			g.idle()
			if got := g.gate().Outcomes; len(got) != 1 || got[weir.Failed] != 1 {
				t.Errorf("outcomes %v, want one failure", got)
			}
			if line := `weir_http_requests_total{by="upstream",code="5xx",route="/"} 1`; !strings.Contains(g.scrape(), line) {
				t.Errorf("no %s", line)
			}
		})
	}
}

// h2cUpstream is a server of HTTP/2 without TLS; it returns its address.
func h2cUpstream(t *testing.T, h http.Handler) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h, Protocols: new(http.Protocols), ErrorLog: log.New(io.Discard, "", 0)}
	s.Protocols.SetUnencryptedHTTP2(true)
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) }) // it ends with Close
	t.Cleanup(func() { s.Close(); serving.Wait() })
	return l.Addr().String()
}

// Everything that the gateway itself says to a call is a status of gRPC.
func TestGRPCAnswersOfTheGateway(t *testing.T) {
	closed := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Addr().String()
	}()
	hold := make(chan struct{})
	silent := h2cUpstream(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-hold:
		}
	}))
	defer close(hold)
	for _, tt := range []struct {
		name   string
		edit   func(*config.Config)
		want   codes.Code
		reason string
		by     string // who answered, for the metrics; empty: no route counts it
	}{
		{"refused", func(c *config.Config) { c.Gates[gateName].Limit.Queue.MaxWait = policy.Duration(time.Nanosecond) },
			codes.Unavailable, "", "gate"},
		{"no route", func(c *config.Config) { c.Routes[0].Match = []string{"/nothing"} }, codes.Unimplemented, "NOT_FOUND", ""},
		{"unreachable", func(c *config.Config) { setTarget(c, closed) }, codes.Unavailable, "BAD_GATEWAY", "gateway"},
		{"silent", func(c *config.Config) {
			setTarget(c, silent)
			u := c.Upstreams[gateName]
			u.ResponseTimeout = policy.Duration(time.Millisecond)
			c.Upstreams[gateName] = u
		}, codes.DeadlineExceeded, "GATEWAY_TIMEOUT", "gateway"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g, client := callers(t, &callee{unary: answered}, tt.edit)
			if tt.name == "refused" {
				for range 10 {
					if _, err := g.Policy().Gate(gateName).TryAdmit(weir.Work{}); err != nil {
						t.Fatal(err)
					}
				}
			}
			var header, trailer metadata.MD
			_, err := client.UnaryCall(patient(t), new(testgrpc.SimpleRequest), grpc.Header(&header), grpc.Trailer(&trailer))
			st := status.Convert(err)
			if reason := reasonIn(st); st.Code() != tt.want || tt.reason != "" && reason != tt.reason || reason == "" {
				t.Errorf("%v with reason %q, want %v with %q", err, reason, tt.want, tt.reason)
			}
			if len(header) != 0 {
				t.Errorf("header %v: no answer of trailers only, so clients will not retry", header)
			}
			if line := fmt.Sprintf(`weir_http_requests_total{by=%q,code="5xx",route="/"} 1`, tt.by); tt.by != "" {
				eventually(t, "the call is counted as what it would be over HTTP", func() bool { return strings.Contains(g.scrape(), line) })
			}
		})
	}
}

func setTarget(c *config.Config, address string) {
	u := c.Upstreams[gateName]
	u.Targets = []string{"h2c://" + address}
	c.Upstreams[gateName] = u
}

// What is left of a call's time-out is passed on.
func TestGRPCDeadline(t *testing.T) {
	var left time.Duration
	_, client := callers(t, &callee{unary: func(ctx context.Context, in *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		if at, ok := ctx.Deadline(); ok {
			left = time.Until(at)
		}
		return answered(ctx, in)
	}}, func(c *config.Config) { c.Routes[0].Timeout = 0 })
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if _, err := client.UnaryCall(ctx, new(testgrpc.SimpleRequest)); err != nil {
		t.Fatal(err)
	}
	if left > time.Hour || left < time.Hour-await.Patience {
		t.Errorf("%v left of an hour", left)
	}
}

// A client that leaves resets the call at the upstream, and frees the slot.
func TestGRPCReset(t *testing.T) {
	running, ended := make(chan struct{}), make(chan error, 1)
	g, client := callers(t, &callee{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		close(running)
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	}}, nil)
	ctx, leave := context.WithCancel(patient(t))
	answer := make(chan error)
	go func() { _, err := client.UnaryCall(ctx, new(testgrpc.SimpleRequest)); answer <- err }()
	<-running
	leave()
	if err := <-answer; status.Code(err) != codes.Canceled {
		t.Errorf("the client got %v", err)
	}
	if err := <-ended; err != context.Canceled {
		t.Errorf("the upstream ended with %v", err)
	}
	g.idle()
	if got := g.gate().Outcomes; got[weir.Abandoned] != 1 {
		t.Errorf("outcomes %v, want one abandoned", got)
	}
}

// A call that goes both ways is never held up, gives no sample, and has no slot once it lasts.
func TestGRPCConversation(t *testing.T) {
	t.Parallel()
	g, client := callers(t, &callee{duplex: func(s testgrpc.TestService_FullDuplexCallServer) error {
		for {
			in, err := s.Recv()
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			if err := s.Send(&testgrpc.StreamingOutputCallResponse{Payload: in.Payload}); err != nil {
				return err
			}
		}
	}}, nil)
	both, err := client.FullDuplexCall(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	say := func(size int) {
		t.Helper()
		if err := both.Send(&testgrpc.StreamingOutputCallRequest{Payload: &testgrpc.Payload{Body: make([]byte, size)}}); err != nil {
			t.Fatal(err)
		}
		out, err := both.Recv()
		if err != nil || len(out.Payload.GetBody()) != size {
			t.Fatalf("%d bytes, %v; want %d", len(out.GetPayload().GetBody()), err, size)
		}
	}
	say(1)
	eventually(t, "it is a stream", func() bool { return g.streams.Snapshot().Open == 1 && g.gate().InFlight == 0 })
	say(100)
	say(100 << 10)
	if err := both.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := both.Recv(); err != io.EOF {
		t.Errorf("it ended with %v", err)
	}
	g.idle()
	if got := g.gate().Outcomes; got[weir.OK] != 0 {
		t.Errorf("outcomes %v: the life of a stream is no latency", got)
	}
}

// A server may end a call that its client would go on with, and the client hears of it.
func TestGRPCServerEndsFirst(t *testing.T) {
	t.Parallel()
	g, client := callers(t, &callee{duplex: func(s testgrpc.TestService_FullDuplexCallServer) error {
		if err := s.Send(new(testgrpc.StreamingOutputCallResponse)); err != nil {
			return err
		}
		return status.Error(codes.NotFound, "gone")
	}}, nil)
	call, err := client.FullDuplexCall(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := call.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, err := call.Recv(); status.Code(err) != codes.NotFound {
		t.Errorf("the call ended with %v", err)
	}
	g.idle()
}

// A call whose client sends nothing cannot keep its slot.
func TestGRPCSilentClient(t *testing.T) {
	t.Parallel()
	g, client := callers(t, &callee{duplex: func(s testgrpc.TestService_FullDuplexCallServer) error {
		<-s.Context().Done()
		return nil
	}}, nil)
	ctx, leave := context.WithCancel(patient(t))
	defer leave()
	if _, err := client.FullDuplexCall(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is a stream", func() bool { return g.streams.Snapshot().Open == 1 && g.gate().InFlight == 0 })
	leave()
	g.idle()
}

// gRPC-Web, and what calls itself gRPC over HTTP/1, is HTTP.
func TestGRPCWebIsHTTP(t *testing.T) {
	g, _ := callers(t, &callee{unary: answered}, func(c *config.Config) { c.Routes[0].Match = []string{"/nothing"} })
	h2c := &http.Transport{Protocols: new(http.Protocols)}
	h2c.Protocols.SetUnencryptedHTTP2(true)
	defer h2c.CloseIdleConnections()
	for _, tt := range []struct {
		transport   *http.Transport
		contentType string
		want        int
	}{
		{h2c, "application/grpc-web+proto", 404},
		{h2c, "application/grpcs", 404},
		{h2c, "application/grpc+proto", 200},
		{h2c, "Application/GRPC;x=y", 200},
		{new(http.Transport), "application/grpc", 404},
	} {
		res, err := (&http.Client{Transport: tt.transport}).Post(g.url, tt.contentType, strings.NewReader("\x00\x00\x00\x00\x00"))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		tt.transport.CloseIdleConnections()
		if isGRPC := res.Header.Get("Grpc-Status") == "12"; res.StatusCode != tt.want || isGRPC != (tt.want == 200) {
			t.Errorf("%s over %s: %s, grpc-status %q", tt.contentType, res.Proto, res.Status, res.Header.Get("Grpc-Status"))
		}
	}
}

// A client cannot have the slot of its work back by calling it gRPC: only where calls have been answered does a reset end them.
func TestClientLeavesWhatItCallsGRPC(t *testing.T) {
	arrived, release := make(chan struct{}, 1), make(chan struct{})
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-release
	}))
	up.Config.Protocols = new(http.Protocols)
	up.Config.Protocols.SetUnencryptedHTTP2(true)
	up.Start()
	t.Cleanup(up.Close)
	cfg := baseConfig(t, strings.Replace(up.URL, "http", "h2c", 1))
	cfg.Listeners[0].H2C = true
	g := start(t, cfg, Options{})
	g.Upstreams()[0].Expect(time.Minute)
	h2c := &http.Transport{Protocols: new(http.Protocols)}
	h2c.Protocols.SetUnencryptedHTTP2(true)
	defer h2c.CloseIdleConnections()
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url, strings.NewReader("work"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/grpc")
	go func() {
		<-arrived
		leave()
	}()
	if res, err := h2c.RoundTrip(req); err == nil {
		res.Body.Close()
		t.Fatal("answered before the client left")
	}
	eventually(t, "the gateway has noticed", func() bool { return g.Upstreams()[0].Abandoned() == 1 })
	if n := g.gate().InFlight; n != 1 {
		t.Errorf("%d in flight after the client left, want 1: the upstream still works", n)
	}
	close(release)
	g.idle()
}

// HTTP/2 has no upgrade. A client that asks for one gets an answer, and the target no blame.
func TestUpgradeBeforeHTTP2(t *testing.T) {
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
	up.Config.Protocols = new(http.Protocols)
	up.Config.Protocols.SetUnencryptedHTTP2(true)
	up.Start()
	t.Cleanup(up.Close)
	g := start(t, baseConfig(t, strings.Replace(up.URL, "http", "h2c", 1)), Options{})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, g.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "websocket")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if res.StatusCode != http.StatusOK || string(body) != "HTTP/2.0" {
		t.Errorf("%s %s", res.Status, body)
	}
	for kind, n := range g.Upstreams()[0].Stats()[0].Failures {
		if n > 0 {
			t.Errorf("%d failures of %s", n, kind)
		}
	}
	g.idle()
}

// Calls pass over TLS as well.
func TestGRPCOverTLS(t *testing.T) {
	cert, key := certificate(t)
	g, _ := callers(t, &callee{unary: answered}, func(c *config.Config) {
		c.Listeners[0].H2C = false
		c.Listeners[0].TLS = &config.TLS{Cert: cert, Key: key}
	})
	conn, err := grpc.NewClient("passthrough:///"+g.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := testgrpc.NewTestServiceClient(conn).UnaryCall(patient(t), new(testgrpc.SimpleRequest)); err != nil {
		t.Error(err)
	}
	g.idle()
}

// Time-outs that make no sense, and large metadata, harm nobody and lose nothing.
func TestGRPCHostileHeaders(t *testing.T) {
	g, _ := callers(t, &callee{unary: answered}, nil)
	h2c := &http.Transport{Protocols: new(http.Protocols)}
	h2c.Protocols.SetUnencryptedHTTP2(true)
	defer h2c.CloseIdleConnections()
	large := make([]string, 64)
	for i := range large {
		large[i] = strings.Repeat("t", 500)
	}
	for _, tt := range []struct {
		name   string
		header http.Header
		status string
	}{
		{"no time", http.Header{"Grpc-Timeout": {"0n"}}, "4"},
		{"negative", http.Header{"Grpc-Timeout": {"-1S"}}, "13"}, // the upstream's word: it goes on unchanged
		{"nine digits", http.Header{"Grpc-Timeout": {"123456789S"}}, "13"},
		{"for ever", http.Header{"Grpc-Timeout": {"99999999H"}}, "0"},
		{"32 KB", http.Header{"X-Tenant": large}, "0"},
		{"binary", http.Header{"X-Tenant-Bin": {"AP8", "AP8"}}, "0"},
		{"binary that is none", http.Header{"X-Tenant-Bin": {"%%%"}}, "13"},
	} {
		req, err := http.NewRequestWithContext(patient(t), http.MethodPost, g.url+"/grpc.testing.TestService/UnaryCall", strings.NewReader("\x00\x00\x00\x00\x00"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = tt.header
		req.Header.Set("Content-Type", "application/grpc")
		req.Header.Set("Te", "trailers")
		res, err := (&http.Client{Transport: h2c}).Do(req)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		res.Body.Close()
		got := res.Header.Get("Grpc-Status") + res.Trailer.Get("Grpc-Status")
		if got != tt.status {
			t.Errorf("%s: status %q, want %q; %s %v", tt.name, got, tt.status, res.Status, res.Header)
		}
	}
	g.idle()
}

// There is no gRPC over HTTP/1. A request that names itself so is not spared the bounds of HTTP.
func TestGRPCBeforeHTTP1(t *testing.T) {
	asked := false
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer upstream.Close()
	cfg := baseConfig(t, upstream.URL)
	cfg.Listeners[0].H2C = true
	_, err := dialGRPC(t, start(t, cfg, Options{})).UnaryCall(patient(t), new(testgrpc.SimpleRequest))
	if st := status.Convert(err); st.Code() != codes.Unimplemented || !strings.Contains(st.Message(), "h2c://") || asked {
		t.Errorf("%v (upstream asked: %v), want Unimplemented and what to write", err, asked)
	}
}

// A service that allows few calls on each connection refuses what comes before it has said so. All calls of a burst come
// through, also those whose client may go on sending.
func TestGRPCBurstAtAFreshService(t *testing.T) {
	t.Parallel()
	_, client := callers(t, &callee{unary: answered, duplex: func(c testgrpc.TestService_FullDuplexCallServer) error {
		if _, err := c.Recv(); err != nil {
			return err
		}
		return c.Send(new(testgrpc.StreamingOutputCallResponse))
	}}, func(c *config.Config) {
		change(c, func(_ *config.Upstream, l *policy.LimitSpec) { l.Limit = 100 })
	}, grpc.MaxConcurrentStreams(4))
	ctx := patient(t)
	var calls sync.WaitGroup
	for range 32 {
		calls.Go(func() {
			if _, err := client.UnaryCall(ctx, &testgrpc.SimpleRequest{Payload: &testgrpc.Payload{Body: make([]byte, 100)}}); err != nil {
				t.Error(err)
			}
		})
		calls.Go(func() {
			stream, err := client.FullDuplexCall(ctx)
			if err == nil {
				err = stream.Send(new(testgrpc.StreamingOutputCallRequest))
			}
			if err == nil {
				_, err = stream.Recv()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
}
