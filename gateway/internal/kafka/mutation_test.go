package kafka

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// cluster is the broker of a rig that knows topics. It serves one connection.
type cluster struct {
	*rig
	conn    net.Conn
	topics  map[string]int // partitions
	denied  []string       // topics that may not be created, grown or deleted
	failing []string       // topics that are valid, and cannot be made in the end
	slow    []string       // topics that are valid, and whose change takes longer than it may
	unheard []string       // topics that the controller has made, and of which this broker has yet to hear
	leaving []string       // topics that are there while a request is validated, and not any more when it is done
	demands int32          // for how many ms it throttles who has a creation validated
	silent  bool           // it does not say how many partitions a topic would have
	seen    []string       // what it has been asked, in words
	done    chan struct{}
}

// newCluster is a gateway before a broker with some topics. quota is the burst, and half of it comes back in a second.
func newCluster(t *testing.T, mode policy.Mode, quota int) (c *cluster, client net.Conn) {
	q := policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: fmt.Sprintf("%d/s", quota/2), Burst: float64(quota)}, Debt: true}
	return newClusterOf(newRigWith(t, q, mode, time.Hour))
}

func newClusterOf(r *rig) (c *cluster, client net.Conn) {
	r.server.defaults.topicDefaults, r.server.defaults.asked = topicDefaults{3, true}, time.Now().Add(time.Hour)
	c = &cluster{rig: r, topics: map[string]int{"old": 4}, done: make(chan struct{})}
	client, c.conn = r.pair()
	go serve(r.T, c.conn, c.done, c.answer)
	r.Cleanup(func() { _ = client.Close(); <-c.done })
	return c, client
}

// serve answers requests on a connection of a broker until it ends.
func serve(t *testing.T, conn net.Conn, done chan<- struct{}, answers func(kmsg.Request) kmsg.Response) {
	defer close(done)
	for {
		var size [4]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		b := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(conn, b); err != nil {
			return
		}
		req := requestOf(t, b)
		resp := answers(req)
		out := answer(req.GetVersion(), resp)
		copy(out[4:8], b[4:8]) // the correlation id
		if _, err := conn.Write(out); err != nil {
			return
		}
	}
}

// requestOf reads a request with its header.
func requestOf(t *testing.T, b []byte) kmsg.Request {
	req := kmsg.RequestForKey(int16(binary.BigEndian.Uint16(b)))
	req.SetVersion(int16(binary.BigEndian.Uint16(b[2:])))
	if err := readBody(b, req); err != nil {
		t.Errorf("%s: %v", kmsg.NameForKey(req.Key()), err)
	}
	return req
}

