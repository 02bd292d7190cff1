//go:build integration

package integration

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/internal/testbed/kafka"
)

// Vectors of KIP-599 before a real broker, for users who log in: K7, K8, K10 and K24, and that who comes back when told is served. The others
// run before a broker of the tests' own (gateway/internal/kafka). A request may delete topics by name and by id, and each counts. A topic that the broker makes by itself is charged to who has asked for it.
func TestKafkaVectors(t *testing.T) {
	t.Parallel()
	users := map[string]string{"weir": "gateway", "strict": "secret", "older": "secret", "curious": "secret", "remover": "secret", "nobody": "secret"}
	cluster := startKafka(t, kafka.Config{Users: users, Settings: []string{"auto.create.topics.enable=true", "num.partitions=3"}})
	admin := kafkaClient(t, kgo.SeedBrokers(cluster.Addr))
	for user := range users {
		allow(t, admin, user, kmsg.ACLResourceTypeTopic, "*", kmsg.ACLOperationAll)
	}
	allow(t, admin, "weir", kmsg.ACLResourceTypeCluster, "kafka-cluster", kmsg.ACLOperationDescribeConfigs)
	g := startKafkaGateway(t, `
gates:
  topics:
    quota:
      debt: true
      rules: [{user: strict, rate: 10/s, burst: 100}, {user: older, rate: 10/s, burst: 100}, {user: curious, rate: 1/h, burst: 100}, {user: remover, rate: 1/h, burst: 100}]
`, &behind{name: "orders", brokers: []string{cluster.SASL}, user: "weir", password: "gateway", quotas: "mutations: topics"})
	as := func(user string, more ...kgo.Opt) *kgo.Client { // on a connection of its own, which nobody has muted
		return kafkaClient(t, append(more, kgo.SeedBrokers(g.addr), kgo.SASL(plain.Auth{User: user, Pass: "secret"}.AsMechanism()))...)
	}

	begin := time.Now()
	for i, want := range []struct {
		code     int16
		throttle time.Duration
	}{{}, {}, {89, 8 * time.Second}} {
		resp := createTopic(t, as("strict"), fmt.Sprintf("strict-%d", i), 90)
		isToldToWait(t, fmt.Sprintf("K8, %d", i), resp.Topics[0].ErrorCode, resp.ThrottleMillis, want.code, want.throttle, begin)
		if want.code == 0 {
			continue
		}
		if text := *resp.Topics[0].ErrorMessage; !strings.Contains(text, "10/s, burst 100") || !strings.Contains(text, "come back in") {
			t.Errorf("K8: %s", text)
		}
		await.Moment(time.Now().Add(time.Duration(resp.ThrottleMillis) * time.Millisecond))
		if resp := createTopic(t, as("strict"), "strict-again", 1); resp.Topics[0].ErrorCode != 0 {
			t.Errorf("K8: who comes back when told gets %+v", resp.Topics[0])
		}
	}
	begin = time.Now()
	for i, throttle := range []time.Duration{0, 8 * time.Second, 17 * time.Second} {
		resp := createTopic(t, as("older", kgo.MaxVersions(kversion.V2_4_0())), fmt.Sprintf("older-%d", i), 90)
		isToldToWait(t, fmt.Sprintf("K10, %d", i), resp.Topics[0].ErrorCode, resp.ThrottleMillis, 0, throttle, begin)
	}
	for i := range 2 {
		resp := createTopic(t, as("nobody"), fmt.Sprintf("nobody-%d", i), 30)
		isToldToWait(t, "K24", resp.Topics[0].ErrorCode, resp.ThrottleMillis, 0, 0, begin)
	}

	known := kmsg.NewPtrMetadataRequest()
	for i := range 2 {
		known.Topics = append(known.Topics, kmsg.MetadataRequestTopic{Topic: kmsg.StringPtr(fmt.Sprintf("nobody-%d", i))})
	}
	ids := map[string][16]byte{}
	await.That(t, "the broker knows the new topics", func() bool {
		resp, err := known.RequestWith(t.Context(), admin)
		if err != nil {
			return false
		}
		for i := range resp.Topics {
			if topic := &resp.Topics[i]; len(topic.Partitions) == 30 {
				ids[*topic.Topic] = topic.TopicID
			}
		}
		return len(ids) == 2
	})
	removal := kmsg.NewPtrDeleteTopicsRequest()
	removal.TimeoutMillis = 15_000
	removal.Topics = []kmsg.DeleteTopicsRequestTopic{{Topic: kmsg.StringPtr("nobody-0")}, {TopicID: ids["nobody-1"]}, {TopicID: [16]byte{7}}}
	removed, err := removal.RequestWith(t.Context(), as("remover"))
	if err != nil {
		t.Fatal(err)
	}
	gone := 0
	for _, topic := range removed.Topics {
		if topic.ErrorCode == 0 {
			gone++
		}
	}
	if got := leftOf(t, g, "DeleteTopics", "remover"); gone != 2 || len(removed.Topics) != 3 || got < 40 || got > 40.1 {
		t.Errorf("%v left of 100 partitions, of which 60 are deleted: %+v", got, removed.Topics)
	}

	ask := kmsg.NewPtrMetadataRequest()
	ask.AllowAutoTopicCreation = true
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = kmsg.StringPtr("by-itself")
	ask.Topics = append(ask.Topics, topic)
	curious := as("curious")
	await.That(t, "the topic is there", func() bool {
		resp, err := ask.RequestWith(t.Context(), curious)
		return err == nil && resp.Topics[0].ErrorCode == 0 && len(resp.Topics[0].Partitions) == 3
	})
	if got := leftOf(t, g, "CreateTopics", "curious"); got < 97 || got > 97.1 {
		t.Errorf("%v left of 100 partitions, of which the broker has made 3", got)
	}
}

// isToldToWait checks an answer against a vector: the error, and a wait that is no shorter than the vector's less the time passed, and at most 50 ms
// longer.
func isToldToWait(t *testing.T, name string, code int16, ms int32, wantCode int16, want time.Duration, begin time.Time) {
	t.Helper()
	told, passed := time.Duration(ms)*time.Millisecond, time.Since(begin)
	if passed < want && (code != wantCode || told > want+50*time.Millisecond || told < want-passed) || want == 0 && (code != wantCode || told != 0) {
		t.Errorf("%s: error %d, %v to wait, after %v; want %d, %v", name, code, told, passed, wantCode, want)
	}
}

// leftOf is how much of a quota a user has.
func leftOf(t *testing.T, g *gateway, api, user string) float64 {
	t.Helper()
	out, ok := weirCommand(t, "explain", "--admin", strings.TrimPrefix(g.admin, "http://"), "--kafka", "orders", "--api", api, "--user", user, "--client", "app", "--json")
	var said struct {
		Gates []struct{ Left float64 }
	}
	if err := json.Unmarshal([]byte(out), &said); !ok || err != nil || len(said.Gates) == 0 {
		t.Fatalf("weir explain: %v\n%s", err, out)
	}
	return said.Gates[0].Left
}
