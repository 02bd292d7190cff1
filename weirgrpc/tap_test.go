package weirgrpc_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/weirgrpc"
)

// brief is a time-out that a tap decides.
const brief = bound - time.Second

const bound = time.Minute

// tapping are the options of a server with a tap.
func tapping(guard *weirgrpc.Guard, next tap.ServerInHandle) []grpc.ServerOption {
	return append(guard.ServerOptions(), grpc.InTapHandle(guard.Tap(next)))
}

// call makes a call whose deadline is brief enough for the tap.
func call(t testing.TB, client testgrpc.TestServiceClient, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(t.Context(), brief)
	defer cancel()
	_, err := client.UnaryCall(ctx, new(testgrpc.SimpleRequest), opts...)
	return err
}

// known makes the first call of a method, which the tap lets pass.
func known(t testing.TB, client testgrpc.TestServiceClient) {
	t.Helper()
	if err := call(t, client); err != nil {
		t.Fatal(err)
	}
}

func TestTap(t *testing.T) {
	gate := newLimit(t, 1, -1)
	guard := weirgrpc.New(gate)
	finish, running := make(chan struct{}), make(chan struct{}, 1)
	var hold sync.Mutex
	holding := false
	client := serve(t, &service{unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		hold.Lock()
		wait := holding
		hold.Unlock()
		if wait {
			running <- struct{}{}
			<-finish
		}
		return new(testgrpc.SimpleResponse), nil
	}}, tapping(guard, nil)...)
	known(t, client)
	await(t, "the slot is free", idle(gate))

	hold.Lock()
	holding = true
	hold.Unlock()
	ctx, leave := context.WithTimeout(t.Context(), brief)
	defer leave()
	first := make(chan error)
	go func() { _, err := client.UnaryCall(ctx, new(testgrpc.SimpleRequest)); first <- err }()
	<-running
	var trailer metadata.MD
	st := wantCode(t, call(t, client, grpc.Trailer(&trailer)), codes.Unavailable)
	if !strings.Contains(st.Message(), `"api"`) || len(st.Details()) == 0 {
		t.Errorf("refused with %q, %v", st.Message(), st.Details())
	}
	if ms := trailer.Get(weirgrpc.PushbackHeader); len(ms) != 0 {
		t.Errorf("pushback %v: gRPC sends the trailers of taps now", ms)
	}
	if s := guard.TapSnapshot(); s != (weirgrpc.TapSnapshot{Admitted: 1, Refused: 1, Passed: 1}) {
		t.Errorf("counts %+v", s)
	}

	// The client leaves while the handler works: the slot is the handler's.
	leave()
	wantCode(t, <-first, codes.Canceled)
	for range 20 {
		if err := call(t, client); status.Code(err) != codes.Unavailable {
			t.Fatalf("admitted beside a handler that works: %v", err)
		}
	}
	hold.Lock()
	holding = false
	hold.Unlock()
	close(finish)
	await(t, "the slot is free", idle(gate))
	if s := guard.TapSnapshot(); s.Dropped != 0 {
		t.Errorf("%d dropped although a handler ran", s.Dropped)
	}
	if err := call(t, client); err != nil {
		t.Error(err)
	}
}

