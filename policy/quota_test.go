package policy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/quota"
)

// quotaGate is a spec with one gate, api, with a quota, and one route through it.
func quotaGate(s QuotaSpec) Spec {
	return Spec{
		Gates:  map[string]GateSpec{"api": {Quota: &s}},
		Routes: []RouteSpec{{Match: []string{"/"}, Gates: []string{"api"}}},
	}
}

func rate(text string) QuotaLimitSpec { return QuotaLimitSpec{Rate: text} }

// admitted is how many of n pieces of work get in.
func admitted(g weir.TryAdmitter, w weir.Work, n int) (in int) {
	for range n {
		if p, err := g.TryAdmit(w); err == nil {
			p.Done(weir.OK)
			in++
		}
	}
	return in
}

// Each word of By gives buckets of its own, and none one for all.
func TestQuotaBy(t *testing.T) {
	works := []weir.Work{
		{User: "a", Client: "x", Tenant: "t", Op: "r", Priority: weir.High},
		{User: "b", Client: "x", Tenant: "t", Op: "r", Priority: weir.High},
		{User: "a", Client: "y", Tenant: "t", Op: "r", Priority: weir.High},
		{User: "a", Client: "x", Tenant: "u", Op: "r", Priority: weir.High},
		{User: "a", Client: "x", Tenant: "t", Op: "s", Priority: weir.High},
		{User: "a", Client: "x", Tenant: "t", Op: "r", Priority: weir.Normal},
	}
	for _, test := range []struct {
		by   []string
		want int // of ten of each
	}{
		{nil, 2}, {[]string{"user"}, 4}, {[]string{"client"}, 4}, {[]string{"tenant"}, 4},
		{[]string{"route"}, 4}, {[]string{"priority"}, 4}, {[]string{"user", "client"}, 6}, {quotaParts[:5], 12},
	} {
		p := compile(t, quotaGate(QuotaSpec{QuotaLimitSpec: rate("2/h"), By: test.by}), Options{Now: func() time.Duration { return 0 }})
		got := 0
		for _, w := range works {
			got += admitted(p.Gate("api"), w, 10)
		}
		if got != test.want {
			t.Errorf("by %v: %d got in, want %d", test.by, got, test.want)
		}
	}
}

// Rules give some more, or nothing, or everything; the address is what the identity
// says.
func TestQuotaRules(t *testing.T) {
	spec := quotaGate(QuotaSpec{
		QuotaLimitSpec: rate("2/h"), By: []string{"user"},
		Rules: []QuotaRuleSpec{
			{Rule: quota.Rule{User: "alice"}, QuotaLimitSpec: QuotaLimitSpec{Limits: []string{"5/s", "7/h"}}},
			{Rule: quota.Rule{User: "robot", Blocked: true}},
			{Rule: quota.Rule{User: "probe", Exempt: true}},
			{Rule: quota.Rule{User: "*", Address: "10.0.0.0/8"}, QuotaLimitSpec: rate("3/h")},
		},
	})
	spec.Identity.Client = "address"
	p := compile(t, spec, Options{Now: func() time.Duration { return 0 }})
	for _, test := range []struct {
		w    weir.Work
		want int
	}{
		{weir.Work{User: "bob"}, 2}, {weir.Work{User: "carol", Client: "2001:db8::/64"}, 2},
		{weir.Work{User: "alice"}, 5}, {weir.Work{User: "robot"}, 0}, {weir.Work{User: "probe"}, 9},
		{weir.Work{User: "dora", Client: "10.1.2.3"}, 3}, {weir.Work{User: "emil", Exempt: true}, 9},
	} {
		if got := admitted(p.Gate("api"), test.w, 9); got != test.want {
			t.Errorf("%+v: %d got in, want %d", test.w, got, test.want)
		}
	}
	s := p.Gate("api").Snapshot()
	if s.Kind != "quota" || s.Admitted != 12 || s.ExemptAdmitted != 18 || s.Rejected[weir.ReasonBlocked] != 9 || s.Rejected[weir.ReasonQuota] == 0 {
		t.Errorf("%+v", s)
	}
	_, err := p.Gate("api").TryAdmit(weir.Work{User: "bob"})
	if r := weir.AsRejection(err); r == nil || r.Gate != "api" || r.Rule != "user=*" || r.RetryAfter != 30*time.Minute {
		t.Errorf("%v", err)
	}
}

