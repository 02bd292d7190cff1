package weirgrpc_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/slot"
	"github.com/weir-go/weir/weirgrpc"
	"github.com/weir-go/weir/weirhttp"
)

// A call that streams its answers gives its sample with the first one, whatever comes later. A call that
// streams its requests gives none.
func TestStreamSamples(t *testing.T) {
	broken := status.Error(codes.Internal, "broken")
	output := func(n int, err error) *service {
		return &service{output: func(_ *testgrpc.StreamingOutputCallRequest, s testgrpc.TestService_StreamingOutputCallServer) error {
			for range n {
				if err := s.Send(new(testgrpc.StreamingOutputCallResponse)); err != nil {
					return err
				}
			}
			return err
		}}
	}
	duplex := func(err error) *service {
		return &service{duplex: func(s testgrpc.TestService_FullDuplexCallServer) error {
			if err := s.Send(new(testgrpc.StreamingOutputCallResponse)); err != nil {
				return err
			}
			return err
		}}
	}
	download := func(t *testing.T, c testgrpc.TestServiceClient) (receiver, error) {
		return c.StreamingOutputCall(within(t), new(testgrpc.StreamingOutputCallRequest))
	}
	converse := func(t *testing.T, c testgrpc.TestServiceClient) (receiver, error) { return c.FullDuplexCall(within(t)) }
	for _, tt := range []struct {
		name string
		s    *service
		call func(*testing.T, testgrpc.TestServiceClient) (receiver, error)
		want weir.Outcome
	}{
		{"one answer", output(1, nil), download, weir.OK},
		{"an answer, then an error", output(1, broken), download, weir.OK},
		{"an error", output(0, broken), download, weir.Failed},
		{"no answer", output(0, nil), download, weir.NoSample},
		{"overloaded", output(0, status.Error(codes.Unavailable, "")), download, weir.Overload},
		{"both ways", duplex(nil), converse, weir.NoSample},
		{"both ways, with an error", duplex(broken), converse, weir.NoSample},
	} {
		t.Run(tt.name, func(t *testing.T) {
			gate, outcomes := counting(t, 1)
			s, err := tt.call(t, serve(t, tt.s, weirgrpc.New(gate).ServerOptions()...))
			if err != nil {
				t.Fatal(err)
			}
			for err == nil {
				_, err = s.Recv()
			}
			if got := outcomes.take(t); got != tt.want {
				t.Errorf("outcome %v, want %v; ended with %v", got, tt.want, err)
			}
			await(t, "the slot is free", idle(gate))
		})
	}
}

type receiver interface {
	Recv() (*testgrpc.StreamingOutputCallResponse, error)
}

// Long streams give their slots back and get places in the pool, as long as there are places.
func TestStreamsLast(t *testing.T) {
	finish := make(chan struct{})
	lasting := &service{
		output: func(_ *testgrpc.StreamingOutputCallRequest, s testgrpc.TestService_StreamingOutputCallServer) error {
			if err := s.Send(new(testgrpc.StreamingOutputCallResponse)); err != nil {
				return err
			}
			<-finish
			return nil
		},
		duplex: func(testgrpc.TestService_FullDuplexCallServer) error { <-finish; return nil },
	}
	for name, call := range map[string]func(testgrpc.TestServiceClient) error{
		"answers": func(c testgrpc.TestServiceClient) error {
			_, err := c.StreamingOutputCall(within(t), new(testgrpc.StreamingOutputCallRequest))
			return err
		},
		"both ways": func(c testgrpc.TestServiceClient) error { _, err := c.FullDuplexCall(within(t)); return err },
	} {
		t.Run(name, func(t *testing.T) {
			gate := newLimit(t, 4, -1)
			pool := weirhttp.NewStreams(weirhttp.StreamsConfig{Max: 1, Grace: time.Millisecond})
			client := serve(t, lasting, weirgrpc.New(gate, weirgrpc.WithStreams(pool)).ServerOptions()...)
			for range 2 {
				if err := call(client); err != nil {
					t.Fatal(err)
				}
			}
			await(t, "one has a place, one keeps its slot", func() bool {
				s := pool.Snapshot()
				return s.Open == 1 && s.Overflowed == 1 && gate.Snapshot().InFlight == 1
			})
			finish <- struct{}{}
			finish <- struct{}{}
			await(t, "both are over", func() bool { return pool.Snapshot().Open == 0 && gate.Snapshot().InFlight == 0 })
		})
	}
}

