//go:build integration

package integration

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-go/weir/gateway/internal/await"
)

const ratelimitFile = "../../packaging/envoy/ratelimit.yaml"

// The rate limit filter of a real Envoy asks weir, by the configuration in the docs: what is over
// its limit gets 429 with the time to come back, a call of gRPC RESOURCE_EXHAUSTED, and without weir
// requests fail.
func TestEnvoyRateLimit(t *testing.T) {
	t.Parallel()
	program := envoyPart(t)
	if out, err := exec.Command(program, "--mode", "validate", "-c", ratelimitFile).CombinedOutput(); err != nil {
		t.Fatalf("envoy --mode validate: %v\n%s", err, out)
	}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello\n") }))
	t.Cleanup(service.Close)
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	writeFile(t, limits, []byte(`
domain: plans
descriptors:
  - {key: plan, value: free, rate_limit: {unit: hour, requests_per_unit: 2}}
  - key: plan
    value: paid
    descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]
`))
	g := startListening(t, "http", "serve: [ext_proc, ratelimit]", fmt.Sprintf("rate_limit_service: {files: [%s], headers: true}\nroutes: [{match: [/]}]\nshutdown: {grace: 1m, lame_duck: 0s}\n", limits))
	text, err := os.ReadFile(ratelimitFile)
	if err != nil {
		t.Fatal(err)
	}
	addr, admin, dir := freeAddr(t), freeAddr(t), t.TempDir()
	config := filepath.Join(dir, "envoy.yaml")
	writeFile(t, config, []byte(strings.NewReplacer( // a busy machine is no fault
		"timeout: 0.2s", "timeout: 120s", "connect_timeout: 1s", "connect_timeout: 60s", "timeout: 5s, interval", "timeout: 60s, interval",
		"port_value: 8000", "port_value: "+portOf(addr), "port_value: 9901", "port_value: "+portOf(admin),
		"port_value: 8091", "port_value: "+portOf(g.addr), "port_value: 3000", "port_value: "+portOf(service.Listener.Addr().String()),
	).Replace(string(text))))
	start(t, addr, dir, program, "-c", config, "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning")
	eventually(t, "Envoy knows that weir is healthy", func() bool {
		clusters, err := fetch("http://" + admin + "/clusters")
		return err == nil && strings.Contains(string(clusters), "weir::"+g.addr+"::health_flags::healthy")
	})
	client := http.Client{Timeout: await.Patience}
	ask := func(header ...string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res
	}
	for i, want := range []int{200, 200, 429} {
		res := ask("x-plan", "free")
		left := []string{"1", "0", "0"}[i]
		if res.StatusCode != want || res.Header.Get("X-Ratelimit-Remaining") != left || res.Header.Get("Ratelimit-Remaining") != left {
			t.Errorf("request %d: %s %v", i, res.Status, res.Header)
		}
	}
	for i, want := range []int{200, 429} {
		if res := ask("x-plan", "paid", "x-user", "alice"); res.StatusCode != want {
			t.Errorf("request %d of alice: %s", i, res.Status)
		}
	}
	if res := ask("x-plan", "paid", "x-user", "bob"); res.StatusCode != http.StatusOK {
		t.Errorf("bob: %s", res.Status)
	}
	if res := ask("x-plan", "gold"); res.StatusCode != http.StatusOK {
		t.Errorf("a plan without a limit: %s", res.Status)
	}
	if res := ask("x-plan", "free", "content-type", "application/grpc"); res.Header.Get("Grpc-Status") != "8" {
		t.Errorf("a call over its limit: %s %v", res.Status, res.Header)
	}
	metrics, err := fetch(g.admin + "/metrics")
	if err != nil || !strings.Contains(string(metrics), `weir_ratelimit_descriptors_total{domain="plans",result="over_limit",rule="plan=free"} 2`) {
		t.Errorf("%v: the metrics do not tell", err)
	}
	g.signal(t, syscall.SIGTERM)
	if err := g.wait(t); err != nil {
		t.Errorf("weir ends with %v", err)
	}
	if res := ask("x-plan", "paid", "x-user", "carol"); res.StatusCode != http.StatusInternalServerError {
		t.Errorf("without weir: %s", res.Status)
	}
}

// Where no weir answers, Envoy denies or lets in, as failure_mode_deny says.
func TestEnvoyWithoutRateLimits(t *testing.T) {
	t.Parallel()
	program := envoyPart(t)
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello\n") }))
	t.Cleanup(service.Close)
	text, err := os.ReadFile(ratelimitFile)
	if err != nil {
		t.Fatal(err)
	}
	for deny, want := range map[bool]int{true: http.StatusInternalServerError, false: http.StatusOK} {
		t.Run(fmt.Sprint("deny=", deny), func(t *testing.T) {
			t.Parallel()
			addr, dir := freeAddr(t), t.TempDir()
			config := filepath.Join(dir, "envoy.yaml")
			writeFile(t, config, []byte(strings.NewReplacer(
				// Nobody listens on port 1.
				"failure_mode_deny: true", fmt.Sprint("failure_mode_deny: ", deny),
				"port_value: 8000", "port_value: "+portOf(addr), "port_value: 9901", "port_value: "+portOf(freeAddr(t)),
				"port_value: 8091", "port_value: 1", "port_value: 3000", "port_value: "+portOf(service.Listener.Addr().String()),
			).Replace(string(text))))
			start(t, addr, dir, program, "-c", config, "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning")
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("X-Plan", "free")
			res, err := (&http.Client{Timeout: await.Patience}).Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			if res.StatusCode != want {
				t.Errorf("%s, want %d", res.Status, want)
			}
		})
	}
}
