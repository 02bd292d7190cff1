package policy

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
)

func TestMatch(t *testing.T) {
	p := compile(t, Spec{
		Identity: IdentitySpec{Tenant: "path:database", User: "path:rest"},
		Routes: []RouteSpec{
			{Name: "batch", Match: []string{"POST /v1/databases/{database}/batches"}},
			{Name: "read", Match: []string{"GET /v1/databases/{database}", "GET /v1/databases/{database}/{$}"}},
			{Name: "tree", Match: []string{"/tree/"}},
			{Name: "dir", Match: []string{"/dir/{database}/"}},
			{Name: "files", Match: []string{"/files/{rest...}"}},
			{Name: "host", Match: []string{"admin.example.com/"}},
			{Name: "ipv6", Match: []string{"::1/"}},
			{Name: "exact", Match: []string{"/exact"}},
			{Name: "root", Match: []string{"/{$}"}},
		},
	}, Options{})
	tests := []struct {
		method, host, path string
		want               string
		tenant, user       string
	}{
		{"POST", "", "/v1/databases/orders/batches", "batch", "orders", ""},
		{"POST", "", "/v1/databases/a%2Fb/batches", "batch", "a/b", ""},
		{"POST", "", "/v1//databases/./x/../orders/batches", "batch", "orders", ""},
		{"POST", "", "/v1/databases/a%2Fb//batches", "batch", "a/b", ""},
		{"POST", "", "/../../v1/databases/orders/batches", "batch", "orders", ""},
		{"GET", "", "/v1/databases/orders/batches", "", "", ""}, // another method: no route
		{"GET", "", "/v1/databases/orders", "read", "orders", ""},
		{"HEAD", "", "/v1/databases/orders", "read", "orders", ""},
		{"GET", "", "/v1/databases/orders/", "read", "orders", ""},
		{"get", "", "/v1/databases/orders", "", "", ""},
		{"GET", "", "/tree/a/b", "tree", "", ""},
		{"GET", "", "/tree", "tree", "", ""}, // ServeMux would redirect
		{"POST", "", "/tree", "tree", "", ""},
		{"CONNECT", "", "/tree", "tree", "", ""},
		{"GET", "", "//tree", "tree", "", ""},
		{"GET", "", "/dir/a%2Fb", "dir", "a/b", ""},
		{"GET", "", "/dir/a%2Fb|", "dir", "a/b|", ""},
		{"GET", "", "/trees", "", "", ""},
		{"GET", "", "/files", "files", "", ""},
		{"GET", "", "/files/a/b%20c", "files", "", "a/b c"},
		{"GET", "admin.example.com", "/exact", "host", "", ""},
		{"GET", "ADMIN.example.com:8443", "/x", "host", "", ""},
		{"GET", "admin.example.com.", "/x", "host", "", ""},
		{"CONNECT", "admin.example.com:443", "", "host", "", ""},
		{"GET", "[::1]:80", "/x", "ipv6", "", ""},
		{"GET", "[::1]", "/x", "ipv6", "", ""},
		{"GET", "example.com", "/exact", "exact", "", ""},
		{"GET", "example.com", "/exact/", "", "", ""},
		{"GET", "example.com", "exact", "exact", "", ""},
		{"GET", "", "/", "root", "", ""},
		{"GET", "", "", "root", "", ""},
		{"GET", "", "//", "root", "", ""},
		{"OPTIONS", "", "*", "root", "", ""},
		{"GET", "", "/\x00%zz", "", "", ""},
		{"GET", "", "/%2e%2e/exact", "exact", "", ""}, // as servers take it
		{"GET", "", "/x/.%2E/exact", "exact", "", ""},
		{"GET", "", "/%2e/exact", "exact", "", ""},
		{"GET", "", "/tree/%2e%2e/files/%2ehidden%2ftree", "files", "", ".hidden/tree"},
		{"GET", "", "/files/a%2eb%20c", "files", "", "a.b c"},
	}
	for _, tt := range tests {
		r := request(tt.method, tt.host, tt.path)
		r.RequestURI = tt.path
		rt, w := p.Match(r)
		if rt.Name() != tt.want || w.Tenant != tt.tenant || w.User != tt.user {
			t.Errorf("%s %s%s: route %q tenant %q user %q, want %q %q %q",
				tt.method, tt.host, tt.path, rt.Name(), w.Tenant, w.User, tt.want, tt.tenant, tt.user)
		}
		if w.Op != tt.want {
			t.Errorf("%s %s: Op is %q", tt.method, tt.path, w.Op)
		}
	}
}

