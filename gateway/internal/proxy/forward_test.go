package proxy

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// Nobody behind the gateway can take a stranger's word for a trusted peer's, a
// program either that takes X_Tenant for X-Tenant: not even where a trusted peer has
// passed the one on beside the other.
func TestClaimsAreRemoved(t *testing.T) {
	var got http.Header
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header }))
	defer server.Close()
	f := func(trusted bool, header string, passed bool) {
		t.Helper()
		id := policy.IdentitySpec{Tenant: "header:X-Tenant", User: "header:Old_user", Trusted: []string{}}
		if trusted {
			id.Trusted = []string{"192.0.2.0/24"} // where requests of httptest come from
		}
		u, err := New("app", config.Upstream{Targets: []string{server.URL}}, slog.New(slog.DiscardHandler), quietEvents())
		if err != nil {
			t.Fatal(err)
		}
		u.Attach(compile(t, policy.Spec{Identity: id}, policy.Options{}), nil)
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set(header, "mallory")
		u.Serve(httptest.NewRecorder(), r, &Call{})
		if _, ok := got[http.CanonicalHeaderKey(header)]; ok != passed {
			t.Errorf("trusted %t: %s passed on %t, want %t", trusted, header, ok, passed)
		}
	}
	for header, trusted := range map[string]bool{
		"X-Tenant": true, "X_Tenant": false, "x_TENANT": false, "X.Tenant": false, "Old_User": true, "Old-User": true,
		"X_Forwarded_For": false, "X-Forwarded_Proto": false,
	} {
		f(false, header, false)
		f(true, header, trusted)
	}
	f(false, "X_Other", true)
	f(false, "X-Tenants", true)
}

// A client cannot turn its connection into one on which it says what it likes, and
// what it says after the body is no header to anybody.
func TestConfined(t *testing.T) {
	f := func(upgrade, want string) {
		t.Helper()
		out := httptest.NewRequest(http.MethodPost, "/", nil)
		out.Header.Set("Connection", "Upgrade")
		out.Header.Set("Upgrade", upgrade)
		out.Header.Set("HTTP2-Settings", "AAMAAABkAARAAAAAAAIAAAAA")
		out.Trailer = http.Header{"X-Tenant": {"mallory"}}
		removeBypasses(out)
		if out.Header.Get("Upgrade") != want || (out.Header.Get("Connection") == "") != (want == "") ||
			out.Header.Get("HTTP2-Settings") != "" || out.Trailer != nil {
			t.Errorf("%s: %v, trailers %v", upgrade, out.Header, out.Trailer)
		}
	}
	f("h2c", "")
	f("websocket, H2C", "")
	f("websocket", "websocket")
}
