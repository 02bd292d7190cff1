package kafka

import (
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// topics is a mutation of one of three kinds.
type topics interface {
	kmsg.Request
	// names are the topics in the order of the request.
	names() []string
	// dry reports whether the client only asks to validate the request.
	dry() bool
	// questions are the questions to the broker about the partitions of the request.
	questions() []kmsg.Request
	// hear keeps the partitions in the answer to a question.
	hear(answer kmsg.Response)
	// count returns how many partitions of each topic change, by the answers; unheard if the broker would refuse the topic.
	count(of sizes) []int64
	// size is the same for one topic that is in no answer, at least 1.
	size(i int, of sizes) int64
	// done notes that the broker has created, grown or deleted a topic, by n partitions.
	done(i int, n int64, now time.Time, m *made)
	// without returns the request without some topics, or nil if none is left.
	without(refused func(i int) bool) kmsg.Request
	// results are the errors in an answer by the names of topics.
	results(kmsg.Response) map[string]int16
	// merged adds the topics that are refused here to an answer, in the order of the request. The answer is nil if nothing was sent.
	merged(kmsg.Response, []mutated) kmsg.Response
}

// sizes says how many partitions a topic has if a broker does not say it.
type sizes interface {
	// byDefault is the number for a topic that is created without one.
	byDefault() int64
	// lately is the number for a topic that was created lately. If it is unknown, lately returns byDefault.
	lately(name string) int64
}

// merge adds the topics that are refused here to those of an answer, in the order of the request. Other topics of the answer follow.
func merge[T any](names []string, all []mutated, got []T, name func(*T) string, refused func(i int, t *mutated) T) []T {
	at := map[string]int{}
	for i := range got {
		at[name(&got[i])] = i
	}
	merged, taken := make([]T, 0, len(all)), make([]bool, len(got))
	for i, n := range names {
		if t := &all[i]; t.code != 0 {
			merged = append(merged, refused(i, t))
		} else if j, ok := at[n]; ok && !taken[j] {
			merged = append(merged, got[j])
			taken[j] = true
		}
	}
	for j := range got {
		if !taken[j] {
			merged = append(merged, got[j])
		}
	}
	return merged
}

// unheard is the count for a topic that a broker does not know, or would refuse. The controller may already know the topic.
const unheard = -1

// once counts each topic only when it is named first.
func once(names []string, count func(i int) int64) []int64 {
	all, seen := make([]int64, len(names)), map[string]bool{}
	for i, n := range names {
		if !seen[n] {
			seen[n] = true
			all[i] = count(i)
		}
	}
	return all
}

// creation is a mutation that creates topics.
type creation struct {
	*kmsg.CreateTopicsRequest
	valid map[string]int64 // topics that would be created, with their partitions
}

// validates is the first version of CreateTopics whose answer has the number of partitions. Kafka 2.4 has it.
const validates = 5

func (c *creation) dry() bool { return c.ValidateOnly }

func (c *creation) names() (all []string) {
	for i := range c.Topics {
		all = append(all, c.Topics[i].Topic)
	}
	return all
}

func (c *creation) questions() []kmsg.Request {
	q := *c.CreateTopicsRequest
	q.ValidateOnly = true
	q.Version = max(q.Version, validates)
	return []kmsg.Request{&q}
}

func (c *creation) hear(answer kmsg.Response) {
	c.valid = map[string]int64{}
	for _, t := range answer.(*kmsg.CreateTopicsResponse).Topics {
		if t.ErrorCode == 0 {
			c.valid[t.Topic] = int64(t.NumPartitions)
		}
	}
}

func (c *creation) count(of sizes) []int64 {
	return once(c.names(), func(i int) int64 {
		n, ok := c.valid[c.Topics[i].Topic]
		switch {
		case !ok:
			return unheard
		case c.asked(i) == 0 && n > 0:
			return n
		}
		return c.size(i, of) // the client may not read the configuration, so the answer has no number
	})
}

// asked is how many partitions a client asks for, or 0 if the broker decides.
func (c *creation) asked(i int) int64 {
	t := &c.Topics[i]
	if n := len(t.ReplicaAssignment); n > 0 {
		return int64(n)
	}
	return int64(max(t.NumPartitions, 0))
}

func (c *creation) size(i int, of sizes) int64 {
	if n := c.asked(i); n > 0 {
		return n
	}
	return of.byDefault()
}

func (c *creation) done(i int, n int64, now time.Time, m *made) {
	m.remember(c.Topics[i].Topic, n, now)
}

func (c *creation) without(refused func(int) bool) kmsg.Request {
	rest := *c.CreateTopicsRequest
	rest.Topics = excluding(rest.Topics, refused)
	if len(rest.Topics) == 0 {
		return nil
	}
	return &rest
}

func (c *creation) results(resp kmsg.Response) map[string]int16 {
	codes := map[string]int16{}
	for _, t := range resp.(*kmsg.CreateTopicsResponse).Topics {
		codes[t.Topic] = t.ErrorCode
	}
	return codes
}

func (c *creation) merged(resp kmsg.Response, all []mutated) kmsg.Response {
	to, ok := resp.(*kmsg.CreateTopicsResponse)
	if !ok {
		to = kmsg.NewPtrCreateTopicsResponse()
	}
	to.Topics = merge(c.names(), all, to.Topics, func(t *kmsg.CreateTopicsResponseTopic) string { return t.Topic }, func(i int, t *mutated) kmsg.CreateTopicsResponseTopic {
		r := kmsg.NewCreateTopicsResponseTopic()
		r.Topic, r.ErrorCode, r.ErrorMessage = c.Topics[i].Topic, t.code, &t.why
		r.NumPartitions, r.ReplicationFactor = -1, -1
		return r
	})
	return to
}

// growth is a mutation that adds partitions to topics.
type growth struct {
	*kmsg.CreatePartitionsRequest
	valid map[string]int16 // error codes by topic; 0 is no error
	has   map[string]int64 // partitions now
}

func (g *growth) dry() bool { return g.ValidateOnly }

func (g *growth) names() (all []string) {
	for i := range g.Topics {
		all = append(all, g.Topics[i].Topic)
	}
	return all
}

func (g *growth) questions() []kmsg.Request {
	q := *g.CreatePartitionsRequest
	q.ValidateOnly = true
	m := metadataOf(metadataRights, len(g.Topics))
	for i := range g.Topics {
		m.Topics[i].Topic = &g.Topics[i].Topic
	}
	return []kmsg.Request{&q, m}
}

func (g *growth) hear(answer kmsg.Response) {
	m, ok := answer.(*kmsg.MetadataResponse)
	if !ok {
		g.valid = g.results(answer)
		return
	}
	g.has = map[string]int64{}
	for _, t := range m.Topics {
		if t.ErrorCode == 0 && t.Topic != nil {
			g.has[*t.Topic] = int64(len(t.Partitions))
		}
	}
}

func (g *growth) count(of sizes) []int64 {
	return once(g.names(), func(i int) int64 {
		t := &g.Topics[i]
		if code, answered := g.valid[t.Topic]; !answered || code != 0 {
			return unheard
		}
		if now, ok := g.has[t.Topic]; ok {
			return max(int64(t.Count)-now, 0)
		}
		return g.size(i, of) // the controller has created it, and this broker does not know it yet
	})
}

func (g *growth) size(i int, of sizes) int64 {
	t := &g.Topics[i]
	return max(int64(t.Count)-of.lately(t.Topic), 1)
}

func (g *growth) done(i int, _ int64, _ time.Time, m *made) {
	m.grow(g.Topics[i].Topic, int64(g.Topics[i].Count))
}

func (g *growth) without(refused func(int) bool) kmsg.Request {
	rest := *g.CreatePartitionsRequest
	rest.Topics = excluding(rest.Topics, refused)
	if len(rest.Topics) == 0 {
		return nil
	}
	return &rest
}

func (g *growth) results(resp kmsg.Response) map[string]int16 {
	codes := map[string]int16{}
	for _, t := range resp.(*kmsg.CreatePartitionsResponse).Topics {
		codes[t.Topic] = t.ErrorCode
	}
	return codes
}

func (g *growth) merged(resp kmsg.Response, all []mutated) kmsg.Response {
	to, ok := resp.(*kmsg.CreatePartitionsResponse)
	if !ok {
		to = kmsg.NewPtrCreatePartitionsResponse()
	}
	to.Topics = merge(g.names(), all, to.Topics, func(t *kmsg.CreatePartitionsResponseTopic) string { return t.Topic }, func(i int, t *mutated) kmsg.CreatePartitionsResponseTopic {
		r := kmsg.NewCreatePartitionsResponseTopic()
		r.Topic, r.ErrorCode, r.ErrorMessage = g.Topics[i].Topic, t.code, &t.why
		return r
	})
	return to
}

// deletion is a mutation that deletes topics, by name or, from version 6 on, by id.
type deletion struct {
	*kmsg.DeleteTopicsRequest
	has map[string]int64  // partitions of topics that may be deleted
	one map[string]string // one name for each topic: a request may also name it by its id
}

const (
	// metadataRights is the first version of Metadata with the rights of a client to a topic. Kafka 2.3 has it.
	metadataRights = 8
	// metadataByID is the first version that can be asked by the id of a topic. Kafka 3.1 has it.
	metadataByID = 12
	// byID is the first version of DeleteTopics in which topics may be named by their id.
	byID = 6
	// mayDelete is the bit of the right to delete a topic.
	mayDelete = 1 << kmsg.ACLOperationDelete
)

func (d *deletion) dry() bool { return false }

func (d *deletion) names() (all []string) {
	if d.Version < byID {
		return d.TopicNames
	}
	for i := range d.Topics {
		all = append(all, nameOf(d.Topics[i].Topic, d.Topics[i].TopicID))
	}
	return all
}

// nameOf is a topic's name in a request, or its id if there is no name.
func nameOf(name *string, id [16]byte) string {
	if name != nil {
		return *name
	}
	return "/" + string(id[:]) // no name begins with a slash
}

// questions asks for names and for ids separately, because brokers answer only the ids of a request with both.
func (d *deletion) questions() (all []kmsg.Request) {
	names := d.names()
	byName, byIDs := metadataOf(metadataRights, 0), metadataOf(metadataByID, 0)
	for i := range names {
		t := kmsg.NewMetadataRequestTopic()
		switch {
		case d.Version < byID || d.Topics[i].Topic != nil:
			t.Topic = &names[i]
			byName.Topics = append(byName.Topics, t)
		case d.Topics[i].TopicID != [16]byte{}: // the zero id is no topic
			t.TopicID = d.Topics[i].TopicID
			byIDs.Topics = append(byIDs.Topics, t)
		}
	}
	for _, m := range []*kmsg.MetadataRequest{byName, byIDs} {
		if m.IncludeTopicAuthorizedOperations = true; len(m.Topics) > 0 {
			all = append(all, m)
		}
	}
	return all
}

func (d *deletion) hear(answer kmsg.Response) {
	if d.has == nil {
		d.has = map[string]int64{}
	}
	for _, t := range answer.(*kmsg.MetadataResponse).Topics {
		name := d.learn(t.Topic, t.TopicID)
		if t.ErrorCode == 0 && t.AuthorizedOperations&mayDelete != 0 {
			d.has[name] = int64(len(t.Partitions))
		}
	}
}

// learn keeps the name that a broker gives for a topic, and returns it.
func (d *deletion) learn(as *string, id [16]byte) string {
	if d.one == nil {
		d.one = map[string]string{}
	}
	name := nameOf(as, id)
	if d.one[name] = name; id != [16]byte{} {
		d.one[nameOf(nil, id)] = name
	}
	return name
}

// name is the name of a topic, or its id while no broker has said the name.
func (d *deletion) name(i int) string {
	var n string
	if d.Version < byID {
		n = d.TopicNames[i]
	} else {
		n = nameOf(d.Topics[i].Topic, d.Topics[i].TopicID)
	}
	if as, ok := d.one[n]; ok {
		return as
	}
	return n
}

func (d *deletion) count(sizes) []int64 {
	names := make([]string, len(d.TopicNames)+len(d.Topics)) // a version has one of them
	for i := range names {
		names[i] = d.name(i)
	}
	return once(names, func(i int) int64 {
		if n, ok := d.has[names[i]]; ok {
			return n
		}
		return unheard
	})
}

func (d *deletion) size(i int, of sizes) int64 { return of.lately(d.name(i)) }

func (d *deletion) done(i int, _ int64, _ time.Time, m *made) { m.forget(d.name(i)) }

func (d *deletion) without(refused func(int) bool) kmsg.Request {
	rest := *d.DeleteTopicsRequest
	rest.TopicNames, rest.Topics = nil, nil
	if d.Version < byID {
		rest.TopicNames = excluding(d.TopicNames, refused)
	} else {
		rest.Topics = excluding(d.Topics, refused)
	}
	if len(rest.TopicNames)+len(rest.Topics) == 0 {
		return nil
	}
	return &rest
}

// results also keeps names: the controller may know a topic of which the broker has not heard yet.
func (d *deletion) results(resp kmsg.Response) map[string]int16 {
	codes := map[string]int16{}
	for _, t := range resp.(*kmsg.DeleteTopicsResponse).Topics {
		codes[d.learn(t.Topic, t.TopicID)] = t.ErrorCode
		codes[nameOf(nil, t.TopicID)] = t.ErrorCode
	}
	return codes
}

func (d *deletion) merged(resp kmsg.Response, all []mutated) kmsg.Response {
	to, ok := resp.(*kmsg.DeleteTopicsResponse)
	if !ok {
		to = kmsg.NewPtrDeleteTopicsResponse()
	}
	names := d.names()
	asked := map[string]bool{}
	for _, n := range names {
		asked[n] = true
	}
	name := func(t *kmsg.DeleteTopicsResponseTopic) string { // as in the request: an answer may have name and id
		if n := nameOf(nil, t.TopicID); asked[n] {
			return n
		}
		return nameOf(t.Topic, t.TopicID)
	}
	to.Topics = merge(names, all, to.Topics, name, func(i int, t *mutated) kmsg.DeleteTopicsResponseTopic {
		r := kmsg.NewDeleteTopicsResponseTopic()
		r.ErrorCode, r.ErrorMessage = t.code, &t.why
		if d.Version < byID {
			r.Topic = &names[i]
		} else {
			r.Topic, r.TopicID = d.Topics[i].Topic, d.Topics[i].TopicID
		}
		return r
	})
	return to
}

// metadataOf asks for n topics, and forbids to create any.
func metadataOf(version int16, n int) *kmsg.MetadataRequest {
	m := kmsg.NewPtrMetadataRequest()
	m.Version, m.AllowAutoTopicCreation = version, false
	m.Topics = make([]kmsg.MetadataRequestTopic, n)
	return m
}

// excluding returns the elements that are not refused, in a new slice.
func excluding[T any](all []T, refused func(i int) bool) (kept []T) {
	for i, t := range all {
		if !refused(i) {
			kept = append(kept, t)
		}
	}
	return kept
}
