package envoy

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	modes "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/gateway/internal/hold"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/gateway/internal/rpc"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/weirgrpc"
	"github.com/weir-go/weir/weirhttp"
)

// A request takes a slot until its stream ends, and each message gets an answer of its kind.
func TestLife(t *testing.T) {
	b := newBench(t, limited(1, -1))
	s := b.open(t)
	s.admitted()
	if n := b.gate(t).InFlight; n != 1 {
		t.Fatalf("%d in flight", n)
	}
	s.send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestTrailers{RequestTrailers: new(extproc.HttpTrailers)}})
	if m := s.next(); m.GetRequestTrailers() == nil {
		t.Errorf("trailers are answered with %v", m)
	}
	s.send(says(false, ":status", "200"))
	if m := s.next(); m.GetResponseHeaders() == nil {
		t.Errorf("headers of the answer are answered with %v", m)
	}
	b.heard(t, weir.OK)
	s.send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseTrailers{ResponseTrailers: new(extproc.HttpTrailers)}})
	if m := s.next(); m.GetResponseTrailers() == nil {
		t.Errorf("trailers are answered with %v", m)
	}
	if n := b.gate(t).InFlight; n != 1 {
		t.Errorf("%d in flight before the end", n)
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != io.EOF {
		t.Errorf("the stream ends with %v", err)
	}
	b.idle(t)
	if r := b.report(t); r.Status != 200 || r.By != proxy.ByUpstream || r.Route.Name() != "all" {
		t.Errorf("report %+v", r)
	}
	b.counted(t, Complete, 1)
}

// What an answer says is the outcome. Only one that is OK tells how long answers take.
func TestOutcomes(t *testing.T) {
	quota, err := proto.Marshal(quotaStatus(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		grpc  bool
		pairs []string
		want  weir.Outcome
	}{
		{"ok", false, []string{":status", "200"}, weir.OK},
		{"failed", false, []string{":status", "500"}, weir.Failed},
		{"overloaded", false, []string{":status", "503"}, weir.Overload},
		{"refused by Envoy's rate limit", false, []string{":status", "429", "x-envoy-ratelimited", "true"}, weir.NoSample},
		{"a call refused by it", true, []string{":status", "200", "grpc-status", "8", "x-envoy-ratelimited", "true"}, weir.NoSample},
		{"no call", false, []string{":status", "200", "grpc-status", "8"}, weir.OK},
		{"a call", true, []string{":status", "200"}, weir.OK},
		{"a no", true, []string{":status", "200", "grpc-status", "5"}, weir.OK},
		{"a call overloaded", true, []string{":status", "200", "grpc-status", "8"}, weir.Overload},
		{"a quota", true, []string{":status", "200", "grpc-status", "8", statusDetails, base64.RawStdEncoding.EncodeToString(quota)}, weir.OK},
		{"details that are none", true, []string{":status", "200", "grpc-status", "8", statusDetails, "?"}, weir.Overload},
		{"a status of 17", true, []string{":status", "200", "grpc-status", "17"}, weir.Failed},
		{"a status of x", true, []string{":status", "200", "grpc-status", "x"}, weir.Failed},
		{"no status", false, []string{"server", "x"}, weir.ClassifyHTTP(0)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, limited(1, -1))
			var pairs []string
			if tt.grpc {
				pairs = []string{"content-type", "application/grpc+proto", ":method", "POST"}
			}
			s := b.open(t, pairs...)
			s.admitted()
			s.send(says(true, tt.pairs...))
			s.next()
			b.heard(t, tt.want)
			if known := b.times.Mean() > 0; known != (tt.want == weir.OK) {
				t.Errorf("it is known how long answers take: %v", known)
			}
		})
	}
}