func (c *cluster) answer(req kmsg.Request) kmsg.Response {
	said := kmsg.NameForKey(req.Key())
	defer func() { c.seen = append(c.seen, said) }()
	code := func(name string, there, dry bool) int16 {
		switch _, ok := c.topics[name]; {
		case slices.Contains(c.denied, name):
			return kerr.TopicAuthorizationFailed.Code
		case there && !ok:
			return kerr.UnknownTopicOrPartition.Code
		case !there && ok && (dry || !slices.Contains(c.leaving, name)):
			return kerr.TopicAlreadyExists.Code
		case !dry && slices.Contains(c.failing, name):
			return kerr.InvalidReplicationFactor.Code
		case !dry && slices.Contains(c.slow, name):
			return kerr.RequestTimedOut.Code
		}
		return 0
	}
	switch req := req.(type) {
	case *kmsg.CreateTopicsRequest:
		resp := kmsg.NewPtrCreateTopicsResponse()
		for _, t := range req.Topics {
			r := kmsg.NewCreateTopicsResponseTopic()
			r.Topic, r.ErrorCode, r.NumPartitions = t.Topic, code(t.Topic, false, req.ValidateOnly), t.NumPartitions
			if t.NumPartitions < 0 && !c.silent {
				r.NumPartitions = 2
			}
			said += " " + t.Topic
			resp.Topics = append(resp.Topics, r)
		}
		if req.ValidateOnly {
			said += " only validated"
		}
		if req.ValidateOnly {
			resp.ThrottleMillis = c.demands
		}
		slices.Reverse(resp.Topics) // no order is promised
		return resp
	case *kmsg.CreatePartitionsRequest:
		resp := kmsg.NewPtrCreatePartitionsResponse()
		for _, t := range req.Topics {
			r := kmsg.NewCreatePartitionsResponseTopic()
			r.Topic, r.ErrorCode = t.Topic, code(t.Topic, true, req.ValidateOnly)
			said += " " + t.Topic
			resp.Topics = append(resp.Topics, r)
		}
		if req.ValidateOnly {
			said += " only validated"
		}
		return resp
	case *kmsg.DeleteTopicsRequest:
		resp := kmsg.NewPtrDeleteTopicsResponse()
		names := req.TopicNames
		for i := range req.Topics {
			names = append(names, c.nameOf(req.Topics[i].Topic, req.Topics[i].TopicID))
		}
		for _, n := range names {
			r := kmsg.NewDeleteTopicsResponseTopic()
			r.Topic, r.TopicID, r.ErrorCode = &n, idOf(n), code(n, true, false)
			said += " " + n
			resp.Topics = append(resp.Topics, r)
		}
		return resp
	case *kmsg.MetadataRequest:
		resp := kmsg.NewPtrMetadataResponse()
		byID := slices.ContainsFunc(req.Topics, func(t kmsg.MetadataRequestTopic) bool { return t.TopicID != [16]byte{} })
		for _, t := range req.Topics {
			if byID && t.TopicID == [16]byte{} {
				continue // brokers answer either ids or names
			}
			n := c.nameOf(t.Topic, t.TopicID)
			r := kmsg.NewMetadataResponseTopic()
			r.Topic, r.TopicID = &n, idOf(n)
			heard := c.topics[n]
			if slices.Contains(c.unheard, n) {
				heard = 0
			}
			if heard == 0 {
				r.ErrorCode = kerr.UnknownTopicOrPartition.Code
				if byID {
					r.Topic, r.ErrorCode = nil, kerr.UnknownTopicID.Code
				}
				if slices.Contains(c.denied, n) {
					r.ErrorCode = kerr.TopicAuthorizationFailed.Code
				}
			}
			if !slices.Contains(c.denied, n) {
				r.AuthorizedOperations = mayDelete
			}
			r.Partitions = make([]kmsg.MetadataResponseTopicPartition, heard)
			resp.Topics = append(resp.Topics, r)
		}
		if req.AllowAutoTopicCreation {
			said += ", which makes topics"
		}
		return resp
	}
	return kmsg.NewPtrListGroupsResponse()
}

// idOf is the id of a topic, nameOf its name in a request.
func idOf(name string) (id [16]byte) {
	copy(id[:], name)
	return id
}

func (c *cluster) nameOf(name *string, id [16]byte) string {
	if name != nil {
		return *name
	}
	return strings.TrimRight(string(id[:]), "\x00")
}

// ask sends a request and returns its answer.
func (r *rig) ask(client net.Conn, req kmsg.Request) kmsg.Response {
	r.Helper()
	r.write(client, framed("app", req.GetVersion(), req))
	b := r.frame(client)
	resp := req.ResponseKind()
	in := reader{b: b, at: 4}
	if resp.IsFlexible() {
		in.tags()
	}
	if err := resp.ReadFrom(b[in.at:]); err != nil {
		r.Fatal(err)
	}
	return resp
}

// create asks for topics, each by its name and its number of partitions.
func create(version int16, topics ...any) *kmsg.CreateTopicsRequest {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version = version
	for i := 0; i < len(topics); i += 2 {
		t := kmsg.NewCreateTopicsRequestTopic()
		t.Topic, t.NumPartitions, t.ReplicationFactor = topics[i].(string), int32(topics[i+1].(int)), 1
		req.Topics = append(req.Topics, t)
	}
	return req
}

