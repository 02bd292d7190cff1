package policy

import (
	"cmp"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/quota"
)

func TestIdentity(t *testing.T) {
	long := strings.Repeat("x", MaxIdentity)
	tests := []struct {
		name   string
		source string
		r      *http.Request
		want   string
	}{
		{"trusted header", "header:x-tenant", from("127.0.0.1:99", "X-Tenant: acme"), "acme"},
		{"all of loopback", "header:X-Tenant", from("127.9.9.9:99", "X-Tenant: acme"), "acme"},
		{"IPv6 loopback", "header:X-Tenant", from("[::1]:99", "X-Tenant: acme"), "acme"},
		{"IPv4 in IPv6", "header:X-Tenant", from("[::ffff:127.0.0.1]:99", "X-Tenant: acme"), "acme"},
		{"stranger", "header:X-Tenant", from("192.0.2.1:99", "X-Tenant: acme"), ""},
		{"no address", "header:X-Tenant", from("@", "X-Tenant: acme"), ""},
		{"empty address", "header:X-Tenant", from("", "X-Tenant: acme"), ""},
		{"absent", "header:X-Tenant", from("127.0.0.1:99"), ""},
		{"twice the same", "header:X-Tenant", from("127.0.0.1:99", "X-Tenant: a", "X-Tenant: a"), "a"},
		{"twice", "header:X-Tenant", from("127.0.0.1:99", "X-Tenant: a", "X-Tenant: b"), ""},
		{"twice, one empty", "header:X-Tenant", from("127.0.0.1:99", "X-Tenant: a", "X-Tenant: "), ""},
		{"spaces", "header:X-Tenant", from("127.0.0.1:99", "X-Tenant:  a b "), "a b"},
		{"host", "header:Host", from("127.0.0.1:99"), "example.com"},
		{"host of a stranger", "header:host", from("192.0.2.1:99"), ""},
		{"longest", "header:X-Tenant", from("127.0.0.1:99", "X-Tenant: "+long), long},
		{"too long", "header:X-Tenant", from("127.0.0.1:99", "X-Tenant: "+long+"x"),
			"sha256:15eb95a462ee20bd91a415ae2d4aed341288186ddaa2b37908f7d592f0c3f85f"},
		{"not UTF-8", "header:X-Tenant", from("127.0.0.1:99", "X-Tenant: \xff"),
			"sha256:a8100ae6aa1940d0b663bb31cd466142ebbdbd5187131b92d93818987832eb89"},
		{"control character", "header:X-Tenant", from("127.0.0.1:99", "X-Tenant: a\tb"),
			"sha256:894891f8b78a9945b0aa07e70d5f71f10b1f1990af127de561cc0ac36024c188"},

		{"constant", "const:edge:1", from("192.0.2.1:99"), "edge:1"},
		{"nothing", "", from("127.0.0.1:99", "X-Tenant: acme"), ""},
		{"peer", "peer", from("192.0.2.1:99"), "192.0.2.1"},
		{"peer without port", "peer", from("192.0.2.1"), "192.0.2.1"},
		{"peer in IPv6 form", "peer", from("[::ffff:192.0.2.1]:99"), "192.0.2.1"},
		{"peer in another IPv6 form", "peer", from("0:0:0:0:0:ffff:192.0.2.1"), "192.0.2.1"},
		{"IPv6 peer", "peer", from("[2001:db8:1:2:3:4:5:6]:99"), "2001:db8:1:2::/64"},
		{"neighbour of the IPv6 peer", "peer", from("[2001:db8:1:2:ffff::1]:99"), "2001:db8:1:2::/64"},
		{"IPv6 peer with a zone", "peer", from("[fe80::1%eth0]:99"), "fe80::/64"},
		{"peer on a Unix socket", "peer", from("@"), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := compile(t, Spec{Identity: IdentitySpec{Tenant: tt.source}}, Options{})
			_, w := p.Match(tt.r)
			if w.Tenant != tt.want {
				t.Errorf("tenant is %q, want %q", w.Tenant, tt.want)
			}
		})
	}
}

