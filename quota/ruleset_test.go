package quota

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/fault"
)

func mustCompile(t testing.TB, list []Rule) *ruleTable {
	t.Helper()
	var f fault.List
	rs := compileRules("q", list, true, &f)
	if err := f.Err(""); err != nil {
		t.Fatal(err)
	}
	return rs
}

func samples(rate float64) []Window { return []Window{Samples(rate, 11, time.Second)} }

// kafka is the configuration of Kafka's own test of precedence.
func kafka() []Rule {
	return []Rule{
		{User: Every, Windows: samples(1000)},
		{Client: Every, Windows: samples(2000)},
		{User: Every, Client: Every, Windows: samples(3000)},
		{User: Named("userA"), Windows: samples(4000)},
		{User: Named("userA"), Client: Named("client1"), Windows: samples(5000)},
		{User: Named("userB"), Windows: samples(6000)},
		{User: Named("userB"), Client: Named("client1"), Windows: samples(7000)},
		{User: Named("userB"), Client: Every, Windows: samples(8000)},
		{User: Named("userC"), Windows: samples(10_000)},
		{Client: Named("client1"), Windows: samples(9000)},
	}
}

func without(list []Rule, title string) []Rule {
	var kept []Rule
	for _, r := range list {
		if r.title() != title {
			kept = append(kept, r)
		}
	}
	return kept
}

// The vectors of Kafka's precedence, P1 to P10 of our notes, and those between: which limit, and whose bucket.
func TestPrecedence(t *testing.T) {
	noBoth := without(kafka(), "user=*,client=*")
	noUser := without(noBoth, "user=*")
	for _, c := range []struct {
		name         string
		rules        []Rule
		user, client string
		rate         float64
		key          string
	}{
		{"P1", kafka(), "userA", "client1", 5000, "q/user=userA/client=client1"},
		{"P2", kafka(), "userA", "client2", 4000, "q/user=userA"},
		{"P2", kafka(), "userA", "client3", 4000, "q/user=userA"},
		{"userB, client1", kafka(), "userB", "client1", 7000, "q/user=userB/client=client1"},
		{"P4", kafka(), "userB", "client2", 8000, "q/user=userB/client=client2"},
		{"P4", kafka(), "userB", "client3", 8000, "q/user=userB/client=client3"},
		{"userD", kafka(), "userD", "client1", 3000, "q/user=userD/client=client1"},
		{"userC", kafka(), "userC", "client1", 10_000, "q/user=userC"},
		{"P6", noBoth, "userD", "client1", 1000, "q/user=userD"},
		{"userE", noUser, "userE", "client1", 9000, "q/client=client1"},
		{"P8", noUser, "userF", "client4", 2000, "q/client=client4"},
		{"P8", noUser, "userF", "client5", 2000, "q/client=client5"},
		{"every client of userA", append(slices.Clip(noUser), Rule{User: Named("userA"), Client: Every, Windows: samples(12_000)}), "userA", "client6", 12_000, "q/user=userA/client=client6"},
		{"P10", append(slices.Clip(noUser), Rule{User: Named("userA"), Client: Named("client6"), Windows: samples(11_000)}), "userA", "client6", 11_000, "q/user=userA/client=client6"},
		{"nobody", kafka(), "", "", 3000, "q/user=/client="},
	} {
		id := Identity{User: c.user, Client: c.client}
		r := mustCompile(t, c.rules).find(&id)
		if r == nil || r.Windows[0].Rate != c.rate {
			t.Errorf("%s: %s/%s: %+v, want a rate of %v", c.name, c.user, c.client, r, c.rate)
			continue
		}
		if key := string(r.appendKey(nil, &id)); key != c.key {
			t.Errorf("%s: %s/%s has the bucket %q, want %q", c.name, c.user, c.client, key, c.key)
		}
	}
	if r := mustCompile(t, without(noUser, "client=*")).find(&Identity{User: "userF", Client: "client4"}); r != nil {
		t.Errorf("without a rule: %+v", r)
	}
}