// codes are the errors of an answer, in its order, and its throttle time, in ms.
func codes(resp kmsg.Response) (all []int16, throttle int32) {
	switch resp := resp.(type) {
	case *kmsg.CreateTopicsResponse:
		for _, t := range resp.Topics {
			all = append(all, t.ErrorCode)
		}
	case *kmsg.CreatePartitionsResponse:
		for _, t := range resp.Topics {
			all = append(all, t.ErrorCode)
		}
	case *kmsg.DeleteTopicsResponse:
		for _, t := range resp.Topics {
			all = append(all, t.ErrorCode)
		}
	}
	throttle, _ = resp.(kmsg.ThrottleResponse).Throttle()
	return all, throttle
}

// A refused client is told its debt, waits, and is served then. Meanwhile its connection is not read. Requests that it has sent before are
// answered in their order.
func TestRefusedMutationIsTold(t *testing.T) {
	b, client := newCluster(t, policy.Enforce, 10)
	b.write(client, framed("app", 0, kmsg.NewPtrListGroupsRequest()))
	b.write(client, framed("app", 7, create(7, "a", 12)))
	begin := time.Now()
	b.write(client, framed("app", 7, create(7, "b", 1)))
	b.write(client, framed("app", 0, kmsg.NewPtrListGroupsRequest()))
	b.frame(client)
	for _, want := range []int16{0, kerr.ThrottlingQuotaExceeded.Code} {
		resp := kmsg.NewPtrCreateTopicsResponse()
		resp.Version = 7
		if err := resp.ReadFrom(b.frame(client)[5:]); err != nil {
			t.Fatal(err)
		}
		if got := resp.Topics[0].ErrorCode; got != want {
			t.Errorf("error %d, want %d", got, want)
		}
		if want == 0 {
			continue
		}
		text, begin, end := *resp.Topics[0].ErrorMessage, "the quota of 5/s, burst 10 is used up (gate bytes, rule ", "): 2 partitions are owed; come back in 400ms"
		if resp.ThrottleMillis == 0 || !strings.HasPrefix(text, begin) || !strings.HasSuffix(text, end) {
			t.Errorf("%d ms: %s", resp.ThrottleMillis, text)
		}
	}
	b.frame(client)
	if passed := time.Since(begin); passed < 400*time.Millisecond {
		t.Errorf("it is read again after %v, and was to wait 400 ms", passed)
	}
}

// A quota in observe mode is charged, and refuses and delays nobody. If the quota is off, or does not match, the broker is asked nothing.
func TestMutationsUnderModes(t *testing.T) {
	for mode, want := range map[policy.Mode]struct {
		left     float64
		observed uint64
		seen     string
	}{
		policy.Observe: {-2, 1, "CreateTopics a b only validated; CreateTopics a b"},
		policy.Off:     {10, 0, "CreateTopics a b"},
	} {
		b, client := newCluster(t, mode, 10)
		if got, throttle := codes(b.ask(client, create(7, "a", 12, "b", 1))); !slices.Equal(got, []int16{0, 0}) || throttle != 0 {
			t.Errorf("%v: errors %v, %d ms", mode, got, throttle)
		}
		if s := b.server.Snapshot(); s.Muted != 0 || s.ThrottledMutations.Times != 0 || b.gate.Observed()[weir.ReasonQuota] != want.observed {
			t.Errorf("%v: %+v, %v observed", mode, s, b.gate.Observed())
		}
		if left, seen := b.left(), strings.Join(b.seen, "; "); left != want.left || seen != want.seen {
			t.Errorf("%v: %v left, the broker sees %s; want %+v", mode, left, seen, want)
		}
	}
}

