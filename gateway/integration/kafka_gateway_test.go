//go:build integration

package integration

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/weir-go/weir/internal/kafka"
)

// Kafka's own tools and franz-go work through the gateway, which is all that they know: topics, a group, a transaction. Who logs in
// is to the broker who it is.
func TestKafkaBehindTheGateway(t *testing.T) {
	t.Parallel()
	jars, err := kafka.Find()
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := kafka.Start(t.Context(), kafka.Config{Jars: jars, Ports: &ports, Users: map[string]string{"reader": "secret"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	open, login := freeAddr(t), freeAddr(t)
	g := startKafkaGateway(t, open, fmt.Sprintf(`
kafka:
  open:
    bootstrap: ["%s"]
    listen: {address: "%s"}
    nodes: {ports: %s, advertise: 127.0.0.1}
  login:
    bootstrap: ["%s"]
    sasl: {mechanism: plain, user: reader, password_file: "%s"}
    listen: {address: "%s"}
    nodes: {ports: %s, advertise: localhost}
`, cluster.Addr, open, nodePorts(t), cluster.SASL, secret, login, nodePorts(t)))

	tool := func(class string, args ...string) string {
		t.Helper()
		out, err := cluster.Tool(t.Context(), class, args...)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return out
	}
	tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", open, "--create", "--topic", "orders", "--partitions", "3")
	if out := tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", open, "--describe", "--topic", "orders"); strings.Count(out, "Partition: ") != 3 {
		t.Errorf("kafka-topics --describe: %s", out)
	}
	const records = 500
	tool("org.apache.kafka.tools.ProducerPerformance", "--topic", "orders", "--num-records", strconv.Itoa(records), "--record-size", "2000", "--throughput", "-1",
		"--producer-props", "bootstrap.servers="+open)
	out := tool("org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", open, "--topic", "orders", "--from-beginning",
		"--max-messages", strconv.Itoa(records), "--group", "tools")
	if n := strings.Count(out, "\n"); n != records {
		t.Errorf("kafka-console-consumer prints %d lines, not %d", n, records)
	}

	producer := kafkaClient(t, kgo.SeedBrokers(open), kgo.TransactionalID("move"))
	if err := producer.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := producer.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Value: []byte("the last")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := producer.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	reader := kafkaClient(t, kgo.SeedBrokers(open), kgo.ConsumerGroup("readers"), kgo.ConsumeTopics("orders"), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	for seen := 0; seen <= records; {
		fetches := reader.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		seen += fetches.NumRecords()
	}
	if err := reader.CommitUncommittedOffsets(t.Context()); err != nil {
		t.Fatal(err)
	}

	user := kafkaClient(t, kgo.SeedBrokers(login), kgo.SASL(plain.Auth{User: "reader", Pass: "secret"}.AsMechanism()))
	create := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = "more", 1, 1
	create.Topics, create.TimeoutMillis = append(create.Topics, topic), 30_000
	resp, err := create.RequestWith(t.Context(), user)
	if err != nil {
		t.Fatal(err)
	}
	if err := kerr.ErrorForCode(resp.Topics[0].ErrorCode); !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Errorf("a user without rights: %v", err)
	}
	stranger := kafkaClient(t, kgo.SeedBrokers(login), kgo.SASL(plain.Auth{User: "reader", Pass: "wrong"}.AsMechanism()), kgo.RequestRetries(1))
	if _, err := create.RequestWith(t.Context(), stranger); !errors.Is(err, kerr.SaslAuthenticationFailed) {
		t.Errorf("a wrong password: %v", err)
	}
	if out, ok := weirCommand(t, "status", "--admin", strings.TrimPrefix(g.admin, "http://")); !ok || !strings.Contains(out, "localhost:") || !strings.Contains(out, cluster.SASL) {
		t.Errorf("weir status: %s", out)
	}
}

// startKafkaGateway runs weir on a file about Kafka alone, whose first cluster bootstraps at addr.
func startKafkaGateway(t *testing.T, addr, conf string) *gateway {
	t.Helper()
	admin := freeAddr(t)
	g := &gateway{addr: addr, admin: "http://" + admin, config: filepath.Join(t.TempDir(), "weir.yaml")}
	writeFile(t, g.config, fmt.Appendf(nil, "admin: {address: %s}\n%s", admin, conf))
	g.process = start(t, addr, t.TempDir(), binary, "run", "--config", g.config)
	g.accepts(t, admin)
	return g
}

// nodePorts is a range in which the node with the id 1 has a free port, and nothing else of these tests a port.
func nodePorts(t *testing.T) string {
	t.Helper()
	for before := -1; ; {
		_, text, err := net.SplitHostPort(freeAddr(t))
		if err != nil {
			t.Fatal(err)
		}
		port, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		if port == before+1 {
			return fmt.Sprintf("%d-%d", before, port)
		}
		before = port
	}
}