// What is absent matches no rule that looks at it: in Kafka, who has no client id has no quota of a client, not even the default one.
func TestAbsent(t *testing.T) {
	rules := kafka()
	for _, c := range []struct {
		user, client string
		rate         float64 // 0: none
	}{
		{"userA", Absent, 4000}, {"userA", "", 4000}, {"userB", Absent, 6000}, {"userB", "", 8000}, {"userD", Absent, 1000}, {"userD", "", 3000},
		{Absent, "client1", 9000}, {Absent, "client2", 2000}, {Absent, Absent, 0},
	} {
		id := Identity{User: c.user, Client: c.client}
		r := mustCompile(t, rules).find(&id)
		if c.rate == 0 {
			if r != nil {
				t.Errorf("%q, %q: %s", c.user, c.client, r.title)
			}
		} else if r == nil || r.Windows[0].Rate != c.rate {
			t.Errorf("%q, %q: %+v, want %v", c.user, c.client, r, c.rate)
		}
	}
	identify := func(w weir.Work) Identity { return Identity{User: w.User, Client: Absent} }
	q, err := New(Config{Name: "q", Rules: rules, Identify: identify})
	if err != nil {
		t.Fatal(err)
	}
	if all := q.Explain(weir.Work{User: "userB"}); len(all) != 2 || all[0].Name != "user=userB" {
		t.Errorf("%+v", all)
	}
	all := []Rule{{Windows: samples(1)}, {Tenant: Every, Windows: samples(2)}, {Route: Every, Windows: samples(3)}, {Address: Every, Windows: samples(4)}, {Descriptor: Every, Windows: samples(5)}}
	none := Identity{Tenant: Absent, Route: Absent, Address: Absent, Descriptor: Absent}
	if r := mustCompile(t, all).find(&none); r == nil || r.title != "all" {
		t.Errorf("%+v", r)
	}
}

// Clients choose their names. One that looks like Absent is a name like any other.
func TestNameLikeAbsent(t *testing.T) {
	for i, w := range map[int]weir.Work{user: {User: Absent}, client: {Client: Absent}, tenant: {Tenant: Absent}, route: {Op: Absent}, descriptor: {Descriptor: Absent}} {
		for _, m := range []Match{Every, Named(Absent)} {
			if i == descriptor && m != Every {
				continue // no descriptor can be written so
			}
			rule := Rule{Name: "rule", Windows: samples(1)}
			*rule.Part(partNames[i]) = m
			q, err := New(Config{Name: "q", Rules: []Rule{rule}})
			if err != nil {
				t.Fatal(err)
			}
			if a, err := q.Peek(t.Context(), w); a.Rule != "rule" || err != nil {
				t.Errorf("%s %q: matched %q, %v", partNames[i], m, a.Rule, err)
			}
		}
	}
	q, err := New(Config{Name: "q", Rules: []Rule{{User: Named(Absent), Blocked: true}, {User: Every, Name: "others", Windows: samples(1)}}})
	if err != nil {
		t.Fatal(err)
	}
	if a, err := q.Peek(t.Context(), weir.Work{User: Absent + Absent}); a.Rule != "others" || err != nil {
		t.Errorf("two such bytes: matched %q, %v", a.Rule, err)
	}
}

// The rule found is the one that a look at every rule finds.
func TestPrecedenceOfAllParts(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	values := []string{"", "a", "b"}
	match := func() Match {
		switch r.IntN(4) {
		case 0:
			return Every
		case 1:
			return Named(values[r.IntN(3)])
		}
		return ""
	}
	for range 300 {
		var list []Rule
		seen := map[string]bool{}
		for range 1 + r.IntN(12) {
			rule := Rule{User: match(), Client: match(), Tenant: match(), Route: match(), Exempt: true}
			if r.IntN(4) == 0 {
				rule.Priority = Named("high")
			}
			if key := fmt.Sprint(rule.matches()); !seen[key] {
				seen[key] = true
				list = append(list, rule)
			}
		}
		rs := mustCompile(t, list)
		for range 50 {
			id := Identity{User: values[r.IntN(3)], Client: values[r.IntN(3)], Tenant: values[r.IntN(3)], Route: values[r.IntN(3)], Priority: weir.Priority(r.IntN(2))}
			got, want := rs.find(&id), naive(list, &id)
			if (got == nil) != (want == nil) || got != nil && got.pattern != want.Pattern() {
				t.Fatalf("%+v: %+v, want %+v of %+v", id, got, want, list)
			}
		}
	}
}