// Before the first answer the backend works on a stream, so the stream keeps its slot, however long that takes.
// Without a pool no call is a stream.
func TestStreamsThatKeepTheirSlot(t *testing.T) {
	begin, finish := make(chan struct{}), make(chan struct{})
	s := &service{
		output: func(_ *testgrpc.StreamingOutputCallRequest, s testgrpc.TestService_StreamingOutputCallServer) error {
			<-begin
			if err := s.Send(new(testgrpc.StreamingOutputCallResponse)); err != nil {
				return err
			}
			<-finish
			return nil
		},
	}
	gate := newLimit(t, 1, -1)
	pool := weirhttp.NewStreams(weirhttp.StreamsConfig{Grace: time.Nanosecond})
	client := serve(t, s, weirgrpc.New(gate, weirgrpc.WithStreams(pool)).ServerOptions()...)
	if _, err := client.StreamingOutputCall(within(t), new(testgrpc.StreamingOutputCallRequest)); err != nil {
		t.Fatal(err)
	}
	await(t, "it has its slot", func() bool { return gate.Snapshot().InFlight == 1 })
	begin <- struct{}{}
	await(t, "it has a place", func() bool { return pool.Snapshot().Open == 1 && gate.Snapshot().InFlight == 0 })
	finish <- struct{}{}
	await(t, "it is over", func() bool { return pool.Snapshot().Open == 0 })

	// Headers are a first answer, too.
	early := &service{output: func(_ *testgrpc.StreamingOutputCallRequest, s testgrpc.TestService_StreamingOutputCallServer) error {
		if err := s.SendHeader(nil); err != nil {
			return err
		}
		<-finish
		return nil
	}}
	client = serve(t, early, weirgrpc.New(gate, weirgrpc.WithStreams(pool)).ServerOptions()...)
	if _, err := client.StreamingOutputCall(within(t), new(testgrpc.StreamingOutputCallRequest)); err != nil {
		t.Fatal(err)
	}
	await(t, "it has a place", func() bool { return pool.Snapshot().Open == 1 && gate.Snapshot().InFlight == 0 })
	finish <- struct{}{}
	await(t, "it is over", func() bool { return pool.Snapshot().Open == 0 })

	client = serve(t, s, weirgrpc.New(gate, weirgrpc.WithStreams(nil)).ServerOptions()...)
	if _, err := client.StreamingOutputCall(within(t), new(testgrpc.StreamingOutputCallRequest)); err != nil {
		t.Fatal(err)
	}
	begin <- struct{}{}
	finish <- struct{}{}
	await(t, "it is over", idle(gate))
}

// A stream that finds no place keeps its slot until it sends a message and there is one.
func TestStreamFindsAPlaceLater(t *testing.T) {
	begin, finish := make(chan struct{}), make(chan struct{})
	s := &service{duplex: func(s testgrpc.TestService_FullDuplexCallServer) error {
		<-begin
		if err := s.Send(new(testgrpc.StreamingOutputCallResponse)); err != nil {
			return err
		}
		<-finish
		return nil
	}}
	gate := newLimit(t, 1, -1)
	pool := weirhttp.NewStreams(weirhttp.StreamsConfig{Max: 1, Grace: time.Nanosecond})
	pool.Enter("") // another stream
	client := serve(t, s, weirgrpc.New(gate, weirgrpc.WithStreams(pool)).ServerOptions()...)
	both, err := client.FullDuplexCall(within(t))
	if err != nil {
		t.Fatal(err)
	}
	await(t, "it finds no place", func() bool { return pool.Snapshot().Overflowed == 1 })
	pool.Leave("")
	if n := gate.Snapshot().InFlight; n != 1 {
		t.Errorf("%d in flight without a place, want 1", n)
	}
	begin <- struct{}{}
	if _, err := both.Recv(); err != nil {
		t.Fatal(err)
	}
	if n, open := gate.Snapshot().InFlight, pool.Snapshot().Open; n != 0 || open != 1 {
		t.Errorf("%d in flight, %d in the pool, want a place for the slot", n, open)
	}
	finish <- struct{}{}
	await(t, "it is over", func() bool { return pool.Snapshot().Open == 0 })
}

