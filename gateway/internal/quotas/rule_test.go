package quotas

import (
	"testing"

	"github.com/weir-go/weir/policy"
)

// A network is the same however it is written: one set at run time takes the place of
// the file's, and of itself.
func TestNetworksByAnyName(t *testing.T) {
	spec := base()
	spec.Identity.Client = "peer"
	network := func(address, rate string) policy.QuotaRuleSpec {
		return policy.QuotaRuleSpec{Address: address, QuotaLimitSpec: policy.QuotaLimitSpec{Rate: rate}}
	}
	q := *spec.Gates["api"].Quota
	q.Rules = append(q.Rules, network("2001:db8::/32", "5/h"))
	spec.Gates["api"] = policy.GateSpec{Quota: &q}
	d := newDesk(t, newFile(t, inTemp(t)), spec)
	for _, r := range []policy.QuotaRuleSpec{network("2001:DB8::/32", "7/h"), network("2001:db8:0::/32", "8/h")} {
		d.must(Change{Ops: []Op{{Gate: "api", Set: &r}}, By: "tester"})
	}
	gives := map[string]string{}
	for _, v := range d.Look("api").Rules {
		if v.InForce {
			gives[v.Matches] += v.Gives
		}
	}
	if gives["address=2001:db8::/32"] != "8/h" {
		t.Errorf("%v, want what was set last", gives)
	}
	if log := d.log.String(); len(d.policy.Gate("api").Quota().Rules()) != 3 {
		t.Errorf("%d rules in force, want 3:\n%s", len(d.policy.Gate("api").Quota().Rules()), log)
	}
}
