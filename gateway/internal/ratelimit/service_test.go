package ratelimit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-go/weir/gateway/internal/ratelimit"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

const limits = `
domain: rl
descriptors:
  - key: category
    value: account
    rate_limit: {replaces: [{name: small}], unit: minute, requests_per_unit: 4}
  - key: cluster
    value: proxy
    descriptors:
      - key: to
        value: mock
        rate_limit: {name: small, unit: minute, requests_per_unit: 1}
      - key: to
        rate_limit: {unit: hour, requests_per_unit: 2}
  - key: db
    rate_limit: {unit: second, requests_per_unit: 20}
  - key: db
    value: users
    rate_limit: {unit: DAY, requests_per_unit: 50}
  - {key: db, value: free} # of the limits of each db
  - {key: db, value: never, rate_limit: {unit: week, requests_per_unit: 0, name: off}}
  - {key: db, value: big, rate_limit: {unlimited: true}}
  - {key: db, value: 404, rate_limit: {unit: month, requests_per_unit: 4294967295}}
  - {key: path, value: /files/*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: path, value: /f*, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: path, value: "/files/x*", rate_limit: {unit: year, requests_per_unit: 9}} # /files/* takes them
  - {key: shady, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: tier, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}, metadata: {cluster: paid, n: 1}}
`

// A descriptor finds its limit as in envoyproxy/ratelimit: the depth must match, a value goes before
// wildcards, and these before the key alone; there is no way back from what has matched.
func TestMatching(t *testing.T) {
	b := newBench(t, map[string]string{"limits.yaml": limits}, policy.Spec{}, nil)
	for _, c := range []struct{ descriptor, want string }{
		{"db=x", "OK 20/SECOND left 19 in 1s"},
		{"db=y", "OK 20/SECOND left 19 in 1s"},
		{"db=users", "OK 50/DAY left 49 in 28m48s"},
		{"db=free", "OK"},
		{"db=never", "OVER_LIMIT off0/WEEK"},
		{"db=big", "OK left 4294967295"},
		{"db=404", "OK 4294967295/MONTH left 4294967294 in 1s"},
		{"db=x,more=1", "OK"},
		{"more=1", "OK"},
		{"cluster=proxy", "OK"},
		{"cluster=proxy,to=mock", "OK small1/MINUTE in 1m0s"},
		{"cluster=proxy,to=other", "OK 2/HOUR left 1 in 30m0s"},
		{"cluster=other,to=mock", "OK"},
		{"path=/files/a", "OK 3/MINUTE left 2 in 20s"},
		{"path=/files/x1", "OK 3/MINUTE left 1 in 40s"}, // the same bucket
		{"path=/f1", "OK 2/MINUTE left 1 in 30s"},
		{"path=/f2", "OK 2/MINUTE left 1 in 30s"}, // one of its own
	} {
		got := told(b.ask(t, about("rl", c.descriptor)))
		if _, got, _ = strings.Cut(got, "; "); got != c.want {
			t.Errorf("%s: %s, want %s", c.descriptor, got, c.want)
		}
	}
	if got := told(b.ask(t, about("nobody", "db=users"))); got != "OK; OK" {
		t.Errorf("an unknown domain: %s", got)
	}
}

