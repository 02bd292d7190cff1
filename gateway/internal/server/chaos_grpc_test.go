package server

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-go/weir/gateway/internal/await"
)

// The same with gRPC: calls of all kinds end at any moment, and servers stop and start again.
func TestChaosOfGRPC(t *testing.T) {
	inChaos(t, func(t *testing.T, seed uint64) {
		before := runtime.NumGoroutine()
		servers := []*restarted{newRestarted(t), newRestarted(t)}
		src := new(source)
		text := chaosConfigsOfGRPC(closedPort(t), servers[0].addr, servers[1].addr)
		g := startChaos(t, src, text[0])
		var clients sync.WaitGroup
		var sent, answered atomic.Int64
		for i := range 8 {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			clients.Go(func() {
				conn, err := grpc.NewClient("passthrough:///"+g.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				for range 80 {
					sent.Add(1)
					if chaosCall(t, testgrpc.NewTestServiceClient(conn), random) {
						answered.Add(1)
					}
				}
			})
		}
		stop := reloading(t, g, src, text, rand.New(rand.NewPCG(seed, 1000)), func(random *rand.Rand) {
			if random.IntN(3) == 0 {
				servers[random.IntN(len(servers))].restart(random.IntN(2) == 0)
			}
		})
		clients.Wait()
		reloads := stop()
		g.settles(sent.Load(), answered.Load())
		for _, s := range servers {
			s.stop(false)
		}
		noMoreGoroutines(t, before)
		t.Logf("%d of %d answered, %d reloads", answered.Load(), sent.Load(), reloads)
	})
}

func chaosConfigsOfGRPC(listen, first, second string) []string {
	head := fmt.Sprintf("listeners: [{address: %s, h2c: true}]\nadmin: off\nidentity: {tenant: header:X-Tenant}\n", listen)
	return []string{
		head + fmt.Sprintf(`
upstreams: {app: {targets: ["h2c://%s", "h2c://%s"], response_timeout: 1s, grpc_idle_timeout: 200ms, passive_health: {failures: 3, for: 100ms}}}
gates: {app: {limit: {limit: 6, queue: {len: 20, max_wait: 100ms}}}}
routes: [{match: [/], gates: [app], upstream: app}]
`, first, second),
		head + fmt.Sprintf(`
upstreams: {app: {targets: ["h2c://%s", "h2c://%s"], balance: least_loaded, limit: {limit: 3, queue: {len: 5, max_wait: 50ms}}, on_client_disconnect: release}}
gates: {quota: {quota: {rate: 2000/s, burst: 50, by: [tenant]}}}
routes: [{match: [/], gates: [quota], upstream: app, max_wait: 20ms}]
streams: {max: 3}
`, first, second),
		head + fmt.Sprintf(`
upstreams: {app: {targets: ["h2c://%s"], response_timeout: 200ms, grpc_idle_timeout: 100ms}}
gates: {app: {limit: {queue: {len: 10, max_wait: 50ms}}}}
routes: [{match: [/], gates: [app], upstream: app, timeout: 300ms}]
`, second),
	}
}

// chaosCall makes one call, and reports whether it was answered.
func chaosCall(t *testing.T, to testgrpc.TestServiceClient, random *rand.Rand) bool {
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+random.IntN(400))*time.Millisecond)
	defer cancel()
	if random.IntN(4) == 0 {
		time.AfterFunc(time.Duration(random.IntN(30))*time.Millisecond, cancel)
	}
	ctx = metadata.AppendToOutgoingContext(ctx, "x-tenant", fmt.Sprint("t", random.IntN(3)))
	id := fmt.Appendf(nil, "%d", random.Uint64())
	switch random.IntN(6) {
	case 0:
		s, err := to.StreamingOutputCall(ctx, &testgrpc.StreamingOutputCallRequest{})
		if err != nil {
			return false
		}
		for range random.IntN(8) {
			if _, err := s.Recv(); err != nil {
				return false
			}
		}
		return true
	case 1:
		s, err := to.FullDuplexCall(ctx)
		if err != nil {
			return false
		}
		answered := false
		for range random.IntN(5) {
			if s.Send(&testgrpc.StreamingOutputCallRequest{Payload: &testgrpc.Payload{Body: id}}) != nil {
				return answered
			}
			out, err := s.Recv()
			if err != nil {
				return answered
			}
			if answered = true; !bytes.Equal(out.GetPayload().GetBody(), id) {
				t.Errorf("call %s got a message of %s", id, out.GetPayload().GetBody())
			}
		}
		if random.IntN(2) == 0 {
			_ = s.CloseSend()
			_, _ = s.Recv()
		}
		return answered
	default:
		out, err := to.UnaryCall(ctx, &testgrpc.SimpleRequest{ResponseSize: int32(random.IntN(8)), Payload: &testgrpc.Payload{Body: id}})
		if err == nil && !bytes.Equal(out.GetPayload().GetBody(), id) {
			t.Errorf("call %s got the answer to %s", id, out.GetPayload().GetBody())
		}
		return err == nil
	}
}

// chaosCallee answers as the request asks it to.
func chaosCallee() *callee {
	return &callee{
		unary: func(ctx context.Context, in *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			switch in.GetResponseSize() {
			case 0:
				return nil, status.Error(codes.Internal, "fault")
			case 1:
				<-ctx.Done()
				return nil, ctx.Err()
			case 2:
				await.Work(20 * time.Millisecond)
			}
			return &testgrpc.SimpleResponse{Payload: in.GetPayload()}, nil
		},
		output: func(s testgrpc.TestService_StreamingOutputCallServer) error {
			for range 5 {
				if err := s.Send(&testgrpc.StreamingOutputCallResponse{}); err != nil {
					return err
				}
				await.Work(2 * time.Millisecond)
			}
			return nil
		},
		duplex: func(s testgrpc.TestService_FullDuplexCallServer) error {
			for {
				in, err := s.Recv()
				if err != nil {
					return nil
				}
				if err := s.Send(&testgrpc.StreamingOutputCallResponse{Payload: in.GetPayload()}); err != nil {
					return err
				}
			}
		},
	}
}

// restarted is a server of gRPC that stops and starts again at its address.
type restarted struct {
	t       *testing.T
	addr    string
	server  *grpc.Server
	serving sync.WaitGroup
}

func newRestarted(t *testing.T) *restarted {
	s := &restarted{t: t, addr: closedPort(t)}
	s.start()
	t.Cleanup(func() { s.stop(false) })
	return s
}

func (s *restarted) start() {
	var l net.Listener
	eventually(s.t, "the port is free", func() (ok bool) {
		var err error
		l, err = net.Listen("tcp", s.addr)
		return err == nil
	})
	s.server = grpc.NewServer()
	testgrpc.RegisterTestServiceServer(s.server, chaosCallee())
	server := s.server
	s.serving.Go(func() { _ = server.Serve(l) }) // it ends with stop
}

func (s *restarted) stop(gracefully bool) {
	if gracefully {
		late := time.AfterFunc(100*time.Millisecond, s.server.Stop)
		s.server.GracefulStop()
		late.Stop()
	}
	s.server.Stop()
	s.serving.Wait()
}

func (s *restarted) restart(gracefully bool) {
	s.stop(gracefully)
	s.start()
}
