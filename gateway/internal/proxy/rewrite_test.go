package proxy

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
)

// Nobody behind the gateway can take a stranger's word for a trusted peer's, a
// program either that takes X_Tenant for X-Tenant.
func TestClaimsAreRemoved(t *testing.T) {
	var got http.Header
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header }))
	defer server.Close()
	f := func(trusted bool, header string, passed bool) {
		t.Helper()
		u, err := New("app", config.Upstream{Targets: []string{server.URL}}, Options{
			Logger: slog.New(slog.DiscardHandler), Claims: []string{"X-Tenant", "Old_user"},
			Trusted: func(*http.Request) bool { return trusted },
		})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set(header, "mallory")
		u.Serve(httptest.NewRecorder(), r, &Call{})
		if _, ok := got[http.CanonicalHeaderKey(header)]; ok != passed {
			t.Errorf("trusted %t: %s passed on %t, want %t", trusted, header, ok, passed)
		}
	}
	for _, header := range []string{"X-Tenant", "X_Tenant", "x_TENANT", "Old_User", "Old-User", "X_Forwarded_For", "X-Forwarded_Proto"} {
		f(false, header, false)
		f(true, header, true)
	}
	f(false, "X_Other", true)
	f(false, "X-Tenants", true)
}
