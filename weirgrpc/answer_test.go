package weirgrpc

import (
	"context"
	"errors"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/throttle"
)

// server replaces everything below the interceptor. It gives the same answer to every attempt.
type server struct {
	err     error
	trailer metadata.MD
	unknown bool // no stream was opened
	calls   int
}

func (s *server) invoke(_ context.Context, _ string, _, _ any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
	s.calls++
	for _, o := range opts {
		switch o := o.(type) {
		case grpc.TrailerCallOption:
			*o.TrailerAddr = s.trailer
		case grpc.PeerCallOption:
			if !s.unknown {
				o.PeerAddr.Addr = &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 443}
			}
		case grpc.OnFinishCallOption:
			o.OnFinish(s.err)
		}
	}
	return s.err
}

// told is an error with details.
func told(code codes.Code, details ...protoadapt.MessageV1) error {
	st, err := status.New(code, "no").WithDetails(details...)
	if err != nil {
		panic(err)
	}
	return st.Err()
}

func after(seconds int64, nanos int32) *errdetails.RetryInfo {
	return &errdetails.RetryInfo{RetryDelay: &durationpb.Duration{Seconds: seconds, Nanos: nanos}}
}

// Each answer gives a number of attempts, counts of the throttle, and waits. The jitter is 0.9 of 100 and of
// 200 ms.
func TestAnswers(t *testing.T) {
	const jitter = 270 * time.Millisecond
	const safe, unsafe = true, false
	unavailable := status.Error(codes.Unavailable, "no")
	lacking := status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp 192.0.2.1:443: socket: too many open files"`)
	pushback := func(values ...string) metadata.MD { return metadata.MD{PushbackHeader: values} }
	full := &weir.Rejection{Gate: "shop", Reason: weir.ReasonQueueFull, Retryable: true, RetryAfter: 2 * time.Second}
	for _, tt := range []struct {
		name          string
		safe          bool
		server        server
		attempts      int
		waits         time.Duration
		requests, oks uint64 // as the throttle counts them
	}{
		{"success", unsafe, server{}, 1, 0, 1, 1},
		{"not found", safe, server{err: status.Error(codes.NotFound, "no")}, 1, 0, 1, 1},
		{"aborted", safe, server{err: status.Error(codes.Aborted, "no")}, 1, 0, 1, 1},
		{"an error", safe, server{err: status.Error(codes.Internal, "no")}, 1, 0, 1, 1},
		{"an error without a status", safe, server{err: errors.New("no")}, 1, 0, 1, 1},
		{"cancelled by the server", safe, server{err: status.Error(codes.Canceled, "no")}, 1, 0, 0, 0},
		{"unavailable", safe, server{err: unavailable}, 3, jitter, 3, 0},
		{"unavailable, not safe", unsafe, server{err: unavailable}, 1, 0, 1, 0},
		{"no connection, not safe", unsafe, server{err: unavailable, unknown: true}, 3, jitter, 3, 0},
		{"no file descriptor here", safe, server{err: lacking, unknown: true}, 1, 0, 0, 0},
		{"no file descriptor there", safe, server{err: lacking}, 3, jitter, 3, 0},
		{"a local error", unsafe, server{err: status.Error(codes.Internal, "no"), unknown: true}, 1, 0, 0, 0},
		{"text that is no UTF-8", unsafe, server{err: status.Error(codes.Internal, "grpc: error while marshaling: string field contains invalid UTF-8")}, 1, 0, 0, 0},
		{"the server's deadline", safe, server{err: status.Error(codes.DeadlineExceeded, "no")}, 3, jitter, 3, 0},
		{"exhausted", safe, server{err: status.Error(codes.ResourceExhausted, "no")}, 3, jitter, 3, 0},
		{"a message too large for grpc-go to send", safe, server{err: status.Error(codes.ResourceExhausted, "trying to send message larger than max (5 vs. 4)")}, 1, 0, 0, 0},
		{"too large to receive", safe, server{err: status.Error(codes.ResourceExhausted, "grpc: received message larger than max (5 vs. 4)")}, 1, 0, 0, 0},
		{"too large for a server in Java", safe, server{err: status.Error(codes.ResourceExhausted, "gRPC message exceeds maximum size 4: 5")}, 1, 0, 0, 0},
		{"envoy is overloaded", unsafe, server{err: unavailable, trailer: metadata.MD{"x-envoy-overloaded": {"true"}}}, 3, jitter, 3, 0},
		{"envoy's rate limit, by default", safe, server{err: status.Error(codes.Unavailable, "no"), trailer: metadata.MD{"x-envoy-ratelimited": {"true"}}}, 3, jitter, 3, 3},
		{"envoy's rate limit", safe, server{err: status.Error(codes.ResourceExhausted, "no"), trailer: metadata.MD{"x-envoy-ratelimited": {"true"}}}, 3, jitter, 3, 3},
		{"an error behind an overloaded envoy", unsafe, server{err: status.Error(codes.Internal, "no"), trailer: metadata.MD{"x-envoy-overloaded": {"true"}}}, 1, 0, 1, 1},

		{"weir refused", unsafe, server{err: Status(full).Err()}, 3, 4*time.Second + jitter, 3, 0},
		{"by another code", unsafe, server{err: Statuses{Overload: codes.ResourceExhausted}.Of(full).Err()}, 3, 4*time.Second + jitter, 3, 0},
		{"weir says no", safe, server{err: Status(&weir.Rejection{Reason: weir.ReasonQueueFull}).Err()}, 1, 0, 1, 0},
		{"weir is draining", unsafe, server{err: Status(&weir.Rejection{Reason: weir.ReasonDraining, Retryable: true}).Err()}, 3, jitter, 3, 3},
		{"weir blocks", safe, server{err: Status(&weir.Rejection{Reason: weir.ReasonBlocked}).Err()}, 1, 0, 1, 1},
		{"passed on by one who had begun", unsafe, server{err: passedOn(Status(full).Err())}, 1, 0, 1, 0},
		{"passed on, safe", safe, server{err: passedOn(Status(full).Err())}, 3, 4*time.Second + jitter, 3, 0},
		{"a quota", unsafe, server{err: Status(&weir.Rejection{Reason: weir.ReasonQuota, Retryable: true, RetryAfter: time.Second}).Err()}, 3, 2*time.Second + jitter, 3, 3},
		{"another's quota", safe, server{err: told(codes.ResourceExhausted, &errdetails.QuotaFailure{}, after(1, 0))}, 3, 2*time.Second + jitter, 3, 3},
		{"another's quota, not safe", unsafe, server{err: told(codes.ResourceExhausted, &errdetails.QuotaFailure{}, after(1, 0))}, 1, 0, 1, 1},
		{"another's ErrorInfo", unsafe, server{err: told(codes.Unavailable, &errdetails.ErrorInfo{Domain: "example.com", Reason: "QUEUE_FULL"})}, 1, 0, 1, 0},
		{"no reason of a gate", unsafe, server{err: told(codes.Unavailable, &errdetails.ErrorInfo{Domain: Domain, Reason: "BAD_GATEWAY"})}, 1, 0, 1, 0},

		{"pushback", safe, server{err: unavailable, trailer: pushback("1000")}, 3, 2*time.Second + jitter, 3, 0},
		{"pushback of no time", safe, server{err: unavailable, trailer: pushback("0")}, 3, jitter, 3, 0},
		{"pushback does not make a call safe", unsafe, server{err: unavailable, trailer: pushback("0")}, 1, 0, 1, 0},
		{"nor another code one for retries", safe, server{err: status.Error(codes.NotFound, "no"), trailer: pushback("0")}, 1, 0, 1, 1},
		{"pushback says no", safe, server{err: unavailable, trailer: pushback("-1")}, 1, 0, 1, 0},
		{"pushback says no to what was refused", unsafe, server{err: Status(full).Err(), trailer: pushback("-1")}, 1, 0, 1, 0},
		{"pushback is not a number", safe, server{err: unavailable, trailer: pushback("x")}, 1, 0, 1, 0},
		{"pushback is empty", safe, server{err: unavailable, trailer: pushback("")}, 1, 0, 1, 0},
		{"pushback twice", safe, server{err: unavailable, trailer: pushback("1", "1")}, 1, 0, 1, 0},
		{"pushback of more than 32 bits", safe, server{err: unavailable, trailer: pushback("2147483648")}, 1, 0, 1, 0},
		{"pushback of 24 days", safe, server{err: unavailable, trailer: pushback("2147483647")}, 1, 0, 1, 0},
		{"pushback before RetryInfo", safe, server{err: told(codes.Unavailable, after(9, 0)), trailer: pushback("1000")}, 3, 2*time.Second + jitter, 3, 0},

		{"RetryInfo", safe, server{err: told(codes.Unavailable, after(3, 0))}, 3, 6*time.Second + jitter, 3, 0},
		{"RetryInfo of nothing", safe, server{err: told(codes.Unavailable, &errdetails.RetryInfo{})}, 3, jitter, 3, 0},
		{"RetryInfo of 10^18 s", safe, server{err: told(codes.Unavailable, after(1e18, 0))}, 1, 0, 1, 0},
		{"RetryInfo of all bits", safe, server{err: told(codes.Unavailable, after(math.MaxInt64, math.MaxInt32))}, 1, 0, 1, 0},
		{"RetryInfo in the past", safe, server{err: told(codes.Unavailable, after(-5, 0))}, 3, jitter, 3, 0},
		{"RetryInfo of all bits in the past", safe, server{err: told(codes.Unavailable, after(math.MinInt64, math.MinInt32))}, 3, jitter, 3, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			caller, err := throttle.NewCaller(throttle.CallerConfig{Random: func() float64 { return 0.9 }}) // above the share of a few failures
			if err != nil {
				t.Fatal(err)
			}
			c := &Client{Caller: caller, Safe: func(context.Context, string) bool { return tt.safe }}
			began := time.Now()
			err = c.unary(t.Context(), "/shop.Cart/Get", nil, nil, nil, tt.server.invoke)
			if took := time.Since(began); tt.server.calls != tt.attempts || took != tt.waits {
				t.Errorf("%s: %d attempts in %v, want %d in %v", tt.name, tt.server.calls, took, tt.attempts, tt.waits)
			}
			if status.Code(err) != status.Code(tt.server.err) || tt.server.err != nil && !errors.Is(err, tt.server.err) {
				t.Errorf("%s: %v, want the last error: %v", tt.name, err, tt.server.err)
			}
			guard := caller.Targets()[0].Guard
			oks := guard.Outcomes[weir.OK] + guard.Outcomes[weir.Failed]
			if requests := oks + guard.Outcomes[weir.Overload]; guard.InFlight != 0 || requests != tt.requests || oks != tt.oks {
				t.Errorf("%s: %d in flight, %d requests of which %d were accepted; want 0, %d, %d", tt.name, guard.InFlight, requests, oks, tt.requests, tt.oks)
			}
		})
	}
}

