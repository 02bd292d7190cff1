//go:build integration

package integration

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weir-go/weir/internal/kafka"
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
