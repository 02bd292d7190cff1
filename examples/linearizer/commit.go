package main

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// committer tells Kafka how far the store is. Only the lag depends on it, so it is late rather than in the
// way: what is newer replaces what waits.
type committer struct {
	client *kgo.Client
	again  time.Duration // how often everything is told again: somebody may have told Kafka something older
	log    *slog.Logger
	wake   chan struct{}

	mu   sync.Mutex
	next map[int32]int64 // by partition, of those that are the processor's
}

func newCommitter(client *kgo.Client, again time.Duration, log *slog.Logger) *committer {
	return &committer{client: client, again: again, log: log, wake: make(chan struct{}, 1), next: map[int32]int64{}}
}

// commit notes the offset of the first record of a partition that is not applied.
func (c *committer) commit(partition int32, next int64) {
	c.mu.Lock()
	c.next[partition] = next
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// forget is for partitions that are somebody else's.
func (c *committer) forget(partition int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.next, partition)
}

// run commits what has changed, one request at a time, until ctx ends; then what is left.
func (c *committer) run(ctx context.Context) {
	again := time.NewTicker(c.again)
	defer again.Stop()
	told := map[int32]int64{}
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = c.tell(last, told) // Kafka hears of it from the next owner
			return
		case <-again.C:
			clear(told)
		case <-c.wake:
		}
		err := c.tell(ctx, told)
		if err == nil {
			failures = 0
			continue
		}
		if failures++; failures == 5 && ctx.Err() == nil {
			c.log.Warn("Kafka takes no commits, so the lag looks larger than it is; trying again", "error", err)
		}
		_ = wait(ctx, retryAfter(failures))
		clear(told)
	}
}

// tell commits what is not in told, and notes it there.
func (c *committer) tell(ctx context.Context, told map[int32]int64) error {
	c.mu.Lock()
	now := maps.Clone(c.next)
	c.mu.Unlock()
	changed := map[int32]kgo.EpochOffset{}
	for partition, next := range now {
		if was, ok := told[partition]; !ok || was != next {
			changed[partition] = kgo.EpochOffset{Epoch: -1, Offset: next}
		}
	}
	var failed error
	c.client.CommitOffsetsSync(ctx, map[string]map[int32]kgo.EpochOffset{topic: changed}, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		failed = err
		if err != nil || len(changed) == 0 {
			return
		}
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
					failed = err
				}
			}
		}
	})
	if failed == nil {
		for partition, at := range changed {
			told[partition] = at.Offset
		}
	}
	return failed
}