// A change by the controller is charged even if the asked broker does not know the topic yet. The charge is the number of partitions at
// creation, or the default. A topic that is created elsewhere meanwhile is charged at its creation.
func TestBrokerHasNotHeardOfATopic(t *testing.T) {
	grow := func(name string, count int32) kmsg.Request {
		req, topic := kmsg.NewPtrCreatePartitionsRequest(), kmsg.NewCreatePartitionsRequestTopic()
		req.Version, topic.Topic, topic.Count = 3, name, count
		req.Topics = append(req.Topics, topic)
		return req
	}
	remove := func(version int16, name string) kmsg.Request {
		req := kmsg.NewPtrDeleteTopicsRequest()
		req.Version, req.TopicNames, req.Topics = version, []string{name}, []kmsg.DeleteTopicsRequestTopic{{Topic: &name}}
		return req
	}
	const ok, refused = int16(0), int16(89)
	b, client := newCluster(t, policy.Enforce, 100)
	b.topics = map[string]int{"here": 10, "elsewhere": 50, "leaving": 10}
	b.unheard, b.leaving, b.denied = []string{"new", "elsewhere", "denied"}, []string{"leaving"}, []string{"denied"}
	for i, c := range []struct {
		req  kmsg.Request
		code int16
		left float64
	}{
		{create(7, "new", 7), ok, 93},
		{metadata(12, true, "new"), 3, 93}, // it is not made again
		{remove(5, "denied"), 29, 93},
		{remove(5, "nowhere"), 3, 93},
		{grow("new", 12), ok, 88},
		{remove(6, "new"), ok, 76},
		{metadata(12, true, "new"), 3, 73}, // now it is
		{remove(1, "elsewhere"), ok, 70},
		{create(7, "leaving", 60), ok, 10},
		{grow("elsewhere", 23), ok, -10},
		{remove(5, "here"), refused, -10},
	} {
		if i > 0 {
			b.topics["new"] = 7
		}
		resp := b.ask(client, c.req)
		got, throttle := codes(resp)
		if m, ok := resp.(*kmsg.MetadataResponse); ok {
			got = []int16{m.Topics[0].ErrorCode}
		}
		if !slices.Equal(got, []int16{c.code}) || b.left() != c.left || (throttle > 0) != (c.code == refused) {
			t.Errorf("%d: errors %v, %v left, %d ms; want %+v", i, got, b.left(), throttle, c)
		}
	}
	// What is charged late delays, if it leaves a debt.
	b, client = newCluster(t, policy.Enforce, 4)
	b.topics, b.unheard = map[string]int{"a": 1, "b": 1}, []string{"a", "b"}
	for i, name := range []string{"a", "b"} {
		if got, throttle := codes(b.ask(client, remove(5, name))); !slices.Equal(got, []int16{ok}) || (throttle > 0) != (i == 1) || b.left() != float64(1-3*i) {
			t.Errorf("%s: errors %v, %v left, %d ms", name, got, b.left(), throttle)
		}
	}
}

// A topic that is deleted by its id counts as one that is deleted by its name. Its partitions count, and once more when it is made anew.
func TestDeletedByID(t *testing.T) {
	for _, byID := range []bool{false, true} {
		for _, heard := range []bool{false, true} {
			b, client := newCluster(t, policy.Enforce, 200) // 3 partitions by default
			b.ask(client, create(7, "a", 50))
			b.topics["a"] = 50
			if !heard {
				b.unheard = []string{"a"}
			}
			name := "a"
			req, topic := kmsg.NewPtrDeleteTopicsRequest(), kmsg.DeleteTopicsRequestTopic{Topic: &name}
			if byID {
				topic = kmsg.DeleteTopicsRequestTopic{TopicID: idOf(name)}
			}
			req.Version, req.Topics = 6, append(req.Topics, topic)
			if got, _ := codes(b.ask(client, req)); !slices.Equal(got, []int16{0}) || b.left() != 100 {
				t.Errorf("deleted by id %v, heard %v: errors %v, %v left, not 100", byID, heard, got, b.left())
			}
			delete(b.topics, name)
			if b.ask(client, metadata(12, true, name)); b.left() != 97 {
				t.Errorf("deleted by id %v, heard %v, and made anew: %v left, not 97", byID, heard, b.left())
			}
		}
	}
}

