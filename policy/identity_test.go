package policy

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/weir-go/weir"
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
