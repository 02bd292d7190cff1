package policy

import (
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