// A later gate that refuses gives back what the quota has charged, and what the quota
// refuses takes no slot.
func TestQuotaBeforeLimit(t *testing.T) {
	spec := quotaGate(QuotaSpec{QuotaLimitSpec: rate("3/h")})
	spec.Gates["slots"] = fixed(1)
	spec.Routes[0].Gates = []string{"api", "slots"}
	p := compile(t, spec, Options{Now: func() time.Duration { return 0 }})
	chain := p.Route("/").Gate().(weir.TryAdmitter)
	first, err := chain.TryAdmit(weir.Work{})
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if _, err := chain.TryAdmit(weir.Work{}); weir.AsRejection(err).Reason != weir.ReasonLimit {
			t.Fatalf("%v, want no slot", err)
		}
	}
	first.Done(weir.OK)
	if got := admitted(chain, weir.Work{}, 9); got != 2 {
		t.Errorf("%d more got in, want 2: refusals for want of a slot cost no token", got)
	}
	if n := p.Gate("slots").Snapshot().InFlight; n != 0 {
		t.Errorf("%d slots are held", n)
	}
}

// In observe mode everything comes through; what would have been refused is counted
// and charged nothing.
func TestQuotaObserved(t *testing.T) {
	spec := quotaGate(QuotaSpec{QuotaLimitSpec: rate("2/h")})
	g := spec.Gates["api"]
	g.Mode = Observe
	spec.Gates["api"] = g
	now := time.Duration(0)
	p := compile(t, spec, Options{Now: func() time.Duration { return now }})
	if got := admitted(p.Gate("api"), weir.Work{}, 9); got != 9 {
		t.Errorf("%d got in, want 9", got)
	}
	if n := p.Gate("api").Observed()[weir.ReasonQuota]; n != 7 {
		t.Errorf("%d observed, want 7", n)
	}
	now = 30 * time.Minute
	if admitted(p.Gate("api"), weir.Work{}, 1); p.Gate("api").Observed()[weir.ReasonQuota] != 7 {
		t.Error("what was only observed was charged")
	}
}

// Debt, permissive, settling.
func TestQuotaDebt(t *testing.T) {
	now := time.Duration(0)
	opts := Options{Now: func() time.Duration { return now }}
	p := compile(t, quotaGate(QuotaSpec{QuotaLimitSpec: QuotaLimitSpec{Rate: "5/s", Burst: 500}, Debt: true}), opts)
	g := p.Gate("api")
	if got := admitted(g, weir.Work{Cost: 560}, 2); got != 1 {
		t.Fatalf("%d got in, want 1", got)
	}
	_, err := g.TryAdmit(weir.Work{Cost: 560})
	if r := weir.AsRejection(err); r.RetryAfter != 12*time.Second {
		t.Errorf("wait %v, want 12s", r.RetryAfter)
	}
	now = 12 * time.Second
	permit, err := g.TryAdmit(weir.Work{Cost: 1})
	if err != nil {
		t.Fatal(err)
	}
	permit.SetCost("", 11) // ten more than the token that had come back
	permit.Done(weir.OK)
	_, err = g.TryAdmit(weir.Work{})
	if r := weir.AsRejection(err); r == nil || r.RetryAfter != 2200*time.Millisecond {
		t.Errorf("after settling: %v, want a wait of 2.2s", err)
	}
	p = compile(t, quotaGate(QuotaSpec{QuotaLimitSpec: rate("5/s"), Permissive: true}), opts)
	if got := admitted(p.Gate("api"), weir.Work{}, 99); got != 99 {
		t.Errorf("permissive: %d got in, want 99", got)
	}
}

// A reload keeps tokens and debts; another store, or bound on keys, is another gate.
func TestQuotaAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		debt := QuotaSpec{QuotaLimitSpec: QuotaLimitSpec{Rate: "5/s", Burst: 500}, By: []string{"user"}, Debt: true}
		p := compile(t, quotaGate(debt), Options{})
		g := p.Gate("api")
		admitted(g, weir.Work{User: "alice", Cost: 560}, 1)
		admitted(g, weir.Work{User: "bob", Cost: 400}, 1)

		debt.Rate, debt.Burst = "10/s", 50
		next := compile(t, quotaGate(debt), Options{Previous: p})
		p.Replace(next)
		if next.Gate("api") != g {
			t.Fatal("the gate was not adopted")
		}
		_, err := g.TryAdmit(weir.Work{User: "alice"})
		if r := weir.AsRejection(err); r == nil || r.RetryAfter != 6*time.Second {
			t.Errorf("alice owes 60 at 10/s: %v, want a wait of 6s", err)
		}
		if d, err := g.Quota().Peek(context.Background(), weir.Work{User: "bob"}); err != nil || d.Remaining != 50 {
			t.Errorf("bob had 100 left: %+v, %v, want 50, the new burst", d, err)
		}
		// A fault changes nothing.
		debt.Rate = "ten/s"
		if _, err := Compile(quotaGate(debt), Options{Previous: next}); err == nil {
			t.Error("a faulty rate was taken")
		}
		if r := g.Quota().Rules(); len(r) != 1 || r[0].Windows[0].Rate != 10 {
			t.Errorf("rules %+v", r)
		}
		// Another bound begins anew.
		debt.Rate, debt.MaxKeys = "10/s", 1000
		last := compile(t, quotaGate(debt), Options{Previous: next})
		next.Replace(last)
		if last.Gate("api") == g || admitted(last.Gate("api"), weir.Work{User: "alice"}, 1) != 1 {
			t.Error("a gate with another bound on keys was adopted")
		}
		if most := last.Gate("api").Quota().Store().(*quota.Memory).Stats().MaxKeys; most != 1000 {
			t.Errorf("a memory of %d buckets, want 1000", most)
		}
	})
}