// The rules of gRFC A6 for a retry policy, by the answers to the attempts. The random part of the jitter is
// always the whole back-off. A row with "unlike" differs from A6. TestClientRepeatsNoStream tests what commits
// a stream. TestClientMakesThreeAttemptsAtMost tests what grpc-go does by itself. Nothing is hedged.
func TestRulesOfA6(t *testing.T) {
	const ms = time.Millisecond
	unavailable := status.Error(codes.Unavailable, "no")
	no := server{err: unavailable}
	fatal := server{err: status.Error(codes.InvalidArgument, "no")}
	pushback := func(value string) server {
		return server{err: unavailable, trailer: metadata.MD{PushbackHeader: {value}}}
	}
	for _, tt := range []struct {
		rule     string
		answers  []server // the last one again and again
		deadline time.Duration
		max      int // attempts; 0: the default
		waits    []time.Duration
		want     codes.Code
	}{
		{rule: "success is returned", answers: []server{{}}, want: codes.OK},
		{rule: "a fatal status is returned", answers: []server{fatal}, want: codes.InvalidArgument},
		{rule: "a retryable status is tried again", answers: []server{no, {}}, waits: []time.Duration{100 * ms}, want: codes.OK},
		{rule: "a fatal status ends the retries", answers: []server{no, fatal}, waits: []time.Duration{100 * ms}, want: codes.InvalidArgument},
		{rule: "the most attempts have the first among them", answers: []server{no}, max: 2, waits: []time.Duration{100 * ms}, want: codes.Unavailable},
		{rule: "the back-off doubles", answers: []server{no}, max: 5, waits: []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms}, want: codes.Unavailable},
		{rule: "up to its most", answers: []server{no}, max: 6, waits: []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1000 * ms}, want: codes.Unavailable},
		{rule: "the deadline is that of all attempts; unlike there, nobody waits for what comes too late",
			answers: []server{no}, deadline: 250 * ms, waits: []time.Duration{100 * ms}, want: codes.Unavailable},
		{rule: "a pushback is waited for; unlike there, with the jitter", answers: []server{pushback("700"), {}}, waits: []time.Duration{800 * ms}, want: codes.OK},
		{rule: "after it the back-off goes on; unlike there, it does not begin anew", answers: []server{pushback("700"), no, {}}, waits: []time.Duration{800 * ms, 200 * ms}, want: codes.OK},
		{rule: "each pushback counts anew", answers: []server{pushback("700"), pushback("300"), {}}, waits: []time.Duration{800 * ms, 500 * ms}, want: codes.OK},
		{rule: "a pushback of no time", answers: []server{pushback("0"), {}}, waits: []time.Duration{100 * ms}, want: codes.OK},
		{rule: "a pushback gives no attempt beyond the most", answers: []server{no, no, pushback("0")}, waits: []time.Duration{100 * ms, 200 * ms}, want: codes.Unavailable},
		{rule: "a negative pushback is a no", answers: []server{pushback("-1")}, want: codes.Unavailable},
		{rule: "also later on", answers: []server{no, pushback("-1")}, waits: []time.Duration{100 * ms}, want: codes.Unavailable},
		{rule: "one that cannot be read is a no", answers: []server{pushback("1s")}, want: codes.Unavailable},
		{rule: "a pushback makes no fatal status retryable", answers: []server{{err: fatal.err, trailer: metadata.MD{PushbackHeader: {"0"}}}}, want: codes.InvalidArgument},
	} {
		synctest.Test(t, func(t *testing.T) {
			caller := weir.Must(throttle.NewCaller(throttle.CallerConfig{
				Guard: throttle.NoGuard, Random: func() float64 { return 1 }, Retry: throttle.Retry{Attempts: tt.max, MaxBackoff: time.Second}}))
			c := &Client{Caller: caller, Safe: func(context.Context, string) bool { return true }}
			ctx, cancel := context.WithCancel(t.Context())
			if tt.deadline > 0 {
				ctx, cancel = context.WithTimeout(t.Context(), tt.deadline)
			}
			defer cancel()
			var at []time.Time
			var told []string
			err := c.unary(ctx, "/shop.Cart/Get", nil, nil, nil, func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, opts ...grpc.CallOption) error {
				answer := tt.answers[min(len(at), len(tt.answers)-1)]
				at = append(at, time.Now())
				md, _ := metadata.FromOutgoingContext(ctx)
				told = append(told, strings.Join(md[attemptKey], "+"))
				return answer.invoke(ctx, method, req, reply, conn, opts...)
			})
			var waits []time.Duration
			for i := range at[1:] {
				waits = append(waits, at[i+1].Sub(at[i]))
			}
			if status.Code(err) != tt.want || !slices.Equal(waits, tt.waits) {
				t.Errorf("%s: %v after waits of %v, want %v after %v", tt.rule, err, waits, tt.want, tt.waits)
			}
			for i, number := range told { // in place of grpc-previous-rpc-attempts, which is grpc-go's to write
				if i == 0 && number != "" || i > 0 && number != strconv.Itoa(i) {
					t.Errorf("%s: attempt %d says that it is %q", tt.rule, i, number)
				}
			}
		})
	}
}