// The interceptor decides about calls that the tap passes.
func TestTapPasses(t *testing.T) {
	for _, tt := range []struct {
		name string
		gate weir.Gate
		ctx  func() (context.Context, context.CancelFunc)
		want weirgrpc.TapSnapshot // of the second call
	}{
		{"decides", newLimit(t, 4, 0), timeout(brief), weirgrpc.TapSnapshot{Admitted: 1}},
		{"no deadline", newLimit(t, 4, 0), func() (context.Context, context.CancelFunc) { return t.Context(), func() {} }, weirgrpc.TapSnapshot{Passed: 1}},
		{"a long one", newLimit(t, 4, 0), timeout(2 * bound), weirgrpc.TapSnapshot{Passed: 1}},
		{"a distant gate", distant{newLimit(t, 4, 0)}, timeout(brief), weirgrpc.TapSnapshot{Passed: 1}},
		{"a gate that may wait", permits(func() (weir.Permit, error) { return weir.Permit{}, nil }), timeout(brief), weirgrpc.TapSnapshot{Passed: 1}},
		{"a gate that tries", tries{newLimit(t, 4, 0)}, timeout(brief), weirgrpc.TapSnapshot{Admitted: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			guard := weirgrpc.New(tt.gate)
			client := serve(t, &service{unary: answer}, tapping(guard, nil)...)
			known(t, client)
			before := guard.TapSnapshot()
			ctx, cancel := tt.ctx()
			defer cancel()
			if _, err := client.UnaryCall(ctx, new(testgrpc.SimpleRequest)); err != nil {
				t.Fatal(err)
			}
			got := guard.TapSnapshot()
			got.Passed -= before.Passed
			if got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
			if s, ok := tt.gate.(weir.Snapshotter); ok {
				await(t, "the slot is free", idle(s))
			}
		})
	}
}

// Which calls are brief enough for a tap is a setting.
func TestLongestTap(t *testing.T) {
	guard := weirgrpc.New(newLimit(t, 4, 0), weirgrpc.WithLongestTap(brief-time.Second))
	client := serve(t, &service{unary: answer}, tapping(guard, nil)...)
	known(t, client)
	known(t, client)
	if s := guard.TapSnapshot(); s != (weirgrpc.TapSnapshot{Passed: 2}) {
		t.Errorf("%+v, want two calls that passed", s)
	}
}

func timeout(d time.Duration) func() (context.Context, context.CancelFunc) {
	return func() (context.Context, context.CancelFunc) { return context.WithTimeout(context.Background(), d) }
}

// distant is a gate that would ask a server.
type distant struct{ *limit.Limiter }

func (distant) IsDistant() bool { return true }

// tries is a gate that can try but not call back.
type tries struct{ l *limit.Limiter }

func (g tries) Admit(ctx context.Context, w weir.Work) (weir.Permit, error) { return g.l.Admit(ctx, w) }
func (g tries) TryAdmit(w weir.Work) (weir.Permit, error)                   { return g.l.TryAdmit(w) }
func (g tries) Snapshot() weir.Snapshot                                     { return g.l.Snapshot() }

// A call that gets no slot at once waits, as without a tap.
func TestTapWaits(t *testing.T) {
	gate := newLimit(t, 1, 4)
	guard := weirgrpc.New(gate)
	client := serve(t, &service{unary: answer}, tapping(guard, nil)...)
	known(t, client)
	await(t, "the slot is free", idle(gate))
	taken, err := gate.TryAdmit(weir.Work{})
	if err != nil {
		t.Fatal(err)
	}
	second := make(chan error)
	go func() { second <- call(t, client) }()
	await(t, "the second waits", func() bool { return gate.Snapshot().Waiting == 1 })
	taken.Done(weir.OK)
	if err := <-second; err != nil {
		t.Error(err)
	}
	await(t, "the slot is free", idle(gate))

	// A call that leaves while it waits is out of the room at once.
	if taken, err = gate.TryAdmit(weir.Work{}); err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithTimeout(t.Context(), brief)
	defer leave()
	go func() { _, err := client.UnaryCall(ctx, new(testgrpc.SimpleRequest)); second <- err }()
	await(t, "the second waits", func() bool { return gate.Snapshot().Waiting == 1 })
	leave()
	wantCode(t, <-second, codes.Canceled)
	await(t, "the room is empty", func() bool { return gate.Snapshot().Waiting == 0 })
	taken.Done(weir.OK)
	await(t, "the slot is free", idle(gate))

	// A call that is refused while it waits gets that refusal.
	if taken, err = gate.TryAdmit(weir.Work{}); err != nil {
		t.Fatal(err)
	}
	go func() { second <- call(t, client) }()
	await(t, "the second waits", func() bool { return gate.Snapshot().Waiting == 1 })
	gate.Close()
	if st := wantCode(t, <-second, codes.Unavailable); !strings.Contains(st.Message(), "draining") {
		t.Errorf("refused with %q", st.Message())
	}
	taken.Done(weir.OK)
}

