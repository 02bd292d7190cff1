package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The names of what both sides share in Kafka.
const (
	topic = "prospective-batches"
	group = "linearizer"
)

// processorConfig is what a processor needs.
type processorConfig struct {
	brokers []string
	store   *store // its own, with one connection
	// work is how long a batch takes a processor, so that its capacity is known. 0: as long as it takes.
	work time.Duration
	// session is how long the group waits for a sign of life. Default 10 s.
	session time.Duration
	// recommit is how often Kafka is told everything again. Default 5 s.
	recommit time.Duration
	log      *slog.Logger
	options  []kgo.Opt // besides, for tests
}

// processor is a member of the consumer group. It puts the batches of its partitions in order.
//
// Its partitions are its own only as long as the store agrees. What the group believes, and what Kafka has
// as committed, decides nothing.
type processor struct {
	cfg     processorConfig
	client  *kgo.Client
	pace    pace
	courier *courier
	commits *committer

	mu     sync.Mutex
	epochs map[int32]int64 // of the partitions that are this processor's; the first is 1
}

// newProcessor connects, and makes sure that the store belongs to the topic.
func newProcessor(ctx context.Context, cfg processorConfig) (*processor, error) {
	p := &processor{cfg: cfg, pace: pace{each: cfg.work}, epochs: map[int32]int64{}}
	if p.cfg.session == 0 {
		p.cfg.session = 10 * time.Second
	}
	if p.cfg.recommit == 0 {
		p.cfg.recommit = 5 * time.Second
	}
	opts := append([]kgo.Opt{
		kgo.SeedBrokers(cfg.brokers...), kgo.ClientID("linearizer-processor"),
		kgo.ConsumerGroup(group), kgo.DisableAutoCommit(),
		kgo.SessionTimeout(p.cfg.session), kgo.HeartbeatInterval(p.cfg.session / 4), kgo.RebalanceTimeout(2 * p.cfg.session),
		// Where the store knows nothing, and where Kafka no longer has what the store says.
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.AdjustFetchOffsetsFn(p.begin),
		kgo.OnPartitionsRevoked(p.leave), kgo.OnPartitionsLost(p.leave),
		kgo.FetchMaxWait(100 * time.Millisecond),
	}, cfg.options...)
	var err error
	if p.client, err = kgo.NewClient(opts...); err != nil {
		return nil, err
	}
	if err := tie(ctx, p.client, cfg.store, cfg.log); err != nil {
		p.client.Close()
		return nil, err
	}
	p.courier, p.commits = newCourier(), newCommitter(p.client, p.cfg.recommit, cfg.log)
	p.client.AddConsumeTopics(topic) // it joins the group now, and calls begin, which needs all of p
	return p, nil
}

// begin takes over the partitions that the group has assigned, and begins where the store says. Kafka's own
// offsets may be behind, or of somebody who has played with them.
func (p *processor) begin(ctx context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	_, generation := p.client.GroupMetadata()
	for partition := range offsets[topic] {
		c, err := p.take(ctx, partition, generation)
		if err != nil {
			return nil, err // the client leaves and joins again, with another generation
		}
		at := kgo.NewOffset().AtStart()
		if c.next > 0 {
			at = kgo.NewOffset().At(c.next).WithEpoch(c.leader)
			p.commit(partition, c.epoch, c.next)
		}
		offsets[topic][partition] = at
		p.cfg.log.Info("partition taken over", "partition", partition, "generation", generation, "next", c.next)
	}
	return offsets, nil
}

// take waits as long as the store cannot be written, but not beyond the group's session.
func (p *processor) take(ctx context.Context, partition, generation int32) (c claim, err error) {
	gone := int64(0)
	try := func() (err error) {
		c, err = p.cfg.store.take(ctx, partition, generation, gone)
		return err
	}
	const trouble = "a partition cannot be taken over; trying again"
	wanted := func() bool { return true }
	err = p.persist(ctx, trouble, wanted, try)
	if errors.Is(err, errFenced) && p.belongs(ctx) {
		// A group's generations only rise. So the higher one is of a group that was deleted since. Kafka does that by
		// itself to one that nobody has joined for a week.
		gone = c.epoch
		p.cfg.log.Warn("the group has begun anew since the store was last written; the partition is taken over all the same", "partition", partition, "generation", generation)
		err = p.persist(ctx, trouble, wanted, try)
	}
	if errors.Is(err, errFenced) {
		p.cfg.log.Warn("fenced: the partition is not taken over; joining the group again", "error", err)
	}
	if err == nil {
		p.mu.Lock()
		p.epochs[partition] = c.epoch
		p.mu.Unlock()
	}
	return c, err
}

