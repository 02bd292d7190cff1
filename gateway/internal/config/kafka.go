package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/signal"
	"github.com/weir-go/weir/weirkafka"
)

// Kafka is a cluster of Kafka, which signals read.
type Kafka struct {
	// host:port of some of its brokers. They name the others.
	Bootstrap []string `json:"bootstrap" example:"[127.0.0.1:9092]" form:"host:port" required:"true"`
	// Certificates for TLS. {} lets the authorities of the system vouch for the brokers. Left out, there is no TLS.
	TLS *StoreTLS `json:"tls,omitempty" example:"{}"`
	// How to log in. Left out, nobody does.
	SASL *SASL `json:"sasl,omitempty" example:"{mechanism: scram-sha-512, user: weir, password_file: kafka.password}"`
}

// SASL is a user of a cluster.
type SASL struct {
	// How the password is shown. plain sends it, so it needs tls.
	Mechanism string `json:"mechanism" enum:"plain,scram-sha-256,scram-sha-512" meant:"PLAIN=plain,SCRAM-SHA-256=scram-sha-256,SCRAM-SHA-512=scram-sha-512" required:"true"`
	// Name of the user.
	User string `json:"user" example:"weir" required:"true"`
	Secret
}

// kafkaLag is the word for signals that read how far a consumer group is behind.
const kafkaLag = "kafka_lag"

// kafkaInterval is the time between two readings of a lag that names none.
const kafkaInterval = time.Second

// Signal is a signal of the policy, and what the gateway alone can read.
type Signal struct {
	policy.SignalSpec
	// kafka_lag: the cluster, one of kafka. The lag is read every second unless interval says otherwise.
	Cluster string `json:"cluster,omitempty" example:"main"`
	// kafka_lag: the consumer group whose lag it is.
	Group string `json:"group,omitempty" example:"indexer"`
	// kafka_lag: the topics that count.
	Topics []string `json:"topics,omitempty" example:"[documents]" form:"the name of a topic"`
	// kafka_lag: all partitions together, or the one that is furthest behind (default: sum).
	Take string `json:"take,omitempty" enum:"sum,max" example:"max"`
	// kafka_lag: the consumers' isolation.level. read_committed ends a partition before the first open transaction
	// (default: read_uncommitted).
	Isolation string `json:"isolation,omitempty" enum:"read_uncommitted,read_committed" example:"read_committed"`
	// kafka_lag: the consumers' auto.offset.reset. On a partition without a commit everything is lag, or nothing
	// (default: earliest).
	From string `json:"from,omitempty" enum:"earliest,latest" example:"latest"`
}

// readsKafka reports whether the signal of that name is a lag of Kafka's.
func (s *Signal) readsKafka(name string) bool { return cmp.Or(s.Read, name) == kafkaLag }

// spec is the signal as a policy takes it. A lag of Kafka's is one of the policy's Options.Signals.
func (s *Signal) spec(name string) policy.SignalSpec {
	spec := s.SignalSpec
	if s.readsKafka(name) {
		spec.Read = ""
		spec.Interval = cmp.Or(spec.Interval, policy.Duration(kafkaInterval))
	}
	return spec
}

// signalSpecs are the signals as a policy takes them.
func (c *Config) signalSpecs() map[string]policy.SignalSpec {
	if c.Signals == nil {
		return nil
	}
	all := make(map[string]policy.SignalSpec, len(c.Signals))
	for name, s := range c.Signals {
		all[name] = s.spec(name)
	}
	return all
}

// KafkaLags returns the names of the signals that read a lag of Kafka's, sorted.
func (c *Config) KafkaLags() []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(c.Signals)) {
		if s := c.Signals[name]; s.readsKafka(name) {
			names = append(names, name)
		}
	}
	return names
}

// Unread stands for each signal of the gateway's own where a file is only checked: to check it is to
// connect to nothing.
func (c *Config) Unread() map[string]signal.Signal {
	all := map[string]signal.Signal{}
	for _, name := range c.KafkaLags() {
		all[name] = signal.Func(name, func(context.Context) (float64, error) { return 0, signal.ErrNoValue })
	}
	return all
}