func TestMatchWithACatchAll(t *testing.T) {
	for _, all := range []string{"/", "/{rest...}"} {
		p := compile(t, Spec{Routes: []RouteSpec{
			{Name: "post", Match: []string{"POST /a/"}}, {Name: "all", Match: []string{all}},
		}}, Options{})
		for _, tt := range []struct{ method, path, want string }{
			{"POST", "/a/b", "post"}, {"POST", "/a", "post"}, {"GET", "/a/b", "all"}, {"GET", "/a", "all"}, {"OPTIONS", "*", "all"},
		} {
			if rt, _ := p.Match(request(tt.method, "", tt.path)); rt.Name() != tt.want {
				t.Errorf("with %s: %s %s matches %q, want %q", all, tt.method, tt.path, rt.Name(), tt.want)
			}
		}
	}
}

func TestMatchWithOnePatternAndNone(t *testing.T) {
	one := compile(t, Spec{Routes: []RouteSpec{{Match: []string{"/"}}}}, Options{})
	none := compile(t, Spec{Routes: []RouteSpec{{Name: "jobs"}}}, Options{})
	for _, r := range []*http.Request{get("/x"), request("CONNECT", "h:1", ""), {Method: "GET"}} {
		if rt, _ := one.Match(r); rt.Name() != "/" {
			t.Errorf("%v matches %q, want /", r.URL, rt.Name())
		}
		if rt, w := none.Match(r); rt != nil || w.Op != "" {
			t.Errorf("%v matches %q in a policy without patterns", r.URL, rt.Name())
		}
	}
	only := compile(t, Spec{Routes: []RouteSpec{{Name: "a", Match: []string{"/", "/b"}}, {Name: "c", Match: []string{"/c"}}}}, Options{})
	if rt, _ := only.Match(get("/c")); rt.Name() != "c" {
		t.Errorf("/c matches %q", rt.Name())
	}
}

// A request that an outer mux has routed keeps what that mux found.
func TestMatchLeavesTheRequestAlone(t *testing.T) {
	p := compile(t, Spec{Routes: []RouteSpec{{Name: "r", Match: []string{"/x/{name}/"}}}}, Options{})
	outer := http.NewServeMux()
	outer.HandleFunc("GET /{first}/", func(_ http.ResponseWriter, r *http.Request) {
		if rt, _ := p.Match(r); rt.Name() != "r" {
			t.Errorf("matched %q", rt.Name())
		}
		if r.Pattern != "GET /{first}/" || r.PathValue("first") != "x" || r.URL.Path != "/x/y" {
			t.Errorf("the request now has pattern %q, first %q, path %q", r.Pattern, r.PathValue("first"), r.URL.Path)
		}
	})
	outer.ServeHTTP(nil, get("/x/y"))
}

func TestMatchBuildsTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := Compile(Spec{
			Identity: IdentitySpec{Priority: "header:X-Priority", Client: "const:edge"},
			Routes: []RouteSpec{{Name: "r", Match: []string{"/"}, Priority: "high", Cost: 3,
				Timeout: Duration(2 * time.Second), MaxWait: NoDuration}},
		}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		want := weir.Work{Op: "r", Client: "edge", Priority: weir.High, Cost: 3, MaxWait: weir.NoWait, Deadline: time.Now().Add(2 * time.Second)}
		r := get("/")
		if _, w := p.Match(r); w != want {
			t.Errorf("work is %+v, want %+v", w, want)
		}
		for text, priority := range map[string]weir.Priority{"CRITICAL": weir.Critical, "background": weir.Background, "urgent": weir.High} {
			r.Header.Set("X-Priority", text)
			if _, w := p.Match(r); w.Priority != priority {
				t.Errorf("%s: priority is %v, want %v", text, w.Priority, priority)
			}
		}
		r.RemoteAddr = "203.0.113.9:1"
		r.Header.Set("X-Priority", "critical")
		if _, w := p.Match(r); w.Priority != weir.High {
			t.Errorf("a stranger's priority is believed: %v", w.Priority)
		}
	})
}

