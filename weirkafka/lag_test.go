package weirkafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestBehind covers every rule for the lag of one partition.
func TestBehind(t *testing.T) {
	tests := []struct {
		start, end, committed int64
		from                  From
		want                  int64
	}{
		{0, 100, 40, Earliest, 60},
		{0, 100, 100, Earliest, 0},
		{0, 100, 0, Earliest, 100},
		{0, 100, 130, Earliest, 0},  // committed beyond the end: truncated, or made anew
		{70, 100, 40, Earliest, 30}, // committed below the start: deleted meanwhile
		{100, 100, 40, Earliest, 0}, // all of it
		{70, 100, -1, Earliest, 30}, // no commit
		{70, 100, -1, Latest, 0},
		{70, 100, 80, Latest, 20},
		{70, 60, 65, Earliest, 0}, // a last stable offset below the start
		{0, 0, -1, Earliest, 0},
	}
	for _, tt := range tests {
		l := &Lag{cfg: LagConfig{From: tt.from}}
		if got := l.behind(Partition{Start: tt.start, End: tt.end, Committed: tt.committed}); got != tt.want {
			t.Errorf("%+v: %d", tt, got)
		}
	}
}

func TestLagFaults(t *testing.T) {
	_, err := NewLag(LagConfig{Topics: []string{"a", "a", "no good"}, Take: "mean", Isolation: "none", From: "middle"})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"no cluster", "Group: no consumer group", `Topics[1]: "a" is in the list already`, `Topics[2]: "no good" is not a name of a topic`, "Take: ", "Isolation: ", "From: "} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in:\n%v", want, err)
		}
	}
	client, err := kgo.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := NewLag(LagConfig{Client: client, Brokers: []string{"127.0.0.1:9092"}, Group: "g", Topics: []string{"t"}}); err == nil || !strings.Contains(err.Error(), "Client: ") {
		t.Errorf("both a Client and Brokers: %v", err)
	}
	if _, err := NewLag(LagConfig{Client: client, Group: "g"}); err == nil || !strings.Contains(err.Error(), "must name from 1 to 1000 topics") {
		t.Errorf("no topics: %v", err)
	}
	for name, good := range map[string]bool{"a.b_c-D9": true, "": false, ".": false, "..": false, "a/b": false, "ä": false, strings.Repeat("a", 249): true, strings.Repeat("a", 250): false} {
		if err := CheckTopic(name); (err == nil) != good {
			t.Errorf("topic %q: %v", name, err)
		}
	}
}

// cluster is a cluster in this process, with the data of a test.
type cluster struct {
	*kfake.Cluster
	t      *testing.T
	client *kgo.Client
}

func newCluster(t *testing.T, brokers int) *cluster {
	t.Helper()
	fake, err := kfake.NewCluster(kfake.NumBrokers(brokers))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(fake.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.DisableClientMetrics()) // tests count requests
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &cluster{fake, t, client}
}

// topic creates a topic with that number of messages in each partition.
func (c *cluster) topic(name string, messages ...int) {
	c.t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, int32(len(messages)), 1
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(c.t.Context(), c.client)
	if err = errors.Join(err, kerr.ErrorForCode(resp.Topics[0].ErrorCode)); err != nil {
		c.t.Fatal(err)
	}
	c.produce(name, messages...)
}

