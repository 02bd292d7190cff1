package server

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// A target that says it is not well gets no requests, until it is well again. Whoever looks can see
// that, and a reload does not forget it.
func TestHealthChecksOfTargets(t *testing.T) {
	var sick atomic.Bool
	served := new(atomic.Int32) // by the target that falls sick
	first := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != "/healthz":
			served.Add(1)
		case sick.Load():
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	second := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	cfg := baseConfig(t, first.URL)
	change(cfg, func(u *config.Upstream, _ *policy.LimitSpec) {
		u.Targets = []string{first.URL, second.URL}
		u.HealthCheck = &config.HealthCheck{
			Path: "/healthz", Interval: policy.Duration(5 * time.Millisecond), Timeout: policy.Duration(time.Minute), Healthy: 2, Unhealthy: 2,
		}
	})
	g := start(t, cfg, Options{Load: func() (*config.Config, error) { return cfg, nil }})
	state := func() string { return g.metrics.Status().Upstreams[gateName][0].Health.State }
	eventually(t, "the first is well", func() bool { return state() == "healthy" })
	sick.Store(true)
	eventually(t, "the first is sick", func() bool { return state() == "unhealthy" })
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	if got := state(); got != "unhealthy" {
		t.Errorf("after a reload the first is %s", got)
	}
	served.Store(0)
	for range 4 {
		get(t, g.url)
	}
	if n := served.Load(); n != 0 {
		t.Errorf("the sick target got %d requests", n)
	}
	w := httptest.NewRecorder()
	g.metrics.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if line := `weir_upstream_healthy{target="` + first.URL + `",upstream="upstream"} 0` + "\n"; !strings.Contains(w.Body.String(), line) {
		t.Errorf("no %s", line)
	}
	sick.Store(false)
	eventually(t, "the first is well again", func() bool { return state() == "healthy" })
	for range 4 {
		get(t, g.url)
	}
	if served.Load() == 0 {
		t.Error("the target that is well again got no requests")
	}
}
