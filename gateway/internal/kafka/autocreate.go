package kafka

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir/quota"
)

// Topics that a broker makes by itself, because a client has asked for their metadata (auto.create.topics.enable). The broker does not say
// that it makes one, and what it does cannot be refused any more. So whoever asks is charged for it, once, and delayed.

// saysAutoCreate is the version of Metadata from which on a client says whether topics may be made.
const saysAutoCreate = 4

// makes reports whether a broker may make topics for a request.
func makes(m *kmsg.MetadataRequest) bool {
	return len(m.Topics) > 0 && (m.Version < saysAutoCreate || m.AllowAutoTopicCreation)
}

// metadata serves a request for metadata of n bytes, whose beginning is frame. Topics that brokers make are counted then, or none is to be made.
func (r *relay) metadata(q *Quotas, req *request, frame []byte, n int) error {
	frame, err := r.decodable(frame, n, heldRequest*n)
	if err != nil {
		return err
	}
	m := new(kmsg.MetadataRequest)
	m.SetVersion(req.version)
	if err := readBody(frame[4:], m); err != nil {
		return endErrorf("a request for %s cannot be read: %v", kmsg.NameForKey(req.key), err)
	}
	p := pending{request: *req}
	if !makes(m) || !q.NoAutoCreate {
		p.makes = makes(m)
		return r.send(p, frame)
	}
	rest := *m
	rest.AllowAutoTopicCreation = false
	if m.Version >= saysAutoCreate {
		return r.send(p, likeRequest(frame[4:], m, &rest))
	}
	rest.Version = saysAutoCreate // an older one cannot say so
	a, err := r.ask(req, frame[4:], m, &rest)
	if err != nil {
		return err
	}
	a.SetVersion(req.version)
	replace(a, r.server.nodes.advertised)
	return r.reply(req, a)
}

// chargeMade charges the client for topics that an answer shows to be made by the broker, and returns until when it is to wait.
func (r *relay) chargeMade(req *request, resp kmsg.Response) time.Time {
	g := r.server.opts.Quotas().Mutations
	meta, ok := resp.(*kmsg.MetadataResponse)
	if !ok || g == nil {
		return time.Time{} // a reload has taken the quota away
	}
	m := new(mutation)
	defer m.abandon() // it is made either way
	for i := range meta.Topics {
		t := &meta.Topics[i]
		switch {
		case t.Topic == nil:
		case t.ErrorCode == 0:
			r.server.made.forget(*t.Topic)
		case len(t.Partitions) == 0 && (t.ErrorCode == kerr.UnknownTopicOrPartition.Code || t.ErrorCode == kerr.LeaderNotAvailable.Code):
			if d := r.server.topicDefaults(); d.made && r.server.made.rememberNew(*t.Topic, d.partitions, time.Now()) {
				m.all = append(m.all, mutated{partitions: d.partitions})
			}
		}
	}
	return r.chargeTopics(g, req, m, quota.Permissive)
}

// made are the topics that were made lately, of which brokers may have yet to hear from the controller. Nobody is charged for one again
// meanwhile, and who grows or deletes one is charged for what it has. It is safe for concurrent use.
type made struct {
	mu     sync.Mutex
	topics map[string]birth
}

// birth is when a topic was made, and with how many partitions.
type birth struct {
	at         time.Time
	partitions int64
}

const (
	// mostMade bounds how many are remembered.
	mostMade = 10_000
	// madeWithin is how long one is remembered that never comes into being.
	madeWithin = 10 * time.Minute
)

// rememberNew reports whether a topic that a broker makes by itself is to be charged now: it was not known.
func (m *made) rememberNew(name string, partitions int64, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sizeLocked(name, now) > 0 {
		return false
	}
	m.rememberLocked(name, partitions, now)
	return true
}

// remember is told that a topic has been made.
func (m *made) remember(name string, partitions int64, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rememberLocked(name, partitions, now)
}

func (m *made) rememberLocked(name string, partitions int64, now time.Time) {
	if m.topics == nil || len(m.topics) >= mostMade {
		m.topics = map[string]birth{}
	}
	m.topics[name] = birth{now, partitions}
}

// grow is told that a topic has more partitions now.
func (m *made) grow(name string, partitions int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b, ok := m.topics[name]; ok {
		m.topics[name] = birth{b.at, partitions}
	}
}

// size is how many partitions a topic has, 0 if it was not made lately.
func (m *made) size(name string, now time.Time) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sizeLocked(name, now)
}

func (m *made) sizeLocked(name string, now time.Time) int64 {
	if b, ok := m.topics[name]; ok && now.Sub(b.at) < madeWithin {
		return b.partitions
	}
	return 0
}

// forget is told that a broker knows a topic, or that it is deleted.
func (m *made) forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.topics, name)
}

func (s *Server) byDefault() int64 { return s.topicDefaults().partitions }

func (s *Server) lately(name string) int64 {
	if n := s.made.size(name, time.Now()); n > 0 {
		return n
	}
	return s.byDefault()
}

// topicDefaults is what brokers do with a topic of which a client does not say enough.
type topicDefaults struct {
	partitions int64 // that it gets without a number
	made       bool  // by a client that asks for its metadata
}

// topicDefaults returns that. Until a broker says so it is what one does that nobody has configured. One connection asks; others take
// meanwhile what was said before.
func (s *Server) topicDefaults() topicDefaults {
	s.mu.Lock()
	d, old := s.defaults.topicDefaults, time.Since(s.defaults.asked) >= askEvery
	asks := old && (!s.defaults.asking || d.partitions == 0)
	s.defaults.asking = s.defaults.asking || asks
	s.mu.Unlock()
	if !asks {
		return d
	}
	ctx, cancel := context.WithTimeout(s.stopping, connectWithin)
	defer cancel()
	said, err := s.askDefaults(ctx)
	if err != nil {
		if said = d; said.partitions == 0 {
			said = topicDefaults{1, true}
		}
		if s.stopping.Err() == nil {
			s.log.Warn("Kafka does not say num.partitions and auto.create.topics.enable; these count until it does", "partitions", said.partitions, "auto_create", said.made, "error", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.defaults.topicDefaults, s.defaults.asked, s.defaults.asking = said, time.Now(), false
	return said
}

func (s *Server) askDefaults(ctx context.Context) (d topicDefaults, err error) {
	const partitions, made = "num.partitions", "auto.create.topics.enable"
	req, broker := kmsg.NewPtrDescribeConfigsRequest(), kmsg.NewDescribeConfigsRequestResource()
	broker.ResourceType, broker.ResourceName = kmsg.ConfigResourceTypeBroker, strconv.Itoa(int(s.nodes.one()))
	broker.ConfigNames = []string{partitions, made}
	req.Resources = append(req.Resources, broker)
	resp, err := req.RequestWith(ctx, s.asks)
	if err != nil {
		return d, err
	}
	said := map[string]string{}
	for _, r := range resp.Resources {
		if err := kerr.ErrorForCode(r.ErrorCode); err != nil {
			return d, err
		}
		for _, c := range r.Configs {
			if c.Value != nil {
				said[c.Name] = *c.Value
			}
		}
	}
	d.partitions, err = strconv.ParseInt(said[partitions], 10, 32)
	if err != nil || d.partitions < 1 || said[made] == "" {
		return d, errors.New("the answer has no " + partitions + " and " + made)
	}
	d.made = said[made] == "true"
	return d, nil
}
