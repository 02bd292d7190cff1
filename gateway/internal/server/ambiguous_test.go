package server

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// No spelling of a path leads past the gate of its route by way of a server that
// unescapes slashes.
func TestAmbiguousPaths(t *testing.T) {
	var reached []string
	up := upstreamOf(t, func(_ http.ResponseWriter, r *http.Request) { reached = append(reached, r.URL.EscapedPath()) })
	cfg := baseConfig(t, up.URL)
	cfg.Gates["heavy"] = policy.GateSpec{Limit: &policy.LimitSpec{Limit: 1, Queue: policy.QueueSpec{Len: -1}}}
	cfg.Routes = append([]config.Route{{
		RouteSpec: policy.RouteSpec{Match: []string{"/heavy/"}, Gates: []string{"heavy"}}, Upstream: gateName,
	}}, cfg.Routes...)
	g := start(t, cfg, Options{})
	held, err := g.Policy().Gate("heavy").TryAdmit(weir.Work{})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{
		"/heavy/a":                 http.StatusServiceUnavailable,
		"/x/%2e%2e/heavy/a":        http.StatusServiceUnavailable,
		"//heavy/a":                http.StatusServiceUnavailable,
		"/x%2f..%2fheavy/a":        http.StatusBadRequest,
		"/x%2F%2E%2e%2Fheavy%2fa":  http.StatusBadRequest,
		"/%2Fheavy/a":              http.StatusBadRequest,
		"/heavy/..%2Fheavy/a":      http.StatusBadRequest,
		"/calm%2Fnames/are%2Ffine": http.StatusOK,
	} {
		res, body := get(t, g.url+path)
		if res.StatusCode != want {
			t.Errorf("%s: %d %s, want %d", path, res.StatusCode, body, want)
		}
		if problem := res.Header.Get("Content-Type") == "application/problem+json"; problem != (want != http.StatusOK) {
			t.Errorf("%s: %s", path, res.Header.Get("Content-Type"))
		}
	}
	held.Cancel()
	if got := strings.Join(reached, " "); got != "/calm%2Fnames/are%2Ffine" {
		t.Errorf("the upstream saw %s", got)
	}
	g.idle()

	w := httptest.NewRecorder()
	g.metrics.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if line := `weir_http_requests_total{by="gateway",code="4xx",route="/"} 3`; !strings.Contains(w.Body.String(), line) {
		t.Errorf("no %s", line)
	}
}
