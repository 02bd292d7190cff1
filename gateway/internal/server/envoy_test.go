package server

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/envoy"
	"github.com/weir-go/weir/policy"
)

// forEnvoy is a configuration with one listener for ext_proc, and no upstream.
func forEnvoy(t *testing.T, limit string) *config.Config {
	t.Helper()
	cfg, err := config.Parse("weir.yaml", []byte(strings.Replace(`
listeners: [{address: "127.0.0.1:0", serve: [ext_proc]}]
admin: {address: off}
gates:
  api: {limit: {limit: LIMIT, queue: {len: 4, max_wait: 1m}}}
routes: [{match: [/], gates: [api]}]
shutdown: {grace: 1m, lame_duck: 0s}
`, "LIMIT", limit, 1)))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// askExtProc opens a stream for a request of an Envoy.
func askExtProc(t *testing.T, conn *grpc.ClientConn) extproc.ExternalProcessor_ProcessClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	t.Cleanup(cancel)
	s, err := extproc.NewExternalProcessorClient(conn).Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	h := &core.HeaderMap{Headers: []*core.HeaderValue{
		{Key: ":method", RawValue: []byte("GET")}, {Key: ":path", RawValue: []byte("/")}, {Key: ":authority", RawValue: []byte("test")},
	}}
	if err := s.Send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{Headers: h}}}); err != nil {
		t.Fatal(err)
	}
	return s
}

// answerOf returns the next answer.
func answerOf(t *testing.T, s extproc.ExternalProcessor_ProcessClient) *extproc.ProcessingResponse {
	t.Helper()
	m, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A request that ends after a reload has removed its route brings no series of the route back.
func TestExtProcRouteGone(t *testing.T) {
	next := forEnvoy(t, "1")
	g := start(t, forEnvoy(t, "1"), Options{Load: func() (*config.Config, error) { return next, nil }})
	conn, err := grpc.NewClient(g.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stays := askExtProc(t, conn)
	answerOf(t, stays)
	end := func(s extproc.ExternalProcessor_ProcessClient, ended uint64) {
		t.Helper()
		h := &core.HeaderMap{Headers: []*core.HeaderValue{{Key: ":status", RawValue: []byte("200")}}}
		if err := s.Send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extproc.HttpHeaders{Headers: h, EndOfStream: true}}}); err != nil {
			t.Fatal(err)
		}
		answerOf(t, s)
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != io.EOF { // then it is counted
			t.Fatal(err)
		}
		eventually(t, "the stream is counted", func() bool { return g.ExtProc().Ended[envoy.Complete] == ended })
	}
	const counted = `weir_http_requests_total{by="upstream",code="2xx",route="/"} 1`
	end(stays, 1)
	if text := g.scrape(); !strings.Contains(text, counted) {
		t.Errorf("no %s in\n%s", counted, text)
	}
	leaves := askExtProc(t, conn)
	answerOf(t, leaves)
	next.Routes[0].Match = []string{"/new/"}
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	end(leaves, 2)
	if text := g.scrape(); strings.Contains(text, `route="/"`) {
		t.Errorf("the route is back:\n%s", text)
	}
}

// An Envoy is served by the gates of the file. A reload ends no stream, also one that changes the
// listener. A shutdown refuses who waits, and ends the others without a fault.
func TestExtProc(t *testing.T) {
	next := forEnvoy(t, "1")
	g := start(t, forEnvoy(t, "1"), Options{Load: func() (*config.Config, error) { return next, nil }})
	conn, err := grpc.NewClient(g.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	checks := healthgrpc.NewHealthClient(conn)
	if m, err := checks.Check(t.Context(), new(healthgrpc.HealthCheckRequest)); err != nil || m.Status != healthgrpc.HealthCheckResponse_SERVING {
		t.Fatalf("%v, %v", m, err)
	}
	running := askExtProc(t, conn)
	if m := answerOf(t, running); m.GetRequestHeaders() == nil {
		t.Fatalf("answered by %v", m)
	}
	waiting := askExtProc(t, conn)
	if m := answerOf(t, waiting); m.GetOverrideMessageTimeout() == nil {
		t.Fatalf("answered by %v", m)
	}

	next = forEnvoy(t, "1")
	next.Listeners[0].Address = g.Addr().String()
	next.Listeners[0].IdleTimeout = policy.Duration(await.Patience) // another listener on the same socket
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	if s := g.Policy().Gate("api").Snapshot(); s.InFlight != 1 || s.Waiting != 1 {
		t.Errorf("after a reload %d in flight, %d waiting", s.InFlight, s.Waiting)
	}

	if err := g.stop(); err != nil {
		t.Errorf("the gateway stopped with %v", err)
	}
	if m := answerOf(t, waiting); m.GetImmediateResponse().GetDetails() != "weir_draining" {
		t.Errorf("a waiter is answered by %v", m)
	}
	if _, err := running.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("a stream ends with %v", err)
	}
	if n := g.ExtProc(); n.Open != 0 {
		t.Errorf("%d streams are open", n.Open)
	}
}

// A Unix socket serves as a port does. A reload keeps it, and the end removes it.
func TestExtProcOnASocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "envoy.sock")
	cfg := forEnvoy(t, "1")
	cfg.Listeners[0].Address = "unix:" + path
	next := forEnvoy(t, "1")
	next.Listeners[0].Address = cfg.Listeners[0].Address
	next.Listeners[0].IdleTimeout = policy.Duration(await.Patience) // another listener on the same socket
	g := start(t, cfg, Options{Load: func() (*config.Config, error) { return next, nil }})
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	running := askExtProc(t, conn)
	if m := answerOf(t, running); m.GetRequestHeaders() == nil {
		t.Fatalf("answered by %v", m)
	}
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	if m := answerOf(t, askExtProc(t, conn)); m.GetOverrideMessageTimeout() == nil {
		t.Errorf("a newcomer after the reload is answered by %v", m)
	}
	if err := g.stop(); err != nil {
		t.Errorf("the gateway stopped with %v", err)
	}
	if _, err := running.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("a stream ends with %v", err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

// Who may speak for clients has a certificate of the authority in the file, and for as long as it is
// there.
func TestExtProcCertificates(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	secure, authorities := asking(t, "http://127.0.0.1:1", ours)
	cfg := forEnvoy(t, "1")
	cfg.Listeners[0].TLS = secure.Listeners[0].TLS
	g := start(t, cfg, Options{Load: func() (*config.Config, error) { return clone(cfg), nil }})
	check := func(cert *tls.Certificate) (*grpc.ClientConn, error) {
		conf := &tls.Config{InsecureSkipVerify: true, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }}
		conn, err := grpc.NewClient(g.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(conf)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_, err = healthgrpc.NewHealthClient(conn).Check(t.Context(), new(healthgrpc.HealthCheckRequest))
		return conn, err
	}
	conn, err := check(ours.issue(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := check(theirs.issue(t, nil)); status.Code(err) != codes.Unavailable {
		t.Errorf("another authority's client: %v", err)
	}
	eventually(t, "a handshake that failed", func() bool { return g.listeners[0].conns.Snapshot().Handshakes["unknown_ca"] > 0 })

	write(t, authorities, theirs)
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, err := healthgrpc.NewHealthClient(conn).Check(t.Context(), new(healthgrpc.HealthCheckRequest)); status.Code(err) != codes.Unauthenticated {
		t.Errorf("on a connection from before: %v", err)
	}
}
