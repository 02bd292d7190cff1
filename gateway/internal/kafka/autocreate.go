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

// A broker may create topics by itself, because a client has asked for their metadata (auto.create.topics.enable). The broker does not say
// that it creates a topic, and the gateway cannot refuse that afterwards. So the client is charged for the topic, once, and delayed.

// saysAutoCreate is the first version of Metadata in which a client says whether topics may be created.
const saysAutoCreate = 4

// makes reports whether a broker may create topics for a request.
func makes(m *kmsg.MetadataRequest) bool {
	return len(m.Topics) > 0 && (m.Version < saysAutoCreate || m.AllowAutoTopicCreation)
}

// metadata serves a request for metadata of n bytes, whose beginning is frame. It counts topics that brokers create, or forbids brokers to
// create any.
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
	rest.Version = saysAutoCreate // an older version cannot forbid it
	a, err := r.ask(req, frame[4:], m, &rest)
	if err != nil {
		return err
	}
	a.SetVersion(req.version)
	replace(a, r.server.nodes.advertised)
	return r.reply(req, a)
}

// chargeMade charges the client for topics that, by an answer, the broker has created. It returns until when the client must wait.
func (r *relay) chargeMade(req *request, resp kmsg.Response) time.Time {
	g := r.server.opts.Quotas().Mutations
	meta, ok := resp.(*kmsg.MetadataResponse)
	if !ok || g == nil {
		return time.Time{} // a reload has taken the quota away
	}
	m := new(mutation)
	defer m.endUnanswered() // the topic is created in any case
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

// made are the topics that were created lately. The controller may not have told all brokers yet. Meanwhile nobody is charged for such a
// topic again, and a change or deletion is charged by its partitions here. made is safe for concurrent use.
type made struct {
	mu     sync.Mutex
	topics map[string]birth
}

// birth is when a topic was created, and with how many partitions.
type birth struct {
	at         time.Time
	partitions int64
}

const (
	// mostMade bounds how many topics are kept.
	mostMade = 10_000
	// madeWithin is how long a topic is kept if it never appears.
	madeWithin = 10 * time.Minute
)

// rememberNew reports whether a topic that a broker creates by itself must be charged now, because it was not known. It keeps the topic.
func (m *made) rememberNew(name string, partitions int64, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sizeLocked(name, now) > 0 {
		return false
	}
	m.rememberLocked(name, partitions, now)
	return true
}

// remember keeps a topic that has been created.
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

// grow notes that a topic has more partitions now.
func (m *made) grow(name string, partitions int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b, ok := m.topics[name]; ok {
		m.topics[name] = birth{b.at, partitions}
	}
}

// size is how many partitions a topic has, or 0 if it was not created lately.
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

// forget removes a topic that a broker knows now, or that was deleted.
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

// topicDefaults are the settings of brokers for topics whose client leaves them out.
type topicDefaults struct {
	partitions int64 // of a topic that is created without a number
	made       bool  // a request for its metadata creates a topic
}

// topicDefaults returns the settings. Until a broker has answered, they are Kafka's defaults. One connection asks; meanwhile others use the
// last answer.
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
			s.log.Warn("cannot read num.partitions and auto.create.topics.enable from Kafka; these values hold until it answers", "partitions", said.partitions, "auto_create", said.made, "error", err)
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
