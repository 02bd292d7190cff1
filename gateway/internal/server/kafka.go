package server

import (
	"crypto/sha256"
	"encoding/json"
	"time"

	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/eventlog"
	"github.com/weir-go/weir/gateway/internal/kafka"
)

// kafkaGateway is the gateway before a cluster of Kafka. It lives on over reloads while its settings are the same.
type kafkaGateway struct {
	*kafka.Server
	cluster  string
	nodes    config.KafkaNodes
	settings [sha256.Size]byte // with the gateway's own certificates; passwords are read for each connection
}

const kafkaSetting = "kafka.NAME.listen.address in the file"

const nodeSetting = "kafka.NAME.nodes.ports in the file"

// kafkaListener returns the listener for a cluster. prev is what listens at its address now, nil for none; same says that it
// has the same settings.
func (s *Server) kafkaListener(cfg *config.Config, w wanted, prev *listener, same bool) (*listener, error) {
	settings, err := kafkaSettings(cfg, w.cluster)
	if err != nil {
		return nil, err
	}
	if same && prev.kafka != nil && prev.kafka.cluster == w.cluster && prev.kafka.settings == settings {
		return prev, nil
	}
	l := &listener{cfg: w.Listener, replaces: prev, succeeds: s.gatewayBefore(w.cluster, prev)}
	o := s.acceptOptions(l.cfg, kafkaSetting)
	o.Bare = true
	if prev != nil {
		o.Share = prev.conns
	}
	if l.conns, err = accept.Open(o); err != nil {
		return nil, err
	}
	if l.kafka, err = s.newKafka(cfg, w.cluster, settings, l); err != nil {
		_ = l.conns.Close() // nobody has used it
		return nil, err
	}
	return l, nil
}

// gatewayBefore returns the listener whose gateway one for a cluster succeeds: the one for the same cluster, wherever it listens, or else
// the one in whose place prev it will be. It returns nil if there is none.
func (s *Server) gatewayBefore(cluster string, prev *listener) *listener {
	for _, l := range s.listeners {
		if l.kafka != nil && l.kafka.cluster == cluster {
			return l
		}
	}
	if prev != nil && prev.kafka != nil {
		return prev
	}
	return nil
}

func (s *Server) newKafka(cfg *config.Config, cluster string, settings [sha256.Size]byte, l *listener) (*kafkaGateway, error) {
	k := cfg.Kafka[cluster]
	o := kafka.Options{
		Cluster: cluster, Config: k, Conns: l.conns, Logger: s.log, Rules: s.book, Early: len(s.all()) > 0,
		Charged: func(c kafka.Charge) {
			s.metrics.KafkaCharged(c)
			if c.Wait > 0 {
				s.events.Delayed(eventlog.Delay{
					Cluster: cluster, Quota: c.Quota, Gate: c.Gate, Rule: c.Rule, Bucket: c.Bucket, User: c.User, Client: c.Client, Wait: c.Wait,
				})
			}
		},
		Failed: func(broker, failure string, err error) {
			s.events.UpstreamFailed("kafka "+cluster, broker, failure, err)
		},
		Open: func(address string, in *accept.Listener) (*accept.Listener, error) {
			o := s.acceptOptions(k.Listen.Listener(address), nodeSetting)
			o.Bare, o.With, o.Share = true, l.conns, in
			return accept.Open(o)
		},
	}
	o.Quotas = func() kafka.Quotas { return s.state.Load().kafka[cluster] }
	if p := l.succeeds; p != nil {
		o.Previous = p.kafka.Server
	}
	var err error
	if o.TLS, o.SASL, err = cfg.KafkaLogin(cluster); err != nil {
		return nil, err
	}
	server, err := kafka.New(o)
	if err != nil {
		return nil, err
	}
	return &kafkaGateway{Server: server, cluster: cluster, nodes: *k.Nodes, settings: settings}, nil
}

// kafkaSettings is a sum of all that makes another gateway before the same cluster: nothing of it can change while it serves.
func kafkaSettings(cfg *config.Config, cluster string) (sum [sha256.Size]byte, err error) {
	k := cfg.Kafka[cluster]
	files, err := contents(k.TLS)
	if err != nil {
		return sum, err
	}
	k.Listen = nil                  // whose settings are the listener's
	k.Quotas = config.KafkaQuotas{} // which are asked for with each request
	text, err := json.Marshal([]any{k, files})
	return sha256.Sum256(text), err
}

// kafkaQuotas returns the quotas of a configuration, by cluster.
func (st *state) kafkaQuotas() map[string]kafka.Quotas {
	all := map[string]kafka.Quotas{}
	for name, k := range st.cfg.Kafka {
		q := &k.Quotas
		all[name] = kafka.Quotas{
			Produce: st.policy.Gate(q.Produce), Fetch: st.policy.Gate(q.Fetch), Mutations: st.policy.Gate(q.Mutations), Connections: st.policy.Gate(q.Connections),
			NoAutoCreate: q.AutoCreate == config.Off, Longest: time.Duration(q.MaxThrottle), Samples: q.Samples, Window: time.Duration(q.Window),
		}
	}
	return all
}

// about is what the line of the start says.
func (k *kafkaGateway) about() []any {
	return []any{"kafka", k.cluster, "nodes", k.nodes.Advertise + ":" + k.nodes.Ports}
}

// Kafka returns what there is to see of the gateways before clusters of Kafka.
func (s *Server) Kafka() (all []kafka.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.listeners {
		if l.kafka != nil {
			all = append(all, l.kafka.Snapshot())
		}
	}
	return all
}
