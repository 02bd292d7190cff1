package admin

import (
	"context"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/accesslog"
	"github.com/weir-go/weir/gateway/internal/envoy"
	"github.com/weir-go/weir/gateway/internal/kafka"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/gateway/internal/ratelimit"
	"github.com/weir-go/weir/gateway/internal/tracing"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/signal"
	"github.com/weir-go/weir/weirhttp"
	"go.yaml.in/yaml/v3"
)

// still is a gateway in which nothing moves.
type still struct{ policy *policy.Policy }

// load puts a gate api in the place of the one before, as a reload does.
func (s *still) load(t *testing.T, m *Metrics, g policy.GateSpec) {
	before := s.policy
	s.policy = compiled(t, map[string]policy.GateSpec{"api": g}, policy.Options{Previous: before})
	if before != nil {
		before.Replace(s.policy)
	}
	m.KeepOnly(s.policy, 5)
}

func (s still) Policy() *policy.Policy       { return s.policy }
func (s still) Streams() *weirhttp.Streams   { return weirhttp.NewStreams(weirhttp.StreamsConfig{}) }
func (s still) Upstreams() []*proxy.Upstream { return nil }
func (s still) Kafka() []kafka.Snapshot      { return nil }

func (s still) Connections() []accept.Snapshot {
	return []accept.Snapshot{{Listener: "127.0.0.1:8080", Snapshot: weir.Snapshot{InFlight: 3}}}
}
func (s still) ExtProc() envoy.Snapshot     { return envoy.Snapshot{} }
func (still) RateLimits() []ratelimit.Count { return nil }
func (s still) InFlight() int64             { return 7 }
func (s still) Stores() []Store {
	return []Store{{Name: "shared", Down: true, Takes: 5, Failed: map[string]uint64{"timeout": 2}}}
}
func (s still) Book() quotas.Stats { return quotas.Stats{} }
func (s still) AccessLog() accesslog.Snapshot {
	return accesslog.Snapshot{Written: 9, Full: 4}
}
func (s still) Tracing() tracing.Snapshot { return tracing.Snapshot{Spans: 6, Sent: 4, Lost: 1} }
func (s still) Ready() bool               { return true }

