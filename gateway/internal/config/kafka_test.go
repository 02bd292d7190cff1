package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/weirkafka"
)

const kafkaFile = `
upstreams: {app: {targets: [http://127.0.0.1:3000]}}
kafka:
  main:
    bootstrap: [127.0.0.1:9092, "kafka.internal:9093"]
    tls: {}
    sasl: {mechanism: scram-sha-512, user: weir, password_file: secret}
signals:
  behind: {read: kafka_lag, cluster: main, group: indexer, topics: [a, b], take: max, from: latest}
  kafka_lag: {cluster: main, group: indexer, topics: [a], interval: 5s}
gates:
  api: {limit: {controller: lag, lag: {signal: behind}}}
  other: {limit: {controller: drain, drain: {signal: kafka_lag}}}
routes: [{match: [/], gates: [api, other], upstream: app}]
`

func TestKafka(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("hush\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Parse(filepath.Join(dir, "weir.yaml"), []byte(kafkaFile))
	if err != nil {
		t.Fatal(err)
	}
	lag, err := c.KafkaLag("behind")
	if err != nil {
		t.Fatal(err)
	}
	if lag.Name != "behind" || lag.Group != "indexer" || len(lag.Topics) != 2 || lag.Take != weirkafka.Max || lag.From != weirkafka.Latest ||
		len(lag.Brokers) != 2 || lag.TLS == nil || len(lag.SASL) != 1 || lag.SASL[0].Name() != "SCRAM-SHA-512" {
		t.Errorf("%+v", lag)
	}
	specs := c.Policy().Signals
	if got := time.Duration(specs["behind"].Interval); got != time.Second {
		t.Errorf("read every %v", got)
	}
	if got := time.Duration(specs["kafka_lag"].Interval); got != 5*time.Second {
		t.Errorf("read every %v, not as the file says", got)
	}
	if err := os.Remove(filepath.Join(dir, "secret")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.KafkaLag("behind"); err == nil || !strings.Contains(err.Error(), "kafka.main: ") {
		t.Errorf("without its password: %v", err)
	}
}

// All faults are reported at once, each with its line.
func TestKafkaFaults(t *testing.T) {
	_, err := Parse("weir.yaml", []byte(`
upstreams: {app: {targets: [http://127.0.0.1:3000]}}
kafka:
  main:
    bootstrap: [localhost]
    sasl: {mechanism: gssapi, user: weir}
  other:
    bootstrap: [127.0.0.1:9092]
    sasl: {mechanism: plain, user: weir}
signals:
  none: {read: kafka_lag}
  wrong: {read: kafka_lag, cluster: maim, group: g, topics: [a, "b c", a], take: mean}
  memory: {group: g}
gates:
  api: {limit: {controller: lag, lag: {signal: wrong}}}
routes: [{match: [/], gates: [api], upstream: app}]
`))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		`weir.yaml:5:`, `kafka.main.bootstrap[0]: "localhost" has no port; write host:port, for instance 127.0.0.1:9092`,
		`weir.yaml:6:`, `kafka.main.sasl.mechanism: `,
		`weir.yaml:9:`, `kafka.other.sasl: there is no password; write password_file, or password_env`,
		`weir.yaml:11:`, `signals.none.cluster: no cluster is named`, `signals.none.group: no consumer group is named`, `signals.none.topics: no topic is named`,
		`weir.yaml:12:`, `signals.wrong.cluster: there is no cluster "maim"; write main`, `signals.wrong.topics[1]: "b c" is no name of a topic`,
		`signals.wrong.topics[2]: "a" is in the list already`, `signals.wrong.take: `,
		`weir.yaml:13:`, `signals.memory.group: means nothing to a signal that reads memory`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in:\n%v", want, err)
		}
	}
}

// A word for what a signal reads that is nearly kafka_lag, or stands beside its settings, is the only fault there.
func TestKafkaLagMisspelt(t *testing.T) {
	for _, signal := range []string{
		`behind: {read: kafkalag, cluster: main, group: g, topics: [t]}`,
		`behind: {read: consumer_lag, cluster: main, group: g, topics: [t]}`,
		`kafka_lagg: {threshold: 10}`,
	} {
		_, err := Parse("weir.yaml", []byte(`
upstreams: {app: {targets: [http://127.0.0.1:3000]}}
kafka: {main: {bootstrap: [127.0.0.1:9092]}}
signals: {`+signal+`}
gates: {api: {limit: {limit: 10}}}
routes: [{match: [/], gates: [api], upstream: app}]
`))
		if err == nil || !strings.HasSuffix(err.Error(), `is nothing that a signal can read; write read: kafka_lag`) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", signal, err)
		}
	}
}

// What a reading cannot ask for in one request is no file that is right.
func TestKafkaTopicsAreBounded(t *testing.T) {
	var topics []string
	for i := range weirkafka.MaxTopics + 1 {
		topics = append(topics, fmt.Sprint("t", i))
	}
	for n, want := range map[int]string{weirkafka.MaxTopics: "", weirkafka.MaxTopics + 1: "signals.behind.topics: 1001 topics are too many"} {
		_, err := Parse("weir.yaml", fmt.Appendf(nil, `
upstreams: {app: {targets: [http://127.0.0.1:3000]}}
kafka: {main: {bootstrap: [127.0.0.1:9092]}}
signals: {behind: {read: kafka_lag, cluster: main, group: g, topics: [%s]}}
gates: {api: {limit: {limit: 10}}}
routes: [{match: [/], gates: [api], upstream: app}]
`, strings.Join(topics[:n], ", ")))
		if got := fmt.Sprint(err); (err == nil) != (want == "") || want != "" && !strings.Contains(got, want) {
			t.Errorf("%d topics: %.300s", n, got)
		}
	}
}
