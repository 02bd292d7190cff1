package server

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
	"go.yaml.in/yaml/v3"
)

// What is delivered for Kubernetes, Prometheus and Grafana. The integration tests run the latter against a real Prometheus.
const (
	alertsFile    = "../../../packaging/prometheus/alerts.yaml"
	alertTests    = "../../../packaging/prometheus/alerts_test.yaml"
	dashboardFile = "../../../packaging/grafana/weir.json"
	kubernetes    = "../../../packaging/kubernetes/"
	alertsGuide   = "../../../docs/howto/alerts.md"
	postinstall   = "../../../packaging/deb/postinstall"
)

func readText(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// exposed returns the names of all metrics of a gateway that uses what there is to use.
func exposed(t *testing.T) []string {
	t.Helper()
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	cfg, err := config.Parse("weir.yaml", fmt.Appendf(nil, `
listeners: [{address: "127.0.0.1:0"}]
admin: {address: off}
identity: {user: header:X-User, tenant: header:X-Tenant}
upstreams: {app: {targets: [%s], health_check: {path: /}}}
stores: {shared: {redis: "redis://%s"}}
runtime_quotas: {file: %s}
access_log: {to: %s}
kafka: {orders: {listen: {address: "localhost:0"}, bootstrap: ["%s"], nodes: {ports: 9100-9199, advertise: localhost}}}
tracing: {endpoint: "http://%s", sample: 0.5}
gates:
  plan: {quota: {rate: 1/h, burst: 100, by: [user]}}
  far: {quota: {rate: 1/h, burst: 100, store: shared, on_store_error: open}}
  slots: {limit: {limit: 40, signals: [memory]}}
  pools: {limit: {limit: 40}, each: {}}
  levels: {shed: {load_of: slots, thresholds: {background: 2, normal: 3, high: 4, critical: 5}}}
  seen: {mode: observe, limit: {limit: 1}}
routes: [{match: [/], gates: [plan, far, levels, seen, slots, pools], upstream: app}]
`, up.URL, nowhere(t), filepath.Join(t.TempDir(), "quotas.json"), filepath.Join(t.TempDir(), "access.log"), nowhere(t), nowhere(t)))
	if err != nil {
		t.Fatal(err)
	}
	g := start(t, cfg, Options{})
	if res, body := get(t, g.url); res.StatusCode != http.StatusOK {
		t.Fatalf("answer %d: %s", res.StatusCode, body)
	}
	var text string
	eventually(t, "the signal is read", func() bool {
		w := httptest.NewRecorder()
		g.metrics.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		text = w.Body.String()
		return strings.Contains(text, "weir_signal_value")
	})
	var names []string
	for _, line := range regexp.MustCompile(`(?m)^# TYPE (\w+) (\w+)`).FindAllStringSubmatch(text, -1) {
		if names = append(names, line[1]); line[2] == "histogram" {
			names = append(names, line[1]+"_bucket", line[1]+"_sum", line[1]+"_count")
		}
	}
	return names
}

// The gateway serves every metric that an alert, its test or the dashboard names. Three are not in every
// gateway: what a gate in observe mode would have refused, and handshakes and certificates of TLS listeners.
func TestMonitoringNamesMetrics(t *testing.T) {
	known := append(exposed(t), "weir_gate_observed_total", "weir_tls_handshake_failures_total", "weir_tls_certificate_expires_timestamp_seconds")
	for _, file := range []string{alertsFile, alertTests, dashboardFile} {
		named := regexp.MustCompile(`\b(?:weir|go|process)_\w+`).FindAllString(readText(t, file), -1)
		if len(named) < 20 {
			t.Errorf("%s names %d metrics only", file, len(named))
		}
		for _, name := range named {
			if !slices.Contains(known, name) {
				t.Errorf("%s: the gateway has no %s", file, name)
			}
		}
	}
}

// Each alert says how urgent it is, what to do and where to read more; it has a test, and the guide has no others.
func TestAlertsAreWhole(t *testing.T) {
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr         string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal([]byte(readText(t, alertsFile)), &file); err != nil || len(file.Groups) != 1 {
		t.Fatalf("%v; %d groups", err, len(file.Groups))
	}
	guide, tests := readText(t, alertsGuide), readText(t, alertTests)
	var names []string
	for _, r := range file.Groups[0].Rules {
		names = append(names, r.Alert)
		if s := r.Labels["severity"]; s != "page" && s != "ticket" {
			t.Errorf("%s has the severity %q, want page or ticket", r.Alert, s)
		}
		for _, a := range []string{"summary", "description"} {
			if !strings.HasSuffix(r.Annotations[a], ".") {
				t.Errorf("%s: the %s %q is no sentence", r.Alert, a, r.Annotations[a])
			}
		}
		if want := "https://github.com/weir-go/weir/blob/HEAD/docs/howto/alerts.md#" + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook_url is %q, want %s", r.Alert, r.Annotations["runbook_url"], want)
		}
		if !strings.Contains(tests, `alertname="`+r.Alert+`"`) {
			t.Errorf("no test has %s fire", r.Alert)
		}
	}
	var told []string
	for _, h := range regexp.MustCompile(`(?m)^## (Weir\w+)$`).FindAllStringSubmatch(guide, -1) {
		told = append(told, h[1])
	}
	if !slices.Equal(names, told) {
		t.Errorf("the alerts are %v, the guide explains %v", names, told)
	}
}