func TestTrusted(t *testing.T) {
	for _, tt := range []struct {
		trusted []string
		remote  string
		want    bool
	}{
		{nil, "127.0.0.1:1", true},
		{nil, "10.0.0.1:1", false},
		{[]string{}, "127.0.0.1:1", false},
		{[]string{"10.0.0.0/8", "fd00::/8"}, "10.1.2.3:1", true},
		{[]string{"10.0.0.0/8", "fd00::/8"}, "[fd00::1]:1", true},
		{[]string{"10.0.0.0/8", "fd00::/8"}, "[::ffff:10.1.2.3]:1", true},
		{[]string{"10.0.0.0/8", "fd00::/8"}, "127.0.0.1:1", false},
		{[]string{"fe80::/10"}, "[fe80::1%eth0]:1", true},
		{[]string{"fe80::/10"}, "fe80::1%eth0", true},
		{[]string{"0.0.0.0/0"}, "[2001:db8::1]:1", false},
		{[]string{"0.0.0.0/0", "::/0"}, "nonsense", false},
	} {
		p := compile(t, Spec{Identity: IdentitySpec{User: "header:X-User", Trusted: tt.trusted}}, Options{})
		r := from(tt.remote, "X-User: alice")
		if _, w := p.Match(r); (w.User == "alice") != tt.want || p.Trusted(r) != tt.want {
			t.Errorf("trusting %v, %s is %q and trusted %t, want %t", tt.trusted, tt.remote, w.User, p.Trusted(r), tt.want)
		}
	}
}

func TestIdentityHeaders(t *testing.T) {
	p := compile(t, Spec{Identity: IdentitySpec{Tenant: "header:x-org", User: "header:X-User", Client: "header:X-Org", Priority: "header:host"}}, Options{})
	if got := strings.Join(p.IdentityHeaders(), " "); got != "X-Org X-User" {
		t.Errorf("headers are %s", got)
	}
}

func FuzzIdentity(f *testing.F) {
	f.Add("127.0.0.1:1", "alice", "", "example.com", "/t/acme/x")
	f.Add("[::1]:1", "alice", "bob", "[::1]:80", "/t/%00%0a/x")
	f.Add("203.0.113.7:9", "root", "root", "a.b.:1", "//t/../t/acme/x")
	f.Add("@", strings.Repeat("x", 5000), "", "", "/t/%ff%fe/x")
	f.Add("fe80::1%eth0", "\xff", "", "]:[", "*")
	p := compile(f, Spec{
		Identity: IdentitySpec{Tenant: "path:tenant", User: "header:X-User", Client: "peer", Priority: "header:X-User"},
		Routes:   []RouteSpec{{Name: "t", Match: []string{"/t/{tenant}/"}}, {Name: "rest", Match: []string{"/{tenant...}"}}},
	}, Options{})
	f.Fuzz(func(t *testing.T, remote, user, again, host, path string) {
		r := &http.Request{Method: "GET", Host: host, RemoteAddr: remote, Header: http.Header{"X-User": {user}}}
		if again != "" {
			r.Header["X-User"] = []string{user, again}
		}
		if u, err := url.ParseRequestURI(path); err == nil {
			r.URL = u
		} else {
			r.URL = &url.URL{Path: path}
		}
		rt, w := p.Match(r)
		if rt == nil {
			t.Errorf("%q matches nothing although a route takes everything", path)
		}
		for _, id := range []string{w.Tenant, w.User, w.Client} {
			if len(id) > MaxIdentity || !utf8.ValidString(id) || strings.ContainsFunc(id, unicode.IsControl) {
				t.Errorf("identity %q is not fit to be kept", id)
			}
		}
		if !p.Trusted(r) && (w.User != w.Client || w.Priority != weir.Normal) {
			t.Errorf("believed %s: user %q, client %q, priority %v", remote, w.User, w.Client, w.Priority)
		}
		if again != "" && again != user && w.User != "" && p.Trusted(r) {
			t.Errorf("believed one of two users: %q", w.User)
		}
	})
}