// A call of gRPC is reported by its code, in headers or trailers, as the proxy counts it.
func TestReportedCode(t *testing.T) {
	const ends = "no trailers"
	for _, tt := range []struct {
		grpc                    bool
		status, header, trailer string
		want                    int
	}{
		{true, "200", "14", ends, 503}, {true, "200", "", "14", 503}, {true, "200", "", "0", 200}, {true, "200", "", "x", 500},
		{false, "200", "", "14", 200}, {true, "404", "14", ends, 404},
		{true, "200", "", ends, 500}, {true, "200", "", "", 500}, {true, "200", "0", "", 200}, {true, "404", "", "", 404}, {false, "200", "", "", 200},
	} {
		b := newBench(t, limited(1, -1))
		var pairs []string
		if tt.grpc {
			pairs = []string{"content-type", "application/grpc", ":method", "POST"}
		}
		s := b.open(t, pairs...)
		s.admitted()
		s.send(says(tt.trailer == ends, append([]string{":status", tt.status}, coded(tt.header)...)...))
		s.next()
		if tt.trailer != ends {
			s.send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extproc.HttpTrailers{Trailers: headers(coded(tt.trailer)...)}}})
			s.next()
		}
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if r := b.report(t); r.Status != tt.want {
			t.Errorf("%+v: reported as %d", tt, r.Status)
		}
	}
}

// coded returns the header of a code, nothing for none.
func coded(code string) []string {
	if code == "" {
		return nil
	}
	return []string{"grpc-status", code}
}

// What is a call of gRPC is the same here as in the proxy: whatever its letters, and gRPC-Web is HTTP.
func TestCalls(t *testing.T) {
	for contentType, want := range map[string]bool{
		"application/grpc": true, "Application/GRPC+proto": true, "application/grpc;x=y": true,
		"application/grpc-web": false, "application/grpc-web+proto": false, "application/grpcs": false, "text/plain": false,
	} {
		b := newBench(t, limited(1, -1))
		b.open(t).admitted()
		i := b.open(t, "content-type", contentType, ":method", "POST").refused()
		if got := i.GrpcStatus != nil; got != want {
			t.Errorf("%s: answered as a call of gRPC: %v", contentType, got)
		}
	}
}

// The expected rest of the work. Longest bounds it, and without that nothing does once an answer has
// shown what to expect.
func TestRest(t *testing.T) {
	const unset = 0
	for _, tt := range []struct{ known, longest, taken, want time.Duration }{
		{0, unset, time.Second, hold.Unknown - time.Second},
		{0, unset, time.Minute, 0},
		{0, time.Hour, time.Minute, 59 * time.Minute},
		{10 * time.Second, unset, 2 * time.Second, 10 * time.Second},
		{10 * time.Second, unset, 12 * time.Second, 12 * time.Second},
		{5 * time.Minute, unset, 31 * time.Second, 5 * time.Minute},
		{5 * time.Minute, unset, 10 * time.Minute, 10 * time.Minute},
		{10 * time.Second, 30 * time.Second, 12 * time.Second, 12 * time.Second},
		{10 * time.Second, 30 * time.Second, 25 * time.Second, 5 * time.Second},
		{10 * time.Second, 30 * time.Second, 31 * time.Second, 0},
	} {
		x := &exchange{service: New(Options{}), Matched: Matched{Work: weir.Work{Op: "a"}, Longest: tt.longest}}
		if tt.known > 0 {
			x.service.times.Add(x.service.times.Route("a"), tt.known, 0)
		}
		if d := x.rest(tt.taken); d != tt.want {
			t.Errorf("%v known, at most %v, after %v: %v, want %v", tt.known, tt.longest, tt.taken, d, tt.want)
		}
	}
}

// Answers that last give their slot back for a place among the streams.
func TestStreams(t *testing.T) {
	for _, pairs := range [][]string{
		{":status", "101"},
		{":status", "200", "content-type", "text/event-stream"},
		{":status", "200"}, // after the grace time
	} {
		b := newBench(t, limited(1, -1), func(b *bench) {
			b.streams = weirhttp.NewStreams(weirhttp.StreamsConfig{Max: 1, Grace: time.Millisecond})
		})
		s := b.open(t)
		s.admitted()
		s.send(says(false, pairs...))
		s.next()
		b.idle(t)
		if n := b.streams.Snapshot().Open; n != 1 {
			t.Errorf("%v: %d streams", pairs, n)
		}
		other := b.open(t)
		other.admitted()
		other.send(says(false, ":status", "101"))
		other.next()
		eventually(t, "one too many", func() bool { return b.streams.Snapshot().Overflowed == 1 })
		if n := b.gate(t).InFlight; n != 1 {
			t.Errorf("%v: a stream without a place holds %d slots", pairs, n)
		}
		_ = s.CloseSend()
		b.idle(t) // the other has moved
	}
}

