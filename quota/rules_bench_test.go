package quota

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

// BenchmarkRules says what a decision takes with few rules and with many: those of a
// shape are one map, so that their number does not matter but for the processor's
// caches.
func BenchmarkRules(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		rules := []Rule{{User: Every, Limits: []Limit{Per(1e9, time.Second)}}, {Client: Named("web"), Limits: []Limit{Per(1e9, time.Second)}}}
		for i := range n {
			rules = append(rules, Rule{User: Named(fmt.Sprint("user-", i)), Limits: []Limit{Per(1e9, time.Second)}})
		}
		q, err := New(Config{Name: "api", Rules: rules})
		if err != nil {
			b.Fatal(err)
		}
		for name, w := range map[string]weir.Work{"named": {User: "user-0"}, "other": {User: "alice"}} {
			b.Run(fmt.Sprint(name, "/", n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					p, err := q.TryAdmit(w)
					if err != nil {
						b.Fatal(err)
					}
					p.Done(weir.OK)
				}
			})
		}
	}
}