// compiled returns a policy of gates, which is closed in the end.
func compiled(t *testing.T, gates map[string]policy.GateSpec, opts policy.Options) *policy.Policy {
	t.Helper()
	p, err := policy.Compile(policy.Spec{Gates: gates}, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// hold takes a slot of a gate until the test ends.
func hold(t *testing.T, g *policy.Gate, w weir.Work) {
	t.Helper()
	permit, err := g.TryAdmit(w)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { permit.Done(weir.OK) })
}

// testMetrics are those of a gateway with one gate, which has refused once.
func testMetrics(t *testing.T) *Metrics {
	t.Helper()
	p := compiled(t, map[string]policy.GateSpec{"api": {Limit: &policy.LimitSpec{Limit: 1}}}, policy.Options{})
	hold(t, p.Gate("api"), weir.Work{})
	if _, err := p.Gate("api").TryAdmit(weir.Work{}); err == nil {
		t.Fatal("two in a gate of one")
	}
	m := NewMetrics(still{p}, "v0")
	m.KeepOnly(p, 0)
	return m
}

// has checks lines of the metrics.
func has(t *testing.T, m *Metrics, lines ...string) {
	t.Helper()
	text := "\n" + ask(m.Handler(), http.MethodGet, "/metrics").Body.String()
	for _, line := range lines {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
}

// keep tells m that there are these routes and no gates.
func keep(t *testing.T, m *Metrics, routes ...string) {
	t.Helper()
	var spec policy.Spec
	for _, name := range routes {
		spec.Routes = append(spec.Routes, policy.RouteSpec{Name: name})
	}
	p, err := policy.Compile(spec, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	m.KeepOnly(p, 0)
}

// A 503 of a gate is told from one of the upstream, and its time from theirs.
func TestRoutesByAnswerer(t *testing.T) {
	m := testMetrics(t)
	keep(t, m, "api", "old")
	m.Route("old").Answered(http.StatusOK, proxy.ByUpstream, time.Second)
	rt := m.Route("api")
	rt.Answered(http.StatusOK, proxy.ByUpstream, time.Second)
	rt.Answered(http.StatusServiceUnavailable, proxy.ByUpstream, 3*time.Second)
	rt.Answered(http.StatusServiceUnavailable, proxy.ByGate, time.Millisecond)
	rt.Answered(http.StatusServiceUnavailable, proxy.ByGate, time.Millisecond)
	rt.Answered(http.StatusBadGateway, proxy.ByGateway, time.Millisecond)
	rt.Answered(0, proxy.ByGateway, time.Millisecond)
	has(t, m,
		`weir_http_requests_total{by="upstream",code="2xx",route="api"} 1`,
		`weir_http_requests_total{by="upstream",code="5xx",route="api"} 1`,
		`weir_http_requests_total{by="gate",code="5xx",route="api"} 2`,
		`weir_http_requests_total{by="gateway",code="5xx",route="api"} 1`,
		`weir_http_requests_total{by="gateway",code="499",route="api"} 1`,
		`weir_http_request_seconds_sum{by="upstream",route="api"} 4`,
		`weir_http_request_seconds_count{by="gate",route="api"} 2`,
		`weir_http_requests_total{by="upstream",code="2xx",route="old"} 1`,
	)
	keep(t, m, "api")
	if text := ask(m.Handler(), http.MethodGet, "/metrics").Body.String(); strings.Contains(text, `route="old"`) {
		t.Error("a route that is gone still has series")
	}
}

func TestCollector(t *testing.T) {
	m := testMetrics(t)
	has(t, m,
		`weir_gate_limit{gate="api"} 1`,
		`weir_gate_waiting_by_class{class="critical",gate="api"} 0`,
		`weir_gate_exempt_in_flight{gate="api"} 0`,
		`weir_gate_exempt_admitted_total{gate="api"} 0`,
		`weir_gate_rejected_total{gate="api",reason="limit"} 1`,
		`weir_gate_rejected_total{gate="api",reason="queue_full"} 0`,
		`weir_gate_rejected_total{gate="api",reason="queue_timeout"} 0`,
		`weir_gate_rejected_total{gate="api",reason="deadline"} 0`,
		`weir_gate_rejected_total{gate="api",reason="canceled"} 0`,
		`weir_gate_rejected_total{gate="api",reason="draining"} 0`,
		`weir_gate_rejected_total{gate="api",reason="too_large"} 0`,
		`weir_gate_controller_faults_total{gate="api"} 0`,
		`weir_http_requests_in_flight 7`,
		`weir_connections{listener="127.0.0.1:8080"} 3`,
	)
}

// What a controller believes has series as soon as it believes something. A gate that
// believes nothing has none.
func TestEstimateMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := compiled(t, map[string]policy.GateSpec{"api": {Limit: &policy.LimitSpec{}}, "fixed": {Limit: &policy.LimitSpec{Limit: 4}}}, policy.Options{})
		m := NewMetrics(still{p}, "v0")
		names := []string{"weir_gate_best_limit", "weir_gate_best_limit_low", "weir_gate_best_limit_high", "weir_gate_expected_loss_ratio"}
		before := ask(m.Handler(), http.MethodGet, "/metrics").Body.String()
		saved := p.Save()
		api := saved.Gates["api"]
		api.Limit = 40
		saved.Gates["api"] = api
		if _, err := p.Restore(saved, time.Hour); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		after := ask(m.Handler(), http.MethodGet, "/metrics").Body.String()
		for _, name := range names {
			if strings.Contains(before, name+"{") || strings.Count(after, "\n"+name+`{gate="api"} `) != 1 || strings.Contains(after, name+`{gate="fixed"}`) {
				t.Errorf("%s is there before anything was learned, or not once afterwards", name)
			}
		}
		has(t, m, `weir_gate_shape{gate="api",shape="pool"} 1`, `weir_gate_shape{gate="api",shape="contention"} 0`)
	})
}

