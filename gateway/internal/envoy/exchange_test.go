package envoy

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/hold"
	"github.com/weir-go/weir/gateway/internal/rpc"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// Envoy is asked once to wait longer, when work begins to wait.
func TestWait(t *testing.T) {
	b := newBench(t, limited(1, 4))
	first := b.open(t)
	first.admitted()
	second := b.open(t, "x-request-timeout", "3600")
	m := second.next()
	if d := m.GetOverrideMessageTimeout().AsDuration(); m.Response != nil || d != 31*time.Second { // the gate lets it wait for 30 s
		t.Fatalf("a waiter is told %v", m)
	}
	if n := b.gate(t).Waiting; n != 1 {
		t.Errorf("%d wait", n)
	}
	first.send(says(true, ":status", "200"))
	first.next()
	_ = first.CloseSend()
	second.admitted()
}

// Envoy is asked to wait as long as the gate and the work allow, and a second more. A gate without a bound has one here.
func TestPatience(t *testing.T) {
	for _, tt := range []struct {
		name          string
		gate          time.Duration // max_wait
		route, client string
		least, most   time.Duration
	}{
		{"the gate's bound", 2 * time.Second, "0s", "", 3 * time.Second, 3 * time.Second},
		{"a long one", time.Hour, "0s", "", 3601 * time.Second, 3601 * time.Second},
		{"the route's bound", time.Hour, "2s", "", 3 * time.Second, 3 * time.Second},
		{"a longer one of the route", 2 * time.Second, "1h", "", 3 * time.Second, 3 * time.Second},
		{"a deadline", time.Hour, "0s", "20", time.Second, 21 * time.Second},
		{"a deadline beyond", 2 * time.Second, "0s", "20", 3 * time.Second, 3 * time.Second},
		{"no bound", -1, "0s", "", 31 * time.Second, 31 * time.Second},
		{"no bound, and a long one of the route", -1, "1h", "", 31 * time.Second, 31 * time.Second},
		{"no bound, and a short one of the route", -1, "2s", "", 3 * time.Second, 3 * time.Second},
		{"no bound, and a deadline", -1, "0s", "20", time.Second, 21 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := limited(1, 4)
			wait, err := time.ParseDuration(tt.route)
			if err != nil {
				t.Fatal(err)
			}
			spec.Gates["api"].Limit.Queue.MaxWait = policy.Duration(tt.gate)
			spec.Routes[0].MaxWait = policy.Duration(wait)
			b := newBench(t, spec)
			b.open(t).admitted()
			s := b.open(t, "x-request-timeout", tt.client)
			if d := s.next().GetOverrideMessageTimeout().AsDuration(); d < tt.least || d > tt.most {
				t.Errorf("%v, want %v to %v", d, tt.least, tt.most)
			}
		})
	}
}

// Where a gate has no bound, the request is refused before Envoy has waited for long enough.
func TestUnboundedWait(t *testing.T) {
	for have, want := range map[time.Duration]time.Duration{0: unboundedWait, time.Hour: unboundedWait, time.Second: time.Second, weir.NoWait: weir.NoWait} {
		spec := limited(1, -1)
		spec.Gates["api"].Limit.Queue = policy.QueueSpec{MaxWait: -1}
		b := newBench(t, spec)
		m := Matched{Policy: b.policy, Route: b.policy.Route("all"), Work: weir.Work{MaxWait: have}}
		x := &exchange{Matched: m, service: b.Service, stream: &leaving{ctx: t.Context()}}
		if _, err := x.awaitPermit(); err != nil {
			t.Fatal(err)
		}
		if x.Work.MaxWait != want {
			t.Errorf("work that may wait for %v waits for %v, want %v", have, x.Work.MaxWait, want)
		}
	}
}

