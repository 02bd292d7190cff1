package weirkafka

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
)

// The table in the doc comment of Classify holds.
func TestClassify(t *testing.T) {
	tests := []struct {
		err  error
		want weir.Outcome
	}{
		{nil, weir.OK},
		{kgo.ErrClientClosed, weir.NoSample},
		{kgo.ErrAborting, weir.NoSample},
		{fmt.Errorf("%w: %w", kgo.ErrClientClosed, context.Canceled), weir.NoSample},
		{kgo.ErrRecordTimeout, weir.Overload},
		{fmt.Errorf("%w, last err: %w", kgo.ErrRecordTimeout, kerr.NotLeaderForPartition), weir.Overload},
		{kgo.ErrRecordRetries, weir.Overload},
		{kgo.ErrMaxBuffered, weir.Overload},
		{kerr.RequestTimedOut, weir.Overload},
		{kerr.NotEnoughReplicas, weir.Overload},
		{kerr.NotEnoughReplicasAfterAppend, weir.Overload},
		{kerr.ThrottlingQuotaExceeded, weir.Overload},
		{kerr.ErrorForCode(89), weir.Overload},
		{fmt.Errorf("topic a: %w", kerr.NotEnoughReplicas), weir.Overload},
		{kerr.MessageTooLarge, weir.Failed},
		{fmt.Errorf("%w (uncompressed_bytes=7)", kerr.MessageTooLarge), weir.Failed},
		{kerr.RecordListTooLarge, weir.Failed},
		{kerr.InvalidRecord, weir.Failed},
		{kerr.UnknownTopicOrPartition, weir.Failed},
		{kerr.LeaderNotAvailable, weir.Failed},
		{kerr.NotLeaderForPartition, weir.Failed},
		{kerr.TopicAuthorizationFailed, weir.Failed},
		{kerr.SaslAuthenticationFailed, weir.Failed},
		{kerr.ProducerFenced, weir.Failed},
		{kerr.UnknownServerError, weir.Failed},
		{kerr.ErrorForCode(32_000), weir.Failed}, // of a broker newer than the client
		{context.Canceled, weir.Abandoned},
		{context.DeadlineExceeded, weir.Overload},
		{os.ErrDeadlineExceeded, weir.Overload},
		{&weir.Rejection{Reason: weir.ReasonQueueFull}, weir.Overload},
		{errors.New("connection refused"), weir.Failed},
	}
	for _, tt := range tests {
		if got := Classify(tt.err); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.err, got, tt.want)
		}
	}
}

// counting is a limiter that notes outcomes.
type counting struct {
	*limit.Limiter
	ended chan weir.Outcome
}

// gate is a limiter with so many slots, that refuses instead of waiting.
func gate(t *testing.T, slots int64) counting {
	t.Helper()
	ended := make(chan weir.Outcome, 100)
	g, err := limit.New(limit.Config{Name: "kafka", Limit: slots, Queue: limit.Queue{Len: -1}, Hooks: weir.Hooks{
		Done: func(_ string, o weir.Outcome, _ time.Duration) { ended <- o },
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return counting{g, ended}
}

func (c *cluster) producing(opts ...kgo.Opt) *kgo.Client {
	c.t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...), kgo.MetadataMinAge(10 * time.Millisecond)}, opts...)...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(client.Close)
	return client
}

// silence keeps the brokers from answering produce requests. The channel gets a value for each request.
func (c *cluster) silence() <-chan struct{} {
	asked := make(chan struct{}, 100)
	c.ControlKey(kmsg.Produce.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		asked <- struct{}{}
		c.SleepControl(func() { <-c.t.Context().Done() })
		return nil, nil, false
	})
	return asked
}

// refuses makes the brokers answer all produce requests with a code.
func (c *cluster) refuses(code int16) {
	c.ControlKey(kmsg.Produce.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := req.ResponseKind().(*kmsg.ProduceResponse)
		for _, t := range req.(*kmsg.ProduceRequest).Topics {
			topic := kmsg.NewProduceResponseTopic()
			topic.Topic, topic.TopicID = t.Topic, t.TopicID
			for _, p := range t.Partitions {
				part := kmsg.NewProduceResponseTopicPartition()
				part.Partition, part.ErrorCode = p.Partition, code
				topic.Partitions = append(topic.Partitions, part)
			}
			resp.Topics = append(resp.Topics, topic)
		}
		return resp, nil, true
	})
}

