//go:build integration

package weirkafka

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/testbed/freeport"
	"github.com/weir-go/weir/internal/testbed/kafka"
	"github.com/weir-go/weir/limit"
)

var ports = freeport.Range{First: 31_000, Size: 700}

// broker is the broker that all tests share. TestMain stops it, if a test has started it.
var broker = sync.OnceValues(func() (*kafka.Server, error) {
	jars, err := kafka.Find()
	if err != nil {
		return nil, err
	}
	identity, err := loopback()
	if err != nil {
		return nil, err
	}
	started, err = kafka.Start(context.Background(), kafka.Config{Jars: jars, Ports: &ports, Users: map[string]string{"reader": "secret"}, Certificate: identity.pem})
	return started, err
})

var started *kafka.Server

// identity is a key with its certificate, and the pool of certificates that trusts it.
type identity struct {
	pem   []byte
	roots *x509.CertPool
}

// loopback is the identity of the broker.
var loopback = sync.OnceValues(func() (identity, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader) // Java's keystores know no Ed25519 in PEM
	if err != nil {
		return identity{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "broker"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return identity{}, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return identity{}, err
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	id := identity{append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), certificate...), x509.NewCertPool()}
	id.roots.AppendCertsFromPEM(certificate)
	return id, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if started != nil {
		if err := started.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// real is a client of the broker, with the helpers of the tests on kfake.
func real(t *testing.T) (*kafka.Server, *cluster) {
	t.Helper()
	s, err := broker()
	if err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Addr), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(50*time.Millisecond),
		kgo.UnknownTopicRetries(-1)) // a busy broker may learn of a topic late
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return s, &cluster{t: t, client: client}
}

// member joins the group with a protocol, waits for the topic's first message, and commits these offsets.
// It returns nil after a failure.
func (c *cluster) member(s *kafka.Server, group, topic string, next bool, offsets ...int64) *kgo.Client {
	ctx := c.t.Context()
	opts := []kgo.Opt{
		kgo.SeedBrokers(s.Addr), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}
	if next {
		opts = append(opts, kgo.ServerSideBalancer(), kgo.Balancers(kgo.RangeBalancer()))
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		c.t.Error(err)
		return nil
	}
	for seen := 0; seen == 0; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			c.t.Error(err)
			return nil
		}
		seen = fetches.NumRecords()
	}
	commit := map[int32]kgo.EpochOffset{}
	for p, o := range offsets {
		if o >= 0 {
			commit[int32(p)] = kgo.EpochOffset{Epoch: -1, Offset: o}
		}
	}
	var failed error
	client.CommitOffsetsSync(ctx, map[string]map[int32]kgo.EpochOffset{topic: commit}, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		if failed = err; err == nil {
			for _, p := range resp.Topics[0].Partitions {
				failed = errors.Join(failed, kerr.ErrorForCode(p.ErrorCode))
			}
		}
	})
	if failed != nil {
		c.t.Error(failed)
		return nil
	}
	return client
}

// haveProtocols fails unless the broker says that the groups named next-something have the new protocol, and the others the classic one.
func (c *cluster) haveProtocols(groups []string) {
	c.t.Helper()
	resp, err := kmsg.NewPtrListGroupsRequest().RequestWith(c.t.Context(), c.client)
	if err != nil {
		c.t.Fatal(err)
	}
	protocols := map[string]string{}
	for _, g := range resp.Groups {
		protocols[g.Group] = strings.ToLower(g.GroupType)
	}
	for _, group := range groups {
		want := "classic"
		if strings.HasPrefix(group, "next") {
			want = "consumer"
		}
		if protocols[group] != want {
			c.t.Errorf("group %s has the protocol %q, want %s", group, protocols[group], want)
		}
	}
}

const groupTool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"