// What a gate's probes have tried has series, also where reads and writes have a pool each.
func TestProbeMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probe := func(readWrite bool) policy.GateSpec {
			return policy.GateSpec{Limit: &policy.LimitSpec{Controller: "probe", Min: 2, Max: 100, Probe: policy.ProbeSpec{ReadWrite: readWrite}}}
		}
		p := compiled(t, map[string]policy.GateSpec{"one": probe(false), "pair": probe(true), "fixed": {Limit: &policy.LimitSpec{Limit: 4}}}, policy.Options{})
		for _, name := range []string{"one", "pair"} {
			for range 100 { // nothing is finished, so each probe is undone
				_, _ = p.Gate(name).TryAdmit(weir.Work{})
			}
		}
		time.Sleep(2 * time.Second)
		m := NewMetrics(still{p}, "v0")
		got := ask(m.Handler(), http.MethodGet, "/metrics").Body.String()
		for _, gate := range []string{"one", "pair"} {
			if strings.Contains(got, `weir_gate_probes_total{direction="up",gate="`+gate+`",result="undone"} 0`) {
				t.Errorf("%s: no probe has ended", gate)
			}
			has(t, m,
				`weir_gate_probes_total{direction="up",gate="`+gate+`",result="kept"} 0`,
				`weir_gate_probes_total{direction="down",gate="`+gate+`",result="undone"} 0`,
				`weir_gate_probe_throughput{at="stable",gate="`+gate+`"} 0`,
				`weir_gate_probe_throughput{at="probe",gate="`+gate+`"} 0`,
			)
			for _, name := range []string{"weir_gate_probe_nudges_total", "weir_gate_probe_stable_limit"} {
				if strings.Count(got, "\n"+name+`{gate="`+gate+`"} `) != 1 {
					t.Errorf("%s: %s is not there once", gate, name)
				}
			}
		}
		if strings.Contains(got, `weir_gate_probe_stable_limit{gate="fixed"}`) {
			t.Error("a fixed limit probes")
		}
	})
}

// pressed is a source of one reading, for a policy that polls nothing.
type pressed struct{}

func (pressed) Name() string                          { return "pressed" }
func (pressed) Read(context.Context) (float64, error) { return 2, nil }

// The signals of a gate have series, and the one that binds is told from the
// others.
func TestSignalMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := compiled(t, map[string]policy.GateSpec{
			"api": {Limit: &policy.LimitSpec{Limit: 20, Signals: []string{"load", "heap"}}},
		}, policy.Options{Signals: map[string]signal.Signal{"load": pressed{}}})
		for range 10 {
			hold(t, p.Gate("api"), weir.Work{})
		}
		time.Sleep(time.Second)
		synctest.Wait() // what reads the signals has its turn at the same moment
		has(t, NewMetrics(still{p}, "v0"),
			`weir_gate_limit{gate="api"} 5`,
			`weir_gate_bound_by_signal{gate="api",signal="load"} 1`,
			`weir_gate_bound_by_signal{gate="api",signal="heap"} 0`,
			`weir_signal_value{signal="load"} 2`,
			`weir_signal_state{signal="load",state="live"} 1`,
			`weir_signal_state{signal="load",state="unknown"} 0`,
			`weir_signal_failures_total{signal="load"} 0`,
			`weir_signal_age_seconds{signal="load"} 0`,
		)
	})
}

// relabelling is a rule of Prometheus' metric_relabel_configs, with the action
// replace.
type relabelling struct {
	Sources     []string `yaml:"source_labels"`
	Regex       string
	Target      string `yaml:"target_label"`
	Replacement string
}

// apply changes the labels of a series, its name among them.
func (r relabelling) apply(t *testing.T, labels map[string]string) {
	t.Helper()
	re, err := regexp.Compile("^(?s:" + r.Regex + ")$")
	if err != nil {
		t.Fatal(err)
	}
	values := make([]string, len(r.Sources))
	for i, name := range r.Sources {
		values[i] = labels[name]
	}
	source := strings.Join(values, ";")
	if m := re.FindStringSubmatchIndex(source); m != nil {
		labels[r.Target] = string(re.ExpandString(nil, r.Replacement, source, m))
	}
}

var (
	series = regexp.MustCompile(`(?m)^([a-z_]+)\{(.*)\} (\S+)$`)
	label  = regexp.MustCompile(`([a-z]+)="([^"]*)"`)
)

// The relabelling in the guide brings the names that it promises.
func TestGuideRelabels(t *testing.T) { synctest.Test(t, guideRelabels) }