// Upgrades and event streams move at once, and what has ended does not.
func TestStreamsAtOnce(t *testing.T) {
	for _, tt := range []struct {
		last  bool
		pairs []string
		want  int64
	}{
		{false, []string{":status", "101"}, 1},
		{false, []string{":status", "200", "content-type", "text/event-stream"}, 1},
		{false, []string{":status", "200"}, 0},
		{true, []string{":status", "200", "content-type", "text/event-stream"}, 0},
	} {
		b := newBench(t, limited(1, -1), func(b *bench) {
			b.streams = weirhttp.NewStreams(weirhttp.StreamsConfig{Grace: time.Hour})
		})
		s := b.open(t)
		s.admitted()
		s.send(says(tt.last, tt.pairs...))
		s.next()
		if n, inside := b.streams.Snapshot().Open, b.gate(t).InFlight; n != tt.want || inside != 1-tt.want {
			t.Errorf("%v, ended %v: %d streams and %d in flight, want %d streams", tt.pairs, tt.last, n, inside, tt.want)
		}
	}
}

// What has no slot needs no place. Otherwise what passes no gate would take the places of what does.
func TestNoPlaceWithoutASlot(t *testing.T) {
	spec := limited(1, -1)
	spec.Routes[0].Match = []string{"/limited/"}
	b := newBench(t, spec)
	for _, tt := range []struct {
		path string
		want int64
	}{{"/free", 0}, {"/limited/", 1}} {
		s := b.open(t, ":path", tt.path)
		s.admitted()
		s.send(says(false, ":status", "200", "content-type", "text/event-stream"))
		s.next()
		if n := b.streams.Snapshot().Open; n != tt.want {
			t.Errorf("%s: %d places are taken, want %d", tt.path, n, tt.want)
		}
		_ = s.CloseSend()
		eventually(t, "no place is taken", func() bool { return b.streams.Snapshot().Open == 0 })
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

// The place of a stream is its user's, and its slot is free. Both come back at the end.
func TestStreamOfAUser(t *testing.T) {
	spec := limited(1, -1)
	spec.Identity.User = "header:X-User"
	b := newBench(t, spec)
	b.streams.SetMax(2)
	s := b.open(t, "x-user", "a")
	s.admitted()
	s.send(says(false, ":status", "200", "content-type", "text/event-stream"))
	s.next()
	if n := b.policy.Gate("api").Snapshot().InFlight; n != 0 || !isFull(b.streams, "a") {
		t.Errorf("%d in flight, full for its user %v", n, isFull(b.streams, "a"))
	}
	_ = s.CloseSend()
	eventually(t, "the place is free", func() bool { return b.streams.Snapshot().Open == 0 && !isFull(b.streams, "a") })
}

// What the policy knows of a request goes on to the server: its deadline, its priority, its identity
// where the peer is trusted.
func TestForward(t *testing.T) {
	spec := limited(4, -1)
	spec.Identity = policy.IdentitySpec{Tenant: "header:X-Tenant", Priority: "header:X-Priority", Admissions: "header:X-Admissions"}
	spec.Routes[0].Timeout = policy.Duration(time.Hour)
	for _, tt := range []struct {
		name    string
		trusted []string
		pairs   []string
		want    map[string]string
		removed string
		tenant  string
	}{
		{"trusted", nil, []string{"x-tenant", "acme"}, map[string]string{"x-priority": "normal", "x-admissions": "1"}, "", "acme"},
		{"a stranger", []string{}, []string{"x-tenant", "acme"}, map[string]string{"x-priority": "normal", "x-admissions": "1"}, "x-tenant", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := spec
			spec.Identity.Trusted = tt.trusted
			b := newBench(t, spec)
			s := b.open(t, tt.pairs...)
			m := s.admitted().GetResponse().GetHeaderMutation()
			got := set(m)
			if got["x-request-timeout"] == "" {
				t.Errorf("no deadline in %v", got)
			}
			delete(got, "x-request-timeout")
			if len(got) != len(tt.want) {
				t.Errorf("%v, want %v", got, tt.want)
			}
			for name, value := range tt.want {
				if got[name] != value {
					t.Errorf("%v, want %v", got, tt.want)
				}
			}
			if removed := strings.Join(m.GetRemoveHeaders(), " "); removed != tt.removed {
				t.Errorf("removed %q, want %q", removed, tt.removed)
			}
			s.leave()
			if r := b.report(t); r.Work.Tenant != tt.tenant {
				t.Errorf("tenant %q, want %q", r.Work.Tenant, tt.tenant)
			}
		})
	}
}

// A drain ends streams without a fault, also those whose answer has not come. Those that wait are
// refused first.
func TestDrain(t *testing.T) {
	b := newBench(t, limited(2, 4))
	running, answering := b.open(t), b.open(t)
	running.admitted()
	answering.admitted()
	answering.send(says(false, ":status", "200"))
	answering.next()
	waiting := b.open(t)
	waiting.next()

	b.policy.Close()
	b.Drain()
	if i := waiting.refused(); i.Status.Code != 503 || i.Details != "weir_draining" {
		t.Errorf("a waiter is refused by %v", i)
	}
	for _, s := range []stream{running, answering} {
		if _, err := s.Recv(); err != io.EOF {
			t.Errorf("a stream ends with %v", err)
		}
	}
	b.counted(t, Drained, 2)
	if i := b.open(t).refused(); i.Details != "weir_draining" {
		t.Errorf("a newcomer is refused by %v", i)
	}
	b.counted(t, Refused, 2)
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.reports); n != 2 { // of the others nobody here sees the end
		t.Errorf("%d reports, want those of the refusals", n)
	}
}