// Work waits as long as the queue says, and no longer.
func TestQuotaMaxWait(t *testing.T) {
	p := compile(t, quotaGate(QuotaSpec{QuotaLimitSpec: QuotaLimitSpec{Rate: "1/s"}, Queue: QuotaQueueSpec{Len: 9, MaxWait: Duration(2500 * time.Millisecond)}}),
		Options{Now: func() time.Duration { return 0 }})
	waits := 0
	for range 9 {
		if _, _, err := p.Gate("api").Quota().Arrive(weir.Work{}, func(weir.Permit, error) {}); err == weir.ErrWaiting {
			waits++
		}
	}
	if waits != 2 {
		t.Errorf("%d wait, want the two whose tokens are there within 2.5 s", waits)
	}
}

// Gates may share a store, which outlives them; one that is exchanged for another is
// another gate.
func TestQuotaStores(t *testing.T) {
	newStore := func() quota.Store {
		m, err := quota.NewMemory(quota.MemoryConfig{})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	stores := map[string]quota.Store{"shared": newStore()}
	spec := quotaGate(QuotaSpec{QuotaLimitSpec: rate("2/h"), Store: "shared", OnStoreError: "closed"})
	p := compile(t, spec, Options{Stores: stores})
	q := compile(t, spec, Options{Stores: stores}) // another process, as it were
	if a, b := admitted(p.Gate("api"), weir.Work{}, 1), admitted(q.Gate("api"), weir.Work{}, 9); a != 1 || b != 1 {
		t.Errorf("%d and %d got in, want 1 and 1", a, b)
	}
	next := compile(t, spec, Options{Stores: stores, Previous: p})
	if next.Gate("api") != p.Gate("api") {
		t.Error("the gate was not adopted")
	}
	last := compile(t, spec, Options{Stores: map[string]quota.Store{"shared": newStore()}, Previous: next})
	if last.Gate("api") == p.Gate("api") || admitted(last.Gate("api"), weir.Work{}, 9) != 2 {
		t.Error("the gate is still with the store that was replaced")
	}
}

// Work waits for its tokens where there is room for it.
func TestQuotaWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := compile(t, quotaGate(QuotaSpec{QuotaLimitSpec: QuotaLimitSpec{Rate: "1/s"}, Queue: QuotaQueueSpec{Len: 1}}), Options{})
		start := time.Now()
		for range 2 {
			permit, err := p.Gate("api").Admit(context.Background(), weir.Work{})
			if err != nil {
				t.Fatal(err)
			}
			permit.Done(weir.OK)
		}
		if waited := time.Since(start); waited != time.Second {
			t.Errorf("waited %v, want 1s", waited)
		}
	})
}

// Rules of the caller's stand over those of the spec, also on a reload.
func TestQuotaRulesAtRunTime(t *testing.T) {
	limit := int64(3)
	opts := Options{QuotaRules: func(gate string, base []quota.Rule) []quota.Rule {
		if gate != "api" || len(base) != 1 {
			t.Errorf("asked for %q with %v", gate, base)
		}
		return append(base, quota.Rule{User: quota.Named("alice"), Windows: []quota.Window{quota.Per(float64(limit), time.Hour)}})
	}}
	spec := quotaGate(QuotaSpec{QuotaLimitSpec: rate("1/h"), By: []string{"user"}})
	p := compile(t, spec, opts)
	if got := admitted(p.Gate("api"), weir.Work{User: "alice"}, 9); got != 3 {
		t.Errorf("%d got in, want 3", got)
	}
	limit, opts.Previous = 7, p
	next := compile(t, spec, opts)
	if r := next.Gate("api").Quota().Rules(); next.Gate("api") != p.Gate("api") || r[1].Windows[0].Burst != 7 {
		t.Errorf("after the reload: %v", r)
	}
}

