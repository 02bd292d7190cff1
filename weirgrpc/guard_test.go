package weirgrpc_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/weirgrpc"
)

// held is a handler that says when it runs, and returns when the test says so.
type held struct{ running, finish chan struct{} }

func newHeld() held { return held{make(chan struct{}, 64), make(chan struct{})} }

func (h held) unary(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	h.running <- struct{}{}
	<-h.finish
	return new(testgrpc.SimpleResponse), nil
}

func answer(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	return new(testgrpc.SimpleResponse), nil
}

func TestUnary(t *testing.T) {
	gate := newLimit(t, 1, -1)
	h := newHeld()
	client := serve(t, &service{unary: h.unary}, weirgrpc.New(gate).ServerOptions()...)
	ctx := within(t)
	first := make(chan error, 1)
	go func() { _, err := client.UnaryCall(ctx, new(testgrpc.SimpleRequest)); first <- err }()
	<-h.running

	var header, trailer metadata.MD
	_, err := client.UnaryCall(ctx, new(testgrpc.SimpleRequest), grpc.Header(&header), grpc.Trailer(&trailer))
	st := wantCode(t, err, codes.Unavailable)
	var info *errdetails.ErrorInfo
	for _, d := range st.Details() {
		if i, ok := d.(*errdetails.ErrorInfo); ok {
			info = i
		}
	}
	if info.GetReason() != "LIMIT" || info.GetDomain() != weirgrpc.Domain || info.GetMetadata()["gate"] != "api" {
		t.Errorf("details %v", st.Details())
	}
	if ms := trailer.Get(weirgrpc.PushbackHeader); len(ms) > 1 || len(ms) == 1 && ms[0] == "-1" {
		t.Errorf("trailer %v", trailer)
	}
	if len(header) != 0 {
		t.Errorf("a refusal with headers %v commits the call", header)
	}

	h.finish <- struct{}{}
	if err := <-first; err != nil {
		t.Error(err)
	}
	await(t, "the slot is free", idle(gate))
	go func() { <-h.running; h.finish <- struct{}{} }()
	if _, err := client.UnaryCall(ctx, new(testgrpc.SimpleRequest)); err != nil {
		t.Error(err)
	}
}

// A handler that ends in any way gives its slot back, and the outcome says how it ended.
func TestOutcomes(t *testing.T) {
	left, leave := context.WithCancel(t.Context())
	defer leave()
	entered := make(chan struct{})
	for _, tt := range []struct {
		name    string
		ctx     context.Context
		handler func(ctx context.Context) error
		want    weir.Outcome
	}{
		{"ok", nil, func(context.Context) error { return nil }, weir.OK},
		{"a no", nil, func(context.Context) error { return status.Error(codes.NotFound, "none") }, weir.OK},
		{"failed", nil, func(context.Context) error { return status.Error(codes.Internal, "broken") }, weir.Failed},
		{"an error of no kind", nil, func(context.Context) error { return errors.New("broken") }, weir.Failed},
		{"overloaded", nil, func(context.Context) error { return status.Error(codes.ResourceExhausted, "full") }, weir.Overload},
		{"over a quota", nil, func(context.Context) error {
			return weirgrpc.Status(&weir.Rejection{Reason: weir.ReasonQuota, Gate: "below"}).Err()
		}, weir.OK},
		{"a refusal from below", nil, func(context.Context) error {
			return fmt.Errorf("wrapped: %w", &weir.Rejection{Reason: weir.ReasonQueueFull})
		}, weir.Overload},
		{"a panic", nil, func(context.Context) error { panic("broken") }, weir.Failed},
		{"the client left", left, func(ctx context.Context) error {
			close(entered)
			<-ctx.Done()
			return nil
		}, weir.Abandoned},
	} {
		t.Run(tt.name, func(t *testing.T) {
			gate, outcomes := counting(t, 1)
			recovering := grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
				defer func() {
					if v := recover(); v != nil {
						err = status.Errorf(codes.Internal, "panic: %v", v)
					}
				}()
				return handler(ctx, req)
			})
			client := serve(t, &service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
				if err := tt.handler(ctx); err != nil {
					return nil, err
				}
				return new(testgrpc.SimpleResponse), nil
			}}, append([]grpc.ServerOption{recovering}, weirgrpc.New(gate).ServerOptions()...)...)
			ctx := tt.ctx
			if ctx == nil {
				ctx = within(t)
			} else {
				go func() { <-entered; leave() }()
			}
			_, _ = client.UnaryCall(ctx, new(testgrpc.SimpleRequest)) // the gate has the outcome
			if got := outcomes.take(t); got != tt.want {
				t.Errorf("outcome %v, want %v", got, tt.want)
			}
			await(t, "the slot is free", idle(gate))
		})
	}
}