// If the broker's answer has no number of partitions for a topic, the number in the cluster's configuration counts.
func TestPartitionsByDefault(t *testing.T) {
	b, client := newCluster(t, policy.Enforce, 10)
	b.silent = true
	if got, _ := codes(b.ask(client, create(7, "a", -1))); got[0] != 0 || b.left() != 7 {
		t.Errorf("errors %v, %v left", got, b.left())
	}
}

// However long a debt takes to be paid back, later requests are refused, with the longest wait that an answer can express.
func TestDebtThatLastsForEver(t *testing.T) {
	for burst, want := range map[float64]string{
		1.1e-8: "5 partitions are owed, and that takes more than 146 years to pay back",
		3:      "2 partitions are owed; come back in 555555h33m",
	} {
		q := policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "0.000000001/s", Burst: burst}, Debt: true}
		b, client := newClusterOf(newRigWith(t, q, policy.Enforce, time.Second))
		resp := b.ask(client, create(7, "a", 5, "b", 1)).(*kmsg.CreateTopicsResponse)
		if got, throttle := codes(resp); !slices.Equal(got, []int16{0, kerr.ThrottlingQuotaExceeded.Code}) || throttle < math.MaxInt32-60_000 {
			t.Errorf("burst %v: errors %v, %d ms", burst, got, throttle)
		} else if text := *resp.Topics[1].ErrorMessage; !strings.Contains(text, want) {
			t.Errorf("burst %v: %s", burst, text)
		}
		if left := b.left(); math.Abs(burst-5-left) > 1e-6 {
			t.Errorf("burst %v: %v left", burst, left)
		}
		if s := b.server.Snapshot(); s.ThrottledMutations.Times != 1 || s.ThrottledMutations.Seconds < math.MaxInt32/1000-60 || s.ThrottledMutations.Seconds > math.MaxInt32/1000+1 {
			t.Errorf("burst %v: %+v", burst, s.ThrottledMutations)
		}
	}
}

// A client that does not know error 89 is told no more than the longest delay, however much it owes. The rest stays a debt.
func TestOlderClientsAreDelayedForTheLongest(t *testing.T) {
	q := policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "5/s", Burst: 10}, Debt: true}
	b, client := newClusterOf(newRigWith(t, q, policy.Enforce, time.Second))
	if got, throttle := codes(b.ask(client, create(5, "a", 100))); !slices.Equal(got, []int16{0}) || throttle <= 0 || throttle > 1000 {
		t.Errorf("errors %v, %d ms", got, throttle)
	}
	if left := b.left(); left != -90 {
		t.Errorf("%v left", left)
	}
}

// A client that knows error 89 is told the whole wait, but its connection is read again after the longest delay.
func TestRefusedClientIsReadAfterTheLongest(t *testing.T) {
	const longest = 50 * time.Millisecond
	q := policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "1/h", Burst: 10}, Debt: true}
	b, client := newClusterOf(newRigWith(t, q, policy.Enforce, longest))
	if got, _ := codes(b.ask(client, create(7, "a", 12))); !slices.Equal(got, []int16{0}) {
		t.Fatalf("errors %v", got)
	}
	if got, throttle := codes(b.ask(client, create(7, "b", 1))); !slices.Equal(got, []int16{kerr.ThrottlingQuotaExceeded.Code}) || throttle < 3_600_000 {
		t.Errorf("errors %v, %d ms", got, throttle)
	}
	if err := client.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	b.ask(client, kmsg.NewPtrListGroupsRequest())
}

// If the broker throttles the copy that only validates, its client is told of that wait: whether the request is sent on or refused here.
func TestBrokerThrottlesTheCopy(t *testing.T) {
	for name, c := range map[string]struct {
		owed int64
		code int16
	}{"sent on": {1, 0}, "refused": {20, kerr.ThrottlingQuotaExceeded.Code}} {
		b, client := newCluster(t, policy.Enforce, 10)
		b.demands = 600_000
		b.owe(c.owed)
		if got, throttle := codes(b.ask(client, create(7, "a", 1))); !slices.Equal(got, []int16{c.code}) || throttle < 500_000 || throttle > 600_000 {
			t.Errorf("%s: errors %v, %d ms", name, got, throttle)
		}
	}
}

