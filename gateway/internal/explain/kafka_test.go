package explain

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// beforeKafka is a gateway whose clock stands still, with quotas for clients of Kafka.
func beforeKafka(t *testing.T, gates string) View {
	t.Helper()
	dial := ""
	if strings.Contains(gates, "dial:") {
		dial = ", connections: dial"
	}
	cfg, err := config.Parse("weir.yaml", fmt.Appendf(nil, `
kafka:
  orders:
    bootstrap: [127.0.0.1:9092]
    listen: {address: "127.0.0.1:19092"}
    nodes: {ports: 9100-9199, advertise: localhost}
    quotas: {produce: in, mutations: topics, max_throttle: 20s%s}
  read: {bootstrap: [127.0.0.1:9092]}
gates:
%s`, dial, gates))
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.Compile(cfg.Policy(), policy.Options{Now: func() time.Duration { return 0 }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return View{Config: cfg, Policy: p}
}

const kafkaGates = `
  in: {quota: {rate: 1000/s, burst: 10000, by: [user], rules: [{user: evil, blocked: true}, {user: mirror, exempt: true}, {user: slow, rate: 10/s, burst: 100}]}}
  topics: {quota: {rate: 10/s, burst: 110, by: [user, client], debt: true, rules: [{user: evil, blocked: true}]}}
`

// What a client of Kafka asks is counted by the gate of its kind: delayed, refused, or neither. What is asked is what would be done: each
// answer is compared with the charge itself.
func TestKafkaSays(t *testing.T) {
	observed := strings.ReplaceAll(kafkaGates, "{quota", "{mode: observe, quota")
	tests := []struct {
		name, gates string
		ask         Ask
		spent       int64 // before
		says        string
		verdict     string
	}{
		{"bytes that are there", kafkaGates, Ask{API: "produce", Cost: 10_000}, 0, "passes: 10000 of 10000 left", "Goes to the broker."},
		{"more than there is", kafkaGates, Ask{API: "Produce", Cost: 11_500}, 0, "delays: 10000 of 10000 left, costs 11500: goes into debt", "Goes to the broker. Delayed by in: the connection is not read for 1.5s."},
		{"a debt", kafkaGates, Ask{API: "Produce", Cost: 500}, 11_000, "delays: -1000 of 10000 left, costs 500: goes into debt", "Goes to the broker. Delayed by in: the connection is not read for 1.5s."},
		{"a long one", kafkaGates, Ask{API: "Produce", Cost: 50_000}, 0, "delays: 10000 of 10000 left, costs 50000: goes into debt", "Goes to the broker. Delayed by in: the connection is not read for 20s, the most at a time, and the debt is paid back in 40s."},
		{"a rule of his own", kafkaGates, Ask{API: "Produce", User: "slow", Cost: 101}, 0, "delays: 100 of 100 left, costs 101: goes into debt", "Goes to the broker. Delayed by in: the connection is not read for 100ms."},
		{"exempt", kafkaGates, Ask{API: "Produce", User: "mirror", Cost: 101}, 0, "passes: the rule exempts it", "Goes to the broker."},
		{"blocked", kafkaGates, Ask{API: "Produce", User: "evil"}, 0, "delays: the rule blocks it", "Goes to the broker. Delayed by in: the connection is not read for 20s."},
		{"observed", observed, Ask{API: "Produce", Cost: 11_500}, 0, "observes: 10000 of 10000 left, costs 11500: goes into debt", "Goes to the broker. in would delay or refuse it, and is in observe mode."},
		{"a topic", kafkaGates, Ask{API: "CreateTopics", Cost: 30}, 0, "passes: 110 of 110 left", "Goes to the broker."},
		{"the last that is admitted", kafkaGates, Ask{API: "CreateTopics", Cost: 200}, 100, "passes: 10 of 110 left, costs 200: goes into debt", "Goes to the broker."},
		{"refused", kafkaGates, Ask{API: "CreateTopics", Cost: 1}, 140, "refuses: -30 of 110 left, costs 1", "Refused by topics: THROTTLING_QUOTA_EXCEEDED (89), come back in 3s. The connection is not read for 3s."},
		{"refused for long", kafkaGates, Ask{API: "DeleteTopics", Version: "5", Cost: 1}, 410, "refuses: -300 of 110 left, costs 1", "Refused by topics: THROTTLING_QUOTA_EXCEEDED (89), come back in 30s. The connection is not read for 20s."},
		{"an older client", kafkaGates, Ask{API: "DeleteTopics", Version: "4", Cost: 1}, 140, "delays: -30 of 110 left, costs 1: goes into debt", "Goes to the broker. Delayed by topics: the connection is not read for 3.1s."},
		{"refused, and observed", observed, Ask{API: "CreatePartitions", Cost: 1}, 140, "observes: -30 of 110 left, costs 1", "Goes to the broker. topics would delay or refuse it, and is in observe mode."},
		{"a blocked one", kafkaGates, Ask{API: "CreateTopics", User: "evil"}, 0, "refuses: the rule blocks it", "Refused by topics: POLICY_VIOLATION (44)."},
		{"off", strings.ReplaceAll(kafkaGates, "{quota", "{mode: \"off\", quota"), Ask{API: "CreateTopics"}, 0, "off: ", "Goes to the broker."},
		{"a topic that a broker makes by itself", kafkaGates, Ask{API: "Metadata", Cost: 1}, 140, "delays: -30 of 110 left, costs 1: goes into debt", "Goes to the broker. Delayed by topics: the connection is not read for 3.1s."},
		{"the same, blocked", kafkaGates, Ask{API: "Metadata", User: "evil", Cost: 1}, 0, "passes: the rule blocks it", "Goes to the broker."},
		{"no gate for it", kafkaGates, Ask{API: "Fetch"}, 0, "", "Goes to the broker: nothing counts Fetch of orders."},
		{"nothing to count", kafkaGates, Ask{API: "listgroups"}, 0, "", "Goes to the broker: nothing counts ListGroups of orders."},
	}
	for _, tt := range tests {
		v := beforeKafka(t, tt.gates)
		tt.ask.Kafka, tt.ask.Client = "orders", "app"
		w := weir.Work{User: "ANONYMOUS", Client: "app"}
		if tt.ask.User != "" {
			w.User = tt.ask.User
		}
		charge := func(gate string, cost int64, mode quota.Mode) (time.Duration, error) {
			w.Cost = cost
			_, a, err := v.Policy.Gate(gate).AdmitIn(context.Background(), mode, w)
			return a.Wait, err
		}
		gate := "in"
		if slices.Contains([]string{"CreateTopics", "DeleteTopics", "CreatePartitions", "Metadata"}, tt.ask.API) {
			gate = "topics"
		}
		if tt.spent > 0 {
			if _, err := charge(gate, tt.spent, quota.Permissive); err != nil {
				t.Fatal(err)
			}
		}
		a, err := v.Explain(tt.ask)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		says := ""
		for _, g := range a.Gates {
			says = string(g.Says) + ": " + g.Why
		}
		if says != tt.says || a.verdict() != tt.verdict || a.Refused() != strings.HasPrefix(tt.verdict, "Refused") {
			t.Errorf("%s: %q, %q", tt.name, says, a.verdict())
		}
		if len(a.Gates) == 0 || a.Gates[0].Mode != policy.Enforce || tt.ask.Cost == 0 {
			continue
		}
		mode := quota.Permissive
		if a.Gates[0].Says == Refuses {
			mode = quota.Strict
		}
		wait, err := charge(gate, tt.ask.Cost, mode)
		if rej := weir.AsRejection(err); rej != nil {
			wait = rej.RetryAfter
		}
		if said := max(a.Kafka.DelayMS, a.Kafka.OwedMS, a.Kafka.RetryMS); wait.Milliseconds() != said && gate == "in" || err != nil && wait.Milliseconds() != said {
			t.Errorf("%s: said to wait %d ms, and is made to wait %v, %v", tt.name, said, wait, err)
		}
	}
}

// Where brokers make no topics by themselves, Metadata is not counted.
func TestKafkaAutoCreateOff(t *testing.T) {
	v := beforeKafka(t, kafkaGates)
	k := v.Config.Kafka["orders"]
	k.Quotas.AutoCreate = config.Off
	v.Config.Kafka["orders"] = k
	a, err := v.Explain(Ask{Kafka: "orders", API: "Metadata"})
	if err != nil || len(a.Gates) != 0 || !strings.Contains(strings.Join(a.Notes, " "), "auto_create is off") {
		t.Errorf("%+v, %v", a, err)
	}
}

// A new connection waits for its turn, is reset, or goes to a broker.
func TestKafkaConnects(t *testing.T) {
	const dial = "dial: {%s quota: {rate: 1/s, by: [address]%s, rules: [{address: 10.0.0.0/8, exempt: true}]}}"
	for _, tt := range []struct {
		mode, queue, from, says, verdict string
	}{
		{"", "", "192.0.2.1", "passes: 1 of 1 left", "Goes to a broker."},
		{"", "", "192.0.2.7", "refuses: 0 of 1 left, costs 1", "Reset by dial; there would be room in 1s."},
		{"", ", queue: {len: 5}", "192.0.2.7", "waits: 0 of 1 left, costs 1, there in 1s", "Waits at dial until its turn comes."},
		{"mode: observe,", "", "192.0.2.7", "observes: 0 of 1 left, costs 1", "Goes to a broker."},
		{`mode: "off",`, "", "192.0.2.7", "off: ", "Goes to a broker."},
		{"", "", "10.1.2.3", "passes: the rule exempts it", "Goes to a broker."},
	} {
		v := beforeKafka(t, kafkaGates+"  "+fmt.Sprintf(dial, tt.mode, tt.queue))
		w := weir.Work{User: "192.0.2.7"}
		if _, err := v.Policy.Gate("dial").TryAdmit(w); err != nil {
			t.Fatal(err)
		}
		a, err := v.Explain(Ask{Kafka: "orders", API: "connect", From: tt.from})
		if err != nil {
			t.Fatal(err)
		}
		if says := string(a.Gates[0].Says) + ": " + a.Gates[0].Why; says != tt.says || a.verdict() != tt.verdict || a.Refused() != strings.HasPrefix(tt.verdict, "Reset") || a.Status != 0 {
			t.Errorf("%+v: %q, %q", tt, says, a.verdict())
		}
	}
	if _, err := beforeKafka(t, kafkaGates+"  dial: {quota: {rate: 1/s}}").Explain(Ask{Kafka: "orders", API: "connect", From: "me"}); err == nil || !strings.HasPrefix(err.Error(), `from "me" is not an address`) {
		t.Errorf("%v", err)
	}
}

func TestKafkaAskFaults(t *testing.T) {
	v := beforeKafka(t, kafkaGates)
	for want, ask := range map[string]Ask{
		`kafka names no cluster; write one of those in the file: orders`:                                                     {API: "Produce"},
		`kafka "read" is not a cluster that clients reach through this gateway; those are: orders`:                           {Kafka: "read", API: "Produce"},
		`api is empty; write what the client asks, such as Produce, Fetch or CreateTopics, or connect for a new connection`:  {Kafka: "orders"},
		`api "Create" is not offered to clients; write it as Kafka does, such as Produce, Fetch or CreateTopics`:             {Kafka: "orders", API: "Create"},
		`api "ControlledShutdown" is not offered to clients; write it as Kafka does, such as Produce, Fetch or CreateTopics`: {Kafka: "orders", API: "ControlledShutdown"},
		`version "1" of CreateTopics is not offered; write one from 2 to 7`:                                                  {Kafka: "orders", API: "CreateTopics", Version: "1"},
		`version "x" of CreateTopics is not offered; write one from 2 to 7`:                                                  {Kafka: "orders", API: "CreateTopics", Version: "x"},
		`cost -1 is negative; write how much the request takes`:                                                              {Kafka: "orders", API: "CreateTopics", Cost: -1},
		`cost 1000000000000001 is more than the gateway counts; write at most 1000000000000000`:                              {Kafka: "orders", API: "CreateTopics", Cost: 1_000_000_000_000_001},
	} {
		if _, err := v.Explain(ask); err == nil || err.Error() != want {
			t.Errorf("%+v: %v", ask, err)
		}
	}
	const none = " is about a cluster of Kafka, and clients reach none through this gateway; leave it out, or add one with listen: to the file"
	cfg, p := compiled(t, "  api: {limit: 1}\n", "api")
	for name, given := range map[string]string{"": "api", "orders": "kafka"} {
		if _, err := (View{Config: cfg, Policy: p}).Explain(Ask{Kafka: name, API: "Produce"}); err == nil || err.Error() != given+none {
			t.Errorf("%q of no cluster: %v", name, err)
		}
	}
}
