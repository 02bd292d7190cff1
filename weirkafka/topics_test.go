package weirkafka

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/signal"
)

// rounds counts the readings that the cluster has answered.
func (c *cluster) rounds() func() int {
	var mu sync.Mutex
	n := 0
	c.ControlKey(kmsg.OffsetFetch.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		n++
		return nil, nil, false
	})
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

// Each topic has a reading of its own, and all of them cost one round.
func TestTopics(t *testing.T) {
	c := newCluster(t, 2)
	c.topic("a", 10, 20)
	c.topic("b", 5)
	c.commit("g", "a", 4, -1)
	rounds := c.rounds()
	for _, tt := range []struct {
		take Take
		a    float64
	}{{Sum, 26}, {Max, 20}} {
		all := c.lag(LagConfig{Group: "g", Topics: []string{"b", "nowhere", "a"}, Take: tt.take}).Topics()
		names := []string{all[0].Name(), all[1].Name(), all[2].Name()}
		if !slices.Equal(names, []string{"kafka_lag/b", "kafka_lag/nowhere", "kafka_lag/a"}) {
			t.Errorf("names: %v", names)
		}
		for range 3 { // each time, the first signal makes the round and the others use it
			before := rounds()
			if v, err := all[0].Read(t.Context()); err != nil || v != 5 {
				t.Errorf("b: %v, %v", v, err)
			}
			if v, err := all[1].Read(t.Context()); err == nil || !strings.Contains(err.Error(), "weirkafka: kafka_lag/nowhere: topic nowhere: UNKNOWN_TOPIC_OR_PARTITION") {
				t.Errorf("nowhere: %v, %v", v, err)
			}
			if v, err := all[2].Read(t.Context()); err != nil || v != tt.a {
				t.Errorf("a: %v, %v", v, err)
			}
			if n := rounds() - before; n != 1 {
				t.Errorf("%d rounds, not one", n)
			}
		}
		// A signal that is read much later makes a round of its own, even if it has not seen the last one.
		if _, err := all[0].Read(t.Context()); err != nil {
			t.Error(err)
		}
		late := all[2].(*topicLag)
		late.mu.Lock()
		late.newest.ended = late.newest.ended.Add(-sharedFor)
		late.mu.Unlock()
		before := rounds()
		if v, err := late.Read(t.Context()); err != nil || v != tt.a || rounds() != before+1 {
			t.Errorf("a, much later: %v, %v, %d rounds", v, err, rounds()-before)
		}
	}
}