// The unit refuses to reload a file with faults before it sends the signal. An access log must be opened again all the
// same, so logrotate is told to send the signal itself.
func TestRotationSendsTheSignal(t *testing.T) {
	unit, guide := readText(t, "../../../packaging/weir.service"), readText(t, "../../../docs/howto/access-log.md")
	_, after, rotates := strings.Cut(guide, "postrotate\n")
	command, _, _ := strings.Cut(after, "\n")
	if checks := strings.Contains(unit, "ExecReload=/usr/bin/weir check"); !rotates || checks && strings.TrimSpace(command) != "systemctl kill -s HUP weir" {
		t.Errorf("the guide rotates by %q", command)
	}
}

// The examples for Kubernetes fit together, and the files of weir in them have no faults. That the cluster
// knows their fields is what make test-manifests checks.
func TestKubernetesExamples(t *testing.T) {
	objects := map[string]any{}
	var configs []*config.Config
	for _, name := range []string{"weir.yaml", "hpa.yaml"} {
		for docs := yaml.NewDecoder(strings.NewReader(readText(t, kubernetes+name))); ; {
			var doc map[string]any
			if err := docs.Decode(&doc); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			kind, _ := doc["kind"].(string)
			if got := at(doc, "metadata", "name"); got != "weir" {
				t.Errorf("a %s is called %v", kind, got)
			}
			if kind != "ConfigMap" {
				objects[kind] = doc
				continue
			}
			file, _ := at(doc, "data", "weir.yaml").(string)
			cfg, err := config.Parse("weir.yaml", []byte(file))
			if err != nil {
				t.Fatal(err)
			}
			configs = append(configs, cfg)
		}
	}
	if len(objects) != 3 || len(configs) != 2 {
		t.Fatalf("there are %d kinds of objects and %d files of weir, want 3 and 2", len(objects), len(configs))
	}
	deployment := objects["Deployment"]
	pod := at(deployment, "spec", "template", "spec")
	container := at(pod, "containers", 0)
	labels := at(deployment, "spec", "template", "metadata", "labels")
	for _, tt := range []struct {
		what      string
		got, want any
	}{
		{"the Deployment selects", at(deployment, "spec", "selector", "matchLabels"), labels},
		{"the Service selects", at(objects["Service"], "spec", "selector"), labels},
		{"the Service sends to", at(objects["Service"], "spec", "ports", 0, "targetPort"), at(container, "ports", 0, "name")},
		{"readiness is asked at", at(container, "readinessProbe", "httpGet"), map[string]any{"path": "/readyz", "port": at(container, "ports", 1, "name")}},
		{"liveness is asked at", at(container, "livenessProbe", "httpGet"), map[string]any{"path": "/healthz", "port": at(container, "ports", 1, "name")}},
		{"the container mounts", at(container, "volumeMounts", 0), map[string]any{"name": at(pod, "volumes", 0, "name"), "mountPath": "/etc/weir"}},
		{"the volume is", at(pod, "volumes", 0, "configMap", "name"), "weir"},
		{"the autoscaler scales", at(objects["HorizontalPodAutoscaler"], "spec", "scaleTargetRef"), map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": "weir"}},
	} {
		if tt.got == nil || !reflect.DeepEqual(tt.got, tt.want) {
			t.Errorf("%s %v, want %v", tt.what, tt.got, tt.want)
		}
	}
	for _, cfg := range configs {
		if got, want := cfg.Listeners[0].Address, fmt.Sprintf(":%v", at(container, "ports", 0, "containerPort")); got != want {
			t.Errorf("weir listens on %s, want %s", got, want)
		}
		if got, want := cfg.Admin.Address, fmt.Sprintf(":%v", at(container, "ports", 1, "containerPort")); got != want {
			t.Errorf("admin listens on %s, want %s", got, want)
		}
		const failures = 3 // Kubernetes' default
		unseen, _ := at(container, "readinessProbe", "periodSeconds").(int)
		if lameDuck := time.Duration(cfg.Shutdown.LameDuck); unseen == 0 || lameDuck.Seconds() <= float64(failures*unseen) {
			t.Errorf("weir accepts for %v more, and readiness is lost after %d s", lameDuck, failures*unseen)
		}
		stop := time.Duration(cfg.Shutdown.LameDuck + cfg.Shutdown.Grace)
		if patience, _ := at(pod, "terminationGracePeriodSeconds").(int); stop.Seconds() >= float64(patience) {
			t.Errorf("weir takes up to %v to stop, the pod is killed after %d s", stop, patience)
		}
	}
}

// at returns what stands at a path of keys and positions, or nil.
func at(v any, path ...any) any {
	for _, step := range path {
		switch key := step.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[key]
		case int:
			list, _ := v.([]any)
			if key >= len(list) {
				return nil
			}
			v = list[key]
		}
	}
	return v
}