// The address that a request comes from is as far back as trusted proxies lead.
func TestOrigin(t *testing.T) {
	trusted := []string{"127.0.0.0/8", "10.0.0.0/8", "fd00::/8"}
	for _, tt := range []struct {
		name, remote string
		forwarded    []string
		want         string
	}{
		{"peer alone", "192.0.2.1:9", nil, "192.0.2.1"},
		{"a stranger's claim", "192.0.2.1:9", []string{"198.51.100.7"}, "192.0.2.1"},
		{"one proxy", "127.0.0.1:9", []string{"198.51.100.7"}, "198.51.100.7"},
		{"what the client wrote before", "127.0.0.1:9", []string{"1.2.3.4, 198.51.100.7"}, "198.51.100.7"},
		{"two proxies", "127.0.0.1:9", []string{"1.2.3.4, 198.51.100.7, 10.0.0.1"}, "198.51.100.7"},
		{"in several lines", "127.0.0.1:9", []string{"1.2.3.4", "198.51.100.7,10.0.0.1"}, "198.51.100.7"},
		{"with ports", "127.0.0.1:9", []string{"198.51.100.7:1234, [fd00::1]:80"}, "198.51.100.7"},
		{"IPv6", "127.0.0.1:9", []string{"2001:db8:1:2::5"}, "2001:db8:1:2::/64"},
		{"IPv6 in brackets", "127.0.0.1:9", []string{"[2001:db8:1:2::5]"}, "2001:db8:1:2::/64"},
		{"all trusted", "127.0.0.1:9", []string{"10.0.0.2, 10.0.0.1"}, "10.0.0.2"},
		{"nobody named", "127.0.0.1:9", nil, "127.0.0.1"},
		{"unknown", "127.0.0.1:9", []string{"198.51.100.7, unknown, 10.0.0.1"}, "10.0.0.1"},
		{"empty", "127.0.0.1:9", []string{""}, "127.0.0.1"},
		{"commas", "127.0.0.1:9", []string{",,,,"}, "127.0.0.1"},
		{"endless", "127.0.0.1:9", []string{"198.51.100.7" + strings.Repeat(",10.0.0.1", 9000)}, "10.0.0.1"},
		{"no address", "@", []string{"198.51.100.7"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := compile(t, Spec{Identity: IdentitySpec{Client: "peer", Trusted: trusted}}, Options{})
			r := from(tt.remote)
			for _, line := range tt.forwarded {
				r.Header.Add("X-Forwarded-For", line)
			}
			if _, w := p.Match(r); w.Client != tt.want {
				t.Errorf("client is %q, want %q", w.Client, tt.want)
			}
		})
	}
}