// BenchmarkClient measures a call that succeeds, without gRPC below.
func BenchmarkClient(b *testing.B) {
	caller, err := throttle.NewCaller(throttle.CallerConfig{})
	if err != nil {
		b.Fatal(err)
	}
	c, ctx := &Client{Caller: caller}, context.Background()
	below := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil }
	b.ReportAllocs()
	for b.Loop() {
		if err := c.unary(ctx, "/shop.Cart/Get", nil, nil, nil, below); err != nil {
			b.Fatal(err)
		}
	}
}

// A panic below goes on, and the slot is given back.
func TestClientPanics(t *testing.T) {
	caller, err := throttle.NewCaller(throttle.CallerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	c := &Client{Caller: caller}
	panics := func(call func()) {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		call()
	}
	panics(func() {
		_ = c.unary(t.Context(), "/shop.Cart/Get", nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
			panic("below")
		})
	})
	panics(func() {
		_, _ = c.stream(t.Context(), new(grpc.StreamDesc), nil, "/shop.Cart/Get", func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
			panic("below")
		})
	})
	if n := caller.Targets()[0].Guard.InFlight; n != 0 {
		t.Errorf("%d in flight", n)
	}
}

// A retry that is charged and never sent is refunded. Here the client's own limit refuses it.
func TestClientGivesUnsentRetriesBack(t *testing.T) {
	own := weir.Must(limit.New(limit.Config{Name: "own", Limit: 1, Queue: limit.Queue{Len: -1}}))
	defer own.Close()
	var taken []weir.Permit
	caller := weir.Must(throttle.NewCaller(throttle.CallerConfig{Guard: throttle.NoGuard, Limit: own, Random: func() float64 {
		if p, err := own.TryAdmit(weir.Work{}); err == nil { // the retry is decided, and somebody else takes the place
			taken = append(taken, p)
		}
		return 0
	}}))
	c := &Client{Caller: caller, Safe: func(context.Context, string) bool { return true }}
	away := status.Error(codes.Unavailable, "away")
	for what, call := range map[string]func() error{
		"unary": func() error {
			return c.unary(t.Context(), "/shop.Cart/Get", nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return away })
		},
		"stream": func() error {
			_, err := c.stream(t.Context(), new(grpc.StreamDesc), nil, "/shop.Cart/Get", func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
				return nil, away
			})
			return err
		},
	} {
		if rej := weir.AsRejection(call()); rej == nil || rej.Gate != "own" {
			t.Errorf("%s: refused by %+v", what, rej)
		}
		if left := caller.Targets()[0].RetriesLeft; left != 5 || len(taken) != 1 {
			t.Errorf("%s: %d retries left, %d places taken", what, left, len(taken))
		}
		for _, p := range taken {
			p.Done(weir.NoSample)
		}
		taken = nil
	}
}

