//go:build integration

package integration

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/internal/testbed/kafka"
)

// Kafka's own tools and franz-go work through the gateway, which is all that they know: topics, a group, a transaction. Who logs in
// is to the broker who it is.
func TestKafkaBehindTheGateway(t *testing.T) {
	t.Parallel()
	cluster := startKafka(t, kafka.Config{Users: map[string]string{"reader": "secret"}, Settings: []string{"connections.max.reauth.ms=5000"}})
	open := &behind{name: "open", brokers: []string{cluster.Addr}}
	login := &behind{name: "login", brokers: []string{cluster.SASL}, advertise: "localhost", user: "reader", password: "secret"}
	limited := &behind{name: "limited", brokers: []string{cluster.Addr}, quotas: "mutations: topics, produce: in, fetch: out"}
	g := startKafkaGateway(t, fmt.Sprintf(`
gates:
  topics: {quota: {rate: 2/s, burst: 20, by: [user], debt: true}}
  in: {quota: {rate: %d/s, by: [user, client]}}
  out: {quota: {rate: %d/s, by: [user, client]}}
`, produceRate, fetchRate), open, login, limited)

	// The tool asks once more after half a minute, and then the topic may be there.
	tool(t, cluster, "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", open.addr, "--create", "--if-not-exists", "--topic", "orders", "--partitions", "3")
	if out := tool(t, cluster, "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", open.addr, "--describe", "--topic", "orders"); strings.Count(out, "Partition: ") != 3 {
		t.Errorf("kafka-topics --describe: %s", out)
	}
	const records, size = 500, 2000
	tool(t, cluster, "org.apache.kafka.tools.ProducerPerformance", "--topic", "orders", "--num-records", strconv.Itoa(records), "--record-size", strconv.Itoa(size), "--throughput", "-1",
		"--producer-props", "bootstrap.servers="+open.addr)
	out := tool(t, cluster, "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", open.addr, "--topic", "orders", "--from-beginning",
		"--max-messages", strconv.Itoa(records), "--group", "tools")
	if n := strings.Count(out, "\n"); n != records {
		t.Errorf("kafka-console-consumer prints %d lines, not %d", n, records)
	}

	producer := kafkaClient(t, kgo.SeedBrokers(open.addr), kgo.TransactionalID("move"))
	if err := producer.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := producer.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Value: []byte("the last")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := producer.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	reader := kafkaClient(t, kgo.SeedBrokers(open.addr), kgo.ConsumerGroup("readers"), kgo.ConsumeTopics("orders"), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
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

	isDelayed(t, g, cluster, limited.addr, records*size)
	isRefused(t, cluster, limited.addr)

	silent := silentLogin(t, login.addr)
	user := kafkaClient(t, kgo.SeedBrokers(login.addr), kgo.SASL(plain.Auth{User: "reader", Pass: "secret"}.AsMechanism()))
	if err := kerr.ErrorForCode(createTopic(t, user, "more", 1).Topics[0].ErrorCode); !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Errorf("a user without rights: %v", err)
	}
	stranger := kafkaClient(t, kgo.SeedBrokers(login.addr), kgo.SASL(plain.Auth{User: "reader", Pass: "wrong"}.AsMechanism()), kgo.RequestRetries(1))
	if _, err := kmsg.NewPtrMetadataRequest().RequestWith(t.Context(), stranger); !errors.Is(err, kerr.SaslAuthenticationFailed) {
		t.Errorf("a wrong password: %v", err)
	}
	logsIn(t, g, login.addr, user)
	// librdkafka 2.0 minds the least version of a handshake that is offered. With SCRAM it logs in at no broker of 4.2 either.
	if out, err := exec.CommandContext(t.Context(), part(t, "kcat"), "-b", login.addr, "-m", "60", "-L", "-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanisms=PLAIN",
		"-X", "sasl.username=reader", "-X", "sasl.password=secret").CombinedOutput(); err != nil {
		t.Errorf("kcat logs in: %v\n%s", err, out)
	}
	if err := silent.SetReadDeadline(time.Now().Add(await.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := silent.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a login that does not go on: %v, and it ends after 10 s", err)
	}
	if out, ok := weirCommand(t, "status", "--admin", strings.TrimPrefix(g.admin, "http://")); !ok || !strings.Contains(out, "localhost:") || !strings.Contains(out, cluster.SASL) {
		t.Errorf("weir status: %s", out)
	}
}

// Bytes a second of the quotas that isDelayed reaches. They are so low that one request owes seconds: a client is told the wait
// less the time its answer took, which on a busy machine would be the whole of a short wait.
const produceRate, fetchRate = 5_000, 200_000

// isDelayed shows that quotas of bytes hold before a real broker, and that clients are told: Java's producer, and franz-go, which
// reads the bytes that the topic holds.
func isDelayed(t *testing.T, g *gateway, cluster *kafka.Server, addr string, bytes int) {
	t.Helper()
	const n, size = 40, 1000
	begin := time.Now()
	out := tool(t, cluster, "org.apache.kafka.tools.ProducerPerformance", "--topic", "orders", "--num-records", strconv.Itoa(n), "--record-size", strconv.Itoa(size), "--throughput", "-1",
		"--print-metrics", "--producer-props", "bootstrap.servers="+addr, "client.id=java")
	// A full bucket holds what a second brings. The last request, of at most 16 KiB and its head, need not wait.
	if took, least := time.Since(begin), time.Duration(n*size-produceRate-17_000)*time.Second/produceRate; took < least {
		t.Errorf("%d bytes took %v, and at least %v was owed", n*size, took, least)
	}
	if m := regexp.MustCompile(`produce-throttle-time-max:\{client-id=java\}\s*: ([0-9.]+)`).FindStringSubmatch(out); m == nil || m[1] == "0.000" {
		t.Errorf("Java's producer was told of no delay: %q\n%s", m, out)
	}
	told := new(throttleHook)
	reader := kafkaClient(t, kgo.SeedBrokers(addr), kgo.ClientID("go"), kgo.ConsumeTopics("orders"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.WithHooks(told))
	begin = time.Now()
	for seen := 0; seen < bytes; {
		fetches := reader.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) { seen += len(r.Value) })
	}
	if told.longest.Load() == 0 {
		t.Errorf("franz-go was told of no delay in the %v of its fetches", time.Since(begin))
	}
	var all struct {
		Kafka []struct {
			Cluster string
			Produce struct{ Times int } `json:"throttled_produce"`
			Fetch   struct{ Times int } `json:"throttled_fetch"`
		}
	}
	if err := json.Unmarshal(get(t, g.admin+"/gates"), &all); err != nil {
		t.Fatal(err)
	}
	for _, one := range all.Kafka {
		if limited := one.Cluster == "limited"; (one.Produce.Times > 0) != limited || (one.Fetch.Times > 0) != limited {
			t.Errorf("delays: %+v", one)
		}
	}
	metrics := string(get(t, g.admin+"/metrics"))
	for _, want := range []string{
		`weir_kafka_delays_total{bucket="in/user=ANONYMOUS/client=java",gate="in"} `, `weir_kafka_charged_total{bucket="out/user=ANONYMOUS/client=go",gate="out"} `,
		`weir_kafka_requests_total{api="Produce",cluster="limited"} `, `weir_kafka_node_answer_bytes_total{cluster="limited",node="1"} `,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no metric %s", want)
		}
	}
	var would struct {
		Kafka struct {
			Delay int `json:"delay_ms"`
		}
	}
	if err := json.Unmarshal(get(t, g.admin+"/explain?kafka=limited&api=Fetch&client=go&cost=21000000"), &would); err != nil || would.Kafka.Delay != 20_000 {
		t.Errorf("a fetch of 21 MB would be delayed by %d ms, want 20 s; %v", would.Kafka.Delay, err)
	}
}