// Whose word is not believed is fair by address, whatever tenants it names.
func TestUserByAddress(t *testing.T) {
	headers := IdentitySpec{Tenant: "header:X-Tenant", User: "header:X-User"}
	tenants := IdentitySpec{Tenant: "header:X-Tenant"}
	for _, tt := range []struct {
		name         string
		identity     IdentitySpec
		remote       string
		headers      string
		tenant, user string
	}{
		{"stranger", headers, "192.0.2.1:9", "X-Tenant: a|X-User: root", "", "192.0.2.1"},
		{"stranger over IPv6", headers, "[2001:db8::1]:9", "X-Tenant: a", "", "2001:db8::/64"},
		{"stranger where nothing is set", IdentitySpec{}, "192.0.2.1:9", "", "", "192.0.2.1"},
		{"stranger with a path", IdentitySpec{Tenant: "path:t"}, "192.0.2.1:9", "", "acme", "192.0.2.1"},
		{"stranger who is somebody", IdentitySpec{User: "const:all"}, "192.0.2.1:9", "", "", "all"},
		{"trusted", headers, "127.0.0.1:9", "X-Tenant: a|X-User: root", "a", "root"},
		{"trusted without a user", tenants, "127.0.0.1:9", "X-Tenant: a|X-Forwarded-For: 192.0.2.9", "a", ""},
		{"trusted without anything", tenants, "127.0.0.1:9", "X-Forwarded-For: 192.0.2.9", "", ""},
		{"trusted where nothing is set", IdentitySpec{}, "127.0.0.1:9", "X-Forwarded-For: 192.0.2.9", "", "192.0.2.9"},
		{"trusted and alone", IdentitySpec{}, "127.0.0.1:9", "", "", ""},
		{"trusted with a path", IdentitySpec{Tenant: "path:t"}, "127.0.0.1:9", "X-Forwarded-For: 192.0.2.9", "acme", "192.0.2.9"},
		{"a socket", headers, "@", "X-User: root", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := compile(t, Spec{Identity: tt.identity, Routes: []RouteSpec{{Match: []string{"/{t}"}}}}, Options{})
			r := from(tt.remote)
			r.URL.Path = "/acme"
			for h := range strings.SplitSeq(tt.headers, "|") {
				if name, value, ok := strings.Cut(h, ": "); ok {
					r.Header.Add(name, value)
				}
			}
			if _, w := p.Match(r); w.Tenant != tt.tenant || w.User != tt.user {
				t.Errorf("tenant %q, user %q; want %q, %q", w.Tenant, w.User, tt.tenant, tt.user)
			}
		})
	}
}

// Words for priorities are believed from trusted peers, understood by name or by
// the map, and counted where they are not.
func TestPriorityWords(t *testing.T) {
	spec := Spec{
		Identity: IdentitySpec{Priority: "header:X-Priority", Priorities: map[string]string{
			"system": "critical", "Leader-Election": "high", "catch-all": "background", "7": "high", "normal": "background",
		}},
		Routes: []RouteSpec{{Match: []string{"/"}, Priority: "high"}},
	}
	for _, tt := range []struct {
		remote  string
		values  []string
		want    weir.Priority
		ignored uint64
	}{
		{"127.0.0.1:9", []string{"critical"}, weir.Critical, 0},
		{"127.0.0.1:9", []string{"CRITICAL"}, weir.Critical, 0},
		{"127.0.0.1:9", []string{" background "}, weir.Background, 0},
		{"127.0.0.1:9", []string{"system"}, weir.Critical, 0},
		{"127.0.0.1:9", []string{"leader-election"}, weir.High, 0},
		{"127.0.0.1:9", []string{"Catch-All"}, weir.Background, 0},
		{"127.0.0.1:9", []string{"7"}, weir.High, 0},
		{"127.0.0.1:9", []string{"normal"}, weir.Background, 0}, // as the map says
		{"127.0.0.1:9", []string{"critical", "critical"}, weir.Critical, 0},
		{"127.0.0.1:9", []string{"critical", "background"}, weir.High, 1},
		{"127.0.0.1:9", []string{"urgent"}, weir.High, 1},
		{"127.0.0.1:9", []string{"priority(3)"}, weir.High, 1},
		{"127.0.0.1:9", []string{"-1"}, weir.High, 1},
		{"127.0.0.1:9", []string{"99999999999999999999"}, weir.High, 1},
		{"127.0.0.1:9", []string{"crit\x00ical"}, weir.High, 1},
		{"127.0.0.1:9", []string{strings.Repeat("x", 10<<10)}, weir.High, 1},
		{"127.0.0.1:9", []string{""}, weir.High, 0},
		{"127.0.0.1:9", nil, weir.High, 0},
		{"192.0.2.1:9", []string{"critical"}, weir.High, 0},
		{"192.0.2.1:9", []string{"urgent"}, weir.High, 0},
	} {
		p := compile(t, spec, Options{})
		r := from(tt.remote)
		r.Header["X-Priority"] = tt.values
		_, w := p.Match(r)
		if got := p.Ignored(); w.Priority != tt.want || got.Priorities != tt.ignored {
			t.Errorf("%s, %.40q: %v, %d ignored; want %v, %d", tt.remote, tt.values, w.Priority, got.Priorities, tt.want, tt.ignored)
		}
	}
}

