package weirkafka

import (
	"math"
	"net"
	"strconv"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// liar makes an answer of a broker from bytes; after their end all values are 0.
type liar struct{ data []byte }

func (l *liar) below(n int) int {
	if len(l.data) == 0 {
		return 0
	}
	b := l.data[0]
	l.data = l.data[1:]
	return int(b) % n
}

func (l *liar) topic() string    { return []string{"a", "b", "c", ""}[l.below(4)] }
func (l *liar) partition() int32 { return int32(l.below(4) - 1) }
func (l *liar) code() int16      { return []int16{0, 0, 0, 0, 0, 0, 3, 29, 30, 69, -1, 999}[l.below(12)] }
func (l *liar) offset() int64 {
	return []int64{0, 1, 5, 100, -1, -7, math.MaxInt64, math.MinInt64}[l.below(8)]
}

// answer is the answer of the broker to a request, nil for the true one.
func (l *liar) answer(req kmsg.Request, addr string) kmsg.Response {
	switch resp := req.ResponseKind().(type) {
	case *kmsg.MetadataResponse:
		b := kmsg.NewMetadataResponseBroker()
		host, port, _ := net.SplitHostPort(addr)
		n, _ := strconv.Atoi(port)
		b.Host, b.Port = host, int32(n)
		resp.Brokers = append(resp.Brokers, b)
		for range l.below(4) {
			t := kmsg.NewMetadataResponseTopic()
			t.Topic, t.ErrorCode = kmsg.StringPtr(l.topic()), l.code()
			for range l.below(4) {
				p := kmsg.NewMetadataResponseTopicPartition()
				p.Partition, p.Leader, p.ErrorCode = l.partition(), []int32{0, 0, 0, -1, 7}[l.below(5)], l.code()
				t.Partitions = append(t.Partitions, p)
			}
			resp.Topics = append(resp.Topics, t)
		}
		return resp
	case *kmsg.OffsetFetchResponse:
		for range 1 + l.below(2) {
			g := kmsg.NewOffsetFetchResponseGroup()
			g.Group, g.ErrorCode = []string{"g", "g", "g", "h"}[l.below(4)], l.code()
			for range l.below(4) {
				t := kmsg.NewOffsetFetchResponseGroupTopic()
				t.Topic = l.topic()
				for range l.below(4) {
					p := kmsg.NewOffsetFetchResponseGroupTopicPartition()
					p.Partition, p.Offset, p.ErrorCode = l.partition(), l.offset(), l.code()
					t.Partitions = append(t.Partitions, p)
				}
				g.Topics = append(g.Topics, t)
			}
			resp.Groups = append(resp.Groups, g)
		}
		return resp
	case *kmsg.ListOffsetsResponse:
		for range l.below(4) {
			t := kmsg.NewListOffsetsResponseTopic()
			t.Topic = l.topic()
			for range l.below(4) {
				p := kmsg.NewListOffsetsResponseTopicPartition()
				p.Partition, p.Offset, p.ErrorCode = l.partition(), l.offset(), l.code()
				t.Partitions = append(t.Partitions, p)
			}
			resp.Topics = append(resp.Topics, t)
		}
		return resp
	}
	return nil
}

// For any answers of brokers, the reading is an error, or the lag of all topics. It counts each partition once, from 0 to its whole log.
func FuzzAnswers(f *testing.F) {
	fake, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(fake.Close)
	addr := fake.ListenAddrs()[0]
	var mu sync.Mutex
	var where, commits, starts, ends []byte
	fake.Control(func(req kmsg.Request) (kmsg.Response, error, bool) {
		fake.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		said := ends
		switch req := req.(type) {
		case *kmsg.MetadataRequest:
			said = where
		case *kmsg.OffsetFetchRequest:
			said = commits
		case *kmsg.ListOffsetsRequest:
			if req.Topics[0].Partitions[0].Timestamp == atStart {
				said = starts
			}
		}
		resp := (&liar{said}).answer(req, addr)
		return resp, nil, resp != nil
	})
	// Brokers of this version answer with the names of topics.
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.MaxVersions(kversion.V3_0_0()), kgo.RequestRetries(0))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(client.Close)
	lag, err := NewLag(LagConfig{Client: client, Group: "g", Topics: []string{"a", "b"}})
	if err != nil {
		f.Fatal(err)
	}
	known := [][]byte{
		{2, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 0},    // both topics have a partition 0
		{0, 0, 0, 2, 0, 1, 1, 1, 0, 1, 1, 1, 2, 0}, // the group has committed 1 and 5
		{2, 0, 1, 1, 0, 0, 1, 1, 1, 0, 0},          // they start at 0
		{2, 0, 1, 1, 3, 0, 1, 1, 1, 3, 0},          // and end at 100
	}
	f.Add(known[0], known[1], known[2], known[3])
	f.Add([]byte{}, []byte{}, []byte{}, []byte{})
	where, commits, starts, ends = known[0], known[1], known[2], known[3]
	if v, err := lag.Read(f.Context()); err != nil || v != 99+95 {
		f.Fatalf("read %v, %v", v, err)
	}
	f.Fuzz(func(t *testing.T, inWhere, inCommits, inStarts, inEnds []byte) {
		mu.Lock()
		where, commits, starts, ends = inWhere, inCommits, inStarts, inEnds
		mu.Unlock()
		all, err := lag.Partitions(t.Context())
		seen := map[Partition]bool{}
		topics := map[string]bool{}
		for _, p := range all {
			if p.Err != nil && err == nil {
				t.Errorf("%+v, and no error", p)
			}
			one := Partition{Topic: p.Topic, Partition: p.Partition}
			if seen[one] && err == nil {
				t.Errorf("%s, partition %d: twice", p.Topic, p.Partition)
			}
			seen[one], topics[p.Topic] = true, true
			if p.Err == nil && err == nil && (p.Lag < 0 || p.Start < 0 || p.Lag > max(0, p.End-p.Start)) {
				t.Errorf("%+v", p)
			}
		}
		if err == nil && (len(topics) != 2 || !topics["a"] || !topics["b"]) {
			t.Errorf("no error, and a lag of %v", topics)
		}
		if err == nil && lag.total(all) < 0 {
			t.Errorf("a lag of %d", lag.total(all))
		}
	})
}