// When Envoy gives up, the waiter leaves the queue at once, however it says so.
func TestWaiterLeaves(t *testing.T) {
	for _, clean := range []bool{true, false} {
		b := newBench(t, limited(1, 4))
		b.open(t).admitted()
		s := b.open(t)
		s.next() // is asked to wait
		if clean {
			_ = s.CloseSend()
		} else {
			s.leave()
		}
		eventually(t, "an empty room", func() bool { return b.gate(t).Waiting == 0 })
		b.counted(t, GaveUp, 1)
		if n := b.gate(t).Rejected[weir.ReasonQueueTimeout]; n > 0 {
			t.Fatal("it left when its time in the room was over, and no sooner")
		}
	}
}

// A client that leaves leaves its slot behind, unless the configuration says otherwise.
func TestClientLeaves(t *testing.T) {
	spec := limited(2, -1)
	spec.Routes = append(spec.Routes, policy.RouteSpec{Name: "free", Match: []string{"/free"}})
	held := newBench(t, spec, func(b *bench) { b.longest = time.Hour })
	s := held.open(t)
	s.admitted()
	s.leave()
	held.counted(t, Early, 1)
	if n, s := held.gate(t).InFlight, held.Snapshot(); n != 1 || s.Held != 1 {
		t.Errorf("%d in flight, %d held", n, s.Held)
	}

	s = held.open(t, ":path", "/free") // where there is no slot to hold
	s.admitted()
	s.leave()
	held.counted(t, Early, 2)
	if n := held.Snapshot().Held; n != 1 {
		t.Errorf("%d held, want 1", n)
	}

	released := newBench(t, limited(1, -1), func(b *bench) { b.release = true })
	s = released.open(t)
	s.admitted()
	s.leave()
	released.idle(t)
	released.heard(t, weir.Abandoned)
}

// Envoy resets a call of gRPC whose client has left at the service, which heeds that. So its slot is free at once, where calls
// have been answered before.
func TestCallerLeaves(t *testing.T) {
	b := newBench(t, limited(2, -1), func(b *bench) { b.longest = time.Hour })
	call := func() stream {
		s := b.open(t, ":method", "POST", "content-type", "application/grpc")
		s.admitted()
		return s
	}
	call().leave()
	b.counted(t, Early, 1)
	if n := b.gate(t).InFlight; n != 1 {
		t.Errorf("before any answer: %d in flight, want the slot held", n)
	}
	s := call()
	s.send(says(false, ":status", "200", "content-type", "application/grpc"))
	s.next()
	s.send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseTrailers{ResponseTrailers: new(extproc.HttpTrailers)}})
	s.next()
	_ = s.CloseSend() // it never fails
	b.counted(t, Complete, 1)
	call().leave()
	b.counted(t, Early, 2)
	if n := b.gate(t).InFlight; n != 1 {
		t.Errorf("after an answer: %d in flight, want that of the first", n)
	}
}

// What Envoy itself answers to a call says nothing of the service, which may speak no gRPC at all.
func TestCallerLeavesAfterEnvoysOwnAnswer(t *testing.T) {
	b := newBench(t, limited(1, -1), func(b *bench) { b.longest = time.Hour })
	s := b.open(t, ":method", "POST", "content-type", "application/grpc")
	s.admitted()
	s.send(says(true, ":status", "200", "content-type", "application/grpc", "grpc-status", "14", "grpc-message", "no healthy upstream"))
	s.next()
	_ = s.CloseSend() // it never fails
	b.counted(t, Complete, 1)
	s = b.open(t, ":method", "POST", "content-type", "application/grpc")
	s.admitted()
	s.leave()
	b.counted(t, Early, 1)
	if n := b.gate(t).InFlight; n != 1 {
		t.Errorf("%d in flight, want the slot held", n)
	}
}

// The sides of an exchange are independent over HTTP/2: an answer may begin before the request has ended.
func TestLateRequestTrailers(t *testing.T) {
	b := newBench(t, limited(1, -1))
	s := b.open(t)
	s.admitted()
	s.send(says(false, ":status", "200"))
	s.next()
	s.send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestTrailers{RequestTrailers: new(extproc.HttpTrailers)}})
	if m := s.next(); m.GetRequestTrailers() == nil {
		t.Errorf("the trailers of the request are answered by %v", m)
	}
	s.send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseTrailers{ResponseTrailers: new(extproc.HttpTrailers)}})
	s.next()
	_ = s.CloseSend() // it never fails
	b.counted(t, Complete, 1)
}

