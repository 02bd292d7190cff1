package weirgrpc_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/throttle"
	"github.com/weir-go/weir/weirgrpc"
	"github.com/weir-go/weir/weirhttp"
)

// clientOf returns a client whose waits are short enough for a test.
func clientOf(t testing.TB, cfg throttle.CallerConfig) *weirgrpc.Client {
	t.Helper()
	cfg.Retry.Backoff = time.Millisecond
	if cfg.Random == nil {
		cfg.Random = func() float64 { return 0.99 } // above the share of a few failures
	}
	return &weirgrpc.Client{Caller: weir.Must(throttle.NewCaller(cfg)), Safe: func(context.Context, string) bool { return true }}
}

// through returns a client of the test service whose calls go through c.
func through(t testing.TB, c *weirgrpc.Client, address string, opts ...grpc.DialOption) testgrpc.TestServiceClient {
	t.Helper()
	return testgrpc.NewTestServiceClient(dial(t, address, append(c.DialOptions(), opts...)...))
}

// receive receives all of a stream.
func receive(s testgrpc.TestService_StreamingOutputCallClient) (n int, err error) {
	for {
		if _, err = s.Recv(); err == io.EOF {
			return n, nil
		} else if err != nil {
			return n, err
		}
		n++
	}
}

// By itself, grpc-go would make five attempts of each of ours. With our options it makes one.
func TestClientMakesThreeAttemptsAtMost(t *testing.T) {
	var calls atomic.Int32
	no := func() error {
		calls.Add(1)
		return status.Error(codes.Unavailable, "no")
	}
	address := start(t, &service{
		unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) { return nil, no() },
		output: func(*testgrpc.StreamingOutputCallRequest, testgrpc.TestService_StreamingOutputCallServer) error {
			return no()
		},
	})
	const config = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.001s",
		"maxBackoff": "0.001s", "backoffMultiplier": 1, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`
	client := through(t, clientOf(t, throttle.CallerConfig{}), address, grpc.WithDefaultServiceConfig(config))
	_, err := client.UnaryCall(within(t), new(testgrpc.SimpleRequest))
	if wantCode(t, err, codes.Unavailable); calls.Swap(0) != 3 {
		t.Error("a unary call was not tried three times")
	}
	s, err := client.StreamingOutputCall(within(t), new(testgrpc.StreamingOutputCallRequest))
	if err != nil {
		t.Fatal(err)
	}
	_, err = receive(s)
	if wantCode(t, err, codes.Unavailable); calls.Swap(0) != 3 {
		t.Error("a call that streams answers was not tried three times")
	}
	// Without the client's options the same config makes five attempts.
	plain := testgrpc.NewTestServiceClient(dial(t, address, grpc.WithDefaultServiceConfig(config)))
	if _, _ = plain.UnaryCall(within(t), new(testgrpc.SimpleRequest)); calls.Swap(0) != 5 {
		t.Error("the config of this test asks for no retries")
	}
}

// Before a server with a gate, a call that is refused at first is served in the end, also if it must not be
// done twice. Its request is sent again.
func TestClientBeforeGuard(t *testing.T) {
	gate := newLimit(t, 1, -1)
	full := true
	var told []string
	guard := weirgrpc.New(nil, weirgrpc.WithSelect(func(ctx context.Context, method string) (weir.Gate, weir.Work) {
		told = append(told, strings.Join(metadata.ValueFromIncomingContext(ctx, "x-weir-attempt"), "+"))
		if full = !full; !full {
			return refusing{}, weir.Work{}
		}
		return gate, weir.Work{Op: method}
	}))
	address := start(t, &service{
		unary: func(_ context.Context, in *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			return &testgrpc.SimpleResponse{Payload: in.Payload}, nil
		},
		output: func(in *testgrpc.StreamingOutputCallRequest, s testgrpc.TestService_StreamingOutputCallServer) error {
			return s.Send(&testgrpc.StreamingOutputCallResponse{Payload: in.Payload})
		},
	}, guard.ServerOptions()...)
	c := clientOf(t, throttle.CallerConfig{Guard: throttle.NoGuard})
	c.Safe = nil
	var refusers []string
	c.Refused = func(_ context.Context, method, at string) { refusers = append(refusers, method+" "+at) }
	client := through(t, c, address)
	payload := &testgrpc.Payload{Body: []byte("hello")}
	got, err := client.UnaryCall(within(t), &testgrpc.SimpleRequest{Payload: payload})
	if err != nil || string(got.Payload.Body) != "hello" {
		t.Fatalf("%v, %v", got, err)
	}
	s, err := client.StreamingOutputCall(within(t), &testgrpc.StreamingOutputCallRequest{Payload: payload})
	if err != nil {
		t.Fatal(err)
	}
	first, err := s.Recv()
	if err != nil || string(first.Payload.Body) != "hello" {
		t.Fatalf("%v, %v", first, err)
	}
	if _, err := s.Recv(); err != io.EOF {
		t.Errorf("%v", err)
	}
	if want := []string{"", "1", "", "1"}; !slices.Equal(told, want) {
		t.Errorf("attempts %q, want %q", told, want)
	}
	if want := []string{unaryCall + " " + address, outputCall + " " + address}; !slices.Equal(refusers, want) {
		t.Errorf("refused by %q, want %q", refusers, want)
	}
}

// refusing is a gate with a full wait room.
type refusing struct{}

func (refusing) Admit(context.Context, weir.Work) (weir.Permit, error) {
	return weir.Permit{}, &weir.Rejection{Gate: "shop", Reason: weir.ReasonQueueFull, Retryable: true}
}

// A call that streams requests is not repeated, and neither is a call whose answer has been seen.
func TestClientRepeatsNoStream(t *testing.T) {
	var calls atomic.Int32
	no := status.Error(codes.Unavailable, "no")
	address := start(t, &service{
		output: func(_ *testgrpc.StreamingOutputCallRequest, s testgrpc.TestService_StreamingOutputCallServer) error {
			calls.Add(1)
			_ = s.Send(new(testgrpc.StreamingOutputCallResponse))
			return no
		},
		duplex: func(testgrpc.TestService_FullDuplexCallServer) error { calls.Add(1); return no },
	})
	client := through(t, clientOf(t, throttle.CallerConfig{}), address)
	out, err := client.StreamingOutputCall(within(t), new(testgrpc.StreamingOutputCallRequest))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := receive(out); n != 1 || status.Code(err) != codes.Unavailable || calls.Swap(0) != 1 {
		t.Errorf("%d answers, %v", n, err)
	}
	out, err = client.StreamingOutputCall(within(t), new(testgrpc.StreamingOutputCallRequest))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Header(); err != nil {
		t.Fatal(err)
	}
	if _, err := receive(out); status.Code(err) != codes.Unavailable || calls.Swap(0) != 1 {
		t.Errorf("%v", err)
	}
	both, err := client.FullDuplexCall(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := both.Recv(); status.Code(err) != codes.Unavailable || calls.Swap(0) != 1 {
		t.Errorf("%v", err)
	}
}

// The slot of the client's own limit is held until the call has ended, however it ends.
func TestClientHoldsTheSlot(t *testing.T) {
	own := newLimit(t, 1, -1)
	stay := make(chan struct{})
	defer close(stay)
	held := func(context.Context) error {
		if n := own.Snapshot().InFlight; n != 1 {
			t.Errorf("%d slots held during the call", n)
		}
		return nil
	}
	address := start(t, &service{
		unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			return new(testgrpc.SimpleResponse), held(ctx)
		},
		output: func(in *testgrpc.StreamingOutputCallRequest, s testgrpc.TestService_StreamingOutputCallServer) error {
			for range 2 {
				if err := s.Send(new(testgrpc.StreamingOutputCallResponse)); err != nil {
					return err
				}
			}
			if in.ResponseParameters != nil {
				<-stay
			}
			return nil
		},
		input: func(s testgrpc.TestService_StreamingInputCallServer) error {
			for {
				if _, err := s.Recv(); err == io.EOF {
					return s.SendAndClose(new(testgrpc.StreamingInputCallResponse))
				} else if err != nil {
					return err
				}
			}
		},
		duplex: func(s testgrpc.TestService_FullDuplexCallServer) error {
			_, _ = s.Recv()
			return nil
		},
	})
	client := through(t, clientOf(t, throttle.CallerConfig{Limit: own}), address)
	ctx := within(t)
	for name, call := range map[string]func(context.Context, context.CancelFunc) error{
		"unary": func(ctx context.Context, _ context.CancelFunc) error {
			_, err := client.UnaryCall(ctx, new(testgrpc.SimpleRequest))
			return err
		},
		"answers to their end": func(ctx context.Context, _ context.CancelFunc) error {
			s, err := client.StreamingOutputCall(ctx, new(testgrpc.StreamingOutputCallRequest))
			if err != nil {
				return err
			}
			_, _ = s.Recv()
			_ = held(ctx)
			_, err = receive(s)
			return err
		},
		"answers that are given up": func(ctx context.Context, leave context.CancelFunc) error {
			s, err := client.StreamingOutputCall(ctx, &testgrpc.StreamingOutputCallRequest{ResponseParameters: []*testgrpc.ResponseParameters{{}}})
			if err != nil {
				return err
			}
			_, err = s.Recv()
			_ = held(ctx)
			leave()
			return err
		},
		"requests": func(ctx context.Context, _ context.CancelFunc) error {
			s, err := client.StreamingInputCall(ctx)
			if err != nil {
				return err
			}
			_ = s.Send(new(testgrpc.StreamingInputCallRequest))
			_ = held(ctx)
			_, err = s.CloseAndRecv()
			return err
		},
		"both ways": func(ctx context.Context, _ context.CancelFunc) error {
			s, err := client.FullDuplexCall(ctx)
			if err != nil {
				return err
			}
			_ = held(ctx)
			_ = s.CloseSend()
			if _, err = s.Recv(); err == io.EOF {
				return nil
			}
			return err
		},
	} {
		ctx, cancel := context.WithCancel(ctx)
		if err := call(ctx, cancel); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		await(t, name+": the slot is free", idle(own))
		cancel()
	}
}

// A stream is sampled with its first answer, however the stream ends.
func TestClientSamplesTheFirstAnswer(t *testing.T) {
	outcomes := make(chan weir.Outcome, 1)
	own := weir.Must(limit.New(limit.Config{Name: "own", Limit: 1, Hooks: weir.Hooks{
		Done: func(_ string, o weir.Outcome, _ time.Duration) { outcomes <- o },
	}}))
	t.Cleanup(own.Close)
	seen := make(chan struct{})
	address := start(t, &service{
		output: func(_ *testgrpc.StreamingOutputCallRequest, s testgrpc.TestService_StreamingOutputCallServer) error {
			_ = s.Send(new(testgrpc.StreamingOutputCallResponse))
			<-seen
			return status.Error(codes.Unavailable, "no")
		},
	})
	client := through(t, clientOf(t, throttle.CallerConfig{Limit: own}), address)
	out, err := client.StreamingOutputCall(within(t), new(testgrpc.StreamingOutputCallRequest))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Recv(); err != nil {
		t.Fatal(err)
	}
	close(seen)
	if _, err := receive(out); status.Code(err) != codes.Unavailable {
		t.Errorf("%v", err)
	}
	if o := <-outcomes; o != weir.OK {
		t.Errorf("the outcome is %v", o)
	}
}

// The gates get the outcome of a unary call by its error.
func TestClientSamplesUnaryCalls(t *testing.T) {
	code := codes.OK
	address := start(t, &service{unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		return new(testgrpc.SimpleResponse), status.Error(code, "so")
	}})
	c := clientOf(t, throttle.CallerConfig{Retry: throttle.Retry{Attempts: 1}})
	client := through(t, c, address)
	for _, tt := range []struct {
		code codes.Code
		want weir.Outcome
	}{{codes.OK, weir.OK}, {codes.Unavailable, weir.Overload}, {codes.Internal, weir.Failed}, {codes.NotFound, weir.OK}} {
		code = tt.code
		before := map[weir.Outcome]uint64{}
		if list := c.Caller.Targets(); len(list) > 0 {
			before = list[0].Guard.Outcomes
		}
		_, err := client.UnaryCall(within(t), new(testgrpc.SimpleRequest))
		wantCode(t, err, tt.code)
		if after := c.Caller.Targets()[0].Guard.Outcomes; after[tt.want] != before[tt.want]+1 {
			t.Errorf("%v: outcomes %v after %v, want one more %v", tt.code, after, before, tt.want)
		}
	}
}

// If this process refuses a call, the error has the Rejection and a status, and the call is not tried again.
func TestClientRefusesLocally(t *testing.T) {
	own := newLimit(t, 1, -1)
	p, err := own.TryAdmit(weir.Work{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Done(weir.OK)
	client := through(t, clientOf(t, throttle.CallerConfig{Limit: own}), "127.0.0.1:1")
	_, unaryErr := client.UnaryCall(within(t), new(testgrpc.SimpleRequest))
	_, streamErr := client.FullDuplexCall(within(t))
	for _, err := range []error{unaryErr, streamErr} {
		if rej := weir.AsRejection(err); rej == nil || rej.Gate != "api" {
			t.Errorf("%v", err)
		}
		wantCode(t, err, codes.Unavailable)
	}
	if n := own.Snapshot().Rejected[weir.ReasonLimit]; n != 2 {
		t.Errorf("%d refusals for two calls", n)
	}
}

// noToken is credentials that cannot be had.
type noToken struct{}

func (noToken) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return nil, errors.New("the token server is down")
}
func (noToken) RequireTransportSecurity() bool { return false }

// What grpc-go cannot send says nothing of the server. Text and metadata may come from strangers.
func TestClientOfWhatCannotBeSent(t *testing.T) {
	address := start(t, &service{})
	strange := func(ctx context.Context) context.Context {
		return metadata.AppendToOutgoingContext(ctx, "x-request-id", "a\x01b")
	}
	streams := func(ctx context.Context, c testgrpc.TestServiceClient, in *testgrpc.StreamingOutputCallRequest) error {
		s, err := c.StreamingOutputCall(ctx, in)
		if err == nil {
			_, err = receive(s)
		}
		return err
	}
	text := &testgrpc.EchoStatus{Message: "\xff"}
	for name, send := range map[string]func(context.Context, testgrpc.TestServiceClient) error{
		"text that is no UTF-8": func(ctx context.Context, c testgrpc.TestServiceClient) error {
			_, err := c.UnaryCall(ctx, &testgrpc.SimpleRequest{ResponseStatus: text})
			return err
		},
		"the same in a stream": func(ctx context.Context, c testgrpc.TestServiceClient) error {
			return streams(ctx, c, &testgrpc.StreamingOutputCallRequest{ResponseStatus: text})
		},
		"metadata": func(ctx context.Context, c testgrpc.TestServiceClient) error {
			_, err := c.UnaryCall(strange(ctx), new(testgrpc.SimpleRequest))
			return err
		},
		"metadata of a stream": func(ctx context.Context, c testgrpc.TestServiceClient) error {
			return streams(strange(ctx), c, new(testgrpc.StreamingOutputCallRequest))
		},
		"no credentials": func(ctx context.Context, c testgrpc.TestServiceClient) error {
			_, err := c.UnaryCall(ctx, new(testgrpc.SimpleRequest), grpc.PerRPCCredentials(noToken{}))
			return err
		},
	} {
		c := clientOf(t, throttle.CallerConfig{Guard: throttle.GuardBreaker, Breaker: throttle.BreakerConfig{Run: 1}})
		err := send(within(t), through(t, c, address))
		guard := c.Caller.Targets()[0].Guard
		if err == nil || guard.Outcomes[weir.NoSample] != 1 || guard.Limit != -1 {
			t.Errorf("%s: %v, outcomes %v, %s", name, err, guard.Outcomes, guard.LimitReason)
		}
	}
}

// A server that cannot send its own answer has failed, though its words are the same.
func TestClientOfAServerThatCannotSend(t *testing.T) {
	address := start(t, &service{
		unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			return &testgrpc.SimpleResponse{Username: "\xff"}, nil
		},
		output: func(_ *testgrpc.StreamingOutputCallRequest, s testgrpc.TestService_StreamingOutputCallServer) error {
			return status.Error(codes.Internal, "grpc: error while marshaling: string field contains invalid UTF-8")
		},
	})
	for name, send := range map[string]func(context.Context, testgrpc.TestServiceClient) error{
		"unary": func(ctx context.Context, c testgrpc.TestServiceClient) error {
			_, err := c.UnaryCall(ctx, new(testgrpc.SimpleRequest))
			return err
		},
		"a stream": func(ctx context.Context, c testgrpc.TestServiceClient) error {
			s, err := c.StreamingOutputCall(ctx, new(testgrpc.StreamingOutputCallRequest))
			if err == nil {
				_, err = receive(s)
			}
			return err
		},
	} {
		c := clientOf(t, throttle.CallerConfig{Guard: throttle.GuardBreaker, Breaker: throttle.BreakerConfig{Run: 1}})
		err := send(within(t), through(t, c, address))
		if guard := c.Caller.Targets()[0].Guard; err == nil || guard.Outcomes[weir.Failed] != 1 {
			t.Errorf("%s: %v, outcomes %v, %s", name, err, guard.Outcomes, guard.LimitReason)
		}
	}
}

// In a handler, a priority in the metadata may be a stranger's, which a proxy passes on. A client's own is left alone.
func TestClientOfAStrangersPriority(t *testing.T) {
	came := make(chan []string, 1)
	address := start(t, &service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		came <- metadata.ValueFromIncomingContext(ctx, "x-priority")
		return new(testgrpc.SimpleResponse), nil
	}})
	client := through(t, clientOf(t, throttle.CallerConfig{}), address)
	forged := metadata.Pairs("x-priority", "critical")
	for want, ctx := range map[string]context.Context{
		"critical": within(t),
		"normal":   metadata.NewIncomingContext(within(t), forged),
	} {
		if _, err := client.UnaryCall(metadata.NewOutgoingContext(ctx, forged), new(testgrpc.SimpleRequest)); err != nil {
			t.Fatal(err)
		}
		if got := <-came; len(got) != 1 || got[0] != want {
			t.Errorf("sent %q, want %q", got, want)
		}
	}
}

// If this process refuses a retry, the error says what became of the attempt before.
func TestClientSaysWhatFailedBefore(t *testing.T) {
	client := through(t, clientOf(t, throttle.CallerConfig{Guard: throttle.GuardBreaker, Breaker: throttle.BreakerConfig{Run: 1}}), "127.0.0.1:1")
	_, err := client.UnaryCall(within(t), new(testgrpc.SimpleRequest))
	if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonThrottled || !strings.Contains(err.Error(), "attempt 1: rpc error: code = Unavailable") {
		t.Error(err)
	}
	wantCode(t, err, codes.Unavailable)
}

// The refusal of a guard, when it is passed on, says the same in all its parts. A breaker names the time when
// it admits calls again. A throttle spares the server retries, so its refusal is final.
func TestClientTellsOfItsGuard(t *testing.T) {
	for _, tt := range []struct {
		cfg   throttle.CallerConfig
		calls int // that fail, until there is a refusal for certain
		helps bool
	}{
		{throttle.CallerConfig{Guard: throttle.GuardBreaker, Breaker: throttle.BreakerConfig{Run: 1}}, 1, true},
		{throttle.CallerConfig{Random: func() float64 { return 0 }}, 100, false},
	} {
		tt.cfg.Retry.Attempts = 1
		client := through(t, clientOf(t, tt.cfg), "127.0.0.1:1")
		var rej *weir.Rejection
		var err error
		for i := 0; rej == nil && i <= tt.calls; i++ {
			_, err = client.UnaryCall(within(t), new(testgrpc.SimpleRequest))
			rej = weir.AsRejection(err)
		}
		if rej == nil || rej.Reason != weir.ReasonThrottled {
			t.Fatalf("%v", err)
		}
		var told time.Duration
		var retryable string
		for _, d := range wantCode(t, err, codes.Unavailable).Details() {
			switch d := d.(type) {
			case *errdetails.RetryInfo:
				told = d.RetryDelay.AsDuration()
			case *errdetails.ErrorInfo:
				retryable = d.Metadata["retryable"]
			}
		}
		ms, _ := weirgrpc.Pushback(rej)
		if rej.Retryable != tt.helps || told > 0 != tt.helps || retryable == "false" == tt.helps || ms == "-1" == tt.helps {
			t.Errorf("%v: retryable %v %q, after %v, pushback %q; want that coming back helps: %v", rej, rej.Retryable, retryable, told, ms, tt.helps)
		}
	}
}

// A server that cannot be reached is overload, and safe to try again.
func TestClientWithoutAServer(t *testing.T) {
	c := clientOf(t, throttle.CallerConfig{})
	c.Safe = nil
	var refusers []string
	c.Refused = func(_ context.Context, _, at string) { refusers = append(refusers, at) }
	client := through(t, c, "127.0.0.1:1") // a port that no test gets
	_, err := client.UnaryCall(within(t), new(testgrpc.SimpleRequest))
	wantCode(t, err, codes.Unavailable)
	_, err = client.FullDuplexCall(within(t))
	wantCode(t, err, codes.Unavailable)
	if want := []string{"", "", "", "", "", ""}; !slices.Equal(refusers, want) {
		t.Errorf("refused by %q, want three attempts each at no address", refusers)
	}
	if n := c.Caller.Targets()[0].Guard.InFlight; n != 0 {
		t.Errorf("%d in flight", n)
	}
}

// A message that is larger than one side takes is tried once, and says nothing about the server: the next attempt
// would be as large.
func TestClientSendsNoLargeMessageTwice(t *testing.T) {
	const most = 100
	var calls atomic.Int32
	payload := &testgrpc.Payload{Body: make([]byte, 2*most)}
	s := &service{
		unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			calls.Add(1)
			return &testgrpc.SimpleResponse{Payload: payload}, nil
		},
		output: func(_ *testgrpc.StreamingOutputCallRequest, s testgrpc.TestService_StreamingOutputCallServer) error {
			calls.Add(1)
			return s.Send(&testgrpc.StreamingOutputCallResponse{Payload: payload})
		},
	}
	generous, strict := start(t, s), start(t, s, grpc.MaxRecvMsgSize(most))
	small, large := new(testgrpc.SimpleRequest), &testgrpc.SimpleRequest{Payload: payload}
	for _, tt := range []struct {
		name    string
		address string
		request *testgrpc.SimpleRequest
		option  grpc.CallOption
		calls   int32
	}{
		{"to send", generous, large, grpc.MaxCallSendMsgSize(most), 0},
		{"to receive", generous, small, grpc.MaxCallRecvMsgSize(most), 1},
		{"for the server", strict, large, grpc.EmptyCallOption{}, 0},
	} {
		for _, kind := range []string{"unary", "stream"} {
			calls.Store(0)
			c := clientOf(t, throttle.CallerConfig{})
			client := through(t, c, tt.address)
			var err error
			if kind == "unary" {
				_, err = client.UnaryCall(within(t), tt.request, tt.option)
			} else {
				var answers testgrpc.TestService_StreamingOutputCallClient
				answers, err = client.StreamingOutputCall(within(t), &testgrpc.StreamingOutputCallRequest{Payload: tt.request.Payload}, tt.option)
				if err == nil {
					_, err = receive(answers)
				}
			}
			wantCode(t, err, codes.ResourceExhausted)
			guard := c.Caller.Targets()[0].Guard
			if guard.Admitted != 1 || calls.Load() != tt.calls || guard.InFlight != 0 || guard.Outcomes[weir.Overload] != 0 {
				t.Errorf("%s, %s: %d attempts, %d calls, %d in flight, outcomes %v", tt.name, kind, guard.Admitted, calls.Load(), guard.InFlight, guard.Outcomes)
			}
		}
	}
}

// The server gets the right metadata, outside of any request.
func TestClientTells(t *testing.T) {
	var heard []string
	var left []time.Duration
	address := start(t, &service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		heard = append(heard, fmt.Sprint(slices.Concat(md["x-weir-attempt"], md["x-envoy-attempt-count"], md["grpc-previous-rpc-attempts"]), md["x-priority"], md["app"]))
		at, _ := ctx.Deadline()
		left = append(left, time.Until(at))
		return nil, status.Error(codes.Unavailable, "no")
	}})
	c := clientOf(t, throttle.CallerConfig{})
	c.Work = func(_ context.Context, _ string, w *weir.Work) {
		w.Priority, w.Deadline = weir.Background, time.Now().Add(patience/2)
	}
	client := through(t, c, address)
	mine := with(within(t), "x-weir-attempt", "17", "x-envoy-attempt-count", "18", "grpc-previous-rpc-attempts", "19", "app", "a") // the attempts are nobody else's
	_, err := client.UnaryCall(mine, new(testgrpc.SimpleRequest))
	wantCode(t, err, codes.Unavailable)
	c.Quiet, c.Work = true, nil
	_, err = client.UnaryCall(within(t), new(testgrpc.SimpleRequest))
	wantCode(t, err, codes.Unavailable)
	want := []string{"[] [background] [a]", "[1] [background] [a]", "[2] [background] [a]", "[] [] []", "[] [] []", "[] [] []"}
	if !slices.Equal(heard, want) {
		t.Errorf("told %q, want %q", heard, want)
	}
	for i, d := range left {
		if most := patience / time.Duration(2-i/3); d <= 0 || d > most {
			t.Errorf("call %d has %v left, want at most %v", i, d, most)
		}
	}
}

// In a handler, calls have the deadline and at most the priority of the request that the handler serves, over
// gRPC and over HTTP.
func TestClientInAHandler(t *testing.T) {
	var heard string
	var until time.Time
	inner := start(t, &service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		heard = strings.Join(metadata.ValueFromIncomingContext(ctx, "x-priority"), "+")
		until, _ = ctx.Deadline()
		return new(testgrpc.SimpleResponse), nil
	}})
	for _, tt := range []struct {
		came, wanted weir.Priority
		want         string
	}{
		{weir.Normal, weir.Critical, "normal"},
		{weir.Background, weir.Normal, "background"},
		{weir.High, weir.Background, "background"},
		{weir.High, weir.Normal, "normal"},
		{weir.Critical, weir.Critical, "critical"},
	} {
		deadline := time.Now().Add(patience / 2)
		own := &recorder{Gate: newLimit(t, 1, 1)}
		c := clientOf(t, throttle.CallerConfig{Limit: own})
		c.Work = func(_ context.Context, _ string, w *weir.Work) { w.Priority = tt.wanted }
		client := through(t, c, inner)
		check := func(from string, err error) {
			t.Helper()
			if err != nil || heard != tt.want || until.After(deadline.Add(time.Second)) {
				t.Errorf("%s, %v came in and %v is wanted: %v, told %q until %v, want %q until %v", from, tt.came, tt.wanted, err, heard, until, tt.want, deadline)
			}
			if got := own.last(t).Priority.String(); got != tt.want {
				t.Errorf("%s, %v came in and %v is wanted: the client's own gate was told %q, want %q", from, tt.came, tt.wanted, got, tt.want)
			}
		}
		guard := weirgrpc.New(newLimit(t, 1, 1), weirgrpc.WithWork(func(_ context.Context, _ string, w *weir.Work) {
			w.Priority, w.Deadline = tt.came, deadline
		}))
		outer := serve(t, &service{unary: func(ctx context.Context, in *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			return client.UnaryCall(weir.WithPriority(ctx, weir.Critical), in)
		}}, guard.ServerOptions()...)
		_, err := outer.UnaryCall(within(t), new(testgrpc.SimpleRequest))
		check("gRPC", err)
		weirhttp.Middleware(newLimit(t, 1, 1), weirhttp.WithWork(func(_ *http.Request, w *weir.Work) {
			w.Priority, w.Deadline = tt.came, deadline
		}))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, err = client.UnaryCall(r.Context(), new(testgrpc.SimpleRequest))
		})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		check("HTTP", err)
	}
}

// If a server passes a refusal on, its own work had begun, and its client knows so: with our client or without,
// with a guard or without.
func TestClientKnowsWhoRefused(t *testing.T) {
	last := start(t, new(service), weirgrpc.New(refusing{}).ServerOptions()...)
	for _, tt := range []struct {
		name   string
		client testgrpc.TestServiceClient
		opts   []grpc.ServerOption
	}{
		{"passed on by our client", through(t, clientOf(t, throttle.CallerConfig{}), last), nil},
		{"passed on by a guard", testgrpc.NewTestServiceClient(dial(t, last)), weirgrpc.New(newLimit(t, 9, 9)).ServerOptions()},
		{"passed on by a guard without a gate", testgrpc.NewTestServiceClient(dial(t, last)), weirgrpc.New(nil).ServerOptions()},
	} {
		var calls, charged atomic.Int32
		middle := start(t, &service{
			unary: func(ctx context.Context, in *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
				calls.Add(1)
				charged.Add(1) // what must not be done twice
				return tt.client.UnaryCall(ctx, in)
			},
			output: func(_ *testgrpc.StreamingOutputCallRequest, s testgrpc.TestService_StreamingOutputCallServer) error {
				calls.Add(1)
				inner, err := tt.client.FullDuplexCall(s.Context())
				if err == nil {
					_, err = inner.Recv()
				}
				return err
			},
		}, tt.opts...)
		c := clientOf(t, throttle.CallerConfig{})
		c.Safe = nil
		front := through(t, c, middle)
		_, err := front.UnaryCall(within(t), new(testgrpc.SimpleRequest))
		if wantCode(t, err, codes.Unavailable); calls.Swap(0) != 1 {
			t.Errorf("%s: done more than once: %d", tt.name, charged.Load())
		}
		s, err := front.StreamingOutputCall(within(t), new(testgrpc.StreamingOutputCallRequest))
		if err != nil {
			t.Fatal(err)
		}
		if _, err = receive(s); status.Code(err) != codes.Unavailable || calls.Swap(0) != 1 {
			t.Errorf("%s: %v, and done more than once", tt.name, err)
		}
	}
}

// A hook cannot remove the deadline: a wait beyond it ends the call at once.
func TestClientKeepsTheDeadline(t *testing.T) {
	address := start(t, &service{unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		return nil, weirgrpc.Status(&weir.Rejection{Reason: weir.ReasonQueueFull, Retryable: true, RetryAfter: 2 * patience}).Err()
	}})
	for name, hook := range map[string]func(*weir.Work){
		"forgotten": func(w *weir.Work) { *w = weir.Work{} },
		"later":     func(w *weir.Work) { w.Deadline = w.Deadline.Add(time.Hour) },
	} {
		c := clientOf(t, throttle.CallerConfig{Retry: throttle.Retry{MaxTold: time.Hour}})
		c.Work = func(_ context.Context, _ string, w *weir.Work) { hook(w) }
		_, err := through(t, c, address).UnaryCall(within(t), new(testgrpc.SimpleRequest))
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v, want the refusal, without a wait for the deadline", name, err)
		}
	}
}

// A stream that has ended stays so, also if the receiver asks again when the budget allows a retry.
func TestClientStreamEndsOnce(t *testing.T) {
	var calls atomic.Int32
	address := start(t, &service{
		unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			return new(testgrpc.SimpleResponse), nil
		},
		output: func(*testgrpc.StreamingOutputCallRequest, testgrpc.TestService_StreamingOutputCallServer) error {
			calls.Add(1)
			return status.Error(codes.Unavailable, "no")
		},
	})
	client := through(t, clientOf(t, throttle.CallerConfig{Budget: throttle.BudgetConfig{Floor: -1}, Guard: throttle.NoGuard}), address)
	out, err := client.StreamingOutputCall(within(t), new(testgrpc.StreamingOutputCallRequest))
	if err != nil {
		t.Fatal(err)
	}
	_, first := out.Recv()
	for range 20 { // of which a tenth may be tried again
		if _, err := client.UnaryCall(within(t), new(testgrpc.SimpleRequest)); err != nil {
			t.Fatal(err)
		}
	}
	_, second := out.Recv()
	if status.Code(first) != codes.Unavailable || status.Code(second) != codes.Unavailable || calls.Load() != 1 {
		t.Errorf("%v, then %v, after %d attempts", first, second, calls.Load())
	}
}

// Refused is called once for each attempt, also if the receiver asks again after the end.
func TestClientStreamTellsOfARefusalOnce(t *testing.T) {
	var calls, refused atomic.Int32
	address := start(t, &service{output: func(*testgrpc.StreamingOutputCallRequest, testgrpc.TestService_StreamingOutputCallServer) error {
		calls.Add(1)
		return weirgrpc.Status(&weir.Rejection{Gate: "api", Reason: weir.ReasonQueueFull, Retryable: true}).Err()
	}})
	client := clientOf(t, throttle.CallerConfig{Retry: throttle.Retry{Attempts: 2}})
	client.Refused = func(context.Context, string, string) { refused.Add(1) }
	out, err := through(t, client, address).StreamingOutputCall(within(t), new(testgrpc.StreamingOutputCallRequest))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := out.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("the receiver got %v, want the refusal", err)
		}
	}
	if calls.Load() != 2 || refused.Load() != 2 {
		t.Errorf("%d attempts, and Refused was called %d times", calls.Load(), refused.Load())
	}
}

// Once a stream has ended, nothing waits for the deadline that a hook has set.
func TestClientStreamEndsItsContext(t *testing.T) {
	address := start(t, &service{output: func(*testgrpc.StreamingOutputCallRequest, testgrpc.TestService_StreamingOutputCallServer) error {
		return nil
	}})
	var inner context.Context
	watching := grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		inner = ctx
		return open(ctx, desc, conn, method, opts...)
	})
	c := clientOf(t, throttle.CallerConfig{})
	c.Work = func(_ context.Context, _ string, w *weir.Work) { w.Deadline = time.Now().Add(patience / 2) }
	out, err := through(t, c, address, watching).StreamingOutputCall(within(t), new(testgrpc.StreamingOutputCallRequest))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := receive(out); n != 0 || err != nil || inner.Err() == nil {
		t.Errorf("%d answers, %v; the context says %v", n, err, inner.Err())
	}
}

// forgetful is an interceptor that drops the options of a call.
var forgetful = grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	return open(ctx, desc, conn, method)
})

// If an inner interceptor drops the options of a call, the slot is given back all the same.
func TestClientBeforeAForgetfulInterceptor(t *testing.T) {
	own := newLimit(t, 2, -1)
	address := start(t, &service{
		output: func(*testgrpc.StreamingOutputCallRequest, testgrpc.TestService_StreamingOutputCallServer) error {
			return status.Error(codes.Unavailable, "no")
		},
	})
	client := through(t, clientOf(t, throttle.CallerConfig{Limit: own}), address, forgetful)
	out, err := client.StreamingOutputCall(within(t), new(testgrpc.StreamingOutputCallRequest))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := receive(out); status.Code(err) != codes.Unavailable {
		t.Errorf("%v", err)
	}
	if n := own.Snapshot().InFlight; n != 0 {
		t.Errorf("%d slots held after three attempts", n)
	}
}

// If an inner interceptor drops the options of a call, grpc-go does not tell of its end. An application that
// receives no more loses no slot all the same: neither by the end of the context nor by a message that aborts the
// stream.
func TestClientGivesUpStreams(t *testing.T) {
	own, outcomes := counting(t, 1)
	address := start(t, &service{duplex: func(s testgrpc.TestService_FullDuplexCallServer) error {
		<-s.Context().Done()
		return nil
	}})
	client := through(t, clientOf(t, throttle.CallerConfig{Limit: own}), address, forgetful)
	for _, tt := range []struct {
		name string
		ends error // of the context
		want weir.Outcome
	}{
		{"cancelled", context.Canceled, weir.Abandoned},
		{"late", context.DeadlineExceeded, weir.NoSample}, // it may have waited for events
		{"aborted", nil, weir.Failed},
	} {
		ctx := &ending{within(t), make(chan struct{}), cmp.Or(tt.ends, context.Canceled)}
		s, err := client.FullDuplexCall(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if tt.ends != nil {
			close(ctx.done)
		} else if s.CloseSend() != nil || s.Send(new(testgrpc.StreamingOutputCallRequest)) == nil {
			t.Error("a message can be sent after the last")
		}
		if got := outcomes.take(t); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
		await(t, tt.name+": the slot is free", idle(own))
		if tt.ends == nil {
			close(ctx.done)
		}
	}
}

// ending is a context that ends with err when done is closed.
type ending struct {
	context.Context
	done chan struct{}
	err  error
}

func (e *ending) Done() <-chan struct{} { return e.done }

func (e *ending) Err() error {
	select {
	case <-e.done:
		return e.err
	default:
		return nil
	}
}

// If an inner interceptor drops the options of a call, or hides the context of its stream, nothing proves that
// the work has not begun. So it is not done twice.
func TestClientNeedsProof(t *testing.T) {
	var calls atomic.Int32
	no := func() error {
		calls.Add(1)
		return status.Error(codes.Unavailable, "no")
	}
	address := start(t, &service{
		unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) { return nil, no() },
		output: func(*testgrpc.StreamingOutputCallRequest, testgrpc.TestService_StreamingOutputCallServer) error {
			return no()
		},
		duplex: func(testgrpc.TestService_FullDuplexCallServer) error { return no() },
	})
	unary := grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, _ ...grpc.CallOption) error {
		return invoke(ctx, method, req, reply, conn)
	})
	hiding := grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, conn, method, opts...)
		return hidden{s, ctx}, err
	})
	c := clientOf(t, throttle.CallerConfig{})
	c.Safe = nil
	client := through(t, c, address, unary, hiding)
	_, err := client.UnaryCall(within(t), new(testgrpc.SimpleRequest))
	if wantCode(t, err, codes.Unavailable); calls.Swap(0) != 1 {
		t.Error("a unary call was done more than once")
	}
	out, err := client.StreamingOutputCall(within(t), new(testgrpc.StreamingOutputCallRequest))
	if err != nil {
		t.Fatal(err)
	}
	_, err = receive(out)
	if wantCode(t, err, codes.Unavailable); calls.Swap(0) != 1 {
		t.Error("a stream was opened more than once")
	}
	eager := grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, conn, method, opts...)
		if err == nil {
			err = s.RecvMsg(new(testgrpc.StreamingOutputCallResponse))
		}
		return s, err
	})
	_, err = through(t, c, address, eager).FullDuplexCall(within(t))
	if wantCode(t, err, codes.Unavailable); calls.Swap(0) != 1 {
		t.Error("a stream that an interceptor had opened was opened more than once")
	}
}

// hidden is a stream with another context than its own.
type hidden struct {
	grpc.ClientStream
	ctx context.Context
}

func (h hidden) Context() context.Context { return h.ctx }

// Whether a method may be done twice is declared in its .proto file.
func TestClientGoesByTheDeclaration(t *testing.T) {
	method := func(name string, level descriptorpb.MethodOptions_IdempotencyLevel) *descriptorpb.MethodDescriptorProto {
		return &descriptorpb.MethodDescriptorProto{
			Name: &name, InputType: proto.String(".weirtest.Nothing"), OutputType: proto.String(".weirtest.Nothing"),
			Options: &descriptorpb.MethodOptions{IdempotencyLevel: &level},
		}
	}
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("weirtest/shop.proto"), Package: proto.String("weirtest"), Syntax: proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{{Name: proto.String("Nothing")}},
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: proto.String("Shop"), Method: []*descriptorpb.MethodDescriptorProto{
			method("Look", descriptorpb.MethodOptions_NO_SIDE_EFFECTS),
			method("Put", descriptorpb.MethodOptions_IDEMPOTENT),
			method("Buy", descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN),
		}}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := protoregistry.GlobalFiles.FindFileByPath(file.Path()); err != nil { // the first of several runs
		if err := protoregistry.GlobalFiles.RegisterFile(file); err != nil {
			t.Fatal(err)
		}
	}
	var calls atomic.Int32
	address := startWith(t, func(*grpc.Server) {}, grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
		calls.Add(1)
		return status.Error(codes.Unavailable, "no")
	}))
	c := clientOf(t, throttle.CallerConfig{})
	c.Safe = nil
	conn := dial(t, address, c.DialOptions()...)
	for name, want := range map[string]int32{
		"weirtest.Shop/Look": 3, "weirtest.Shop/Put": 3, "weirtest.Shop/Buy": 1, "weirtest.Shop/Sell": 1, "weirtest/Nothing": 1, "weirtest.Nothing": 0, "": 0,
	} {
		err := conn.Invoke(within(t), "/"+name, new(testgrpc.Empty), new(testgrpc.Empty))
		if n := calls.Swap(0); n != want || err == nil {
			t.Errorf("%q: %d attempts, want %d; %v", name, n, want, err)
		}
	}
}

// Many calls at once, many of them given up, lose no slot and leave no unsent retry charged.
func TestClientStorm(t *testing.T) {
	own := weir.Must(limit.New(limit.Config{Name: "own", Limit: 8, Queue: limit.Queue{Len: 64, MaxWait: patience, Order: limit.FIFO}}))
	defer own.Close()
	var n atomic.Int32
	address := start(t, &service{
		output: func(_ *testgrpc.StreamingOutputCallRequest, s testgrpc.TestService_StreamingOutputCallServer) error {
			if n.Add(1)%3 == 0 {
				return status.Error(codes.Unavailable, "no")
			}
			_ = s.Send(new(testgrpc.StreamingOutputCallResponse))
			<-s.Context().Done()
			return nil
		},
	})
	c := clientOf(t, throttle.CallerConfig{Limit: own, Guard: throttle.NoGuard})
	client := through(t, c, address)
	var callers sync.WaitGroup
	for i := range 64 {
		callers.Go(func() {
			ctx, leave := context.WithCancel(within(t))
			defer leave()
			s, err := client.StreamingOutputCall(ctx, new(testgrpc.StreamingOutputCallRequest))
			if err != nil {
				t.Errorf("call %s: %v", strconv.Itoa(i), err)
				return
			}
			if _, err := s.Recv(); err != nil && status.Code(err) != codes.Unavailable || errors.Is(err, io.EOF) {
				t.Error(err)
			}
		})
	}
	callers.Wait()
	await(t, "all slots are free", idle(own))
}

// A call of Header during a back-off does not remove the request of a stream.
func TestClientKeepsTheRequest(t *testing.T) {
	var empty, attempts atomic.Int32
	address := start(t, &service{output: func(in *testgrpc.StreamingOutputCallRequest, s testgrpc.TestService_StreamingOutputCallServer) error {
		if len(in.GetPayload().GetBody()) == 0 {
			empty.Add(1)
		}
		if attempts.Add(1) == 1 {
			return status.Error(codes.Unavailable, "not yet")
		}
		return s.Send(&testgrpc.StreamingOutputCallResponse{})
	}})
	var stream testgrpc.TestService_StreamingOutputCallClient
	cfg := throttle.CallerConfig{Guard: throttle.NoGuard, Random: func() float64 {
		if stream != nil { // the retry is decided
			_, _ = stream.Header()
		}
		return 0
	}}
	c := &weirgrpc.Client{Caller: weir.Must(throttle.NewCaller(cfg)), Safe: func(context.Context, string) bool { return true }}
	stream, err := through(t, c, address).StreamingOutputCall(within(t), &testgrpc.StreamingOutputCallRequest{Payload: &testgrpc.Payload{Body: []byte("all of it")}})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := receive(stream); n != 1 || err != nil || attempts.Load() != 2 || empty.Load() != 0 {
		t.Errorf("%d answers, %v; %d attempts, %d of them empty", n, err, attempts.Load(), empty.Load())
	}
}

// A stream of answers that reaches its deadline may have waited for events. That says nothing of the server.
func TestClientStreamWaitsForEvents(t *testing.T) {
	for deadline := 50 * time.Millisecond; deadline < patience; deadline *= 2 { // on a busy machine a call may not get there in time
		reached := make(chan struct{}, 1)
		address := start(t, &service{
			output: func(_ *testgrpc.StreamingOutputCallRequest, s testgrpc.TestService_StreamingOutputCallServer) error {
				reached <- struct{}{}
				<-s.Context().Done()
				return s.Context().Err()
			},
		})
		c := clientOf(t, throttle.CallerConfig{})
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		out, err := through(t, c, address).StreamingOutputCall(ctx, new(testgrpc.StreamingOutputCallRequest))
		if err == nil {
			_, err = out.Recv()
		}
		wantCode(t, err, codes.DeadlineExceeded)
		select {
		case <-reached:
		default:
			continue
		}
		await(t, "the permit is back", func() bool { return c.Caller.Targets()[0].Guard.InFlight == 0 })
		if got := c.Caller.Targets()[0].Guard.Outcomes; len(got) != 1 || got[weir.NoSample] != 1 {
			t.Errorf("outcomes %v", got)
		}
		return
	}
	t.Error("no call reached the server in time")
}

// A server that has run out of a time of its own is overloaded, also if it streams answers.
func TestClientStreamOfALateServer(t *testing.T) {
	address := start(t, &service{output: func(*testgrpc.StreamingOutputCallRequest, testgrpc.TestService_StreamingOutputCallServer) error {
		return status.Error(codes.DeadlineExceeded, "the database did not answer")
	}})
	c := clientOf(t, throttle.CallerConfig{Retry: throttle.Retry{Attempts: 1}})
	out, err := through(t, c, address).StreamingOutputCall(within(t), new(testgrpc.StreamingOutputCallRequest))
	if err == nil {
		_, err = out.Recv()
	}
	wantCode(t, err, codes.DeadlineExceeded)
	if got := c.Caller.Targets()[0].Guard.Outcomes; got[weir.Overload] != 1 {
		t.Errorf("outcomes %v", got)
	}
}