// described is the output of Kafka's own tool for each partition: its lag, or that it is unknown.
func described(t *testing.T, s *kafka.Server) map[string]string {
	t.Helper()
	out, err := s.Tool(t.Context(), groupTool, "--bootstrap-server", s.Addr, "--describe", "--all-groups", "--timeout", "30000")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for line := range strings.Lines(out) {
		// GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG ...
		if f := strings.Fields(line); len(f) >= 6 && f[0] != "GROUP" {
			all[f[0]+"/"+f[1]+"/"+f[2]] = f[5]
		}
	}
	return all
}

func key(group string, p Partition) string {
	return fmt.Sprintf("%s/%s/%d", group, p.Topic, p.Partition)
}

// The lag of every partition is exactly the one that Kafka's own tool prints. The groups are of either
// protocol, with and without members, after commits by hand, deleted records, and added partitions. If the tool
// prints no lag, counts deleted messages, or is below 0, the rules of the package hold.
func TestLagIsKafkas(t *testing.T) {
	s, c := real(t)
	const topic = "described"
	c.topic(topic, 50, 30, 20)
	groups := []string{"classic-runs", "classic-stopped", "next-runs", "next-stopped", "reset"}
	var joined sync.WaitGroup
	for _, group := range groups[:4] {
		joined.Go(func() {
			member := c.member(s, group, topic, strings.HasPrefix(group, "next"), 17, 30, -1)
			if member == nil {
				return
			}
			if strings.HasSuffix(group, "-runs") {
				t.Cleanup(member.Close)
			} else {
				member.Close()
			}
		})
	}
	joined.Wait()
	if t.Failed() {
		return
	}
	c.haveProtocols(groups[:4])
	c.commit("reset", topic, 40, 0, 20)
	if out, err := s.Tool(t.Context(), groupTool, "--bootstrap-server", s.Addr, "--group", "reset", "--topic", topic, "--reset-offsets", "--to-offset", "3", "--execute"); err != nil {
		t.Fatal(err, out)
	}
	c.produce(topic, 1, 1, 0)

	cut := kmsg.NewPtrDeleteRecordsRequest()
	cutTopic, cutPartition := kmsg.NewDeleteRecordsRequestTopic(), kmsg.NewDeleteRecordsRequestTopicPartition()
	cut.TimeoutMillis = 30_000
	cutTopic.Topic, cutPartition.Partition, cutPartition.Offset = topic, 0, 10
	cutTopic.Partitions = append(cutTopic.Partitions, cutPartition)
	cut.Topics = append(cut.Topics, cutTopic)
	if resp, err := cut.RequestWith(t.Context(), c.client); err != nil || resp.Topics[0].Partitions[0].ErrorCode != 0 {
		t.Fatal(resp, err)
	}
	more := kmsg.NewPtrCreatePartitionsRequest()
	moreTopic := kmsg.NewCreatePartitionsRequestTopic()
	moreTopic.Topic, moreTopic.Count = topic, 4
	more.Topics, more.TimeoutMillis = append(more.Topics, moreTopic), 30_000
	if resp, err := more.RequestWith(t.Context(), c.client); err != nil || resp.Topics[0].ErrorCode != 0 {
		t.Fatal(resp, err)
	}
	ask, asked := kmsg.NewPtrMetadataRequest(), kmsg.NewMetadataRequestTopic()
	asked.Topic = kmsg.StringPtr(topic)
	ask.Topics = append(ask.Topics, asked)
	for known := 0; known < 4; { // the broker learns of them after the answer
		resp, err := ask.RequestWith(t.Context(), c.client)
		if err != nil {
			t.Fatal(err)
		}
		known = len(resp.Topics[0].Partitions)
	}
	_, again := real(t) // its client has never heard of three partitions
	again.produce(topic, 0, 0, 0, 8)
	c.commit("reset", topic, -1, -1, 25, 3)

	tool := described(t, s)
	if said := tool["reset/"+topic+"/3"]; said != "5" {
		t.Errorf("of the partition that was added the tool says %q, want 5", said)
	}
	if said := tool["reset/"+topic+"/2"]; said != "-5" {
		t.Errorf("of a commit beyond the end the tool says %q, want -5", said)
	}
	compared := 0
	for _, group := range groups {
		l, err := NewLag(LagConfig{Brokers: []string{s.Addr}, Group: group, Topics: []string{topic}})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		all, err := l.Partitions(t.Context())
		if err != nil || len(all) != 4 {
			t.Fatalf("%s: %v: %+v", group, err, all)
		}
		for _, p := range all {
			said, listed := tool[key(group, p)]
			want := p.End - p.Start
			switch theirs, err := strconv.ParseInt(said, 10, 64); {
			case err == nil && p.Committed < p.Start:
				if theirs != p.End-p.Committed {
					t.Errorf("%s: %+v: the tool says %d", group, p, theirs)
				}
			case err == nil && p.Committed > p.End:
				want = 0
			case err == nil:
				want = theirs
				compared++
			case listed && said != "-" || p.Committed >= 0:
				t.Errorf("%s: %+v: the tool says %q", group, p, said)
			}
			if p.Lag != want {
				t.Errorf("%s: %+v, want a lag of %d; the tool says %q", group, p, want, said)
			}
		}
	}
	if compared < 10 {
		t.Errorf("the tool has said something of %d partitions only: %v", compared, tool)
	}
}

