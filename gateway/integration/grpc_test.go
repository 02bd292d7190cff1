//go:build integration

package integration

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/weirgrpc"
)

// interopCases are the cases of grpc-go's interop client that need no credentials of a cloud.
var interopCases = map[string]func(context.Context, *grpc.ClientConn, testgrpc.TestServiceClient){
	"empty_unary": func(ctx context.Context, _ *grpc.ClientConn, c testgrpc.TestServiceClient) {
		interop.DoEmptyUnaryCall(ctx, c)
	},
	"large_unary": func(ctx context.Context, _ *grpc.ClientConn, c testgrpc.TestServiceClient) {
		interop.DoLargeUnaryCall(ctx, c)
	},
	"client_streaming": func(ctx context.Context, _ *grpc.ClientConn, c testgrpc.TestServiceClient) {
		interop.DoClientStreaming(ctx, c)
	},
	"server_streaming": func(ctx context.Context, _ *grpc.ClientConn, c testgrpc.TestServiceClient) {
		interop.DoServerStreaming(ctx, c)
	},
	"ping_pong": func(ctx context.Context, _ *grpc.ClientConn, c testgrpc.TestServiceClient) {
		interop.DoPingPong(ctx, c)
	},
	"empty_stream": func(ctx context.Context, _ *grpc.ClientConn, c testgrpc.TestServiceClient) {
		interop.DoEmptyStream(ctx, c)
	},
	"timeout_on_sleeping_server": func(ctx context.Context, _ *grpc.ClientConn, c testgrpc.TestServiceClient) {
		interop.DoTimeoutOnSleepingServer(ctx, c)
	},
	"cancel_after_begin": cancelAfterBegin,
	"cancel_after_first_response": func(ctx context.Context, _ *grpc.ClientConn, c testgrpc.TestServiceClient) {
		interop.DoCancelAfterFirstResponse(ctx, c)
	},
	"status_code_and_message": func(ctx context.Context, _ *grpc.ClientConn, c testgrpc.TestServiceClient) {
		interop.DoStatusCodeAndMessage(ctx, c)
	},
	"special_status_message": func(ctx context.Context, _ *grpc.ClientConn, c testgrpc.TestServiceClient) {
		interop.DoSpecialStatusMessage(ctx, c)
	},
	"custom_metadata": func(ctx context.Context, _ *grpc.ClientConn, c testgrpc.TestServiceClient) {
		interop.DoCustomMetadata(ctx, c)
	},
	"unimplemented_method": func(ctx context.Context, conn *grpc.ClientConn, _ testgrpc.TestServiceClient) {
		interop.DoUnimplementedMethod(ctx, conn)
	},
	"unimplemented_service": func(ctx context.Context, conn *grpc.ClientConn, _ testgrpc.TestServiceClient) {
		interop.DoUnimplementedService(ctx, testgrpc.NewUnimplementedServiceClient(conn))
	},
}

// cancelAfterBegin is the case of that name. grpc-go's own does not wait until its client has seen that the call is cancelled. So on
// a busy machine the call was sometimes over before, with an answer.
func cancelAfterBegin(ctx context.Context, _ *grpc.ClientConn, c testgrpc.TestServiceClient) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	finished := make(chan struct{})
	stream, err := c.StreamingInputCall(ctx, grpc.OnFinish(func(error) { close(finished) }))
	if err != nil {
		panic(err)
	}
	cancel()
	<-finished
	if _, err = stream.CloseAndRecv(); status.Code(err) != codes.Canceled {
		panic(fmt.Sprintf("a call that was cancelled ended with %v", err))
	}
}

// failing is a logger of grpc that turns what would end the process into a panic. The interop client
// reports a failed case so.
type failing struct{ grpclog.LoggerV2 }

func (failing) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (failing) Fatalln(args ...any)               { panic(fmt.Sprintln(args...)) }
func (failing) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func init() { grpclog.SetLoggerV2(failing{grpclog.NewLoggerV2(nowhere{}, nowhere{}, nowhere{})}) }

type nowhere struct{}

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }

// interopServer is grpc-go's own test server; it returns its address.
func interopServer(t *testing.T, opts ...grpc.ServerOption) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(opts...)
	testgrpc.RegisterTestServiceServer(s, interop.NewTestServer())
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) }) // it ends with Stop
	t.Cleanup(func() { s.Stop(); serving.Wait() })
	return l.Addr().String()
}

// passInterop runs every case against an address, each twice: a tap passes the first call of a
// method.
func passInterop(t *testing.T, address string, creds credentials.TransportCredentials) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	for name, do := range interopCases {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if failure := recover(); failure != nil {
					t.Error(failure)
				}
			}()
			ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
			defer cancel()
			for range 2 {
				do(ctx, conn, testgrpc.NewTestServiceClient(conn))
			}
		})
	}
}

// grpc-go's own server behind the interceptors, with a tap and without, and with neither.
func TestInteropInProcess(t *testing.T) {
	p, err := policy.Compile(policy.Spec{
		Identity: policy.IdentitySpec{Tenant: "header:X-Tenant"},
		Gates:    map[string]policy.GateSpec{"api": {Limit: &policy.LimitSpec{Limit: 64}}},
		Routes:   []policy.RouteSpec{{Match: []string{"POST /grpc.testing.TestService/"}, Gates: []string{"api"}}},
	}, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	for _, tt := range []string{"bare", "interceptors", "tap"} {
		t.Run(tt, func(t *testing.T) {
			guard := weirgrpc.New(nil, weirgrpc.WithPolicy(func() *policy.Policy { return p }))
			var opts []grpc.ServerOption
			if tt != "bare" {
				opts = guard.ServerOptions()
			}
			if tt == "tap" {
				opts = append(opts, grpc.InTapHandle(guard.Tap(nil)))
			}
			passInterop(t, interopServer(t, opts...), insecure.NewCredentials())
			eventually(t, "every slot is free", func() bool { return p.Gate("api").Snapshot().InFlight == 0 })
			if n := p.Gate("api").Snapshot().Admitted; tt == "interceptors" && n == 0 {
				t.Error("the gate was not asked")
			}
			if s := guard.TapSnapshot(); tt == "tap" && (s.Admitted == 0 || s.Refused > 0) {
				t.Errorf("the tap: %+v", s)
			}
		})
	}
}

// grpc-go's own client through the gateway.
func TestInteropThroughTheGateway(t *testing.T) {
	conf := strings.ReplaceAll(gatewayConfig(interopServer(t), 64), "http://", "h2c://")
	t.Run("h2c", func(t *testing.T) {
		g := startGateway(t, conf)
		passInterop(t, g.addr, insecure.NewCredentials())
		g.idle(t)
	})
	t.Run("tls", func(t *testing.T) {
		cert := newCertificate(t, t.TempDir(), 1)
		g := startListening(t, "https", fmt.Sprintf("tls: {cert: %s, key: %s}", cert.cert, cert.key), conf)
		passInterop(t, g.addr, credentials.NewTLS(&tls.Config{RootCAs: cert.pool, ServerName: "127.0.0.1"}))
		g.idle(t)
	})
}
