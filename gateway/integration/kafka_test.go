//go:build integration

package integration

import (
	"cmp"
	enc "encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/internal/testbed/kafka"
)

// An API fills a topic, and a consumer group empties it. The gateway before the API reads the group's
// lag, and its limit follows: down while the group is behind, up again once it has caught up, and to
// the safe end when nobody can tell.
func TestLimitFollowsALagOfKafka(t *testing.T) {
	t.Parallel()
	cluster := startKafka(t, kafka.Config{})
	client := kafkaClient(t, kgo.SeedBrokers(cluster.Addr))
	if err := kerr.ErrorForCode(createTopic(t, client, "documents", 2).Topics[0].ErrorCode); err != nil {
		t.Fatal(err)
	}

	const each = 100 // documents in a request
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		records := make([]*kgo.Record, each)
		for i := range records {
			records[i] = &kgo.Record{Topic: "documents", Value: []byte("x")}
		}
		if err := client.ProduceSync(r.Context(), records...).FirstErr(); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
	}))
	t.Cleanup(api.Close)
	g := startGateway(t, fmt.Sprintf(`
upstreams: {app: {targets: ["%s"]}}
kafka: {main: {bootstrap: ["%s"]}}
signals:
  behind:
    {read: kafka_lag, cluster: main, group: indexer, topics: [documents], interval: 100ms, timeout: 10s, hold: 20s, then: safe, safe_value: 1000}
gates:
  app:
    limit: {controller: lag, min: 2, max: 20, lag: {signal: behind, target: 100, critical: 1000, interval: 100ms}, queue: {max_wait: 1m}}
routes: [{match: ["/"], gates: [app], upstream: app, timeout: 1m}]
`, api.URL, cluster.Addr))
	limit := func(want int64) {
		t.Helper()
		eventually(t, fmt.Sprintf("the limit is %d", want), func() bool { return g.gate(t, "app").Limit == want })
	}

	for range 6 {
		get(t, g.url+"/")
	}
	limit(10) // 20 − 18 × (600 − 100) / 900
	out, ok := weirCommand(t, "status", "--admin", strings.TrimPrefix(g.admin, "http://"))
	if !ok || !strings.Contains(out, "behind") || !strings.Contains(out, "600") {
		t.Errorf("weir status: %s", out)
	}

	consumer := kafkaClient(t, kgo.SeedBrokers(cluster.Addr), kgo.ConsumerGroup("indexer"), kgo.ConsumeTopics("documents"),
		kgo.DisableAutoCommit(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	for seen := 0; seen < 6*each; {
		fetches := consumer.PollFetches(t.Context())
		if err := errors.Join(fetches.Err(), consumer.CommitRecords(t.Context(), fetches.Records()...)); err != nil {
			t.Fatal(err)
		}
		seen += fetches.NumRecords()
	}
	limit(20)

	if err := cluster.Stop(); err != nil {
		t.Fatal(err)
	}
	limit(2)                                                                            // by safe_value, after hold
	if ready := string(get(t, g.admin+"/readyz")); !strings.HasPrefix(ready, "ready") { // what is away is away for every gateway
		t.Errorf("/readyz: %q", ready)
	}
}

func kafkaClient(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseAllowingRebalance)
	return client
}

// startKafka starts a broker for a test. What is set but jars and ports is the test's.
func startKafka(t *testing.T, cfg kafka.Config) *kafka.Server {
	t.Helper()
	return startBrokers(t, 1, cfg)[0]
}