func guideRelabels(t *testing.T) {
	guide, err := os.ReadFile("../../../docs/howto/metric-names.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(guide), "```yaml\n")
	block, _, found := strings.Cut(block, "```")
	var rules struct {
		Rules []relabelling `yaml:"metric_relabel_configs"`
	}
	if err := yaml.Unmarshal([]byte(block), &rules); err != nil || !found || len(rules.Rules) == 0 {
		t.Fatalf("no rules: %v", err)
	}
	lag := signal.Func("lag", func(context.Context) (float64, error) { return 55_000, nil })
	p, err := policy.Compile(policy.Spec{
		Signals: map[string]policy.SignalSpec{"consumer_lag": {Read: "lag", Interval: policy.Duration(5 * time.Second)}},
		Gates: map[string]policy.GateSpec{
			"db": {
				Limit: &policy.LimitSpec{Controller: "lag", Lag: policy.LagSpec{LagMapConfig: control.LagMapConfig{Signal: "consumer_lag"}, Interval: policy.Duration(5 * time.Second)}},
				Each:  &policy.EachSpec{},
			},
		},
	}, policy.Options{Signals: map[string]signal.Signal{"lag": lag}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	time.Sleep(11 * time.Second)
	permit, err := p.Gate("db").TryAdmit(weir.Work{Tenant: "my_database"})
	if err != nil {
		t.Fatal(err)
	}
	defer permit.Done(weir.OK)
	m := NewMetrics(still{p}, "v0")
	m.KeepOnly(p, 10)
	m.Admitted("db", weir.Work{Tenant: "my_database"}, 125*time.Millisecond)

	got := map[string]string{}
	for _, line := range series.FindAllStringSubmatch(ask(m.Handler(), http.MethodGet, "/metrics").Body.String(), -1) {
		labels := map[string]string{"__name__": line[1]}
		for _, l := range label.FindAllStringSubmatch(line[2], -1) {
			labels[l[1]] = l[2]
		}
		for _, r := range rules.Rules {
			r.apply(t, labels)
		}
		got[labels["__name__"]+" "+labels["database"]+" "+labels["le"]] = line[3]
	}
	for name, want := range map[string]string{
		"evidentdb_kafka_consumer_lag  ":                           "55000",
		"evidentdb_admission_control_capacity my_database ":        "505",
		"evidentdb_admission_control_wait_count my_database ":      "1",
		"evidentdb_admission_control_wait_sum my_database ":        "0.125",
		"evidentdb_admission_control_wait_bucket my_database 0.1":  "0",
		"evidentdb_admission_control_wait_bucket my_database 0.25": "1",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
}

// All figures of a gate that another one of its name replaces begin anew together.
func TestReplacedGateBeginsAnew(t *testing.T) {
	src := &still{}
	m := NewMetrics(src, "v0")
	load := func(g policy.GateSpec) { src.load(t, m, g) }
	fill := func() {
		m.Admitted("api", weir.Work{Tenant: "t", Priority: weir.Normal}, time.Millisecond)
		m.Rejected(weir.Work{Priority: weir.Normal}, &weir.Rejection{Gate: "api", Reason: weir.ReasonLimit})
		m.Done("api", weir.OK, time.Millisecond)
	}
	lines := []string{`weir_gate_wait_seconds_count{class="normal",gate="api"} `, `weir_gate_refused_by_class_total{class="normal",gate="api"} `, `weir_gate_service_seconds_count{gate="api"} `}
	check := func(want string) {
		t.Helper()
		text := ask(m.Handler(), http.MethodGet, "/metrics").Body.String()
		for _, l := range lines {
			if !strings.Contains(text, l+want+"\n") {
				t.Errorf("no line %s%s", l, want)
			}
		}
	}
	limit := &policy.LimitSpec{Limit: 3}
	load(policy.GateSpec{Limit: limit})
	fill()
	load(policy.GateSpec{Limit: limit})
	check("1")
	load(policy.GateSpec{Limit: limit, Each: &policy.EachSpec{By: "tenant"}})
	check("0")
	fill()
	check("1")
	if text := ask(m.Handler(), http.MethodGet, "/metrics").Body.String(); !strings.Contains(text, "weir_key_wait_seconds_count{") {
		t.Error("no waits of keys")
	}
}
