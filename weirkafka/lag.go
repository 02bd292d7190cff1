package weirkafka

import (
	"context"
	"crypto/tls"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
)

// LagConfig configures [NewLag]. Group, Topics, and one of Client and Brokers are required; the zero
// value of any other field means its default.
type LagConfig struct {
	// Client is what to ask with. It stays the caller's: Close does not close it.
	Client *kgo.Client

	// Brokers are host:port of some brokers of the cluster, for a client of the Lag's own.
	Brokers []string
	// TLS turns TLS on for that client. nil means none.
	TLS *tls.Config
	// SASL is how that client logs in: the first mechanism that a broker knows. Those of franz-go
	// that take a function ask it for each connection, so a password may change.
	SASL []sasl.Mechanism

	// Name is the signal's. Default "kafka_lag".
	Name string `default:"kafka_lag"`
	// Group is the consumer group. A group that nobody knows has committed nothing.
	Group string
	// Topics are those that count, at most 1,000. Several groups may read a topic, and a group several
	// topics.
	Topics []string
	// Take says what the reading is of many partitions. Default Sum.
	Take Take `default:"sum" enum:"sum,max"`
	// Isolation is that of the consumers, and says where a partition ends. Default ReadUncommitted.
	Isolation Isolation `default:"read_uncommitted" enum:"read_uncommitted,read_committed"`
	// From is where the consumers begin on a partition without a commit. Default Earliest.
	From From `default:"earliest" enum:"earliest,latest"`
}

// Take says what one number stands for many partitions.
type Take string

// The values of Take.
const (
	Sum Take = "sum" // all partitions together
	Max Take = "max" // the partition that is furthest behind
)

// Isolation is a consumer's isolation.level.
type Isolation string

// The values of Isolation.
const (
	ReadUncommitted Isolation = "read_uncommitted" // a partition ends at its high watermark
	ReadCommitted   Isolation = "read_committed"   // it ends at its last stable offset, before the first open transaction
)

// From is a consumer's auto.offset.reset.
type From string

// The values of From.
const (
	Earliest From = "earliest" // without a commit, the whole partition is lag
	Latest   From = "latest"   // without a commit, nothing is
)

// Partition is what is known of one partition. All but Partition are offsets or counts of messages.
type Partition struct {
	// Topic and Partition say which.
	Topic     string
	Partition int32
	// Start and End are the log's: of the oldest message, and of the one to be written next. With
	// ReadCommitted, End is the last stable offset.
	Start, End int64
	// Committed is the group's, -1 if there is none.
	Committed int64
	// Lag is how many messages the group is behind.
	Lag int64
	// Err says why Lag is unknown, nil if it is known.
	Err error
}

// Lag is a [signal.Signal]: how many messages a consumer group is behind. It is safe for concurrent use.
type Lag struct {
	cfg    LagConfig
	client *kgo.Client
	own    sync.Once // closes a client of its own
}

// MaxTopics is the most that a [Lag] reads. It bounds a request; the answers are bounded by the topics' partitions.
const MaxTopics = 1000

// NewLag returns a signal, or an error that names every setting out of range. It connects to nothing
// yet: a cluster that is away is an error of Read.
func NewLag(cfg LagConfig) (*Lag, error) {
	var f fault.List
	setting.Complete(&cfg, &f)
	f.Require(cfg.Client != nil || len(cfg.Brokers) > 0, nil, "no cluster; set Brokers, such as 127.0.0.1:9092, or Client")
	f.Require(cfg.Client == nil || len(cfg.Brokers) == 0 && cfg.TLS == nil && cfg.SASL == nil, fault.Path{"Client"}, "a Client has its own Brokers, TLS and SASL; leave those out")
	f.Require(cfg.Group != "", fault.Path{"Group"}, "no consumer group is named")
	f.Check(len(cfg.Topics) >= 1 && len(cfg.Topics) <= MaxTopics, fault.Path{"Topics"}, len(cfg.Topics), "must name from 1 to %d topics", MaxTopics)
	for i, topic := range cfg.Topics {
		at := fault.Path{"Topics"}.Index(i)
		f.AddError(at, CheckTopic(topic))
		f.Require(!slices.Contains(cfg.Topics[:i], topic), at, "%q is in the list already", topic)
	}
	if err := f.Err("weirkafka: lag"); err != nil {
		return nil, err
	}
	cfg.Topics = slices.Clone(cfg.Topics)
	l := &Lag{cfg: cfg, client: cfg.Client}
	if l.client == nil {
		opts := []kgo.Opt{
			kgo.SeedBrokers(cfg.Brokers...), kgo.ClientID("weir"), kgo.SASL(cfg.SASL...),
			// A reading that fails is followed by another one soon, and should say why it failed.
			kgo.RequestRetries(2),
		}
		if cfg.TLS != nil {
			opts = append(opts, kgo.DialTLSConfig(cfg.TLS))
		}
		var err error
		if l.client, err = kgo.NewClient(opts...); err != nil {
			return nil, fmt.Errorf("weirkafka: lag: %w", err)
		}
	}
	return l, nil
}

