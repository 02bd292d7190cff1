package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// The first to ask gets memory first, even if a later one needs less. A demand above the whole budget gets the whole budget.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, crowds, in := newBudget(10), 0, make(chan string, 3)
		take := func(n int) *share {
			s, err := r.acquire(t.Context(), n, func() { crowds++ })
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		first := take(4)
		whole := make(chan *share, 1)
		go func() { whole <- take(100); in <- "all" }()
		synctest.Wait()
		go func() { take(1).free(); in <- "one" }()
		synctest.Wait()
		if r.held.Load() != 4 || r.waiting.Load() != 2 || len(in) != 0 {
			t.Fatalf("%d held, %d wait, %d are in", r.held.Load(), r.waiting.Load(), len(in))
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if s, err := r.acquire(ended, 1, func() {}); err == nil || s != nil {
			t.Errorf("%v for somebody who has gone", s)
		}
		first.free()
		first.free() // twice is once
		if who := <-in; who != "all" || r.held.Load() != 10 {
			t.Fatalf("%s is in, %d held", who, r.held.Load())
		}
		all := <-whole
		all.shrink(9)
		all.shrink(50)
		if who := <-in; who != "one" {
			t.Fatalf("%s is in", who)
		}
		synctest.Wait()
		if r.held.Load() != 9 || r.waiting.Load() != 0 || crowds != 2 {
			t.Errorf("%d held, %d wait, %d times crowded", r.held.Load(), r.waiting.Load(), crowds)
		}
		(*share)(nil).free()
	})
}

// ample is a quota of mutations that never refuses, so that they are decoded.
var ample = policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "1000000/s"}, Debt: true}

// bulky asks for a topic, in about n bytes.
func bulky(n int) []byte {
	req, value := create(7, "t", 1), strings.Repeat("v", n)
	req.Topics[0].Configs = []kmsg.CreateTopicsRequestTopicConfig{{Name: "c", Value: &value}}
	return framed("app", 7, req)
}

// heap is the memory in use, in bytes.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// answered serves the broker's side of a connection.
func (r *rig) answered(broker net.Conn) {
	c, done := &cluster{rig: r, topics: map[string]int{}}, make(chan struct{})
	go serve(r.T, broker, done, c.answer)
	r.Cleanup(func() { _ = broker.Close(); <-done })
}

// Many connections with large requests have memory for a few; the others wait for their turn. All are served in the end. Connections with
// small or copied requests are not delayed.
func TestManyLargeRequests(t *testing.T) {
	r := newRigWith(t, ample, policy.Enforce, time.Minute)
	const clients, within = 100, 5
	sent := bulky(mostRequest - 1000)
	n := len(sent) - 4
	raw := &r.server.memory.raw
	*raw = newBudget(int64(within * n))
	before := heap()
	rest := make(chan struct{})
	var served sync.WaitGroup
	for range clients {
		client, broker := r.pair()
		r.answered(broker)
		served.Go(func() {
			most := len(sent) - 100
			if _, err := client.Write(sent[:most]); err != nil {
				t.Error(err)
				return
			}
			<-rest
			if _, err := client.Write(sent[most:]); err != nil {
				t.Error(err)
				return
			}
			if resp, err := io.ReadAll(io.LimitReader(client, 30)); err != nil || len(resp) != 30 {
				t.Errorf("answered with %d bytes, %v", len(resp), err)
			}
		})
	}
	await.That(t, "as many as there is room for are read", func() bool { return raw.held.Load() == int64(within*n) && raw.waiting.Load() == clients-within })
	if more, most := int64(heap()-before), int64(3*within*n+2*clients*buffer); more > most {
		t.Errorf("%d bytes more are in use, at most %d are meant to be", more, most)
	}
	other, broker := r.pair()
	r.answered(broker)
	if resp := r.ask(other, create(7, "small", 1)).(*kmsg.CreateTopicsResponse); resp.Topics[0].ErrorCode != 0 {
		t.Errorf("%+v", resp)
	}
	r.ask(other, kmsg.NewPtrListGroupsRequest())
	r.write(other, framed("app", 9, produceOf("app", 1<<20)))
	r.frame(other)
	r.ask(other, kmsg.NewPtrMetadataRequest())
	if s := r.server.Snapshot(); s.HeldBytes < int64(within*n) || s.HeldWaiting != clients-within {
		t.Errorf("%d bytes held, %d connections wait", s.HeldBytes, s.HeldWaiting)
	}
	close(rest)
	served.Wait()
	await.That(t, "nothing is held", func() bool { bytes, waiting := r.server.memory.held(); return bytes == 0 && waiting == 0 })
	said := strings.Count(r.logs.String(), "large requests or answers fill the memory that is there for them; connections of Kafka wait")
	if bound := fmt.Sprintf("of_bytes=%d waiting=", within*n); said != 1 || !strings.Contains(r.logs.String(), bound) {
		t.Errorf("%d lines of the log say that connections wait:\n%s", said, r.logs)
	}
}

