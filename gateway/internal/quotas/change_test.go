package quotas

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// As many rules as are allowed can be set at once, and one more is refused with how many
// there may be. What is kept can be deleted whatever their number.
func TestMostRules(t *testing.T) {
	d := newDesk(t, newFile(t, inTemp(t)), base())
	rules := make([]policy.QuotaRuleSpec, MaxRules+1)
	for i := range rules {
		rules[i] = *user(fmt.Sprint("user-", i), "3/h")
	}
	f := func(part string, ops ...Op) {
		t.Helper()
		_, err := d.Change(t.Context(), Change{Ops: ops})
		if (err == nil) != (part == "") || err != nil && !strings.Contains(err.Error(), part) {
			t.Errorf("%.300v, want %q", err, part)
		}
	}
	f("10001 rules, at most 10000 can be kept", Op{Gate: "api", Replace: rules})
	f("", Op{Gate: "api", Replace: rules[:MaxRules]})
	f("10001 rules would be kept, at most 10000 can be", Op{Gate: "other", Set: user("x", "1/s")})
	f("", Op{Gate: "api", Delete: &quota.Rule{User: "user-0"}}, Op{Gate: "other", Set: user("x", "1/s")}, Op{Gate: "api", Set: user("user-9999", "5/h")})
	if got := d.passes("api", "user-9999", 9); got != 5 {
		t.Errorf("the last of them: %d, want 5", got)
	}
	if got := d.passes("api", "user-1", 9); got != 3 {
		t.Errorf("the first of them: %d, want 3", got)
	}
}

// Who makes the same mistake ten thousand times is told of it once or twice, in the answer
// and in the log.
func TestManyFaults(t *testing.T) {
	d := newDesk(t, newFile(t, inTemp(t)), base())
	ops := make([]Op, MaxOps)
	for i := range ops {
		ops[i] = Op{Gate: "api", Set: user(fmt.Sprint("user-", i), "0/h")}
	}
	_, err := d.Change(t.Context(), Change{Ops: ops})
	if text := fmt.Sprint(err); !strings.Contains(text, "and 980 more") || strings.Count(text, "\n") != mostFaults {
		t.Errorf("%d lines: %.300s", strings.Count(text, "\n"), text)
	}
}

// A document that is changed does what a list of rules would, in the same order.
func FuzzDocument(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 0x40, 0x41, 0x81, 1, 1, 0xc0})
	f.Fuzz(func(t *testing.T, steps []byte) {
		d := newDocument(1, []Rule{{Gate: "a", QuotaRuleSpec: *user("u1", "1/s")}})
		list := []Rule{{Gate: "a", QuotaRuleSpec: *user("u1", "1/s")}}
		at := func(gate, name string) int {
			for i, r := range list {
				if r.Gate == gate && r.User == quota.Match(name) {
					return i
				}
			}
			return -1
		}
		for n, b := range steps {
			gate, name := string(rune('a'+b&1)), fmt.Sprint("u", b>>1&7)
			i := at(gate, name)
			switch b >> 6 {
			case 0, 1:
				r := Rule{Gate: gate, QuotaRuleSpec: *user(name, fmt.Sprint(n+1, "/s"))}
				if was := d.put(r); was != (i >= 0) {
					t.Fatalf("put %s: was %v, place %d", name, was, i)
				}
				if i >= 0 {
					list[i] = r
				} else {
					list = append(list, r)
				}
			case 2:
				if was := d.remove(identity{gate, user(name, "").Pattern()}); was != (i >= 0) {
					t.Fatalf("drop %s: was %v, place %d", name, was, i)
				}
				if i >= 0 {
					list = append(list[:i:i], list[i+1:]...)
				}
			case 3:
				var rest []Rule
				for _, r := range list {
					if r.Gate != gate {
						rest = append(rest, r)
					}
				}
				if was := d.clear(gate); len(was) != len(list)-len(rest) {
					t.Fatalf("clear: %d of %d", len(was), len(list)-len(rest))
				}
				list = rest
			}
		}
		if got := newDocument(1, d.Rules).Rules; fmt.Sprint(got) != fmt.Sprint(list) {
			t.Fatalf("%v\nwant\n%v", got, list)
		}
	})
}

// What is checked rule by rule as they come is what is found in all of them at once.
func TestPlanWith(t *testing.T) {
	d := newDesk(t, newFile(t, inTemp(t)), base())
	d.must(Change{Ops: []Op{{Gate: "other", Set: tiny("x")}, {Gate: "api", Set: user("carol", "3/h")}}})
	spec := base()
	spec.Gates["other"] = policy.GateSpec{Quota: &policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "10/h"}}}
	d.reload(spec) // a burst below 1 does not fit any more
	for _, c := range []Change{set("api", "dave", "2/h"), set("other", "y", "2/h"), {Ops: []Op{{Gate: "api", Delete: &quota.Rule{User: "carol"}}}}, set("other", "x", "2/h")} {
		d.must(c)
		if got, want := d.plan.faults, newPlan(spec, nowhere, d.saved.doc).faults; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%v: %v, want %v", c.asked(), got, want)
		}
	}
	if d.plan.Faulty() != 0 {
		t.Errorf("%v", d.plan.faults)
	}
}
