package server

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/eventlog"
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

// A signal under pressure shrinks the limit and is named wherever somebody may
// look for the reason: the refusal, the log, the gate, the metrics.
func TestABindingSignalIsNamed(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) { <-release })
	defer close(release)
	file := filepath.Join(t.TempDir(), "pressure")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write("0.5")
	cfg := baseConfig(t, up.URL)
	cfg.Signals = map[string]config.Signal{
		"pressure": {SignalSpec: policy.SignalSpec{Read: "file", Path: file, Interval: policy.Duration(5 * time.Millisecond), Hold: policy.Duration(time.Minute)}},
	}
	change(cfg, func(_ *config.Upstream, l *policy.LimitSpec) {
		l.Signals, l.Queue.Len = []string{"pressure", "heap"}, -1
	})
	g := start(t, cfg, Options{})
	for range 8 {
		go func() {
			if res, err := http.Get(g.url); err == nil {
				res.Body.Close()
			}
		}()
	}
	eventually(t, "eight in flight", func() bool { return g.gate().InFlight == 8 })
	write("4")
	eventually(t, "a limit of 2 by the pressure", func() bool { return g.gate().Limit == 2 && g.gate().Signal == "pressure" })

	if res, body := get(t, g.url); res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, `"signal":"pressure"`) {
		t.Errorf("answered %d %s; want a refusal that names the signal", res.StatusCode, body)
	}
	if !strings.Contains(g.log.String(), "signal=pressure") {
		t.Error("the refusal's line does not name the signal")
	}
	if s, ok := g.gateSnapshot(gateName); !ok || s.Signal != "pressure" {
		t.Errorf("a limit's line would name %q", s.Signal)
	}
	if _, ok := g.gateSnapshot("none"); ok {
		t.Error("a gate that there is none of has something to see")
	}
	look := g.metrics.Status()
	if len(look.Signals) != 2 || look.Gates[0].Signal != "pressure" || len(look.Gates[0].Signals) != 2 {
		t.Fatalf("looks like %+v", look)
	}
	if s := look.Signals[1]; s.Name != "pressure" || s.State != "live" || s.Value == nil || *s.Value != 4 {
		t.Errorf("the signal looks like %+v", s)
	}

	write("much")
	eventually(t, "the trouble is logged", func() bool {
		return strings.Contains(g.log.String(), "a signal failed") && g.metrics.Status().Signals[1].Error != ""
	})
	write("0")
	eventually(t, "the recovery is logged", func() bool { return strings.Contains(g.log.String(), "a signal can be read again") })
	eventually(t, "the limit is back", func() bool { return g.gate().Limit == 10 && g.gate().Signal == "" })
}

// A controller that fails is logged, through the hook that gates call.
func TestAFailingControllerIsLogged(t *testing.T) {
	out := new(logBuffer)
	s := &Server{events: eventlog.New(slog.New(slog.NewTextHandler(out, nil)), nil)}
	s.hooks().Faulty("api", "it wants a limit of 0")
	if text := out.String(); !strings.Contains(text, "level=ERROR") || !strings.Contains(text, `gate=api error="it wants a limit of 0"`) {
		t.Errorf("logged %s", text)
	}
}
