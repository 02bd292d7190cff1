//go:build integration

package integration

import (
	enc "encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/weir-go/weir/internal/testbed/kafka"
)

// exchanges is where what real clients and the gateway say to each other is kept, one file a connection. The fuzz tests of
// gateway/internal/kafka begin with them.
const exchanges = "../internal/kafka/testdata/exchanges"

// TestRecordExchanges writes these files anew, with -update: a few KB of each connection of franz-go, of Kafka's own tools, of kcat,
// confluent-kafka and kafka-python.
func TestRecordExchanges(t *testing.T) {
	if !*update {
		t.Skip("it writes files anew, with -update")
	}
	cluster := startKafka(t, kafka.Config{Users: map[string]string{"reader": "secret"}, Settings: []string{"auto.create.topics.enable=true"}})
	admin := kafkaClient(t, kgo.SeedBrokers(cluster.Addr))
	allow(t, admin, "reader", kmsg.ACLResourceTypeTopic, "*", kmsg.ACLOperationAll)
	record := &tape{T: t, seen: map[string]bool{}}
	open := record.before(&behind{brokers: []string{cluster.Addr}})
	login := record.before(&behind{brokers: []string{cluster.SASL}, user: "reader", password: "secret"})
	if err := os.RemoveAll(exchanges); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(exchanges, 0o777); err != nil {
		t.Fatal(err)
	}
	of := func(client string, do func()) {
		t.Helper()
		record.begin()
		do()
		record.end(client)
	}
	fails := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}

	of("franz-admin", func() {
		client := kafkaClient(t, kgo.SeedBrokers(open))
		createTopic(t, client, "orders", 2)
		grow, topic := kmsg.NewPtrCreatePartitionsRequest(), kmsg.NewCreatePartitionsRequestTopic()
		topic.Topic, topic.Count = "orders", 3
		grow.Topics, grow.TimeoutMillis = append(grow.Topics, topic), 30_000
		_, err := grow.RequestWith(t.Context(), client)
		fails(err)
		createTopic(t, client, "gone", 1)
		remove, gone := kmsg.NewPtrDeleteTopicsRequest(), "gone"
		remove.Topics, remove.TopicNames, remove.TimeoutMillis = []kmsg.DeleteTopicsRequestTopic{{Topic: &gone}}, []string{gone}, 30_000
		_, err = remove.RequestWith(t.Context(), client)
		fails(err)
		client.Close()
	})
	of("franz-transaction", func() {
		client := kafkaClient(t, kgo.SeedBrokers(open), kgo.TransactionalID("move"), kgo.DefaultProduceTopic("orders"))
		fails(client.BeginTransaction())
		fails(client.ProduceSync(t.Context(), kgo.StringRecord("one of many")).FirstErr())
		fails(client.EndTransaction(t.Context(), kgo.TryCommit))
		client.Close()
	})
	of("franz-group", func() {
		client := kafkaClient(t, kgo.SeedBrokers(open), kgo.ConsumerGroup("franz"), kgo.ConsumeTopics("orders"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		fails(client.PollFetches(t.Context()).Err())
		fails(client.CommitUncommittedOffsets(t.Context()))
		client.Close()
	})
	of("franz-plain", func() {
		client := kafkaClient(t, kgo.SeedBrokers(login), kgo.SASL(plain.Auth{User: "reader", Pass: "secret"}.AsMechanism()), kgo.DefaultProduceTopic("orders"))
		fails(client.ProduceSync(t.Context(), kgo.StringRecord("one of many")).FirstErr())
		client.Close()
	})
	of("franz-scram", func() {
		client := kafkaClient(t, kgo.SeedBrokers(login), kgo.SASL(scram.Auth{User: "reader", Pass: "secret"}.AsSha256Mechanism()))
		fails(client.Ping(t.Context()))
		client.Close()
	})
	for _, c := range []struct{ name, command string }{
		{"java-topics", "org.apache.kafka.tools.TopicCommand --bootstrap-server GATEWAY --create --topic java --partitions 2"},
		{"java-topics-alter", "org.apache.kafka.tools.TopicCommand --bootstrap-server GATEWAY --alter --topic java --partitions 3"},
		{"java-configs-alter", "kafka.admin.ConfigCommand --bootstrap-server GATEWAY --alter --add-config producer_byte_rate=1000000 --entity-type users --entity-default"},
		{"java-configs-describe", "kafka.admin.ConfigCommand --bootstrap-server GATEWAY --describe --entity-type users"},
		{"java-producer", "org.apache.kafka.tools.ProducerPerformance --topic java --num-records 3 --record-size 20 --throughput -1 --producer-props bootstrap.servers=GATEWAY acks=all"},
		{"java-consumer", "org.apache.kafka.tools.consumer.ConsoleConsumer --bootstrap-server GATEWAY --topic java --from-beginning --max-messages 3 --group java"},
		{"java-groups-alter", "kafka.admin.ConfigCommand --bootstrap-server GATEWAY --alter --entity-type groups --entity-name share --add-config share.auto.offset.reset=earliest"},
		{"java-share", "org.apache.kafka.tools.consumer.ConsoleShareConsumer --bootstrap-server GATEWAY --topic java --group share --max-messages 3"},
		{"java-topics-delete", "org.apache.kafka.tools.TopicCommand --bootstrap-server GATEWAY --delete --topic java"},
	} {
		of(c.name, func() {
			class, args, _ := strings.Cut(strings.ReplaceAll(c.command, "GATEWAY", open), " ")
			tool(t, cluster, class, strings.Fields(args)...)
		})
	}
	for _, script := range []string{"confluent", "kafka_python"} {
		of(script, func() { pythonClient(t, script, open, 3) })
	}
	kcat := func(in, addr string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), part(t, "kcat"), append([]string{"-b", addr}, args...)...)
		cmd.Stdin = strings.NewReader(in)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("kcat %v: %v\n%s", args, err, out)
		}
	}
	of("kcat-list", func() { kcat("", open, "-L") })
	of("kcat-produce", func() { kcat("one\nof\nmany\n", open, "-P", "-t", "kcat", "-z", "gzip") })
	of("kcat-acks-0", func() { kcat("one\nof\nmany\n", open, "-P", "-t", "kcat", "-X", "acks=0") })
	of("kcat-consume", func() { kcat("", open, "-C", "-t", "kcat", "-o", "beginning", "-c", "3", "-q") })
	of("kcat-plain", func() {
		kcat("one\n", login, "-P", "-t", "kcat", "-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanisms=PLAIN", "-X", "sasl.username=reader", "-X", "sasl.password=secret")
	})
}