// Every part that there is a word for makes rules, and is one of the mechanism's.
func TestQuotaParts(t *testing.T) {
	for _, part := range quota.Parts() {
		spec := quotaGate(QuotaSpec{Rules: []QuotaRuleSpec{{QuotaLimitSpec: rate("1/h")}}})
		r := &spec.Gates["api"].Quota.Rules[0]
		*r.Part(part) = "*"
		got, _ := compile(t, spec, Options{}).Gate("api").Quota().Peek(t.Context(), weir.Work{})
		if got.Rule != part+"=*" {
			t.Errorf("a rule for each %s is %s", part, got.Rule)
		}
	}
	if p := new(QuotaRuleSpec).Part("name"); p != nil {
		t.Errorf("name is a part: %v", p)
	}
}

func TestQuotaHeaders(t *testing.T) {
	for word, want := range map[string]string{"": "ratelimit", "both": "both", "none": "none"} {
		spec := quotaGate(QuotaSpec{QuotaLimitSpec: rate("1/h"), Headers: word})
		spec.Gates["slots"] = fixed(1)
		p := compile(t, spec, Options{})
		if got := p.Gate("api").QuotaHeaders(); got != want || p.Gate("slots").QuotaHeaders() != "" {
			t.Errorf("%q: %q, want %q; of a limit %q", word, got, want, p.Gate("slots").QuotaHeaders())
		}
	}
	for word, want := range map[string]string{"": "requests", "content-bytes": "content-bytes"} {
		spec := quotaGate(QuotaSpec{QuotaLimitSpec: rate("1/h"), Unit: word})
		spec.Gates["slots"] = fixed(1)
		p := compile(t, spec, Options{})
		if got := p.Gate("api").QuotaUnit(); got != want || p.Gate("slots").QuotaUnit() != "" {
			t.Errorf("%q: %q, want %q; of a limit %q", word, got, want, p.Gate("slots").QuotaUnit())
		}
	}
}

// Addresses are the peers', IPv6 by /64, or those that a trusted peer names.
func TestQuotaByAddress(t *testing.T) {
	spec := quotaGate(QuotaSpec{QuotaLimitSpec: rate("2/h"), By: []string{"address"}, Rules: []QuotaRuleSpec{
		{Rule: quota.Rule{Name: "office", Address: "2001:db8:7::/48"}, QuotaLimitSpec: rate("5/h")},
	}})
	p := compile(t, spec, Options{Now: func() time.Duration { return 0 }})
	for _, test := range []struct {
		remote, forwarded string
		want              int
	}{
		{"192.0.2.1:1", "", 2},
		{"192.0.2.1:2", "198.51.100.9", 0}, // not trusted: it is itself, and has had its own
		{"192.0.2.2:1", "", 2},
		{"[2001:db8::1]:1", "", 2},
		{"[2001:db8::2]:1", "", 0}, // of the same /64
		{"[2001:db8:0:1::1]:1", "", 2},
		{"[2001:db8:7:1::1]:1", "", 5},
		{"[2001:db8:7:2::1]:1", "", 0}, // all of the office share
		{"127.0.0.1:1", "203.0.113.5", 2},
		{"127.0.0.1:1", "203.0.113.6", 2},
		{"127.0.0.1:1", "192.0.2.2", 0},
		{"127.0.0.1:1", "", 2}, // nobody is named
	} {
		r := from(test.remote)
		if test.forwarded != "" {
			r.Header.Set("X-Forwarded-For", test.forwarded)
		}
		rt, w := p.Match(r)
		if got := admitted(rt.Gate().(weir.TryAdmitter), w, 9); got != test.want {
			t.Errorf("%s, forwarded for %q: %d got in, want %d", test.remote, test.forwarded, got, test.want)
		}
	}
	// Work of Go has what name it likes in place of an address, and passes no limit by it.
	if got := admitted(p.Route("/").Gate().(weir.TryAdmitter), weir.Work{User: quota.Absent}, 9); got != 2 {
		t.Errorf("%d by a user whose name is Absent, want 2", got)
	}
}

