package policy

import (
	"net/http"
	"testing"

	"github.com/weir-go/weir"
)

// BenchmarkGate shows what a mode costs beside the limiter alone.
func BenchmarkGate(b *testing.B) {
	spec := Spec{
		Gates: map[string]GateSpec{"a": fixed(4), "b": fixed(4),
			"observe": {Mode: Observe, Limit: &LimitSpec{Limit: 4}}, "off": {Mode: Off, Limit: &LimitSpec{Limit: 4}}},
		Routes: []RouteSpec{{Name: "one", Gates: []string{"a"}}, {Name: "two", Gates: []string{"a", "b"}},
			{Name: "observe", Gates: []string{"observe"}}, {Name: "off", Gates: []string{"off"}}},
	}
	p := compile(b, spec, Options{})
	gates := map[string]weir.Gate{"limiter alone": p.Gate("a").Limiter()}
	for rt := range p.Routes() {
		gates[rt.Name()] = rt.Gate()
	}
	for _, name := range []string{"limiter alone", "one", "two", "observe", "off"} {
		b.Run(name, func(b *testing.B) {
			g, ctx := gates[name], b.Context()
			b.ReportAllocs()
			for b.Loop() {
				permit, err := g.Admit(ctx, weir.Work{})
				if err != nil {
					b.Fatal(err)
				}
				permit.Done(weir.OK)
			}
		})
	}
}

// BenchmarkIdentity is what it costs to find out who asks: from a peer that is
// trusted and says who asks, from a stranger, and with a timeout.
func BenchmarkIdentity(b *testing.B) {
	p := compile(b, Spec{
		Identity: IdentitySpec{Tenant: "header:X-Tenant", User: "header:X-User", Priority: "header:X-Priority"},
		Routes:   []RouteSpec{{Match: []string{"/"}}},
	}, Options{})
	headers := []string{"X-Tenant: acme", "X-User: alice", "X-Priority: high"}
	for _, bm := range []struct {
		name string
		r    *http.Request
	}{
		{"trusted", from("127.0.0.1:1234", headers...)},
		{"stranger", from("192.0.2.1:1234", headers...)},
		{"stranger over IPv6", from("[2001:db8::1]:1234", headers...)},
		{"with a timeout", from("127.0.0.1:1234", "Grpc-Timeout: 250m")},
	} {
		b.Run(bm.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.Match(bm.r)
			}
		})
	}
}