// A client that leaves while it waits, or in the middle of a held request, leaves nothing behind. Neither does a broker that leaves during
// a question.
func TestGoneWhileHeld(t *testing.T) {
	r := newRigWith(t, ample, policy.Enforce, time.Minute)
	sent := bulky(100_000)
	r.server.memory.raw = newBudget(int64(len(sent) - 4))
	raw := &r.server.memory.raw
	first, _ := r.pair()
	r.write(first, sent[:len(sent)-1])
	await.That(t, "the first is read", func() bool { return raw.held.Load() > 0 })
	second, unasked := r.pair()
	r.write(second, sent)
	third, broker := r.pair()
	await.That(t, "the second waits", func() bool { return raw.waiting.Load() == 1 })
	r.write(third, sent)
	await.That(t, "the third waits", func() bool { return raw.waiting.Load() == 2 })
	_, _ = second.Close(), unasked.Close()
	_ = first.Close()
	r.frame(broker) // asks whether it is valid
	if large := &r.server.memory.large; large.held.Load() != int64(heldRequest*(len(sent)-4)) {
		t.Errorf("%d bytes are held of what is decoded", large.held.Load())
	}
	_ = broker.Close()
	await.That(t, "nothing is held", func() bool { bytes, waiting := r.server.memory.held(); return bytes == 0 && waiting == 0 })
	await.That(t, "the third is gone", func() bool { _, err := third.Read(make([]byte, 1)); return err != nil })
}

// largeMetadata is an answer to Metadata of more than a buffer.
func largeMetadata() *kmsg.MetadataResponse {
	resp := kmsg.NewPtrMetadataResponse()
	for range 1000 {
		t, name := kmsg.NewMetadataResponseTopic(), strings.Repeat("t", 100)
		t.Topic = &name
		resp.Topics = append(resp.Topics, t)
	}
	return resp
}

// Decoded answers are bounded, too. Clients that read nothing block the budget, and as soon as they read, all are served.
func TestManyLargeAnswers(t *testing.T) {
	r := newRigWith(t, ample, policy.Enforce, time.Minute)
	const clients = 20
	one := answer(12, largeMetadata())
	r.server.memory.answers = newBudget(int64(heldAnswer * 2 * len(one)))
	var all [clients]net.Conn
	for i := range all {
		client, broker := r.pair()
		_ = client.(*net.TCPConn).SetReadBuffer(32 << 10)
		all[i] = client
		done := make(chan struct{})
		go serve(t, broker, done, func(kmsg.Request) kmsg.Response { return largeMetadata() })
		t.Cleanup(func() { _ = broker.Close(); <-done })
		for range 3 {
			r.write(client, framed("app", 12, kmsg.NewPtrMetadataRequest()))
		}
	}
	var served sync.WaitGroup
	for _, client := range all {
		served.Go(func() {
			for range 3 {
				r.frame(client)
			}
		})
	}
	served.Wait()
	await.That(t, "nothing is held", func() bool { bytes, waiting := r.server.memory.held(); return bytes == 0 && waiting == 0 })
}

// largeShareFetch is an answer to ShareFetch of more than a buffer.
func largeShareFetch() *kmsg.ShareFetchResponse {
	resp, topic, part := kmsg.NewPtrShareFetchResponse(), kmsg.NewShareFetchResponseTopic(), kmsg.NewShareFetchResponseTopicPartition()
	part.Records = make([]byte, 100_000)
	topic.Partitions = append(topic.Partitions, part)
	resp.Topics = append(resp.Topics, topic)
	return resp
}