func (c *cluster) produce(name string, messages ...int) {
	c.t.Helper()
	for p, n := range messages {
		for range n {
			c.client.Produce(c.t.Context(), &kgo.Record{Topic: name, Partition: int32(p), Value: []byte("x")}, func(_ *kgo.Record, err error) {
				if err != nil {
					c.t.Errorf("produce: %v", err)
				}
			})
		}
	}
	if err := c.client.Flush(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
}

// commit commits offsets from partition 0 on; negative ones are left out.
func (c *cluster) commit(group, topic string, offsets ...int64) {
	c.t.Helper()
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group = group
	t := kmsg.NewOffsetCommitRequestTopic()
	t.Topic, t.TopicID = topic, c.id(topic)
	for i, o := range offsets {
		if o >= 0 {
			p := kmsg.NewOffsetCommitRequestTopicPartition()
			p.Partition, p.Offset = int32(i), o
			t.Partitions = append(t.Partitions, p)
		}
	}
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(c.t.Context(), c.client)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, p := range resp.Topics[0].Partitions {
		if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *cluster) id(topic string) [16]byte {
	c.t.Helper()
	req := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = &topic
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(c.t.Context(), c.client)
	if err != nil || len(resp.Topics) != 1 {
		c.t.Fatal(resp, err)
	}
	return resp.Topics[0].TopicID
}

func (c *cluster) lag(cfg LagConfig) *Lag {
	c.t.Helper()
	if cfg.Client == nil {
		cfg.Brokers = c.ListenAddrs()
	}
	l, err := NewLag(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(l.Close)
	return l
}

func (c *cluster) reads(l *Lag, want float64) {
	c.t.Helper()
	if got, err := l.Read(c.t.Context()); err != nil || got != want {
		c.t.Errorf("read %v, %v; want %v", got, err, want)
	}
}

func TestRead(t *testing.T) {
	c := newCluster(t, 3)
	c.topic("a", 10, 20, 0)
	c.topic("b", 5)
	c.commit("g", "a", 4, -1, -1)
	c.commit("g", "b", 5)
	both := []string{"b", "a"}
	c.reads(c.lag(LagConfig{Group: "g", Topics: both}), 26)
	c.reads(c.lag(LagConfig{Group: "g", Topics: both, Take: Max}), 20)
	c.reads(c.lag(LagConfig{Group: "g", Topics: both, From: Latest}), 6)
	c.reads(c.lag(LagConfig{Group: "g", Topics: both, Isolation: ReadCommitted}), 26)
	c.reads(c.lag(LagConfig{Group: "stranger", Topics: both}), 35)

	// The caller may go on using its own client.
	l := c.lag(LagConfig{Client: c.client, Group: "g", Topics: []string{"b"}})
	c.reads(l, 0)
	l.Close()
	c.reads(l, 0)

	all, err := c.lag(LagConfig{Group: "g", Topics: both}).Partitions(t.Context())
	want := []Partition{
		{Topic: "a", Partition: 0, End: 10, Committed: 4, Lag: 6},
		{Topic: "a", Partition: 1, End: 20, Committed: -1, Lag: 20},
		{Topic: "a", Partition: 2, Committed: -1},
		{Topic: "b", Partition: 0, End: 5, Committed: 5},
	}
	if err != nil || !slices.Equal(all, want) {
		t.Errorf("%v: %+v", err, all)
	}
}

// Added partitions count, and so do those of a topic that is created again, without its old commits.
func TestTopicsThatChange(t *testing.T) {
	c := newCluster(t, 1)
	c.topic("a", 10)
	c.commit("g", "a", 10)
	l := c.lag(LagConfig{Group: "g", Topics: []string{"a"}})
	c.reads(l, 0)
	req := kmsg.NewPtrCreatePartitionsRequest()
	more := kmsg.NewCreatePartitionsRequestTopic()
	more.Topic, more.Count = "a", 3
	req.Topics = append(req.Topics, more)
	if _, err := req.RequestWith(t.Context(), c.client); err != nil {
		t.Fatal(err)
	}
	c.reads(l, 0)
	other := newCluster(t, 1) // its client has never seen the topic with one partition
	other.client, _ = kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer other.client.Close()
	other.produce("a", 0, 3, 4)
	c.reads(l, 7)
}

// An unknown lag is an error that says why, never a smaller number.
func TestUnknown(t *testing.T) {
	denied := kerr.TopicAuthorizationFailed.Code
	tests := []struct {
		name string
		key  kmsg.Key
		fail func(kmsg.Request) kmsg.Response // nil: no answer of ours
		want []string
	}{
		{"no right to the topic", kmsg.Metadata, func(req kmsg.Request) kmsg.Response {
			resp := req.ResponseKind().(*kmsg.MetadataResponse)
			for _, asked := range req.(*kmsg.MetadataRequest).Topics {
				topic := kmsg.NewMetadataResponseTopic()
				topic.Topic, topic.ErrorCode = asked.Topic, denied
				resp.Topics = append(resp.Topics, topic)
			}
			return resp
		}, []string{"topic a: TOPIC_AUTHORIZATION_FAILED", "ACL DESCRIBE on the topic a"}},
		{"a partition without a leader", kmsg.Metadata, func(req kmsg.Request) kmsg.Response {
			resp := req.ResponseKind().(*kmsg.MetadataResponse)
			for _, asked := range req.(*kmsg.MetadataRequest).Topics {
				topic, p := kmsg.NewMetadataResponseTopic(), kmsg.NewMetadataResponseTopicPartition()
				topic.Topic, p.Partition, p.Leader, p.ErrorCode = asked.Topic, 4, -1, kerr.LeaderNotAvailable.Code
				topic.Partitions = append(topic.Partitions, p)
				resp.Topics = append(resp.Topics, topic)
			}
			return resp
		}, []string{"topic a, partition 4 has no leader"}},
		{"a partition that is named twice", kmsg.Metadata, func(req kmsg.Request) kmsg.Response {
			resp := req.ResponseKind().(*kmsg.MetadataResponse)
			for _, asked := range req.(*kmsg.MetadataRequest).Topics {
				topic := kmsg.NewMetadataResponseTopic()
				topic.Topic = asked.Topic
				for range 2 {
					topic.Partitions = append(topic.Partitions, kmsg.NewMetadataResponseTopicPartition())
				}
				resp.Topics = append(resp.Topics, topic)
			}
			return resp
		}, []string{"topic a, partition 0 is twice in the answer"}},
		{"a topic without partitions", kmsg.Metadata, func(req kmsg.Request) kmsg.Response {
			return req.ResponseKind()
		}, []string{"topic a has no partitions"}},
		{"no right to the group", kmsg.OffsetFetch, func(req kmsg.Request) kmsg.Response {
			resp := req.ResponseKind().(*kmsg.OffsetFetchResponse)
			group := kmsg.NewOffsetFetchResponseGroup()
			group.Group, group.ErrorCode = "g", kerr.GroupAuthorizationFailed.Code
			resp.Groups = append(resp.Groups, group)
			return resp
		}, []string{"the coordinator of group g, broker 0 (127.0.0.1:", "GROUP_AUTHORIZATION_FAILED", "ACL DESCRIBE on the group g"}},
		{"an answer about another group", kmsg.OffsetFetch, func(req kmsg.Request) kmsg.Response {
			resp := req.ResponseKind().(*kmsg.OffsetFetchResponse)
			group := kmsg.NewOffsetFetchResponseGroup()
			group.Group = "other"
			resp.Groups = append(resp.Groups, group)
			return resp
		}, []string{"the coordinator of group g, broker 0 (127.0.0.1:", "the answer is not about that group"}},
		{"an offset that is none", kmsg.ListOffsets, func(req kmsg.Request) kmsg.Response {
			resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
			for _, asked := range req.(*kmsg.ListOffsetsRequest).Topics {
				topic := kmsg.NewListOffsetsResponseTopic()
				topic.Topic = asked.Topic
				for _, ask := range asked.Partitions {
					p := kmsg.NewListOffsetsResponseTopicPartition()
					p.Partition, p.Offset = ask.Partition, -1
					topic.Partitions = append(topic.Partitions, p)
				}
				resp.Topics = append(resp.Topics, topic)
			}
			return resp
		}, []string{"2 of 2 partitions", "the answer is offset -1"}},
		{"a commit that is left out", kmsg.OffsetFetch, func(req kmsg.Request) kmsg.Response {
			resp := req.ResponseKind().(*kmsg.OffsetFetchResponse)
			group := kmsg.NewOffsetFetchResponseGroup()
			group.Group = "g"
			resp.Groups = append(resp.Groups, group)
			return resp
		}, []string{"2 of 2 partitions are unknown", "the commit is unknown", "the answer does not contain it"}},
		{"one partition that its broker does not lead", kmsg.ListOffsets, func(req kmsg.Request) kmsg.Response {
			resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
			for _, asked := range req.(*kmsg.ListOffsetsRequest).Topics {
				topic := kmsg.NewListOffsetsResponseTopic()
				topic.Topic = asked.Topic
				for _, ask := range asked.Partitions {
					p := kmsg.NewListOffsetsResponseTopicPartition()
					p.Partition, p.Offset = ask.Partition, 7
					if ask.Partition == 1 {
						p.ErrorCode = kerr.NotLeaderForPartition.Code
					}
					topic.Partitions = append(topic.Partitions, p)
				}
				resp.Topics = append(resp.Topics, topic)
			}
			return resp
		}, []string{"kafka_lag: topic a, partition 1: the ", "broker 0 (127.0.0.1:", "NOT_LEADER_FOR_PARTITION"}},
		{"an answer that never comes", kmsg.ListOffsets, nil, []string{"2 of 2 partitions", "broker 0 (127.0.0.1:", context.Canceled.Error()}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newCluster(t, 1)
			c.topic("a", 10, 10)
			l := c.lag(LagConfig{Group: "g", Topics: []string{"a"}})
			c.reads(l, 20) // so only the faulty answer makes the difference
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			c.ControlKey(tt.key.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				if tt.fail == nil {
					cancel() // the reading's time is over
					c.SleepControl(func() { <-t.Context().Done() })
					return nil, nil, false
				}
				return tt.fail(req), nil, true
			})
			v, err := l.Read(ctx)
			if err == nil {
				t.Fatalf("read %v", v)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("no %q in: %v", want, err)
				}
			}
		})
	}
}