// answering is a stream that has given its first answer.
type answering struct{ grpc.ClientStream }

func (answering) RecvMsg(any) error { return nil }

// The end of its only probe decides about a breaker.
func TestClientProbes(t *testing.T) {
	const open, halfOpen, closed = 0, 1, -1
	desc := &grpc.StreamDesc{ServerStreams: true}
	cancelled := status.Error(codes.Canceled, "left")
	unary := func(end func(leave context.CancelFunc) error) func(*Client, context.Context, context.CancelFunc) {
		return func(c *Client, ctx context.Context, leave context.CancelFunc) {
			_ = c.unary(ctx, "/shop.Cart/Get", nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return end(leave) })
		}
	}
	// use gets the stream that was opened, and a function that ends it.
	stream := func(end func(leave context.CancelFunc) error, use func(s grpc.ClientStream, finish func(error))) func(*Client, context.Context, context.CancelFunc) {
		return func(c *Client, ctx context.Context, leave context.CancelFunc) {
			var finish func(error)
			s, err := c.stream(ctx, desc, nil, "/shop.Cart/List", func(_ context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
				for _, o := range opts {
					if o, ok := o.(grpc.OnFinishCallOption); ok {
						finish = o.OnFinish
					}
				}
				return answering{}, end(leave)
			})
			if err == nil && use != nil {
				use(s, finish)
			}
		}
	}
	says := func(err error) func(context.CancelFunc) error { return func(context.CancelFunc) error { return err } }
	leaves := func(leave context.CancelFunc) error { leave(); return cancelled }
	panics := func(context.CancelFunc) error { panic("below") }
	for _, tt := range []struct {
		name  string
		probe func(*Client, context.Context, context.CancelFunc)
		want  int64
	}{
		{"an answer", unary(says(nil)), closed},
		{"overload", unary(says(status.Error(codes.Unavailable, "no"))), open},
		{"a caller who leaves", unary(leaves), halfOpen},
		{"a call that the server cancels", unary(says(cancelled)), halfOpen},
		{"a panic", unary(panics), halfOpen},
		{"a stream that cannot be opened", stream(says(status.Error(codes.Unavailable, "no")), nil), open},
		{"a stream whose caller leaves before it is open", stream(leaves, nil), halfOpen},
		{"a stream whose caller leaves before the first answer", stream(says(nil), func(_ grpc.ClientStream, finish func(error)) { finish(cancelled) }), halfOpen},
		{"a stream that panics", stream(panics, nil), halfOpen},
		{"a stream that is answered and goes on", stream(says(nil), func(s grpc.ClientStream, _ func(error)) { _ = s.RecvMsg(nil) }), closed},
	} {
		var now time.Duration
		c := &Client{Caller: weir.Must(throttle.NewCaller(throttle.CallerConfig{
			Guard: throttle.GuardBreaker, Breaker: throttle.BreakerConfig{Run: 1, Probes: 1}, Retry: throttle.Retry{Attempts: 1}, Now: func() time.Duration { return now },
		}))}
		ctx, leave := context.WithCancel(t.Context())
		unary(says(status.Error(codes.Unavailable, "no")))(c, ctx, leave)
		now = 5 * time.Second
		func() {
			defer func() { _ = recover() }()
			tt.probe(c, ctx, leave)
		}()
		leave()
		guard := c.Caller.Targets()[0].Guard
		if guard.Limit != tt.want {
			t.Errorf("%s: %s", tt.name, guard.LimitReason)
		}
		if unary(says(nil))(c, t.Context(), leave); tt.want == halfOpen && c.Caller.Targets()[0].Guard.Limit != closed {
			t.Errorf("%s: no place for another probe: %s", tt.name, c.Caller.Targets()[0].Guard.LimitReason)
		}
	}
}

// An attempt has the context of its own call, with its values and with the deadline of a hook. That context ends with the call.
func TestClientKeepsTheContext(t *testing.T) {
	type key struct{}
	c := &Client{Work: func(_ context.Context, _ string, w *weir.Work) { w.Deadline = time.Now().Add(time.Hour) }}
	for i := range 3 {
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, i))
		var inner context.Context
		err := c.unary(ctx, "/shop.Cart/Get", nil, nil, nil, func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
			inner = ctx
			return ctx.Err()
		})
		if _, bounded := inner.Deadline(); err != nil || inner.Value(key{}) != i || !bounded || inner.Err() == nil || ctx.Err() != nil {
			t.Errorf("call %d: %v, the value %v, a deadline %v, ended %v", i, err, inner.Value(key{}), bounded, inner.Err())
		}
		cancel()
	}
}