// belongs asks the group whether this processor is a member of its present generation.
func (p *processor) belongs(ctx context.Context) bool {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group = group
	req.MemberID, req.Generation = p.client.GroupMetadata()
	resp, err := req.RequestWith(ctx, p.client)
	return err == nil && resp.ErrorCode == 0
}

// rewind goes back to where the client goes on after Kafka has lost records of a partition.
func (p *processor) rewind(ctx context.Context, partition int32, lost *kgo.ErrDataLoss) {
	p.cfg.log.Error("Kafka has lost records; what was applied of them stays, and what comes in their place is applied, too", "partition", partition, "error", lost)
	epoch, ours := p.epoch(partition)
	if !ours {
		return
	}
	err := p.persist(ctx, "the store cannot be written; trying again", p.owns(partition, epoch), func() error {
		return p.cfg.store.rewind(ctx, partition, epoch, lost.ResetTo)
	})
	if err == nil {
		p.commit(partition, epoch, lost.ResetTo)
	}
}

// leave forgets partitions. A transaction that is under way may still end. If the next owner has taken the
// partition over by then, it fails, else the next owner begins behind it.
func (p *processor) leave(_ context.Context, _ *kgo.Client, gone map[string][]int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, partition := range gone[topic] {
		delete(p.epochs, partition)
		p.commits.forget(partition)
		p.cfg.log.Info("partition given up", "partition", partition)
	}
}

// epoch is that of a partition, false if it is no longer this processor's.
func (p *processor) epoch(partition int32) (int64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, ok := p.epochs[partition]
	return e, ok
}

// owns returns what says whether a partition is still this processor's, by the same epoch.
func (p *processor) owns(partition int32, epoch int64) func() bool {
	return func() bool { e, ok := p.epoch(partition); return ok && e == epoch }
}

// commit tells Kafka how far a partition is, if it is still this processor's. Else the commit could follow one
// of the next owner, and the lag would look larger than it is.
func (p *processor) commit(partition int32, epoch, next int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.epochs[partition] == epoch {
		p.commits.commit(partition, next)
	}
}

// maxFetch is how many records are taken at once; within them the oldest goes first. maxGroup is the most of
// one transaction, and groupWait how long they wait for one another. Older records of the other partitions
// wait as long, so it is short.
const (
	maxFetch  = 1024
	maxGroup  = 256
	groupWait = 8 * time.Millisecond
)

// run works until ctx ends. It returns nil then.
func (p *processor) run(ctx context.Context) error {
	var background sync.WaitGroup
	background.Go(func() { p.commits.run(ctx) })
	defer background.Wait()
	defer func() {
		if n := p.courier.close(); n > 0 {
			p.cfg.log.Info("some results could not be delivered; the API servers find them in the store", "results", n)
		}
	}()
	for ctx.Err() == nil {
		fetches := p.client.PollRecords(ctx, maxFetch)
		fetches.EachError(func(topic string, partition int32, err error) {
			switch lost := new(kgo.ErrDataLoss); {
			case errors.As(err, &lost):
				p.rewind(ctx, partition, lost)
			case ctx.Err() != nil:
			case topic == "": // it is about the group, or all brokers
				p.cfg.log.Warn("Kafka cannot be read; trying again", "error", err)
			default:
				p.cfg.log.Warn("Kafka cannot be read; trying again", "partition", partition, "error", err)
			}
		})
		var parts []kgo.FetchTopicPartition
		fetches.EachPartition(func(f kgo.FetchTopicPartition) { parts = append(parts, f) })
		for i := oldest(parts); i >= 0 && ctx.Err() == nil; i = oldest(parts) {
			f := &parts[i]
			f.Records = f.Records[p.work(ctx, f.Partition, f.Records):]
		}
	}
	return nil
}

