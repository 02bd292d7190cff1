package quotas

import (
	"strings"
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

// What a rule gives is said with its bursts, whether they are written or not.
func TestInFull(t *testing.T) {
	for want, r := range map[string]policy.QuotaRuleSpec{
		"10/s burst 10":             {QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "10/s"}},
		"5/s burst 500":             {QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "5/s", Burst: 500}},
		"5/s burst 50":              {QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "5/s burst 50"}},
		"1/10s burst 1":             {QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "1/10s"}},
		"5000 a day":                {QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "5000 a day"}},
		"9/s burst 9, 5/h burst 20": {QuotaLimitSpec: policy.QuotaLimitSpec{Limits: []string{"9/s", "5/h burst 20"}}},
		"blocked":                   {Blocked: true},
		"exempt":                    {Exempt: true},
	} {
		if got := InFull(&r); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A step tells what the file gives, under whatever name it has the rule, and what holds
// when its rule is taken back.
func TestStepsTellOfTheFile(t *testing.T) {
	spec := base()
	spec.Gates["api"].Quota.Rules[0].Rate, spec.Gates["api"].Quota.Rules[0].Burst = "5/s", 500
	d := newDesk(t, newFile(t, inTemp(t)), spec)
	f := func(gives, file string, c Change) {
		t.Helper()
		for _, c.ValidateOnly = range []bool{true, false} {
			res := d.must(c)
			if s := res.Steps[0]; len(res.Steps) != 1 || s.Gives != gives || s.FileGives != file {
				t.Errorf("%+v, want %q of the file's %q", res.Steps, gives, file)
			}
		}
		if file != "" && !strings.Contains(d.log.String(), `file_gives="`+file+`"`) {
			t.Errorf("no %q in\n%s", file, d.log)
		}
	}
	f("10/s burst 10", "5/s burst 500", set("api", "alice", "10/s"))
	f("1/s burst 1", "10/h burst 10", set("api", "*", "1/s"))
	f("1/s burst 1", "", set("api", "bob", "1/s"))
	f("5/s burst 500", "5/s burst 500", Change{Ops: []Op{{Gate: "api", Delete: user("alice", "")}}})
	f("", "", Change{Ops: []Op{{Gate: "api", Delete: user("bob", "")}}})
}