// panel is what the tests read of a panel of the dashboard.
type panel struct {
	ID                       int
	Type, Title, Description string
	Datasource               struct{ UID string }
	GridPos                  struct{ X, Y, W, H int }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []struct {
		Expr, LegendFormat string
		Datasource         struct{ UID string }
	}
}

// The dashboard can be imported anywhere: each panel asks the data source that was chosen, says what it
// shows and in which unit, and lies beside the others. No server is named. All jobs and instances are those of
// gateways: Grafana lists them, where a pattern for All would match every other job.
func TestDashboardIsWhole(t *testing.T) {
	text := readText(t, dashboardFile)
	var board struct {
		Templating struct {
			List []struct{ Name, Type, Definition, AllValue string }
		}
		Panels []panel
	}
	if err := json.Unmarshal([]byte(text), &board); err != nil {
		t.Fatal(err)
	}
	if v := board.Templating.List; len(v) == 0 || v[0].Name != "datasource" || v[0].Type != "datasource" {
		t.Errorf("variables %+v, want the data source first", v)
	}
	for _, v := range board.Templating.List {
		if (v.Name == "job" || v.Name == "instance") && (v.AllValue != "" || !strings.HasPrefix(v.Definition, "label_values(weir_build_info")) {
			t.Errorf("All of %s is %q, of %s", v.Name, v.AllValue, v.Definition)
		}
	}
	if found := regexp.MustCompile(`https?://|localhost|\d+\.\d+\.\d+\.\d+`).FindString(text); found != "" {
		t.Errorf("it names a server: %s", found)
	}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range board.Panels {
		if ids[p.ID] {
			t.Errorf("%s: the id %d is another panel's", p.Title, p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%s lies over %q or beyond the edge", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type != "row" {
			p.check(t)
		}
	}
	if len(board.Panels) < 30 {
		t.Errorf("only %d panels", len(board.Panels))
	}
}

func (p *panel) check(t *testing.T) {
	t.Helper()
	if p.Title == "" || !strings.HasSuffix(p.Description, ".") || p.FieldConfig.Defaults.Unit == "" || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
		t.Errorf("panel %d, %q, lacks something: %+v", p.ID, p.Title, p)
	}
	for _, q := range p.Targets {
		if q.Datasource.UID != "${datasource}" || q.LegendFormat == "" || !strings.Contains(q.Expr, `instance=~"$instance"`) {
			t.Errorf("panel %q lacks a legend, or the choice of gateways: %+v", p.Title, q)
		}
	}
}

// An upgrade restarts a service that runs, but not into a file that the new version refuses.
func TestPostinstall(t *testing.T) {
	script := strings.ReplaceAll(readText(t, postinstall), "/run/systemd/system", t.TempDir())
	for failing, want := range map[string]string{
		"none":      "daemon-reload, --quiet is-active weir.service, reload weir.service, try-restart weir.service",
		"is-active": "daemon-reload, --quiet is-active weir.service",
		"reload":    "daemon-reload, --quiet is-active weir.service, reload weir.service",
	} {
		stub := `getent() { :; }
systemctl() { echo "$*"; case " $* " in *" ` + failing + ` "*) return 1 ;; esac; }
`
		cmd := exec.Command("sh", "-c", stub+script)
		var out, errs strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			t.Errorf("%s fails: %v", failing, err)
		}
		if got := strings.Join(strings.Split(strings.TrimSpace(out.String()), "\n"), ", "); got != want || (failing == "reload") != strings.Contains(errs.String(), "weir: the reload failed, so the version before goes on") {
			t.Errorf("%s fails: %s, want %s; says %q", failing, got, want, errs.String())
		}
	}
}