// Slow uploads do not make work look long, and work that is long is still found so.
func TestSlowUploads(t *testing.T) {
	x := &exchange{service: New(Options{}), Matched: Matched{Work: weir.Work{Op: "a"}}}
	for _, whole := range []bool{true, false} {
		if x.look(&request{last: whole, attributes: attributes{source: "192.0.2.1:5"}}); x.uploads == whole {
			t.Errorf("headers that are the whole request: %v; a body is expected: %v", whole, x.uploads)
		}
	}
	r := x.service.times.Route("a")
	add := func(d time.Duration) { x.service.times.Add(r, x.worked(d), 0) }
	if add(time.Hour); x.rest(0) != hold.Unknown {
		t.Errorf("a first answer after an hour makes others held for %v", x.rest(0))
	}
	for range 1000 {
		add(100 * time.Millisecond)
	}
	for i := range 1000 {
		if add(100 * time.Millisecond); i%10 == 0 {
			add(time.Hour)
		}
	}
	if d := x.rest(0); d > 200*time.Millisecond {
		t.Errorf("a tenth of slow uploads makes others held for %v", d)
	}
	if d := x.rest(time.Hour); d > 400*time.Millisecond {
		t.Errorf("an upload that took an hour is held for %v", d)
	}
	for range 1000 {
		add(5 * time.Minute)
	}
	if d := x.rest(0); d < 4*time.Minute {
		t.Errorf("work of 5 minutes is held for %v", d)
	}
}

// A mode that ends streams too early is recognised, and said once. Clients that leave now and then
// are no such mode.
func TestEarly(t *testing.T) {
	b := newBench(t, limited(100, -1), func(b *bench) { b.release = true })
	end := func(s stream) {
		_ = s.CloseSend()
		if _, err := s.Recv(); err != io.EOF {
			t.Fatalf("the stream ends with %v", err)
		}
	}
	early := func(n int, sum uint64) {
		for range n {
			s := b.open(t)
			s.admitted()
			end(s)
		}
		b.counted(t, Early, sum)
	}
	early(earlyInRow-1, earlyInRow-1)
	s := b.open(t)
	s.admitted()
	s.send(says(true, ":status", "200"))
	s.next()
	end(s)
	b.counted(t, Complete, 1)
	early(1, earlyInRow)
	if log := b.log.String(); strings.Contains(log, "response_header_mode") {
		t.Errorf("said although an answer came:\n%s", log)
	}
	early(earlyInRow+2, 2*earlyInRow+2)
	if n := strings.Count(b.log.String(), "response_header_mode"); n != 1 {
		t.Errorf("said %d times:\n%s", n, b.log)
	}
}

// Envoy answers what is malformed by itself, and tells of the answer alone. There is nothing to admit,
// and the answer goes on to the client.
func TestEnvoyAnswersFirst(t *testing.T) {
	for name, answer := range map[string]*extproc.ProcessingRequest{
		"an error":         says(false, ":status", "404"),
		"an error of gRPC": says(true, ":status", "200", "grpc-status", "13"),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, limited(1, -1))
			s := b.dial(t)
			s.send(answer)
			if m := s.next(); m.GetResponseHeaders() == nil {
				t.Errorf("answered by %v", m)
			}
			s.send(asks())
			if _, err := s.Recv(); status.Code(err) != codes.InvalidArgument {
				t.Errorf("a request after that ends with %v", err)
			}
			s = b.dial(t)
			s.send(answer)
			s.next()
			_ = s.CloseSend()
			b.counted(t, Complete, 1)
			if b.log.String() != "" {
				t.Errorf("log:\n%s", b.log)
			}
		})
	}
}

