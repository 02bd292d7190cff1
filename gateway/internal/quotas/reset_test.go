package quotas

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// manyRules is a configuration in which rules look at everything there is.
func manyRules() policy.Spec {
	spec := base()
	spec.Identity.User = "header:X-User"
	spec.Identity.Client = "address"
	rate := func(text string) policy.QuotaLimitSpec { return policy.QuotaLimitSpec{Rate: text} }
	spec.Gates["api"].Quota.Limits, spec.Gates["api"].Quota.Rate = []string{"10/s", "1000/h"}, ""
	spec.Gates["api"].Quota.Rules = []policy.QuotaRuleSpec{
		{Rule: quota.Rule{User: "root", Exempt: true}}, {Rule: quota.Rule{User: "eve", Blocked: true}}, {Rule: quota.Rule{Name: "team", User: "bob", Client: "*"}, QuotaLimitSpec: rate("5/h")},
		{Rule: quota.Rule{User: "web", Address: "10.0.0.0/8"}, QuotaLimitSpec: rate("5/h")}, {Rule: quota.Rule{User: "web", Address: "*"}, QuotaLimitSpec: rate("6/h")},
		{Rule: quota.Rule{User: "ops", Priority: "critical", Route: "*", Tenant: "t"}, QuotaLimitSpec: rate("7/h")},
	}
	delete(spec.Gates, "other")
	return spec
}

// A reset fills the bucket that a request of whoever is named is charged to, says what was
// there, and leaves a line in the log with who did it.
func TestReset(t *testing.T) {
	d := newDesk(t, nil, manyRules()) // rules are kept nowhere, which does not matter here
	f := func(burst float64, w weir.Work, debt int64, whose quota.Rule, bucket, rule string) {
		t.Helper()
		q := d.policy.Gate("api").Quota()
		p, err := q.TryAdmit(w)
		if err != nil {
			t.Fatal(err)
		}
		p.SetCost("", debt)
		p.Done(weir.OK)
		if _, err := q.TryAdmit(w); err == nil {
			t.Errorf("%s is let through with a debt", bucket)
		}
		before := len(d.log.String())
		res, err := d.Reset(t.Context(), Reset{Gate: "api", Whose: whose, By: "tester", Via: ViaToken})
		if err != nil || res.Gate != "api" || res.Whose != whose.Pattern().String() || res.Bucket != bucket || res.Rule != rule || res.Held < burst-float64(debt) || res.Held > burst-float64(debt)+10 {
			t.Errorf("%s: %v %+v", bucket, err, res)
		}
		if _, err := q.TryAdmit(w); err != nil {
			t.Errorf("%s is not full: %v", bucket, err)
		}
		line := d.log.String()[before:]
		for _, part := range []string{"quota bucket reset", "by=tester", "gate=api", "bucket=" + fmt.Sprintf("%q", bucket), "held=-"} {
			if !strings.Contains(line, part) {
				t.Errorf("no %s in\n%s", part, line)
			}
		}
	}
	f(1000, weir.Work{User: "alice", Client: "10.1.1.1"}, 900_000_000_000, quota.Rule{User: "alice"}, "api/user=alice", "user=*")
	f(5, weir.Work{User: "bob", Client: "10.1.1.1"}, 100, quota.Rule{User: "bob", Client: "10.1.1.1"}, "api/user=bob/client=10.1.1.1", "team")
	f(5, weir.Work{User: "bob", Client: "10.1.1.2"}, 100, quota.Rule{User: "bob", Address: "10.1.1.2"}, "api/user=bob/client=10.1.1.2", "team")
	f(5, weir.Work{User: "bob", Client: "2001:db8::/64"}, 100, quota.Rule{User: "bob", Client: "2001:db8::7"}, "api/user=bob/client=2001:db8::%2F64", "team")
	f(5, weir.Work{User: "web", Client: "10.1.1.1"}, 100, quota.Rule{User: "web", Address: "10.9.9.9"}, "api/user=web/address=10.0.0.0%2F8", "user=web,address=10.0.0.0/8")
	f(6, weir.Work{User: "web", Client: "2001:db8::/64"}, 100, quota.Rule{User: "web", Address: "2001:db8::7"}, "api/user=web/address=2001:db8::", "user=web,address=*")
	f(7, weir.Work{User: "ops", Tenant: "t", Op: "up", Priority: weir.Critical}, 100,
		quota.Rule{User: "ops", Tenant: "t", Route: "up", Priority: "critical"}, "api/user=ops/tenant=t/route=up/priority=critical", "user=ops,tenant=t,route=*,priority=critical")
	if n := d.Stats().Changes[By{ViaToken, Filled}]; n != 7 {
		t.Errorf("%d resets are counted, want 7", n)
	}
	res, err := d.Reset(t.Context(), Reset{Gate: "api", Whose: quota.Rule{User: "new"}})
	if err != nil || res.Held != 10 || res.Window != 1 || !slices.Equal(res.Limits, []string{"10/s, burst 10", "1000/h, burst 1000"}) {
		t.Errorf("%v %+v", err, res)
	}
}

