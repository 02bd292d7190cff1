package quotas

import (
	"strings"
	"testing"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// Rules about descriptors are set, changed and deleted at run time as all others are, and the
// bucket of a descriptor can be filled.
func TestDescriptorsAtRunTime(t *testing.T) {
	spec := base()
	rule := func(pattern, rate string) policy.QuotaRuleSpec {
		return policy.QuotaRuleSpec{Rule: quota.Rule{Descriptor: quota.Match(pattern)}, QuotaLimitSpec: policy.QuotaLimitSpec{Rate: rate}}
	}
	spec.Gates["api"].Quota.Rules = append(spec.Gates["api"].Quota.Rules, rule("db=*", "3/h"))
	d := newDesk(t, newFile(t, inTemp(t)), spec)
	q := d.policy.Gate("api").Quota()
	passes := func(descriptor string) (n int) {
		for range 20 {
			if q.Allow(weir.Work{User: "nobody", Descriptor: descriptor}) {
				n++
			}
		}
		return n
	}
	change := func(r policy.QuotaRuleSpec) { d.must(Change{Ops: []Op{{Gate: "api", Set: &r}}}) }
	all := rule("db=users", "5/h")
	all.User = "nobody" // more exact than the rules for each user
	change(all)
	if got := passes("db=users"); got != 5 {
		t.Errorf("%d pass by the rule set at run time, want 5", got)
	}
	res, err := d.Reset(t.Context(), Reset{Gate: "api", Whose: quota.Rule{User: "nobody", Client: "10.0.0.1", Descriptor: "db=users"}})
	if err != nil || res.Bucket != "api/user=nobody/descriptor=db=users" {
		t.Fatalf("%+v, %v", res, err)
	}
	if got := passes("db=users"); got != 5 {
		t.Errorf("%d pass after the reset, want 5", got)
	}
	if _, err := d.Reset(t.Context(), Reset{Gate: "api", Whose: quota.Rule{Descriptor: "db=u*"}}); err == nil || !strings.Contains(err.Error(), "has an asterisk, which is not a value") {
		t.Errorf("a bucket of many: %v", err)
	}
	bad := rule("db", "5/h")
	if _, err := d.Change(t.Context(), Change{Ops: []Op{{Gate: "api", Set: &bad}}}); err == nil || !strings.Contains(err.Error(), "descriptor") || !strings.Contains(err.Error(), "is not a pair") {
		t.Errorf("a descriptor that is none: %v", err)
	}
	d.must(Change{Ops: []Op{{Gate: "api", Delete: &quota.Rule{User: "nobody", Descriptor: "db=users"}}}})
	if m := q.Explain(weir.Work{User: "nobody", Descriptor: "db=users"}); len(m) == 0 || m[0].Descriptor != "" {
		t.Errorf("after the rule was deleted %+v counts", m)
	}
}