// A handler that ends its goroutine gives its slot back, too.
func TestGoexit(t *testing.T) {
	gate, outcomes := counting(t, 1)
	unary := weirgrpc.New(gate).Unary()
	var done sync.WaitGroup
	done.Go(func() {
		_, _ = unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: unaryCall}, func(context.Context, any) (any, error) {
			runtime.Goexit()
			return nil, nil
		})
	})
	done.Wait()
	if got := outcomes.take(t); got != weir.Failed {
		t.Errorf("outcome %v", got)
	}
}

// A call that its client has left keeps its slot while its handler works.
func TestSlotOutlastsTheClient(t *testing.T) {
	gate := newLimit(t, 1, -1)
	h := newHeld()
	client := serve(t, &service{unary: h.unary}, weirgrpc.New(gate).ServerOptions()...)
	ctx, leave := context.WithCancel(within(t))
	first := make(chan error, 1)
	go func() { _, err := client.UnaryCall(ctx, new(testgrpc.SimpleRequest)); first <- err }()
	<-h.running
	leave()
	wantCode(t, <-first, codes.Canceled)
	for range 20 {
		if _, err := client.UnaryCall(within(t), new(testgrpc.SimpleRequest)); status.Code(err) != codes.Unavailable {
			t.Fatalf("admitted beside a handler that works: %v", err)
		}
	}
	close(h.finish)
	await(t, "the slot is free", idle(gate))
}

// A call that waits leaves the room when its client leaves, and the answer says what happened.
func TestWaiterLeaves(t *testing.T) {
	gate := newLimit(t, 1, 4)
	h := newHeld()
	client := serve(t, &service{unary: h.unary}, weirgrpc.New(gate).ServerOptions()...)
	go func() { _, _ = client.UnaryCall(within(t), new(testgrpc.SimpleRequest)) }()
	<-h.running
	ctx, leave := context.WithCancel(within(t))
	second := make(chan error, 1)
	go func() { _, err := client.UnaryCall(ctx, new(testgrpc.SimpleRequest)); second <- err }()
	await(t, "the second waits", func() bool { return gate.Snapshot().Waiting == 1 })
	leave()
	wantCode(t, <-second, codes.Canceled)
	await(t, "the room is empty", func() bool { return gate.Snapshot().Waiting == 0 })
	close(h.finish)
	await(t, "the slot is free", idle(gate))
	if n := gate.Snapshot().Rejected[weir.ReasonCanceled]; n != 1 {
		t.Errorf("%d refused as canceled, want 1", n)
	}
}