// A filter before this one may answer anything. Whether an answer is such a one shows when some stream has
// brought a request: before, the mode may be wrong. The service's own answers are marked by Envoy's router.
func TestFilterAnswersFirst(t *testing.T) {
	for _, pairs := range [][]string{{":status", "200"}, {":status", "302", "location", "/login"}} {
		b := newBench(t, limited(1, -1))
		first := func() error {
			s := b.dial(t)
			s.send(says(true, pairs...))
			_, err := s.Recv()
			_ = s.CloseSend()
			return err
		}
		if err := first(); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%v, before any request: the stream ends with %v", pairs, err)
		}
		s := b.open(t)
		s.admitted()
		s.leave()
		if err := first(); err != nil {
			t.Errorf("%v, by a filter: the stream ends with %v", pairs, err)
		}
		pairs = append(pairs, serviceTimeHeader, "3")
		if err := first(); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%v, by the service: the stream ends with %v", pairs, err)
		}
		if n := strings.Count(b.log.String(), "request_header_mode"); n != 1 {
			t.Errorf("the mode is named %d times in the log, want once:\n%s", n, b.log)
		}
	}
}

// Each reason for which a stream cannot work is logged, also after another.
func TestEachReasonIsLogged(t *testing.T) {
	b := newBench(t, limited(1, -1))
	observing := asks()
	observing.ObservabilityMode = true
	for range 2 {
		for _, m := range []*extproc.ProcessingRequest{says(true, ":status", "200"), observing} {
			s := b.dial(t)
			s.send(m)
			if _, err := s.Recv(); status.Code(err) != codes.FailedPrecondition {
				t.Errorf("the stream ends with %v", err)
			}
		}
	}
	for _, word := range []string{"request_header_mode", "observability_mode"} {
		if n := strings.Count(b.log.String(), word); n != 1 {
			t.Errorf("%s is named %d times, want once:\n%s", word, n, b.log)
		}
	}
}

// lateStore answers when it may.
type lateStore struct {
	quota.Store
	asked, answer chan struct{}
}

func (s *lateStore) Decide(ctx context.Context, r *quota.Request) (quota.Decision, error) {
	s.asked <- struct{}{}
	<-s.answer
	return s.Store.Decide(ctx, r)
}

// newLateBench serves a quota of one request in a store that answers when it is told.
func newLateBench(t *testing.T) (*bench, *lateStore) {
	t.Helper()
	memory, err := quota.NewMemory(quota.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	store := &lateStore{memory, make(chan struct{}), make(chan struct{})}
	spec := limited(1, -1)
	q := quotaOf(1)
	q.Store = "late"
	spec.Gates["rate"] = policy.GateSpec{Quota: q}
	spec.Routes[0].Gates = []string{"rate", "api"}
	return newBench(t, spec, func(b *bench) { b.stores = map[string]quota.Store{"late": store} }), store
}

// A store that answers after Envoy has gone admits nobody: what it has charged is given back.
func TestLateStore(t *testing.T) {
	b, store := newLateBench(t)
	s := b.open(t)
	<-store.asked
	s.leave()
	eventually(t, "the server has heard of it", func() bool { return b.gone.Load() == 1 })
	store.answer <- struct{}{}
	b.counted(t, GaveUp, 1)
	b.idle(t)

	s = b.open(t) // for which there is no second token
	<-store.asked
	store.answer <- struct{}{}
	s.admitted()
}

// leaving is a stream that brings some messages, and ends while the last of them is answered.
type leaving struct {
	grpc.ServerStream
	ctx                context.Context
	messages           []*extproc.ProcessingRequest
	code               codes.Code // of what a message meets that comes too late
	received, answered int
}

func (s *leaving) Context() context.Context { return s.ctx }

func (s *leaving) RecvMsg(m any) error {
	if s.received == len(s.messages) {
		<-s.ctx.Done()
		return status.FromContextError(s.ctx.Err()).Err()
	}
	wire, err := proto.Marshal(s.messages[s.received])
	if err != nil {
		return err
	}
	s.received++
	return m.(*request).ReadWire(wire)
}

func (s *leaving) SendMsg(any) error {
	if s.answered++; s.answered < len(s.messages) {
		return nil
	}
	return status.Error(s.code, "the stream has ended")
}

// A client that leaves while a message is answered has left, and made no mistake: before the answer
// its slot is held.
func TestLeavesMeanwhile(t *testing.T) {
	trailers := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestTrailers{RequestTrailers: new(extproc.HttpTrailers)}}
	for _, tt := range []struct {
		last *extproc.ProcessingRequest
		end  End
		held int64
		code codes.Code
	}{
		{trailers, Early, 1, codes.Canceled}, {says(false, ":status", "200"), Complete, 0, codes.Canceled},
		{trailers, Early, 1, codes.DeadlineExceeded}, {says(false, ":status", "200"), Complete, 0, codes.DeadlineExceeded},
	} {
		b := newBench(t, limited(1, -1))
		ctx, cancel := context.WithCancel(t.Context())
		s := &leaving{ctx: ctx, messages: []*extproc.ProcessingRequest{asks(), tt.last}, code: tt.code}
		err := b.process(s, Bounds{MaxStreams: func() int64 { return 1 }, FirstMessage: time.Minute}, false)
		cancel()
		if n := b.Snapshot(); err != nil || n.Ended[tt.end] != 1 || n.Held != tt.held || b.gate(t).InFlight != tt.held {
			t.Errorf("%v: %+v, %d in flight; want %v and %d held", err, n, b.gate(t).InFlight, tt.end, tt.held)
		}
	}
}