// brokenStore is a remote store that does not answer.
type brokenStore struct {
	quota.Store
	asked atomic.Int64
}

func (s *brokenStore) Decide(context.Context, *quota.Request) (quota.Decision, error) {
	s.asked.Add(1)
	return quota.Decision{}, io.ErrUnexpectedEOF
}

// A store that does not answer does not mean that a quota is used up. It is asked once for a request, however many topics the request has.
func TestStoreOfMutationsIsDown(t *testing.T) {
	for version, want := range map[int16]int16{7: kerr.ThrottlingQuotaExceeded.Code, 5: 0} {
		s := new(brokenStore)
		q := policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "10/s"}, Debt: true, Store: "shared", OnStoreError: "closed"}
		b, client := newClusterOf(newRigOn(t, q, policy.Enforce, time.Hour, policy.Options{Stores: map[string]quota.Store{"shared": s}}))
		resp := b.ask(client, create(version, "a", 5, "b", 1, "c", 1)).(*kmsg.CreateTopicsResponse)
		got, throttle := codes(resp)
		if !slices.Equal(got, []int16{want, want, want}) || throttle == 0 || throttle > 1000 {
			t.Errorf("version %d: errors %v, %d ms", version, got, throttle)
		}
		if n := s.asked.Load(); n != 1 {
			t.Errorf("version %d: the store is asked %d times", version, n)
		}
		const told = "gate bytes cannot decide, because its store does not answer; come back in 1s"
		if want == 0 {
			continue
		}
		for _, topic := range resp.Topics {
			if *topic.ErrorMessage != told {
				t.Errorf("version %d: %s", version, *topic.ErrorMessage)
			}
		}
	}
}

// A gateway that stops completes a request that it has begun, with all questions about it, and reads no further one. Its quotas were closed
// before, and refuse nothing.
func TestShutdownServesWhatHasBegun(t *testing.T) {
	for _, closed := range []bool{false, true} {
		t.Run(fmt.Sprintf("quotas closed %v", closed), func(t *testing.T) { shutdownServes(t, closed) })
	}
}

func shutdownServes(t *testing.T, closed bool) {
	r := newRigWith(t, policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "10/s"}, Debt: true}, policy.Enforce, time.Hour)
	client, broker := r.pair()
	r.write(client, framed("app", 7, create(7, "a", 1)))
	asked := r.frame(broker)
	ended := make(chan error)
	go func() { ended <- r.server.Shutdown(t.Context()) }()
	for !r.server.draining.Load() {
		runtime.Gosched()
	}
	if closed {
		r.gate.Quota().Close()
	}
	for _, want := range []bool{true, false} { // validated, then made
		req := requestOf(t, asked).(*kmsg.CreateTopicsRequest)
		if req.ValidateOnly != want {
			t.Fatalf("%+v", req)
		}
		resp, topic := kmsg.NewPtrCreateTopicsResponse(), kmsg.NewCreateTopicsResponseTopic()
		topic.Topic, topic.NumPartitions = "a", 1
		resp.Topics = append(resp.Topics, topic)
		out := answer(7, resp)
		copy(out[4:8], asked[4:8]) // the correlation id
		select {
		case err := <-ended:
			t.Fatalf("ended before the answer: %v", err)
		default:
		}
		r.write(broker, out)
		if want {
			asked = r.frame(broker)
		}
	}
	r.frame(client)
	if n, err := client.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("%d bytes behind the answer, %v", n, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if !closed && r.left() != 9 {
		t.Errorf("%v left", r.left())
	}
}

