//go:build integration

package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/gateway/internal/await"
)

// packaged returns the path of a file that is delivered for Prometheus or Grafana.
func packaged(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "packaging", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// promtool checks rules, or tests them.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(part(t, "promtool"), args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// Each alert is silent while all is well, and fires when it should, over the hours that this takes.
func TestAlertRules(t *testing.T) {
	promtool(t, "check", "rules", packaged(t, "prometheus/alerts.yaml"))
	promtool(t, "test", "rules", packaged(t, "prometheus/alerts_test.yaml"))
}

// query is what a panel of the dashboard asks.
type query struct{ Panel, Expr string }

// dashboard returns what the dashboard asks, its variables filled in for one gateway.
func dashboard(t *testing.T) (all []query) {
	t.Helper()
	var board struct {
		Annotations struct{ List []struct{ Name, Expr string } }
		Panels      []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	data, err := os.ReadFile(packaged(t, "grafana/weir.json"))
	if err == nil {
		err = json.Unmarshal(data, &board)
	}
	if err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer("$job", "weir", "$instance", ".+", "$gate", ".+", "$__rate_interval", "30s")
	for _, a := range board.Annotations.List {
		all = append(all, query{a.Name, fill.Replace(a.Expr)})
	}
	for _, p := range board.Panels {
		for _, q := range p.Targets {
			all = append(all, query{p.Title, fill.Replace(q.Expr)})
		}
	}
	if len(all) < 50 {
		t.Fatalf("the dashboard asks %d things only", len(all))
	}
	return all
}

// Prometheus understands what the dashboard asks.
func TestDashboardQueries(t *testing.T) {
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var rules []rule
	for i, q := range dashboard(t) {
		if strings.Contains(q.Expr, "$") {
			t.Errorf("%s: a variable that Grafana does not know: %s", q.Panel, q.Expr)
		}
		rules = append(rules, rule{fmt.Sprintf("panel:%d", i), q.Expr})
	}
	data, err := json.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}}) // which is YAML too
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	writeFile(t, file, data)
	promtool(t, "check", "rules", file)
}

// prometheus is a running server of that name.
type prometheus struct {
	*process
	url string
}

// startPrometheus has a Prometheus look at a gateway every three seconds, and fire the alerts at
// once: what they wait for, and what they look back over, is seconds in place of minutes. A
// scrape may take as long as Prometheus lets it, so that none on a busy machine is lost.
func startPrometheus(t *testing.T, g *gateway) *prometheus {
	t.Helper()
	dir, addr := t.TempDir(), freeAddr(t)
	rules, err := os.ReadFile(packaged(t, "prometheus/alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	hurried := regexp.MustCompile(`(?m)^( +for:) \w+$`).ReplaceAllString(string(rules), "$1 0s")
	hurried = regexp.MustCompile(`\[\d+m\]`).ReplaceAllString(hurried, "[15s]")
	writeFile(t, filepath.Join(dir, "alerts.yaml"), []byte(hurried))
	writeFile(t, filepath.Join(dir, "prometheus.yml"), fmt.Appendf(nil, `
global: {scrape_interval: 3s, scrape_timeout: 3s, evaluation_interval: 1s}
rule_files: [alerts.yaml]
scrape_configs:
  - {job_name: weir, static_configs: [{targets: [%q]}]}
`, strings.TrimPrefix(g.admin, "http://")))
	p := start(t, addr, dir, part(t, "prometheus"), "--config.file", "prometheus.yml", "--storage.tsdb.path", "data", "--web.listen-address", addr, "--log.level", "warn")
	return &prometheus{process: p, url: "http://" + addr}
}

// api asks Prometheus, and reports whether it was ready to answer.
func (p *prometheus) api(path string, data any) bool {
	body, err := fetch(p.url + path)
	answer := struct {
		Status string
		Data   any
	}{Data: data}
	return err == nil && json.Unmarshal(body, &answer) == nil && answer.Status == "success"
}

// shows reports whether an expression has a value now.
func (p *prometheus) shows(expr string) bool {
	var data struct{ Result []json.RawMessage }
	return p.api("/api/v1/query?query="+url.QueryEscape(expr), &data) && len(data.Result) > 0
}

// fires waits until an alert fires, and checks what it tells people.
func (p *prometheus) fires(t *testing.T, name string) {
	t.Helper()
	var data struct {
		Alerts []struct {
			State               string
			Labels, Annotations map[string]string
		}
	}
	told := ""
	eventually(t, name+" fires", func() bool {
		data.Alerts = nil
		p.api("/api/v1/alerts", &data)
		for _, a := range data.Alerts {
			if a.Labels["alertname"] == name && a.State == "firing" {
				told = a.Annotations["summary"]
			}
		}
		return told != ""
	})
	if regexp.MustCompile(`(?i)no value|error|%!|NaN| of {2}| {2}`).MatchString(told) {
		t.Errorf("%s says: %s", name, told)
	}
	t.Logf("%s: %s", name, told)
}

// troubled is a gateway before an upstream that takes 500 ms, with all that can go wrong. The limit
// of its gate slots is 40 until [gateway.rewrite] makes it 2.
func troubled(t *testing.T, dir, narrow string) *gateway {
	t.Helper()
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { await.Work(500 * time.Millisecond) }))
	t.Cleanup(up.Close)
	dead, id := "127.0.0.1:1", newCertificate(t, dir, 1) // nobody listens there
	writeFile(t, filepath.Join(dir, "quotas.json"), []byte(`{"weir_quotas": 1, "rules": [{"gate": "plan", "user": "carol", "rate": "1/s"}]}`))
	writeFile(t, filepath.Join(dir, "good"), []byte("0.5"))
	writeFile(t, filepath.Join(dir, "bad"), []byte("much"))
	extra := fmt.Sprintf("h2c: true\n  - {address: %q, max_connections: 1}\n  - {address: %q, tls: {cert: %s, key: %s}}", narrow, freeAddr(t), id.cert, id.key)
	return startListening(t, "http", extra, fmt.Sprintf(`
identity: {user: const:alice, tenant: const:acme, priority: const:critical}
upstreams:
  app: {targets: [%[1]s]}
  pair: {targets: [%[1]s, "http://%[2]s"], passive_health: {failures: 1, for: 1h}}
  dead: {targets: ["http://%[2]s"]}
  sick: {targets: [%[1]s, "http://%[2]s"], health_check: {path: /, interval: 2s, unhealthy_threshold: 1}}
signals:
  good: {read: file, path: %[3]s/good}
  bad: {read: file, path: %[3]s/bad, interval: 100ms}
stores: {shared: {redis: "redis://%[2]s"}}
runtime_quotas: {file: %[3]s/quotas.json}
access_log: {to: %[3]s/access.log}
tracing: {endpoint: "http://%[2]s", sample: 0.01}
gates:
  slots: {limit: {limit: 40, signals: [good], queue: {len: 8, max_wait: 1m, order: fifo}}}
  seen: {mode: observe, limit: {limit: 1, signals: [bad], queue: {len: -1}}}
  pools: {limit: {limit: 100}, each: {}}
  plan: {quota: {rate: 1/h, burst: 1, by: [user]}}
  far: {quota: {rate: 1000/s, burst: 1000, store: shared, on_store_error: open}}
routes:
  - {match: [/], gates: [seen, pools, slots], upstream: app, timeout: 1m}
  - {match: [/plan], gates: [plan], upstream: app}
  - {match: [/far], gates: [far], upstream: app}
  - {match: [/pair], gates: [pools], upstream: pair}
  - {match: [/dead], gates: [pools], upstream: dead}
  - {match: [/sick], gates: [pools], upstream: sick}
shutdown: {grace: 1m, lame_duck: 1h}
`, up.URL, dead, dir))
}

