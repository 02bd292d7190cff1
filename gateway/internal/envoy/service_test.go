package envoy

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modes "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
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
	"github.com/weir-go/weir/quota"
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

func quotaStatus(t *testing.T) *statuspb.Status {
	t.Helper()
	x := exchange{grpc: true}
	i := x.refusal(&weir.Rejection{Gate: "g", Rule: "r", Reason: weir.ReasonQuota, RetryAfter: time.Second, Retryable: true})
	raw, err := base64.RawStdEncoding.DecodeString(i.headers.get(statusDetails))
	if err != nil {
		t.Fatal(err)
	}
	st := new(statuspb.Status)
	if err := proto.Unmarshal(raw, st); err != nil {
		t.Fatal(err)
	}
	return st
}

// A refusal of HTTP has the status, Retry-After and the problem document of the gateway's own.
func TestRefusal(t *testing.T) {
	b := newBench(t, limited(1, -1))
	b.open(t).admitted()
	i := b.open(t).refused()
	if i.Status.Code != 503 || i.GrpcStatus != nil || i.Details != "weir_limit" {
		t.Errorf("refused by %v", i)
	}
	got := set(i.Headers)
	if got["content-type"] != "application/problem+json" || got["retry-after"] == "" || got["cache-control"] != "no-store" {
		t.Errorf("headers %v", got)
	}
	var doc struct{ Gate, Reason string }
	if err := json.Unmarshal(i.Body, &doc); err != nil || doc.Gate != "api" || doc.Reason != "limit" {
		t.Errorf("document %s: %v", i.Body, err)
	}
	b.counted(t, Refused, 1)
	if r := b.report(t); r.Status != 503 || r.By != proxy.ByGate {
		t.Errorf("report %+v", r)
	}
}

// A trusted client reads as whom it was refused, and a stranger does not.
func TestRefusalOfStrangers(t *testing.T) {
	for _, trusted := range [][]string{nil, {}} {
		spec := limited(1, -1)
		spec.Identity = policy.IdentitySpec{Tenant: "header:X-Tenant", Trusted: trusted}
		b := newBench(t, spec)
		b.open(t).admitted()
		body := string(b.open(t, "x-tenant", "acme").refused().Body)
		if told := strings.Contains(body, `"class"`) && strings.Contains(body, `"acme"`); told != (trusted == nil) {
			t.Errorf("trusted %v: %s", trusted, body)
		}
		if trusted != nil && strings.Contains(body, `"class"`) {
			t.Errorf("a stranger reads %s", body)
		}
	}
}

// While retries are common among what is refused, a refusal says that there is no use in coming back.
func TestRefusedRetriesThatAreCommon(t *testing.T) {
	b := newBench(t, limited(1, -1))
	b.open(t).admitted()
	var pushback []string
	for range 12 {
		i := b.open(t, ":method", "POST", "content-type", "application/grpc", "grpc-previous-rpc-attempts", "1").refused()
		pushback = append(pushback, set(i.Headers)[weirgrpc.PushbackHeader])
	}
	if pushback[0] == "-1" || pushback[11] != "-1" {
		t.Errorf("pushback %q, want -1 from the tenth retry on", pushback)
	}
}

// A refused call of gRPC gets a status with details, and when to come back.
func TestRefusalOfACall(t *testing.T) {
	spec := limited(1, -1)
	spec.Gates["api"] = policy.GateSpec{Quota: quotaOf(1)}
	b := newBench(t, spec)
	call := []string{"content-type", "application/grpc", ":method", "POST", ":path", "/a.B/C"}
	b.open(t, call...).admitted()
	i := b.open(t, call...).refused()
	if i.GrpcStatus.GetStatus() != uint32(codes.ResourceExhausted) || i.Status.Code != 429 {
		t.Errorf("refused by %v", i)
	}
	got := set(i.Headers)
	raw, err := base64.RawStdEncoding.DecodeString(got[statusDetails])
	if err != nil {
		t.Fatalf("details are padded, or no base64: %v", err)
	}
	st := new(statuspb.Status)
	if err := proto.Unmarshal(raw, st); err != nil || len(st.Details) != 3 || st.Message != string(i.Body) {
		t.Errorf("details %v: %v", st, err)
	}
	if got["grpc-retry-pushback-ms"] == "" || got["content-type"] != "" || got["retry-after"] != "" {
		t.Errorf("headers %v", got)
	}
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

// An answer says what is left of a quota, and headers that say what it cost go no further.
func TestQuotaInAnswers(t *testing.T) {
	spec := limited(1, -1)
	spec.Gates["api"] = policy.GateSpec{Quota: quotaOf(10)}
	spec.Routes[0].Settle = "header:X-Cost"
	b := newBench(t, spec)
	s := b.open(t)
	s.admitted()
	s.send(says(true, ":status", "200", "x-cost", "4"))
	m := s.next().GetResponseHeaders().GetResponse().GetHeaderMutation()
	if got := set(m); !strings.Contains(got["ratelimit"], "r=6") {
		t.Errorf("headers %v", got)
	}
	if len(m.RemoveHeaders) != 1 || m.RemoveHeaders[0] != "x-cost" {
		t.Errorf("removed %v", m.RemoveHeaders)
	}
}

func set(m *extproc.HeaderMutation) map[string]string {
	all := map[string]string{}
	for _, o := range m.GetSetHeaders() {
		if o.AppendAction != core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
			all[o.Header.Key] += "|"
		}
		all[o.Header.Key] += string(o.Header.RawValue)
	}
	return all
}

