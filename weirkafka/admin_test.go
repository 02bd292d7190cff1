package weirkafka

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type answers map[string]error

func itself(err error) error { return err }

// scripted answers calls one after the other, and records the topics of each. The last answer is repeated.
// Topics that an answer does not name succeed.
type scripted struct {
	answers []answers
	asked   [][]string
	hangs   int // the call, from 1, that takes until its context ends
}

func (s *scripted) call(ctx context.Context, topics ...string) (answers, error) {
	s.asked = append(s.asked, topics)
	if len(s.asked) == s.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	all := answers{}
	for _, topic := range topics {
		all[topic] = s.answers[min(len(s.asked), len(s.answers))-1][topic]
	}
	return all, nil
}

// Topics that a quota refused are asked for again, alone, until the time is over.
func TestRetryQuota(t *testing.T) {
	quota, taken := kerr.ThrottlingQuotaExceeded, kerr.TopicAlreadyExists
	for _, tt := range []struct {
		name    string
		script  scripted
		timeout time.Duration // 0: none
		cancel  time.Duration // 0: never
		want    answers
		err     error
		asked   [][]string
		took    time.Duration
	}{
		{"nothing refused", scripted{answers: []answers{{}}}, 0, 0,
			answers{"a": nil, "b": nil, "c": nil}, nil, [][]string{{"c", "a", "b"}}, 0},
		{"another error stands", scripted{answers: []answers{{"a": taken}}}, 0, 0,
			answers{"a": taken, "b": nil, "c": nil}, nil, [][]string{{"c", "a", "b"}}, 0},
		{"refused once, and one of them twice", scripted{answers: []answers{{"a": quota, "b": taken, "c": quota}, {"c": quota}, {}}}, 0, 0,
			answers{"a": nil, "b": taken, "c": nil}, nil, [][]string{{"c", "a", "b"}, {"a", "c"}, {"c"}}, 2 * quotaPause},
		{"refused to the end", scripted{answers: []answers{{"b": quota}}}, 250 * time.Millisecond, 0,
			answers{"a": nil, "b": quota, "c": nil}, nil, [][]string{{"c", "a", "b"}, {"b"}, {"b"}}, 250 * time.Millisecond},
		{"a repeat that waits to the end", scripted{answers: []answers{{"b": quota}}, hangs: 2}, time.Second, 0,
			answers{"a": nil, "b": quota, "c": nil}, nil, [][]string{{"c", "a", "b"}, {"b"}}, time.Second},
		{"without a deadline", scripted{answers: []answers{{"b": quota}}, hangs: 2}, 0, 0,
			answers{"a": nil, "b": quota, "c": nil}, nil, [][]string{{"c", "a", "b"}, {"b"}}, adminTimeout},
		{"no answer at all", scripted{hangs: 1}, time.Second, 0,
			nil, context.DeadlineExceeded, [][]string{{"c", "a", "b"}}, time.Second},
		{"cancelled between attempts", scripted{answers: []answers{{"b": quota}}}, 0, 50 * time.Millisecond,
			answers{"a": nil, "b": quota, "c": nil}, context.Canceled, [][]string{{"c", "a", "b"}}, 50 * time.Millisecond},
		{"cancelled in a repeat", scripted{answers: []answers{{"b": quota}}, hangs: 2}, 0, time.Second,
			answers{"a": nil, "b": quota, "c": nil}, context.Canceled, [][]string{{"c", "a", "b"}, {"b"}}, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.timeout > 0 {
					ctx, cancel = context.WithTimeout(ctx, tt.timeout)
					defer cancel()
				}
				if tt.cancel > 0 {
					defer time.AfterFunc(tt.cancel, cancel).Stop()
				}
				begin := time.Now()
				got, err := RetryQuota(ctx, tt.script.call, itself, "c", "a", "b")
				if !maps.Equal(got, tt.want) || !errors.Is(err, tt.err) {
					t.Errorf("%v, %v; want %v, %v", got, err, tt.want, tt.err)
				}
				if !slices.EqualFunc(tt.script.asked, tt.asked, slices.Equal) {
					t.Errorf("asked for %v, want %v", tt.script.asked, tt.asked)
				}
				if took := time.Since(begin); took != tt.took {
					t.Errorf("it took %v, want %v", took, tt.took)
				}
			})
		})
	}
}

// An error of a call itself is returned with the answers so far.
func TestRetryQuotaBroken(t *testing.T) {
	broken := errors.New("broken")
	calls := 0
	got, err := RetryQuota(t.Context(), func(context.Context, ...string) (answers, error) {
		if calls++; calls > 1 {
			return nil, broken
		}
		return answers{"a": kerr.ThrottlingQuotaExceeded}, nil
	}, itself, "a")
	if !errors.Is(err, broken) || !errors.Is(got["a"], kerr.ThrottlingQuotaExceeded) {
		t.Errorf("%v, %v", got, err)
	}
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	got, err = RetryQuota(late, func(context.Context, ...string) (answers, error) { return answers{"a": nil}, broken }, itself, "a", "b")
	if !errors.Is(err, broken) || len(got) != 1 {
		t.Errorf("of the first attempt: %v, %v", got, err)
	}
}

// createTopics returns a call that creates topics, each with that number of partitions.
func createTopics(client *kgo.Client, partitions int32) func(context.Context, ...string) (answers, error) {
	return func(ctx context.Context, topics ...string) (answers, error) {
		req := kmsg.NewPtrCreateTopicsRequest()
		req.TimeoutMillis = 30_000
		for _, name := range topics {
			topic := kmsg.NewCreateTopicsRequestTopic()
			topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, partitions, 1
			req.Topics = append(req.Topics, topic)
		}
		resp, err := req.RequestWith(ctx, client)
		if err != nil {
			return nil, err
		}
		all := answers{}
		for _, topic := range resp.Topics {
			all[topic.Topic] = kerr.ErrorForCode(topic.ErrorCode)
		}
		return all, nil
	}
}

// A client waits for the throttle time of the broker, and the hook counts it.
func TestThrottles(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	const held = 150 * time.Millisecond
	cluster.ControlKey(int16(kmsg.CreateTopics), func(req kmsg.Request) (kmsg.Response, error, bool) {
		resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
		resp.ThrottleMillis = int32(held.Milliseconds())
		topic := kmsg.NewCreateTopicsResponseTopic()
		topic.Topic, topic.ErrorCode = "a", kerr.ThrottlingQuotaExceeded.Code
		resp.Topics = append(resp.Topics, topic)
		return resp, nil, true // once
	})
	var throttles Throttles
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.WithHooks(&throttles))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	begin := time.Now()
	got, err := RetryQuota(t.Context(), createTopics(client, 1), itself, "a")
	if err != nil || len(got) != 1 || got["a"] != nil {
		t.Errorf("%v, %v", got, err)
	}
	if took := time.Since(begin); took < held {
		t.Errorf("asked again after %v, which is before %v", took, held)
	}
	if n, d := throttles.Count(), throttles.Total(); n != 1 || d != held {
		t.Errorf("%d throttles, %v", n, d)
	}
}
