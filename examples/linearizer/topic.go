package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// makeTopic makes the topic, unless it is there.
func makeTopic(ctx context.Context, client *kgo.Client, partitions int32, log *slog.Logger) error {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = 30_000
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = topic, partitions, -1 // as many copies as the cluster makes by default
	req.Topics = append(req.Topics, t)
	resp, err := heard(ctx, log, func() (*kmsg.CreateTopicsResponse, error) { return req.RequestWith(ctx, client) })
	if err != nil {
		return fmt.Errorf("the topic %s cannot be made: %w", topic, err)
	}
	for _, t := range resp.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return fmt.Errorf("the topic %s cannot be made: %w", topic, err)
		}
	}
	return nil
}

// heard makes a request until a broker answers. Whoever starts while Kafka is away waits for it, and says so.
func heard[R any](ctx context.Context, log *slog.Logger, request func() (R, error)) (R, error) {
	for failures := 0; ; failures++ {
		resp, err := request()
		if err == nil || ctx.Err() != nil {
			return resp, err
		}
		if failures%10 == 0 {
			log.Warn("no broker has an answer; trying again", "error", err)
		}
		_ = wait(ctx, retryAfter(failures))
	}
}

// tie ties a store to the topic that the client's cluster has now, and fails if it belongs to another one.
func tie(ctx context.Context, client *kgo.Client, s *store, log *slog.Logger) error {
	identity, err := identityOf(ctx, client, log)
	if err != nil {
		return err
	}
	return s.belong(ctx, identity)
}

// identityOf names the topic for good, by its cluster and its own id. A topic of the same name that is
// made anew has another id.
func identityOf(ctx context.Context, client *kgo.Client, log *slog.Logger) (string, error) {
	req := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.Topic = kmsg.StringPtr(topic)
	req.Topics = append(req.Topics, t)
	resp, err := heard(ctx, log, func() (*kmsg.MetadataResponse, error) {
		resp, err := req.RequestWith(ctx, client)
		if err == nil && len(resp.Topics) == 1 && resp.Topics[0].ErrorCode == kerr.UnknownTopicOrPartition.Code {
			err = kerr.UnknownTopicOrPartition // a broker hears of a new topic a moment after it was made
		}
		return resp, err
	})
	if err != nil {
		return "", fmt.Errorf("no broker says where the topic %s is: %w", topic, err)
	}
	if len(resp.Topics) != 1 {
		return "", fmt.Errorf("an answer about %d topics, not 1", len(resp.Topics))
	}
	if err := kerr.ErrorForCode(resp.Topics[0].ErrorCode); err != nil {
		return "", fmt.Errorf("the topic %s: %w", topic, err)
	}
	cluster := "?"
	if resp.ClusterID != nil {
		cluster = *resp.ClusterID
	}
	id := resp.Topics[0].TopicID
	return cluster + "/" + hex.EncodeToString(id[:]), nil
}
