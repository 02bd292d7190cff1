package policy

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/attempt"
)

// Which attempt a request is, as its senders say it. Package attempt has the rules.
func TestAttempts(t *testing.T) {
	p := compile(t, Spec{}, Options{})
	for _, tt := range []struct {
		name   string
		header http.Header
		want   int
	}{
		{"nothing said", http.Header{}, 0},
		{"weir's own", http.Header{"X-Weir-Attempt": {"2"}}, 2},
		{"gRPC's own retries", http.Header{"Grpc-Previous-Rpc-Attempts": {"1"}}, 1},
		{"the second of Envoy", http.Header{"X-Envoy-Attempt-Count": {"2"}}, 1},
		{"the largest", http.Header{"X-Weir-Attempt": {"1"}, "X-Envoy-Attempt-Count": {"4"}}, 3},
		{"2^63", http.Header{"X-Weir-Attempt": {"9223372036854775808"}}, attempt.Max},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header = tt.header
		if _, w := p.Match(r); w.Attempt != tt.want {
			t.Errorf("%s: attempt %d, want %d", tt.name, w.Attempt, tt.want)
		}
	}
}

// Retries that are common on one route are final there, and nowhere else. A new policy goes on counting.
func TestTold(t *testing.T) {
	spec := Spec{
		Gates:  map[string]GateSpec{"all": fixed(1)},
		Routes: []RouteSpec{{Name: "a", Match: []string{"/a"}, Gates: []string{"all"}}, {Name: "b", Match: []string{"/b"}, Gates: []string{"all"}}},
	}
	p := compile(t, spec, Options{})
	full := &weir.Rejection{Reason: weir.ReasonLimit, Retryable: true}
	for range 20 {
		p.Route("a").Told(&weir.Work{Attempt: 1}, true, full)
	}
	next := compile(t, spec, Options{Previous: p})
	for _, p := range []*Policy{p, next} {
		if told := p.Route("a").Told(&weir.Work{}, true, full); told.Retryable {
			t.Errorf("a: %+v", told)
		}
		if told := p.Route("b").Told(&weir.Work{}, true, full); told != full {
			t.Errorf("b: %+v", told)
		}
	}
	spec.Routes[0].RetryShare = 1
	if told := compile(t, spec, Options{Previous: next}).Route("a").Told(&weir.Work{Attempt: 1}, true, full); told != full {
		t.Errorf("a, with a share that nothing is above: %+v", told)
	}
	var none *Route
	if told := none.Told(&weir.Work{}, true, full); told != full {
		t.Errorf("no route: %+v", told)
	}
}