// The deadline of a call is the deadline of its work.
func TestDeadline(t *testing.T) {
	gate := &recorder{Gate: newLimit(t, 4, 0)}
	client := serve(t, &service{unary: answer}, weirgrpc.New(gate).ServerOptions()...)
	if _, err := client.UnaryCall(t.Context(), new(testgrpc.SimpleRequest)); err != nil {
		t.Fatal(err)
	}
	if w := gate.last(t); !w.Deadline.IsZero() || w.Op != unaryCall {
		t.Errorf("without a deadline: %+v", w)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if _, err := client.UnaryCall(ctx, new(testgrpc.SimpleRequest)); err != nil {
		t.Fatal(err)
	}
	if left := time.Until(gate.last(t).Deadline); left > time.Hour || left < time.Hour-patience {
		t.Errorf("%v left of an hour", left)
	}
}

// A policy reads metadata as it reads headers, from trusted peers only.
func TestPolicy(t *testing.T) {
	spec := policy.Spec{
		Identity: policy.IdentitySpec{Tenant: "header:X-Tenant", User: "header:X-User", Priority: "header:X-Priority",
			Admissions: "header:grpc-previous-rpc-attempts"},
		Gates: map[string]policy.GateSpec{"api": {Limit: &policy.LimitSpec{Limit: 4}}},
		Routes: []policy.RouteSpec{
			{Name: "tests", Match: []string{"POST /grpc.testing.TestService/"}, Gates: []string{"api"}, DemoteAfter: 1, Timeout: policy.Duration(time.Hour)},
			{Name: "rest", Match: []string{"/"}, Gates: []string{"api"}},
		},
	}
	for _, tt := range []struct {
		name    string
		trusted []string
		pairs   []string
		want    weir.Work
	}{
		{"trusted", nil, []string{"x-tenant", "acme", "x-user", "alice", "x-priority", "high"},
			weir.Work{Tenant: "acme", User: "alice", Priority: weir.High}},
		{"stranger", []string{}, []string{"x-tenant", "acme", "x-user", "alice", "x-priority", "high"}, weir.Work{User: "127.0.0.1"}},
		{"in two minds", nil, []string{"x-tenant", "acme", "x-tenant", "other"}, weir.Work{}},
		{"a retry", nil, []string{"grpc-previous-rpc-attempts", "1", "x-priority", "high"}, weir.Work{Priority: weir.Background, Attempt: 1}},
		{"binary", nil, []string{"x-tenant-bin", "\x00\xff", "x-tenant", "acme"}, weir.Work{Tenant: "acme"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := spec
			spec.Identity.Trusted = tt.trusted
			p, err := policy.Compile(spec, policy.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.Close)
			var seen weir.Work
			guard := weirgrpc.New(nil, weirgrpc.WithPolicy(func() *policy.Policy { return p }),
				weirgrpc.WithWork(func(_ context.Context, _ string, w *weir.Work) { seen = *w }))
			client := serve(t, &service{unary: answer}, guard.ServerOptions()...)
			if _, err := client.UnaryCall(with(within(t), tt.pairs...), new(testgrpc.SimpleRequest)); err != nil {
				t.Fatal(err)
			}
			want := tt.want
			want.Op, want.Write = "tests", true
			if seen.Deadline.IsZero() || time.Until(seen.Deadline) > patience {
				t.Errorf("deadline %v", seen.Deadline)
			}
			if seen.Deadline = (time.Time{}); seen != want {
				t.Errorf("work %+v, want %+v", seen, want)
			}
		})
	}
}

// A policy trusts the names of a client certificate that the server has verified, and no other.
func TestPolicyAndCertificates(t *testing.T) {
	p, err := policy.Compile(policy.Spec{
		Identity: policy.IdentitySpec{Tenant: "cert:dns"},
		Gates:    map[string]policy.GateSpec{"api": {Limit: &policy.LimitSpec{Limit: 4}}},
		Routes:   []policy.RouteSpec{{Match: []string{"/"}, Gates: []string{"api"}}},
	}, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	shown := []*x509.Certificate{{DNSNames: []string{"web"}}}
	for _, tt := range []struct {
		tls  tls.ConnectionState
		want string
	}{
		{tls.ConnectionState{PeerCertificates: shown, VerifiedChains: [][]*x509.Certificate{shown}}, "web"},
		{tls.ConnectionState{PeerCertificates: shown}, ""},
	} {
		var seen weir.Work
		guard := weirgrpc.New(nil, weirgrpc.WithPolicy(func() *policy.Policy { return p }),
			weirgrpc.WithWork(func(_ context.Context, _ string, w *weir.Work) { seen = *w }))
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, AuthInfo: credentials.TLSInfo{State: tt.tls}})
		_, err := guard.Unary()(ctx, nil, &grpc.UnaryServerInfo{FullMethod: unaryCall}, func(context.Context, any) (any, error) { return nil, nil })
		if err != nil || seen.Tenant != tt.want {
			t.Errorf("verified %v: tenant %q, want %q; %v", tt.tls.VerifiedChains != nil, seen.Tenant, tt.want, err)
		}
	}
}