func TestMatchOnVirtualTime(t *testing.T) {
	now := 5 * time.Second
	p := compile(t, Spec{Routes: []RouteSpec{{Match: []string{"/"}, Timeout: Duration(time.Second)}}},
		Options{Now: func() time.Duration { return now }})
	if _, w := p.Match(get("/")); !w.Deadline.Equal(weir.VirtualEpoch.Add(6 * time.Second)) {
		t.Errorf("deadline is %v", w.Deadline)
	}
}

func TestNilRouteAdmitsEverything(t *testing.T) {
	var rt *Route
	if _, err := rt.Gate().Admit(t.Context(), rt.Work()); err != nil || rt.Timeout() != 0 || rt.Name() != "" ||
		rt.Gates() != nil || rt.Patterns() != nil {
		t.Errorf("Admit: %v, timeout %v, name %q", err, rt.Timeout(), rt.Name())
	}
}

func TestRouteDescribesItself(t *testing.T) {
	p := compile(t, routeSpec(RouteSpec{Match: []string{"/a", "/b"}, Gates: []string{"db", "api"}, Timeout: Duration(time.Second)}), Options{})
	rt := p.Route("/a")
	var gates []string
	for _, g := range rt.Gates() {
		gates = append(gates, g.Name())
	}
	if strings.Join(rt.Patterns(), " ") != "/a /b" || strings.Join(gates, " ") != "db api" || rt.Timeout() != time.Second {
		t.Errorf("patterns %q, gates %q, timeout %v", rt.Patterns(), gates, rt.Timeout())
	}
	for other := range p.Routes() {
		if other != rt {
			t.Errorf("unexpected route %q", other.Name())
		}
	}
	if p.Route("/b") != nil {
		t.Error("a route is found by its second pattern")
	}
}

func BenchmarkMatch(b *testing.B) {
	p := compile(b, Spec{
		Identity: IdentitySpec{Tenant: "header:X-Tenant", User: "peer"},
		Routes: []RouteSpec{
			{Match: []string{"POST /v1/databases/{database}/batches"}},
			{Match: []string{"GET /v1/status/all"}},
			{Match: []string{"/tree/"}},
		},
	}, Options{})
	only := compile(b, Spec{Routes: []RouteSpec{{Match: []string{"/"}}}}, Options{})
	tenant := get("/v1/status/all")
	tenant.Header.Set("X-Tenant", "acme")
	mux := http.NewServeMux()
	mux.Handle("POST /v1/databases/{database}/batches", endpoint{})
	mux.Handle("GET /v1/status/all", endpoint{})
	batch := request("POST", "example.com", "/v1/databases/orders/batches")

	for _, c := range []struct {
		name string
		p    *Policy
		r    *http.Request
	}{
		{"only", only, get("/v1/x")},
		{"literal", p, tenant},
		{"wildcard", p, batch},
		{"none", p, get("/v2/other")},
		{"slash", p, get("/tree")},
		{"unclean", p, get("/v1//status/all")},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.p.Match(c.r)
			}
		})
	}
	b.Run("bare mux, wildcard", func(b *testing.B) {
		b.ReportAllocs()
		m := &match{}
		for b.Loop() {
			mux.ServeHTTP(m, batch)
		}
	})
}