func naive(list []Rule, id *Identity) (best *Rule) {
	rank := -1
	for i := range list {
		n := 0
		for p, m := range list[i].matches() {
			if m.kind() == named && m.value() != id.part(p) {
				n = -1 << 30
			}
			n = n*3 + int(m.kind())
		}
		if n > rank {
			rank, best = n, &list[i]
		}
	}
	return best
}

func TestAddresses(t *testing.T) {
	rs := mustCompile(t, []Rule{
		{Name: "office", Address: Named("10.1.0.0/16"), Windows: samples(1)},
		{Name: "printer", Address: Named("10.1.2.3"), Windows: samples(1)},
		{Name: "six", Address: Named("2001:db8::/32"), Windows: samples(1)},
		{Name: "root", User: Named("root"), Address: Named("10.0.0.0/8"), Windows: samples(1)},
		{Name: "mapped", Address: Named("::ffff:12.0.0.0/104"), Windows: samples(1)},
		{Name: "each", Address: Every, Windows: samples(1)},
	})
	for _, c := range []struct{ user, address, rule, key string }{
		{"", "10.1.2.3", "printer", "q/address=10.1.2.3%2F32"},
		{"", "10.1.2.4", "office", "q/address=10.1.0.0%2F16"},
		{"", "::ffff:10.1.9.9", "office", "q/address=10.1.0.0%2F16"},
		{"root", "10.1.2.3", "root", "q/user=root/address=10.0.0.0%2F8"},
		{"root", "11.1.2.3", "each", "q/address=11.1.2.3"},
		{"", "2001:db8:1::1", "six", "q/address=2001:db8::%2F32"},
		{"", "2001:db9:1:2:3::1", "each", "q/address=2001:db9:1:2::"},
		{"", "::ffff:11.1.2.3", "each", "q/address=11.1.2.3"},
		{"", "12.1.2.3", "mapped", "q/address=12.0.0.0%2F8"},
		{"", "::ffff:12.1.2.3", "mapped", "q/address=12.0.0.0%2F8"},
		{"", "a unix socket", "each", "q/address=a%20unix%20socket"},
	} {
		id := Identity{User: c.user, Address: c.address}
		r := rs.find(&id)
		if r == nil || r.title != c.rule {
			t.Errorf("%s: %+v, want %s", c.address, r, c.rule)
		} else if key := string(r.appendKey(nil, &id)); key != c.key {
			t.Errorf("%s: %q, want %q", c.address, key, c.key)
		}
	}
}

// Two identities have one key only if they share a bucket.
func TestKeysDiffer(t *testing.T) {
	r := newRule("gate", Rule{User: Every, Client: Every})
	long := strings.Repeat("x", 10<<10)
	seen := map[string]Identity{}
	for _, u := range []string{"", "a", "a/client=b", "a%2Fclient=b", "a\x00", "a\n", "{a}", "~", long, long + "y", long[1:]} {
		for _, c := range []string{"", "b", "b/", "~", long} {
			id := Identity{User: u, Client: c}
			key := string(r.appendKey(nil, &id))
			if other, ok := seen[key]; ok {
				t.Errorf("%.30q and %.30q share %q", other, id, key)
			}
			if seen[key] = id; len(key) > longestKey || strings.ContainsAny(key, "{}\n\x00 ") {
				t.Errorf("%q is no key for every store", key)
			}
		}
	}
}

// Nobody can be called what a long name is cut to.
func TestCutKeyIsNobodys(t *testing.T) {
	r := newRule("gate", Rule{User: Every})
	of := func(u string) string { return string(r.appendKey(nil, &Identity{User: u})) }
	long := of(strings.Repeat("x", 10<<10))
	if _, cut, _ := strings.Cut(long, "="); of(cut) == long {
		t.Errorf("%q has the bucket of a user with a long name", cut)
	}
}

