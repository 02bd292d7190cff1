package weirgrpc_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
)

// service is a service whose handlers the test sets.
type service struct {
	testgrpc.UnimplementedTestServiceServer
	unary  func(ctx context.Context, in *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error)
	output func(in *testgrpc.StreamingOutputCallRequest, s testgrpc.TestService_StreamingOutputCallServer) error
	input  func(s testgrpc.TestService_StreamingInputCallServer) error
	duplex func(s testgrpc.TestService_FullDuplexCallServer) error
}

func (s *service) UnaryCall(ctx context.Context, in *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	return s.unary(ctx, in)
}

func (s *service) StreamingOutputCall(in *testgrpc.StreamingOutputCallRequest, out testgrpc.TestService_StreamingOutputCallServer) error {
	return s.output(in, out)
}

func (s *service) StreamingInputCall(in testgrpc.TestService_StreamingInputCallServer) error {
	return s.input(in)
}

func (s *service) FullDuplexCall(both testgrpc.TestService_FullDuplexCallServer) error {
	return s.duplex(both)
}

// Methods of the service.
const (
	unaryCall  = "/grpc.testing.TestService/UnaryCall"
	outputCall = "/grpc.testing.TestService/StreamingOutputCall"
	duplexCall = "/grpc.testing.TestService/FullDuplexCall"
)

// serve starts a server on the loopback interface and returns a client of it.
func serve(t testing.TB, s *service, opts ...grpc.ServerOption) testgrpc.TestServiceClient {
	return testgrpc.NewTestServiceClient(dial(t, start(t, s, opts...)))
}

// start starts a server with the test service, and what register adds, and returns its address.
func start(t testing.TB, s *service, opts ...grpc.ServerOption) string {
	t.Helper()
	return startWith(t, func(server *grpc.Server) { testgrpc.RegisterTestServiceServer(server, s) }, opts...)
}

func startWith(t testing.TB, register func(*grpc.Server), opts ...grpc.ServerOption) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(opts...)
	register(server)
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(l) }) // it ends with Stop
	t.Cleanup(func() { server.Stop(); running.Wait() })
	return l.Addr().String()
}

// dial returns a client's connection.
func dial(t testing.TB, address string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	opts = append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, opts...)
	c, err := grpc.NewClient("passthrough:///"+address, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// patience is how long a test waits for a condition. Only a fault takes so long.
const patience = 3 * time.Minute

// await waits until ok returns true.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	end := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		<-time.After(time.Millisecond)
	}
}

// within is a context that only ends what hangs.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func newLimit(t testing.TB, n int64, waiting int) *limit.Limiter {
	l := weir.Must(limit.New(limit.Config{Name: "api", Limit: n, Queue: limit.Queue{Len: waiting, MaxWait: patience}}))
	t.Cleanup(l.Close)
	return l
}

// recorder is a gate that records the work and the outcomes.
type recorder struct {
	weir.Gate
	mu    sync.Mutex
	works []weir.Work
}

func (r *recorder) Admit(ctx context.Context, w weir.Work) (weir.Permit, error) {
	r.mu.Lock()
	r.works = append(r.works, w)
	r.mu.Unlock()
	return r.Gate.Admit(ctx, w)
}

func (r *recorder) last(t testing.TB) weir.Work {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.works) == 0 {
		t.Fatal("the gate was not asked")
	}
	return r.works[len(r.works)-1]
}

// outcomes counts the outcomes of a limiter's work.
type outcomes struct {
	mu sync.Mutex
	of map[weir.Outcome]int
}

func counting(t testing.TB, n int64) (*limit.Limiter, *outcomes) {
	o := &outcomes{of: map[weir.Outcome]int{}}
	l := weir.Must(limit.New(limit.Config{Name: "api", Limit: n, Queue: limit.Queue{Len: -1},
		Hooks: weir.Hooks{Done: func(_ string, got weir.Outcome, _ time.Duration) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.of[got]++
		}}}))
	t.Cleanup(l.Close)
	return l, o
}

// take waits for one outcome and returns it. There must be no other.
func (o *outcomes) take(t testing.TB) weir.Outcome {
	t.Helper()
	var got weir.Outcome
	await(t, "an outcome", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		for k, n := range o.of {
			got = k
			if n != 1 || len(o.of) != 1 {
				t.Fatalf("outcomes %v", o.of)
			}
			delete(o.of, k)
			return true
		}
		return false
	})
	return got
}

func idle(g weir.Snapshotter) func() bool {
	return func() bool { return g.Snapshot().InFlight == 0 }
}

func wantCode(t testing.TB, err error, want codes.Code) *status.Status {
	t.Helper()
	st := status.Convert(err)
	if st.Code() != want {
		t.Fatalf("code %v (%v), want %v", st.Code(), err, want)
	}
	return st
}

func with(ctx context.Context, pairs ...string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, pairs...)
}
