//go:build integration

package weirkafka

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir/internal/testbed/kafka"
)

// asking is a hook that counts the requests of a client, by kind and broker.
type asking struct {
	mu    sync.Mutex
	asked map[kmsg.Key]map[int32]int
}

var _ kgo.HookBrokerWrite = (*asking)(nil)

func (a *asking) OnBrokerWrite(meta kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	kind := kmsg.Key(key)
	if a.asked[kind] == nil {
		a.asked[kind] = map[int32]int{}
	}
	a.asked[kind][meta.NodeID]++
}

// again returns the counts, and starts from 0.
func (a *asking) again() map[kmsg.Key]map[int32]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.asked
	a.asked = map[kmsg.Key]map[int32]int{}
	return was
}

// Three real brokers with 1,000 partitions get no more requests than those of TestRequestsOfAReading.
func TestRequestsOfAReadingOfThreeBrokers(t *testing.T) {
	t.Parallel()
	jars, err := kafka.Find()
	if err != nil {
		t.Fatal(err)
	}
	brokers, err := kafka.StartCluster(t.Context(), 3, kafka.Config{Jars: jars, Ports: &ports})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := brokers.Stop(); err != nil {
			t.Error(err)
		}
	})
	count := &asking{asked: map[kmsg.Key]map[int32]int{}}
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers[0].Addr), kgo.WithHooks(count))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	const topics, each = 20, 50
	c := &cluster{t: t, client: client}
	names := c.spread(topics, each)
	l, err := NewLag(LagConfig{Client: client, Group: "g", Topics: names})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c.eventually(l, func(v float64, err error) bool { return err == nil && v == 0 }) // all leaders are known
	for _, name := range names {
		c.commit("g", name, slices.Repeat([]int64{0}, each)...)
	}
	most := map[kmsg.Key]int{kmsg.Metadata: 1, kmsg.OffsetFetch: 1, kmsg.ListOffsets: 2}
	var took []time.Duration
	for range 11 {
		count.again()
		begun := time.Now()
		all, err := l.Partitions(t.Context())
		took = append(took, time.Since(begun))
		if err != nil || len(all) != topics*each {
			t.Fatalf("%d partitions: %v", len(all), err)
		}
		for _, p := range all {
			if p.Err != nil || p.Committed != 0 {
				t.Fatalf("%+v", p)
			}
		}
		asked := count.again()
		for kind, brokers := range asked {
			for broker, n := range brokers {
				if n > most[kind] {
					t.Errorf("broker %d was asked %s %d times, at most %d", broker, kind.Name(), n, most[kind])
				}
			}
		}
		if len(asked[kmsg.OffsetFetch]) != 1 || len(asked[kmsg.ListOffsets]) != 3 {
			t.Errorf("commits were asked of %d brokers, want 1, and offsets of %d, want 3: %v", len(asked[kmsg.OffsetFetch]), len(asked[kmsg.ListOffsets]), asked)
		}
	}
	slices.Sort(took)
	t.Logf("%d partitions on 3 brokers: a reading takes %v, from %v to %v", topics*each, took[len(took)/2], took[0], took[len(took)-1])
}

// spread creates topics whose partitions are led by all brokers, and returns their names.
func (c *cluster) spread(topics, partitions int) (names []string) {
	c.t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = 180_000
	for i := range topics {
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = fmt.Sprintf("spread-%d", i), int32(partitions), 1
		req.Topics, names = append(req.Topics, topic), append(names, topic.Topic)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), 3*time.Minute)
	defer cancel()
	resp, err := req.RequestWith(ctx, c.client)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, t := range resp.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			c.t.Fatal(t.Topic, err)
		}
	}
	return names
}