func TestProduceWithinTheLimit(t *testing.T) {
	c := newCluster(t, 1)
	c.topic("a", 0)
	release := make(chan struct{})
	c.ControlKey(kmsg.Produce.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		c.SleepControl(func() { <-release })
		return nil, nil, false
	})
	g := gate(t, 1)
	var seen weir.Work
	p := &Producer{Client: c.producing(), Gate: g, Work: func(r *kgo.Record) weir.Work {
		seen = weir.Work{Op: r.Topic, Tenant: string(r.Key)}
		return seen
	}}
	landed := make(chan error, 1)
	if err := p.Produce(t.Context(), &kgo.Record{Topic: "a", Key: []byte("orders")}, func(_ *kgo.Record, err error) {
		if n := g.Snapshot().InFlight; n != 0 {
			err = errors.Join(err, fmt.Errorf("%d in flight in the promise", n))
		}
		landed <- err
	}); err != nil {
		t.Fatal(err)
	}
	if seen != (weir.Work{Op: "a", Tenant: "orders"}) {
		t.Errorf("the gate was told %+v", seen)
	}
	if n := g.Snapshot().InFlight; n != 1 {
		t.Errorf("%d in flight before the answer", n)
	}
	err := p.ProduceSync(t.Context(), &kgo.Record{Topic: "a"})
	if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonLimit && r.Reason != weir.ReasonQueueFull {
		t.Errorf("beyond the limit: %v", err)
	}
	close(release)
	if err := <-landed; err != nil {
		t.Error(err)
	}
	if err := p.ProduceSync(t.Context(), &kgo.Record{Topic: "a"}); err != nil {
		t.Error(err)
	}
	if got := c.ends("a"); got != 2 {
		t.Errorf("the topic has %d records: what is refused must not be produced", got)
	}
	if s := g.Snapshot(); s.InFlight != 0 || s.Admitted != 2 {
		t.Errorf("%+v", s)
	}
}

// ends is how many records the first partition has.
func (c *cluster) ends(topic string) int64 {
	c.t.Helper()
	all, err := c.lag(LagConfig{Group: "nobody", Topics: []string{topic}}).Partitions(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return all[0].End
}

// The answer of a broker becomes an outcome, and the permit ends.
func TestRecordsThatFail(t *testing.T) {
	for code, want := range map[int16]weir.Outcome{
		kerr.MessageTooLarge.Code: weir.Failed, kerr.NotEnoughReplicas.Code: weir.Overload, kerr.ThrottlingQuotaExceeded.Code: weir.Overload,
	} {
		t.Run(want.String()+fmt.Sprint(code), func(t *testing.T) {
			c := newCluster(t, 1)
			c.topic("a", 0)
			c.refuses(code)
			g := gate(t, 1)
			p := &Producer{Client: c.producing(kgo.RecordRetries(1), kgo.RetryBackoffFn(func(int) time.Duration { return time.Millisecond })), Gate: g}
			if err := p.ProduceSync(t.Context(), &kgo.Record{Topic: "a"}); err == nil {
				t.Fatal("produced")
			}
			if got := <-g.ended; got != want || g.Snapshot().InFlight != 0 {
				t.Errorf("%v, want %v: %+v", got, want, g.Snapshot())
			}
		})
	}
}

// A record that is never acknowledged keeps no permit: when the client ends the record, the permit ends, too.
func TestNeverAcknowledged(t *testing.T) {
	quick := kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond })
	late := kgo.RecordDeliveryTimeout(time.Second) // the least that a client takes
	tests := []struct {
		name   string
		opts   []kgo.Opt
		sent   bool // the record is on the wire
		away   bool // there is no broker at all
		cancel bool
		close  bool
		want   weir.Outcome
	}{
		{name: "cancelled, no broker", away: true, cancel: true, want: weir.Abandoned},
		{name: "closed, no broker", away: true, close: true, want: weir.NoSample},
		{name: "late, no broker", away: true, opts: []kgo.Opt{late}, want: weir.Overload},
		{name: "closed, on the wire", sent: true, close: true, want: weir.NoSample},
		{name: "cancelled, on the wire", sent: true, cancel: true, opts: []kgo.Opt{kgo.AllowIdempotentProduceCancellation()}, want: weir.Abandoned},
		{name: "cancelled and closed, on the wire", sent: true, cancel: true, close: true, want: weir.NoSample},
		{name: "late, on the wire", sent: true, opts: []kgo.Opt{
			kgo.AllowIdempotentProduceCancellation(), late, kgo.ProduceRequestTimeout(100 * time.Millisecond), kgo.RequestTimeoutOverhead(time.Second),
		}, want: weir.Overload},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 1)
			c.topic("a", 0)
			asked := c.silence()
			opts := append([]kgo.Opt{quick}, tt.opts...)
			if tt.away {
				opts = append(opts, kgo.SeedBrokers("127.0.0.1:1"))
			}
			client := c.producing(opts...)
			g := gate(t, 1)
			p := &Producer{Client: client, Gate: g}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			landed := make(chan error, 2)
			if err := p.Produce(ctx, &kgo.Record{Topic: "a"}, func(_ *kgo.Record, err error) { landed <- err }); err != nil {
				t.Fatal(err)
			}
			if tt.sent {
				select {
				case <-asked:
				case err := <-landed: // on a busy machine it may be late before it is sent, and ends in the same way
					if tt.opts == nil || tt.cancel {
						t.Fatalf("it has ended before it was sent: %v", err)
					}
					landed <- err
				}
			}
			if n := g.Snapshot().InFlight; n != 1 && tt.opts == nil {
				t.Errorf("%d in flight", n)
			}
			if tt.cancel {
				cancel()
			}
			if tt.close {
				client.Close()
			}
			err := <-landed
			if s := g.Snapshot(); s.InFlight != 0 {
				t.Errorf("%v: %d in flight", err, s.InFlight)
			}
			if got := <-g.ended; got != tt.want {
				t.Errorf("%v: %v, want %v", err, got, tt.want)
			}
			if len(landed) != 0 {
				t.Error("the promise was called twice")
			}
		})
	}
}