// tardy is a stream that Envoy ends when its request has just got a slot: the message that asks Envoy
// to wait comes too late.
type tardy struct {
	leaving
	admit func()
}

func (s *tardy) SendMsg(any) error {
	s.admit()
	return status.Error(codes.Canceled, "the stream has ended")
}

// A slot that comes when Envoy has given up goes back.
func TestSlotComesTooLate(t *testing.T) {
	b := newBench(t, limited(1, 4))
	p, err := b.policy.Gate("api").TryAdmit(weir.Work{})
	if err != nil {
		t.Fatal(err)
	}
	s := &tardy{leaving{ctx: t.Context(), messages: []*extproc.ProcessingRequest{asks()}}, func() {
		p.Done(weir.OK)
		eventually(t, "the waiter has the slot", func() bool { n := b.gate(t); return n.InFlight == 1 && n.Waiting == 0 })
	}}
	err = b.process(s, Bounds{MaxStreams: func() int64 { return 1 }, FirstMessage: time.Minute}, false)
	if n := b.gate(t); err != nil || n.InFlight != 0 || n.Waiting != 0 || b.Snapshot().Ended[GaveUp] != 1 {
		t.Errorf("%v: %d in flight, %d wait, %+v", err, n.InFlight, n.Waiting, b.Snapshot())
	}
}

// timed is a stream whose time-out passes when the test says so.
type timed struct {
	leaving
	sent chan struct{} // for each message of the service
}

// expiring is a context whose deadline passes when passed is closed.
type expiring struct {
	context.Context
	passed chan struct{}
}

func (e expiring) Done() <-chan struct{} { return e.passed }