// A gRPC server that is a handler of net/http calls no tap. There the interceptor admits by itself.
func TestTapUnderServeHTTP(t *testing.T) {
	gate := newLimit(t, 1, -1)
	guard := weirgrpc.New(gate)
	server := grpc.NewServer(tapping(guard, nil)...)
	testgrpc.RegisterTestServiceServer(server, &service{unary: answer})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Server{Handler: server, Protocols: new(http.Protocols)}
	web.Protocols.SetUnencryptedHTTP2(true)
	var serving sync.WaitGroup
	serving.Go(func() { _ = web.Serve(l) }) // it ends with Close
	t.Cleanup(func() { web.Close(); serving.Wait() })
	client := testgrpc.NewTestServiceClient(dial(t, l.Addr().String()))
	for range 3 {
		known(t, client)
		await(t, "the slot is free", idle(gate))
	}
	taken, err := gate.TryAdmit(weir.Work{})
	if err != nil {
		t.Fatal(err)
	}
	var trailer metadata.MD
	st := wantCode(t, call(t, client, grpc.Trailer(&trailer)), codes.Unavailable)
	if len(st.Details()) == 0 {
		t.Error("refused without details")
	}
	taken.Done(weir.OK)
	if s := guard.TapSnapshot(); s != (weirgrpc.TapSnapshot{}) {
		t.Errorf("gRPC asks the tap now: %+v", s)
	}
	if n := gate.Snapshot().Admitted; n != 4 {
		t.Errorf("%d admitted, want 4", n)
	}
}

// gRPC's own counters do not see what a tap has refused.
func TestTapAndStats(t *testing.T) {
	gate := newLimit(t, 1, -1)
	guard := weirgrpc.New(gate)
	seen := new(statsHandler)
	client := serve(t, &service{unary: answer}, append(tapping(guard, nil), grpc.StatsHandler(seen))...)
	known(t, client)
	await(t, "the call has ended for gRPC", func() bool { return seen.ended() == 1 })
	await(t, "the slot is free", idle(gate))
	taken, err := gate.TryAdmit(weir.Work{})
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, call(t, client), codes.Unavailable)
	taken.Done(weir.OK)
	if err := call(t, client); err != nil {
		t.Fatal(err)
	}
	await(t, "the next call has ended for gRPC", func() bool { return seen.ended() == 2 })
	if n := seen.begun(); n != 2 {
		t.Errorf("gRPC has counted %d calls: it sees what taps refuse now", n)
	}
	if n := guard.TapSnapshot().Refused; n != 1 {
		t.Errorf("the guard has counted %d refusals", n)
	}
	if n := gate.Snapshot().Rejected[weir.ReasonLimit]; n != 1 {
		t.Errorf("the gate has counted %d refusals", n)
	}
}

type statsHandler struct {
	mu         sync.Mutex
	begin, end int
}

func (s *statsHandler) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (s *statsHandler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (s *statsHandler) HandleConn(context.Context, stats.ConnStats)                       {}

func (s *statsHandler) HandleRPC(_ context.Context, r stats.RPCStats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.(type) {
	case *stats.Begin:
		s.begin++
	case *stats.End:
		s.end++
	}
}

func (s *statsHandler) begun() int { s.mu.Lock(); defer s.mu.Unlock(); return s.begin }
func (s *statsHandler) ended() int { s.mu.Lock(); defer s.mu.Unlock(); return s.end }

// A user's own tap is called first, and a call that it refuses takes no slot.
func TestTapComposes(t *testing.T) {
	gate := &recorder{Gate: newLimit(t, 4, 0)}
	refuse := make(chan bool, 8)
	type key struct{}
	guard := weirgrpc.New(gate)
	var value any
	client := serve(t, &service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
		value = ctx.Value(key{})
		return new(testgrpc.SimpleResponse), nil
	}}, tapping(guard, func(ctx context.Context, _ *tap.Info) (context.Context, error) {
		if <-refuse {
			return ctx, status.Error(codes.Aborted, "mine")
		}
		return context.WithValue(ctx, key{}, 7), nil
	})...)
	refuse <- false
	known(t, client)
	refuse <- true
	wantCode(t, call(t, client), codes.Aborted)
	if s := guard.TapSnapshot(); s.Refused+s.Admitted != 0 {
		t.Errorf("counts %+v", s)
	}
	refuse <- false
	if err := call(t, client); err != nil || value != 7 {
		t.Errorf("%v, value %v", err, value)
	}
}