// After Publish, an acknowledgement leaves the permit to the caller, and a record that fails ends it.
func TestPublish(t *testing.T) {
	c := newCluster(t, 1)
	c.topic("a", 0)
	g := gate(t, 1)
	p := &Producer{Client: c.producing(), Gate: g}
	publish := func(p *Producer) (weir.Permit, error) {
		permit, err := g.Admit(t.Context(), weir.Work{})
		if err != nil {
			t.Fatal(err)
		}
		landed := make(chan error, 1)
		p.Publish(t.Context(), permit, &kgo.Record{Topic: "a"}, func(_ *kgo.Record, err error) { landed <- err })
		return permit, <-landed
	}
	permit, err := publish(p)
	if err != nil || !permit.Live() {
		t.Fatalf("acknowledged: %v, live %v", err, permit.Live())
	}
	permit.Done(weir.OK) // the result has arrived
	c.refuses(kerr.MessageTooLarge.Code)
	permit, err = publish(p)
	if !errors.Is(err, kerr.MessageTooLarge) || permit.Live() {
		t.Errorf("refused: %v, live %v", err, permit.Live())
	}
	permit, err = publish(&Producer{Gate: g})
	if err == nil || !strings.Contains(err.Error(), "Client is not set") || permit.Live() {
		t.Errorf("no client: %v, live %v", err, permit.Live())
	}
	if err := (&Producer{}).Produce(t.Context(), &kgo.Record{}, nil); err == nil || !strings.Contains(err.Error(), "Client is not set") {
		t.Errorf("no client: %v", err)
	}
	if s := g.Snapshot(); s.InFlight != 0 {
		t.Errorf("%+v", s)
	}
}

// Without a gate, Produce is the client's own. A classifier of the user decides about failures.
func TestProducerWithoutAGate(t *testing.T) {
	c := newCluster(t, 1)
	c.topic("a", 0)
	p := &Producer{Client: c.producing()}
	if err := p.ProduceSync(t.Context(), &kgo.Record{Topic: "a"}); err != nil {
		t.Error(err)
	}
	c.refuses(kerr.InvalidRecord.Code)
	g := gate(t, 1)
	p.Gate, p.Classify = g, func(error) weir.Outcome { return weir.Overload }
	if err := p.ProduceSync(t.Context(), &kgo.Record{Topic: "a"}); !errors.Is(err, kerr.InvalidRecord) {
		t.Error(err)
	}
	if got := <-g.ended; got != weir.Overload {
		t.Errorf("%v, not what the classifier says", got)
	}
}

// Many producers run at once, and half of their contexts end. Every promise is called once, and nothing stays in flight.
func TestStorm(t *testing.T) {
	c := newCluster(t, 3)
	c.topic("a", 0, 0, 0)
	g, err := limit.New(limit.Config{Name: "kafka", Limit: 20, Queue: limit.Queue{Len: 1000, MaxWait: -1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	p := &Producer{Client: c.producing(kgo.AllowIdempotentProduceCancellation()), Gate: g}
	var mu sync.Mutex
	var accepted, landed int
	var workers sync.WaitGroup
	for worker := range 8 {
		workers.Go(func() {
			for i := range 200 {
				ctx, cancel := context.WithCancel(t.Context())
				err := p.Produce(ctx, &kgo.Record{Topic: "a", Value: []byte("x")}, func(*kgo.Record, error) {
					mu.Lock()
					defer mu.Unlock()
					landed++
				})
				if (worker+i)%2 == 0 {
					cancel()
				}
				t.Cleanup(cancel)
				if err != nil {
					t.Errorf("refused: %v", err)
					return
				}
				mu.Lock()
				accepted++
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	if err := p.Client.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if s := g.Snapshot(); accepted != landed || s.InFlight != 0 || s.Waiting != 0 {
		t.Errorf("%d accepted, %d promises: %+v", accepted, landed, s)
	}
}