// startBrokers is the same for several brokers of one cluster.
func startBrokers(t *testing.T, n int, cfg kafka.Config) kafka.Cluster {
	t.Helper()
	var err error
	if cfg.Jars, err = kafka.Find(); err != nil {
		t.Fatal(err)
	}
	cfg.Ports = &ports
	cluster, err := kafka.StartCluster(t.Context(), n, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	return cluster
}

// behind is a cluster of Kafka as the file of a gateway has it. What is empty has a default, or is left out.
type behind struct {
	name           string // main
	brokers        []string
	user, password string       // of the gateway itself, by PLAIN
	cert           *certificate // of its listener
	advertise      string       // 127.0.0.1
	quotas         string       // without the braces

	addr, ports string // where the gateway listens, and the range for nodes; the start sets both, unless they are
}

// startKafkaGateway runs weir on a file about Kafka alone, before one cluster or several. conf is what else the file has. The gateway's addr is
// where clients of the first bootstrap. Whoever changes quotas shows the token that lies beside the file.
func startKafkaGateway(t *testing.T, conf string, clusters ...*behind) *gateway {
	t.Helper()
	admin, dir := freeAddr(t), t.TempDir()
	g := &gateway{admin: "http://" + admin, config: filepath.Join(dir, "weir.yaml")}
	writeFile(t, filepath.Join(dir, "token"), []byte("0123456789abcdef\n"))
	text := fmt.Appendf(nil, "admin: {address: %s, token_file: token}\n%s\nkafka:\n", admin, conf)
	for _, b := range clusters {
		name := cmp.Or(b.name, "main")
		if b.addr == "" {
			b.addr, b.ports = freeAddr(t), nodePorts(t, len(b.brokers))
		}
		listen := fmt.Sprintf("address: %q", b.addr)
		if b.cert != nil {
			listen += fmt.Sprintf(", tls: {cert: %q, key: %q}", b.cert.cert, b.cert.key)
		}
		text = fmt.Appendf(text, "  %s:\n    bootstrap: [%s]\n    listen: {%s}\n    nodes: {ports: %s, advertise: %s}\n    quotas: {%s}\n",
			name, strings.Join(b.brokers, ", "), listen, b.ports, cmp.Or(b.advertise, "127.0.0.1"), b.quotas)
		if b.user != "" {
			writeFile(t, filepath.Join(dir, name), []byte(b.password+"\n"))
			text = fmt.Appendf(text, "    sasl: {mechanism: plain, user: %s, password_file: %s}\n", b.user, name)
		}
	}
	writeFile(t, g.config, text)
	g.addr = clusters[0].addr
	g.process = start(t, g.addr, dir, binary, "run", "--config", g.config)
	g.accepts(t, admin)
	return g
}

// nodePorts is a range in which the nodes with the ids from 1 to a number have free ports, and nothing else of these tests a port.
func nodePorts(t *testing.T, nodes int) string {
	t.Helper()
	for before, n := -1, 0; ; {
		_, text, err := net.SplitHostPort(freeAddr(t))
		if err != nil {
			t.Fatal(err)
		}
		port, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		if port != before+1 {
			n = 0
		}
		if before = port; n == nodes {
			return fmt.Sprintf("%d-%d", port-nodes, port)
		}
		n++
	}
}

// tool runs one of Kafka's own tools to its end, and returns what it prints.
func tool(t *testing.T, cluster *kafka.Server, class string, args ...string) string {
	t.Helper()
	out, err := cluster.Tool(t.Context(), class, args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// failed is what stands before the exit status of a tool that has failed, if [tools] runs it.
const failed = "exit status "

// tools runs Kafka's own tools one after another in one Java machine, and returns what each prints. A line is a class and its arguments.
// One with a pattern behind a newline is asked again until it says so.
func tools(t *testing.T, cluster *kafka.Server, lines []string) []string {
	t.Helper()
	source, err := filepath.Abs(filepath.Join("testdata", "kafka", "KafkaTools.java"))
	if err != nil {
		t.Fatal(err)
	}
	rest, said := tool(t, cluster, source, lines...), make([]string, len(lines)) // Java runs a source as it does a class
	for i := len(lines) - 1; i >= 0; i-- {
		line, _, _ := strings.Cut(lines[i], "\n")
		at := strings.LastIndex(rest, "$ "+line+"\n")
		if at < 0 {
			t.Fatalf("no answer to %q: %q", line, rest)
		}
		said[i], rest = rest[at+len("$ "+line+"\n"):], rest[:at]
	}
	return said
}

// roundTrip asks one thing on a connection, in the version that the request has.
func roundTrip(t *testing.T, c net.Conn, req kmsg.Request) kmsg.Response {
	t.Helper()
	resp, err := askKafka(c, req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// askKafka is roundTrip for a connection that may end.
func askKafka(c net.Conn, req kmsg.Request) (kmsg.Response, error) {
	if err := c.SetDeadline(time.Now().Add(await.Patience)); err != nil {
		return nil, err
	}
	if _, err := c.Write(kmsg.NewRequestFormatter().AppendRequest(nil, req, 1)); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	answer := make([]byte, enc.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(c, answer); err != nil {
		return nil, err
	}
	resp, header := req.ResponseKind(), 4 // the correlation id
	if resp.IsFlexible() {
		header++ // no tags
	}
	return resp, resp.ReadFrom(answer[header:])
}

// createTopic asks for a topic with one copy.
func createTopic(t *testing.T, client *kgo.Client, name string, partitions int32) *kmsg.CreateTopicsResponse {
	t.Helper()
	req, topic := kmsg.NewPtrCreateTopicsRequest(), kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, partitions, 1
	req.Topics, req.TimeoutMillis = append(req.Topics, topic), 30_000
	resp, err := req.RequestWith(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// kafkaLogins are the logins at a cluster, as /gates shows them.
type kafkaLogins struct {
	Cluster       string
	Logins        uint64 `json:"logins"`
	LoginsUnnamed uint64 `json:"logins_unnamed"`
	LoginsFailed  uint64 `json:"logins_failed"`
}

// loginsOf are the logins at a cluster.
func loginsOf(t *testing.T, g *gateway, cluster string) kafkaLogins {
	t.Helper()
	var all struct{ Kafka []kafkaLogins }
	if err := json.Unmarshal(get(t, g.admin+"/gates"), &all); err != nil {
		t.Fatal(err)
	}
	for _, one := range all.Kafka {
		if one.Cluster == cluster {
			return one
		}
	}
	t.Fatalf("no cluster is called %s", cluster)
	return kafkaLogins{}
}

// allow gives a user a right.
func allow(t *testing.T, admin *kgo.Client, user string, kind kmsg.ACLResourceType, name string, may kmsg.ACLOperation) {
	t.Helper()
	req, acl := kmsg.NewPtrCreateACLsRequest(), kmsg.NewCreateACLsRequestCreation()
	acl.ResourceType, acl.ResourceName, acl.ResourcePatternType = kind, name, kmsg.ACLResourcePatternTypeLiteral
	acl.Principal, acl.Host, acl.Operation, acl.PermissionType = "User:"+user, "*", may, kmsg.ACLPermissionTypeAllow
	req.Creations = append(req.Creations, acl)
	resp, err := req.RequestWith(t.Context(), admin)
	if err != nil {
		t.Fatal(err)
	}
	if err := kerr.ErrorForCode(resp.Results[0].ErrorCode); err != nil {
		t.Fatal(err)
	}
}
