package quotas

import (
	"fmt"
	"testing"

	"github.com/weir-go/weir/policy"
)

// many are rules for n users at a rate, one fewer than there may be at most where n is
// that, so that one more can be set.
func many(n int, rate string) []policy.QuotaRuleSpec {
	rules := make([]policy.QuotaRuleSpec, min(n, MaxRules-1))
	for i := range rules {
		rules[i] = *user(fmt.Sprint("user-", i), rate)
	}
	return rules
}

// BenchmarkRules says how long it takes to replace all rules, to set one of many, to
// look whether the file has changed, to reload the configuration, and to start.
func BenchmarkRules(b *testing.B) {
	for _, n := range []int{100, 1000, MaxRules} {
		file := newFile(b, inTemp(b))
		d := newDesk(b, file, base())
		lots := [][]policy.QuotaRuleSpec{many(n, "3/h"), many(n, "4/h")}
		run := func(what string, f func(i int)) {
			b.Run(fmt.Sprint(what, "/", n), func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					f(i)
				}
			})
		}
		run("replace", func(i int) { d.must(Change{Ops: []Op{{Gate: "api", Replace: lots[i%2]}}}) })
		run("set", func(i int) { d.must(set("api", "x", fmt.Sprint(1+i, "/h"))) })
		run("follow", func(int) { d.Follow(b.Context()) })
		run("reload", func(int) { d.reload(base()) })
		run("start", func(int) {
			book, err := Open(b.Context(), Options{Store: file, Logger: d.Book.log})
			if err != nil {
				b.Fatal(err)
			}
			plan := book.Plan(base(), nowhere)
			p, err := policy.Compile(base(), policy.Options{QuotaRules: plan.Rules})
			if err != nil {
				b.Fatal(err)
			}
			book.Adopt(plan, p)
			p.Close()
		})
	}
}

func nowhere(string, string) string { return "" }