// A handler can say that its call is a stream.
func TestReleaseForStream(t *testing.T) {
	gate := newLimit(t, 1, -1)
	released, finish := make(chan bool), make(chan struct{})
	client := serve(t, &service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		released <- weirgrpc.FromContext(ctx).ReleaseForStream()
		<-finish
		return new(testgrpc.SimpleResponse), nil
	}}, weirgrpc.New(gate).ServerOptions()...)
	answered := make(chan error)
	go func() { _, err := client.UnaryCall(within(t), new(testgrpc.SimpleRequest)); answered <- err }()
	if !<-released || gate.Snapshot().InFlight != 0 {
		t.Error("the slot was kept")
	}
	close(finish)
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

// Watches have no slot and a pool of their own. In the pool of the streams they would take the places of the service's
// own, which would keep their slots.
func TestWatchesTakeNoPlaceOfStreams(t *testing.T) {
	gate := newLimit(t, 1, -1)
	pool := weirhttp.NewStreams(weirhttp.StreamsConfig{Max: 1, Grace: time.Millisecond})
	s := &service{output: func(_ *testgrpc.StreamingOutputCallRequest, out testgrpc.TestService_StreamingOutputCallServer) error {
		if err := out.Send(new(testgrpc.StreamingOutputCallResponse)); err != nil {
			return err
		}
		<-out.Context().Done()
		return nil
	}}
	conn := dial(t, startWith(t, func(server *grpc.Server) {
		healthgrpc.RegisterHealthServer(server, health.NewServer())
		testgrpc.RegisterTestServiceServer(server, s)
	}, weirgrpc.New(gate, weirgrpc.WithStreams(pool)).ServerOptions()...))
	for range 2 {
		watch, err := healthgrpc.NewHealthClient(conn).Watch(within(t), new(healthgrpc.HealthCheckRequest))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := watch.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	if n := pool.Snapshot().Open; n != 0 || gate.Snapshot().Exempt != 0 {
		t.Fatalf("watches have %d places among the streams, and %d count as exempt work", n, gate.Snapshot().Exempt)
	}
	out, err := testgrpc.NewTestServiceClient(conn).StreamingOutputCall(within(t), new(testgrpc.StreamingOutputCallRequest))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Recv(); err != nil {
		t.Fatal(err)
	}
	await(t, "the stream has a place, and its slot is free", idle(gate))
}

// What has no slot needs no place.
func TestNoPlaceWithoutASlot(t *testing.T) {
	for want, gate := range map[int64]weir.Gate{0: weir.All(), 1: newLimit(t, 1, -1)} {
		pool := weirhttp.NewStreams(weirhttp.StreamsConfig{})
		s := &service{unary: func(ctx context.Context, in *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			if !weirgrpc.FromContext(ctx).ReleaseForStream() {
				t.Error("it has a slot")
			}
			if n := pool.Snapshot().Open; n != want {
				t.Errorf("%d places are taken, want %d", n, want)
			}
			return answer(ctx, in)
		}}
		client := serve(t, s, weirgrpc.New(gate, weirgrpc.WithStreams(pool)).ServerOptions()...)
		if _, err := client.UnaryCall(within(t), new(testgrpc.SimpleRequest)); err != nil {
			t.Error(err)
		}
		await(t, "no place is taken", func() bool { return pool.Snapshot().Open == 0 })
	}
}

// isFull reports whether there is no place among the streams for a user.
func isFull(s *weirhttp.Streams, user string) bool {
	entered := s.Enter(user)
	if entered {
		s.Leave(user)
	}
	return !entered
}

// The place of a call is its user's, and comes back at the end.
func TestStreamOfAUser(t *testing.T) {
	pool := weirhttp.NewStreams(weirhttp.StreamsConfig{Max: 2})
	s := &service{unary: func(ctx context.Context, in *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		if !weirgrpc.FromContext(ctx).ReleaseForStream() || !isFull(pool, "a") {
			t.Error("the stream has no place of its user's")
		}
		return answer(ctx, in)
	}}
	named := weirgrpc.WithWork(func(_ context.Context, _ string, w *weir.Work) { w.User = "a" })
	client := serve(t, s, weirgrpc.New(newLimit(t, 1, -1), weirgrpc.WithStreams(pool), named).ServerOptions()...)
	if _, err := client.UnaryCall(within(t), new(testgrpc.SimpleRequest)); err != nil {
		t.Error(err)
	}
	await(t, "the place is free", func() bool { return pool.Snapshot().Open == 0 && !isFull(pool, "a") })
}

// With a gate for messages, each message is a piece of work. The refusal of a message ends the stream, even if
// the handler would go on.
func TestMessages(t *testing.T) {
	var admitted atomic.Int64
	messages := permits(func() (weir.Permit, error) {
		if admitted.Add(1) > 2 {
			return weir.Permit{}, &weir.Rejection{Gate: "messages", Reason: weir.ReasonQuota, RetryAfter: time.Second, Retryable: true}
		}
		return weir.Permit{}, nil
	})
	var seen atomic.Int64
	s := &service{duplex: func(s testgrpc.TestService_FullDuplexCallServer) error {
		for {
			_, err := s.Recv()
			if errors.Is(err, io.EOF) || err != nil {
				return nil
			}
			seen.Add(1)
			if err := s.Send(new(testgrpc.StreamingOutputCallResponse)); err != nil {
				return err
			}
		}
	}}
	calls := newLimit(t, 4, -1)
	client := serve(t, s, weirgrpc.New(calls, weirgrpc.WithMessages(messages)).ServerOptions()...)
	both, err := client.FullDuplexCall(within(t))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := both.Send(new(testgrpc.StreamingOutputCallRequest)); err != nil {
			t.Fatal(err)
		}
		_, err = both.Recv()
		if i < 2 && err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	wantCode(t, err, codes.ResourceExhausted)
	if seen.Load() != 2 {
		t.Errorf("the handler has seen %d messages, want 2", seen.Load())
	}
	if ms := both.Trailer().Get(weirgrpc.PushbackHeader); len(ms) != 1 || ms[0] != "1000" {
		t.Errorf("trailer %v", both.Trailer())
	}
	await(t, "the slot is free", idle(calls))
}

// The refusal of a message is told once, also if the function of WithRejection returns it as it came. Clients take a
// trailer with two values for "do not come back".
func TestMessageIsRefusedOnce(t *testing.T) {
	full := &weir.Rejection{Gate: "messages", Reason: weir.ReasonQuota, RetryAfter: time.Second, Retryable: true}
	messages := permits(func() (weir.Permit, error) { return weir.Permit{}, full })
	s := &service{duplex: func(s testgrpc.TestService_FullDuplexCallServer) error {
		_, err := s.Recv()
		return err
	}}
	client := serve(t, s, weirgrpc.New(newLimit(t, 1, -1), weirgrpc.WithMessages(messages),
		weirgrpc.WithRejection(func(_ context.Context, _ string, rej *weir.Rejection) error { return rej })).ServerOptions()...)
	both, err := client.FullDuplexCall(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := both.Send(new(testgrpc.StreamingOutputCallRequest)); err != nil {
		t.Fatal(err)
	}
	if _, err := both.Recv(); err == nil {
		t.Error("the message is not refused")
	}
	if ms := both.Trailer().Get(weirgrpc.PushbackHeader); len(ms) != 1 || ms[0] != "1000" {
		t.Errorf("trailer %v", both.Trailer())
	}
}

// A call with one message of its client is admitted as a whole only.
func TestOneMessageIsNoPiece(t *testing.T) {
	none := permits(func() (weir.Permit, error) {
		return weir.Permit{}, &weir.Rejection{Gate: "messages", Reason: weir.ReasonQuota}
	})
	s := &service{output: func(_ *testgrpc.StreamingOutputCallRequest, s testgrpc.TestService_StreamingOutputCallServer) error {
		return s.Send(new(testgrpc.StreamingOutputCallResponse))
	}}
	client := serve(t, s, weirgrpc.New(newLimit(t, 1, -1), weirgrpc.WithMessages(none)).ServerOptions()...)
	answers, err := client.StreamingOutputCall(within(t), new(testgrpc.StreamingOutputCallRequest))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := answers.Recv(); err != nil {
		t.Error(err)
	}
}

// A message's slot is held while the handler works on the message, and at most until the handler returns.
func TestMessageHoldsItsSlot(t *testing.T) {
	messages := newLimit(t, 1, -1)
	got, next := make(chan struct{}), make(chan struct{})
	var last atomic.Bool
	s := &service{duplex: func(s testgrpc.TestService_FullDuplexCallServer) error {
		for {
			if _, err := s.Recv(); err != nil {
				return nil
			}
			got <- struct{}{}
			<-next
			if last.Load() {
				return nil
			}
		}
	}}
	client := serve(t, s, weirgrpc.New(nil, weirgrpc.WithSelect(func(context.Context, string) (weir.Gate, weir.Work) {
		return weir.All(), weir.Work{}
	}), weirgrpc.WithMessages(messages)).ServerOptions()...)
	both, err := client.FullDuplexCall(within(t))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := both.Send(new(testgrpc.StreamingOutputCallRequest)); err != nil {
			t.Fatal(err)
		}
		<-got
		last.Store(i == 2)
		if n := messages.Snapshot().InFlight; n != 1 {
			t.Errorf("%d in flight while the handler works", n)
		}
		next <- struct{}{}
		await(t, "the message is done", idle(messages))
	}
}

// A goroutine of a handler may be receiving when the handler returns. The message that it gets then keeps no slot.
func TestMessageAfterItsHandler(t *testing.T) {
	messages := newLimit(t, 1, -1)
	came, let, received := make(chan struct{}), make(chan struct{}), make(chan struct{})
	late := permits(func() (weir.Permit, error) {
		close(came)
		<-let
		return messages.TryAdmit(weir.Work{})
	})
	s := &service{duplex: func(s testgrpc.TestService_FullDuplexCallServer) error {
		go func() {
			defer close(received)
			_, _ = s.Recv() // whether it gets the message does not matter
		}()
		<-came
		return nil
	}}
	client := serve(t, s, weirgrpc.New(newLimit(t, 1, -1), weirgrpc.WithMessages(late)).ServerOptions()...)
	both, err := client.FullDuplexCall(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := both.Send(new(testgrpc.StreamingOutputCallRequest)); err != nil {
		t.Fatal(err)
	}
	if _, err := both.Recv(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	close(let) // the handler has returned
	<-received
	if n := messages.Snapshot().InFlight; n != 0 {
		t.Errorf("%d in flight, and no handler", n)
	}
}

// A stream that has given its slot back still owes its quotas what it really costs, whenever it says so.
func TestStreamSettlesItsCost(t *testing.T) {
	for _, when := range []string{"after", "while it gives the slot back", "just before its end"} {
		t.Run(when, func(t *testing.T) {
			tokens := weir.Must(quota.New(quota.Config{Name: "tokens", Rules: []quota.Rule{
				{Tenant: quota.Every, Windows: []quota.Window{quota.Per(1000, 24*time.Hour)}},
			}}))
			var call *weirgrpc.Call
			releasing, over := make(chan struct{}), make(chan struct{})
			hooks := weir.Hooks{Done: func(string, weir.Outcome, time.Duration) {
				switch when {
				case "while it gives the slot back":
					call.SetCost("", 500)
				case "just before its end":
					close(releasing)
					<-over
				}
			}}
			slots := weir.Must(limit.New(limit.Config{Limit: 1, Hooks: hooks}))
			t.Cleanup(slots.Close)
			pool := weirhttp.NewStreams(weirhttp.StreamsConfig{})
			var moving sync.WaitGroup
			s := &service{output: func(_ *testgrpc.StreamingOutputCallRequest, s testgrpc.TestService_StreamingOutputCallServer) error {
				call = weirgrpc.FromContext(s.Context())
				if when == "just before its end" {
					moving.Go(func() { call.ReleaseForStream() })
					<-releasing
				} else if !call.ReleaseForStream() || slots.Snapshot().InFlight != 0 {
					t.Error("the slot was kept")
				}
				if when != "while it gives the slot back" {
					call.SetCost("", 500)
				}
				return nil
			}}
			client := serve(t, s, weirgrpc.New(weir.All(tokens, slots), weirgrpc.WithStreams(pool)).ServerOptions()...)
			answers, err := client.StreamingOutputCall(within(t), new(testgrpc.StreamingOutputCallRequest))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := answers.Recv(); !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			close(over)
			moving.Wait()
			await(t, "nothing is left of it", func() bool { return pool.Snapshot().Open == 0 && tokens.Snapshot().InFlight == 0 })
			if _, a, _ := tokens.AdmitIn(t.Context(), quota.DryRun, weir.Work{}); a.Remaining > 501 {
				t.Errorf("%.0f of 1000 tokens are left after 500 were used", a.Remaining)
			}
		})
	}
}

// released is a gate that keeps a charge of what is released. Something else happens before it hears of a cost.
type released struct {
	weir.Gate
	group  slot.Group
	slots  [2]slot.Slot // of the call, and of the charge
	before func()
	cost   atomic.Int64
}

func (g *released) Admit(context.Context, weir.Work) (weir.Permit, error) {
	return weir.NewPermit(g.slots[0].Issue()), nil
}

func (g *released) Release(t slot.Ticket, _ uint8) slot.Ticket {
	t.Recall()
	return g.slots[1].Issue()
}

func (g *released) SetCost(t slot.Ticket, _ string, units int64) {
	g.before()
	if t.Live() {
		g.cost.Store(units)
	}
}

func (g *released) Sample(slot.Ticket, uint8)   {}
func (g *released) Done(t slot.Ticket, _ uint8) { t.Recall() }
func (g *released) Cancel(t slot.Ticket)        { t.Recall() }

// A cost that finds the permit released is told once more, to what is left of it.
func TestCostOfAReleasedPermit(t *testing.T) {
	var call *weirgrpc.Call
	g := new(released)
	g.before = sync.OnceFunc(func() { call.ReleaseForStream() })
	g.group.Holder = g
	g.group.Attention.Store(1)
	for i := range g.slots {
		g.slots[i].Init(&g.group, uint32(i))
	}
	s := &service{output: func(_ *testgrpc.StreamingOutputCallRequest, s testgrpc.TestService_StreamingOutputCallServer) error {
		call = weirgrpc.FromContext(s.Context())
		call.SetCost("", 500)
		return nil
	}}
	client := serve(t, s, weirgrpc.New(g, weirgrpc.WithStreams(weirhttp.NewStreams(weirhttp.StreamsConfig{}))).ServerOptions()...)
	answers, err := client.StreamingOutputCall(within(t), new(testgrpc.StreamingOutputCallRequest))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := answers.Recv(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if got := g.cost.Load(); got != 500 {
		t.Errorf("the charge is %d, want 500", got)
	}
}

type permits func() (weir.Permit, error)

func (g permits) Admit(context.Context, weir.Work) (weir.Permit, error) { return g() }