// A mutation that is too large, or that cannot be decoded, ends the connection. So does a broker that leaves during a question.
func TestBadMutations(t *testing.T) {
	large := create(7)
	for i := range 80_000 {
		t := kmsg.NewCreateTopicsRequestTopic()
		t.Topic = fmt.Sprintf("topic-%08d", i)
		large.Topics = append(large.Topics, t)
	}
	cut := framed("app", 7, create(7, "a", 1))
	cut = cut[:len(cut)-7]
	binary.BigEndian.PutUint32(cut, uint32(len(cut)-4))
	many := append([]byte(nil), framed("app", 7, create(7))...)
	binary.BigEndian.PutUint32(many[len(many)-9:], 1<<31-1)
	for name, bytes := range map[string][]byte{"large": framed("app", 7, large), "cut": cut, "many": many} {
		b, client := newCluster(t, policy.Enforce, 10)
		go func() { _, _ = client.Write(bytes) }() // which may end in the middle
		if n, err := client.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: answered with %d bytes", name, n)
		}
		if b.left() != 10 || len(b.seen) != 0 {
			t.Errorf("%s: %v left, the broker sees %v", name, b.left(), b.seen)
		}
	}
	r := newRigWith(t, policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "10/s"}, Debt: true}, policy.Enforce, time.Hour)
	client, broker := r.pair()
	r.write(client, framed("app", 7, create(7, "a", 1)))
	r.frame(broker)
	_ = broker.Close()
	if _, err := client.Read(make([]byte, 1)); err == nil {
		t.Error("answered without a broker")
	}
}