// Random descriptors find the limits that they would find in envoyproxy/ratelimit, in random files.
func TestMatchingAsThere(t *testing.T) {
	for seed := range uint64(500) {
		r, limits := rand.New(rand.NewPCG(seed, 7)), 0
		var file strings.Builder
		file.WriteString("domain: rl\ndescriptors:\n  - {key: c, rate_limit: {unit: day, requests_per_unit: 1}}\n")
		siblings := grow(r, 3, &limits)
		for _, n := range siblings {
			n.write(&file, "  ")
		}
		b := newBench(t, map[string]string{"limits.yaml": file.String()}, policy.Spec{}, nil)
		for range 40 {
			var entries [][2]string
			var words []string
			for range 1 + r.IntN(3) {
				e := [2]string{string("ab"[r.IntN(2)]), []string{"x", "xy", "xyz", "xyzz", "q", "z", "xa", ""}[r.IntN(8)]}
				entries, words = append(entries, e), append(words, e[0]+"="+e[1])
			}
			res, err := b.ask(t, about("rl", strings.Join(words, ",")))
			if err != nil {
				t.Fatal(err)
			}
			got := 0
			if s := res.Statuses[0]; s.CurrentLimit != nil {
				got = int(s.CurrentLimit.RequestsPerUnit)
			} else if s.LimitRemaining == math.MaxUint32 {
				got = -1
			}
			if want := limitOf(siblings, entries); got != want {
				t.Fatalf("seed %d, %v: limit %d, want %d\n%s", seed, words, got, want, file.String())
			}
		}
	}
}

// What the answer says of refusals, of limits that others replace, and of those that only look.
func TestAnswers(t *testing.T) {
	b := newBench(t, map[string]string{"limits.yaml": limits}, policy.Spec{}, nil)
	b.found.Headers = true
	for i, step := range []struct {
		after       time.Duration
		descriptors []string
		want        string
	}{
		{0, []string{"cluster=proxy,to=mock", "db=x"}, "OK; OK small1/MINUTE in 1m0s; OK 20/SECOND left 19 in 1s"},
		{15 * time.Second, []string{"cluster=proxy,to=mock", "db=users"}, "OVER_LIMIT; OVER_LIMIT small1/MINUTE in 45s; OK 50/DAY left 50"},
		{0, []string{"db=users", "category=account", "cluster=proxy,to=mock"}, "OK; OK 50/DAY left 49 in 28m48s; OK 4/MINUTE left 3 in 15s; OK"},
		{45 * time.Second, []string{"cluster=proxy,to=mock"}, "OK; OK small1/MINUTE in 1m0s"},
		{0, []string{"shady=1"}, "OK; OK 1/MINUTE in 1m0s"},
		{0, []string{"shady=1", "db=users"}, "OK; OK 1/MINUTE in 1m0s; OK 50/DAY left 48 in 56m51s"},
		{0, []string{"tier=1"}, "OK; OK 1/MINUTE in 1m0s"},
		{0, []string{"tier=1"}, "OK; OK 1/MINUTE in 1m0s"},
		{0, []string{"nothing=1"}, "OK; OK"},
	} {
		b.now += step.after
		if got := told(b.ask(t, about("rl", step.descriptors...))); got != step.want {
			t.Errorf("step %d, %v: %s, want %s", i, step.descriptors, got, step.want)
		}
	}
	res, err := b.ask(t, about("rl", "db=users", "db=never"))
	if err != nil || len(res.ResponseHeadersToAdd) != 3 || res.ResponseHeadersToAdd[0].Key != "RateLimit-Limit" || res.ResponseHeadersToAdd[0].Value != "0" {
		t.Errorf("%v %v", res, err)
	}
	res, err = b.ask(t, about("rl", "db=big", "db=y", "db=users"))
	if err != nil || len(res.ResponseHeadersToAdd) != 3 || res.ResponseHeadersToAdd[0].Value != "20" || res.ResponseHeadersToAdd[1].Value != "19" || res.ResponseHeadersToAdd[2].Value != "1" {
		t.Errorf("%v %v", res, err)
	}
	if res, err := b.ask(t, about("rl", "nothing=1")); err != nil || len(res.ResponseHeadersToAdd) > 0 {
		t.Errorf("%v %v", res, err)
	}
}