// Envoy is asked once to wait longer, when work begins to wait.
func TestWait(t *testing.T) {
	b := newBench(t, limited(1, 4))
	first := b.open(t)
	first.admitted()
	second := b.open(t, "x-request-timeout", "3600")
	m := second.next()
	if d := m.GetOverrideMessageTimeout().AsDuration(); m.Response != nil || d != 31*time.Second { // no gate lets wait longer than 30 s
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

// Envoy is asked to wait as long as the work may, and a second more.
func TestPatience(t *testing.T) {
	for _, tt := range []struct {
		name        string
		work        weir.Work
		least, most time.Duration
	}{
		{"without a bound", weir.Work{}, 31 * time.Second, 31 * time.Second},
		{"its own bound", weir.Work{MaxWait: 2 * time.Second}, 3 * time.Second, 3 * time.Second},
		{"a bound beyond all gates", weir.Work{MaxWait: time.Hour}, 31 * time.Second, 31 * time.Second},
		{"a deadline", weir.Work{Deadline: time.Now().Add(20 * time.Second)}, time.Second, 21 * time.Second},
		{"a deadline that has passed", weir.Work{Deadline: time.Now().Add(-time.Minute)}, time.Second, time.Second},
	} {
		x := &exchange{Matched: Matched{Work: tt.work}}
		if d := x.patience(); d < tt.least || d > tt.most {
			t.Errorf("%s: %v, want %v to %v", tt.name, d, tt.least, tt.most)
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
}

// Requests that look bad are refused, or judged as they are.
func TestBadRequests(t *testing.T) {
	for _, tt := range []struct {
		name  string
		pairs []string
		code  int32 // 0: admitted
	}{
		{"no path", []string{":path", ""}, 400},
		{"a path that is none", []string{":path", "%zz"}, 400},
		{"an ambiguous path", []string{":path", "/a%2F..%2Fb"}, 400},
		{"not UTF-8", []string{"x-tenant", "\xff\xfe", ":path", "/\xff"}, 0},
		{"a time-out of nothing", []string{"grpc-timeout", "0n"}, 503},
		{"a time-out below nothing", []string{"grpc-timeout", "-1S"}, 0},
		{"a time-out of nine digits", []string{"grpc-timeout", "123456789S"}, 0},
		{"many headers", []string{"x-many", strings.Repeat("x", 64<<10)}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, limited(1, -1))
			m := b.open(t, tt.pairs...).next()
			if code := int32(m.GetImmediateResponse().GetStatus().GetCode()); code != tt.code {
				t.Errorf("answered by %v, want %d", m, tt.code)
			}
		})
	}
}

// A call of gRPC that cannot be judged gets the status that it would get from the proxy, details and all.
func TestBadCalls(t *testing.T) {
	many := make([]string, 0, 2*mostFields)
	for i := range mostFields {
		many = append(many, fmt.Sprint("x-", i), "y")
	}
	for code, pairs := range map[int][]string{400: {":path", "/a%2F..%2Fb"}, 431: many} {
		i := newBench(t, limited(1, -1)).open(t, append(pairs, "content-type", "application/grpc", ":method", "POST")...).refused()
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
		err := b.process(s, Bounds{MaxStreams: func() int64 { return 1 }, FirstMessage: time.Minute})
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
	err = b.process(s, Bounds{MaxStreams: func() int64 { return 1 }, FirstMessage: time.Minute})
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
				ended <- b.process(s, Bounds{MaxStreams: func() int64 { return 2 }, FirstMessage: time.Minute})
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
		ended <- b.process(s, Bounds{MaxStreams: func() int64 { return 1 }, FirstMessage: time.Minute})
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