// Answers with records, which clients can make large, delay no others, however slowly their clients read.
func TestShareFetchesDelayNoOthers(t *testing.T) {
	r := newRig(t, policy.Off, time.Minute)
	consumed := &r.server.memory.consumed
	all, err := consumed.acquire(t.Context(), int(consumed.size), func() {})
	if err != nil {
		t.Fatal(err)
	}
	acknowledge, topic := kmsg.NewPtrShareAcknowledgeResponse(), kmsg.NewShareAcknowledgeResponseTopic()
	topic.Partitions = make([]kmsg.ShareAcknowledgeResponseTopicPartition, 10_000)
	acknowledge.Topics = append(acknowledge.Topics, topic)
	var late []net.Conn
	for _, resp := range []kmsg.Response{largeShareFetch(), acknowledge} {
		client, broker := r.pair()
		r.write(client, framed("app", 1, resp.RequestKind()))
		r.frame(broker)
		go func() { _, _ = broker.Write(answer(1, resp)) }()
		late = append(late, client)
	}
	await.That(t, "both wait", func() bool { return consumed.waiting.Load() == int64(len(late)) })
	client, broker := r.pair()
	r.write(client, framed("app", 12, kmsg.NewPtrMetadataRequest()))
	r.frame(broker)
	go func() { _, _ = broker.Write(answer(12, largeMetadata())) }()
	r.frame(client)
	all.free()
	for _, client := range late {
		r.frame(client)
	}
	await.That(t, "nothing is held", func() bool { bytes, waiting := r.server.memory.held(); return bytes == 0 && waiting == 0 })
}

// If two questions have large answers, and there is memory for one, no connection waits for ever.
func TestQuestionsWithLargeAnswers(t *testing.T) {
	r := newRigWith(t, ample, policy.Enforce, time.Minute)
	r.server.memory.answers = newBudget(1)
	var served sync.WaitGroup
	for range 10 {
		client, broker := r.pair()
		done := make(chan struct{})
		go serve(t, broker, done, func(req kmsg.Request) kmsg.Response {
			if req.Key() == keyMetadata {
				return largeMetadata()
			}
			return kmsg.NewPtrDeleteTopicsResponse()
		})
		t.Cleanup(func() { _ = broker.Close(); <-done })
		req := kmsg.NewPtrDeleteTopicsRequest()
		name := "t"
		req.Topics = []kmsg.DeleteTopicsRequestTopic{{Topic: &name}, {TopicID: [16]byte{1}}}
		served.Go(func() {
			for range 5 {
				r.write(client, framed("app", 6, req))
				r.frame(client)
			}
		})
	}
	served.Wait()
}

// A connection that holds memory for too long ends with a line in the log. The client does not send the rest, or does not read, or the
// broker does not send the rest.
func TestHeldForTooLong(t *testing.T) {
	for name, c := range map[string]struct {
		stall func(r *relay, client, broker net.Conn)
		why   string
	}{
		"a request": {func(r *relay, client, broker net.Conn) {
			sent := bulky(100_000)
			go func() { _, _ = client.Write(sent[:70_000]) }()
			_ = r.requests()
		}, "bytes was not complete"},
		"a header": {func(r *relay, client, broker net.Conn) {
			sent := tagged(framed("app", 9, produceOf("app", 1000)), strings.Repeat("t", 100_000))
			go func() { _, _ = client.Write(sent[:70_000]) }()
			_ = r.requests()
		}, "bytes was not complete"},
		"an answer": {func(r *relay, client, broker net.Conn) {
			r.state.expect(pending{request: request{key: keyMetadata, version: 12, correlation: 7}})
			go func() { _, _ = broker.Write(answer(12, largeMetadata())) }()
			_ = r.answers()
		}, "has not read an answer"},
		"half an answer": {func(r *relay, client, broker net.Conn) {
			r.state.expect(pending{request: request{key: keyMetadata, version: 12, correlation: 7}})
			go func() { _, _ = broker.Write(answer(12, largeMetadata())[:70_000]) }()
			_ = r.answers()
		}, "was not complete"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, broker, said := waiting(t)
				client := connected(r)
				gate := newMutations(t)
				r.server.opts.Quotas = func() Quotas { return Quotas{Mutations: gate} }
				begin := time.Now()
				c.stall(r, client, broker)
				if took := time.Since(begin); took != patience(100_000) {
					t.Errorf("ended after %v", took)
				}
				if text := said.String(); !strings.Contains(text, c.why) || !strings.Contains(text, "within 10s") {
					t.Errorf("no line with %q:\n%s", c.why, text)
				}
				r.freeHeld()
				if bytes, waiting := r.server.memory.held(); bytes != 0 || waiting != 0 {
					t.Errorf("%d bytes are held, %d wait", bytes, waiting)
				}
			})
		})
	}
	if got := patience(64 << 20); got != 65*heldWithin {
		t.Errorf("64 MiB have %v", got)
	}
}