// The earlier of two deadlines counts: that of the call, and that of the work that was selected.
func TestSelectedDeadline(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct{ call, work, want time.Duration }{{time.Minute, time.Hour, time.Minute}, {time.Hour, time.Minute, time.Minute}} {
		var seen weir.Work
		guard := weirgrpc.New(nil, weirgrpc.WithSelect(func(context.Context, string) (weir.Gate, weir.Work) {
			return nil, weir.Work{Deadline: now.Add(tt.work)}
		}), weirgrpc.WithWork(func(_ context.Context, _ string, w *weir.Work) { seen = *w }))
		ctx, cancel := context.WithDeadline(t.Context(), now.Add(tt.call))
		_, err := guard.Unary()(ctx, nil, &grpc.UnaryServerInfo{FullMethod: unaryCall}, func(context.Context, any) (any, error) { return nil, nil })
		cancel()
		if err != nil || !seen.Deadline.Equal(now.Add(tt.want)) {
			t.Errorf("%+v: deadline in %v; %v", tt, seen.Deadline.Sub(now), err)
		}
	}
}

// Options change what is asked, who is asked, and what is answered.
func TestOptions(t *testing.T) {
	closed := newLimit(t, 1, -1)
	if _, err := closed.TryAdmit(weir.Work{}); err != nil {
		t.Fatal(err)
	}
	t.Run("select", func(t *testing.T) {
		client := serve(t, &service{unary: answer, output: func(*testgrpc.StreamingOutputCallRequest, testgrpc.TestService_StreamingOutputCallServer) error {
			return nil
		}}, weirgrpc.New(nil, weirgrpc.WithSelect(func(_ context.Context, method string) (weir.Gate, weir.Work) {
			if method == unaryCall {
				return closed, weir.Work{Op: "selected"}
			}
			return nil, weir.Work{}
		})).ServerOptions()...)
		_, err := client.UnaryCall(within(t), new(testgrpc.SimpleRequest))
		wantCode(t, err, codes.Unavailable)
		s, err := client.StreamingOutputCall(within(t), new(testgrpc.StreamingOutputCallRequest))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err == nil || err.Error() != "EOF" {
			t.Errorf("a call without a gate: %v", err)
		}
	})
	t.Run("reject", func(t *testing.T) {
		var asked string
		client := serve(t, &service{unary: answer}, weirgrpc.New(closed,
			weirgrpc.WithRejection(func(_ context.Context, method string, rej *weir.Rejection) error {
				asked = method + " " + rej.Reason.String()
				return status.Error(codes.Aborted, "mine")
			})).ServerOptions()...)
		_, err := client.UnaryCall(within(t), new(testgrpc.SimpleRequest))
		wantCode(t, err, codes.Aborted)
		if want := unaryCall + " limit"; asked != want {
			t.Errorf("%q, want %q", asked, want)
		}
	})
	t.Run("overload code", func(t *testing.T) {
		client := serve(t, &service{unary: answer}, weirgrpc.New(closed, weirgrpc.WithOverloadCode(codes.ResourceExhausted)).ServerOptions()...)
		_, err := client.UnaryCall(within(t), new(testgrpc.SimpleRequest))
		wantCode(t, err, codes.ResourceExhausted)
	})
	t.Run("nothing", func(t *testing.T) {
		client := serve(t, &service{unary: answer}, weirgrpc.New(nil).ServerOptions()...)
		if _, err := client.UnaryCall(within(t), new(testgrpc.SimpleRequest)); err != nil {
			t.Error(err)
		}
	})
	t.Run("a gate of the user's own", func(t *testing.T) {
		client := serve(t, &service{unary: answer}, weirgrpc.New(failing{errors.New("secret")}).ServerOptions()...)
		_, err := client.UnaryCall(within(t), new(testgrpc.SimpleRequest))
		if st := wantCode(t, err, codes.Unavailable); strings.Contains(st.Message(), "secret") {
			t.Errorf("the client reads %q", st.Message())
		}
	})
}

