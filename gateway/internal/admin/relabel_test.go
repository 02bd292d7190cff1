package admin

import (
	"context"
	"maps"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/signal"
)

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
	guide, err := os.ReadFile("../../../docs/guides/metrics.md")
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
				Limit: &policy.LimitSpec{Controller: "lag", Lag: policy.LagSpec{Signal: "consumer_lag", Interval: policy.Duration(5 * time.Second)}},
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
	m.Keep(maps.Collect(p.Gates()), nil)
	m.Tenants(10)
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