// While a transaction is open, a reader of committed messages cannot read its records, nor the records after
// them. So it is not behind on these. When the transaction has ended, both readings agree with Kafka's tool.
func TestOpenTransaction(t *testing.T) {
	s, c := real(t)
	const topic, group, before, open, after = "transactions", "reader", 10, 7, 3
	c.topic(topic, before)
	c.commit(group, topic, 4)
	reading := func(isolation Isolation) *Lag {
		l, err := NewLag(LagConfig{Brokers: []string{s.Addr}, Group: group, Topics: []string{topic}, Isolation: isolation})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(l.Close)
		return l
	}
	all, committed := reading(ReadUncommitted), reading(ReadCommitted)
	c.reads(all, before-4)
	c.reads(committed, before-4)

	client, err := kgo.NewClient(kgo.SeedBrokers(s.Addr), kgo.TransactionalID("open"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	producer := &cluster{t: t, client: client}
	for _, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort} {
		start, err := committed.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := client.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		producer.produce(topic, open) // it returns when the broker has them
		c.reads(all, start+open)
		c.reads(committed, start)
		c.produce(topic, after)
		c.reads(all, start+open+after)
		c.reads(committed, start)
		if err := client.EndTransaction(t.Context(), end); err != nil {
			t.Fatal(err)
		}
		// The marker at the end of a transaction has an offset like a record, and so have aborted records. A
		// lag is a difference of offsets, so all of them count, for every reader.
		want := start + open + after + 1
		c.eventually(committed, func(v float64, err error) bool { return err == nil && v >= want }) // the answer comes before the marker
		c.reads(committed, want)
		c.reads(all, want)
	}
	if said, want := described(t, s)[group+"/"+topic+"/0"], strconv.Itoa(before-4+2*(open+after+1)); said != want {
		t.Errorf("the tool says %q, want %s", said, want)
	}

	// A consumer that commits the offset after the last record, as franz-go does, stays behind by the marker.
	consumer, err := kgo.NewClient(kgo.SeedBrokers(s.Addr), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Close()
	for seen := 0; seen < before-4+open+2*after; { // without the aborted records
		fetches := consumer.PollFetches(t.Context())
		if err := errors.Join(fetches.Err(), consumer.CommitUncommittedOffsets(t.Context())); err != nil {
			t.Fatal(err)
		}
		seen += fetches.NumRecords()
	}
	c.reads(all, 1)
	c.reads(committed, 1)
}

// A topic that is deleted and created again is another topic: commits for the first do not count.
func TestTopicMadeAnew(t *testing.T) {
	s, c := real(t)
	const topic = "anew"
	c.topic(topic, 10)
	c.commit("g", topic, 9)
	l, err := NewLag(LagConfig{Brokers: []string{s.Addr}, Group: "g", Topics: []string{topic}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c.reads(l, 1)
	drop := kmsg.NewPtrDeleteTopicsRequest()
	dropped := kmsg.NewDeleteTopicsRequestTopic()
	dropped.Topic = kmsg.StringPtr(topic)
	drop.Topics, drop.TimeoutMillis = append(drop.Topics, dropped), 30_000
	if resp, err := drop.RequestWith(t.Context(), c.client); err != nil || resp.Topics[0].ErrorCode != 0 {
		t.Fatal(resp, err)
	}
	_, again := real(t) // its client has never heard of the first
	again.topic(topic, 4)
	again.reads(l, again.end(topic)) // 4, unless the broker had to be told something twice
}

// end is the end of a topic's only partition.
func (c *cluster) end(topic string) float64 {
	c.t.Helper()
	ask := kmsg.NewListOffsetsRequestTopicPartition()
	ask.Timestamp = atEnd
	of := kmsg.NewListOffsetsRequestTopic()
	of.Topic, of.Partitions = topic, append(of.Partitions, ask)
	req := kmsg.NewPtrListOffsetsRequest()
	req.Topics = append(req.Topics, of)
	resp, err := req.RequestWith(c.t.Context(), c.client)
	if err != nil || len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 || resp.Topics[0].Partitions[0].ErrorCode != 0 {
		c.t.Fatal(resp, err)
	}
	return float64(resp.Topics[0].Partitions[0].Offset)
}

// Without a right the error says which ACL is missing.
func TestRights(t *testing.T) {
	s, c := real(t)
	c.topic("private", 5)
	l, err := NewLag(LagConfig{
		Brokers: []string{s.SASL}, SASL: []sasl.Mechanism{plain.Auth{User: "reader", Pass: "secret"}.AsMechanism()},
		Group: "g", Topics: []string{"private"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c.fails(l, "ACL DESCRIBE on the topic private")
	c.allow(kmsg.ACLResourceTypeTopic, "private")
	c.fails(l, "ACL DESCRIBE on the group g")
	c.allow(kmsg.ACLResourceTypeGroup, "g")
	c.eventually(l, func(v float64, err error) bool { return err == nil && v == 5 })

	wrong, err := NewLag(LagConfig{
		Brokers: []string{s.SASL}, SASL: []sasl.Mechanism{plain.Auth{User: "reader", Pass: "wrong"}.AsMechanism()},
		Group: "g", Topics: []string{"private"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer wrong.Close()
	c.fails(wrong, "SASL_AUTHENTICATION_FAILED")
}

// The lag is read over TLS by a user of SCRAM. An untrusted broker and a wrong password give clear errors.
func TestTLSAndSCRAM(t *testing.T) {
	s, c := real(t)
	c.topic("encrypted", 5)
	c.allow(kmsg.ACLResourceTypeTopic, "encrypted")
	c.allow(kmsg.ACLResourceTypeGroup, "scram")
	id, err := loopback()
	if err != nil {
		t.Fatal(err)
	}
	reading := func(roots *x509.CertPool, mechanism sasl.Mechanism) *Lag {
		l, err := NewLag(LagConfig{
			Brokers: []string{s.TLS}, TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, SASL: []sasl.Mechanism{mechanism},
			Group: "scram", Topics: []string{"encrypted"},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(l.Close)
		return l
	}
	user := scram.Auth{User: "reader", Pass: "secret"}
	for _, mechanism := range []sasl.Mechanism{user.AsSha256Mechanism(), user.AsSha512Mechanism()} {
		c.eventually(reading(id.roots, mechanism), func(v float64, err error) bool { return err == nil && v == 5 })
	}
	c.fails(reading(x509.NewCertPool(), user.AsSha512Mechanism()), "certificate signed by unknown authority")
	user.Pass = "wrong"
	c.fails(reading(id.roots, user.AsSha512Mechanism()), "SASL_AUTHENTICATION_FAILED")
}

// A record that is too large for the broker is Failed. If a broker stops and comes back, no permit is kept and
// no record is lost. (Too few replicas cannot happen with one broker, which asks for no more than it has.)
func TestProducerOnABroker(t *testing.T) {
	s, c := real(t)
	c.create("small", "max.message.bytes", "1000")
	patient, err := kgo.NewClient(kgo.SeedBrokers(s.Addr), kgo.MetadataMinAge(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer patient.Close()
	g := gate(t, 10)
	p := &Producer{Client: patient, Gate: g}
	value := make([]byte, 5000)
	_, _ = rand.Read(value) // nothing that can be compressed
	if err := p.ProduceSync(t.Context(), &kgo.Record{Topic: "small", Value: value}); !errors.Is(err, kerr.MessageTooLarge) {
		t.Error(err)
	}
	if got := <-g.ended; got != weir.Failed {
		t.Errorf("%v", got)
	}

	c.topic("restarted", 0)
	many, err := limit.New(limit.Config{Limit: 10, Queue: limit.Queue{MaxWait: -1}})
	if err != nil {
		t.Fatal(err)
	}
	defer many.Close()
	p = &Producer{Client: patient, Gate: many}
	const records = 2000
	landed := make(chan error, records)
	var producing sync.WaitGroup
	producing.Go(func() {
		for range records {
			if err := p.Produce(t.Context(), &kgo.Record{Topic: "restarted", Value: []byte("x")}, func(_ *kgo.Record, err error) { landed <- err }); err != nil {
				t.Error(err)
				return
			}
		}
	})
	if err := <-landed; err != nil {
		t.Error(err)
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	producing.Wait()
	for range records - 1 {
		if err := <-landed; err != nil {
			t.Error(err)
		}
	}
	if n := many.Snapshot().InFlight; n != 0 {
		t.Errorf("%d in flight", n)
	}
	l, err := NewLag(LagConfig{Brokers: []string{s.Addr}, Group: "nobody", Topics: []string{"restarted"}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c.eventually(l, func(v float64, err error) bool { return err == nil && v == records })
}

// create makes a topic of one partition with a setting.
func (c *cluster) create(name, setting, value string) {
	c.t.Helper()
	req := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, 1, 1
	config := kmsg.NewCreateTopicsRequestTopicConfig()
	config.Name, config.Value = setting, &value
	topic.Configs = append(topic.Configs, config)
	req.Topics, req.TimeoutMillis = append(req.Topics, topic), 30_000
	resp, err := req.RequestWith(c.t.Context(), c.client)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// fails reads until the error is this one: a change of rights needs a moment to reach the broker.
func (c *cluster) fails(l *Lag, want string) {
	c.t.Helper()
	c.eventually(l, func(_ float64, err error) bool { return err != nil && strings.Contains(err.Error(), want) })
}

func (c *cluster) eventually(l *Lag, good func(float64, error) bool) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 3*time.Minute)
	defer cancel()
	for {
		v, err := l.Read(ctx)
		if good(v, err) {
			return
		}
		if ctx.Err() != nil {
			c.t.Fatalf("read %v, %v", v, err)
		}
	}
}

// allow gives the user reader the right to describe.
func (c *cluster) allow(kind kmsg.ACLResourceType, name string) {
	c.t.Helper()
	req := kmsg.NewPtrCreateACLsRequest()
	acl := kmsg.NewCreateACLsRequestCreation()
	acl.ResourceType, acl.ResourceName, acl.ResourcePatternType = kind, name, kmsg.ACLResourcePatternTypeLiteral
	acl.Principal, acl.Host = "User:reader", "*"
	acl.Operation, acl.PermissionType = kmsg.ACLOperationDescribe, kmsg.ACLPermissionTypeAllow
	req.Creations = append(req.Creations, acl)
	resp, err := req.RequestWith(c.t.Context(), c.client)
	if err != nil || slices.ContainsFunc(resp.Results, func(r kmsg.CreateACLsResponseResult) bool { return r.ErrorCode != 0 }) {
		c.t.Fatal(resp, err)
	}
}
