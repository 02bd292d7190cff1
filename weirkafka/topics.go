package weirkafka

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/weir-go/weir/signal"
)

// Topics returns a signal for each topic, in the order of LagConfig.Topics. Its name is that of the Lag,
// a slash, and the topic: kafka_lag/orders. A topic that cannot be told leaves the others known.
//
// The signals share rounds of requests. Give them to one [signal.Poller] with one interval: then each
// interval has one round, whatever the number of topics. The poller is the control.Source that has a
// reading for each.
func (l *Lag) Topics() []signal.Signal {
	s := &sharing{lag: l}
	all := make([]signal.Signal, 0, len(l.cfg.Topics))
	for _, topic := range l.cfg.Topics {
		all = append(all, &topicLag{name: l.cfg.Name + "/" + topic, topic: topic, sharing: s})
	}
	return all
}

// topicLag is the signal of one topic.
type topicLag struct {
	name, topic string
	*sharing
	seen *reading // guarded by sharing.mu
}

// Name implements [signal.Signal].
func (t *topicLag) Name() string { return t.name }

// Read implements [signal.Signal].
func (t *topicLag) Read(ctx context.Context) (float64, error) {
	r, err := t.next(ctx, t)
	if err != nil {
		return 0, fmt.Errorf("weirkafka: %s: %w", t.name, err)
	}
	var own []Partition
	for _, p := range r.partitions {
		switch {
		case p.Topic != t.topic:
		case p.Err != nil:
			return 0, fmt.Errorf("weirkafka: %s: %w", t.name, p.Err)
		default:
			own = append(own, p)
		}
	}
	switch {
	case len(own) > 0:
	case r.err != nil:
		return 0, r.err // about all topics
	default:
		return 0, fmt.Errorf("weirkafka: %s: %w", t.name, errNoAnswer) // of a round that has panicked
	}
	return float64(t.lag.total(own)), nil
}

// sharing is what the signals of one Lag have in common.
type sharing struct {
	lag *Lag

	mu     sync.Mutex // not held while brokers are asked
	newest *reading   // may be under way
}

// reading is one round for all topics. What it has found is there when done is closed.
type reading struct {
	done       chan struct{}
	ended      time.Time
	partitions []Partition
	err        error
	abandoned  bool // by whoever asked: its own context has ended
}

// sharedFor is how long a reading that has ended serves signals that are read a little later.
const sharedFor = time.Second

// next returns a reading that t has not seen yet: the newest, or one that it makes itself.
func (s *sharing) next(ctx context.Context, t *topicLag) (*reading, error) {
	for {
		r, own := s.joinReading(t)
		if own {
			s.measure(ctx, r)
			return r, nil
		}
		select {
		case <-r.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if !r.abandoned {
			return r, nil
		}
	}
}

// joinReading notes that t sees a reading. own says that t is to make it.
func (s *sharing) joinReading(t *topicLag) (r *reading, own bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r = s.newest; r == nil || r == t.seen || r.old() {
		r, own = &reading{done: make(chan struct{})}, true
		s.newest = r
	}
	t.seen = r
	return r, own
}

func (r *reading) old() bool {
	select {
	case <-r.done:
		return time.Since(r.ended) >= sharedFor
	default:
		return false
	}
}

func (s *sharing) measure(ctx context.Context, r *reading) {
	defer close(r.done)
	r.partitions, r.err = s.lag.Partitions(ctx)
	r.ended, r.abandoned = time.Now(), ctx.Err() != nil
}