// failing is a gate that returns an unknown error.
type failing struct{ err error }

func (f failing) Admit(context.Context, weir.Work) (weir.Permit, error) { return weir.Permit{}, f.err }

// Work that the handler does through the same gate needs no second slot, and the handler can say
// what its work has cost.
func TestHandler(t *testing.T) {
	gate := newLimit(t, 1, -1)
	var nested error
	var inFlight int64
	client := serve(t, &service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		p, err := gate.Admit(ctx, weir.Work{})
		nested, inFlight = err, gate.Snapshot().InFlight
		p.Done(weir.OK)
		weirgrpc.FromContext(ctx).Sample(weir.Overload)
		weirgrpc.FromContext(ctx).SetCost("", 1)
		return new(testgrpc.SimpleResponse), nil
	}}, weirgrpc.New(gate).ServerOptions()...)
	if _, err := client.UnaryCall(within(t), new(testgrpc.SimpleRequest)); err != nil {
		t.Fatal(err)
	}
	if nested != nil || inFlight != 1 {
		t.Errorf("nested: %v, with %d in flight", nested, inFlight)
	}
	await(t, "the slot is free", idle(gate))
	var none *weirgrpc.Call
	none.Sample(weir.OK)
	none.SetCost("", 1)
	if none.ReleaseForStream() || weirgrpc.FromContext(t.Context()) != nil {
		t.Error("there is a call where none is")
	}
}

