package envoy

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/weirgrpc"
)

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

// A cost in the trailers counts if the headers say none, also after the answer has become a stream. Either goes no further.
func TestCostInTrailers(t *testing.T) {
	for _, tt := range []struct {
		name            string
		answer, trailer []string
		left            string // of 100, after this request and the next
	}{
		{"in the trailers", []string{"content-type", "application/grpc"}, []string{"x-cost", "90"}, "r=9;"},
		{"of a stream", []string{"content-type", "text/event-stream"}, []string{"x-cost", "90"}, "r=9;"},
		{"in both", []string{"x-cost", "40"}, []string{"x-cost", "90"}, "r=59;"},
		{"in none", nil, nil, "r=98;"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := limited(1, -1)
			spec.Gates["api"] = policy.GateSpec{Quota: quotaOf(100)}
			spec.Routes[0].Settle = "header:X-Cost"
			b := newBench(t, spec)
			s := b.open(t)
			s.admitted()
			s.send(says(false, append([]string{":status", "200"}, tt.answer...)...))
			s.next()
			s.send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseTrailers{
				ResponseTrailers: &extproc.HttpTrailers{Trailers: headers(append(tt.trailer, "grpc-status", "0")...)},
			}})
			removed := s.next().GetResponseTrailers().GetHeaderMutation().GetRemoveHeaders()
			if got := strings.Join(removed, " "); got == "x-cost" != (tt.trailer != nil) {
				t.Errorf("removed from the trailers: %q", got)
			}
			s = b.open(t)
			s.admitted()
			s.send(says(true, ":status", "200"))
			if got := set(s.next().GetResponseHeaders().GetResponse().GetHeaderMutation()); !strings.Contains(got["ratelimit"], tt.left) {
				t.Errorf("the next answer says %q, want %s", got["ratelimit"], tt.left)
			}
		})
	}
}

// A cost in the body does not come here. Each answer that may say it so counts as one that did not, unless its
// headers or trailers do.
func TestCostInBodies(t *testing.T) {
	spec := limited(1, -1)
	spec.Gates["api"] = policy.GateSpec{Quota: quotaOf(100)}
	spec.Routes[0].Settle, spec.Routes[0].SettleEvent = "header:X-Cost", "usage.total_tokens"
	b := newBench(t, spec)
	var ended uint64
	for _, tt := range []struct {
		name string
		last bool
		says []string
		want uint64
	}{
		{"a body", false, []string{":status", "200"}, 1},
		{"no body", true, []string{":status", "204"}, 1},
		{"an error", false, []string{":status", "500"}, 1},
		{"a header", false, []string{":status", "200", "x-cost", "5"}, 1},
		{"another body", false, []string{":status", "200"}, 2},
		{"a body and a header that is no number", false, []string{":status", "200", "x-cost", "five"}, 3},
	} {
		s := b.open(t)
		s.admitted()
		s.send(says(tt.last, tt.says...))
		s.next()
		_ = s.CloseSend()
		ended++
		b.counted(t, Complete, ended)
		if n := b.policy.Ignored().Settled; n != tt.want {
			t.Errorf("%s: %d answers without a cost, want %d", tt.name, n, tt.want)
		}
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