// A decoded answer that fits into a buffer when it is written holds no memory. Nothing bounds how long its client takes to read it.
func TestSmallAnswersHoldNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, broker, _ := waiting(t)
		connected(r)
		resp := kmsg.NewPtrApiVersionsResponse()
		for range buffer { // of which none is offered
			resp.ApiKeys = append(resp.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: 1000})
		}
		r.state.expect(pending{request: request{key: keyApiVersions, correlation: 7}})
		var all sync.WaitGroup
		defer all.Wait()
		defer r.close()
		all.Go(func() { _ = r.answers() })
		if _, err := broker.Write(answer(0, resp)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if bytes, _ := r.server.memory.held(); bytes != 0 {
			t.Errorf("%d bytes are held while the client does not read", bytes)
		}
	})
}

// The answer to a question outlives the buffer that it came in: its unknown tags are written later.
func TestQuestionOutlivesItsBuffer(t *testing.T) {
	r, broker, _ := waiting(t)
	connected(r)
	resp := kmsg.NewPtrDescribeClientQuotasResponse()
	resp.UnknownTags.Set(200, []byte("a tag"))
	sent, wrote, pooled := answer(1, resp), make(chan error, 1), new([buffer]byte)
	r.state.expect(pending{request: request{key: keyDescribeQuotas, version: 1, correlation: 7}, question: new(question)})
	go func() { _, err := broker.Write(sent); wrote <- err }()
	if _, err := io.ReadFull(r.broker, r.size[1][:]); err != nil {
		t.Fatal(err)
	}
	a, err := r.beginAnswer(len(sent)-4, pooled)
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := r.decodeAnswer(&a)
	if err = errors.Join(err, <-wrote); err != nil {
		t.Fatal(err)
	}
	clear(pooled[:])
	if text := string(got.AppendTo(nil)); !strings.Contains(text, "a tag") {
		t.Errorf("%q", text)
	}
}

// Steps of a login are kept until their answers, and count for what a connection keeps: the mechanism, and a delegation token.
func TestLoginStepsAreBounded(t *testing.T) {
	long := strings.Repeat("m", mostKept/2)
	for name, step := range map[string]func(*login) step{
		"mechanism": func(l *login) step { return l.handshake(&kmsg.SASLHandshakeRequest{Mechanism: long}) },
		"token": func(l *login) step {
			l.handshake(&kmsg.SASLHandshakeRequest{Mechanism: scram256})
			return l.authenticate(&kmsg.SASLAuthenticateRequest{SASLAuthBytes: []byte("n,,n=" + long[1:] + ",r=nonce,tokenauth=true")})
		},
	} {
		c := connection{}
		for range 3 {
			c.expect(pending{step: step(&c.login)})
		}
		if !c.full() {
			t.Errorf("%s: %d bytes are kept", name, c.kept)
		}
	}
}

// Requests that wait for an answer take little more memory than is counted for them. A list that grows has at most twice its length, and
// the text of the last request comes on top of a list that is almost full.
func TestPendingAnswersAreCounted(t *testing.T) {
	const longest = 1<<15 - 1 // of a client id
	small := pending{request: request{key: keyMetadata}}
	large := small
	large.client = strings.Repeat("x", longest)
	for name, c := range map[string]struct{ before, last pending }{
		"without a client id":                 {small, small},
		"with a quota":                        {pending{request: request{key: keyProduce, client: "app"}, rule: "user=*", bucket: "in/user=alice"}, small},
		"the last with the longest client id": {small, large},
	} {
		all := make([]connection, 100)
		before := heap()
		for i := range all {
			one := &all[i]
			for one.kept+c.before.kept() < mostKept {
				one.expect(c.before)
			}
			last := c.last
			last.client = strings.Clone(last.client)
			for !one.full() {
				one.expect(last)
			}
		}
		if each := (heap() - before) / uint64(len(all)); each > 2*mostKept+longest+8<<10 { // a page beside it
			t.Errorf("%s: a connection keeps %d bytes for %d requests", name, each, len(all[0].pending))
		}
		runtime.KeepAlive(all)
	}
}