// A handler may return the refusal of a gate further in as it came. Its client gets the status of the refusal, marked as
// one that came after the work had begun. An error that has a status keeps it, but that of a refusal's Cause is not told.
func TestHandlerReturnsARefusal(t *testing.T) {
	var returned error
	s := &service{
		unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) { return nil, returned },
		output: func(*testgrpc.StreamingOutputCallRequest, testgrpc.TestService_StreamingOutputCallServer) error {
			return returned
		},
	}
	full := &weir.Rejection{Gate: "db", Reason: weir.ReasonQueueFull, Retryable: true, RetryAfter: time.Second}
	store := &weir.Rejection{Gate: "quota", Reason: weir.ReasonStore, Retryable: true, Cause: status.Error(codes.Internal, "of the store")}
	for _, tt := range []struct {
		name   string
		err    error
		code   codes.Code
		reason string // of the ErrorInfo
		back   string // the trailer, for clients with a retry policy
	}{
		{"a refusal", full, codes.ResourceExhausted, "QUEUE_FULL", "1000"}, // by WithOverloadCode
		{"one that is wrapped", fmt.Errorf("query: %w", full), codes.ResourceExhausted, "QUEUE_FULL", "1000"},
		{"one that is final", &weir.Rejection{Gate: "db", Reason: weir.ReasonBlocked}, codes.PermissionDenied, "BLOCKED", "-1"},
		{"one beside a status", fmt.Errorf("%w: %w", status.Error(codes.NotFound, "no"), full), codes.NotFound, "", ""},
		{"one whose cause has a status", store, codes.ResourceExhausted, "STORE", ""},
		{"one before a status", errors.Join(store, status.Error(codes.NotFound, "no")), codes.ResourceExhausted, "STORE", ""},
		{"another error", errors.New("no"), codes.Unknown, "", ""},
	} {
		returned = tt.err
		for gated, gate := range map[string]weir.Gate{"with a gate": newLimit(t, 9, 9), "without a gate": nil} {
			client := serve(t, s, weirgrpc.New(gate, weirgrpc.WithOverloadCode(codes.ResourceExhausted)).ServerOptions()...)
			var trailer metadata.MD
			_, unary := client.UnaryCall(within(t), new(testgrpc.SimpleRequest), grpc.Trailer(&trailer))
			answers, err := client.StreamingOutputCall(within(t), new(testgrpc.StreamingOutputCallRequest))
			if err != nil {
				t.Fatal(err)
			}
			_, streamed := answers.Recv()
			trailers := []metadata.MD{trailer, answers.Trailer()}
			for i, err := range []error{unary, streamed} {
				var reason, relayed string
				for _, d := range status.Convert(err).Details() {
					if info, ok := d.(*errdetails.ErrorInfo); ok {
						reason, relayed = info.Reason, info.Metadata["relayed"]
					}
				}
				if status.Code(err) != tt.code || reason != tt.reason || (relayed == "true") != (tt.reason != "") || strings.Contains(err.Error(), "of the store") {
					t.Errorf("%s, %s: %v, reason %q, relayed %q", tt.name, gated, err, reason, relayed)
				}
				if back := trailers[i][weirgrpc.PushbackHeader]; strings.Join(back, ",") != tt.back {
					t.Errorf("%s, %s: pushback %q, want %q", tt.name, gated, back, tt.back)
				}
			}
		}
	}
}

// Health checks take no slot, under the cap of exempt work, and go on while the server drains.
func TestHousekeeping(t *testing.T) {
	gate := newLimit(t, 1, -1)
	if _, err := gate.TryAdmit(weir.Work{}); err != nil {
		t.Fatal(err)
	}
	guard := weirgrpc.New(gate)
	checker := health.NewServer()
	checker.SetServingStatus("", healthgrpc.HealthCheckResponse_SERVING)
	conn := dial(t, startWith(t, func(s *grpc.Server) {
		healthgrpc.RegisterHealthServer(s, checker)
		testgrpc.RegisterTestServiceServer(s, &service{unary: answer})
	}, guard.ServerOptions()...))
	client := healthgrpc.NewHealthClient(conn)
	if r, err := client.Check(within(t), new(healthgrpc.HealthCheckRequest)); err != nil || r.Status != healthgrpc.HealthCheckResponse_SERVING {
		t.Fatalf("check: %v, %v", r, err)
	}
	watch, err := client.Watch(within(t), new(healthgrpc.HealthCheckRequest))
	if err != nil {
		t.Fatal(err)
	}
	if r, err := watch.Recv(); err != nil || r.Status != healthgrpc.HealthCheckResponse_SERVING {
		t.Fatalf("watch: %v, %v", r, err)
	}
	if s := gate.Snapshot(); s.Exempt != 0 || s.ExemptAdmitted != 2 {
		t.Errorf("a watch counts as exempt work for ever: %d of %d", s.Exempt, s.ExemptAdmitted)
	}

	_, err = testgrpc.NewTestServiceClient(conn).UnaryCall(within(t), new(testgrpc.SimpleRequest))
	wantCode(t, err, codes.Unavailable)
	guard.Drain(checker)
	if r, err := watch.Recv(); err != nil || r.Status != healthgrpc.HealthCheckResponse_NOT_SERVING {
		t.Fatalf("watch while draining: %v, %v", r, err)
	}
	if r, err := client.Check(within(t), new(healthgrpc.HealthCheckRequest)); err != nil || r.Status != healthgrpc.HealthCheckResponse_NOT_SERVING {
		t.Errorf("check while draining: %v, %v", r, err)
	}
	_, err = testgrpc.NewTestServiceClient(conn).UnaryCall(within(t), new(testgrpc.SimpleRequest))
	if st := wantCode(t, err, codes.Unavailable); !strings.Contains(fmt.Sprint(st.Details()), "DRAINING") {
		t.Errorf("draining: %v", st.Details())
	}
}