// isRefused shows that a quota of mutations holds before a real broker: the vectors K20 and K23 of KIP-599, with a client in Go and with
// kafka-topics, which does not try again by itself.
func isRefused(t *testing.T, cluster *kafka.Server, addr string) {
	t.Helper()
	client := kafkaClient(t, kgo.SeedBrokers(addr))
	create := func(name string, partitions int32) *kmsg.CreateTopicsResponse {
		t.Helper()
		return createTopic(t, client, name, partitions)
	}
	begin := time.Now()
	if resp := create("first", 30); resp.Topics[0].ErrorCode != 0 || resp.ThrottleMillis != 0 || resp.Topics[0].NumPartitions != 30 {
		t.Errorf("the first: %+v", resp)
	}
	resp := create("second", 30)
	passed := time.Since(begin)
	const owed = 5 * time.Second // 10 partitions, of which two a second come back
	code, told := kerr.ErrorForCode(resp.Topics[0].ErrorCode), time.Duration(resp.ThrottleMillis)*time.Millisecond
	if passed < owed && (!errors.Is(code, kerr.ThrottlingQuotaExceeded) || told > owed || told < owed-passed-50*time.Millisecond) {
		t.Errorf("the second, after %v: %v, %v to wait", passed, code, told)
	}
	out, err := cluster.Tool(t.Context(), "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", addr, "--create", "--topic", "third", "--partitions", "40")
	if passed := time.Since(begin); err == nil && passed < owed {
		t.Errorf("kafka-topics makes a topic after %v", passed)
	} else if err != nil && !strings.Contains(out, "come back in") {
		t.Errorf("kafka-topics: %v\n%s", err, out)
	}
	for attempts := 0; ; attempts++ { // the client waits by itself as long as it is told, and gets through then
		begin = time.Now()
		resp := create("fourth", 100)
		if resp.Topics[0].ErrorCode == 0 {
			break
		}
		if attempts == 5 {
			t.Fatalf("the fourth is never made: %+v", resp)
		}
	}
	out, err = cluster.Tool(t.Context(), "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", addr, "--delete", "--topic", "fourth")
	switch passed := time.Since(begin); { // 80 are owed at least, of which two a second come back
	case err == nil && passed < 40*time.Second:
		t.Errorf("kafka-topics deletes after %v", passed)
	case err != nil && !strings.Contains(out, "come back in"):
		t.Errorf("kafka-topics deletes: %v\n%s", err, out)
	}
}

