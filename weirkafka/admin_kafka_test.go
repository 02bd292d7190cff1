//go:build integration

package weirkafka

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Kafka refuses topics above the mutation quota of a client, and a repeat creates them.
func TestRetryQuotaIsKafkas(t *testing.T) {
	t.Parallel() // it mostly waits
	s, c := real(t)
	const id, rate, burst = "mutator", 8, 11 * 8 // mutations, which are partitions here
	alter := kmsg.NewPtrAlterClientQuotasRequest()
	entry, entity, op := kmsg.NewAlterClientQuotasRequestEntry(), kmsg.NewAlterClientQuotasRequestEntryEntity(), kmsg.NewAlterClientQuotasRequestEntryOp()
	entity.Type, entity.Name = "client-id", kmsg.StringPtr(id)
	op.Key, op.Value = "controller_mutation_rate", rate
	entry.Entity, entry.Ops = append(entry.Entity, entity), append(entry.Ops, op)
	alter.Entries = append(alter.Entries, entry)
	if resp, err := alter.RequestWith(t.Context(), c.client); err != nil || resp.Entries[0].ErrorCode != 0 {
		t.Fatal(resp, err)
	}
	var throttles Throttles
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Addr), kgo.ClientID(id), kgo.WithHooks(&throttles))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	// An answer has the rest of the wait, which is 0 if the broker needed longer to create the topics. Each further
	// partition adds an eighth of a second to the wait, and far less to the creation.
	partitions := 20
	for round := 0; throttles.Count() == 0; round++ {
		if round == 20 || partitions > 1000 {
			t.Fatalf("after %d rounds, with up to %d partitions a topic, no answer of a broker has a wait", round, partitions/2)
		}
		var topics []string
		for i := range burst/partitions + 2 { // the last one is above the burst
			topics = append(topics, fmt.Sprintf("mutation-%d-%d", round, i))
		}
		attempts, refused, create := 0, false, createTopics(client, int32(partitions))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		got, err := RetryQuota(ctx, func(ctx context.Context, topics ...string) (answers, error) {
			attempts++
			some, err := create(ctx, topics...)
			refused = refused || len(exceeding(some, itself)) > 0
			return some, err
		}, itself, topics...)
		cancel()
		if err != nil || len(got) != len(topics) {
			t.Fatalf("%v, %v", got, err)
		}
		for topic, err := range got {
			if err != nil {
				t.Errorf("%s: %v", topic, err)
			}
		}
		if refused != (attempts > 1) {
			t.Errorf("%d attempts, and refused is %t", attempts, refused)
		}
		if refused { // before, the controller does not know the quota
			partitions *= 2
		}
	}
	if throttles.Total() <= 0 {
		t.Errorf("%d throttles, %v", throttles.Count(), throttles.Total())
	}
	// If there is no time for a repeat, the answer is that of the quota, not a time-out.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var topics []string
	for i := range 20 {
		topics = append(topics, fmt.Sprintf("mutation-late-%d", i))
	}
	got, err := RetryQuota(ctx, createTopics(client, 20), itself, topics...)
	if errors.Is(err, context.DeadlineExceeded) && len(got) == 0 {
		t.Skip("this machine is too busy for one request in two seconds")
	}
	if err != nil || len(exceeding(got, itself)) == 0 {
		t.Errorf("%v, %v; want that some are refused", got, err)
	}
}