// Only the last gate of a chain lets work wait.
func TestLongestWait(t *testing.T) {
	room := func(n int, wait time.Duration) GateSpec {
		return GateSpec{Limit: &LimitSpec{Limit: 1, Queue: QueueSpec{Len: n, MaxWait: Duration(wait)}}}
	}
	rate := func(n int, wait time.Duration) GateSpec {
		return GateSpec{Quota: &QuotaSpec{QuotaLimitSpec: QuotaLimitSpec{Rate: "1/s"}, Queue: QuotaQueueSpec{Len: n, MaxWait: Duration(wait)}}}
	}
	gates := map[string]GateSpec{
		"default": room(0, 0), "minute": room(9, time.Minute), "unbounded": room(0, -1), "none": room(-1, 0),
		"rate": rate(5, 0), "slow": rate(5, time.Hour), "quick": rate(0, 0),
	}
	want := map[string]time.Duration{
		"default": 2 * time.Second, "minute": time.Minute, "unbounded": -1, "none": 0, "rate": 2 * time.Second, "slow": time.Hour, "quick": 0,
		"minute default": 2 * time.Second, "": 0,
	}
	spec := Spec{Gates: gates}
	for chain := range want {
		spec.Routes = append(spec.Routes, RouteSpec{Name: "of " + chain, Gates: strings.Fields(chain)})
	}
	p := compile(t, spec, Options{})
	for chain, want := range want {
		if d := p.Route("of " + chain).LongestWait(); d != want && (want >= 0 || d >= 0) {
			t.Errorf("the chain %q lets work wait for %v, want %v", chain, d, want)
		}
	}
	if d := (*Route)(nil).LongestWait(); d != 0 {
		t.Errorf("no route lets work wait for %v", d)
	}
}

// What ends with a dot segment is the folder, and not a file of its name.
func TestDotsAtTheEnd(t *testing.T) {
	p := compile(t, Spec{Routes: []RouteSpec{{Match: []string{"/heavy"}}, {Match: []string{"/heavy/"}}}}, Options{})
	for path, want := range map[string]string{
		"/heavy":           "/heavy",
		"/a/../heavy":      "/heavy",
		"/./heavy":         "/heavy",
		"/heavy/":          "/heavy/",
		"/heavy//":         "/heavy/",
		"/heavy/.":         "/heavy/",
		"/heavy/%2e":       "/heavy/",
		"/heavy/./.":       "/heavy/",
		"/heavy/x/..":      "/heavy/",
		"/heavy/x/%2E%2e":  "/heavy/",
		"/heavy/x/y/../..": "/heavy/",
		"/heavy/...":       "/heavy/",
		"/heavy/.x":        "/heavy/",
	} {
		if rt, _ := p.Match(get(path)); rt.Name() != want {
			t.Errorf("%s goes to the route %q, want %q", path, rt.Name(), want)
		}
	}
	for path, want := range map[string]string{"/.": "/", "/..": "/", "/a/..": "/", "/a/.": "/a/", "/a.": "/a.", "/a..": "/a..", "a/..": "/", "": "/", "/a//": "/a/"} {
		if got := cleanPath(path); got != want {
			t.Errorf("cleanPath(%q) is %q, want %q", path, got, want)
		}
	}
}

func TestAmbiguous(t *testing.T) {
	for path, want := range map[string]bool{
		"/":                         false,
		"/a/b":                      false,
		"/a%2Fb":                    false, // a name with a slash in it
		"/a%2Fb%2fc/":               false,
		"/a%2F":                     false,
		"/a%2F.b":                   false,
		"/a%2F...":                  false,
		"/a%20b":                    false,
		"/a//b/../c%2Fd":            false, // here and there /a/c/d
		"/a/..":                     false, // here and there /
		"*":                         false,
		"/%2Fa":                     true,
		"/a%2F/b":                   true,
		"/a/%2fb":                   true,
		"/a%2F%2Fb":                 true,
		"/x%2f..%2fheavy":           true,
		"/x%2F%2e%2e%2Fheavy":       true,
		"/x/..%2Fheavy":             true,
		"/x%2F..":                   true,
		"/x%2F./y":                  true,
		"/a//x%2F%2E":               true,
		"/v1/databases/a%2F../b":    true,
		"/%2e%2e%2fheavy/%2ehidden": true,
		"/a//b/":                    false,
		"//a/./b":                   false,
		"/a//b/..":                  false, // here and there /a/
		"/heavy//../light":          true,  // there /heavy/light
		"/x//../heavy/1":            true,
		"/x//%2e%2E/heavy":          true,
		"/x///../..":                true,
		"//..":                      true,
		"/..":                       true,
		"/../private":               true, // below a target's path elsewhere
		"/%2e%2E/private":           true,
		"/a/../../private/..":       true,
		"/a/b/.././../c":            false, // here and there /c
		"/..a/...":                  false,
	} {
		if got := Ambiguous(get(path).URL); got != want {
			t.Errorf("%s: %t, want %t", path, got, want)
		}
	}
	for _, text := range []string{"x:y", "x:http://admin.example/heavy/1", "http:heavy"} { // no path, and sent on as it is
		if u, err := url.ParseRequestURI(text); err == nil && !Ambiguous(u) {
			t.Errorf("%s is for %q", text, u.Path)
		}
	}
	if Ambiguous(nil) {
		t.Error("no URL is ambiguous")
	}
}