func TestBadRules(t *testing.T) {
	one := []Window{Per(1, time.Second)}
	for _, c := range []struct {
		rules []Rule
		want  string
	}{
		{[]Rule{{}}, "Rules[0].Windows: there are 0"},
		{[]Rule{{Exempt: true, Blocked: true}}, "is Exempt and Blocked"},
		{[]Rule{{Address: Named("::ffff:0:0/90"), Blocked: true}}, "must be an IP address or a network"},
		{[]Rule{{Exempt: true, Windows: one}}, "has Windows, but is Exempt or Blocked"},
		{[]Rule{{User: Every, Windows: one}, {User: Every, Windows: one}}, `Rules[1]: matches the same as rule "user=*"`},
		{[]Rule{{User: Named("a"), Windows: one}, {User: Named("a"), Blocked: true}}, "matches the same"},
		{[]Rule{{Address: Named("10.0.0.1"), Windows: one}, {Address: Named("10.0.0.1/32"), Windows: one}}, "matches the same"},
		{[]Rule{{Address: Named("10.0.0.0/33"), Windows: one}}, `Rules[0].Address: "10.0.0.0/33" will not do; must be an IP address`},
		{[]Rule{{Priority: Named("urgent"), Windows: one}}, `Rules[0].Priority: "urgent" will not do; must be background`},
		{[]Rule{{Windows: []Window{{Rate: 1, Burst: 0.5}}}}, "Rules[0].Windows[0].Burst: 0.5 will not do; must be at least 1"},
		{[]Rule{{Windows: []Window{{}}}}, "Windows[0].Burst: 0 will not do"},
		{[]Rule{{Name: "a", User: Every, Windows: one}, {Name: "a", Client: Every, Windows: one}}, `is called "a", as is Rules[0]; give`},
	} {
		var f fault.List
		compileRules("q", c.rules, false, &f)
		if err := f.Err(""); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.rules, err, c.want)
		}
	}
}

// FuzzKey: whoever two identities are, they share a key only if they are the same in
// what the rule looks at; and a key is text that every store can take.
func FuzzKey(f *testing.F) {
	f.Add("alice", "web", "alice/client=web", "")
	f.Add("~", "%", "{x}", "\xff\x00")
	f.Fuzz(func(t *testing.T, u1, c1, u2, c2 string) {
		r := newRule("gate", Rule{User: Every, Client: Every})
		a, b := Identity{User: u1, Client: c1}, Identity{User: u2, Client: c2}
		k1, k2 := string(r.appendKey(nil, &a)), string(r.appendKey(nil, &b))
		if (k1 == k2) != (a == b) {
			t.Errorf("%q and %q have the keys %q and %q", a, b, k1, k2)
		}
		if len(k1) > longestKey || strings.ContainsAny(k1, "{} \n\x00") {
			t.Errorf("%q is no key for every store", k1)
		}
	})
}