func TestUnknownTopicAndCluster(t *testing.T) {
	c := newCluster(t, 1)
	c.topic("a", 1)
	if _, err := c.lag(LagConfig{Group: "g", Topics: []string{"a", "nowhere"}}).Read(t.Context()); err == nil || !strings.Contains(err.Error(), "topic nowhere: UNKNOWN_TOPIC_OR_PARTITION") {
		t.Errorf("a topic that is not there: %v", err)
	}
	l, err := NewLag(LagConfig{Brokers: []string{"127.0.0.1:1"}, Group: "g", Topics: []string{"a"}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := l.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "no broker answers where topic a is") || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a cluster that is away: %v", err)
	}
	l.Close()
	l.Close()
	if v, err := l.Read(t.Context()); err == nil {
		t.Errorf("closed, and reads %v", v)
	}
}

// A reading asks each broker at most once for commits, and twice for offsets, whatever the number of topics and
// partitions. No request changes anything.
func TestRequestsOfAReading(t *testing.T) {
	for _, partitions := range []int{1000, 10_000} {
		t.Run(fmt.Sprint(partitions), func(t *testing.T) { requestsOfAReading(t, partitions) })
	}
}

func requestsOfAReading(t *testing.T, partitions int) {
	c := newCluster(t, 3)
	var topics []string
	for i := range 20 {
		topics = append(topics, fmt.Sprintf("t%d", i))
		if err := c.CreateTopic(topics[i], int32(partitions/20), nil); err != nil {
			t.Fatal(err)
		}
	}
	l := c.lag(LagConfig{Group: "g", Topics: topics})
	c.reads(l, 0)
	var mu sync.Mutex
	asked := map[kmsg.Key]map[int32]int{}
	c.Control(func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		key := kmsg.Key(req.Key())
		if asked[key] == nil {
			asked[key] = map[int32]int{}
		}
		asked[key][c.CurrentNode()]++
		return nil, nil, false
	})
	c.reads(l, 0)
	mu.Lock()
	defer mu.Unlock()
	most := map[kmsg.Key]int{kmsg.Metadata: 1, kmsg.OffsetFetch: 1, kmsg.ListOffsets: 2, kmsg.ApiVersions: 3}
	for key, brokers := range asked {
		for broker, n := range brokers {
			if n > most[key] {
				t.Errorf("broker %d was asked %s %d times, at most %d", broker, key.Name(), n, most[key])
			}
		}
	}
	if n := asked[kmsg.OffsetFetch]; len(n) != 1 {
		t.Errorf("%d brokers were asked for commits", len(n))
	}
	if len(asked[kmsg.ListOffsets]) != 3 {
		t.Errorf("%d brokers of 3 were asked for offsets", len(asked[kmsg.ListOffsets]))
	}
}

