package weirgrpc_test

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/weirgrpc"
)

// incoming is the context of a call as the transport makes it.
func incoming(pairs ...string) context.Context {
	ctx := peer.NewContext(context.Background(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9}})
	return metadata.NewIncomingContext(ctx, metadata.Pairs(append([]string{":authority", "test", "content-type", "application/grpc",
		"user-agent", "grpc-go/1.85.0", "grpc-accept-encoding", "gzip"}, pairs...)...))
}

func named(t testing.TB) *policy.Policy {
	p, err := policy.Compile(policy.Spec{
		Identity: policy.IdentitySpec{Tenant: "header:X-Tenant", User: "header:X-User", Priority: "header:X-Priority"},
		Gates:    map[string]policy.GateSpec{"api": {Limit: &policy.LimitSpec{Limit: 1 << 19}}},
		Routes:   []policy.RouteSpec{{Match: []string{"POST /grpc.testing.TestService/"}, Gates: []string{"api"}}},
	}, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// cases are the calls whose cost is measured, and tested.
func cases(t testing.TB) []costCase {
	plain := weirgrpc.New(newLimit(t, 1<<19, 0), weirgrpc.WithYield(false))
	p := named(t)
	byPolicy := weirgrpc.New(nil, weirgrpc.WithYield(false), weirgrpc.WithPolicy(func() *policy.Policy { return p }))
	deadline, cancel := context.WithTimeout(incoming(), time.Hour)
	t.Cleanup(cancel)
	return []costCase{
		{"plain", plain, incoming(), bare},
		{"plain, a deadline", plain, deadline, bare},
		{"plain, a handler that asks for a value", plain, incoming(), asking},
		{"yield", weirgrpc.New(newLimit(t, 1<<19, 0)), incoming(), bare},
		{"policy", byPolicy, incoming(), bare},
		{"policy, a deadline", byPolicy, deadline, bare},
		{"policy, three keys", byPolicy, incoming("x-tenant", "acme", "x-user", "alice", "x-priority", "high"), bare},
	}
}

type costCase struct {
	name    string
	guard   *weirgrpc.Guard
	ctx     context.Context
	handler grpc.UnaryHandler
}

func bare(_ context.Context, req any) (any, error) { return req, nil }

type anyKey struct{}

// asking is a handler that asks its context for a value, as tracing does.
func asking(ctx context.Context, req any) (any, error) {
	_ = ctx.Value(anyKey{})
	return req, nil
}

// An interceptor makes one allocation for a call, and none for the keys that it reads. If a version of grpc-go
// keeps metadata in another way, this test fails.
func TestCost(t *testing.T) {
	for _, tt := range cases(t) {
		unary, info, req := tt.guard.Unary(), &grpc.UnaryServerInfo{FullMethod: unaryCall}, any(new(testgrpc.SimpleRequest))
		n := testing.AllocsPerRun(200, func() {
			if _, err := unary(tt.ctx, req, info, tt.handler); err != nil {
				t.Fatal(err)
			}
		})
		if n > 1 {
			t.Errorf("%s: %v allocations, want one", tt.name, n)
		}
	}
}

// BenchmarkUnary measures an interceptor around a handler that does almost nothing. The heap is tiny here, so
// the garbage collector runs hundreds of times a second. Its share of these figures is larger than in any
// server.
func BenchmarkUnary(b *testing.B) {
	info, req := &grpc.UnaryServerInfo{FullMethod: unaryCall}, any(new(testgrpc.SimpleRequest))
	run := func(b *testing.B, ctx context.Context, unary grpc.UnaryServerInterceptor, handler grpc.UnaryHandler) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := unary(ctx, req, info, handler); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("bare", func(b *testing.B) {
		run(b, incoming(), func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			return handler(ctx, req)
		}, bare)
	})
	for _, tt := range cases(b) {
		b.Run(tt.name, func(b *testing.B) { run(b, tt.ctx, tt.guard.Unary(), tt.handler) })
	}
}

// BenchmarkTap measures tap and interceptor together, beside a call with neither.
func BenchmarkTap(b *testing.B) {
	guard := weirgrpc.New(newLimit(b, 1<<19, 0), weirgrpc.WithYield(false))
	in, unary := guard.Tap(nil), guard.Unary()
	info, req := &grpc.UnaryServerInfo{FullMethod: unaryCall}, any(new(testgrpc.SimpleRequest))
	tapped := &tap.Info{FullMethodName: unaryCall, Header: metadata.MD{}}
	if _, err := unary(context.Background(), req, info, bare); err != nil { // the method is known now
		b.Fatal(err)
	}
	b.Run("bare", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			ctx.Done() // which the transport asks for
			if _, err := bare(ctx, req); err != nil {
				b.Fatal(err)
			}
			cancel()
		}
	})
	b.Run("tap", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			ctx.Done()
			ctx, err := in(ctx, tapped)
			if err == nil {
				_, err = unary(ctx, req, info, bare)
			}
			if err != nil {
				b.Fatal(err)
			}
			cancel()
		}
	})
}

// BenchmarkRefusal measures a refused call with a message of 1 MB, over the loopback interface:
// decided in the tap, and in the interceptor.
func BenchmarkRefusal(b *testing.B) {
	for _, withTap := range []bool{true, false} {
		name := "interceptor"
		if withTap {
			name = "tap"
		}
		b.Run(name, func(b *testing.B) {
			gate := newLimit(b, 1, -1)
			guard := weirgrpc.New(gate)
			opts := guard.ServerOptions()
			if withTap {
				opts = tapping(guard, nil)
			}
			client := serve(b, &service{unary: answer}, opts...)
			known(b, client)
			await(b, "the slot is free", idle(gate))
			if _, err := gate.TryAdmit(weir.Work{}); err != nil {
				b.Fatal(err)
			}
			req := &testgrpc.SimpleRequest{Payload: &testgrpc.Payload{Body: make([]byte, 1<<20)}}
			b.ReportAllocs()
			for b.Loop() {
				ctx, cancel := context.WithTimeout(context.Background(), brief)
				if _, err := client.UnaryCall(ctx, req); err == nil {
					b.Fatal("admitted")
				}
				cancel()
			}
		})
	}
}

// Tap and interceptor together make few allocations.
func TestTapCost(t *testing.T) {
	guard := weirgrpc.New(newLimit(t, 1<<19, 0), weirgrpc.WithYield(false))
	in, unary := guard.Tap(nil), guard.Unary()
	info, req := &grpc.UnaryServerInfo{FullMethod: unaryCall}, any(new(testgrpc.SimpleRequest))
	tapped := &tap.Info{FullMethodName: unaryCall, Header: metadata.MD{}}
	run := func(with bool) float64 {
		return testing.AllocsPerRun(200, func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			ctx.Done() // which the transport asks for
			var err error
			if with {
				ctx, err = in(ctx, tapped)
			}
			if err == nil && with {
				_, err = unary(ctx, req, info, bare)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
	if n := run(true) - run(false); n > 2 {
		t.Errorf("%v allocations, want at most 2", n)
	}
	if n := guard.TapSnapshot().Admitted; n == 0 {
		t.Error("the tap has decided nothing")
	}
}