// A guard that drains says so in the tap, too.
func TestTapDrains(t *testing.T) {
	guard := weirgrpc.New(newLimit(t, 4, 0))
	client := serve(t, &service{unary: answer}, tapping(guard, nil)...)
	known(t, client)
	guard.Drain(nil)
	if st := wantCode(t, call(t, client), codes.Unavailable); !strings.Contains(st.Message(), "draining") {
		t.Errorf("%q", st.Message())
	}
	if s := guard.TapSnapshot(); s.Refused != 1 {
		t.Errorf("%+v", s)
	}
}

// raw is a client that writes HTTP/2 frames itself, to send what gRPC's own client never sends.
type raw struct {
	t      testing.TB
	framer *http2.Framer
	enc    *hpack.Encoder
	block  bytes.Buffer
	stream uint32
	mu     sync.Mutex
	status map[uint32]string // grpc-status by stream; "reset" for a stream that was reset
}

func dialRaw(t testing.TB, address string) *raw {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	r := &raw{t: t, framer: http2.NewFramer(c, c), stream: 1, status: map[uint32]string{}}
	r.enc = hpack.NewEncoder(&r.block)
	if _, err := c.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	if err := r.framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(r.read)
	t.Cleanup(func() { c.Close(); reading.Wait() })
	return r
}

func (r *raw) read() {
	dec := hpack.NewDecoder(4096, nil)
	for {
		f, err := r.framer.ReadFrame()
		if err != nil {
			return
		}
		r.mu.Lock()
		switch f := f.(type) {
		case *http2.HeadersFrame:
			fields, err := dec.DecodeFull(f.HeaderBlockFragment())
			if err != nil {
				r.t.Error(err)
			}
			for _, field := range fields {
				if field.Name == "grpc-status" {
					r.status[f.StreamID] = field.Value
				}
			}
		case *http2.RSTStreamFrame:
			if _, answered := r.status[f.StreamID]; !answered {
				r.status[f.StreamID] = "reset"
			}
		}
		r.mu.Unlock()
	}
}

// begin sends the headers of a call, and returns its stream.
func (r *raw) begin(method string, pairs ...string) uint32 {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	id := r.stream
	r.stream += 2
	r.block.Reset()
	fields := append([]string{":method", "POST", ":scheme", "http", ":path", method, ":authority", "test", "content-type", "application/grpc", "te", "trailers"}, pairs...)
	for i := 0; i < len(fields); i += 2 {
		if err := r.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			r.t.Fatal(err)
		}
	}
	block := r.block.Bytes()
	first := block[:min(len(block), 16<<10)]
	block = block[len(first):]
	if err := r.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndHeaders: len(block) == 0}); err != nil {
		r.t.Fatal(err)
	}
	for len(block) > 0 {
		next := block[:min(len(block), 16<<10)]
		block = block[len(next):]
		if err := r.framer.WriteContinuation(id, len(block) == 0, next); err != nil {
			r.t.Fatal(err)
		}
	}
	return id
}

// send sends a message, as its frame of gRPC.
func (r *raw) send(id uint32, frame []byte) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.framer.WriteData(id, true, frame); err != nil {
		r.t.Fatal(err)
	}
}