// Commits are read before ends, so a group that works meanwhile looks further behind than it is, never less.
// The commits are of the topic with this id, not of an earlier topic of the same name.
func TestOrderOfAReading(t *testing.T) {
	c := newCluster(t, 1)
	c.topic("a", 7)
	c.commit("g", "a", 3)
	l := c.lag(LagConfig{Group: "g", Topics: []string{"a"}})
	c.reads(l, 4)
	drop := kmsg.NewPtrDeleteTopicsRequest()
	dropped := kmsg.NewDeleteTopicsRequestTopic()
	dropped.TopicID = c.id("a")
	drop.Topics = append(drop.Topics, dropped)
	if _, err := drop.RequestWith(t.Context(), c.client); err != nil {
		t.Fatal(err)
	}
	c.topic("a", 0)
	id := c.id("a")
	if id == dropped.TopicID {
		t.Fatal("the topic is not another one")
	}
	var mu sync.Mutex
	var order []string
	c.Control(func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		order = append(order, kmsg.NameForKey(req.Key()))
		if commits, ok := req.(*kmsg.OffsetFetchRequest); ok && (commits.Version < 10 || commits.Groups[0].Topics[0].TopicID != id) {
			t.Errorf("version %d asks for the commits of topic %x, not of %x", commits.Version, commits.Groups[0].Topics[0].TopicID, id)
		}
		return nil, nil, false
	})
	c.reads(l, 0)
	mu.Lock()
	defer mu.Unlock()
	if order = slices.DeleteFunc(order, func(name string) bool { return name == "ApiVersions" }); !slices.Equal(order, []string{"Metadata", "OffsetFetch", "ListOffsets", "ListOffsets"}) {
		t.Errorf("asked in this order: %v", order)
	}
}