// oldest returns which partition has the oldest record next, -1 if none has any. Worked off one partition
// after the other, records would wait for later ones of other partitions, up to twice as long as the lag says.
func oldest(parts []kgo.FetchTopicPartition) int {
	first := -1
	for i := range parts {
		if len(parts[i].Records) > 0 && (first < 0 || parts[i].Records[0].Timestamp.Before(parts[first].Records[0].Timestamp)) {
			first = i
		}
	}
	return first
}

// work applies the first records of a partition in one transaction, and returns how many are dealt with.
// These are all of them if the partition is no longer this processor's.
func (p *processor) work(ctx context.Context, partition int32, records []*kgo.Record) int {
	all := len(records)
	epoch, ours := p.epoch(partition)
	if !ours {
		return all
	}
	entries, err := p.gather(ctx, records)
	if err != nil {
		return all
	}
	if !p.apply(ctx, partition, epoch, entries) {
		return all
	}
	p.commit(partition, epoch, entries[len(entries)-1].offset+1)
	p.courier.deliver(entries)
	return len(entries)
}

// gather reads the records of one transaction: the first, and what follows it within a moment.
func (p *processor) gather(ctx context.Context, records []*kgo.Record) (entries []entry, err error) {
	records = records[:min(len(records), maxGroup)]
	for begun := time.Now(); len(entries) < len(records) && (len(entries) == 0 || time.Since(begun) < groupWait); {
		if err := p.pace.wait(ctx); err != nil {
			return nil, err
		}
		entries = append(entries, read(records[len(entries)]))
	}
	return entries, nil
}

// read makes an entry of a record.
func read(r *kgo.Record) entry {
	e := entry{offset: r.Offset, leader: r.LeaderEpoch}
	e.record, e.fault = parseRecord(r.Value)
	return e
}

// apply writes entries, however long the store is busy or its disk full. Nothing else of this processor goes
// on meanwhile, so the lag rises and the API slows down. It reports false if the partition is somebody else's.
func (p *processor) apply(ctx context.Context, partition int32, epoch int64, entries []entry) bool {
	ours := p.owns(partition, epoch)
	err := p.persist(ctx, "the store cannot be written; trying again", ours, func() error {
		return p.cfg.store.apply(ctx, partition, epoch, entries)
	})
	if errors.Is(err, errFenced) {
		p.cfg.log.Warn("fenced: nothing was written", "partition", partition, "error", err)
		if ours() { // it may be this processor's again, by a later epoch
			p.leave(ctx, p.client, map[string][]int32{topic: {partition}})
		}
	}
	if err != nil {
		return false
	}
	for _, e := range entries {
		if e.fault != nil {
			p.cfg.log.Warn("a record is no batch; it was left out", "partition", partition, "offset", e.offset, "error", e.fault)
		}
	}
	return true
}

// persist tries until it succeeds, is fenced, or is no longer wanted.
func (p *processor) persist(ctx context.Context, trouble string, wanted func() bool, try func() error) error {
	for failures := 0; ; failures++ {
		err := try()
		if err == nil || errors.Is(err, errFenced) {
			return err
		}
		if ctx.Err() != nil || !wanted() {
			return fmt.Errorf("given up: %w", err)
		}
		if failures == 0 {
			p.cfg.log.Error(trouble, "error", err)
		}
		if wait(ctx, retryAfter(failures)) != nil {
			return err
		}
	}
}

// close leaves the group.
func (p *processor) close() { p.client.Close() }

// wait returns after d, or with an error when ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pace gives a processor a known capacity: one batch in each time. What a transaction takes is made up for,
// up to half a second. So it takes nothing of the capacity while it is faster than the batches.
type pace struct {
	each time.Duration
	due  time.Time // when the next batch may begin
}

const paceSlack = 500 * time.Millisecond

func (p *pace) wait(ctx context.Context) error {
	if p.each == 0 {
		return ctx.Err()
	}
	now := time.Now()
	if oldest := now.Add(-paceSlack); p.due.Before(oldest) {
		p.due = oldest
	}
	p.due = p.due.Add(p.each)
	if ahead := p.due.Sub(now); ahead > 0 {
		return wait(ctx, ahead)
	}
	return ctx.Err()
}
