package proxy

import (
	"net/http"
	"testing"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
)

// What it costs to tell in an answer what is left of a quota.
func BenchmarkTell(b *testing.B) {
	p, err := policy.Compile(policy.Spec{
		Gates: map[string]policy.GateSpec{"api": {Quota: &policy.QuotaSpec{
			QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "10/s"}, By: []string{"user"},
		}}},
		Routes: []policy.RouteSpec{{Match: []string{"/"}, Gates: []string{"api"}}},
	}, policy.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	qs, h, w := QuotasOf(p.Route("/")), http.Header{}, weir.Work{User: "alice"}
	b.ReportAllocs()
	for b.Loop() {
		clear(h)
		qs.Tell(h, w, nil)
	}
	if h.Get("RateLimit") == "" {
		b.Error("nothing is told")
	}
}