// Readers of committed messages are measured up to the last stable offset, others up to the newest message.
func TestIsolation(t *testing.T) {
	c := newCluster(t, 1)
	c.topic("a", 10)
	for isolation, want := range map[Isolation]int8{ReadUncommitted: 0, ReadCommitted: 1} {
		var mu sync.Mutex
		asked := map[int64]int8{} // by the value of ListOffsets
		c.ControlKey(kmsg.ListOffsets.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			mu.Lock()
			defer mu.Unlock()
			r := req.(*kmsg.ListOffsetsRequest)
			asked[r.Topics[0].Partitions[0].Timestamp] = r.IsolationLevel
			return nil, nil, false
		})
		c.reads(c.lag(LagConfig{Group: "g", Topics: []string{"a"}, Isolation: isolation}), 10)
		mu.Lock()
		if got, ok := asked[atEnd]; !ok || got != want {
			t.Errorf("isolation %v: the end was asked for with level %d (%v), want %d", isolation, got, ok, want)
		}
		mu.Unlock()
	}
}

// A sum beyond the largest number stays at that number, and never looks like no lag.
func TestTotalIsBounded(t *testing.T) {
	l := &Lag{}
	if got := l.total([]Partition{{Lag: math.MaxInt64}, {Lag: math.MaxInt64}, {Lag: 1}}); got != math.MaxInt64 {
		t.Errorf("%d", got)
	}
}