func TestAmbiguousHost(t *testing.T) {
	all := RouteSpec{Match: []string{"/"}}
	hostless := compile(t, Spec{Routes: []RouteSpec{all}}, Options{})
	readers := map[string]*Policy{
		"pattern":  compile(t, Spec{Routes: []RouteSpec{all, {Match: []string{"GET heavy.test/"}}}}, Options{}),
		"identity": compile(t, Spec{Identity: IdentitySpec{Tenant: "header:Host"}, Routes: []RouteSpec{all}}, Options{}),
	}
	for host, want := range map[string]bool{
		"":                    false,
		"heavy.test":          false,
		"heavy.test.:80":      false,
		"heavy.test:":         false, // an empty port is one (RFC 3986, 3.2.3)
		"192.0.2.1:80":        false,
		"[::1]":               false,
		"[::1]:80":            false,
		"[::ffff:192.0.2.1]:": false,
		"heavy.test:80:80":    true,
		"heavy.test::":        true,
		"127.0.0.1:1,[::1]:2": true, // of a client of gRPC
		":heavy.test:":        true,
		"::1":                 true,
		"[::1]:80:80":         true,
		"[::1]heavy.test":     true,
		"[::1":                true,
		"[]":                  true,
		"[heavy.test]":        true,
		"[192.0.2.1]":         true,
	} {
		for name, p := range readers {
			if got := p.AmbiguousHost(host); got != want {
				t.Errorf("host in a %s, %s: %t, want %t", name, host, got, want)
			}
		}
		if hostless.AmbiguousHost(host) { // the gates are the same for all hosts
			t.Errorf("%s is ambiguous without any host", host)
		}
	}
}

// A byte that should have been escaped is, and nothing else of the path changes.
func TestEscapedPath(t *testing.T) {
	for path, want := range map[string]string{
		"/":               "/",
		"/a b":            "/a%20b",
		"/a%2Fb":          "/a%2Fb",
		"/a%2fb|c":        "/a%2fb%7Cc",
		"/a%2Fcaf\u00e9":  "/a%2Fcaf%C3%A9",
		"/%7e[a]\"#%2F":   "/%7e[a]%22%23%2F",
		"/a%2Fb%20{c}%7D": "/a%2Fb%20%7Bc%7D%7D",
	} {
		u := &url.URL{Path: path}
		if raw, err := url.ParseRequestURI(path); err == nil {
			u = raw
		}
		got := EscapedPath(u)
		if got != want {
			t.Errorf("%q: %s, want %s", path, got, want)
		}
		if u.RawPath = got; u.EscapedPath() != got {
			t.Errorf("%q: net/url takes %s for %s", path, got, u.EscapedPath())
		}
	}
	if got := EscapedPath(&url.URL{Path: "/c", RawPath: "/a%2Fb|"}); got != "/c" {
		t.Errorf("%s, and the path was changed to /c", got)
	}
}

// Each pattern is compared with those before it, so there is a bound on how many there are.
func TestPatternsAreBounded(t *testing.T) {
	spec := Spec{Routes: make([]RouteSpec, 4)}
	for i := range mostPatterns + 1 {
		at := &spec.Routes[i*3/mostPatterns]
		at.Match = append(at.Match, fmt.Sprintf("/%d", i))
	}
	_, err := Compile(spec, Options{})
	wantFaults(t, err, []string{"routes[3]: up to here, routes have more than 10000 patterns; write fewer"})
	spec.Routes = spec.Routes[:3]
	if _, err = Compile(spec, Options{}); err != nil {
		t.Errorf("%d patterns: %v", mostPatterns, err)
	}
}