// What was ignored is not forgotten by a reload.
func TestIgnoredStays(t *testing.T) {
	spec := Spec{Identity: IdentitySpec{Priority: "header:X-Priority"}}
	p := compile(t, spec, Options{})
	p.Match(from("127.0.0.1:9", "X-Priority: urgent", "X-Request-Timeout: soon"))
	next := compile(t, spec, Options{Previous: p})
	next.Match(from("127.0.0.1:9", "X-Priority: urgent"))
	if got := next.Ignored(); got != (Ignored{Priorities: 2, Timeouts: 1}) {
		t.Errorf("ignored %+v", got)
	}
}

func TestTrustsNetwork(t *testing.T) {
	p := compile(t, Spec{Identity: IdentitySpec{Trusted: []string{"10.0.0.0/8", "fe80::/10"}}}, Options{})
	for text, want := range map[string]bool{
		"10.1.2.3": true, "::ffff:10.1.2.3": true, "fe80::1%eth0": true, "127.0.0.1": false, "192.0.2.1": false,
	} {
		if got := p.TrustsNetwork(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %t, want %t", text, got, want)
		}
	}
	if p.TrustsNetwork(netip.Addr{}) {
		t.Error("trusts no address")
	}
}

func TestParseNetwork(t *testing.T) {
	if n, err := ParseNetwork("fd00::/8"); err != nil || n.String() != "fd00::/8" {
		t.Errorf("%v, %v", n, err)
	}
	const none, bits = "is not a network in CIDR notation; write ", "has bits set beyond its "
	for _, c := range []struct{ text, want, ofRule string }{ // ofRule: in a rule, which has no smaller network of IPv6 than a /64
		{"", `"" ` + none + "a network such as 10.0.0.0/8 or fd00::/8", ""},
		{"192.0.2.1", `"192.0.2.1" ` + none + "192.0.2.1/32", ""},
		{"2001:db8::1%eth0", `"2001:db8::1%eth0" ` + none + "2001:db8::1/128", `"2001:db8::1%eth0" ` + none + "2001:db8::/64"},
		{"localhost", `"localhost" ` + none + "127.0.0.0/8 and ::1/128", `"localhost" ` + none + "127.0.0.0/8 and ::/64"},
		{"192.0.2.1/8", "192.0.2.1/8 " + bits + "8; write 192.0.0.0/8, or 192.0.2.1/32 for the one address", ""},
		{"2001:db8::1/32", "2001:db8::1/32 " + bits + "32; write 2001:db8::/32, or 2001:db8::1/128 for the one address",
			"2001:db8::1/32 " + bits + "32; write 2001:db8::/32, or 2001:db8::/64 for the one address"},
		{"2001:db8::1/64", "2001:db8::1/64 " + bits + "64; write 2001:db8::/64, or 2001:db8::1/128 for the one address",
			"2001:db8::1/64 " + bits + "64; write 2001:db8::/64"},
		{"2001:db8::1/80", "2001:db8::1/80 " + bits + "80; write 2001:db8::/80, or 2001:db8::1/128 for the one address",
			"2001:db8::1/80 " + bits + "80; write 2001:db8::/64"},
	} {
		if _, err := ParseNetwork(c.text); err == nil || err.Error() != c.want {
			t.Errorf("%q: %v, want %s", c.text, err, c.want)
		}
		_, err := Compile(Spec{Gates: map[string]GateSpec{"g": {Quota: &QuotaSpec{QuotaLimitSpec: rate("1/s"), Rules: []QuotaRuleSpec{{Rule: quota.Rule{Address: quota.Match(c.text), Blocked: true}}}}}}}, Options{})
		if want := cmp.Or(c.ofRule, c.want); c.text != "" && (err == nil || !strings.HasSuffix(err.Error(), ".address: "+want)) {
			t.Errorf("in a rule, %q: %v, want %s", c.text, err, want)
		}
	}
}
