package admin

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/gateway/internal/kafka"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// Reads and writes have a size and a level each, and the gate has both together.
func TestPartMetrics(t *testing.T) {
	p, err := policy.Compile(policy.Spec{Gates: map[string]policy.GateSpec{
		"tickets": {Limit: &policy.LimitSpec{Controller: "probe", Limit: 20, Probe: policy.ProbeSpec{ReadWrite: true, ProbeConfig: control.ProbeConfig{ReadRatio: 0.75}}}},
		"plain":   {Limit: &policy.LimitSpec{Limit: 4}},
	}}, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, write := range []bool{false, false, true} {
		permit, err := p.Gate("tickets").TryAdmit(weir.Work{Write: write})
		if err != nil {
			t.Fatal(err)
		}
		defer permit.Done(weir.OK)
	}
	m := NewMetrics(still{p}, "v0")
	m.KeepOnly(p, 10)
	has(t, m,
		`weir_gate_limit{gate="tickets"} 20`,
		`weir_gate_in_flight{gate="tickets"} 3`,
		`weir_part_limit{gate="tickets",part="read"} 15`,
		`weir_part_limit{gate="tickets",part="write"} 5`,
		`weir_part_in_flight{gate="tickets",part="read"} 2`,
		`weir_part_in_flight{gate="tickets",part="write"} 1`,
		`weir_part_waiting{gate="tickets",part="write"} 0`,
		`weir_part_admitted_total{gate="tickets",part="read"} 2`,
	)
	text := ask(m.Handler(), http.MethodGet, "/metrics").Body.String()
	for _, not := range []string{`part="read",gate="plain"`, `weir_part_limit{gate="plain"`, `weir_key_limit{gate="tickets"`, `weir_gate_keys{gate="tickets"`} {
		if strings.Contains(text, not) {
			t.Errorf("there is %s", not)
		}
	}
}

// Work that a gate admits and the next one refuses is cancelled. A counter that fell by it would be taken for one that began
// again at 0.
func TestAdmittedOnlyGrows(t *testing.T) {
	pools := policy.GateSpec{Limit: &policy.LimitSpec{Controller: "probe", Limit: 20, Probe: policy.ProbeSpec{ReadWrite: true}}}
	first, err := policy.Compile(policy.Spec{Gates: map[string]policy.GateSpec{"tickets": pools}}, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	src := &still{first}
	m := NewMetrics(src, "v0")
	m.KeepOnly(first, 10)
	admit := func() weir.Permit {
		t.Helper()
		permit, err := src.policy.Gate("tickets").TryAdmit(weir.Work{})
		if err != nil {
			t.Fatal(err)
		}
		return permit
	}
	admitted := func(n int) {
		t.Helper()
		has(t, m, fmt.Sprintf(`weir_gate_admitted_total{gate="tickets"} %d`, n), fmt.Sprintf(`weir_part_admitted_total{gate="tickets",part="read"} %d`, n))
	}
	admit().Done(weir.OK)
	gone := admit()
	admitted(2)
	gone.Cancel()
	admitted(2)
	admit().Done(weir.OK)
	admitted(2)
	admit().Done(weir.OK)
	admitted(3)

	// A gate of that name which is another one counts from 0.
	first.Close()
	if src.policy, err = policy.Compile(policy.Spec{Gates: map[string]policy.GateSpec{"tickets": pools}}, policy.Options{}); err != nil {
		t.Fatal(err)
	}
	defer src.policy.Close()
	m.KeepOnly(src.policy, 10)
	admit().Done(weir.OK)
	admitted(1)

	var p peaks
	for _, g := range []*policy.Gate{first.Gate("tickets"), src.policy.Gate("tickets")} {
		p.raise(g, "all", 3)
	}
	if p.keep(src.policy); len(p.highest) != 1 || p.raise(src.policy.Gate("tickets"), "all", 2) != 3 {
		t.Errorf("%v is kept, want what is of the gate that is left", p.highest)
	}
}

var update = flag.Bool("update", false, "write the golden file anew; read the diff before committing it")

// booked is a source with the rules of a desk.
type booked struct {
	still
	desk *quotaDesk
}

func (b booked) Book() quotas.Stats { return b.desk.book.Stats() }

// scrape returns the lines of metrics whose names begin with a word, sorted.
func scrape(src Source, prefix string) string {
	rec := httptest.NewRecorder()
	NewMetrics(src, "v0").Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	var lines []string
	for _, line := range strings.Split(rec.Body.String(), "\n") {
		if strings.HasPrefix(line, prefix) {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

// Who asked for what, what came of it, where the rules are and how that fares is in the
// metrics, and what has not happened yet is there with 0.
func TestDynamicMetrics(t *testing.T) {
	desk := newCounter(t, true)
	dir := filepath.Dir(desk.file)
	src := booked{still{compiled(t, map[string]policy.GateSpec{}, policy.Options{})}, desk}
	desk.write("POST", "/quotas", setCarol)
	desk.write("POST", "/quotas", strings.Replace(setCarol, "]}", `], "validate_only": true}`, 1))
	desk.write("POST", "/quotas", setCarol, "If-Match", `"old"`)
	desk.write("POST", "/quotas", `{"ops": [{"gate": "apo", "clear": true}]}`) // no such gate
	desk.write("POST", "/quotas", `[]`)
	desk.send("POST", "/quotas", setCarol)
	text := `{"weir_quotas": 1, "rules": [{"gate": "api", "user": "a", "rate": "1/s"}, {"gate": "gone", "user": "a", "rate": "1/s"}, {"gate": "api", "user": "b", "rate": "1/s", "burst": 0.5}]}`
	if err := os.WriteFile(filepath.Join(dir, "quotas.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	desk.book.Follow(t.Context())
	if err := os.WriteFile(filepath.Join(dir, "quotas.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	desk.book.Follow(t.Context())
	desk.write("POST", "/quotas", setCarol)
	got := strings.ReplaceAll(scrape(src, "weir_quota_dynamic"), dir, "/var/lib/weir")
	age := regexp.MustCompile(`(?m)^(weir_quota_dynamic_read_age_seconds) [0-9.e-]+$`)
	if !age.MatchString(got) {
		t.Errorf("no age in\n%s", got)
	}
	got = age.ReplaceAllString(got, "$1 AGE")
	const file = "testdata/dynamic.want"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(file); err != nil || got != string(want) {
		t.Errorf("%v: the metrics are now\n%s", err, got)
	}
	guide, err := os.ReadFile("../../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	help := scrape(src, "# HELP weir_quota_dynamic_changes_total ")
	_, row, _ := strings.Cut(string(guide), "| `weir_quota_dynamic_changes_total` |")
	row, _, _ = strings.Cut(row, "\n")
	for of := range desk.book.Stats().Changes {
		for _, word := range []string{of.Via, of.Result} {
			if !strings.Contains(help, word) || !strings.Contains(row, "`"+word+"`") {
				t.Errorf("the help or the reference does not say what %s is", word)
			}
		}
	}
}

// withKafka is a source that stands before a cluster too.
type withKafka struct{ booked }

func (withKafka) Kafka() []kafka.Snapshot {
	return []kafka.Snapshot{{
		Cluster: "orders", Logins: 3, ThrottledProduce: kafka.Throttled{Times: 2, Seconds: 1.5}, Muted: 1, HeldBytes: 77, HeldWaiting: 6, BrokerQuotas: map[string]int{"producer_byte_rate": 2},
		APIs:      []kafka.APIStatus{{API: "Produce", Traffic: kafka.Traffic{Requests: 5, Answers: 4, RequestBytes: 500, AnswerBytes: 40}}},
		Bootstrap: kafka.NodeStatus{Node: -1, Connections: 1, Accepted: 2},
		Nodes: []kafka.NodeStatus{
			{Node: 1, Connections: 3, Traffic: kafka.Traffic{Requests: 5, Answers: 4, RequestBytes: 500, AnswerBytes: 40}}, {Node: 200, Trouble: "its port would be 9300"},
		},
	}}
}

// What clients of Kafka ask is in the metrics by API and by node, and what quotas charge them by bucket. Who invents names gets no series.
func TestKafkaMetrics(t *testing.T) {
	p := compiled(t, map[string]policy.GateSpec{"in": {Quota: &policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "1/h"}}}}, policy.Options{})
	m := NewMetrics(withKafka{booked{still{p}, newCounter(t, true)}}, "v0")
	m.KeepOnly(p, 2)
	alice := kafka.Charge{Gate: "in", Rule: "user=*", Bucket: "in/user=alice", Cost: 1000}
	m.KafkaCharged(alice)
	alice.Wait = 1500 * time.Millisecond
	m.KafkaCharged(alice)
	m.KafkaCharged(kafka.Charge{Gate: "in", Rule: "user=evil", Wait: time.Second})
	for i := range 1000 {
		m.KafkaCharged(kafka.Charge{Gate: "in", Bucket: "in/user=" + strconv.Itoa(i), Cost: 1})
	}
	m.KafkaCharged(kafka.Charge{Gate: "gone", Bucket: "gone/user=alice", Cost: 1})
	has(t, m,
		`weir_kafka_connections{cluster="orders",node="bootstrap"} 1`,
		`weir_kafka_connections{cluster="orders",node="1"} 3`,
		`weir_kafka_requests_total{api="Produce",cluster="orders"} 5`,
		`weir_kafka_answers_total{api="Produce",cluster="orders"} 4`,
		`weir_kafka_request_bytes_total{api="Produce",cluster="orders"} 500`,
		`weir_kafka_answer_bytes_total{api="Produce",cluster="orders"} 40`,
		`weir_kafka_node_requests_total{cluster="orders",node="1"} 5`,
		`weir_kafka_node_request_bytes_total{cluster="orders",node="1"} 500`,
		`weir_kafka_node_answer_bytes_total{cluster="orders",node="bootstrap"} 0`,
		`weir_kafka_throttled_total{api="produce",cluster="orders"} 2`,
		`weir_kafka_throttle_seconds_total{api="produce",cluster="orders"} 1.5`,
		`weir_kafka_muted{cluster="orders"} 1`,
		`weir_kafka_held_bytes{cluster="orders"} 77`,
		`weir_kafka_held_waiting{cluster="orders"} 6`,
		`weir_kafka_broker_quotas{cluster="orders",key="producer_byte_rate"} 2`,
		`weir_kafka_nodes{cluster="orders"} 1`,
		`weir_kafka_nodes_left_out{cluster="orders"} 1`,
		`weir_kafka_charged_total{bucket="in/user=alice",gate="in"} 2000`,
		`weir_kafka_delays_total{bucket="in/user=alice",gate="in"} 1`,
		`weir_kafka_delay_seconds_total{bucket="in/user=alice",gate="in"} 1.5`,
		`weir_kafka_delays_total{bucket="in/user=evil",gate="in"} 1`,
		`weir_kafka_charged_total{bucket="other",gate="in"} 1000`,
	)
	if text := ask(m.Handler(), http.MethodGet, "/metrics").Body.String(); strings.Count(text, "weir_kafka_charged_total{") != 3 {
		t.Error("there are not three buckets with series: two by name, and the others")
	}
}

// Every metric that is served here is in the guide.
func TestGuideHasMetrics(t *testing.T) {
	guide, err := os.ReadFile("../../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	p := compiled(t, map[string]policy.GateSpec{"api": {Quota: &policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "1/h"}}}}, policy.Options{})
	m := NewMetrics(withKafka{booked{still{p}, newCounter(t, true)}}, "v0")
	m.KeepOnly(p, 20)
	m.KafkaCharged(kafka.Charge{Gate: "api", Bucket: "api", Cost: 1})
	names := regexp.MustCompile(`(?m)^# TYPE (weir_\w+)`).FindAllStringSubmatch(ask(m.Handler(), http.MethodGet, "/metrics").Body.String(), -1)
	for _, m := range names {
		if !strings.Contains(string(guide), "`"+m[1]+"`") {
			t.Errorf("the guide has no %s", m[1])
		}
	}
	if len(names) < 50 {
		t.Errorf("only %d metrics are served", len(names))
	}
}

// What there is to see of quotas and of their stores is in the metrics, and reasons for
// which a quota may refuse have a series before the first refusal.
func TestQuotaMetrics(t *testing.T) {
	p := compiled(t, map[string]policy.GateSpec{
		"api":   {Quota: &policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "1/h"}, By: []string{"user"}, MaxKeys: 1000}},
		"far":   {Quota: &policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "1/h"}, Store: "shared"}},
		"slots": {Limit: &policy.LimitSpec{Limit: 1}},
	}, policy.Options{Stores: map[string]quota.Store{"shared": struct{ quota.Store }{}}})
	for range 3 {
		_, _ = p.Gate("api").TryAdmit(weir.Work{User: "alice"})
	}
	rec := httptest.NewRecorder()
	NewMetrics(still{p}, "v0").Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	text := rec.Body.String()
	for _, want := range []string{
		`weir_gate_rejected_total{gate="api",reason="quota"} 2`,
		`weir_gate_rejected_total{gate="far",reason="blocked"} 0`,
		`weir_quota_rules{gate="api"} 1`,
		`weir_quota_buckets{gate="api"} 1`,
		`weir_quota_buckets_limit{gate="api"} 1000`,
		`weir_quota_overflowed_total{gate="api"} 0`,
		`weir_quota_store_errors_total{gate="far"} 0`,
		`weir_store_down{store="shared"} 1`,
		`weir_store_takes_total{store="shared"} 5`,
		`weir_store_failures_total{reason="timeout",store="shared"} 2`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	for _, not := range []string{`weir_quota_rules{gate="slots"}`, `weir_quota_buckets{gate="far"}`, `weir_gate_rejected_total{gate="api",reason="limit"}`} {
		if strings.Contains(text, not) {
			t.Errorf("there is %s", not)
		}
	}
}