// What makes no sense is said in a sentence, and fills nothing.
func TestResetRefused(t *testing.T) {
	d := newDesk(t, nil, manyRules())
	f := func(spec *policy.Spec, gate string, whose quota.Rule, missing bool, parts ...string) {
		t.Helper()
		if spec != nil {
			d.reload(*spec)
		}
		before := len(d.log.String())
		_, err := d.Reset(t.Context(), Reset{Gate: gate, Whose: whose, By: "tester", Via: ViaSocket})
		var faults Faults
		if !errors.As(err, &faults) || faults[0].Missing != missing {
			t.Errorf("%+v: %v", whose, err)
			return
		}
		for _, part := range parts {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%+v: %v, want %q", whose, err, part)
			}
		}
		if line := d.log.String()[before:]; !strings.Contains(line, "quota reset refused") || !strings.Contains(line, "result=refused") || !strings.Contains(line, "by=tester") {
			t.Errorf("the log has\n%s", line)
		}
	}
	alice := quota.Rule{User: "alice"}
	f(nil, "apo", alice, true, `there is no gate "apo"`, "gates with a quota are api")
	f(nil, "slots", alice, true, `gate "slots" has no quota`)
	f(nil, "api", quota.Rule{}, false, "nobody is named", "user, client")
	f(nil, "api", quota.Rule{User: "*"}, false, "\"*\" is not a name")
	f(nil, "api", quota.Rule{User: "root"}, false, "root exempts", "no bucket", "weir explain")
	f(nil, "api", quota.Rule{User: "eve"}, false, "eve blocks")
	f(nil, "api", quota.Rule{User: "bob"}, false, "client: is missing, and the rule team counts by it")
	f(nil, "api", quota.Rule{Client: "10.0.0.1"}, false, "user: is missing")
	f(nil, "api", quota.Rule{User: "bob", Client: "10.0.0.1", Address: "10.0.0.2"}, false, "the same as client")
	f(nil, "api", quota.Rule{User: "bob", Priority: "urgent"}, false, `"urgent" is not a priority`)
	named := base()
	named.Identity.User = "header:X-User"
	named.Gates["api"].Quota.Rate, named.Gates["api"].Quota.By = "", nil
	f(&named, "api", quota.Rule{User: "bob"}, false, "no rule matches")
	f(nil, "api", quota.Rule{Address: "10.0.0.1"}, false, "no part of an identity an address")
	if n := d.Stats().Changes[By{ViaSocket, Refused}]; n != 12 {
		t.Errorf("%d are counted, want 12", n)
	}
}

// What is unknown after a store has failed is said, and no more: nothing was filled if it did not tell what there is.
func TestResetStoreFails(t *testing.T) {
	down := errors.New("the store is down")
	for _, c := range []struct {
		store        dead
		result, says string
	}{
		{dead{decide: down, refund: down}, Failed, "quota reset failed; nothing is changed"},
		{dead{refund: down}, Unsure, "quota reset failed; the bucket may have been filled all the same"},
	} {
		spec := base()
		spec.Gates["api"].Quota.Store = "shared"
		d := newDesk(t, nil, base())
		p, err := policy.Compile(spec, policy.Options{Stores: map[string]quota.Store{"shared": c.store}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		d.SetPolicy(d.Plan(spec, nil, nil), p)
		_, err = d.Reset(t.Context(), Reset{Gate: "api", Whose: quota.Rule{User: "alice"}, By: "tester", Via: ViaSocket})
		if !errors.Is(err, down) || !strings.Contains(err.Error(), "api/user=alice") {
			t.Errorf("%s: %v", c.result, err)
		}
		if log := d.log.String(); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, c.says) || d.Stats().Changes[By{ViaSocket, c.result}] != 1 {
			t.Errorf("%s: %s", c.result, log)
		}
	}
}

// dead is a store that fails, at both or at refunds alone.
type dead struct{ decide, refund error }

func (s dead) Decide(context.Context, *quota.Request) (quota.Decision, error) {
	return quota.Decision{OK: true, Remaining: 1}, s.decide
}

func (s dead) Refund(context.Context, string, []quota.Window, float64) error { return s.refund }