// Bad input loses nothing: each gets an error that says what is wrong, and the slot comes back.
func TestBadInput(t *testing.T) {
	trailers := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseTrailers{ResponseTrailers: new(extproc.HttpTrailers)}}
	observing := asks()
	observing.ObservabilityMode = true
	streamed, duplex := asks(), asks()
	streamed.ProtocolConfig = &extproc.ProtocolConfiguration{RequestBodyMode: modes.ProcessingMode_STREAMED}
	duplex.ProtocolConfig = &extproc.ProtocolConfiguration{ResponseBodyMode: modes.ProcessingMode_FULL_DUPLEX_STREAMED}
	body := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestBody{RequestBody: new(extproc.HttpBody)}}
	answerBody := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseBody{ResponseBody: new(extproc.HttpBody)}}
	for _, tt := range []struct {
		name  string
		sends []*extproc.ProcessingRequest
		code  codes.Code
		says  string
	}{
		{"nothing in it", []*extproc.ProcessingRequest{{}}, codes.FailedPrecondition, "request_header_mode"},
		{"an answer first", []*extproc.ProcessingRequest{says(true, ":status", "200")}, codes.FailedPrecondition, "request_header_mode"},
		{"only observed", []*extproc.ProcessingRequest{observing}, codes.FailedPrecondition, "observability_mode"},
		{"bodies to come", []*extproc.ProcessingRequest{streamed}, codes.FailedPrecondition, "request_body_mode"},
		{"full duplex", []*extproc.ProcessingRequest{duplex}, codes.FailedPrecondition, "response_body_mode"},
		{"a body", []*extproc.ProcessingRequest{asks(), body}, codes.FailedPrecondition, "request_body_mode"},
		{"a body of the answer", []*extproc.ProcessingRequest{asks(), says(false, ":status", "200"), answerBody}, codes.FailedPrecondition, "response_body_mode"},
		{"headers twice", []*extproc.ProcessingRequest{asks(), asks()}, codes.InvalidArgument, "twice"},
		{"answers twice", []*extproc.ProcessingRequest{asks(), says(false, ":status", "200"), says(false, ":status", "200")}, codes.InvalidArgument, "twice"},
		{"out of order", []*extproc.ProcessingRequest{asks(), trailers}, codes.InvalidArgument, "before"},
		{"empty later", []*extproc.ProcessingRequest{asks(), {}}, codes.InvalidArgument, "without"},
		{"too large", []*extproc.ProcessingRequest{asks("x", strings.Repeat("x", rpc.MaxMessage))}, codes.ResourceExhausted, "larger"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, limited(1, -1))
			s := b.dial(t)
			for _, m := range tt.sends {
				if err := s.Send(m); err != nil && err != io.EOF {
					t.Fatal(err)
				}
			}
			var err error
			for err == nil {
				_, err = s.Recv()
			}
			if status.Code(err) != tt.code || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v, want %v with %q", err, tt.code, tt.says)
			}
			b.idle(t)
		})
	}
}