// Hits of a descriptor go before those of the request. 0 asks, and negative ones give back.
func TestHits(t *testing.T) {
	b := newBench(t, map[string]string{"limits.yaml": limits}, policy.Spec{}, nil)
	ask := func(request uint32, set func(*rls.RateLimitRequest)) string {
		r := about("rl", "db=users")
		r.HitsAddend = request
		if set != nil {
			set(r)
		}
		s := strings.Split(told(b.ask(t, r)), "; ")
		return strings.Join(strings.Fields(s[1])[:min(4, len(strings.Fields(s[1])))], " ")
	}
	own := func(n uint64, back bool) func(*rls.RateLimitRequest) {
		return func(r *rls.RateLimitRequest) { hits(r, n, back) }
	}
	for i, step := range []struct {
		request uint32
		set     func(*rls.RateLimitRequest)
		want    string
	}{
		{0, nil, "OK 50/DAY left 49"},
		{9, nil, "OK 50/DAY left 40"},
		{9, own(20, false), "OK 50/DAY left 20"},
		{9, own(0, false), "OK 50/DAY left 20"},
		{math.MaxUint32, nil, "OVER_LIMIT 50/DAY left 20"},
		{0, own(math.MaxUint64, false), "OVER_LIMIT 50/DAY left 20"},
		{0, own(20, false), "OK 50/DAY in 24h0m0s"},
		{0, own(0, false), "OK 50/DAY in 24h0m0s"},
		{0, own(1, false), "OVER_LIMIT 50/DAY in 28m48s"},
		{0, own(5, true), "OK 50/DAY left 5"},
		{0, own(math.MaxUint64, true), "OK 50/DAY left 50"},
	} {
		if got := ask(step.request, step.set); got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
}

// In a domain with debt, hits that are known only at the end are charged whatever there is.
func TestDebt(t *testing.T) {
	b := newBench(t, map[string]string{"limits.yaml": limits}, policy.Spec{}, nil)
	b.found.Debt = true
	for i, step := range []struct {
		hits uint64
		want string
	}{
		{0, "OK; OK 50/DAY left 50"}, {40, "OK; OK 50/DAY left 10 in 19h12m0s"}, {60, "OVER_LIMIT; OVER_LIMIT 50/DAY in 24h0m0s"},
		{50, "OVER_LIMIT; OVER_LIMIT 50/DAY in 48h0m0s"}, {0, "OVER_LIMIT; OVER_LIMIT 50/DAY in 48h0m0s"},
	} {
		if got := told(b.ask(t, hits(about("rl", "db=users"), step.hits, false))); got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
	b.now += 48*time.Hour + time.Second
	if got := told(b.ask(t, hits(about("rl", "db=users"), 0, false))); !strings.HasPrefix(got, "OK") {
		t.Errorf("after the debt is paid back: %s", got)
	}
}

// A limit that the request brings along counts in place of any other, for a known domain.
func TestOverride(t *testing.T) {
	b := newBench(t, map[string]string{"limits.yaml": limits}, policy.Spec{}, nil)
	with := func(domain, descriptor string, n uint32, unit typev3.RateLimitUnit, multiplier uint32) string {
		r := about(domain, descriptor)
		r.Descriptors[0].Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: n, Unit: unit}
		if multiplier > 0 {
			r.Descriptors[0].Limit.UnitMultiplier = wrapperspb.UInt32(multiplier)
		}
		return told(b.ask(t, r))
	}
	for i, step := range []struct{ got, want string }{
		{with("rl", "any=1", 2, typev3.RateLimitUnit_HOUR, 0), "OK; OK 2/HOUR left 1 in 30m0s"},
		{with("rl", "any=1", 2, typev3.RateLimitUnit_HOUR, 0), "OK; OK 2/HOUR in 1h0m0s"},
		{with("rl", "any=1", 2, typev3.RateLimitUnit_HOUR, 0), "OVER_LIMIT; OVER_LIMIT 2/HOUR in 30m0s"},
		{with("rl", "any=2", 0, typev3.RateLimitUnit_HOUR, 0), "OVER_LIMIT; OVER_LIMIT"},
		{with("rl", "db=big", math.MaxUint32, typev3.RateLimitUnit_YEAR, 0), "OK; OK 4294967295/YEAR left 4294967294 in 1s"},
		{with("rl", "any=3", 60, typev3.RateLimitUnit_MINUTE, 60), "OK; OK 60/HOUR left 59 in 1m0s"},
		{with("rl", "any=4", 10, typev3.RateLimitUnit_SECOND, 3600), "OK; OK 10/HOUR left 9 in 6m0s"},
		{with("rl", "any=5", 1_000_000, typev3.RateLimitUnit_YEAR, 400), "OK; OK 7/DAY left 999999 in 3h30m15s"},
		{with("rl", "any=6", 20, typev3.RateLimitUnit_MINUTE, 40_000), "OK; OK 5/WEEK left 19 in 33h20m0s"},
		{with("nobody", "any=1", 0, typev3.RateLimitUnit_HOUR, 0), "OK; OK"},
		// Each limit of one descriptor counts apart.
		{told(b.ask(t, about("rl", "db=users"))), "OK; OK 50/DAY left 49 in 28m48s"},
		{with("rl", "db=users", 1, typev3.RateLimitUnit_DAY, 0), "OK; OK 1/DAY in 24h0m0s"},
		{with("rl", "db=users", 2, typev3.RateLimitUnit_SECOND, 0), "OK; OK 2/SECOND left 1 in 1s"},
		{with("rl", "db=users", 2, typev3.RateLimitUnit_SECOND, 0), "OK; OK 2/SECOND in 1s"},
		{with("rl", "db=users", 2, typev3.RateLimitUnit_SECOND, 0), "OVER_LIMIT; OVER_LIMIT 2/SECOND in 1s"}, // in 0.5 s, of which Envoy tells the whole seconds
		{with("rl", "db=users", 1, typev3.RateLimitUnit_DAY, 0), "OVER_LIMIT; OVER_LIMIT 1/DAY in 24h0m0s"},
		{told(b.ask(t, about("rl", "db=users"))), "OK; OK 50/DAY left 48 in 57m36s"},
	} {
		if step.got != step.want {
			t.Errorf("step %d: %s, want %s", i, step.got, step.want)
		}
	}
	if got := with("rl", "any=1", 1, typev3.RateLimitUnit_UNKNOWN, 0); !strings.Contains(got, "InvalidArgument") {
		t.Errorf("a limit without a unit: %s", got)
	}
	if got := with("rl", "any=1", 1, typev3.RateLimitUnit_YEAR, 32); !strings.Contains(got, "InvalidArgument") || !strings.Contains(got, "1 in 32 units") {
		t.Errorf("a limit of one in 32 years: %s", got)
	}
}

// A rule set at run time counts, however it is spelled, and also over a limit that is unlimited. What
// else the file says of the limit stays.
func TestRulesAtRunTime(t *testing.T) {
	b := newBench(t, map[string]string{"limits.yaml": `
domain: run
descriptors:
  - {key: db, value: big, rate_limit: {unlimited: true}}
  - {key: list, value: "a,b", shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 9, name: pair}}
`}, policy.Spec{}, nil)
	ask := func(descriptors ...string) string {
		r := about("run", descriptors...)
		for _, d := range r.Descriptors {
			d.Entries[0].Value = strings.ReplaceAll(d.Entries[0].Value, ";", ",")
		}
		return told(b.ask(t, r))
	}
	if got := ask("db=big", "list=a;b"); got != "OK; OK left 4294967295; OK pair9/HOUR left 8 in 6m40s" {
		t.Error(got)
	}
	q := b.policy.Gate("run").Quota()
	base := q.Rules()
	for _, step := range []struct {
		rule quota.Rule
		want string
	}{
		{quota.Rule{Descriptor: "db=big", Blocked: true}, "OVER_LIMIT; OVER_LIMIT"},
		{quota.Rule{Descriptor: "db=big", Windows: []quota.Window{quota.Per(2, time.Hour)}}, "OK; OK 2/HOUR left 1 in 30m0s"},
		{quota.Rule{Descriptor: "list=a%2cb", Blocked: true}, "OK; OK"},
		{quota.Rule{Descriptor: "list=a%2cb", Windows: []quota.Window{quota.Per(2, time.Hour)}}, "OK; OK pair2/HOUR left 1 in 30m0s"},
	} {
		if err := q.SetRules(quota.Override(base, []quota.Rule{step.rule})); err != nil {
			t.Fatal(err)
		}
		d, _, _ := strings.Cut(string(step.rule.Descriptor), "%")
		got := ask(d + strings.Repeat(";b", strings.Count(string(step.rule.Descriptor), "%")))
		if got != step.want {
			t.Errorf("%+v: %s, want %s", step.rule, got, step.want)
		}
	}
}

// Gates of weir's own file are domains too, and rules set at run time count.
func TestDomainsOfOurFile(t *testing.T) {
	rules := []policy.QuotaRuleSpec{{Rule: quota.Rule{Descriptor: "plan=*"}, QuotaLimitSpec: policy.QuotaLimitSpec{Limits: []string{"10/s burst 50", "100 a day"}}}}
	b := newBench(t, map[string]string{"limits.yaml": limits}, policy.Spec{Gates: map[string]policy.GateSpec{"plans": {Quota: &policy.QuotaSpec{Rules: rules}}}}, nil)
	if got := told(b.ask(t, about("plans", "plan=free", "other=1"))); got != "OK; OK 10/SECOND left 49 in 1s; OK" {
		t.Error(got)
	}
	q := b.policy.Gate("rl").Quota()
	if err := q.SetRules(quota.Override(q.Rules(), []quota.Rule{{Descriptor: "db=x", Windows: []quota.Window{quota.Per(1, time.Minute)}}})); err != nil {
		t.Fatal(err)
	}
	if got := told(b.ask(t, about("rl", "db=x"))); got != "OK; OK 1/MINUTE in 1m0s" {
		t.Error(got)
	}
}

// A gate that observes refuses nothing, and one that is off does not look.
func TestModes(t *testing.T) {
	for mode, want := range map[policy.Mode]string{policy.Observe: "OK; OK off0/WEEK", policy.Off: "OK; OK"} {
		l, faults := load(map[string]string{"limits.yaml": limits})
		p, err := policy.Compile(policy.Spec{Gates: l.Gates(nil, "", "", mode)}, policy.Options{})
		if err != nil || faults != "" {
			t.Fatal(err, faults)
		}
		b := &bench{Service: ratelimit.New(func(string) ratelimit.Found { return ratelimit.Found{Gate: p.Gate("rl"), Domain: l["rl"]} })}
		b.Register(b)
		if got := told(b.ask(t, about("rl", "db=never"))); got != want {
			t.Errorf("%s: %s", mode, got)
		}
		p.Close()
		if got := told(b.ask(t, about("rl", "db=users"))); mode == policy.Observe && !strings.Contains(got, "Unavailable") {
			t.Errorf("a gate that is closed: %s", got)
		}
	}
}

// Envoy hears in its metadata what was asked, and which limits are used up.
func TestMetadata(t *testing.T) {
	b := newBench(t, map[string]string{"limits.yaml": limits}, policy.Spec{}, nil)
	b.found.Metadata = true
	first, err := b.ask(t, hits(about("rl", "tier=1", "db=users"), 1, false))
	if err != nil {
		t.Fatal(err)
	}
	m := first.DynamicMetadata.AsMap()
	if m["domain"] != "rl" || m["quotaModeEnabled"] != true || m["quotaModeViolations"] != nil || m["cluster"] != "paid" || m["n"] != 1. {
		t.Errorf("%v", m)
	}
	if fmt.Sprint(m["descriptors"]) != "[map[entries:[tier=1] hitsAddend:1] map[entries:[db=users]]]" {
		t.Errorf("%v", m["descriptors"])
	}
	second, err := b.ask(t, about("rl", "db=users", "tier=1"))
	if err != nil {
		t.Fatal(err)
	}
	if m := second.DynamicMetadata.AsMap(); fmt.Sprint(m["quotaModeViolations"]) != "[1]" || m["cluster"] != nil {
		t.Errorf("%v", m)
	}
}

// Metadata does not repeat what is large.
func TestMetadataIsBounded(t *testing.T) {
	b := newBench(t, map[string]string{"limits.yaml": limits}, policy.Spec{}, nil)
	b.found.Metadata = true
	long := "x=" + strings.Repeat("x", 16<<10)
	if r, err := b.ask(t, about("rl", "tier=1", long)); err != nil {
		t.Error(err)
	} else if m := r.DynamicMetadata.AsMap(); m["descriptors"] != nil || m["cluster"] != "paid" || m["domain"] != "rl" {
		t.Errorf("%.200v", m)
	}
	if r, err := b.ask(t, about(long, "db=users")); err != nil || r.DynamicMetadata != nil {
		t.Errorf("%d bytes, %v", len(r.GetDynamicMetadata().String()), err)
	}
}

// A header of any bytes is no way past the metadata.
func TestMetadataOfAnyBytes(t *testing.T) {
	b := newBench(t, map[string]string{"limits.yaml": limits}, policy.Spec{}, nil)
	b.found.Metadata = true
	raw, err := proto.Marshal(about("rl", "tier=1", "any=<>"))
	if err != nil {
		t.Fatal(err)
	}
	raw = bytes.ReplaceAll(raw, []byte("<>"), []byte("\x80\xff"))
	for want := range 2 {
		res, err := b.send(t, raw)
		if err != nil {
			t.Fatal(err)
		}
		m := res.DynamicMetadata.AsMap()
		if violations, _ := m["quotaModeViolations"].([]any); len(violations) != want || fmt.Sprint(m["descriptors"]) != "[map[entries:[tier=1]] map[entries:[any=\uFFFD]]]" {
			t.Errorf("%v", m)
		}
	}
}

// What makes no sense is refused, and what is large is bounded.
func TestBadRequests(t *testing.T) {
	b := newBench(t, map[string]string{"limits.yaml": limits}, policy.Spec{}, nil)
	many := about("rl", strings.Split(strings.Repeat("db=users ", 10_000)+"db=users", " ")...)
	deep := about("rl", strings.Repeat("db=users,", 10_000)+"db=users")
	for name, r := range map[string]*rls.RateLimitRequest{
		"no domain": about("", "db=users"), "no descriptor": {Domain: "rl"}, "an empty descriptor": {Domain: "rl", Descriptors: []*common.RateLimitDescriptor{{}}},
		"an empty key": about("rl", "db=users", "=x"), "many descriptors": many, "many entries": deep,
		"a descriptor too many": about("rl", slices.Repeat([]string{"none=1"}, 101)...), "an entry too many": about("rl", strings.Repeat("none=1,", 100)+"none=1"),
	} {
		if _, err := b.ask(t, r); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, r := range map[string]*rls.RateLimitRequest{
		"descriptors": about("rl", slices.Repeat([]string{"none=1"}, 100)...), "entries": about("rl", strings.Repeat("none=1,", 99)+"none=1"),
	} {
		if res, err := b.ask(t, r); err != nil || len(res.Statuses) != len(r.Descriptors) {
			t.Errorf("as many %s as there may be: %v, %v", name, res, err)
		}
	}
	if left := told(b.ask(t, about("rl", "db=users"))); !strings.HasPrefix(left, "OK; OK 50/DAY left 49") {
		t.Errorf("a request that was refused has taken tokens: %s", left)
	}
	if _, err := b.send(t, []byte("\xff\xff")); err == nil {
		t.Error("bytes that are no message are answered")
	}
	long := strings.Repeat("x", 1<<20)
	if got := told(b.ask(t, about("rl", "path=/files/"+long, "db="+long, long+"=1"))); got != "OK; OK 3/MINUTE left 2 in 20s; OK 20/SECOND left 19 in 1s; OK" {
		t.Errorf("values of a megabyte: %s", got)
	}
}

// Metrics have a series for each limit, and one for each value where the file says so, but no more
// than a bound.
func TestCounts(t *testing.T) {
	b := newBench(t, map[string]string{"limits.yaml": `
domain: m
descriptors:
  - {key: a, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: b, value_to_metric: true, descriptors: [{key: c, rate_limit: {unit: day, requests_per_unit: 1}}]}
  - {key: d, value: "x*", share_threshold: true, descriptors: [{key: e, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}]}
  - {key: free, rate_limit: {unlimited: true}}
`}, policy.Spec{}, nil)
	for _, d := range []string{"a=1", "a=1", "a=2", "b=1,c=1", "d=x1,e=1", "d=x2,e=1", "none=1"} {
		if _, err := b.ask(t, about("m", d)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.ask(t, about("m", "d=x1,e=1", "a=1", "free=1")); err != nil {
		t.Fatal(err)
	}
	got := map[string][ratelimit.NumResults]uint64{}
	for _, c := range b.Counts() {
		got[c.Domain+" "+c.Rule] = c.Results
	}
	want := map[string][ratelimit.NumResults]uint64{"m a=*": {2, 2}, "m b=1,c=*": {1}, "m d=x**,e=1": {ratelimit.OK: 2, ratelimit.Spared: 1}, "m free=*": {1}, "m ": {1}}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for i := range 3 * ratelimit.MostCounted {
		if _, err := b.ask(t, about("m", fmt.Sprintf("b=%d,c=1", i))); err != nil {
			t.Fatal(err)
		}
		if _, err := b.ask(t, about(fmt.Sprint("domain", i), "a=1")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.ask(t, about("m", "none=1", "free=2")); err != nil {
		t.Fatal(err)
	}
	got = map[string][ratelimit.NumResults]uint64{}
	for _, c := range b.Counts() {
		got[c.Domain+" "+c.Rule] = c.Results
	}
	// Two of the rules with values are those from before.
	if n, other := len(b.Counts()), got["m other"][ratelimit.OK]; n != ratelimit.MostCounted+5 || other != 2*ratelimit.MostCounted+1 {
		t.Errorf("%d series, and %d counts of others", n, other)
	}
	if got["m free=*"][0] != 2 || got["m "][0] != 2 || got[" unknown domain"][0] != 3*ratelimit.MostCounted {
		t.Errorf("values have crowded out %v", got)
	}
}

// What is counted of a domain ends with it, and makes room for values of others. A request that ends after that brings nothing back.
func TestCountsEnd(t *testing.T) {
	b := newBench(t, map[string]string{
		"a.yaml": "domain: a\ndescriptors: [{key: ip, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 5}}]\n",
		"b.yaml": "domain: b\ndescriptors: [{key: ip, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 5}}]\n",
	}, policy.Spec{}, nil)
	ask := func(domain string, i int) {
		t.Helper()
		if _, err := b.ask(t, about(domain, fmt.Sprint("ip=", i))); err != nil {
			t.Fatal(err)
		}
	}
	for i := range ratelimit.MostCounted {
		ask("a", i)
	}
	ask("b", 0)
	b.gone = "a"
	b.DropGone()
	ask("b", 1)
	ask("a", 1)
	got := map[string]uint64{}
	for _, c := range b.Counts() {
		got[c.Domain+" "+c.Rule] = c.Results[ratelimit.OK]
	}
	if want := map[string]uint64{"b other": 1, "b ip=1": 1, " unknown domain": 1}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	b.gone, b.goesNext = "", "b" // it goes while a request is under way
	ask("b", 2)
	for _, c := range b.Counts() {
		if c.Rule == "ip=2" {
			t.Errorf("%+v is back", c)
		}
	}
}

// A limit of 0 refuses also those who only ask.
func TestZero(t *testing.T) {
	b := newBench(t, map[string]string{"limits.yaml": limits}, policy.Spec{}, nil)
	if got := told(b.ask(t, hits(about("rl", "db=never"), 0, false))); got != "OVER_LIMIT; OVER_LIMIT off0/WEEK" {
		t.Error(got)
	}
}

// Keys and values are compared apart, and never share a bucket by the way they are joined.
func TestUnderscores(t *testing.T) {
	b := newBench(t, map[string]string{"limits.yaml": "domain: u\ndescriptors:\n- {key: a_b, value: c, rate_limit: {unit: hour, requests_per_unit: 1}}\n- {key: a, rate_limit: {unit: hour, requests_per_unit: 1}}\n- {key: a_b, rate_limit: {unit: hour, requests_per_unit: 1}}"}, policy.Spec{}, nil)
	for _, d := range []string{"a=b_c", "a_b=c", "a_b=d", "a=b_d"} {
		if got := told(b.ask(t, about("u", d))); got != "OK; OK 1/HOUR in 1h0m0s" {
			t.Errorf("%s: %s", d, got)
		}
	}
}

// broken is a store that cannot decide.
type broken struct{ quota.Store }

func (broken) Decide(context.Context, *quota.Request) (quota.Decision, error) {
	return quota.Decision{}, errors.New("the store is down")
}

// A store that fails is no refusal: Envoy hears that nobody can decide.
func TestStores(t *testing.T) {
	b := newBench(t, map[string]string{"limits.yaml": limits}, policy.Spec{}, map[string]quota.Store{"shared": broken{}})
	if _, err := b.ask(t, about("rl", "db=users", "db=x")); status.Code(err) != codes.Unavailable {
		t.Errorf("%v", err)
	}
	if got := told(b.ask(t, about("rl", "db=big", "none=1"))); got != "OK; OK left 4294967295; OK" {
		t.Errorf("what needs no store: %s", got)
	}
	if got := told(b.ask(t, about("rl", "shady=1", "tier=1", "db=big"))); got != "OK; OK 1/MINUTE in 1s; OK 1/MINUTE in 1s; OK left 4294967295" {
		t.Errorf("limits that refuse nothing: %s", got)
	}
	open := newOpenBench(t, map[string]string{"limits.yaml": limits}, map[string]quota.Store{"shared": broken{}})
	if got := told(open.ask(t, about("rl", "db=users"))); got != "OK; OK" {
		t.Errorf("a lost store with on_store_error open: %s", got)
	}
	b.Crowded()
	if !slices.ContainsFunc(b.Counts(), func(n ratelimit.Count) bool { return n.Rule == "crowded" && n.Results[ratelimit.Failed] == 1 }) {
		t.Errorf("a call too many is not counted: %+v", b.Counts())
	}
	for _, n := range b.Counts() {
		if n.Domain == "rl" && n.Rule == "" && n.Results[ratelimit.Failed] != 1 {
			t.Errorf("%+v", n)
		}
	}
}

// late is a store that answers when whoever asked has gone.
type late struct {
	quota.Store
	gone context.CancelFunc
}

func (s late) Decide(ctx context.Context, r *quota.Request) (quota.Decision, error) {
	s.gone()
	<-ctx.Done()
	return quota.Decision{}, ctx.Err()
}

// An Envoy that has gone costs nothing: the call ends with its context, and is no fault of the store.
func TestEnvoyHasGone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	b := newBench(t, map[string]string{"limits.yaml": limits}, policy.Spec{}, map[string]quota.Store{"shared": late{gone: cancel}})
	b.ctx = ctx
	if _, err := b.ask(t, about("rl", "db=users", "db=x", "path=/f1")); status.Code(err) != codes.Canceled {
		t.Errorf("%v", err)
	}
	if f := b.policy.Gate("rl").Quota().Faults(); f.StoreErrors != 0 {
		t.Errorf("%+v", f)
	}
}
