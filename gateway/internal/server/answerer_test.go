package server

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// Who reads the metrics can tell three kinds of 503 and 502 apart.
func TestMetricsSayWhoAnswered(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			arrived <- struct{}{}
			<-release
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	cfg := baseConfig(t, up.URL)
	change(cfg, func(_ *config.Upstream, l *policy.LimitSpec) { l.Limit, l.Queue.Len = 1, -1 })
	g := start(t, cfg, Options{})
	first := make(chan struct{})
	go func() {
		defer close(first)
		if res, err := http.Get(g.url + "/hold"); err == nil {
			res.Body.Close()
		}
	}()
	<-arrived
	get(t, g.url) // refused
	close(release)
	<-first
	up.Close()
	get(t, g.url) // no connection
	g.idle()

	w := httptest.NewRecorder()
	g.metrics.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, by := range []string{"upstream", "gate", "gateway"} {
		if line := `weir_http_requests_total{by="` + by + `",code="5xx",route="/"} 1` + "\n"; !strings.Contains(w.Body.String(), line) {
			t.Errorf("no %s", line)
		}
	}
}