// besiege has clients ask for each of these paths, so many as is said, and open two connections where
// one is allowed. All of them come back four times a second until the test ends.
func besiege(t *testing.T, g *gateway, narrow string, clients map[string]int) {
	t.Helper()
	client := &http.Client{Timeout: await.Patience, Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	t.Cleanup(client.CloseIdleConnections)
	var all sync.WaitGroup
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop); all.Wait() })
	again := func(do func()) {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					do()
					await.Work(250 * time.Millisecond)
				}
			}
		})
	}
	for path, n := range clients {
		for range n {
			again(func() {
				if res, err := client.Get(g.url + path); err == nil { // it ends before its clients do
					_, _ = io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
			})
		}
	}
	again(func() {
		for range 2 {
			if c, err := net.Dial("tcp", narrow); err == nil {
				defer c.Close()
			}
		}
	})
}

// Each alert fires in a real Prometheus that looks at a real gateway in that kind of trouble, and
// every panel of the dashboard shows something. WeirBug is left to [TestAlertRules], for it
// needs a bug.
func TestAlertsFire(t *testing.T) {
	t.Parallel()
	dir, narrow := t.TempDir(), freeAddr(t)
	g := troubled(t, dir, narrow)
	p := startPrometheus(t, g)
	besiege(t, g, narrow, map[string]int{"/": 24, "/plan": 1, "/far": 1, "/pair": 2, "/dead": 1})

	for _, name := range []string{"WeirUpstreamFailing", "WeirTargetEjected", "WeirTargetUnhealthy", "WeirStoreDown", "WeirQuotaRefusing", "WeirSignalUnreadable", "WeirConnectionsRefused"} {
		p.fires(t, name)
	}
	eventually(t, "Prometheus has seen the limit of 40 for a while", func() bool { return p.shows(`count_over_time(weir_gate_limit{gate="slots"}[10m]) >= 5`) })
	g.rewrite(t, func(old string) string { return strings.Replace(old, "limit: 40,", "limit: 2,", 1) })
	writeFile(t, filepath.Join(dir, "quotas.json"), []byte("{"))
	for _, name := range []string{"WeirLimitLow", "WeirRefusing", "WeirCriticalRefused", "WeirWaitLong", "WeirQuotaRulesStale"} {
		p.fires(t, name)
	}
	for _, q := range dashboard(t) {
		eventually(t, "the panel "+q.Panel+" shows "+q.Expr, func() bool { return p.shows(q.Expr) })
	}

	g.rewrite(t, func(old string) string { return old + "no_such_key: true\n" })
	p.fires(t, "WeirReloadFailed")
	g.signal(t, syscall.SIGTERM)
	p.fires(t, "WeirShutdownStuck")
	g.signal(t, syscall.SIGKILL)
	p.fires(t, "WeirDown")
}