// throttleHook notes the longest delay that a client is told of.
type throttleHook struct{ longest atomic.Int64 }

func (h *throttleHook) OnBrokerThrottle(_ kgo.BrokerMetadata, wait time.Duration, _ bool) {
	h.longest.Store(max(h.longest.Load(), int64(wait)))
}

// silentLogin begins a login, and says no more after the broker's first answer.
func silentLogin(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	handshake := kmsg.NewPtrSASLHandshakeRequest()
	handshake.Version, handshake.Mechanism = 1, "SCRAM-SHA-512"
	offered := roundTrip(t, c, handshake).(*kmsg.SASLHandshakeResponse).SupportedMechanisms
	if !slices.Contains(offered, "SCRAM-SHA-256") || !slices.Contains(offered, "OAUTHBEARER") {
		t.Errorf("mechanisms: %q", offered)
	}
	return c
}

// unsigned is a token of OAUTHBEARER that names a user, and that nobody has signed.
func unsigned(user string) string {
	claims := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"sub":%q,"iat":%d,"exp":%d}`, user, time.Now().Unix(), time.Now().Add(time.Hour).Unix()))
	return base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + claims + "."
}

// logsIn shows that each mechanism is followed, and that a login again, which the broker wants every 5 s, disturbs nobody.
func logsIn(t *testing.T, g *gateway, addr string, user *kgo.Client) {
	t.Helper()
	logins := func() kafkaLogins { return loginsOf(t, g, "login") }
	before := logins()
	if before.Logins == 0 || before.LoginsFailed == 0 || before.LoginsUnnamed != 0 {
		t.Errorf("after PLAIN with both passwords: %+v", before)
	}
	pass := scram.Auth{User: "reader", Pass: "secret"}
	for _, m := range []sasl.Mechanism{pass.AsSha256Mechanism(), pass.AsSha512Mechanism(), oauth.Auth{Token: unsigned("reader")}.AsMechanism()} {
		if err := kafkaClient(t, kgo.SeedBrokers(addr), kgo.SASL(m)).Ping(t.Context()); err != nil {
			t.Errorf("%s: %v", m.Name(), err)
		}
	}
	after := logins()
	if after.Logins < before.Logins+3 || after.LoginsUnnamed != 0 || after.LoginsFailed != before.LoginsFailed {
		t.Errorf("three logins more: %+v, before %+v", after, before)
	}
	for deadline := time.Now().Add(await.Patience); ; { // the connections stay, so what grows is a login again
		begin := time.Now()
		if err := user.Ping(t.Context()); err != nil && time.Since(begin) < loginMargin {
			t.Fatalf("a request around a login again: %v", err)
		}
		if logins().Logins >= after.Logins+2 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("nobody logs in again: %+v", logins())
		}
	}
}
