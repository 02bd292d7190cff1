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
	// Client sends the requests. Close does not close it.
	Client *kgo.Client

	// Brokers are host:port of some brokers of the cluster. With them the Lag makes a client of its own.
	Brokers []string
	// TLS turns TLS on for that client. nil means none.
	TLS *tls.Config
	// SASL is how that client logs in: by the first mechanism that a broker supports. If a mechanism of
	// franz-go has a function, the function is called for each connection, so a password may change.
	SASL []sasl.Mechanism

	// Name is the name of the signal. Default "kafka_lag".
	Name string `default:"kafka_lag"`
	// Group is the consumer group. A group that the brokers do not know has committed nothing.
	Group string
	// Topics are the topics that count, at most 1,000. Several groups may read a topic, and a group several
	// topics.
	Topics []string
	// Take says how many partitions make one reading. Default Sum.
	Take Take `default:"sum" enum:"sum,max"`
	// Isolation is the isolation.level of the consumers. It decides where a partition ends. Default ReadUncommitted.
	Isolation Isolation `default:"read_uncommitted" enum:"read_uncommitted,read_committed"`
	// From is where the consumers begin on a partition without a commit. Default Earliest.
	From From `default:"earliest" enum:"earliest,latest"`
}

// Take says how the lags of many partitions become one number.
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
	Latest   From = "latest"   // without a commit, nothing is lag
)

// Partition is the state of one partition.
type Partition struct {
	// Topic and Partition name the partition.
	Topic     string
	Partition int32
	// Start and End are offsets of the log: of the oldest message, and of the next message to be written. With
	// ReadCommitted, End is the last stable offset.
	Start, End int64
	// Committed is the committed offset of the group, -1 if there is none.
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
	own    sync.Once // closes the client, if it is the Lag's own
}

// MaxTopics is the most that a [Lag] reads. It bounds a request; the answers are bounded by the topics' partitions.
const MaxTopics = 1000

// NewLag returns a signal, or an error that names every setting out of range. It does not connect yet: if the
// cluster cannot be reached, Read returns an error.
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
			// Another reading follows a failed one soon, so it is better to fail early with the reason.
			kgo.RequestRetries(2),
			kgo.DisableClientMetrics(), // they would tell brokers of nothing but these readings
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

// Read implements [signal.Signal]. It asks one broker for the topics, the group's coordinator for the commits,
// and each leader of a partition for starts and ends. Whatever the number of topics, a broker gets one request
// of each kind. If the lag of one partition is unknown, Read returns an error.
//
// Read may return up to 20 s after ctx has ended. The first requests of franz-go on a connection have a
// time-out of their own, and some brokers accept connections and never answer. A [signal.Poller] waits for
// Read, and the lag is unknown meanwhile.
func (l *Lag) Read(ctx context.Context) (float64, error) {
	all, err := l.Partitions(ctx)
	if err != nil {
		return 0, err
	}
	return float64(l.total(all)), nil
}

// total is the reading for partitions whose lags are all known.
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

// Partitions measures, and returns each partition, by topic and number. The error is about partitions whose lag
// is unknown. The list has all partitions.
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

// behind is how many messages the group is behind on a partition whose offsets are known.
func (l *Lag) behind(p Partition) int64 {
	done := p.Committed
	if done < 0 {
		if done = p.Start; l.cfg.From == Latest {
			done = p.End
		}
	}
	return max(0, p.End-max(done, p.Start))
}

// Close closes the client, unless it is LagConfig.Client. Readings fail from then on.
func (l *Lag) Close() {
	if l.cfg.Client == nil {
		l.own.Do(l.client.Close)
	}
}