// Signals that are read at the same time share a round. If the signal that makes the round leaves, the others make a new one.
func TestTopicsTogether(t *testing.T) {
	c := newCluster(t, 1)
	c.topic("a", 7)
	c.topic("b", 5)
	all := c.lag(LagConfig{Group: "g", Topics: []string{"a", "b"}}).Topics()
	a, b := all[0].(*topicLag), all[1].(*topicLag)
	for _, leaves := range []bool{false, true} {
		r, own := a.joinReading(a)
		if !own {
			t.Fatal("a reading is under way")
		}
		got := make(chan string)
		go func() {
			v, err := b.Read(t.Context())
			got <- fmt.Sprint(v, err)
		}()
		for joined := false; !joined; {
			a.mu.Lock()
			joined = b.seen == r
			a.mu.Unlock()
			runtime.Gosched()
		}
		want := "3 <nil>"
		if r.partitions = []Partition{{Topic: "b", Lag: 3}}; leaves {
			r.partitions, r.abandoned, want = nil, true, "5 <nil>"
		}
		r.ended = time.Now()
		close(r.done)
		if v := <-got; v != want {
			t.Errorf("the first leaves %v: the second read %s, want %s", leaves, v, want)
		}
	}

	// An abandoned reading is not used later.
	r, own := a.joinReading(a)
	if !own { // b was to make it
		r, _ = a.joinReading(a)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	a.measure(gone, r)
	if v, err := b.Read(t.Context()); err != nil || v != 5 {
		t.Errorf("read %v, %v", v, err)
	}
	if _, own := b.joinReading(b); !own { // it never ends
		t.Fatal("another reading is under way")
	}
	if v, err := a.Read(gone); err == nil || !strings.Contains(err.Error(), "weirkafka: kafka_lag/a: context canceled") {
		t.Errorf("whoever has left read %v, %v", v, err)
	}
}

// A poller of these signals is a source with a reading for each topic.
func TestTopicsAsASource(t *testing.T) {
	c := newCluster(t, 1)
	c.topic("a", 7)
	c.topic("b", 5)
	var watches []signal.Watch
	for _, s := range c.lag(LagConfig{Group: "g", Topics: []string{"a", "b"}}).Topics() {
		watches = append(watches, signal.Watch{Signal: s, Interval: time.Millisecond, Hold: time.Hour})
	}
	poller, err := signal.NewPoller(signal.Config{Watches: watches})
	if err != nil {
		t.Fatal(err)
	}
	defer poller.Close()
	var source control.Source = poller
	want := []control.Reading{{Name: "kafka_lag/a", Value: 7, Known: true}, {Name: "kafka_lag/b", Value: 5, Known: true}}
	for ctx := t.Context(); ; {
		if got := source.Readings(nil); slices.Equal(got, want) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// A round that has panicked, and so has neither a lag nor an error, is not a lag of 0.
func TestNothingFoundIsUnknown(t *testing.T) {
	broken := &reading{done: make(chan struct{}), ended: time.Now().Add(time.Hour)}
	close(broken.done)
	one := &topicLag{name: "kafka_lag/a", topic: "a", sharing: &sharing{lag: &Lag{}, newest: broken}}
	if v, err := one.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "kafka_lag/a") {
		t.Errorf("read %v, %v", v, err)
	}
}

// A broker that comes back at another address is found again.
func TestBrokerAtAnotherAddress(t *testing.T) {
	c := newCluster(t, 2)
	c.topic("a", 1, 2, 3, 4, 5, 6, 7, 8)
	l := c.lag(LagConfig{Group: "g", Topics: []string{"a"}})
	c.reads(l, 36)
	if err := c.RemoveNode(1); err != nil {
		t.Fatal(err)
	}
	c.settles(l, 36) // the other broker leads all partitions
	if _, _, err := c.AddNode(1, 0); err != nil {
		t.Fatal(err)
	}
	if err := c.MoveTopicPartition("a", 0, 1); err != nil {
		t.Fatal(err)
	}
	c.settles(l, 36)
}

// settles reads until a reading succeeds, and checks each value that it reads.
func (c *cluster) settles(l *Lag, want float64) {
	c.t.Helper()
	for {
		switch v, err := l.Read(c.t.Context()); {
		case err == nil && v == want:
			return
		case err == nil:
			c.t.Fatalf("read %v, want %v or an error", v, want)
		case c.t.Context().Err() != nil:
			c.t.Fatal(err)
		}
	}
}

// BenchmarkReading prints how long one reading takes of a cluster of three brokers in this process, and how
// many requests it makes: median, least and most.
//
//	go test ./weirkafka -run '^$' -bench '^BenchmarkReading$' -benchtime 51x
func BenchmarkReading(b *testing.B) {
	for _, partitions := range []int{1000, 10_000} {
		b.Run(fmt.Sprintf("partitions=%d", partitions), func(b *testing.B) {
			const topics = 20
			fake, err := kfake.NewCluster(kfake.NumBrokers(3))
			if err != nil {
				b.Fatal(err)
			}
			defer fake.Close()
			var names []string
			for i := range topics {
				names = append(names, fmt.Sprintf("t%d", i))
				if err := fake.CreateTopic(names[i], int32(partitions/topics), nil); err != nil {
					b.Fatal(err)
				}
			}
			l, err := NewLag(LagConfig{Brokers: fake.ListenAddrs(), Group: "g", Topics: names})
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			var mu sync.Mutex
			requests := 0
			fake.Control(func(kmsg.Request) (kmsg.Response, error, bool) {
				fake.KeepControl()
				mu.Lock()
				defer mu.Unlock()
				requests++
				return nil, nil, false
			})
			if _, err := l.Read(b.Context()); err != nil {
				b.Fatal(err)
			}
			mu.Lock()
			requests = 0
			mu.Unlock()
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				if _, err := l.Read(b.Context()); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(took[len(took)/2].Seconds()*1e3, "ms-median")
			b.ReportMetric(took[0].Seconds()*1e3, "ms-min")
			b.ReportMetric(took[len(took)-1].Seconds()*1e3, "ms-max")
			mu.Lock()
			b.ReportMetric(float64(requests)/float64(len(took)), "requests")
			mu.Unlock()
		})
	}
}