// newMutations is a gate of mutations.
func newMutations(t *testing.T) *policy.Gate {
	p, err := policy.Compile(policy.Spec{Gates: map[string]policy.GateSpec{"g": {Quota: &ample}}, OtherWork: map[string]string{"g": ""}}, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return p.Gate("g")
}

// A decoded request takes no more memory than is counted for it, even with as many topics without a name as fit into a MiB.
func TestDecodedRequestsAreCounted(t *testing.T) {
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.Version, req.TopicNames = 5, make([]string, 500_000)
	b := sent("app", 5, req)
	req = nil
	before := heap()
	m, err := readMutation(&request{key: keyDeleteTopics, version: 5}, b)
	if err != nil {
		t.Fatal(err)
	}
	names, questions := m.names(), m.questions()
	m.hear(kmsg.NewPtrMetadataResponse())
	counts := m.count(new(noSizes))
	if more := heap() - before; more > heldRequest*uint64(len(b)) {
		t.Errorf("%d bytes for a request of %d", more, len(b))
	}
	runtime.KeepAlive([]any{m, names, questions, counts, b})
}

// An answer that describes quotas takes no more memory than is counted for it, with many rules, or with a few that have long names. An
// answer is made when there is memory for it.
func TestDescribedRulesAreCounted(t *testing.T) {
	for name, of := range map[string]struct{ rules, name int }{"many": {9000, 4}, "long": {100, 30_000}} {
		t.Run(name, func(t *testing.T) {
			c, client := newClerk(t, new(quotas.Memory))
			var rules []policy.QuotaRuleSpec
			for i := range of.rules {
				user := fmt.Sprintf("%0*d", of.name, i)
				rules = append(rules, policy.QuotaRuleSpec{Rule: quota.Rule{User: quota.Named(user), Client: quota.Named(user)}, QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "5/s"}})
			}
			if _, err := c.book.Change(t.Context(), quotas.Change{Ops: []quotas.Op{{Gate: "in", Replace: rules}}}); err != nil {
				t.Fatal(err)
			}
			q, filter, resp := c.server.opts.Quotas(), kmsg.NewPtrDescribeClientQuotasRequest(), kmsg.NewPtrDescribeClientQuotasResponse()
			before := heap()
			views := c.book.List("in") // as describe does
			q.describe(c.book, filter, resp)
			out := encode(nil, resp)
			more := int(heap() - before)
			if rules, bytes := c.book.Size(); more > heldRule*rules+heldName*bytes || len(resp.Entries) < of.rules {
				t.Errorf("%d bytes for %d rules about %d bytes", more, rules, bytes)
			}
			runtime.KeepAlive([]any{views, resp, out})
			large := &c.server.memory.large
			all, err := large.acquire(t.Context(), int(large.size), func() {})
			if err != nil {
				t.Fatal(err)
			}
			c.write(client, framed("app", 1, filter))
			await.That(t, "it waits for room", func() bool { return large.waiting.Load() == 1 })
			all.free()
			if got := c.frame(client); len(got) < of.rules*of.name {
				t.Errorf("%d bytes", len(got))
			}
			await.That(t, "nothing is held", func() bool { bytes, _ := c.server.memory.held(); return bytes == 0 })
		})
	}
}

// Only the name in the message of a login is kept. A name that is not a valid text of Kafka does not count.
func TestLoginKeepsTheNameAlone(t *testing.T) {
	for name, want := range map[string]principal{"alice": {name: "alice", known: true}, strings.Repeat("n", 1<<15): {}} {
		l := login{mechanism: scram256}
		said := "n,,n=" + name + ",r=nonce,x=" + strings.Repeat("x", 400_000)
		step := l.authenticate(&kmsg.SASLAuthenticateRequest{SASLAuthBytes: []byte(said)})
		if step.user != want || l.claimed != want {
			t.Errorf("%.20q", step.user.name)
		}
	}
	var all []principal
	before := heap()
	for range 50 {
		l := login{mechanism: scram256}
		all = append(all, l.authenticate(&kmsg.SASLAuthenticateRequest{SASLAuthBytes: []byte("n,,n=alice,r=nonce,x=" + strings.Repeat("x", 400_000))}).user)
	}
	if now := heap(); now > before+5<<20 {
		t.Errorf("%d names take %d bytes", len(all), now-before)
	}
	runtime.KeepAlive(all)
}
