package weirkafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// round is one reading: its requests and its answers.
type round struct {
	lag     *Lag
	brokers map[int32]string // the address of each, for errors

	mu         sync.Mutex // several brokers answer at once
	partitions []*partition
}

// partition is a Partition while it is measured.
type partition struct {
	Partition
	id     [16]byte // the topic's id, which differs from that of an earlier topic with the same name
	leader int32
}

// measure fills in the partitions. An error is about all partitions. Commits are read before ends, so a
// group that works meanwhile looks further behind than it is, never less.
func (r *round) measure(ctx context.Context) error {
	if err := r.findPartitions(ctx); err != nil {
		return err
	}
	if err := r.fetchCommits(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	for leader, led := range r.byLeader() {
		for _, at := range []int64{atStart, atEnd} {
			wg.Go(func() { r.listOffsets(ctx, leader, led, at) })
		}
	}
	wg.Wait()
	return nil
}

// findPartitions asks a broker for the partitions and their leaders.
func (r *round) findPartitions(ctx context.Context) error {
	req := kmsg.NewPtrMetadataRequest()
	for _, name := range r.lag.cfg.Topics {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, r.lag.client)
	if err != nil {
		return fmt.Errorf("no broker answers where topic %s is: %w", r.lag.cfg.Topics[0], whyNoAnswer(ctx, err))
	}
	for _, b := range resp.Brokers {
		r.brokers[b.NodeID] = net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
	}
	missing := map[string]bool{}
	for _, name := range r.lag.cfg.Topics {
		missing[name] = true
	}
	for _, t := range resp.Topics {
		if t.Topic == nil || !missing[*t.Topic] {
			continue
		}
		if err := r.cause(t.ErrorCode, *t.Topic); err != nil {
			r.add(Partition{Topic: *t.Topic, Partition: -1, Err: fmt.Errorf("topic %s: %w", *t.Topic, err)}, t.TopicID, -1)
			delete(missing, *t.Topic)
			continue
		}
		for _, p := range t.Partitions {
			delete(missing, *t.Topic) // a topic without partitions stays missing
			part := Partition{Topic: *t.Topic, Partition: p.Partition, Committed: -1}
			if p.Leader < 0 {
				part.Err = fmt.Errorf("topic %s, partition %d has no leader", part.Topic, part.Partition)
			}
			r.add(part, t.TopicID, p.Leader)
		}
	}
	for name := range missing {
		r.add(Partition{Topic: name, Partition: -1, Err: fmt.Errorf("topic %s has no partitions", name)}, [16]byte{}, -1)
	}
	slices.SortFunc(r.partitions, func(a, b *partition) int {
		if a.Topic != b.Topic {
			return strings.Compare(a.Topic, b.Topic)
		}
		return int(a.Partition.Partition) - int(b.Partition.Partition)
	})
	for i := 1; i < len(r.partitions); i++ {
		if a, b := r.partitions[i-1], r.partitions[i]; a.Topic == b.Topic && a.Partition.Partition == b.Partition.Partition {
			a.Err = fmt.Errorf("topic %s, partition %d is twice in the answer", a.Topic, a.Partition.Partition)
			b.Err = a.Err
		}
	}
	return nil
}

func (r *round) add(p Partition, id [16]byte, leader int32) {
	r.partitions = append(r.partitions, &partition{p, id, leader})
}

// unanswered are the partitions of a request that have no answer yet, by topic and number.
type unanswered map[string]map[int32]*partition

// add reports whether the partition is the first of its topic.
func (u unanswered) add(p *partition) (first bool) {
	if first = u[p.Topic] == nil; first {
		u[p.Topic] = map[int32]*partition{}
	}
	u[p.Topic][p.Partition.Partition] = p
	return first
}

// answered returns the partition of an answer, or nil if it was not requested or was answered before.
func (u unanswered) answered(topic string, number int32) *partition {
	p := u[topic][number]
	delete(u[topic], number)
	return p
}

// fetchCommits asks the group's coordinator for the commits. It asks newer brokers by the topics' ids. So a
// commit for a deleted topic does not count for a new topic of the same name.
func (r *round) fetchCommits(ctx context.Context) error {
	open := unanswered{}
	group := kmsg.NewOffsetFetchRequestGroup()
	group.Group = r.lag.cfg.Group
	for _, p := range r.partitions { // they are sorted by topic
		if p.Err != nil {
			continue
		}
		if open.add(p) {
			t := kmsg.NewOffsetFetchRequestGroupTopic()
			t.Topic, t.TopicID = p.Topic, p.id
			group.Topics = append(group.Topics, t)
		}
		t := &group.Topics[len(group.Topics)-1]
		t.Partitions = append(t.Partitions, p.Partition.Partition)
	}
	if len(open) == 0 {
		return nil // each partition has its error
	}
	coordinator, answer, err := r.askCoordinator(ctx, group)
	if err != nil || answer.ErrorCode == kerr.GroupIDNotFound.Code {
		return err // nil: nobody has committed yet
	}
	for _, t := range answer.Topics {
		for _, got := range t.Partitions {
			if p := open.answered(t.Topic, got.Partition); p != nil {
				p.Committed = got.Offset
				r.fail(p, coordinator, "commit", r.cause(got.ErrorCode, t.Topic))
			}
		}
	}
	r.failAll(open, coordinator, "commit", errNoAnswer)
	return nil
}

// askCoordinator returns the answer of the group's coordinator, and which broker it is. An unknown group is not
// an error.
func (r *round) askCoordinator(ctx context.Context, group kmsg.OffsetFetchRequestGroup) (coordinator int32, answer *kmsg.OffsetFetchResponseGroup, err error) {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Groups = append(req.Groups, group)
	shards := r.lag.client.RequestSharded(ctx, req)
	if len(shards) != 1 {
		return -1, nil, fmt.Errorf("group %s has %d coordinators, not one", group.Group, len(shards))
	}
	coordinator = shards[0].Meta.NodeID
	resp, ok := shards[0].Resp.(*kmsg.OffsetFetchResponse)
	switch {
	case shards[0].Err != nil:
		err = r.refused(whyNoAnswer(ctx, shards[0].Err), "")
	case !ok || len(resp.Groups) != 1 || resp.Groups[0].Group != group.Group:
		err = errors.New("the answer is not about that group")
	case resp.Groups[0].ErrorCode != kerr.GroupIDNotFound.Code:
		err = r.cause(resp.Groups[0].ErrorCode, "")
	}
	if err != nil {
		return coordinator, nil, fmt.Errorf("the coordinator of group %s, broker %s: %w", group.Group, r.broker(coordinator), err)
	}
	return coordinator, &resp.Groups[0], nil
}

// byLeader returns the partitions with a leader, by leader.
func (r *round) byLeader() map[int32][]*partition {
	all := map[int32][]*partition{}
	for _, p := range r.partitions {
		if p.Err == nil {
			all[p.leader] = append(all[p.leader], p)
		}
	}
	return all
}

// Values of ListOffsets in place of a time.
const (
	atEnd   = -1
	atStart = -2
)

// listOffsets asks a broker for the starts or the ends of the partitions that it leads.
func (r *round) listOffsets(ctx context.Context, leader int32, led []*partition, at int64) {
	what := "start"
	req := kmsg.NewPtrListOffsetsRequest()
	if at == atEnd {
		what = "end"
		if r.lag.cfg.Isolation == ReadCommitted {
			req.IsolationLevel = 1
		}
	}
	open := unanswered{}
	for _, p := range led { // they are sorted by topic
		if open.add(p) {
			t := kmsg.NewListOffsetsRequestTopic()
			t.Topic = p.Topic
			req.Topics = append(req.Topics, t)
		}
		ask := kmsg.NewListOffsetsRequestTopicPartition()
		ask.Partition, ask.Timestamp = p.Partition.Partition, at
		t := &req.Topics[len(req.Topics)-1]
		t.Partitions = append(t.Partitions, ask)
	}
	answer, err := r.lag.client.Broker(int(leader)).RetriableRequest(ctx, req)
	r.mu.Lock()
	defer r.mu.Unlock()
	resp, ok := answer.(*kmsg.ListOffsetsResponse)
	if err != nil || !ok {
		r.failAll(open, leader, what, whyNoAnswer(ctx, err))
		return
	}
	for _, t := range resp.Topics {
		for _, got := range t.Partitions {
			p := open.answered(t.Topic, got.Partition)
			if p == nil {
				continue
			}
			offset := &p.Start
			if at == atEnd {
				offset = &p.End
			}
			*offset = got.Offset
			err := r.cause(got.ErrorCode, t.Topic)
			if err == nil && got.Offset < 0 {
				err = fmt.Errorf("the answer is offset %d", got.Offset)
			}
			r.fail(p, leader, what, err)
		}
	}
	r.failAll(open, leader, what, errNoAnswer)
}

var errNoAnswer = errors.New("the answer does not contain it")

// fail notes that a value of a partition is unknown, unless err is nil. The first error stays.
func (r *round) fail(p *partition, broker int32, what string, err error) {
	if err != nil && p.Err == nil {
		p.Err = fmt.Errorf("topic %s, partition %d: the %s is unknown; broker %s: %w", p.Topic, p.Partition.Partition, what, r.broker(broker), err)
	}
}

// failAll calls fail for each partition.
func (r *round) failAll(all unanswered, broker int32, what string, err error) {
	for _, of := range all {
		for _, p := range of {
			r.fail(p, broker, what, err)
		}
	}
}

// broker names a broker.
func (r *round) broker(id int32) string {
	if addr, ok := r.brokers[id]; ok {
		return fmt.Sprintf("%d (%s)", id, addr)
	}
	return strconv.Itoa(int(id))
}

// cause returns the error for a code in an answer, or nil for 0. topic is empty if the answer is about the
// group.
func (r *round) cause(code int16, topic string) error {
	return r.refused(kerr.ErrorForCode(code), topic)
}

// refused adds the missing ACL to an error of authorization.
func (r *round) refused(err error, topic string) error {
	switch {
	case errors.Is(err, kerr.GroupAuthorizationFailed):
		return fmt.Errorf("%w (the user needs the ACL DESCRIBE on the group %s)", err, r.lag.cfg.Group)
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return fmt.Errorf("%w (the user needs the ACL DESCRIBE on the topic %s)", err, topic)
	}
	return err
}

// whyNoAnswer returns why a request has no usable answer. If the time of the reading is over, the error says
// that first.
func whyNoAnswer(ctx context.Context, err error) error {
	if err == nil {
		return errNoAnswer
	}
	if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}