// What is no message at all ends a stream with an error: a clean end would let the request in.
func TestGarbage(t *testing.T) {
	b := newBench(t, limited(1, -1))
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	s, err := b.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/"+Name+"/Process",
		grpc.ForceCodec(raw{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SendMsg([]byte{0xff}); err != nil {
		t.Fatal(err)
	}
	if err := s.RecvMsg(new([]byte)); status.Code(err) != codes.Internal {
		t.Errorf("the stream ends with %v", err)
	}
	b.counted(t, Invalid, 1)
}

// raw is a codec of bytes.
type raw struct{}

func (raw) Name() string                       { return "proto" }
func (raw) Marshal(v any) ([]byte, error)      { return v.([]byte), nil }
func (raw) Unmarshal(data []byte, v any) error { *v.(*[]byte) = slices.Clone(data); return nil }

// Headers are bounded in number. Those of a request beyond the bound are refused, those of an answer
// are not read.
func TestManyHeaders(t *testing.T) {
	most := make([]string, 0, 2*mostFields)
	for i := range mostFields - 4 { // beside those that each request has
		most = append(most, fmt.Sprint("x-", i), "y")
	}
	b := newBench(t, limited(1, -1))
	s := b.open(t, most...)
	s.admitted()
	answer := append([]string{":status", "200"}, most...)
	answer = append(answer, most...)
	s.send(says(true, answer...))
	if m := s.next(); m.GetResponseHeaders() == nil {
		t.Errorf("an answer with many headers is answered with %v", m)
	}
	b.heard(t, weir.OK)
	s.leave()
	if i := b.open(t, append(most, "one", "more")...).refused(); i.Status.Code != 431 {
		t.Errorf("refused by %v", i)
	}

	// So it is if the path comes after the bound.
	late := asks(append(most, "one", "more", "another", "more")...)
	all := late.GetRequestHeaders().Headers.Headers
	slices.Reverse(all)
	s = b.dial(t)
	s.send(late)
	if i := s.refused(); i.Status.Code != 431 {
		t.Errorf("with the path last, refused by %v", i)
	}
}

// Envoy checks its bounds again after a change, and fails what is beyond them. Such a request is refused, and takes no slot.
func TestOverfull(t *testing.T) {
	const own = 5 // headers that each request has here, with the one of client
	for _, tt := range []struct {
		name    string
		most    int
		headers int // of the request
		bytes   int
		quiet   bool // weir adds nothing
		code    int32
	}{
		{"room for both", 100, 98, 0, false, 0},
		{"one too many", 100, 99, 0, false, 431},
		{"as many as Envoy may add", 100, 108, 0, false, 431},
		{"nothing is changed", 100, 108, 0, true, 0},
		{"another bound", 120, 118, 0, false, 0},
		{"one beyond another bound", 120, 119, 0, false, 431},
		{"too large", 100, 10, envoyBytes - 20, false, 431},
		{"not quite", 100, 10, envoyBytes - 80, false, 0},
		{"large, and nothing is changed", 100, 10, envoyBytes - 20, true, 0},
		{"a bound of bytes that is higher", 100, 10, envoyBytes + 2*spare, false, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := limited(1, -1)
			if !tt.quiet {
				spec.Identity.Priority = "header:X-Priority"
				spec.Routes[0].Timeout = policy.Duration(time.Minute)
			}
			pairs := []string{"client", ""}
			for i := range tt.headers - own {
				pairs = append(pairs, fmt.Sprint("x-", i), "y")
			}
			if left := tt.bytes - asked(pairs...).size(); left > 0 {
				pairs[1] = strings.Repeat("x", left)
			}
			b := newBench(t, spec, func(b *bench) { b.headers = tt.most })
			s := b.open(t, pairs...)
			m := s.next()
			if code := int32(m.GetImmediateResponse().GetStatus().GetCode()); code != tt.code {
				t.Fatalf("answered by %v, want %d", m, tt.code)
			}
			if n := b.gate(t).InFlight; tt.code != 0 && n != 0 {
				t.Errorf("%d in flight", n)
			}
			s.leave()
		})
	}
}

// An answer that has hardly room for more headers goes on without those about quotas, and without any change if it has none.
func TestOverfullAnswers(t *testing.T) {
	for _, tt := range []struct {
		headers      int // of the answer, with x-cost
		bound        int // of requests
		set, removed bool
	}{{98, 0, true, true}, {100, 0, false, true}, {101, 0, false, true}, {102, 0, false, false}, {100, 200, false, true}} {
		spec := limited(1, -1)
		spec.Gates["api"] = policy.GateSpec{Quota: quotaOf(10)}
		spec.Routes[0].Settle = "header:X-Cost"
		s := newBench(t, spec, func(b *bench) { b.headers = tt.bound }).open(t)
		s.admitted()
		pairs := []string{":status", "200", "x-cost", "1"}
		for i := range tt.headers - 2 {
			pairs = append(pairs, fmt.Sprint("x-", i), "y")
		}
		s.send(says(true, pairs...))
		m := s.next().GetResponseHeaders().GetResponse().GetHeaderMutation()
		if got := len(m.GetSetHeaders()) > 0; got != tt.set || len(m.GetRemoveHeaders()) > 0 != tt.removed {
			t.Errorf("an answer of %d headers gets %v; want some set: %v, and one removed: %v", tt.headers, m, tt.set, tt.removed)
		}
	}
}

// asked are the headers of a request as they come.
func asked(pairs ...string) (all fields) {
	for _, h := range asks(pairs...).GetRequestHeaders().Headers.Headers {
		all = append(all, field{h.Key, string(h.RawValue)})
	}
	return all
}

// Requests that look bad are refused, or judged as they are.
func TestBadRequests(t *testing.T) {
	for _, tt := range []struct {
		name  string
		pairs []string
		code  int32 // 0: admitted
	}{
		{"a known method in lower case", []string{":method", "post"}, 400},
		{"a method with a space", []string{":method", "GET /"}, 400},
		{"an unknown method in lower case", []string{":method", "purge"}, 0},
		{"no path", []string{":path", ""}, 400},
		{"a path that is none", []string{":path", "%zz"}, 400},
		{"an ambiguous path", []string{":path", "/a%2F..%2Fb"}, 400},
		{"an ambiguous host", []string{":authority", "heavy.test:80:80"}, 400},
		{"no path but a target", []string{":path", "x:http://admin.example/heavy"}, 400},
		{"not UTF-8", []string{"x-tenant", "\xff\xfe", ":path", "/\xff"}, 0},
		{"a time-out of nothing", []string{"grpc-timeout", "0n"}, 503},
		{"a time-out below nothing", []string{"grpc-timeout", "-1S"}, 0},
		{"a time-out of nine digits", []string{"grpc-timeout", "123456789S"}, 0},
		{"many headers", []string{"x-many", strings.Repeat("x", 64<<10)}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := limited(1, -1)
			spec.Routes[0].Match = append(spec.Routes[0].Match, "heavy.test/")
			b := newBench(t, spec)
			m := b.open(t, tt.pairs...).next()
			if code := int32(m.GetImmediateResponse().GetStatus().GetCode()); code != tt.code {
				t.Errorf("answered by %v, want %d", m, tt.code)
			}
		})
	}
}