// A client that watches the server's health learns of a drain before any call is refused.
func TestDrainTellsFirst(t *testing.T) {
	guard := weirgrpc.New(newLimit(t, 1, -1))
	call := func() error {
		_, err := guard.Unary()(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: unaryCall}, bare)
		return err
	}
	told := false
	guard.Drain(shutdown(func() {
		told = true
		if err := call(); err != nil {
			t.Errorf("refused while the health service is told: %v", err)
		}
	}))
	if err := call(); !told || status.Code(err) != codes.Unavailable {
		t.Errorf("health is told: %v; then %v", told, err)
	}
}

type shutdown func()

func (f shutdown) Shutdown() { f() }

// The cap of exempt work holds for health checks.
func TestHousekeepingIsCapped(t *testing.T) {
	gate := &recorder{Gate: newLimit(t, 1, -1)}
	unary := weirgrpc.New(gate).Unary()
	for method, want := range map[string]bool{
		"/grpc.health.v1.Health/Check": true, "/grpc.channelz.v1.Channelz/GetServers": true,
		"/grpc.health.v1.Healthy/Check": false, "/grpc.testing.TestService/UnaryCall": false, "grpc.health.v1.Health/Check": false,
	} {
		_, err := unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: method}, func(context.Context, any) (any, error) { return nil, nil })
		if err != nil || gate.last(t).Exempt != want {
			t.Errorf("%s: exempt %v, want %v; %v", method, gate.last(t).Exempt, want, err)
		}
	}
}