func (e expiring) Err() error {
	select {
	case <-e.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func (s *timed) SendMsg(any) error {
	if err := s.ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	s.sent <- struct{}{}
	return nil
}

// A stream whose time-out passes is one that Envoy has ended: the backend may work on, so its slot is held.
// Without an answer to its request the stream ends with an error, because a clean end lets the request in.
func TestTimeOutOfAStream(t *testing.T) {
	for _, tt := range []struct {
		name     string
		messages []*extproc.ProcessingRequest
		free     int64 // slots
		end      End
		code     codes.Code
		held     int64
	}{
		{"nothing has come", nil, 1, Silent, codes.DeadlineExceeded, 0},
		{"it waits", []*extproc.ProcessingRequest{asks()}, 0, GaveUp, codes.DeadlineExceeded, 0},
		{"before the answer", []*extproc.ProcessingRequest{asks()}, 1, Early, codes.OK, 1},
		{"during the answer", []*extproc.ProcessingRequest{asks(), says(false, ":status", "200")}, 1, Complete, codes.OK, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, limited(1, 4))
			if tt.free == 0 {
				b.open(t).admitted()
			}
			ctx := expiring{t.Context(), make(chan struct{})}
			s := &timed{leaving{ctx: ctx, messages: tt.messages}, make(chan struct{}, 4)}
			ended := make(chan error)
			go func() {
				ended <- b.process(s, Bounds{MaxStreams: func() int64 { return 2 }, FirstMessage: time.Minute}, false)
			}()
			for range tt.messages {
				<-s.sent
			}
			close(ctx.passed)
			err := <-ended
			if n := b.Snapshot(); status.Code(err) != tt.code || n.Ended[tt.end] != 1 || n.Held != tt.held {
				t.Errorf("%v, %+v; want %v, %v and %d held", err, n, tt.code, tt.end, tt.held)
			}
			if n := b.gate(t); n.InFlight != tt.held+1-tt.free || n.Waiting != 0 {
				t.Errorf("%d in flight, %d wait", n.InFlight, n.Waiting)
			}
		})
	}
}

// The same goes for a time-out that passes before a store has answered.
func TestTimeOutBeforeTheStore(t *testing.T) {
	b, store := newLateBench(t)
	ctx := expiring{t.Context(), make(chan struct{})}
	s := &timed{leaving{ctx: ctx, messages: []*extproc.ProcessingRequest{asks()}}, make(chan struct{}, 1)}
	ended := make(chan error)
	go func() {
		ended <- b.process(s, Bounds{MaxStreams: func() int64 { return 1 }, FirstMessage: time.Minute}, false)
	}()
	<-store.asked
	close(ctx.passed)
	store.answer <- struct{}{}
	if err := <-ended; status.Code(err) != codes.DeadlineExceeded || b.Snapshot().Ended[GaveUp] != 1 {
		t.Errorf("%v, %+v", err, b.Snapshot())
	}
	b.idle(t)
}

// A stream that ends without an error lets its request in. A request that waits must not come in so,
// by sending more before the answer, whether that can be read or not.
func TestMoreWhileItWaits(t *testing.T) {
	for size, want := range map[int]codes.Code{1: codes.FailedPrecondition, rpc.MaxMessage: codes.ResourceExhausted} {
		b := newBench(t, limited(1, 10))
		b.open(t).admitted()
		s := b.open(t)
		s.next() // it waits
		s.send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestBody{RequestBody: &extproc.HttpBody{Body: make([]byte, size)}}})
		if _, err := s.Recv(); status.Code(err) != want {
			t.Errorf("%d bytes: the stream ends with %v, want %v", size, err, want)
		}
		b.counted(t, Invalid, 1)
	}
}

// Only calls are released, and only where the service has answered calls on the same route.
func TestCallerLeavesWithoutACall(t *testing.T) {
	b := newBench(t, limited(3, -1), func(b *bench) { b.longest = time.Hour })
	call := func(headers ...string) stream {
		s := b.open(t, append([]string{":method", "POST"}, headers...)...)
		s.admitted()
		return s
	}
	grpc := []string{"content-type", "application/grpc"}
	answer := func(s stream, n uint64, headers ...string) {
		s.send(says(true, append([]string{":status", "200"}, headers...)...))
		s.next()
		_ = s.CloseSend()
		b.counted(t, Complete, n)
	}
	answer(call(grpc...), 1, "content-type", "application/json", "grpc-status", "13")
	call(grpc...).leave()
	b.counted(t, Early, 1)
	if n := b.gate(t).InFlight; n != 1 {
		t.Errorf("after an answer that is no call's: %d in flight", n)
	}
	answer(call(grpc...), 2, "content-type", "application/grpc", "grpc-status", "13") // a failure teaches no time
	call().leave()
	b.counted(t, Early, 2)
	if n := b.gate(t).InFlight; n != 2 {
		t.Errorf("a request of HTTP on a route with calls: %d in flight", n)
	}
}
