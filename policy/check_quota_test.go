package policy

import (
	"testing"

	"github.com/weir-go/weir/quota"
)

// Every fault is reported, where it stands and with what to write.
func TestQuotaFaults(t *testing.T) {
	const at = "gates.api.quota"
	limits := func(l ...string) QuotaLimitSpec { return QuotaLimitSpec{Limits: l} }
	for name, test := range map[string]struct {
		spec QuotaSpec
		want []string
	}{
		"nothing": {QuotaSpec{}, []string{at + ": has neither a limit nor rules; write rate: 10/s"}},
		"only by": {QuotaSpec{By: []string{"user"}}, []string{at + ".by: says whom a limit is for"}},
		"all of it": {QuotaSpec{QuotaLimitSpec: QuotaLimitSpec{Rate: "0/s", Burst: -1, Limits: limits("10/day").Limits}, By: []string{"ip", "usr", "user", "user"}, OnStoreError: "maybe", MaxKeys: -1, Headers: "x", Unit: "bytes", Count: "x", Queue: QuotaQueueSpec{Len: -1, MaxWait: -5}}, []string{
			at + ".rate: there are limits too", at + ".burst: -1 is out of range", at + ".rate: 0 is not above 0", at + ".limits[0]: 10/day may mean two things; write 10/24h",
			at + ".by[0]: \"ip\" is no part of an identity; write address", at + ".by[1]: \"usr\" is no part of an identity; did you mean user?", at + ".by[3]: \"user\" is written twice",
			at + ".queue.len: -1 is out of range", at + ".queue.max_wait: -5ns is negative",
			at + ".on_store_error: \"maybe\" is no answer", at + ".max_keys: -1 is out of range", at + ".on_store_error: means nothing without a store",
			at + ".count: \"x\" is no count", at + ".headers: \"x\" is no choice of headers",
			at + ".unit: \"bytes\" is no unit",
		}},
		"by sources": {QuotaSpec{QuotaLimitSpec: rate("1/s"), By: []string{"header:X-User", "peer", "header:"}}, []string{
			at + ".by[0]: \"header:X-User\" is no part of an identity; write user, and identity: {user: header:X-User}",
			at + ".by[1]: \"peer\" is no part of an identity; write address", at + ".by[2]: \"header:\" is no part of an identity; write one of user",
		}},
		"unit":        {QuotaSpec{QuotaLimitSpec: rate("1/s"), Count: "requests", Unit: "content-bytes"}, []string{at + ".unit: each token is a request here; leave it out, or count: requests"}},
		"burst":       {QuotaSpec{QuotaLimitSpec: QuotaLimitSpec{Burst: 5}}, []string{at + ".burst: means nothing without a rate"}},
		"bursts":      {QuotaSpec{QuotaLimitSpec: QuotaLimitSpec{Rate: "1/s burst 3", Burst: 5}}, []string{at + ".burst: the rate says a burst too"}},
		"calendar":    {QuotaSpec{QuotaLimitSpec: QuotaLimitSpec{Rate: "5 a day", Burst: 5}}, []string{at + ".burst: means nothing for a calendar"}},
		"small burst": {QuotaSpec{QuotaLimitSpec: rate("1/s burst 0.5")}, []string{at + ".rate: a burst of 0.5 lets nothing through"}},
		"windows":     {QuotaSpec{QuotaLimitSpec: limits("1/s", "2/s", "3/s", "4/s", "5/s", "6/s", "7/s", "8/s", "9/s")}, []string{at + ".limits: 9 limits; write at most 8"}},
		"store":       {QuotaSpec{QuotaLimitSpec: rate("1/s"), Store: "shard", MaxKeys: 5}, []string{at + ".max_keys: means nothing with a store", at + ".store: there is no store \"shard\"; did you mean shared?"}},
		"queue":       {QuotaSpec{QuotaLimitSpec: rate("1/s"), Permissive: true, Queue: QuotaQueueSpec{Len: 1}}, []string{at + ".queue.len: nothing waits where nothing is refused"}},
		"max_wait":    {QuotaSpec{QuotaLimitSpec: rate("1/s"), Queue: QuotaQueueSpec{MaxWait: 1}}, []string{at + ".queue.max_wait: means nothing where nothing waits"}},
		"rules": {QuotaSpec{QuotaLimitSpec: rate("1/s"), By: []string{"user"}, Rules: []QuotaRuleSpec{
			{User: "a"}, {User: "b", Exempt: true, Blocked: true}, {User: "c", Exempt: true, QuotaLimitSpec: rate("1/s")},
			{Name: "n", User: "d\n", Blocked: true}, {Name: "n", Route: "/x", Priority: "hihg", Address: "10.0.0.1/8", Blocked: true},
			{User: "a", Blocked: true}, {User: "*", Exempt: true},
		}}, []string{
			at + ".rules[0]: gives no limit", at + ".rules[1]: is exempt and blocked", at + ".rules[2]: has a limit, but is exempt",
			at + ".rules[3].user: no user has this name", at + ".rules[4].route: \"/x\" is no route", at + ".rules[4].priority: \"hihg\" is no priority; did you mean high?",
			at + ".rules[4].address: ", at + ".rules[4].name: \"n\" is the name of rules[3] too",
			at + ".rules[5]: matches the same as rules[0]", at + ".rules[6]: matches the same as by:",
		}},
	} {
		_, err := Compile(quotaGate(test.spec), Options{Stores: map[string]quota.Store{"shared": nilStore{}}})
		t.Run(name, func(t *testing.T) { wantFaults(t, err, test.want) })
	}
	both := quotaGate(QuotaSpec{QuotaLimitSpec: rate("1/s")})
	g := both.Gates["api"]
	g.Limit = &LimitSpec{}
	both.Gates["api"] = g
	_, err := Compile(both, Options{})
	wantFaults(t, err, []string{at + ": the gate has a limit or sheds too"})
	named := quotaGate(QuotaSpec{QuotaLimitSpec: rate("1/s"), By: []string{"address"}})
	named.Identity.User = "header:X-User"
	_, err = Compile(named, Options{})
	wantFaults(t, err, []string{at + ": looks at addresses, but no part of the identity is one; write identity: {client: peer}"})
}

// nilStore can tell nothing.
type nilStore struct{ quota.Store }
