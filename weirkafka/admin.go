package weirkafka

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// adminTimeout is how long a call and its repeats may take where the context has no deadline, as
	// default.api.timeout.ms of Kafka's own clients.
	adminTimeout = time.Minute
	// quotaPause is the least time between two attempts. A broker that refuses says how long it holds the
	// connection, and the client waits for that. The pause is for answers that say nothing, or for another
	// connection.
	quotaPause = 100 * time.Millisecond
)

// RetryQuota makes a call about topics, and repeats it for the topics that a quota of the cluster refused:
// error 89, THROTTLING_QUOTA_EXCEEDED. Each repeat is for these topics alone. It is what Kafka's Java client
// does by itself, and franz-go's kadm does not. Brokers answer so since Kafka 2.7 if a principal has a
// controller_mutation_rate (KIP-599). It is about topics that are made and deleted, and partitions that are
// added.
//
//	made, err := weirkafka.RetryQuota(ctx, func(ctx context.Context, topics ...string) (kadm.CreateTopicResponses, error) {
//		return admin.CreateTopics(ctx, 12, 3, nil, topics...)
//	}, func(r kadm.CreateTopicResponse) error { return r.Err }, "orders", "payments")
//
// refused returns the error of one topic. A client of franz-go keeps the throttle times of brokers: it sends
// nothing more over that connection until they are over. So a repeat goes out when it can be accepted.
//
// All attempts share the deadline of the context, or a minute where it has none. When that is over during a
// repeat, the answers so far are returned with a nil error. Those refused have the quota's error, not a
// time-out's. An error of the first attempt is returned as it is, and so is one of a repeat, with the answers so
// far. A context that was cancelled ends it with that error. Leave RetryQuota out to be told at once.
func RetryQuota[M ~map[string]V, V any](ctx context.Context, call func(ctx context.Context, topics ...string) (M, error), refused func(V) error, topics ...string) (M, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, adminTimeout)
		defer cancel()
	}
	all, err := call(ctx, topics...)
	for err == nil {
		again := exceeding(all, refused)
		if len(again) == 0 {
			return all, nil
		}
		if !pause(ctx, quotaPause) {
			err = ctx.Err()
			break
		}
		var some M
		if some, err = call(ctx, again...); err == nil {
			maps.Copy(all, some)
		}
	}
	if len(all) > 0 && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return all, nil // the quota is why
	}
	return all, err
}

// exceeding are the topics that a quota refused, in order.
func exceeding[M ~map[string]V, V any](answers M, refused func(V) error) []string {
	var topics []string
	for topic, answer := range answers {
		if errors.Is(refused(answer), kerr.ThrottlingQuotaExceeded) {
			topics = append(topics, topic)
		}
	}
	slices.Sort(topics)
	return topics
}

// pause waits for d. It reports false, and does not wait to the end, if the context is over before.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// Throttles counts how often and for how long brokers hold the connections of a client, because of a quota. It is a hook:
//
//	var throttles weirkafka.Throttles
//	client, err := kgo.NewClient(kgo.SeedBrokers("kafka.internal:9092"), kgo.WithHooks(&throttles))
//
// The zero value is ready. It is safe for concurrent use, by several clients too.
type Throttles struct {
	count, total atomic.Int64
}

var _ kgo.HookBrokerThrottle = (*Throttles)(nil)

// OnBrokerThrottle implements [kgo.HookBrokerThrottle].
func (t *Throttles) OnBrokerThrottle(_ kgo.BrokerMetadata, d time.Duration, _ bool) {
	t.count.Add(1)
	t.total.Add(int64(d))
}

// Count is how many answers said that the client is throttled.
func (t *Throttles) Count() int64 { return t.count.Load() }

// Total is the sum of the times in these answers. Several connections may be held at once, so it can be longer than
// the time that has passed.
func (t *Throttles) Total() time.Duration { return time.Duration(t.total.Load()) }