// A call of gRPC that cannot be judged gets the status that it would get from the proxy, details and all.
func TestBadCalls(t *testing.T) {
	var many []string
	for i := range mostFields {
		many = append(many, fmt.Sprint("x-", i), "y")
	}
	for code, pairs := range map[int][]string{400: {":path", "/a%2F..%2Fb"}, 431: many} {
		call := []string{":method", "POST", "content-type", "application/grpc"}
		i := newBench(t, limited(1, -1)).open(t, append(call, pairs...)...).refused()
		w := httptest.NewRecorder()
		(&proxy.Call{GRPC: true}).WriteProblem(w, code, string(i.Body))
		want, _ := weirgrpc.StatusOf(w.Header())
		got := set(i.Headers)[statusDetails]
		if details := w.Header().Get(statusDetails); i.GrpcStatus.GetStatus() != uint32(want.Code()) || int(i.Status.Code) != code || details == "" || got != details {
			t.Errorf("%d: %v with details %q; the proxy says %v with %q", code, i, got, want, details)
		}
		if info, ok := want.Details()[0].(*errdetails.ErrorInfo); !ok || info.Domain != weirgrpc.Domain || info.Reason == "" {
			t.Errorf("%d: details %v", code, want.Details())
		}
	}
}

// A stream that says nothing ends, and streams beyond the bound are refused.
func TestBounds(t *testing.T) {
	quick := newBench(t, limited(1, -1), func(b *bench) { b.silence = time.Millisecond })
	if _, err := quick.dial(t).Recv(); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a silent stream ends with %v", err)
	}
	quick.counted(t, Silent, 1)

	b := newBench(t, limited(100, -1), func(b *bench) { b.most = 2 })
	silent := []stream{b.dial(t), b.dial(t)}
	eventually(t, "two streams", func() bool { return b.Snapshot().Open == 2 })
	i := b.open(t).refused()
	if i.Status.Code != 503 || !strings.Contains(string(i.Body), "max_connections") {
		t.Errorf("refused by %v", i)
	}
	for _, s := range silent {
		s.leave()
	}
	eventually(t, "no streams", func() bool { return b.Snapshot().Open == 0 })
	b.counted(t, Crowded, 1)
	if n := b.turned.Load(); n != 1 {
		t.Errorf("told of %d refusals, want 1", n)
	}
}