// The rules that match come in the order in which each would count without those before
// it: taking away the first makes the second the one that counts.
func TestExplain(t *testing.T) {
	rules := append(kafka(), Rule{Name: "banned", User: Named("userB"), Address: Named("10.0.0.0/8"), Blocked: true}, Rule{Name: "all", Windows: samples(1)})
	identify := func(w weir.Work) Identity {
		return Identity{User: w.User, Client: w.Client, Address: "10.1.2.3"}
	}
	w := weir.Work{User: "userB", Client: "client1"}
	want := []string{"user=userB,client=client1", "user=userB,client=*", "banned", "user=userB", "user=*,client=*", "user=*", "client=client1", "client=*", "all"}
	for i := range want {
		q, err := New(Config{Name: "q", Rules: rules, Identify: identify})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range q.Explain(w) {
			got = append(got, r.Name)
		}
		if !slices.Equal(got, want[i:]) {
			t.Fatalf("without the first %d: %q, want %q", i, got, want[i:])
		}
		if counts, _ := keyOf(q, w); counts != got[0] {
			t.Errorf("%q counts, the first is %q", counts, got[0])
		}
		rules = slices.DeleteFunc(slices.Clone(rules), func(r Rule) bool { return r.title() == got[0] })
	}
	q, err := New(Config{Name: "q", Rules: []Rule{{User: Named("x"), Blocked: true}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := q.Explain(w); got != nil {
		t.Errorf("none matches: %v", got)
	}
}

// The rule that counts says why it does.
func TestExplainWhy(t *testing.T) {
	for _, c := range []struct {
		first, next Rule
		want        string
	}{
		{Rule{User: Named("alice")}, Rule{User: Every}, "it names the user, and user=* is for each"},
		{Rule{User: Named("alice")}, Rule{}, "it names the user, which all does not look at"},
		{Rule{User: Every}, Rule{Name: "rest"}, "it is for each user, which rest does not look at"},
		{Rule{User: Named("alice"), Client: Every}, Rule{User: Named("alice")}, "it is for each client, which user=alice does not look at"},
		{Rule{Address: Named("10.0.0.0/9")}, Rule{Address: Named("10.0.0.0/8")}, "its network is smaller than that of address=10.0.0.0/8"},
		{Rule{Address: Named("10.1.2.3")}, Rule{Address: Named("10.1.2.0/24")}, "its network is smaller than that of address=10.1.2.0/24"},
	} {
		c.first.Exempt, c.next.Exempt = true, true
		q := newQuota(t, Config{Rules: []Rule{c.next, c.first}, Identify: func(weir.Work) Identity { return Identity{User: "alice", Address: "10.1.2.3"} }})
		got := q.Explain(alice)
		if len(got) != 2 || got[0].Why != c.want || got[1].Why != "" {
			t.Errorf("%+v, want %q", got, c.want)
		}
		if err := q.SetRules([]Rule{c.next}); err != nil {
			t.Fatal(err)
		}
		if got := q.Explain(alice); len(got) != 1 || got[0].Why != "no other matches" {
			t.Errorf("alone: %+v", got)
		}
	}
}

// Two rules have the same pattern if they match the same, however a network is written.
func TestPattern(t *testing.T) {
	same := []Rule{{User: Every, Address: Named("10.1.2.3/8")}, {Name: "ten", User: Every, Address: Named("10.0.0.0/8"), Blocked: true}, {User: Every, Address: Named("::ffff:10.0.0.0/104")}}
	for i := range same {
		if p := same[i].Pattern(); p != same[0].Pattern() || p.String() != "user=*,address=10.0.0.0/8" {
			t.Errorf("%+v: %v", same[i], p)
		}
	}
	for _, other := range []Rule{{}, {User: Every}, {User: Named("*"), Address: Named("10.0.0.0/8")}, {User: Every, Address: Named("10.0.0.0/9")}, {User: Every, Address: Named("no network")}} {
		if other.Pattern() == same[0].Pattern() {
			t.Errorf("%+v has the pattern of %+v", other, same[0])
		}
	}
	if got := (&Rule{Name: "x"}).Pattern().String(); got != "all" {
		t.Errorf("%q, want all", got)
	}
	secret := Rule{User: Named("sk-1"), Client: Every, Tenant: Named(""), Descriptor: "plan=free,ip=*", Blocked: true}
	named := Rule{Name: "banned", User: Named("sk-2"), Blocked: true}
	const parts = "user=...,client=*,tenant=...,descriptor=..."
	if got := secret.Pattern().WithoutValues(); got != parts || secret.Pattern().String() == parts {
		t.Errorf("%s, want %s", got, parts)
	}
	q, err := New(Config{Name: "api", Rules: []Rule{secret, named}})
	if err != nil {
		t.Fatal(err)
	}
	for rule, want := range map[string]string{secret.Pattern().String(): parts, "banned": "banned", "user=gone": ""} {
		if got := q.WithoutValues(rule); got != want {
			t.Errorf("%s is told as %q, want %q", rule, got, want)
		}
	}
}

// Rules that override others have their place and name, and leave them as they were.
func TestOverride(t *testing.T) {
	base := []Rule{{Name: "each", User: Every, Windows: samples(1)}, {Name: "office", Address: Named("10.0.0.0/8"), Exempt: true}}
	got := Override(base, []Rule{{Address: Named("10.1.1.1/8"), Blocked: true}, {User: Named("alice"), Exempt: true}})
	if len(got) != 3 || got[0].Name != "each" || got[1].Name != "office" || !got[1].Blocked || got[1].Exempt || got[2].User != Named("alice") {
		t.Errorf("%+v", got)
	}
	if base[1].Blocked || !base[1].Exempt {
		t.Errorf("the base was written to: %+v", base[1])
	}
}

// BenchmarkRules says what a decision takes with few rules and with many: those of a
// shape are one map, so that their number does not matter but for the processor's
// caches.
func BenchmarkRules(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		rules := []Rule{{User: Every, Windows: []Window{Per(1e9, time.Second)}}, {Client: Named("web"), Windows: []Window{Per(1e9, time.Second)}}}
		for i := range n {
			rules = append(rules, Rule{User: Named(fmt.Sprint("user-", i)), Windows: []Window{Per(1e9, time.Second)}})
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

// What is called by its pattern has a name of its own, whatever its values hold: no two rules of a gate clash.
func TestPatternsAreToldApart(t *testing.T) {
	rules := []Rule{
		{User: Every}, {User: Named("*")}, {User: Named("")}, {User: `'*'`}, {User: "\x00\x00x"}, {User: "x"},
		{User: "a,client=b"}, {User: "a", Client: "b"}, {User: `a',client='b`}, {User: "CN=a,O=b"}, {User: "a", Client: Every}, {User: "a", Client: Named("*")},
		{User: "a=b"}, {User: `a,\'`}, {Client: Named("")}, {Client: Every},
	}
	for i := range rules {
		rules[i].Windows = []Window{Per(float64(i+1), time.Hour)}
	}
	q, err := New(Config{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	for i, who := range []struct {
		user, client string
		text         string
	}{
		{"somebody", "x", "user=*"}, {"*", "x", "user='*'"}, {"", "x", "user=''"}, {`'*'`, "x", `user='\'*\''`}, {"\x00x", "", "user=\x00x"}, {"x", "", "user=x"},
		{"a,client=b", "", "user='a,client=b'"}, {"a", "b", "user=a,client=b"}, {`a',client='b`, "", `user='a\',client=\'b'`},
		{"CN=a,O=b", "", "user='CN=a,O=b'"}, {"a", "c", "user=a,client=*"}, {"a", "*", "user=a,client='*'"}, {"a=b", "", "user=a=b"}, {`a,\'`, "", `user='a,\\\''`},
	} {
		got := q.Explain(weir.Work{User: who.user, Client: who.client})[0]
		if got.Name != who.text || got.Windows[0] != rules[i].Windows[0] {
			t.Errorf("%q, %q: rule %s with %v, want %s with %v", who.user, who.client, got.Name, got.Windows[0], who.text, rules[i].Windows[0])
		}
	}
}

// The debt of a rule that goes is that of the rule which takes its bucket over, also if the store looks for buckets to forget.
func TestDebtOfARuleThatGoes(t *testing.T) {
	quick, slow, other := []Window{{Rate: 100, Burst: 100}}, []Window{{Rate: 1, Burst: 10}}, []Window{{Rate: 2, Burst: 10}}
	for _, c := range []struct {
		name string
		gone Rule
		stay []Rule
		want time.Duration // until the debt is paid back, 20 s after the rule has gone
	}{
		{"a user's", Rule{User: "alice"}, []Rule{{User: Every, Windows: slow}}, 880 * time.Second},
		{"that of a user's client", Rule{User: "alice", Client: "web"}, []Rule{{User: Every, Client: "web", Windows: other}, {User: Every, Client: Every, Windows: other}, {User: "alice", Client: Every, Windows: slow}}, 880 * time.Second},
		{"that of each client of a user", Rule{User: "alice", Client: Every}, []Rule{{User: Every, Client: Every, Windows: slow}}, 880 * time.Second},
		{"where the next has a bucket of its own", Rule{User: "alice"}, []Rule{{Client: Every, Windows: slow}}, 0},
		{"where the next has one for all", Rule{User: "alice"}, []Rule{{Windows: slow}}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var clock still
			c.gone.Windows = quick
			q := newQuota(t, Config{Name: "q", Now: clock.now, Debt: true, Rules: append([]Rule{c.gone}, c.stay...)})
			w := weir.Work{User: "alice", Client: "web", Cost: 1000}
			if _, err := q.Charge(ctx, w); err != nil {
				t.Fatal(err)
			}
			if err := q.SetRules(c.stay); err != nil {
				t.Fatal(err)
			}
			clock.advance(20 * time.Second)
			q.memory.Purge()
			if a, _ := q.Peek(ctx, w); a.Wait != c.want {
				t.Errorf("%+v, want to wait %v", a, c.want)
			}
		})
	}
}