// Clients with a retry policy in their service config come back when they are told, and not if that cannot help.
func TestRetries(t *testing.T) {
	const retrying = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 3,
		"initialBackoff": "3600s", "maxBackoff": "3600s", "backoffMultiplier": 1, "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"]}}]}`
	for _, tt := range []struct {
		name string
		rej  weir.Rejection
		want int // attempts
	}{
		{"when told", weir.Rejection{Reason: weir.ReasonQueueFull, RetryAfter: time.Microsecond, Retryable: true}, 3},
		{"never", weir.Rejection{Reason: weir.ReasonTooLarge, Value: 7, Limit: 3}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var mu sync.Mutex
			attempts := 0
			gate := gateFunc(func() error {
				mu.Lock()
				defer mu.Unlock()
				attempts++
				return &tt.rej
			})
			conn := dial(t, start(t, &service{unary: answer}, weirgrpc.New(gate).ServerOptions()...), grpc.WithDefaultServiceConfig(retrying))
			// A client that obeyed its own backoff would take an hour.
			if _, err := testgrpc.NewTestServiceClient(conn).UnaryCall(within(t), new(testgrpc.SimpleRequest)); err == nil {
				t.Fatal("admitted")
			}
			mu.Lock()
			defer mu.Unlock()
			if attempts != tt.want {
				t.Errorf("%d attempts, want %d", attempts, tt.want)
			}
		})
	}
}

// While retries are common among the refusals of a route, a refusal says that it is useless to come
// back.
func TestRetriesThatAreCommon(t *testing.T) {
	p, err := policy.Compile(policy.Spec{
		Gates:  map[string]policy.GateSpec{"api": {Limit: &policy.LimitSpec{Limit: 1, Queue: policy.QueueSpec{Len: -1}}}},
		Routes: []policy.RouteSpec{{Name: "all", Match: []string{"/"}, Gates: []string{"api"}}},
	}, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	if _, err := p.Gate("api").Admit(t.Context(), weir.Work{}); err != nil { // it is full from now on
		t.Fatal(err)
	}
	believes := func(yes bool) func(context.Context) bool { return func(context.Context) bool { return yes } }
	for _, tt := range []struct {
		name  string
		guard *weirgrpc.Guard
		final bool // after a dozen retries
	}{
		{"a policy", weirgrpc.New(nil, weirgrpc.WithPolicy(func() *policy.Policy { return p })), true},
		{"trusted peers", weirgrpc.New(p.Gate("api"), weirgrpc.WithAttempts(nil, believes(true))), true},
		{"strangers", weirgrpc.New(p.Gate("api"), weirgrpc.WithAttempts(nil, believes(false))), false},
		{"nobody is trusted", weirgrpc.New(p.Gate("api"), weirgrpc.WithAttempts(nil, nil)), false},
		{"not counted", weirgrpc.New(p.Gate("api")), false},
	} {
		client := serve(t, &service{unary: answer}, tt.guard.ServerOptions()...)
		var pushback []string
		for range 12 {
			var trailer metadata.MD
			_, err := client.UnaryCall(with(within(t), "grpc-previous-rpc-attempts", "1"), new(testgrpc.SimpleRequest), grpc.Trailer(&trailer))
			if err == nil {
				t.Fatal("admitted")
			}
			pushback = append(pushback, trailer.Get(weirgrpc.PushbackHeader)...)
		}
		if n := len(pushback); n < 3 || pushback[n-1] == "-1" != tt.final || pushback[0] == "-1" {
			t.Errorf("%s: pushback %q, want -1 from the tenth retry on: %v", tt.name, pushback, tt.final)
		}
	}
}

type gateFunc func() error

func (f gateFunc) Admit(context.Context, weir.Work) (weir.Permit, error) { return weir.Permit{}, f() }

// A client may send absurd numbers of attempts.
func TestAttemptNumbers(t *testing.T) {
	var attempt atomic.Int64
	p, err := policy.Compile(policy.Spec{
		Gates:  map[string]policy.GateSpec{"api": {Limit: &policy.LimitSpec{Limit: 4}}},
		Routes: []policy.RouteSpec{{Name: "all", Match: []string{"/"}, Gates: []string{"api"}}},
	}, policy.Options{Hooks: weir.Hooks{Admitted: func(_ string, w weir.Work, _ time.Duration) { attempt.Store(int64(w.Attempt)) }}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	unary := func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		return new(testgrpc.SimpleResponse), nil
	}
	byPolicy := serve(t, &service{unary: unary}, weirgrpc.New(nil, weirgrpc.WithPolicy(func() *policy.Policy { return p })).ServerOptions()...)
	byOption := serve(t, &service{unary: unary}, weirgrpc.New(p.Gate("api"), weirgrpc.WithAttempts(nil, nil)).ServerOptions()...)
	for _, tt := range []struct {
		pairs []string
		want  int64
	}{
		{nil, 0},
		{[]string{"x-weir-attempt", "2"}, 2},
		{[]string{"x-weir-attempt", "1", "x-weir-attempt", "0"}, 1},
		{[]string{"x-weir-attempt", "-1"}, 0},
		{[]string{"x-weir-attempt", "9223372036854775808"}, 1000},
		{[]string{"x-weir-attempt", "NaN"}, 0},
		{[]string{"x-weir-attempt", ""}, 0},
		{[]string{"grpc-previous-rpc-attempts", "3", "x-weir-attempt", "1"}, 3},
	} {
		for _, client := range []testgrpc.TestServiceClient{byPolicy, byOption} {
			attempt.Store(-1)
			if _, err := client.UnaryCall(with(within(t), tt.pairs...), new(testgrpc.SimpleRequest)); err != nil || attempt.Load() != tt.want {
				t.Errorf("%q: attempt %d, %v; want %d", tt.pairs, attempt.Load(), err, tt.want)
			}
		}
	}
}