func (r *raw) reset(id uint32) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.framer.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
		r.t.Fatal(err)
	}
}

// flood makes n calls with a time-out, and waits until the last has ended.
func (r *raw) flood(timeout string, n int) {
	r.t.Helper()
	for i := range n {
		id := r.begin(unaryCall, "grpc-timeout", timeout)
		r.send(id, emptyMessage)
		if i%50 == 49 || i == n-1 {
			r.ended(id) // otherwise the flood would exceed the server's bound on streams
		}
	}
	r.mu.Lock()
	r.status = map[uint32]string{}
	r.mu.Unlock()
}

// ended returns how a call has ended, once it has.
func (r *raw) ended(id uint32) string {
	r.t.Helper()
	var got string
	await(r.t, "the call has ended", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		var ok bool
		got, ok = r.status[id]
		return ok
	})
	return got
}

var (
	emptyMessage = []byte{0, 0, 0, 0, 0}
	hugeMessage  = []byte{0, 0x7f, 0, 0, 0}                  // only its length is sent
	badMessage   = []byte{1, 0, 0, 0, 4, 'n', 'o', 'p', 'e'} // compressed, it says
)

// A permit of the tap is given back if no handler ever runs.
func TestTapWithoutHandler(t *testing.T) {
	for _, tt := range []struct {
		name    string
		end     func(r *raw, id uint32)
		headers []string
		dropped bool
	}{
		{"reset after the headers", (*raw).reset, nil, true},
		{"a message above the bound", func(r *raw, id uint32) { r.send(id, hugeMessage); r.ended(id) }, nil, true},
		{"a message that is no gzip", func(r *raw, id uint32) { r.send(id, badMessage); r.ended(id) }, []string{"grpc-encoding", "gzip"}, true},
		{"a compression nobody knows", func(r *raw, id uint32) { r.send(id, badMessage); r.ended(id) }, []string{"grpc-encoding", "nonsense"}, true},
		{"no message at all", func(r *raw, id uint32) { r.send(id, nil); r.ended(id) }, nil, true},
		{"a whole call", func(r *raw, id uint32) { r.send(id, emptyMessage); r.ended(id) }, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // with a fault each waits as long as await does
			gate, outcomes := counting(t, 1)
			guard := weirgrpc.New(gate)
			address := start(t, &service{unary: answer}, tapping(guard, nil)...)
			known(t, testgrpc.NewTestServiceClient(dial(t, address)))
			await(t, "the slot is free", idle(gate))
			outcomes.take(t) // of the first call
			r := dialRaw(t, address)
			id := r.begin(unaryCall, append([]string{"grpc-timeout", "50S"}, tt.headers...)...)
			if !tt.dropped {
				tt.end(r, id)
			} else {
				await(t, "the tap has admitted it", func() bool { return guard.TapSnapshot().Admitted == 1 })
				tt.end(r, id)
				await(t, "it is dropped", func() bool { return guard.TapSnapshot().Dropped == 1 })
			}
			await(t, "the slot is free", idle(gate))
			if !tt.dropped && guard.TapSnapshot().Dropped != 0 {
				t.Error("dropped although a handler ran")
			}
			outcomes.mu.Lock()
			defer outcomes.mu.Unlock()
			if n := len(outcomes.of); tt.dropped && n > 0 {
				t.Errorf("outcomes %v of work that never ran", outcomes.of)
			}
		})
	}
}