// The streams of one listener leave the bound of another alone.
func TestEachListenerHasItsBound(t *testing.T) {
	b := newBench(t, limited(100, -1), func(b *bench) { b.most = 1 })
	silent := b.dial(t)
	eventually(t, "a stream", func() bool { return b.Snapshot().Open == 1 })
	other := b.listen(t)
	s := b.open(t)
	s.refused()
	b.client = other
	s = b.open(t)
	s.admitted()
	s.leave()
	silent.leave()
}

// Without attributes nobody is trusted, and it is said.
func TestWithoutAttributes(t *testing.T) {
	spec := limited(1, -1)
	spec.Identity = policy.IdentitySpec{Tenant: "header:X-Tenant"}
	b := newBench(t, spec)
	s := b.dial(t)
	m := asks("x-tenant", "acme")
	m.Attributes = nil
	s.send(m)
	s.admitted()
	s.leave()
	if r := b.report(t); r.Work.Tenant != "" || r.Work.User != "" {
		t.Errorf("work %+v", r.Work)
	}
	if !strings.Contains(b.log.String(), "source.address") {
		t.Errorf("log:\n%s", b.log)
	}
}

// The names in a client's certificate count where Envoy has checked it.
func TestCertificates(t *testing.T) {
	a := attributes{mutual: true, uri: "spiffe://test/web", dns: "web.test"}
	cert := a.certificate()
	if len(cert.URIs) != 1 || cert.URIs[0].String() != a.uri || len(cert.DNSNames) != 1 || cert.DNSNames[0] != a.dns {
		t.Errorf("certificate %+v", cert)
	}
	a.mutual = false
	if a.certificate() != nil {
		t.Error("a certificate without a handshake")
	}
}

// Headers that only look like those of an identity to CGI and WSGI are removed, too.
func TestDisguisedIdentity(t *testing.T) {
	spec := limited(5, 1)
	spec.Identity.User = "header:X-User"
	s := newBench(t, spec).dial(t)
	m := asks("x-user", "admin", "x_user", "admin", "x.user", "admin", "x-users", "two")
	from, err := structpb.NewStruct(map[string]any{"source.address": "203.0.113.7:4444"})
	if err != nil {
		t.Fatal(err)
	}
	m.Attributes = map[string]*structpb.Struct{"envoy.filters.http.ext_proc": from}
	s.send(m)
	removed := s.admitted().GetResponse().GetHeaderMutation().GetRemoveHeaders()
	slices.Sort(removed)
	if want := []string{"x-user", "x.user", "x_user"}; !slices.Equal(removed, want) {
		t.Errorf("removed %q, want %q", removed, want)
	}
}