// tape stands between clients and gateways, and keeps what both say. Its address is one of its own, which the gateways advertise.
type tape struct {
	*testing.T
	mu    sync.Mutex
	conns []*recorded
	seen  map[string]bool // requests by the kind of client, API and version
}

// recorded is a connection: its frames in the order in which they came, each behind its direction.
type recorded struct {
	mu     sync.Mutex
	frames []byte
	full   bool
}

const (
	// mostRecorded bounds what is kept of a connection, and mostFrame one frame of it: what comes behind a larger one is not kept.
	mostRecorded, mostFrame = 6 << 10, 3 << 10

	fromClient, fromGateway = 0, 1
)

// before runs a gateway before a broker, and returns where clients bootstrap to be recorded.
func (r *tape) before(b *behind) string {
	b.advertise, b.quotas = "127.0.0.2", "mutations: topics, produce: in, fetch: out"
	addr := startKafkaGateway(r.T, `
gates: {topics: {quota: {debt: true}}, in: {quota: {}}, out: {quota: {}}}
runtime_quotas: {file: quotas.json}
`, b).addr
	_, node, _ := strings.Cut(b.ports, "-")
	for _, a := range []string{addr, "127.0.0.1:" + node} {
		here := strings.Replace(a, "127.0.0.1", "127.0.0.2", 1)
		ln, err := net.Listen("tcp", here)
		if err != nil {
			r.Fatal(err)
		}
		r.Cleanup(func() { _ = ln.Close() })
		go r.serve(ln, a)
	}
	return strings.Replace(addr, "127.0.0.1", "127.0.0.2", 1)
}

func (r *tape) serve(ln net.Listener, gateway string) {
	for {
		client, err := ln.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", gateway)
		if err != nil {
			_ = client.Close()
			continue
		}
		of := new(recorded)
		r.mu.Lock()
		r.conns = append(r.conns, of)
		r.mu.Unlock()
		move := func(from, to net.Conn, direction byte) {
			defer from.Close()
			defer to.Close()
			for {
				frame := make([]byte, 4)
				if _, err := io.ReadFull(from, frame); err != nil {
					return
				}
				frame = append(frame, make([]byte, enc.BigEndian.Uint32(frame))...)
				if _, err := io.ReadFull(from, frame[4:]); err != nil {
					return
				}
				of.add(direction, frame)
				if _, err := to.Write(frame); err != nil {
					return
				}
			}
		}
		go move(client, to, fromClient)
		go move(to, client, fromGateway)
	}
}

// add keeps a frame, before it is passed on: so no answer comes before its request.
func (c *recorded) add(direction byte, frame []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.full = c.full || len(frame) > mostFrame || len(c.frames)+len(frame) > mostRecorded; !c.full {
		c.frames = append(append(c.frames, direction), frame...)
	}
}

// begin forgets what came before.
func (r *tape) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns = nil
}

// end writes the largest exchange of a client, and all others that have a request of which those before have none of the same kind.
func (r *tape) end(client string) {
	r.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var all [][]byte
	for _, c := range r.conns {
		c.mu.Lock()
		all = append(all, c.frames)
		c.mu.Unlock()
	}
	slices.SortStableFunc(all, func(a, b []byte) int { return len(b) - len(a) })
	kind, _, _ := strings.Cut(client, "-")
	written := 0
	for _, frames := range all {
		if news := r.learn(kind, frames); news || written == 0 {
			written++
			writeFile(r.T, filepath.Join(exchanges, fmt.Sprintf("%s-%d", client, written)), frames)
		}
	}
	if written == 0 {
		r.Errorf("%s has said nothing", client)
	}
}

// learn reports whether a kind of client has made a request in an exchange that it has made in none before.
func (r *tape) learn(kind string, frames []byte) (news bool) {
	for at := 0; at < len(frames); {
		n := int(enc.BigEndian.Uint32(frames[at+1:]))
		if request := kind + string(frames[at+5:at+9]); frames[at] == fromClient && !r.seen[request] { // key and version
			r.seen[request], news = true, true
		}
		at += 5 + n
	}
	return news
}
