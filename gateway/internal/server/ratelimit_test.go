package server

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/weir-go/weir/gateway/internal/config"
)

// askLimit asks about one descriptor and returns the answer in short.
func askLimit(t *testing.T, conn *grpc.ClientConn, domain, key, value string) string {
	t.Helper()
	res, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), &rls.RateLimitRequest{
		Domain: domain, Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{{Key: key, Value: value}}}},
	})
	if err != nil {
		return status.Code(err).String()
	}
	return fmt.Sprintf("%v %d/%v left %d", res.OverallCode, res.Statuses[0].CurrentLimit.GetRequestsPerUnit(), res.Statuses[0].CurrentLimit.GetUnit(), res.Statuses[0].LimitRemaining)
}

// An Envoy asks on the listener for it. The files of its limits are read at the start, and again
// when they change; a fault in one changes nothing.
func TestRateLimitService(t *testing.T) {
	dir := t.TempDir()
	limits := filepath.Join(dir, "limits.yaml")
	write := func(n int) {
		t.Helper()
		if err := os.WriteFile(limits, fmt.Appendf(nil, "domain: api\ndescriptors: [{key: db, rate_limit: {unit: hour, requests_per_unit: %d}}]\n", n), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(2)
	load := func() (*config.Config, error) {
		return config.Parse(filepath.Join(dir, "weir.yaml"), []byte(`
listeners:
  - {address: "127.0.0.1:0", serve: [ratelimit]}
  - {address: "localhost:0", serve: [ext_proc]}
admin: {address: off}
rate_limit_service: {files: [limits.yaml]}
gates: {own: {quota: {rules: [{descriptor: "plan=*", rate: 1/h}]}}}
routes: [{match: [/]}]
shutdown: {grace: 1m, lame_duck: 0s}
`))
	}
	cfg, err := load()
	if err != nil {
		t.Fatal(err)
	}
	g := start(t, cfg, Options{Load: load})
	conn := func(i int) *grpc.ClientConn {
		c, err := grpc.NewClient(g.listeners[i].Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	c := conn(0)
	for i, step := range []struct{ domain, key, value, want string }{
		{"api", "db", "users", "OK 2/HOUR left 1"}, {"api", "db", "users", "OK 2/HOUR left 0"}, {"api", "db", "users", "OVER_LIMIT 2/HOUR left 0"},
		{"own", "plan", "free", "OK 1/HOUR left 0"}, {"own", "plan", "free", "OVER_LIMIT 1/HOUR left 0"}, {"none", "db", "users", "OK 0/UNKNOWN left 0"},
		{"api", "db", strings.Repeat("x", 1<<20), "ResourceExhausted"},
	} {
		if got := askLimit(t, c, step.domain, step.key, step.value); got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
	check, err := healthgrpc.NewHealthClient(c).Check(t.Context(), &healthgrpc.HealthCheckRequest{Service: "envoy.service.ratelimit.v3.RateLimitService"})
	if err != nil || check.Status != healthgrpc.HealthCheckResponse_SERVING {
		t.Errorf("%v %v", check, err)
	}
	if got := askLimit(t, conn(1), "api", "db", "users"); got != codes.Unimplemented.String() {
		t.Errorf("a listener for ext_proc alone: %s", got)
	}
	write(50)
	g.reloadChanged()
	g.reloadChanged()
	if got := askLimit(t, c, "api", "db", "orders"); got != "OK 50/HOUR left 49" {
		t.Errorf("after a reload: %s", got)
	}
	if err := os.WriteFile(limits, []byte("domain: api\ndescriptors: [{key: db, rate_limit: {unit: eon}}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := g.Reload(); err == nil || !strings.Contains(err.Error(), "limits.yaml:2:") {
		t.Errorf("a faulty file: %v", err)
	}
	if got := askLimit(t, c, "api", "db", "orders"); got != "OK 50/HOUR left 48" {
		t.Errorf("after a reload that failed: %s", got)
	}
	for _, n := range g.RateLimits() {
		if n.Domain == "api" && n.Rule == "db=*" && n.Results[0] == 4 && n.Results[1] == 1 {
			return
		}
	}
	t.Errorf("%+v", g.RateLimits())
}

// What the service refuses shows wherever refusals of a gate do, and what it would refuse as observed. All series of a gate end with it.
func TestRateLimitRefusalsShow(t *testing.T) {
	gates := "gates:\n  own: {quota: {rules: [{descriptor: \"plan=*\", rate: 1/h}]}}\n"
	load := func() (*config.Config, error) {
		return config.Parse(filepath.Join(t.TempDir(), "weir.yaml"), []byte(`
listeners: [{address: "127.0.0.1:0", serve: [ratelimit]}]
admin: {address: off}
`+gates+`
  seen: {mode: observe, quota: {rules: [{descriptor: "plan=*", rate: 1/h}]}}
routes: []
shutdown: {grace: 1m, lame_duck: 0s}
`))
	}
	cfg, err := load()
	if err != nil {
		t.Fatal(err)
	}
	g := start(t, cfg, Options{Load: load})
	c, err := grpc.NewClient(g.listeners[0].Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	for _, gate := range []string{"own", "seen"} {
		for range 4 {
			askLimit(t, c, gate, "plan", "free")
		}
	}
	text := g.scrape()
	for _, want := range []string{
		`weir_gate_rejected_total{gate="own",reason="quota"} 3`, `weir_gate_observed_total{gate="seen",reason="quota"} 3`,
		`weir_quota_refused_total{bucket="own/descriptor=plan=free",gate="own"} 3`, `weir_gate_admitted_total{gate="own"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("want %s in\n%s", want, text)
		}
	}
	if got := g.log.String(); !strings.Contains(got, "msg=refusing gate=own") || !strings.Contains(got, "would refuse") {
		t.Errorf("%s\nwant a line of each", got)
	}
	gates = "gates:\n"
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	if text := g.scrape(); strings.Contains(text, `"own"`) || !strings.Contains(text, `weir_ratelimit_descriptors_total{domain="seen",result="shadow",rule="plan=*"} 3`) {
		t.Errorf("after the reload that removed the gate own:\n%s", text)
	}
}
