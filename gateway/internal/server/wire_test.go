package server

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/policy"
)

// claims are what a client says of itself, and more than that.
var claims = http.Header{
	"X-Tenant": {"acme"}, "X-User": {"root"}, "X-Priority": {"critical"},
	"X_tenant": {"acme"}, "X_Priority": {"critical"},
	"X-Request-Timeout": {"30"},
}

// The upstream sees what was decided, not what a stranger says.
func TestUpstreamSeesWhatWasDecided(t *testing.T) {
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		for name := range claims {
			fmt.Fprintf(w, "%s=%s;", strings.ToLower(name), strings.Join(r.Header[name], ","))
		}
	})
	f := func(trusted []string, header http.Header, want ...string) {
		t.Helper()
		cfg := baseConfig(t, up.URL)
		cfg.Identity = policy.IdentitySpec{Tenant: "header:X-Tenant", User: "header:X-User", Priority: "header:X-Priority", Trusted: trusted}
		cfg.Routes[0].Priority = "high"
		g := start(t, cfg, Options{})
		req, err := http.NewRequest(http.MethodGet, g.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = header.Clone()
		res, body := do(t, req)
		for _, part := range want {
			if !strings.Contains(body, part+";") {
				t.Errorf("trusting %q: %d %s, want %s in it", trusted, res.StatusCode, body, part)
			}
		}
		g.idle()
	}
	strange := []string{"10.0.0.0/8"}
	f(strange, claims, "x-tenant=", "x_tenant=", "x-user=", "x_priority=", "x-priority=high")
	f(nil, claims, "x-tenant=acme", "x_tenant=", "x-user=root", "x_priority=", "x-priority=critical")
	f(strange, http.Header{}, "x-tenant=", "x-user=", "x-priority=high", "x-request-timeout=")
	hop := claims.Clone()
	hop.Set("Connection", "X-Tenant, X-Priority")
	f(strange, hop, "x-tenant=", "x-priority=high")
	f(nil, hop, "x-tenant=acme", "x-priority=critical")
	twice := http.Header{"X-Tenant": {"a", "b"}, "X-Priority": {"critical", "background"}}
	f(nil, twice, "x-tenant=", "x-priority=high")
}

// The time that is left, and no more, goes on; bad values change nothing.
func TestTimeoutGoesOn(t *testing.T) {
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("X-Request-Timeout"))
	})
	g := start(t, baseConfig(t, up.URL), Options{})
	f := func(sent string, ok func(string) bool) {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, g.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Request-Timeout", sent)
		if res, body := do(t, req); res.StatusCode != http.StatusOK || !ok(body) {
			t.Errorf("%.40s: %d %.40s", sent, res.StatusCode, body)
		}
	}
	less := func(d time.Duration) func(string) bool {
		return func(got string) bool {
			left, err := time.ParseDuration(strings.TrimSuffix(got, "s") + "s")
			return err == nil && left > 0 && left <= d
		}
	}
	f("3600", less(time.Hour))
	f("99999999999999999999", less(366*24*time.Hour))
	for _, bad := range []string{"-1", "0", "soon", "1e9", strings.Repeat("9", 10<<10)} {
		f(bad, func(got string) bool { return got == bad })
	}
	if n := g.Policy().Ignored().Timeouts; n != 5 {
		t.Errorf("%d timeouts were ignored, want 5", n)
	}
}

// A client that waits less than the others is refused for its deadline, here
// because it is over.
func TestTimeoutIsOver(t *testing.T) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) { t.Error("it reached the upstream") })
	g := start(t, baseConfig(t, up.URL), Options{})
	req, err := http.NewRequest(http.MethodPost, g.url, strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Grpc-Timeout", "0n")
	if res, body := do(t, req); res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, `"reason":"deadline"`) {
		t.Errorf("%d %s", res.StatusCode, body)
	}
}

// A refusal says whose work was refused to peers that are trusted, and to nobody
// else.
func TestRefusalNamesWhom(t *testing.T) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	f := func(trusted []string, class, tenant any) {
		t.Helper()
		cfg := baseConfig(t, up.URL)
		cfg.Identity = policy.IdentitySpec{Tenant: "header:X-Tenant", Priority: "header:X-Priority", Trusted: trusted}
		g := start(t, cfg, Options{})
		req, err := http.NewRequest(http.MethodGet, g.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"X-Tenant": {`a"c<me`}, "X-Priority": {"background"}, "Grpc-Timeout": {"0n"}}
		res, body := do(t, req)
		var document map[string]any
		if err := json.Unmarshal([]byte(body), &document); err != nil || res.StatusCode != http.StatusServiceUnavailable {
			t.Fatalf("%d %s: %v", res.StatusCode, body, err)
		}
		if document["class"] != class || document["tenant"] != tenant || document["reason"] != "deadline" {
			t.Errorf("trusting %q: %s", trusted, body)
		}
	}
	f(nil, "background", `a"c<me`)
	f([]string{"10.0.0.0/8"}, nil, nil)
}

// Whatever identity a client brings, it is answered, and what is kept of it is
// bounded.
func TestHostileIdentities(t *testing.T) {
	up := upstreamOf(t, func(w http.ResponseWriter, _ *http.Request) {})
	cfg := baseConfig(t, up.URL)
	cfg.Identity = policy.IdentitySpec{Tenant: "header:X-Tenant", User: "header:X-User", Priority: "header:X-Priority"}
	cfg.Metrics.Tenants = 5
	g := start(t, cfg, Options{})
	f := func(status, header string) {
		t.Helper()
		c := dial(t, g.Addr(), "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"+header+"\r\n\r\n")
		answer, err := io.ReadAll(c)
		if err != nil && len(answer) == 0 || !strings.HasPrefix(string(answer), "HTTP/1.1 "+status) {
			t.Errorf("%.60q: %.60q, %v; want %s", header, answer, err, status)
		}
	}
	long := strings.Repeat("x", 10<<10)
	f("200", "X-Tenant: "+long+"\r\nX-User: "+long+"\r\nX-Priority: "+long)
	f("200", "X-Tenant: a\tb\r\nX-Priority: \xff\xfe")
	f("400", "X-Tenant: a\x00b")
	f("200", "X-Tenant: a\r\nX-Tenant: b\r\nX-Priority: critical\r\nX-Priority: normal")
	f("200", "X-Priority: -2147483649\r\nGrpc-Timeout: 99999999H\r\nX-Request-Timeout: -9223372036854775808")
	f("200", "Grpc-Timeout: \xff\r\nX-Request-Timeout: NaN\r\nX-Forwarded-For: ,,,\xff,::::")
	for i := range 100 {
		f("200", fmt.Sprintf("X-Tenant: invented%d", i))
	}
	g.idle()
	rec := httptest.NewRecorder()
	g.metrics.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if n := strings.Count(rec.Body.String(), `weir_tenant_requests_total{by="upstream"`); rec.Code != http.StatusOK || n != 6 {
		t.Errorf("%d, series of %d tenants, want 5 and the rest", rec.Code, n)
	}
	if g.Policy().Ignored().Priorities != 4 {
		t.Errorf("%d priorities ignored, want 4", g.Policy().Ignored().Priorities)
	}
}
