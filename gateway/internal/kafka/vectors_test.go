package kafka

import (
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// The vectors of KIP-599 as it shipped, and of Kafka's precedence, as clients see them through the gateway. The quotas' clock moves only
// when a vector moves it. Each request has a connection of its own, so nothing waits in real time.

// bench is a gateway before a broker that creates any topic, for clients that log in.
type bench struct {
	*rig
	*cluster
	gate *policy.Gate

	mu       sync.Mutex
	now      time.Duration
	throttle int32 // that the broker demands by itself
}

func newBench(t *testing.T, rules ...policy.QuotaRuleSpec) *bench {
	b := &bench{}
	spec := policy.Spec{Gates: map[string]policy.GateSpec{"g": {Quota: &policy.QuotaSpec{Debt: true, Rules: rules}}}, OtherWork: map[string]string{"g": ""}}
	p, err := policy.Compile(spec, policy.Options{Now: func() time.Duration {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.now
	}})
	if err != nil {
		t.Fatal(err)
	}
	b.gate = p.Gate("g")
	b.rig = newRigOf(t, Quotas{Mutations: b.gate, Produce: b.gate, Longest: time.Hour}, nil)
	b.cluster = &cluster{rig: b.rig, topics: map[string]int{}}
	return b
}

// pass moves the clock of the quotas.
func (b *bench) pass(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now += d
}

// asks logs a client in on a connection of its own, and returns the answer to its request.
func (b *bench) asks(user, client string, req kmsg.Request) kmsg.Response {
	b.rig.Helper()
	c, broker := b.pair()
	served := make(chan struct{})
	go serve(b.rig.T, broker, served, b.answers)
	defer func() { _ = c.Close(); <-served }()
	handshake, auth := kmsg.NewPtrSASLHandshakeRequest(), kmsg.NewPtrSASLAuthenticateRequest()
	handshake.SetVersion(1)
	handshake.Mechanism, auth.SASLAuthBytes = plain, []byte("\x00"+user+"\x00x")
	auth.SetVersion(2)
	for _, q := range []kmsg.Request{handshake, auth} {
		b.exchange(c, client, q)
	}
	return b.exchange(c, client, req)
}

func (b *bench) exchange(c net.Conn, client string, req kmsg.Request) kmsg.Response {
	b.rig.Helper()
	b.write(c, framed(client, req.GetVersion(), req))
	frame := b.frame(c)
	resp := req.ResponseKind()
	in := reader{b: frame, at: 4}
	if resp.IsFlexible() {
		in.tags()
	}
	if err := resp.ReadFrom(frame[in.at:]); err != nil {
		b.rig.Fatal(err)
	}
	return resp
}

func (b *bench) answers(req kmsg.Request) kmsg.Response {
	switch req := req.(type) {
	case *kmsg.SASLHandshakeRequest:
		return kmsg.NewPtrSASLHandshakeResponse()
	case *kmsg.SASLAuthenticateRequest:
		return kmsg.NewPtrSASLAuthenticateResponse()
	case *kmsg.ProduceRequest:
		return kmsg.NewPtrProduceResponse()
	case *kmsg.CreateTopicsRequest:
		resp := b.answer(req).(*kmsg.CreateTopicsResponse)
		if !req.ValidateOnly {
			resp.ThrottleMillis = b.throttle
		}
		return resp
	}
	return b.answer(req)
}

func ruleFor(user, client quota.Match, rate, burst float64) policy.QuotaRuleSpec {
	return policy.QuotaRuleSpec{Rule: quota.Rule{User: user, Client: client}, QuotaLimitSpec: policy.QuotaLimitSpec{Rate: fmt.Sprintf("%v/s", rate), Burst: burst}}
}

// The steps of a vector: requests of one user, each for some topics, with the expected answers.
type vector struct {
	after    time.Duration // since the one before
	version  int16         // of CreateTopics; 7 if it is 0
	topics   []int         // partitions of each
	remove   []string      // topics that are deleted instead
	codes    []int16
	throttle int32 // ms
}

func TestVectorsOfMutations(t *testing.T) {
	const full = int16(89)
	for _, v := range []struct {
		name        string
		rate, burst float64 // burst: rate × samples × window
		steps       []vector
		left        float64
	}{
		{"K1 and K2", 5, 100, []vector{{topics: []int{60}, codes: []int16{0}}}, 40},
		{"K7 and K8", 10, 100, []vector{{topics: []int{90}, codes: []int16{0}}, {topics: []int{90}, codes: []int16{0}}, {topics: []int{90}, codes: []int16{full}, throttle: 8000}}, -80},
		{"K8, and who comes back then", 10, 100, []vector{{topics: []int{90, 90, 90}, codes: []int16{0, 0, full}, throttle: 8000}, {after: 7999 * time.Millisecond, topics: []int{1}, codes: []int16{full}, throttle: 1},
			{after: time.Millisecond, topics: []int{1}, codes: []int16{0}}}, -1},
		{"K10", 10, 100, []vector{{version: 5, topics: []int{90}, codes: []int16{0}}, {version: 5, topics: []int{90}, codes: []int16{0}, throttle: 8000},
			{version: 5, topics: []int{90}, codes: []int16{0}, throttle: 17000}}, -170},
		{"K12", 10, 100, []vector{{version: 4, topics: []int{100}, codes: []int16{0}}, {version: 4, topics: []int{5}, codes: []int16{0}, throttle: 500}, {version: 4, topics: []int{5}, codes: []int16{0}, throttle: 1000}}, -10},
		{"K13", 10, 100, slices.Repeat([]vector{{after: time.Second, topics: []int{10}, codes: []int16{0}}}, 10), 90},
		{"K17", 5, 500, []vector{{topics: []int{560}, codes: []int16{0}}, {topics: []int{1}, codes: []int16{full}, throttle: 12000}}, -60},
		{"K20", 2, 20, []vector{{topics: []int{30, 30}, codes: []int16{0, full}, throttle: 5000}}, -10},
		{"K23", 2, 20, []vector{{remove: []string{"thirty", "more"}, codes: []int16{0, full}, throttle: 5000}}, -10},
		{"K25", 10, 110, []vector{{topics: []int{60, 60, 1}, codes: []int16{0, 0, full}, throttle: 1000}}, -10},
		{"K27", 10, 110, []vector{{topics: []int{111}, codes: []int16{0}}, {after: 99 * time.Millisecond, topics: []int{1}, codes: []int16{full}, throttle: 1},
			{after: time.Millisecond, topics: []int{1}, codes: []int16{0}}}, -1},
		{"K30", 0.015, 30, []vector{{topics: []int{10, 10, 20, 1}, codes: []int16{0, 0, 0, full}, throttle: 666_667}}, -10},
	} {
		t.Run(v.name, func(t *testing.T) {
			b := newBench(t, ruleFor("alice", "", v.rate, v.burst))
			b.topics["thirty"], b.topics["more"] = 30, 30
			for i, s := range v.steps {
				b.pass(s.after)
				begin := time.Now()
				var resp kmsg.Response
				if len(s.remove) > 0 {
					req := kmsg.NewPtrDeleteTopicsRequest()
					req.Version, req.TopicNames = 5, s.remove
					resp = b.asks("alice", "app", req)
				} else {
					var topics []any
					for j, n := range s.topics {
						topics = append(topics, fmt.Sprintf("new-%d-%d", i, j), n)
					}
					version := s.version
					if version == 0 {
						version = 7
					}
					resp = b.asks("alice", "app", create(version, topics...))
				}
				isTold(t, i, resp, s.codes, s.throttle, begin)
			}
			if d, _ := b.gate.Quota().Peek(t.Context(), weir.Work{User: "alice", Client: "app"}); d.Remaining < v.left-1e-6 || d.Remaining > v.left+1e-6 {
				t.Errorf("%v left, want %v", d.Remaining, v.left)
			}
		})
	}
}

// isTold checks the errors and the throttle time of an answer. The throttle time must be at least that of the vector less the time that has
// passed.
func isTold(t *testing.T, step int, resp kmsg.Response, want []int16, throttle int32, begin time.Time) {
	t.Helper()
	got, told := codes(resp)
	passed := int32(time.Since(begin)/time.Millisecond) + 1
	if !slices.Equal(got, want) || told > throttle || told < throttle-passed {
		t.Errorf("step %d: errors %v, %d ms; want %v, %d ms, of which %d have passed", step, got, told, want, throttle, passed)
	}
}

// K5: refunds fill a bucket no further than its burst. K24: a user without a quota. K29: a rate that changes. K32: the longer of two waits,
// the broker's and the quota's.
func TestVectorsOfChange(t *testing.T) {
	b := newBench(t, ruleFor("alice", "", 10, 110))
	left := func() float64 {
		d, _ := b.gate.Quota().Peek(t.Context(), weir.Work{User: "alice", Client: "app"})
		return d.Remaining
	}
	b.failing = []string{"unlucky"}
	begin := time.Now()
	isTold(t, 0, b.asks("alice", "app", create(7, "unlucky", 60)), []int16{kerr.InvalidReplicationFactor.Code}, 0, begin)
	if left() != 110 {
		t.Errorf("K5: %v left", left())
	}
	isTold(t, 1, b.asks("bob", "app", create(7, "a", 30, "b", 30)), []int16{0, 0}, 0, begin)
	if err := b.gate.Quota().SetRules([]quota.Rule{{User: "alice", Windows: []quota.Window{quota.Samples(2, 11, time.Second)}}}); err != nil {
		t.Fatal(err)
	}
	if left() != 22 {
		t.Errorf("K29: %v left", left())
	}
	for i, c := range []struct {
		partitions            int
		broker, ours, longest int32 // ms
	}{{22, 200, 0, 200}, {1, 300, 500, 500}, {1, 1500, 1000, 1500}} {
		b.throttle = c.broker
		begin := time.Now()
		isTold(t, i, b.asks("alice", "app", create(5, fmt.Sprint("c", i), c.partitions)), []int16{0}, c.longest, begin)
	}
	q := Quotas{Samples: 4, Window: time.Second}
	if spec, _, err := q.ruleOf(quota.Rule{User: "alice"}, produceRate, 10); err != nil || spec.Burst != 30 {
		t.Errorf("K36: %+v, %v", spec, err)
	}
}

// K15: a connection is muted for the throttle time of its answer, and connections go on one at a time.
func TestVectorOfMuting(t *testing.T) {
	b, client := newCluster(t, policy.Enforce, 10) // of which 5 come back in a second
	begin := time.Now()
	resp := b.ask(client, create(7, "a", 15, "b", 1))
	isTold(t, 0, resp, []int16{0, 89}, 1000, begin)
	if s := b.server.Snapshot(); s.Muted != 1 {
		t.Errorf("right away %d connections are muted", s.Muted)
	}
	await.That(t, "it is let go", func() bool { return b.server.Snapshot().Muted == 0 })
	if passed := time.Since(begin); passed < time.Second {
		t.Errorf("let go after %v", passed)
	}
}

// The vectors P1 to P10: which rate counts, and which clients share a bucket. The first request uses a bucket up, so the next one shows the
// rate.
func TestVectorsOfPrecedence(t *testing.T) {
	each := quota.Every
	all := []policy.QuotaRuleSpec{
		ruleFor(each, "", 1000, 1), ruleFor("", each, 2000, 1), ruleFor(each, each, 3000, 1), ruleFor("userA", "", 4000, 1), ruleFor("userA", "client1", 5000, 1),
		ruleFor("userB", "", 6000, 1), ruleFor("userB", "client1", 7000, 1), ruleFor("userB", each, 8000, 1), ruleFor("userC", "", 10_000, 1), ruleFor("", "client1", 9000, 1),
	}
	without := func(gone ...quota.Rule) (kept []policy.QuotaRuleSpec) {
		for _, r := range all {
			if !slices.ContainsFunc(gone, func(g quota.Rule) bool { return g.Pattern() == r.Pattern() }) {
				kept = append(kept, r)
			}
		}
		return kept
	}
	both, users := quota.Rule{User: each, Client: each}, quota.Rule{User: each}
	const size = 20_001 // of a request: 20,000 are owed
	for _, c := range []struct {
		name         string
		rules        []policy.QuotaRuleSpec
		user, client string
		rate         int64
		before       []string // users and clients that have used the same bucket
	}{
		{"P1", all, "userA", "client1", 5000, []string{"userA", "client2"}},
		{"P2", all, "userA", "client2", 4000, nil},
		{"P2, shared", all, "userA", "client3", 4000, []string{"userA", "client2"}},
		{"P3", all, "userB", "client1", 7000, nil},
		{"P4", all, "userB", "client3", 8000, []string{"userB", "client2"}},
		{"P5", all, "userC", "client1", 10_000, nil},
		{"each user and client", all, "userD", "client1", 3000, []string{"userD", "client2"}},
		{"a client without an id", all, "userB", "", 6000, nil},
		{"P6", without(both), "userD", "client1", 1000, nil},
		{"P6, shared", without(both), "userD", "client2", 1000, []string{"userD", "client1"}},
		{"P7", without(both, users), "userE", "client1", 9000, nil},
		{"P8", without(both, users), "userF", "client4", 2000, nil},
		{"P8, shared", without(both, users), "userF", "client5", 2000, []string{"userG", "client5"}},
		{"P8, another", without(both, users), "userF", "client5", 2000, []string{"userF", "client4"}},
		{"P10", append(without(), ruleFor("userA", "client6", 11_000, 1)), "userA", "client6", 11_000, []string{"userA", "client2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, c.rules...)
			shared := int64(0)
			if len(c.before) > 0 {
				b.asks(c.before[0], c.before[1], produceOf(c.before[1], size))
				if c.name == "P2, shared" || c.name == "P6, shared" || c.name == "P8, shared" {
					shared = size
				}
			}
			begin := time.Now()
			resp := b.asks(c.user, c.client, produceOf(c.client, size))
			passed := time.Since(begin) + time.Millisecond
			want := time.Duration(size-1+shared) * time.Second / time.Duration(c.rate)
			ms, _ := resp.(kmsg.ThrottleResponse).Throttle()
			if told := time.Duration(ms) * time.Millisecond; told > want+time.Millisecond || told < want-passed {
				t.Errorf("told to wait %v, want %v", told, want)
			}
		})
	}
	b := newBench(t, without(quota.Rule{User: "userB", Client: each}, both, users)...)
	if ms, _ := b.asks("userB", "client2", produceOf("client2", size)).(kmsg.ThrottleResponse).Throttle(); ms == 0 || ms > 20_000/6+1 {
		t.Errorf("P5: without a rule for each client told to wait %d ms", ms)
	}
}

// produceOf is a request of some bytes, with its header.
func produceOf(client string, n int) kmsg.Request {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks = 9, 1
	topic := kmsg.NewProduceRequestTopic()
	topic.Topic = "t"
	topic.Partitions = append(topic.Partitions, kmsg.NewProduceRequestTopicPartition())
	req.Topics = append(req.Topics, topic)
	records := &topic.Partitions[0].Records
	for *records = make([]byte, n); len(sent(client, req.Version, req)) > n; {
		*records = (*records)[:len(*records)-1]
	}
	return req
}