// A quota of requests takes one token each, beside one of what they cost.
func TestQuotaCount(t *testing.T) {
	spec := quotaGate(QuotaSpec{QuotaLimitSpec: rate("9/h"), Count: "requests"})
	spec.Gates["cost"] = GateSpec{Quota: &QuotaSpec{QuotaLimitSpec: rate("100/h")}}
	spec.Routes[0].Gates = []string{"api", "cost"}
	p := compile(t, spec, Options{Now: func() time.Duration { return 0 }})
	chain := p.Route("/").Gate().(weir.TryAdmitter)
	permit, err := chain.TryAdmit(weir.Work{Cost: 60})
	if err != nil {
		t.Fatal(err)
	}
	permit.SetCost("", 30)
	permit.Done(weir.OK)
	for name, want := range map[string]float64{"api": 8, "cost": 70} {
		if d, err := p.Gate(name).Quota().Peek(context.Background(), weir.Work{}); err != nil || d.Remaining != want {
			t.Errorf("%s: %v left, %v; want %v", name, d.Remaining, err, want)
		}
	}
}

// A decision allocates nothing.
func TestQuotaAllocatesNothing(t *testing.T) {
	p := compile(t, quotaGate(QuotaSpec{QuotaLimitSpec: rate("1e9/s"), By: []string{"user", "address"}}), Options{})
	g, w := p.Gate("api"), weir.Work{User: "192.0.2.1"}
	if n := testing.AllocsPerRun(1000, func() {
		permit, err := g.TryAdmit(w)
		if err != nil {
			t.Error(err)
		}
		permit.Done(weir.OK)
	}); n != 0 {
		t.Errorf("%v allocations a decision", n)
	}
}

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
		"all of it": {QuotaSpec{QuotaLimitSpec: QuotaLimitSpec{Rate: "0/s", Burst: -1, Limits: limits("10/day").Limits}, By: []string{"ip", "usr", "user", "user"}, OnStoreError: "maybe", MaxKeys: -1, Headers: "x", Unit: "bytes", Count: "x", Queue: QuotaQueueSpec{Len: 1 << 25, MaxWait: -5}}, []string{
			at + ".burst: is -1, too small", at + ".count: \"x\" is not known", at + ".queue.len: is 33554432, too large", at + ".queue.max_wait: is -5ns, too small",
			at + ".on_store_error: \"maybe\" is not known", at + ".max_keys: is -1, too small", at + ".headers: \"x\" is not known", at + ".unit: \"bytes\" is not known",
			at + ".rate: there are limits too", at + ".rate: 0 is not above 0", at + ".limits[0]: 10/day may mean two things; write 10/24h",
			at + ".by[0]: \"ip\" is not a part of an identity; write address", at + ".by[1]: \"usr\" is not a part of an identity; did you mean user?", at + ".by[3]: \"user\" is written twice",
			at + ".on_store_error: means nothing without a store",
		}},
		"by sources": {QuotaSpec{QuotaLimitSpec: rate("1/s"), By: []string{"header:X-User", "peer", "header:"}}, []string{
			at + ".by[0]: \"header:X-User\" is not a part of an identity; write user, and identity: {user: header:X-User}",
			at + ".by[1]: \"peer\" is not a part of an identity; write address", at + ".by[2]: \"header:\" is not a part of an identity; write one of user",
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
		"a part of a network": {QuotaSpec{QuotaLimitSpec: rate("1/s"), Rules: []QuotaRuleSpec{{Rule: quota.Rule{Address: "2001:db8:0:1:2::/80", Blocked: true}}, {Rule: quota.Rule{Address: "2001:db8::/64", Blocked: true}}}},
			[]string{at + ".rules[0].address: 2001:db8:0:1:2::/80 is a part of a /64, and a client of IPv6 counts as its whole /64; write 2001:db8:0:1::/64"}},
		"rules": {QuotaSpec{QuotaLimitSpec: rate("1/s"), By: []string{"user"}, Rules: []QuotaRuleSpec{
			{Rule: quota.Rule{User: "a"}}, {Rule: quota.Rule{User: "b", Exempt: true, Blocked: true}}, {Rule: quota.Rule{User: "c", Exempt: true}, QuotaLimitSpec: rate("1/s")},
			{Rule: quota.Rule{Name: "n", User: "d\n", Blocked: true}}, {Rule: quota.Rule{Name: "n", Route: "/x", Priority: "hihg", Address: "10.0.0.1/8", Blocked: true}},
			{Rule: quota.Rule{User: "a", Blocked: true}}, {Rule: quota.Rule{User: "*", Exempt: true}},
		}}, []string{
			at + ".rules[0]: gives no limit", at + ".rules[1]: is exempt and blocked", at + ".rules[2]: has a limit, but is exempt",
			at + ".rules[3].user: no user has this name", at + ".rules[4].route: \"/x\" is not a route", at + ".rules[4].priority: \"hihg\" is not a priority; did you mean high?",
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
	wantFaults(t, err, []string{at + ": counts by addresses, but no part of the identity is one; write identity: {client: address}"})
}

// nilStore can tell nothing.
type nilStore struct{ quota.Store }

// slowStore answers after a second.
type slowStore struct{ quota.Store }

func (s slowStore) Decide(ctx context.Context, r *quota.Request) (quota.Decision, error) {
	time.Sleep(time.Second)
	return s.Store.Decide(ctx, r)
}

// Gates whose store is elsewhere close together, however many there are, while clients go on: one question may be under way in each, and one
// more tells the rest.
func TestDistantGatesCloseTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory, err := quota.NewMemory(quota.MemoryConfig{})
		if err != nil {
			t.Fatal(err)
		}
		gates := map[string]GateSpec{"near": {Quota: &QuotaSpec{QuotaLimitSpec: rate("2/h")}}}
		for i := range 8 {
			gates[fmt.Sprint("far", i)] = GateSpec{Quota: &QuotaSpec{QuotaLimitSpec: rate("1000/s"), Store: "shared", Debt: true}}
		}
		p := compile(t, Spec{Gates: gates}, Options{Stores: map[string]quota.Store{"shared": slowStore{memory}}})
		var clients sync.WaitGroup
		for name := range gates {
			clients.Go(func() {
				for {
					permit, _, err := p.Gate(name).AdmitAhead(t.Context(), weir.Work{Cost: 1})
					if permit.Done(weir.OK); errors.Is(err, weir.ErrRejected) && weir.AsRejection(err).Reason == weir.ReasonDraining {
						return
					}
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		time.Sleep(5 * time.Second)
		begin := time.Now()
		p.Close()
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("8 gates take %v to close, and one takes 2 s", took)
		}
		clients.Wait()
	})
}

// A gate is distant if it asks a server, alone or in a chain, unless it is off.
func TestDistant(t *testing.T) {
	memory, err := quota.NewMemory(quota.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	far := nilStore{memory}
	shared := func(mode Mode) GateSpec {
		return GateSpec{Mode: mode, Quota: &QuotaSpec{QuotaLimitSpec: rate("2/h"), Store: "shared"}}
	}
	p := compile(t, Spec{
		Gates: map[string]GateSpec{"far": shared(Enforce), "off": shared(Off), "limit": fixed(4),
			"near": {Quota: &QuotaSpec{QuotaLimitSpec: rate("2/h")}}},
		Routes: []RouteSpec{
			{Name: "far", Gates: []string{"far"}}, {Name: "behind", Gates: []string{"limit", "far"}},
			{Name: "off", Gates: []string{"off"}}, {Name: "near", Gates: []string{"near", "limit"}}, {Name: "none"},
		},
	}, Options{Stores: map[string]quota.Store{"shared": far}})
	for route, want := range map[string]bool{"far": true, "behind": true, "off": false, "near": false, "none": false} {
		d, ok := p.Route(route).Gate().(weir.Distant)
		if got := ok && d.IsDistant(); got != want {
			t.Errorf("%s: distant %v, want %v", route, got, want)
		}
	}
}

// A decision in a mode of its own follows the gate's: enforced, counted only, or not made.
func TestAdmitInAMode(t *testing.T) {
	type want struct {
		wait     time.Duration
		refused  bool
		left     float64 // afterwards
		observed uint64
	}
	for _, test := range []struct {
		mode Mode
		in   quota.Mode
		want want
	}{
		{Enforce, quota.Permissive, want{wait: 10 * time.Second, left: -20}},
		{Enforce, quota.Strict, want{wait: 5 * time.Second, refused: true, left: -10}},
		{Observe, quota.Permissive, want{left: -20, observed: 1}},
		{Observe, quota.Strict, want{left: -10, observed: 1}},
		{Off, quota.Permissive, want{left: -10}},
		{Off, quota.Strict, want{left: -10}},
	} {
		p := compile(t, quotaGate(QuotaSpec{QuotaLimitSpec: QuotaLimitSpec{Rate: "2/s", Burst: 10}, Debt: true}), Options{Now: func() time.Duration { return 0 }})
		g, w := p.Gate("api"), weir.Work{Cost: 20}
		if permit, a, err := g.AdmitIn(t.Context(), test.in, w); err != nil || !permit.Live() || a.Wait != map[bool]time.Duration{true: 5 * time.Second}[test.in == quota.Permissive] {
			t.Fatalf("%+v, %v", a, err)
		}
		g.level.Store(uint32(test.mode.level()))
		w.Cost = 10
		_, a, err := g.AdmitIn(t.Context(), test.in, w)
		left, _ := g.Quota().Peek(t.Context(), w)
		if got := (want{a.Wait, err != nil, left.Remaining, g.Observed()[weir.ReasonQuota]}); got != test.want {
			t.Errorf("%v, %v: %+v, want %+v", test.mode, test.in, got, test.want)
		}
	}
	for mode, want := range map[Mode]time.Duration{Enforce: 5 * time.Second, Observe: 0, Off: 0} {
		p := compile(t, quotaGate(QuotaSpec{QuotaLimitSpec: QuotaLimitSpec{Rate: "2/s", Burst: 10}, Debt: true}), Options{Now: func() time.Duration { return 0 }})
		g, w := p.Gate("api"), weir.Work{Cost: 20}
		g.level.Store(uint32(mode.level()))
		if permit, a, err := g.AdmitAhead(t.Context(), w); err != nil || permit.Live() != (mode != Off) || a.Wait != want || g.Owed(w) != want {
			t.Errorf("%v: %+v, %v, owed for %v; want %v", mode, a, err, g.Owed(w), want)
		}
	}
	closed := compile(t, quotaGate(QuotaSpec{QuotaLimitSpec: QuotaLimitSpec{Rate: "2/s", Burst: 10}}), Options{})
	g := closed.Gate("api")
	g.level.Store(uint32(Observe.level()))
	closed.Close()
	if _, _, err := g.AdmitIn(t.Context(), quota.Strict, weir.Work{}); err != nil || len(g.Observed()) != 0 {
		t.Errorf("%v; a gate that closes would have refused %v", err, g.Observed())
	}
	limit := compile(t, Spec{Gates: map[string]GateSpec{"slots": {Limit: &LimitSpec{}}}}, Options{})
	if got := limit.Gate("slots").Owed(weir.Work{}); got != 0 {
		t.Errorf("a gate without a quota is owed for %v", got)
	}
	if p, a, err := limit.Gate("slots").AdmitIn(t.Context(), quota.Strict, weir.Work{}); err != nil || p.Live() || !a.Free {
		t.Errorf("%+v, %v of a gate without a quota", a, err)
	}
}

// What several charges together refuse counts once for each that refuses, and what would be refused counts as observed. Hooks hear of both.
func TestChargeAllInAMode(t *testing.T) {
	type want struct {
		ok                bool
		refused, observed uint64
		left              float64 // of the last bucket
	}
	for _, test := range []struct {
		mode  Mode
		alone bool
		want  want
	}{
		{Enforce, false, want{ok: false, refused: 2, left: 1}},
		{Enforce, true, want{ok: true, observed: 2}},
		{Observe, false, want{ok: true, observed: 2}},
		{Off, false, want{ok: true, left: 1}},
	} {
		var heard, told []string
		o := Options{Now: func() time.Duration { return 0 }, Observed: func(_ weir.Work, r *weir.Rejection) { told = append(told, r.Bucket) }}
		o.Hooks.Rejected = func(_ weir.Work, r *weir.Rejection) { heard = append(heard, r.Bucket) }
		p := compile(t, quotaGate(QuotaSpec{QuotaLimitSpec: QuotaLimitSpec{Rate: "1/h", Burst: 1}, By: []string{"user"}}), o)
		g := p.Gate("api")
		for _, user := range []string{"ann", "bob"} {
			if admitted(g, weir.Work{User: user}, 1) != 1 {
				t.Fatal(user)
			}
		}
		g.level.Store(uint32(test.mode.level()))
		all := make([]quota.Charge, 3)
		for i, user := range []string{"ann", "bob", "cy"} {
			all[i] = quota.Charge{Work: weir.Work{User: user}, Tokens: 1, Alone: test.alone}
		}
		ok := g.ChargeAll(t.Context(), all)
		left, _ := g.Quota().Peek(t.Context(), weir.Work{User: "cy"})
		got := want{ok, g.Snapshot().Rejected[weir.ReasonQuota], g.Observed()[weir.ReasonQuota], left.Remaining}
		if got != test.want || len(heard) != int(got.refused) || len(told) != int(got.observed) {
			t.Errorf("%v, alone %v: %+v, hooks heard %v and %v; want %+v", test.mode, test.alone, got, heard, told, test.want)
		}
		if all[2].Answer.Free != (test.mode == Off) {
			t.Errorf("%v: %+v", test.mode, all[2].Answer)
		}
	}
	closed := compile(t, quotaGate(QuotaSpec{QuotaLimitSpec: QuotaLimitSpec{Rate: "1/h"}}), Options{})
	g := closed.Gate("api")
	g.level.Store(uint32(Observe.level()))
	closed.Close()
	if all := []quota.Charge{{Tokens: 1}}; !g.ChargeAll(t.Context(), all) || all[0].Refused == nil || len(g.Observed()) != 0 {
		t.Errorf("%+v; a gate that closes would have refused %v", all, g.Observed())
	}
	limit := compile(t, Spec{Gates: map[string]GateSpec{"slots": {Limit: &LimitSpec{}}}}, Options{})
	if all := []quota.Charge{{Tokens: 1}}; !limit.Gate("slots").ChargeAll(t.Context(), all) || !all[0].Answer.Free {
		t.Errorf("%+v of a gate without a quota", all)
	}
}

// Work that is no request of HTTP keeps its names, however long, and has an address of its own in the part that its gate says.
func TestOtherWork(t *testing.T) {
	long, odd := strings.Repeat("x", MaxIdentity+1), "a\x01b"
	of := func(r quota.Rule, limit string) QuotaRuleSpec {
		return QuotaRuleSpec{Rule: r, QuotaLimitSpec: rate(limit)}
	}
	spec := Spec{
		Identity: IdentitySpec{User: "header:X-User"},
		Gates: map[string]GateSpec{
			"names": {Quota: &QuotaSpec{Rules: []QuotaRuleSpec{of(quota.Rule{User: quota.Match(long)}, "2/h"), of(quota.Rule{User: quota.Match(odd)}, "3/h"), of(quota.Rule{User: quota.Named("*")}, "4/h")}}},
			"dial":  {Quota: &QuotaSpec{QuotaLimitSpec: rate("1/h"), By: []string{"address"}, Rules: []QuotaRuleSpec{of(quota.Rule{Address: "10.0.0.7/32"}, "5/h"), of(quota.Rule{Address: "2001:db8::/64"}, "6/h")}}},
		},
	}
	if _, err := Compile(spec, Options{}); len(faultsOf(t, err)) != 4 {
		t.Errorf("as requests of HTTP: %v", err)
	}
	spec.OtherWork = map[string]string{"names": "", "dial": "user"}
	p := compile(t, spec, Options{Now: func() time.Duration { return 0 }})
	for _, c := range []struct {
		gate, user string
		want       int
	}{{"names", long, 2}, {"names", odd, 3}, {"names", "*", 4}, {"names", "y", 10}, {"dial", "10.0.0.7", 5}, {"dial", "10.0.0.8", 1}, {"dial", PeerName("2001:db8::7"), 6}, {"dial", PeerName("2001:db8:1::7"), 1}} {
		if got := admitted(p.Gate(c.gate), weir.Work{User: c.user}, 10); got != c.want {
			t.Errorf("%s %.20q: %d of 10 got in, want %d", c.gate, c.user, got, c.want)
		}
	}
	for _, gate := range []string{"names", "dial"} {
		r := of(quota.Rule{User: quota.Match(long)}, "2/h")
		if faults := spec.CheckQuotaRule(gate, &r); len(faults) > 0 {
			t.Errorf("%s: %v", gate, faults)
		}
	}
	each := Spec{Gates: map[string]GateSpec{"each": {Quota: &QuotaSpec{QuotaLimitSpec: rate("2/h"), By: []string{"user", "client"}, Rules: []QuotaRuleSpec{of(quota.Rule{User: quota.Every}, "5/h")}}}}}
	for _, other := range []bool{false, true} {
		want := map[bool]map[string]int{false: {"": 2, "app": 2}, true: {"": 5, "app": 2}}[other]
		if other {
			each.OtherWork = map[string]string{"each": ""}
		}
		g := compile(t, each, Options{Now: func() time.Duration { return 0 }}).Gate("each")
		for client, want := range want {
			if got := admitted(g, weir.Work{User: "alice", Client: client}, 10); got != want {
				t.Errorf("no request of HTTP: %v, client %q: %d of 10 got in, want %d", other, client, got, want)
			}
		}
	}
	r := of(quota.Rule{Address: "10.0.0.0/8"}, "2/h")
	if faults := spec.CheckQuotaRule("names", &r); len(faults) != 1 {
		t.Errorf("an address where there is none: %v", faults)
	}
}
