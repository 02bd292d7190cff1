package policy

import (
	"crypto/x509"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

// metadata are headers as gRPC has them: names in lower case, and no request of HTTP.
type metadata map[string][]string

func (m metadata) Values(name HeaderName) []string { return m[name.Lower] }

func (m metadata) Host() string {
	if len(m[":authority"]) == 0 {
		return ""
	}
	return m[":authority"][0]
}

// viewLike is the view that an adapter for another protocol makes of the same request.
func viewLike(r *http.Request) View {
	md := metadata{":authority": {r.Host}}
	for name, lines := range r.Header {
		md[strings.ToLower(name)] = lines
	}
	return View{Method: r.Method, Path: r.URL.Path, RawPath: r.URL.RawPath, Header: md, Peer: ParsePeer(r.RemoteAddr)}
}

var viewed = Spec{
	Identity: IdentitySpec{Tenant: "header:X-Tenant", User: "header:X-User", Client: "path:service", Priority: "header:X-Priority",
		Admissions: "header:Grpc-Previous-Rpc-Attempts", Trusted: []string{"127.0.0.0/8"}},
	Gates: map[string]GateSpec{"a": waiting(4)},
	Routes: []RouteSpec{
		{Name: "host", Match: []string{"reports.example.com/"}, Gates: []string{"a"}, Timeout: Duration(3 * time.Second)},
		{Name: "retried", Match: []string{"POST /{service}/Retry"}, Gates: []string{"a"}, DemoteAfter: 1},
		{Name: "charged", Match: []string{"POST /{service}/Charge"}, Gates: []string{"a"}, CostFrom: "header:X-Cost"},
		{Name: "rest", Match: []string{"/"}, Gates: []string{"a"}},
	},
}

// A request is the same work whatever protocol it came by.
func TestViewIsTheSameWork(t *testing.T) {
	p := compile(t, viewed, Options{})
	for _, tt := range []struct {
		name, peer, host, path string
		headers                []string
		route                  string
		want                   weir.Work
	}{
		{"trusted", "127.0.0.1:9", "shop", "/shop.Cart/Get", []string{"X-Tenant: acme", "X-User: alice", "X-Priority: high"},
			"rest", weir.Work{Tenant: "acme", User: "alice", Priority: weir.High}},
		{"stranger", "192.0.2.7:9", "shop", "/shop.Cart/Get", []string{"X-Tenant: acme", "X-User: alice", "X-Priority: high"},
			"rest", weir.Work{User: "192.0.2.7"}},
		{"stranger over IPv6", "[2001:db8::7]:9", "shop", "/shop.Cart/Get", nil, "rest", weir.Work{User: "2001:db8::/64"}},
		{"behind a proxy", "127.0.0.1:9", "shop", "/x/y", []string{"X-Forwarded-For: 192.0.2.8"}, "rest", weir.Work{}},
		{"by host", "127.0.0.1:9", "Reports.Example.com:443", "/shop.Cart/Get", nil, "host", weir.Work{}},
		{"without a slash", "127.0.0.1:9", "shop", "shop.Cart/Charge", []string{"X-Cost: 7"}, "charged", weir.Work{Client: "shop.Cart", Cost: 7}},
		{"retried", "127.0.0.1:9", "shop", "/shop.Cart/Retry", []string{"Grpc-Previous-Rpc-Attempts: 1"}, "retried",
			weir.Work{Client: "shop.Cart", Priority: weir.Background, Attempt: 1}},
		{"retried, says a stranger", "192.0.2.7:9", "shop", "/shop.Cart/Retry", []string{"Grpc-Previous-Rpc-Attempts: 1"}, "retried",
			weir.Work{Client: "shop.Cart", User: "192.0.2.7", Attempt: 1}},
		{"with an escape", "127.0.0.1:9", "shop", "/%73hop.Cart/Charge", nil, "charged", weir.Work{Client: "shop.Cart"}},
	} {
		r := from(tt.peer, tt.headers...)
		r.Method, r.Host = http.MethodPost, tt.host
		r.URL = &url.URL{Path: tt.path}
		if u, err := url.ParseRequestURI(tt.path); err == nil {
			r.URL = u
		}
		v := viewLike(r)
		rt, w := p.MatchView(&v)
		byHTTP, same := p.Match(r)
		w.Deadline, same.Deadline = time.Time{}, time.Time{}
		want := rt.Work()
		want.Op, want.Write = tt.route, true
		want.Tenant, want.User, want.Client, want.Priority, want.Cost = tt.want.Tenant, tt.want.User, tt.want.Client, tt.want.Priority, tt.want.Cost
		want.Attempt = tt.want.Attempt
		if w != want {
			t.Errorf("%s: work %+v, want %+v", tt.name, w, want)
		}
		if rt != byHTTP || w != same {
			t.Errorf("%s: over HTTP route %q, work %+v; as a view route %q, work %+v", tt.name, byHTTP.Name(), same, rt.Name(), w)
		}
		if p.TrustedView(&v) != p.Trusted(r) {
			t.Errorf("%s: trusted %v, over HTTP %v", tt.name, p.TrustedView(&v), p.Trusted(r))
		}
	}
}

// The deadline of a call is one more that the request brings; the earliest holds.
func TestViewDeadline(t *testing.T) {
	byArrival := compile(t, viewed, Options{})
	edf := viewed
	edf.Gates = map[string]GateSpec{"a": {Limit: &LimitSpec{Limit: 4, Queue: QueueSpec{Order: "edf"}}}}
	byDeadline := compile(t, edf, Options{})
	in := time.Now().Add(time.Hour)
	for _, tt := range []struct {
		name     string
		p        *Policy
		peer     string
		host     string
		headers  []string
		deadline time.Time
		want     time.Duration // until the deadline of the work, to the minute; 0: none
		bounded  bool          // the wait, instead
	}{
		{"none", byArrival, "127.0.0.1:9", "shop", nil, time.Time{}, 0, false},
		{"of the call", byArrival, "127.0.0.1:9", "shop", nil, in, time.Hour, false},
		{"of a stranger's call", byArrival, "192.0.2.7:9", "shop", nil, in, time.Hour, false},
		{"of a stranger's call at a gate that goes by it", byDeadline, "192.0.2.7:9", "shop", nil, in, 0, true},
		{"a header says less", byArrival, "127.0.0.1:9", "shop", []string{"X-Request-Timeout: 60"}, in, time.Minute, false},
		{"a header says more", byArrival, "127.0.0.1:9", "shop", []string{"X-Request-Timeout: 7200"}, in, time.Hour, false},
		{"the route says less", byArrival, "127.0.0.1:9", "reports.example.com", nil, in, 3 * time.Second, false},
	} {
		r := from(tt.peer, tt.headers...)
		r.Host = tt.host
		v := viewLike(r)
		v.Deadline = tt.deadline
		_, w := tt.p.MatchView(&v)
		left := time.Duration(0)
		if !w.Deadline.IsZero() {
			left = time.Until(w.Deadline)
		}
		if left > tt.want || left < tt.want-time.Minute {
			t.Errorf("%s: %v left, want %v", tt.name, left, tt.want)
		}
		if (w.MaxWait != 0) != tt.bounded {
			t.Errorf("%s: longest wait %v", tt.name, w.MaxWait)
		}
	}
	v := viewLike(from("127.0.0.1:9"))
	v.Deadline = time.Now().Add(-time.Hour)
	rt, w := byArrival.MatchView(&v)
	if _, err := rt.Gate().Admit(t.Context(), w); weir.AsRejection(err) == nil || weir.AsRejection(err).Reason != weir.ReasonDeadline {
		t.Errorf("a call whose deadline has passed: %v", err)
	}
}

// A certificate counts as it does over TLS.
func TestViewCertificate(t *testing.T) {
	p := compile(t, Spec{
		Identity: IdentitySpec{User: "cert:uri", Tenant: "header:X-Tenant", TrustedCerts: []string{"uri:spiffe://example.org/edge"}},
		Routes:   []RouteSpec{{Match: []string{"/"}}},
	}, Options{})
	uri, err := url.Parse("spiffe://example.org/edge")
	if err != nil {
		t.Fatal(err)
	}
	v := View{Header: metadata{"x-tenant": {"acme"}}, Peer: netip.MustParseAddr("192.0.2.7"), Certificate: &x509.Certificate{URIs: []*url.URL{uri}}}
	if _, w := p.MatchView(&v); w.User != "spiffe://example.org/edge" || w.Tenant != "acme" {
		t.Errorf("user %q, tenant %q", w.User, w.Tenant)
	}
	v.Certificate = nil
	if _, w := p.MatchView(&v); w.User != "192.0.2.7" || w.Tenant != "" {
		t.Errorf("without the certificate: user %q, tenant %q", w.User, w.Tenant)
	}
}

// Of the paths of calls only short ones are remembered. With a handler for unknown methods,
// clients choose them.
func TestLongPathsAreNotRemembered(t *testing.T) {
	p := compile(t, Spec{Routes: []RouteSpec{{Match: []string{"/"}}, {Match: []string{"/a/"}}}}, Options{})
	for _, n := range []int{10, maxName, 1 << 20} {
		v := View{Method: "POST", Path: "/a/" + strings.Repeat("x", n), Fixed: true, Header: metadata{}}
		if rt, _ := p.MatchView(&v); rt.Name() != "/a/" {
			t.Errorf("%d bytes: route %q", n, rt.Name())
		}
	}
	if known := *p.matcher.fixed.of.Load(); len(known) != 1 {
		t.Errorf("%d paths are remembered, want 1", len(known))
	}
}

// A path that says who asks is matched each time. What is remembered of it is the route alone.
func TestFixedPathsWithAnIdentity(t *testing.T) {
	p := compile(t, Spec{
		Identity: IdentitySpec{Tenant: "path:service"},
		Routes:   []RouteSpec{{Match: []string{"/{service}/{method}"}}, {Match: []string{"/"}}},
	}, Options{})
	for range 2 {
		for _, service := range []string{"shop.Cart", "shop.Stock"} {
			v := View{Method: "POST", Path: "/" + service + "/Get", Fixed: true, Header: metadata{}}
			if _, w := p.MatchView(&v); w.Tenant != service {
				t.Errorf("tenant %q, want %q", w.Tenant, service)
			}
		}
	}
}

// Nothing is allocated for a view: what a request brings is read where it stands.
func TestViewCost(t *testing.T) {
	p := compile(t, viewed, Options{})
	v := viewLike(from("127.0.0.1:9", "X-Tenant: acme"))
	v.Path = "/"
	r := from("127.0.0.1:9", "X-Tenant: acme")
	if n := testing.AllocsPerRun(100, func() { p.MatchView(&v) }); n > 0 {
		t.Errorf("%v allocations for a view", n)
	}
	if n := testing.AllocsPerRun(100, func() { p.Match(r) }); n > 0 {
		t.Errorf("%v allocations for a request", n)
	}
}

func FuzzView(f *testing.F) {
	p := compile(f, viewed, Options{})
	f.Add("/shop.Cart/Get", "shop", "x-tenant", "acme")
	f.Add("/../%2e%2e//x", "reports.example.com.", "x-priority", "high")
	f.Fuzz(func(t *testing.T, path, host, name, value string) {
		r := request(http.MethodPost, host, path)
		r.Header.Add(name, value)
		v := viewLike(r)
		if lower := strings.ToLower(name); http.CanonicalHeaderKey(lower) != http.CanonicalHeaderKey(name) {
			t.Skip("no name of a header")
		}
		rt, w := p.MatchView(&v)
		byHTTP, same := p.Match(r)
		w.Deadline, same.Deadline = time.Time{}, time.Time{}
		if rt != byHTTP || w != same {
			t.Errorf("%q at %q with %q: %q is %+v over HTTP %+v", path, host, name, value, w, same)
		}
		if permit, err := rt.Gate().Admit(t.Context(), w); err == nil {
			permit.Done(weir.OK)
		} else if w.Cost >= 0 && w.Cost <= 4 {
			t.Errorf("%q: %v", path, err)
		}
	})
}
