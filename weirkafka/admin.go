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
	// adminTimeout is how long a call and its repeats may take if the context has no deadline. It is
	// default.api.timeout.ms of Kafka's own clients.
	adminTimeout = time.Minute
	// quotaPause is the least time between two attempts. A broker that refuses says how long it holds the
	// connection, and the client waits so long. The pause is for an answer that names no time, or for a repeat
	// over another connection.
	quotaPause = 100 * time.Millisecond
)

// RetryQuota makes a call about topics, and repeats it for the topics that a quota of the cluster refused:
// error 89, THROTTLING_QUOTA_EXCEEDED. Each repeat is for these topics alone. Kafka's Java client does so by
// itself, and franz-go's kadm does not. Brokers refuse so since Kafka 2.7, if a principal has a
// controller_mutation_rate (KIP-599). That quota counts topics that are created and deleted, and partitions
// that are added.
//
//	made, err := weirkafka.RetryQuota(ctx, func(ctx context.Context, topics ...string) (kadm.CreateTopicResponses, error) {
//		return admin.CreateTopics(ctx, 12, 3, nil, topics...)
//	}, func(r kadm.CreateTopicResponse) error { return r.Err }, "orders", "payments")
//
// refused returns the error of one topic. A client of franz-go obeys the throttle times of brokers: until then
// it sends nothing over that connection. So a repeat is sent when the broker can accept it.
//
// All attempts share the deadline of the context, or a minute if it has none. If this time ends during a
// repeat, RetryQuota returns the answers so far and a nil error. Topics that were refused then have the error
// of the quota, not of a time-out. An error of the first attempt is returned as it is. An error of a repeat is
// returned with the answers so far, and so is the error of a cancelled context. To be told of a refusal at
// once, do not use RetryQuota.
func RetryQuota[M ~map[string]V, V any](ctx context.Context, call func(ctx context.Context, topics ...string) (M, error), refused func(V) error, topics ...string) (M, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, adminTimeout)
		defer cancel()
	}
	all, err := call(ctx, topics...)
	if err != nil {
		return all, err
	}
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
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return all, nil // the error of the quota is the reason
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

// pause waits for d. If the context ends before, it returns false at once.
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

// Throttles is a hook that counts how often and how long brokers hold a client's connections because of a quota:
//
//	var throttles weirkafka.Throttles
//	client, err := kgo.NewClient(kgo.SeedBrokers("kafka.internal:9092"), kgo.WithHooks(&throttles))
//
// The zero value is ready to use. It is safe for concurrent use, by several clients too.
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

// Total is the sum of the times in these answers. Several connections may be held at once, so Total can be
// longer than the time that has passed.
func (t *Throttles) Total() time.Duration { return time.Duration(t.total.Load()) }