// kafka checks the clusters, without connecting to any, and the signals that read them.
func (m *meaning) kafka() {
	for name, k := range m.Kafka {
		path := fault.Path{"kafka", name}
		for i, addr := range k.Bootstrap {
			var wrong fault.Fault
			if errors.As(checkAddress(addr), &wrong) { // its advice is about listeners
				m.report(path.At("bootstrap").Index(i), "write host:port, for instance 127.0.0.1:9092", "%s", wrong.Problem)
			}
		}
		if k.TLS != nil {
			m.clientTLS(path.At("tls"), k.TLS)
		}
		if k.SASL != nil {
			m.secret(path.At("sasl"), &k.SASL.Secret)
			if k.SASL.PasswordFile == "" && k.SASL.PasswordEnv == "" {
				m.report(path.At("sasl"), "write password_file, or password_env", "there is no password")
			}
		}
		m.Config.Kafka[name] = k
	}
	for name, s := range m.Signals {
		path, word := fault.Path{"signals", name}, cmp.Or(s.Read, name)
		var given []string
		for _, setting := range []struct {
			key string
			is  bool
		}{
			{"cluster", s.Cluster != ""}, {"group", s.Group != ""}, {"topics", len(s.Topics) > 0},
			{"take", s.Take != ""}, {"isolation", s.Isolation != ""}, {"from", s.From != ""},
		} {
			if setting.is {
				given = append(given, setting.key)
			}
		}
		known := policy.SignalKinds()
		switch {
		case s.readsKafka(name):
			m.kafkaLag(path, &s)
		case slices.Contains(known, word):
			for _, key := range given {
				m.report(path.At(key), "leave it out, or write read: "+kafkaLag, "means nothing to a signal that reads %s", word)
			}
		case len(given) > 0 || fault.Nearest(word, append(known, kafkaLag)) == kafkaLag:
			// The policy, which does not know this word, says so of all others.
			if s.Read != "" {
				path = path.At("read")
			}
			m.report(path, "write read: "+kafkaLag, "%q is nothing that a signal can read", word)
		}
	}
}

func (m *meaning) kafkaLag(path fault.Path, s *Signal) {
	known := slices.Sorted(maps.Keys(m.Config.Kafka))
	if _, ok := m.Config.Kafka[s.Cluster]; !ok {
		remedy := "define one, as in kafka: {main: {bootstrap: [127.0.0.1:9092]}}, and write cluster: main"
		if len(known) > 0 {
			remedy = oneOf(s.Cluster, known, "kafka")
		}
		if s.Cluster == "" {
			m.report(path.At("cluster"), remedy, "no cluster is named")
		} else {
			m.report(path.At("cluster"), remedy, "there is no cluster %s", quote(s.Cluster))
		}
	}
	if s.Group == "" {
		m.report(path.At("group"), "write the group.id of the consumers whose lag it is", "no consumer group is named")
	}
	if len(s.Topics) == 0 {
		m.report(path.At("topics"), "write the topics that the group reads, such as [documents]", "no topic is named")
	}
	if n := len(s.Topics); n > weirkafka.MaxTopics {
		m.report(path.At("topics"), fmt.Sprintf("write at most %d, or make a second signal", weirkafka.MaxTopics), "%d topics are too many", n)
	}
	for i, topic := range s.Topics {
		at := path.At("topics").Index(i)
		if err := weirkafka.CheckTopic(topic); err != nil {
			m.reportError(at, err)
		} else if slices.Contains(s.Topics[:i], topic) {
			m.report(at, "leave one of them out", "%s is in the list already", quote(topic))
		}
	}
}

// KafkaLag returns how to read a signal, with passwords and certificates read. The error names what
// cannot be read.
func (c *Config) KafkaLag(name string) (weirkafka.LagConfig, error) {
	s := c.Signals[name]
	k := c.Kafka[s.Cluster]
	cfg := weirkafka.LagConfig{
		Brokers: k.Bootstrap, Name: name, Group: s.Group, Topics: s.Topics,
		Take: weirkafka.Take(s.Take), Isolation: weirkafka.Isolation(s.Isolation), From: weirkafka.From(s.From),
	}
	var errTLS, errSASL error
	if k.TLS != nil {
		cfg.TLS, errTLS = k.TLS.config()
	}
	if k.SASL != nil {
		_, errSASL = k.SASL.read()
		cfg.SASL = []sasl.Mechanism{k.SASL.mechanism()}
	}
	if err := errors.Join(errTLS, errSASL); err != nil {
		return cfg, fmt.Errorf("kafka.%s: %w", s.Cluster, err)
	}
	return cfg, nil
}

// mechanism reads the password for each connection, so that a new one is used without a reload.
func (s *SASL) mechanism() sasl.Mechanism {
	if s.Mechanism == "plain" {
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			password, err := s.read()
			return plain.Auth{User: s.User, Pass: password}, err
		})
	}
	auth := func(context.Context) (scram.Auth, error) {
		password, err := s.read()
		return scram.Auth{User: s.User, Pass: password}, err
	}
	if s.Mechanism == "scram-sha-256" {
		return scram.Sha256(auth)
	}
	return scram.Sha512(auth)
}