// Topics are charged one after another, in the order of the request, while there is no debt (K25, K10, K23 of KIP-599). A topic that the
// broker refuses costs nothing, and has the broker's error.
func TestMutationsAreCharged(t *testing.T) {
	const quota = int16(89)
	denied, exists, unknown, factor := kerr.TopicAuthorizationFailed.Code, kerr.TopicAlreadyExists.Code, kerr.UnknownTopicOrPartition.Code, kerr.InvalidReplicationFactor.Code
	grow := func(version int16, to int32, names ...string) kmsg.Request {
		req := kmsg.NewPtrCreatePartitionsRequest()
		req.Version = version
		for _, n := range names {
			topic := kmsg.NewCreatePartitionsRequestTopic()
			topic.Topic, topic.Count = n, to
			req.Topics = append(req.Topics, topic)
		}
		return req
	}
	remove := func(version int16, names ...string) kmsg.Request {
		req := kmsg.NewPtrDeleteTopicsRequest()
		req.Version = version
		for i, n := range names {
			topic := kmsg.NewDeleteTopicsRequestTopic()
			if topic.Topic = &n; i%2 == 1 {
				topic.Topic, topic.TopicID = nil, idOf(n)
			}
			req.TopicNames, req.Topics = append(req.TopicNames, n), append(req.Topics, topic)
		}
		return req
	}
	dry := create(7, "a", 50)
	dry.ValidateOnly = true
	assigned := create(7, "a", -1)
	assigned.Topics[0].ReplicaAssignment = make([]kmsg.CreateTopicsRequestTopicReplicaAssignment, 12)
	for _, c := range []struct {
		name     string
		req      kmsg.Request
		left     float64 // of 10 tokens, of which 5 come back in a second
		codes    []int16
		throttle int32 // ms
		seen     string
	}{
		{"one", create(7, "a", 6), 4, []int16{0}, 0, "CreateTopics a only validated; CreateTopics a"},
		{"into debt", create(6, "a", 6, "b", 6, "c", 1), -2, []int16{0, 0, quota}, 400, "CreateTopics a b c only validated; CreateTopics a b"},
		{"all refused", create(7, "a", 20, "b", 1, "c", 1), -10, []int16{0, quota, quota}, 2000, "CreateTopics a b c only validated; CreateTopics a"},
		{"older clients are delayed", create(5, "a", 20, "b", 5), -15, []int16{0, 0}, 3000, "CreateTopics a b only validated; CreateTopics a b"},
		{"and much older", create(2, "a", 20, "b", 5), -15, []int16{0, 0}, 3000, "CreateTopics a b only validated; CreateTopics a b"},
		{"the broker's number", create(7, "a", -1), 8, []int16{0}, 0, "CreateTopics a only validated; CreateTopics a"},
		{"assignments", assigned, -2, []int16{0}, 0, "CreateTopics a only validated; CreateTopics a"},
		{"what the broker refuses is free", create(7, "old", 50, "secret", 50, "a", 1), 9, []int16{0, denied, exists}, 0,
			"CreateTopics old secret a only validated; CreateTopics old secret a"},
		{"and keeps its error beside a refusal", create(7, "a", 20, "old", 50, "b", 1, "secret", 1), -10, []int16{0, exists, quota, denied}, 2000,
			"CreateTopics a old b secret only validated; CreateTopics a old secret"},
		{"what fails in the end is given back", create(7, "unlucky", 8, "a", 1), 9, []int16{0, factor}, 0,
			"CreateTopics unlucky a only validated; CreateTopics unlucky a"},
		{"what may be done after its time-out is not", create(7, "slow", 8, "a", 1), 1, []int16{0, kerr.RequestTimedOut.Code}, 0,
			"CreateTopics slow a only validated; CreateTopics slow a"},
		{"a client that only asks", dry, 10, []int16{0}, 0, "CreateTopics a only validated"},
		{"no topics", create(7), 10, nil, 0, "CreateTopics"},
		{"more partitions", grow(3, 9, "old", "none"), 5, []int16{0, unknown}, 0, "CreatePartitions old none only validated; Metadata; CreatePartitions old none"},
		{"fewer partitions", grow(3, 2, "old"), 10, []int16{0}, 0, "CreatePartitions old only validated; Metadata; CreatePartitions old"},
		{"many more", grow(3, 100, "old", "large"), -86, []int16{0, quota}, 17200, "CreatePartitions old large only validated; Metadata; CreatePartitions old"},
		{"many more, as an older client", grow(1, 100, "old", "large"), -177, []int16{0, 0}, 35400, "CreatePartitions old large only validated; Metadata; CreatePartitions old large"},
		{"deletion by name and by id", remove(6, "old", "large", "none", "secret"), -3, []int16{0, 0, unknown, denied}, 0, "Metadata; Metadata; DeleteTopics old large none secret"},
		{"a deletion by name beside an id that is none", remove(6, "huge", "none"), -40, []int16{0, unknown}, 0, "Metadata; Metadata; DeleteTopics huge none"},
		{"a deletion by name beside the id of nothing", remove(6, "huge", ""), -40, []int16{0, unknown}, 0, "Metadata; DeleteTopics huge "},
		{"a deletion named twice", remove(6, "large", "old", "old"), -3, []int16{0, 0, 0}, 0, "Metadata; Metadata; DeleteTopics large old old"},
		{"two deletions refused", remove(5, "huge", "large", "old"), -40, []int16{0, quota, quota}, 8000, "Metadata; DeleteTopics huge"},
		{"a deletion by an older client", remove(1, "huge", "old"), -44, []int16{0, 0}, 8800, "Metadata; DeleteTopics huge old"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, client := newCluster(t, policy.Enforce, 10)
			b.topics["large"], b.topics["huge"], b.topics["secret"] = 9, 50, 3
			b.denied, b.failing, b.slow = []string{"secret"}, []string{"unlucky"}, []string{"slow"}
			begin := time.Now()
			got, throttle := codes(b.ask(client, c.req))
			passed := int32(time.Since(begin)/time.Millisecond) + 1
			if !slices.Equal(got, c.codes) || throttle > c.throttle || throttle < c.throttle-passed {
				t.Errorf("errors %v, %d ms after %d; want %v, %d ms", got, throttle, passed, c.codes, c.throttle)
			}
			if left := b.left(); left != c.left {
				t.Errorf("%v tokens left, want %v", left, c.left)
			}
			if seen := strings.Join(b.seen, "; "); seen != c.seen {
				t.Errorf("the broker sees %s\nwant %s", seen, c.seen)
			}
			if s := b.server.Snapshot(); (s.ThrottledMutations.Times > 0) != (c.throttle > 0) {
				t.Errorf("%+v", s)
			}
		})
	}
}