// A call that ends before its handler runs gives its slot back at once, but no sooner than a millisecond after
// the tap's decision.
func TestTapAndTime(t *testing.T) {
	for _, tt := range []struct {
		name      string
		lasts     time.Duration // until the call ends
		slot      bool          // is taken right afterwards
		claimed   bool          // by a handler that has returned by then
		wantDrops uint64
	}{
		{"ends at once", 0, true, false, 1},
		{"ends later", 5 * time.Millisecond, false, false, 1},
		{"has a handler", 5 * time.Millisecond, false, true, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gate := newLimit(t, 1, -1)
				guard := weirgrpc.New(gate)
				in, unary := guard.Tap(nil), guard.Unary()
				info, req := &grpc.UnaryServerInfo{FullMethod: unaryCall}, any(new(testgrpc.SimpleRequest))
				if _, err := unary(t.Context(), req, info, bare); err != nil { // the method is known now
					t.Fatal(err)
				}
				ctx, end := context.WithTimeout(t.Context(), time.Second)
				defer end()
				tapped, err := in(ctx, &tap.Info{FullMethodName: unaryCall, Header: metadata.MD{}})
				if err != nil {
					t.Fatal(err)
				}
				if tt.claimed {
					if _, err := unary(tapped, req, info, bare); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(tt.lasts)
				end()
				synctest.Wait()
				if taken := gate.Snapshot().InFlight == 1; taken != tt.slot {
					t.Errorf("its slot is taken: %t, want %t", taken, tt.slot)
				}
				time.Sleep(time.Millisecond)
				synctest.Wait()
				if n := gate.Snapshot().InFlight; n != 0 || guard.TapSnapshot().Dropped != tt.wantDrops {
					t.Errorf("%d in flight, %+v", n, guard.TapSnapshot())
				}
			})
		})
	}
}

// awaited is a gate at which all work waits until the test answers. No waiter can leave it before its answer.
type awaited struct {
	weir.Gate
	wake func(weir.Permit, error)
}

func (g *awaited) Arrive(_ weir.Work, wake func(weir.Permit, error)) (weir.Permit, weir.Waiter, error) {
	g.wake = wake
	return weir.Permit{}, g, weir.ErrWaiting
}

func (*awaited) Cancel() bool { return false }

// awaitedCall is a call that a tap has let wait at such a gate.
type awaitedCall struct {
	*awaited
	slots  *limit.Limiter
	guard  *weirgrpc.Guard
	handle func() error // the interceptor, with the handler
	end    func()       // the call's context
}

func newAwaitedCall(t *testing.T) *awaitedCall {
	t.Helper()
	slots := newLimit(t, 1, -1)
	c := &awaitedCall{slots: slots, awaited: &awaited{Gate: slots}}
	c.guard = weirgrpc.New(c.awaited)
	in, unary := c.guard.Tap(nil), c.guard.Unary()
	info, req := &grpc.UnaryServerInfo{FullMethod: unaryCall}, any(new(testgrpc.SimpleRequest))
	if _, err := unary(t.Context(), req, info, bare); err != nil { // the method is known now
		t.Fatal(err)
	}
	ctx, end := context.WithTimeout(t.Context(), time.Second)
	t.Cleanup(end)
	tapped, err := in(ctx, &tap.Info{FullMethodName: unaryCall, Header: metadata.MD{}})
	if err != nil {
		t.Fatal(err)
	}
	c.end = end
	c.handle = func() error {
		_, err := unary(tapped, req, info, bare)
		return err
	}
	return c
}

// answer lets the call have the slot.
func (c *awaitedCall) answer() { c.wake(c.slots.TryAdmit(weir.Work{})) }

// A call that ends while it waits gives back a slot that it gets all the same. That holds if the slot comes
// before or after the end, and with or without a handler.
func TestTapWaitsInVain(t *testing.T) {
	for _, tt := range []struct{ claimed, before bool }{{false, true}, {false, false}, {true, false}} {
		t.Run(fmt.Sprintf("claimed %t, before the end %t", tt.claimed, tt.before), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newAwaitedCall(t)
				refused := make(chan error, 1)
				if tt.claimed {
					go func() { refused <- c.handle() }()
				}
				time.Sleep(5 * time.Millisecond) // in the bubble: the call is watched now
				if tt.before {
					c.answer()
					synctest.Wait()
				}
				c.end()
				synctest.Wait()
				if !tt.before {
					c.answer()
					synctest.Wait()
				}
				if n := c.slots.Snapshot().InFlight; n != 0 {
					t.Errorf("%d in flight", n)
				}
				if tt.claimed {
					wantCode(t, <-refused, codes.Canceled)
				} else if n := c.guard.TapSnapshot().Dropped; n != 1 {
					t.Errorf("%d dropped, want 1", n)
				}
			})
		})
	}
}