// CheckTopic returns what is wrong with the name of a topic: it has 1 to 249 letters, digits, dots,
// underscores and hyphens, and is neither . nor .. (Kafka's own rule).
func CheckTopic(name string) error {
	legal := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-'
	}
	if name == "" || len(name) > 249 || name == "." || name == ".." || slices.ContainsFunc([]rune(name), func(r rune) bool { return !legal(r) }) {
		return fault.New(fmt.Sprintf("%.40q is not a name of a topic", name), "write 1 to 249 letters, digits, dots, underscores and hyphens")
	}
	return nil
}

// Name implements [signal.Signal].
func (l *Lag) Name() string { return l.cfg.Name }

// Read implements [signal.Signal]. It asks one broker for the topics, the group's coordinator for the
// commits, and each broker that leads a partition for starts and ends. Whatever the number of topics,
// a broker gets one request of each kind. One partition that cannot be told makes it an error.
//
// It may return up to 20 s after ctx has ended. What franz-go says first on a connection has a time of its own, and
// some brokers accept connections and are silent. A [signal.Poller] waits for it, and the lag is unknown meanwhile.
func (l *Lag) Read(ctx context.Context) (float64, error) {
	all, err := l.Partitions(ctx)
	if err != nil {
		return 0, err
	}
	return float64(l.total(all)), nil
}

// total is the reading of partitions that are all known.
func (l *Lag) total(all []Partition) int64 {
	var sum, highest int64
	for _, p := range all {
		sum += min(p.Lag, math.MaxInt64-sum)
		highest = max(highest, p.Lag)
	}
	if l.cfg.Take == Max {
		return highest
	}
	return sum
}

// Partitions measures, and returns each partition, by topic and number. The error is about those that
// cannot be told; the others are in the list all the same.
func (l *Lag) Partitions(ctx context.Context) ([]Partition, error) {
	r := round{lag: l, brokers: map[int32]string{}}
	if err := r.measure(ctx); err != nil {
		return nil, fmt.Errorf("weirkafka: %s: %w", l.cfg.Name, err)
	}
	all := make([]Partition, 0, len(r.partitions))
	var first error
	unknown := 0
	for _, p := range r.partitions {
		if p.Err != nil {
			if unknown++; first == nil {
				first = p.Err
			}
		} else {
			p.Lag = l.behind(p.Partition)
		}
		all = append(all, p.Partition)
	}
	switch {
	case unknown == 1:
		return all, fmt.Errorf("weirkafka: %s: %w", l.cfg.Name, first)
	case unknown > 1:
		return all, fmt.Errorf("weirkafka: %s: %d of %d partitions are unknown, first %w", l.cfg.Name, unknown, len(all), first)
	}
	return all, nil
}

// behind is how many messages the group is behind on a partition that is known.
func (l *Lag) behind(p Partition) int64 {
	done := p.Committed
	if done < 0 {
		if done = p.Start; l.cfg.From == Latest {
			done = p.End
		}
	}
	return max(0, p.End-max(done, p.Start))
}

// Close closes the client, unless it is the caller's. Readings fail from then on.
func (l *Lag) Close() {
	if l.cfg.Client == nil {
		l.own.Do(l.client.Close)
	}
}
