package weirkafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// round is one reading: what is asked, and what has come back.
type round struct {
	lag     *Lag
	brokers map[int32]string // the address of each, for errors

	mu         sync.Mutex // the brokers answer side by side
	partitions []*partition
}

// partition is a Partition on the way.
type partition struct {
	Partition
	id     [16]byte // of its topic, which tells it from one of that name before
	leader int32
}

// measure fills in the partitions. The error is about all of them. Commits are read before ends, so a
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

// findPartitions asks a broker which partitions there are, and who leads them.
func (r *round) findPartitions(ctx context.Context) error {
	req := kmsg.NewPtrMetadataRequest()
	for _, name := range r.lag.cfg.Topics {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, r.lag.client)
	if err != nil {
		return fmt.Errorf("no broker says where topic %s is: %w", r.lag.cfg.Topics[0], told(ctx, err))
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
			delete(missing, *t.Topic) // one without any is as good as none
			part := Partition{Topic: *t.Topic, Partition: p.Partition, Committed: -1}
			if p.Leader < 0 {
				part.Err = fmt.Errorf("topic %s, partition %d: it has no leader", part.Topic, part.Partition)
			}
			r.add(part, t.TopicID, p.Leader)
		}
	}
	for name := range missing {
		r.add(Partition{Topic: name, Partition: -1, Err: fmt.Errorf("topic %s: it has no partitions", name)}, [16]byte{}, -1)
	}
	slices.SortFunc(r.partitions, func(a, b *partition) int {
		if a.Topic != b.Topic {
			return strings.Compare(a.Topic, b.Topic)
		}
		return int(a.Partition.Partition) - int(b.Partition.Partition)
	})
	for i := 1; i < len(r.partitions); i++ {
		if a, b := r.partitions[i-1], r.partitions[i]; a.Topic == b.Topic && a.Partition.Partition == b.Partition.Partition {
			a.Err = fmt.Errorf("topic %s, partition %d: the answer has it twice", a.Topic, a.Partition.Partition)
			b.Err = a.Err
		}
	}
	return nil
}

func (r *round) add(p Partition, id [16]byte, leader int32) {
	r.partitions = append(r.partitions, &partition{p, id, leader})
}

// fetchCommits asks the group's coordinator for the commits. Newer brokers are asked by the topics'
// ids. So a commit for a topic that was deleted is not taken for one of its successor.
func (r *round) fetchCommits(ctx context.Context) error {
	topics := map[string]*kmsg.OffsetFetchRequestGroupTopic{}
	known := map[string]map[int32]*partition{}
	for _, p := range r.partitions {
		if p.Err != nil {
			continue
		}
		if topics[p.Topic] == nil {
			t := kmsg.NewOffsetFetchRequestGroupTopic()
			t.Topic, t.TopicID = p.Topic, p.id
			topics[p.Topic], known[p.Topic] = &t, map[int32]*partition{}
		}
		topics[p.Topic].Partitions = append(topics[p.Topic].Partitions, p.Partition.Partition)
		known[p.Topic][p.Partition.Partition] = p
	}
	if len(topics) == 0 {
		return nil // each has its error
	}
	group := kmsg.NewOffsetFetchRequestGroup()
	group.Group = r.lag.cfg.Group
	for _, name := range slices.Sorted(maps.Keys(topics)) {
		group.Topics = append(group.Topics, *topics[name])
	}
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Groups = append(req.Groups, group)
	shards := r.lag.client.RequestSharded(ctx, req)
	if len(shards) != 1 {
		return fmt.Errorf("group %s has %d coordinators, not one", group.Group, len(shards))
	}
	coordinator := shards[0].Meta.NodeID
	if err := shards[0].Err; err != nil {
		return fmt.Errorf("the coordinator of group %s, broker %s: %w", group.Group, r.broker(coordinator), r.refused(told(ctx, err), ""))
	}
	resp, ok := shards[0].Resp.(*kmsg.OffsetFetchResponse)
	if !ok || len(resp.Groups) != 1 || resp.Groups[0].Group != group.Group {
		return fmt.Errorf("the coordinator of group %s, broker %s: no answer about that group", group.Group, r.broker(coordinator))
	}
	if resp.Groups[0].ErrorCode == kerr.GroupIDNotFound.Code {
		return nil // nobody has committed yet
	}
	if err := r.cause(resp.Groups[0].ErrorCode, ""); err != nil {
		return fmt.Errorf("the coordinator of group %s, broker %s: %w", group.Group, r.broker(coordinator), err)
	}
	for _, t := range resp.Groups[0].Topics {
		for _, got := range t.Partitions {
			p := known[t.Topic][got.Partition]
			if p == nil {
				continue
			}
			delete(known[t.Topic], got.Partition)
			p.Committed = got.Offset
			r.fail(p, coordinator, "commit", r.cause(got.ErrorCode, t.Topic))
		}
	}
	for _, left := range known {
		for _, p := range left {
			r.fail(p, coordinator, "commit", errNoAnswer)
		}
	}
	return nil
}

// byLeader returns the partitions that can be asked about, by the broker to ask.
func (r *round) byLeader() map[int32][]*partition {
	all := map[int32][]*partition{}
	for _, p := range r.partitions {
		if p.Err == nil {
			all[p.leader] = append(all[p.leader], p)
		}
	}
	return all
}

// What to ask ListOffsets for, in place of a time.
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
	missing := make(map[string]map[int32]*partition)
	for _, p := range led { // they are sorted by topic
		if missing[p.Topic] == nil {
			missing[p.Topic] = map[int32]*partition{}
			t := kmsg.NewListOffsetsRequestTopic()
			t.Topic = p.Topic
			req.Topics = append(req.Topics, t)
		}
		missing[p.Topic][p.Partition.Partition] = p
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
		for _, p := range led {
			r.fail(p, leader, what, told(ctx, err))
		}
		return
	}
	for _, t := range resp.Topics {
		for _, got := range t.Partitions {
			p := missing[t.Topic][got.Partition]
			if p == nil {
				continue
			}
			delete(missing[t.Topic], got.Partition)
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
	for _, left := range missing {
		for _, p := range left {
			r.fail(p, leader, what, errNoAnswer)
		}
	}
}

var errNoAnswer = errors.New("the answer leaves it out")

// fail notes that something of a partition is unknown, unless err is nil. The first reason stays.
func (r *round) fail(p *partition, broker int32, what string, err error) {
	if err != nil && p.Err == nil {
		p.Err = fmt.Errorf("topic %s, partition %d: its %s is unknown, broker %s: %w", p.Topic, p.Partition.Partition, what, r.broker(broker), err)
	}
}

// broker names a broker.
func (r *round) broker(id int32) string {
	if addr, ok := r.brokers[id]; ok {
		return fmt.Sprintf("%d (%s)", id, addr)
	}
	return strconv.Itoa(int(id))
}

// cause returns the error of a code in an answer, nil for none. topic is empty if it is about the group.
func (r *round) cause(code int16, topic string) error {
	return r.refused(kerr.ErrorForCode(code), topic)
}

// refused adds to an error for want of a right which right that is.
func (r *round) refused(err error, topic string) error {
	switch {
	case errors.Is(err, kerr.GroupAuthorizationFailed):
		return fmt.Errorf("%w (the user needs the ACL DESCRIBE on the group %s)", err, r.lag.cfg.Group)
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return fmt.Errorf("%w (the user needs the ACL DESCRIBE on the topic %s)", err, topic)
	}
	return err
}

// told returns the error of a request, and says it if the reading's time was over.
func told(ctx context.Context, err error) error {
	if err == nil {
		return errNoAnswer
	}
	if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}
