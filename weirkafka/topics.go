package weirkafka

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/weir-go/weir/signal"
)

// Topics returns a signal for each topic, in the order of LagConfig.Topics. The name of a signal is that of the
// Lag, a slash, and the topic: kafka_lag/orders. If the lag of one topic is unknown, the other signals still
// have values.
//
// The signals share rounds of requests. Give them to one [signal.Poller] with one interval: then each interval
// has one round, whatever the number of topics. The poller is a control.Source with a reading of each topic.
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

// sharing is the state that the signals of one Lag share.
type sharing struct {
	lag *Lag

	mu     sync.Mutex // not held while brokers are asked
	newest *reading   // may be in progress
}

// reading is one round for all topics. Its result is set when done is closed.
type reading struct {
	done       chan struct{}
	ended      time.Time
	partitions []Partition
	err        error
	abandoned  bool // the context of the signal that made it has ended
}

// sharedFor is how long a finished reading is used for other signals.
const sharedFor = time.Second

// next returns a reading that t has not seen yet: the newest, or a new one.
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

// joinReading returns the reading that t sees next, and notes it. own says that t must make the reading.
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