// A slot that is granted before the handler runs is kept for the handler.
func TestTapSlotComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newAwaitedCall(t)
		c.answer()
		if err := c.handle(); err != nil {
			t.Error(err)
		}
		if n := c.slots.Snapshot().InFlight; n != 0 {
			t.Errorf("%d in flight", n)
		}
	})
}

// A call of a method that the server does not have takes no slot, and its name is not kept.
func TestTapUnknownMethods(t *testing.T) {
	gate := &recorder{Gate: newLimit(t, 1, -1)}
	guard := weirgrpc.New(gate)
	address := start(t, &service{unary: answer}, tapping(guard, nil)...)
	r := dialRaw(t, address)
	for range 50 {
		id := r.begin("/nobody.Knows/This", "grpc-timeout", "1S")
		r.send(id, emptyMessage)
		if got := r.ended(id); got != "12" {
			t.Fatalf("status %s", got)
		}
	}
	if len(gate.works) != 0 || guard.TapSnapshot().Passed != 50 {
		t.Errorf("asked for %d; %+v", len(gate.works), guard.TapSnapshot())
	}
}

// If a server accepts any method name, the guard keeps a bounded number of them. The tap passes calls of the
// other methods.
func TestTapManyMethods(t *testing.T) {
	guard := weirgrpc.New(newLimit(t, 2, -1))
	decide := guard.Tap(nil)
	const known, names = 1024, 1100
	method := func(i int) string { return fmt.Sprint("/any.Name/", i) }
	for i := range names {
		if _, err := guard.Unary()(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: method(i)}, func(context.Context, any) (any, error) { return nil, nil }); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), brief)
	defer cancel()
	for _, i := range []int{known - 1, known, names - 1} {
		if _, err := decide(ctx, &tap.Info{FullMethodName: method(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if n := guard.TapSnapshot(); n.Admitted != 1 || n.Passed != 2 {
		t.Errorf("%+v, want one that is known", n)
	}
}

// Nor does it keep long names.
func TestTapLongMethods(t *testing.T) {
	guard := weirgrpc.New(newLimit(t, 2, -1))
	decide := guard.Tap(nil)
	long := "/any.Name/" + strings.Repeat("x", 1<<20)
	if _, err := guard.Unary()(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: long}, func(context.Context, any) (any, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), brief)
	defer cancel()
	if _, err := decide(ctx, &tap.Info{FullMethodName: long}); err != nil || guard.TapSnapshot().Passed != 1 {
		t.Errorf("%v, %+v", err, guard.TapSnapshot())
	}
}

// Floods of resets right after the headers leave no slot behind.
func TestTapResetFlood(t *testing.T) {
	gate := newLimit(t, 4, -1)
	guard := weirgrpc.New(gate)
	address := start(t, &service{unary: answer}, tapping(guard, nil)...)
	known(t, testgrpc.NewTestServiceClient(dial(t, address)))
	var floods sync.WaitGroup
	for range 4 {
		r := dialRaw(t, address)
		floods.Go(func() {
			for range 500 {
				r.reset(r.begin(unaryCall, "grpc-timeout", "50S"))
			}
		})
	}
	floods.Wait()
	await(t, "all has arrived", func() bool {
		s := guard.TapSnapshot()
		return s.Admitted+s.Refused >= 2000
	})
	await(t, "every slot is free", idle(gate))
	if s := guard.TapSnapshot(); s.Dropped != s.Admitted {
		t.Errorf("%+v", s)
	}
	known(t, testgrpc.NewTestServiceClient(dial(t, address)))
}

// gRPC refuses invalid time-outs, the tap passes calls with very long ones, and large metadata do no harm.
func TestTapHostileMetadata(t *testing.T) {
	gate := newLimit(t, 4, -1)
	guard := weirgrpc.New(gate)
	address := start(t, &service{unary: answer}, tapping(guard, nil)...)
	known(t, testgrpc.NewTestServiceClient(dial(t, address)))
	large := make([]string, 0, 2*64)
	for range 64 {
		large = append(large, "x-tenant", strings.Repeat("t", 1000))
	}
	for _, tt := range []struct {
		name   string
		pairs  []string
		status string // empty: reset
	}{
		{"no time", []string{"grpc-timeout", "0n"}, "4"},
		{"negative", []string{"grpc-timeout", "-1S"}, "13"},
		{"nine digits", []string{"grpc-timeout", "123456789S"}, "13"},
		{"for ever", []string{"grpc-timeout", "99999999H"}, "0"},
		{"64 KB", large, "0"},
		{"binary", []string{"x-tenant-bin", "AP8", "x-tenant-bin", "AP8"}, "0"},
		{"binary that is none", []string{"x-tenant-bin", "%%%"}, "13"},
	} {
		r := dialRaw(t, address)
		id := r.begin(unaryCall, tt.pairs...)
		if tt.status == "0" {
			r.send(id, emptyMessage)
		}
		if got := r.ended(id); got != tt.status {
			t.Errorf("%s: status %q, want %q", tt.name, got, tt.status)
		}
	}
	await(t, "every slot is free", idle(gate))
}

// gRPC keeps some memory for a call that a tap has refused, until the call's deadline. Calls with a deadline
// beyond the bound leave nothing behind, because the interceptor refuses them.
func TestTapKeepsNothingForLong(t *testing.T) {
	gate := newLimit(t, 1, -1)
	guard := weirgrpc.New(gate)
	address := start(t, &service{unary: answer}, tapping(guard, nil)...)
	known(t, testgrpc.NewTestServiceClient(dial(t, address)))
	await(t, "the slot is free", idle(gate))
	if _, err := gate.TryAdmit(weir.Work{}); err != nil {
		t.Fatal(err)
	}
	flood := func(timeout string, n int) (bytesEach float64) {
		before := heap()
		dialRaw(t, address).flood(timeout, n)
		return float64(heap()-before) / float64(n)
	}
	const n, most = 10_000, 600 // calls, and bytes of each: some 440, and what happens to be there beside them
	refused := func() uint64 { return guard.TapSnapshot().Refused }
	flood("99999999H", n/10) // what is allocated once
	if got := flood("99999999H", n); got > 200 {
		t.Errorf("%.0f bytes are kept of each call with a time-out beyond the bound", got)
	}
	if n := refused(); n != 0 {
		t.Errorf("the tap has decided about %d of them", n)
	}
	got := flood("59S", n)
	if refused() != n {
		t.Errorf("the tap has refused %d, want %d", refused(), n)
	}
	t.Logf("%.0f bytes are kept of each call that the tap refuses, until its deadline", got)
	if got > most {
		t.Errorf("%.0f bytes are kept of each call that the tap refuses, want at most %d", got, most)
	}
}

// The memory for a refused call is freed after its deadline, even if its connection stays.
func TestTapForgetsAtTheDeadline(t *testing.T) {
	gate := newLimit(t, 1, -1)
	guard := weirgrpc.New(gate)
	address := start(t, &service{unary: answer}, tapping(guard, nil)...)
	known(t, testgrpc.NewTestServiceClient(dial(t, address)))
	await(t, "the slot is free", idle(gate))
	if _, err := gate.TryAdmit(weir.Work{}); err != nil {
		t.Fatal(err)
	}
	r := dialRaw(t, address)
	r.flood("1M", 500) // what is allocated once
	const n = 10_000
	before := heap()
	r.flood("2S", n)
	if got := guard.TapSnapshot().Refused; got < n {
		t.Fatalf("the tap has refused %d, want %d", got, n)
	}
	await(t, "the memory is free again", func() bool { return heap()-before < n*100 })
}

func heap() int64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
