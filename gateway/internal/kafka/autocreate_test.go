package kafka

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir/policy"
)

// metadata asks for topics. From version 4 on it says whether brokers may create them.
func metadata(version int16, allow bool, topics ...string) *kmsg.MetadataRequest {
	req := metadataOf(version, len(topics))
	req.AllowAutoTopicCreation = allow
	for i := range topics {
		req.Topics[i].Topic = &topics[i]
	}
	return req
}

// If a broker creates a topic because a client asks for its metadata, the client is charged once, and delayed by its debt. A topic that
// exists, that the client may not create, or that it does not want created costs nothing.
func TestTopicsThatBrokersMake(t *testing.T) {
	const unknown, denied = int16(3), int16(29)
	old, secret := "old", "secret"
	b, client := newCluster(t, policy.Enforce, 10) // 3 partitions for each topic
	b.denied = []string{secret}
	for i, c := range []struct {
		req     *kmsg.MetadataRequest
		left    float64
		errors  []int16
		delayed bool
	}{
		{metadata(4, false, "a"), 10, []int16{unknown}, false},
		{metadata(12, true, old, secret), 10, []int16{0, denied}, false},
		{metadata(12, true), 10, nil, false},
		{metadata(12, true, "a", old), 7, []int16{unknown, 0}, false},
		{metadata(12, true, "a"), 7, []int16{unknown}, false}, // it is on its way
		{metadata(1, false, "b", "c"), 1, []int16{unknown, unknown}, false},
		{metadata(8, true, "d"), -2, []int16{unknown}, true},
		{metadata(8, true, "a", "b", "c", "d"), -2, []int16{unknown, unknown, unknown, unknown}, false},
	} {
		resp := b.ask(client, c.req).(*kmsg.MetadataResponse)
		var got []int16
		for _, t := range resp.Topics {
			got = append(got, t.ErrorCode)
		}
		if fmt.Sprint(got) != fmt.Sprint(c.errors) || b.left() != c.left || resp.ThrottleMillis > 400 || (resp.ThrottleMillis > 0) != c.delayed {
			t.Errorf("%d: errors %v, %v left, %d ms; want %+v", i, got, b.left(), resp.ThrottleMillis, c)
		}
	}
	b.topics["a"] = 3 // it is there, and gone again
	b.ask(client, metadata(12, true, "a"))
	delete(b.topics, "a")
	b.ask(client, metadata(12, true, "a"))
	if b.left() != -5 {
		t.Errorf("%v left", b.left())
	}
}

// If brokers create no topics, or the gateway counts nothing, no topic is charged.
func TestTopicsThatNobodyMakes(t *testing.T) {
	b, client := newCluster(t, policy.Enforce, 10)
	b.server.defaults.made = false
	b.ask(client, metadata(12, true, "a"))
	if b.left() != 10 {
		t.Errorf("%v left", b.left())
	}
	b, client = newCluster(t, policy.Off, 10)
	b.ask(client, metadata(12, true, "a"))
	if b.left() != 10 {
		t.Errorf("%v left", b.left())
	}
}

// With NoAutoCreate no request for metadata creates a topic, whatever its version. Otherwise the answer is the same.
func TestNoAutoCreate(t *testing.T) {
	for version := int16(0); version <= offered[keyMetadata].max; version++ {
		b := &cluster{rig: newRigOf(t, Quotas{NoAutoCreate: true}, nil), topics: map[string]int{"old": 4}, done: make(chan struct{})}
		client, broker := b.pair()
		go serve(t, broker, b.done, b.answer)
		resp := b.ask(client, metadata(version, true, "a", "old")).(*kmsg.MetadataResponse)
		if len(resp.Topics) != 2 || resp.Topics[0].ErrorCode != kerr.UnknownTopicOrPartition.Code || *resp.Topics[1].Topic != "old" || len(resp.Topics[1].Partitions) != 4 {
			t.Errorf("version %d: %+v", version, resp)
		}
		_ = client.Close()
		<-b.done
		if seen := strings.Join(b.seen, "; "); seen != "Metadata" {
			t.Errorf("version %d: the broker sees %s", version, seen)
		}
	}
}

func TestMadeOnce(t *testing.T) {
	var m made
	now := time.Now()
	for i, c := range []struct {
		name string
		at   time.Duration
		want bool
	}{{"a", 0, true}, {"a", time.Second, false}, {"b", time.Second, true}, {"a", madeWithin, true}, {"a", madeWithin + 1, false}} {
		if got := m.rememberNew(c.name, 3, now.Add(c.at)); got != c.want {
			t.Errorf("%d: %v", i, got)
		}
	}
	m.forget("a")
	if !m.rememberNew("a", 3, now.Add(madeWithin+2)) {
		t.Error("a topic that was there is not charged when it is made anew")
	}
	for i := range 3 * mostMade {
		m.rememberNew(fmt.Sprint(i), 3, now)
	}
	if len(m.topics) > mostMade {
		t.Errorf("%d are remembered", len(m.topics))
	}
}
