//go:build integration

package integration

import (
	"bytes"
	"context"
	enc "encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/internal/testbed/kafka"
)

// Three brokers behind two gateways. Meanwhile a partition moves, a broker restarts, and so does each gateway, one after the other.
// make soak-kafka restarts each broker.
// Idempotent producers lose nothing and double nothing: franz-go's, and Java's. Consumers that follow them get each record once, in the
// order of its partition. No answer names a broker, and nobody but the gateways connects to one.
func TestKafkaClusterBehindTwoGateways(t *testing.T) {
	t.Parallel()
	// A broker that comes back may have to wait until it counts as gone. Here it does no harm if a late one counts so, too: leaders move.
	cluster := startBrokers(t, 3, kafka.Config{Settings: []string{"broker.session.timeout.ms=15000"}})
	gateways := []*gateway{beforeCluster(t, cluster), beforeCluster(t, cluster)}
	looked := onlyGateways(t, cluster)
	seeds := []string{gateways[0].addr, gateways[1].addr}
	listener := &eavesdropper{t: t}
	admin := kafkaClient(t, kgo.SeedBrokers(seeds...), kgo.Dialer(listener.dial))
	makeNumbered(t, admin, func(p int32) []int32 { return []int32{1 + p, 1 + (p+1)%3} })
	producers := produceNumbers(t, listener, cluster[0], seeds)
	goOn := func(what string) { t.Helper(); goOn(t, producers, what) }
	goOn("the beginning")
	movePartitions(t, admin)
	goOn("a partition has moved")
	leaders := map[string]bool{} // that there have been, of each partition
	synced := func() { eventually(t, "all copies are in sync", func() bool { return inSync(t, admin, leaders) }) }
	synced()
	restarted := cluster[1:2]
	if os.Getenv("WEIR_LONG") != "" {
		restarted = cluster
	}
	for _, broker := range restarted {
		if err := broker.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		goOn(fmt.Sprintf("broker %d has restarted", broker.ID))
		synced()
	}
	if partitions := 2 * 3; len(leaders) < partitions+2*len(restarted) { // at least as many have had another one for a while
		t.Errorf("these have led partitions: %v", leaders)
	}
	for i, g := range gateways {
		g.signal(t, syscall.SIGTERM)
		if err := g.wait(t); err != nil {
			t.Errorf("gateway %d: %v", i, err)
		}
		goOn("a gateway has gone")
		g.process = start(t, g.addr, t.TempDir(), binary, "run", "--config", g.config)
		goOn("it is back")
	}
	for _, p := range producers {
		p.end()
		p.check(t)
	}
	for _, g := range gateways {
		namesNobody(t, listener, g.addr)
	}
	if n := looked.Load(); n < 10 {
		t.Errorf("the brokers' connections were looked at %d times", n)
	}
}

// A topic of numbers has so many partitions, and its records have so many keys, in turn. By its key a record finds its partition. Without keys
// producers stay at one partition for thousands of records.
const numberedPartitions, numberedKeys = 3, 20

// makeNumbered makes the topics of producers of numbers, whose copies are on some brokers.
func makeNumbered(t *testing.T, admin *kgo.Client, on func(partition int32) []int32) {
	t.Helper()
	create := kmsg.NewPtrCreateTopicsRequest()
	for _, name := range []string{"go", "java"} {
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, -1, -1
		for p := range int32(numberedPartitions) {
			a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
			a.Partition, a.Replicas = p, on(p)
			topic.ReplicaAssignment = append(topic.ReplicaAssignment, a)
		}
		create.Topics = append(create.Topics, topic)
	}
	create.TimeoutMillis = 30_000
	made, err := create.RequestWith(t.Context(), admin)
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range made.Topics {
		if err := kerr.ErrorForCode(topic.ErrorCode); err != nil {
			t.Fatalf("%s: %v", topic.Topic, err)
		}
	}
}

// produceNumbers produces in Go and in Java, and follows both. It returns once each partition has a record of each producer. A partition whose leader
// changes with its first record under way can be stuck until the record expires, with no gateway before the brokers either: the new leader
// knows no sequence of that producer, takes a later batch first, and refuses the first one for ever (KAFKA-14359).
func produceNumbers(t *testing.T, listener *eavesdropper, java *kafka.Server, seeds []string) []*numbered {
	t.Helper()
	producers := []*numbered{produceInGo(t, listener, seeds), produceInJava(t, java, seeds)}
	for _, p := range producers {
		p.follow(t, soonBack(t, listener, seeds, kgo.ConsumeTopics(p.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())))
	}
	for _, p := range producers {
		eventually(t, p.topic+" is in each partition", func() bool { return p.partitions.Load() == numberedPartitions })
	}
	return producers
}

// soonBack is a client that waits for nothing longer than it has to: what happens to it is the same, and takes less time. A gateway that ends
// waits for a fetch that is under way.
func soonBack(t *testing.T, listener *eavesdropper, seeds []string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	const soon = 100 * time.Millisecond
	return kafkaClient(t, append(opts, kgo.SeedBrokers(seeds...), kgo.Dialer(listener.dial), kgo.MetadataMinAge(soon), kgo.FetchMaxWait(soon),
		kgo.RetryBackoffFn(func(int) time.Duration { return soon }))...)
}

// goOn waits until all producers, and who follows them, have gone on since something has happened.
func goOn(t *testing.T, producers []*numbered, since string) {
	t.Helper()
	for _, p := range producers {
		from := p.acked.Load()
		eventually(t, p.topic+" goes on: "+since, func() bool { return p.acked.Load() >= from+100 && p.read.Load() >= from+100 })
	}
}

// Gateways before two brokers, which outlive both tests.
func TestKafkaBeforeTwoBrokers(t *testing.T) {
	t.Parallel()
	cluster := startBrokers(t, 2, kafka.Config{})
	t.Run("behind a load balancer", func(t *testing.T) { behindALoadBalancer(t, cluster) })
	t.Run("reconnect storm", func(t *testing.T) { reconnectStorm(t, cluster) })
}

// Two gateways behind one name: a load balancer of TCP has a port for the bootstrap and one for each node, and passes on each to the same
// port of either gateway. Both advertise its name. One after the other is drained and restarted. Nothing is lost, doubled or out of order.
func behindALoadBalancer(t *testing.T, cluster kafka.Cluster) {
	t.Helper()
	name, nodes := freeAddr(t), nodePorts(t, len(cluster))
	_, bootstrap, _ := net.SplitHostPort(name)
	var gateways []*gateway
	for _, host := range []string{"127.0.0.21", "127.0.0.22"} {
		gateways = append(gateways, startKafkaGateway(t, "", &behind{
			brokers: []string{cluster[0].Addr, cluster[1].Addr}, advertise: "localhost", addr: net.JoinHostPort(host, bootstrap), ports: nodes,
		}))
	}
	balance(t, name, nodes, gateways)
	looked := onlyGateways(t, cluster)
	listener := &eavesdropper{t: t}
	seeds := []string{"localhost:" + bootstrap}
	makeNumbered(t, kafkaClient(t, kgo.SeedBrokers(seeds...), kgo.Dialer(listener.dial)), func(p int32) []int32 { return []int32{1 + p%2} })
	producers := produceNumbers(t, listener, cluster[0], seeds)
	goOn(t, producers, "the beginning")
	for i, g := range gateways {
		g.signal(t, syscall.SIGTERM)
		if err := g.wait(t); err != nil {
			t.Errorf("gateway %d: %v", i, err)
		}
		goOn(t, producers, "a gateway has gone")
		g.process = start(t, g.addr, t.TempDir(), binary, "run", "--config", g.config)
		eventually(t, "it gets clients again", func() bool {
			c, err := listener.dial(t.Context(), "tcp", seeds[0])
			if err == nil {
				_, err = askKafka(c, kmsg.NewPtrMetadataRequest())
				_ = c.Close()
			}
			return err == nil && acceptedBy(t, g) > 0
		})
		goOn(t, producers, "it is back")
	}
	for _, p := range producers {
		p.end()
		p.check(t)
	}
	if n := looked.Load(); n < 10 {
		t.Errorf("the brokers' connections were looked at %d times", n)
	}
}

// acceptedBy is how many clients a gateway has accepted where they bootstrap.
func acceptedBy(t *testing.T, g *gateway) int {
	var all struct {
		Kafka []struct{ Bootstrap struct{ Accepted int } }
	}
	if err := json.Unmarshal(get(t, g.admin+"/gates"), &all); err != nil {
		t.Fatal(err)
	}
	return all.Kafka[0].Bootstrap.Accepted
}

// balance starts nginx before gateways, as docs/howto/kafka-several-gateways.md has it. Clients bootstrap at addr, and nodes are at the
// ports behind the first of a range.
func balance(t *testing.T, addr, nodes string, gateways []*gateway) {
	t.Helper()
	dir := t.TempDir()
	_, bootstrap, _ := net.SplitHostPort(addr)
	var first, last int
	if _, err := fmt.Sscanf(nodes, "%d-%d", &first, &last); err != nil {
		t.Fatal(err)
	}
	ports := []string{bootstrap}
	for p := first + 1; p <= last; p++ {
		ports = append(ports, strconv.Itoa(p))
	}
	var servers strings.Builder
	for _, port := range ports {
		fmt.Fprintf(&servers, "  upstream gateways-%s {", port)
		for _, g := range gateways {
			host, _, _ := net.SplitHostPort(g.addr)
			fmt.Fprintf(&servers, " server %s:%s max_fails=1 fail_timeout=1s;", host, port)
		}
		fmt.Fprintf(&servers, " }\n  server { listen 127.0.0.1:%s; proxy_pass gateways-%s; }\n", port, port)
	}
	conf := filepath.Join(dir, "nginx.conf")
	writeFile(t, conf, fmt.Appendf(nil, `load_module %s;
daemon off;
error_log stderr error;
pid %s;
events { worker_connections 1000; }
stream {
  proxy_connect_timeout 1s;
  proxy_timeout 15m;
%s}
`, part(t, "ngx_stream_module.so"), filepath.Join(dir, "pid"), servers.String()))
	start(t, addr, dir, part(t, "nginx"), "-p", dir, "-e", "stderr", "-c", conf)
}

// A broker that stands still while all its clients come back at once: the kernel keeps 50 connections for it, and drops the attempts of others. When it
// goes on, all are served, again and again. Whoever talks to another broker meanwhile notices nothing, and nothing stays behind.
func reconnectStorm(t *testing.T, cluster kafka.Cluster) {
	t.Helper()
	g := beforeCluster(t, cluster)
	var nodes []kafkaNode
	eventually(t, "the gateway knows both nodes", func() bool {
		nodes = nodesOf(t, g)
		return len(nodes) == 2
	})
	dial := func(node kafkaNode) net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", node.Address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	old := dial(nodes[0])
	roundTrip(t, old, kmsg.NewPtrListGroupsRequest())
	broker, stands := hexOf(t, cluster[1].Addr), cluster[1].Pid()
	open := g.descriptors(t)

	const clients, queue = 200, 50
	for range 3 {
		if err := syscall.Kill(stands, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		var all [clients]net.Conn
		for i := range all {
			all[i] = dial(nodes[1])
		}
		eventually(t, "the gateway waits for a broker that takes nobody", func() bool {
			waiting, err := socketsTo(broker, "02") // SYN_SENT
			if err != nil {
				t.Fatal(err)
			}
			return len(waiting) >= queue
		})
		roundTrip(t, old, kmsg.NewPtrListGroupsRequest())
		roundTrip(t, dial(nodes[0]), kmsg.NewPtrMetadataRequest())
		if err := syscall.Kill(stands, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		var served sync.WaitGroup
		for i := range all {
			served.Go(func() {
				end := time.Now().Add(await.Patience)
				_, err := askKafka(all[i], kmsg.NewPtrListGroupsRequest())
				for err != nil && time.Now().Before(end) { // it was ended, because the broker stood for too long
					_ = all[i].Close()
					if all[i], err = net.Dial("tcp", nodes[1].Address); err == nil {
						_, err = askKafka(all[i], kmsg.NewPtrListGroupsRequest())
					}
				}
				if err != nil {
					t.Errorf("client %d is not served: %v", i, err)
					return
				}
				if i%2 == 0 {
					_ = all[i].(*net.TCPConn).SetLinger(0) // a reset
				}
				_ = all[i].Close()
			})
		}
		served.Wait()
	}
	eventually(t, "nothing is left of those that have gone", func() bool {
		return nodesOf(t, g)[1].Connections == 0 && g.descriptors(t) < open+clients/10
	})
	roundTrip(t, old, kmsg.NewPtrListGroupsRequest())
	if log := g.out.String(); strings.Contains(log, "panic") {
		t.Error(log)
	}
}

// kafkaNode is a node of a cluster as /gates shows it.
type kafkaNode struct {
	Address     string
	Connections int
}

// nodesOf are the nodes of the first cluster of a gateway, by their ids.
func nodesOf(t *testing.T, g *gateway) []kafkaNode {
	t.Helper()
	var all struct{ Kafka []struct{ Nodes []kafkaNode } }
	if err := json.Unmarshal(get(t, g.admin+"/gates"), &all); err != nil {
		t.Fatal(err)
	}
	return all.Kafka[0].Nodes
}

// beforeCluster is a gateway before some brokers, whose listeners clients find by a name that is no broker's.
func beforeCluster(t *testing.T, cluster kafka.Cluster) *gateway {
	t.Helper()
	all := &behind{advertise: "localhost"}
	for _, s := range cluster {
		all.brokers = append(all.brokers, s.Addr)
	}
	return startKafkaGateway(t, "", all)
}

// movePartitions moves the first partition of both topics to other brokers, its leader too.
func movePartitions(t *testing.T, admin *kgo.Client) {
	t.Helper()
	alter, list := kmsg.NewPtrAlterPartitionAssignmentsRequest(), kmsg.NewPtrListPartitionReassignmentsRequest()
	for _, name := range []string{"go", "java"} {
		topic, p := kmsg.NewAlterPartitionAssignmentsRequestTopic(), kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
		p.Partition, p.Replicas = 0, []int32{3, 2}
		topic.Topic, topic.Partitions = name, append(topic.Partitions, p)
		alter.Topics = append(alter.Topics, topic)
	}
	alter.TimeoutMillis, list.TimeoutMillis = 30_000, 30_000
	resp, err := alter.RequestWith(t.Context(), admin)
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range resp.Topics {
		if err := kerr.ErrorForCode(topic.Partitions[0].ErrorCode); err != nil {
			t.Fatalf("%s: %v", topic.Topic, err)
		}
	}
	eventually(t, "the partitions have moved", func() bool {
		resp, err := list.RequestWith(t.Context(), admin)
		return err == nil && resp.ErrorCode == 0 && len(resp.Topics) == 0
	})
}

// namesNobody asks a gateway for all that names nodes, in all versions, until the answer does. The eavesdropper hears it.
func namesNobody(t *testing.T, listener *eavesdropper, addr string) {
	t.Helper()
	c, err := listener.dial(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	cluster := kmsg.NewPtrDescribeClusterRequest()
	for _, of := range []struct {
		req   kmsg.Request
		last  int16
		named func(kmsg.Response) int
	}{
		{&kmsg.MetadataRequest{}, 13, func(r kmsg.Response) int { return len(r.(*kmsg.MetadataResponse).Brokers) }},
		{cluster, 2, func(r kmsg.Response) int { return len(r.(*kmsg.DescribeClusterResponse).Brokers) }},
		{&kmsg.FindCoordinatorRequest{CoordinatorKey: "a", CoordinatorKeys: []string{"a", "b", "c"}}, 6, func(r kmsg.Response) (n int) {
			resp := r.(*kmsg.FindCoordinatorResponse)
			if resp.Host != "" { // below version 4
				return 3
			}
			for _, c := range resp.Coordinators {
				if c.Host != "" {
					n++
				}
			}
			return n
		}},
	} {
		for v := range of.last + 1 {
			of.req.SetVersion(v)
			eventually(t, fmt.Sprintf("version %d of %s names three brokers", v, kmsg.NameForKey(of.req.Key())), func() bool {
				return of.named(roundTrip(t, c, of.req)) == 3
			})
		}
	}
}

// eavesdropper hears all that clients are told, and fails if that names a broker: their hosts are 127.0.0.x, and the gateways are
// localhost.
type eavesdropper struct {
	t *testing.T
}

func (e *eavesdropper) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &overheard{Conn: c, of: e}, nil
}

// overheard is a connection of which an [eavesdropper] hears everything.
type overheard struct {
	net.Conn
	of   *eavesdropper
	last []byte // of what was read
}

func (o *overheard) Read(b []byte) (int, error) {
	n, err := o.Conn.Read(b)
	const broker = "127.0.0."
	if o.last = append(o.last, b[:n]...); bytes.Contains(o.last, []byte(broker)) {
		o.of.t.Errorf("a broker is named at %v: %q", o.RemoteAddr(), o.last)
	}
	o.last = append(o.last[:0], o.last[max(len(o.last)-len(broker), 0):]...)
	return n, err
}

// inSync reports whether all copies of all partitions of both topics are in sync, and takes note of who leads them.
func inSync(t *testing.T, admin *kgo.Client, leaders map[string]bool) bool {
	req := kmsg.NewPtrMetadataRequest()
	for _, name := range []string{"go", "java"} {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = &name
		req.Topics = append(req.Topics, topic)
	}
	resp, err := req.RequestWith(t.Context(), admin)
	if err != nil {
		return false
	}
	for _, topic := range resp.Topics {
		for _, p := range topic.Partitions {
			if p.ErrorCode != 0 || len(p.ISR) != len(p.Replicas) {
				return false
			}
			leaders[fmt.Sprintf("%s-%d by %d", *topic.Topic, p.Partition, p.Leader)] = true
		}
	}
	return len(resp.Topics) == 2
}

// numbered is a producer of numbers from 0 on, each in one record.
type numbered struct {
	topic string
	acked atomic.Int64
	end   func() // no more are produced, and what was sent has been answered

	read       atomic.Int64   // different ones
	partitions atomic.Int64   // of which any have been read
	seen       map[string]int // how often; of the goroutine that reads, until followed
	followed   chan struct{}  // closed when all that was acknowledged has been read, after enough
	enough     chan struct{}
}

// follow reads what is produced while it is. Each partition has to come without a gap, and its numbers have to rise.
func (n *numbered) follow(t *testing.T, reader *kgo.Client) {
	n.seen, n.followed, n.enough = map[string]int{}, make(chan struct{}), make(chan struct{})
	next, last := map[int32]int64{}, map[int32]int{}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	t.Cleanup(func() { stop(); <-ended })
	whole := func() bool {
		select {
		case <-n.enough:
			return n.read.Load() >= n.acked.Load()
		default:
			return false
		}
	}
	go func() {
		defer close(ended)
		for ctx.Err() == nil && !whole() {
			within, cancel := context.WithTimeout(ctx, 100*time.Millisecond) // it looks whether that is all
			fetches := reader.PollFetches(within)
			cancel()
			fetches.EachError(func(_ string, partition int32, err error) {
				if ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("who reads %s-%d: %v", n.topic, partition, err)
				}
			})
			fetches.EachRecord(func(r *kgo.Record) {
				number, err := strconv.Atoi(string(r.Value))
				before, any := last[r.Partition]
				if err != nil || r.Offset != next[r.Partition] || any && number <= before {
					t.Errorf("%s-%d: %q at offset %d, where %d is next, behind %d", n.topic, r.Partition, r.Value, r.Offset, next[r.Partition], before)
				}
				if !any {
					n.partitions.Add(1)
				}
				next[r.Partition], last[r.Partition] = r.Offset+1, number
				if n.seen[string(r.Value)]++; n.seen[string(r.Value)] == 1 {
					n.read.Add(1)
				}
			})
		}
		close(n.followed)
	}()
}

// check waits until all that was acknowledged has been read. Each number has to be there, and none twice.
func (n *numbered) check(t *testing.T) {
	t.Helper()
	close(n.enough)
	acked := int(n.acked.Load())
	select {
	case <-n.followed:
	case <-time.After(await.Patience):
		t.Fatalf("%s: %d have been read, of %d", n.topic, n.read.Load(), acked)
	}
	for value, times := range n.seen {
		if times != 1 {
			t.Errorf("%s: %s is there %d times", n.topic, value, times)
		}
	}
	for i := range acked {
		if n.seen[strconv.Itoa(i)] == 0 {
			t.Errorf("%s: %d of %d is lost", n.topic, i, acked)
		}
	}
	t.Logf("%s: %d records", n.topic, acked)
}

// produceInGo produces some 500 numbers a second, of which at most 100 are under way.
func produceInGo(t *testing.T, listener *eavesdropper, seeds []string) *numbered {
	t.Helper()
	n := &numbered{topic: "go"}
	client := soonBack(t, listener, seeds, kgo.MaxBufferedRecords(100), kgo.DefaultProduceTopic(n.topic))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			record := kgo.KeyStringRecord(strconv.Itoa(i%numberedKeys), strconv.Itoa(i))
			client.Produce(t.Context(), record, func(_ *kgo.Record, err error) {
				if err != nil {
					t.Errorf("franz-go's producer: %v", err)
					return
				}
				n.acked.Add(1)
			})
		}
	}()
	n.end = sync.OnceFunc(func() {
		close(stop)
		<-stopped
		if err := client.Flush(t.Context()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(n.end) // or what is still produced would be told to a test that is over
	return n
}

// produceInJava does the same with kafka-verifiable-producer, 200 a second.
func produceInJava(t *testing.T, cluster *kafka.Server, seeds []string) *numbered {
	t.Helper()
	n := &numbered{topic: "java"}
	settings := filepath.Join(t.TempDir(), "producer.properties")
	writeFile(t, settings, []byte("retries=2147483647\nenable.idempotence=true\n"+ // as every other producer of Java's; this one has no retries
		"reconnect.backoff.max.ms=100\n"))
	cmd := cluster.Command(t.Context(), "org.apache.kafka.tools.VerifiableProducer", "--bootstrap-server", strings.Join(seeds, ","), "--topic", n.topic,
		"--acks", "-1", "--throughput", "200", "--repeating-keys", strconv.Itoa(numberedKeys), "--command-config", settings)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	said := new(tail)
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	var ending atomic.Bool
	go func() {
		defer close(read)
		for lines := json.NewDecoder(out); ; {
			var line struct{ Name, Exception, Message string }
			if lines.Decode(&line) != nil {
				return // it has ended
			}
			switch line.Name {
			case "producer_send_success":
				n.acked.Add(1)
			case "producer_send_error":
				if ending.Load() && strings.Contains(line.Message, "Producer closed") { // the tool closes it while its loop goes on
					continue
				}
				t.Errorf("Java's producer: %s: %s", line.Exception, line.Message)
			}
		}
	}()
	n.end = sync.OnceFunc(func() {
		ending.Store(true)
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		<-read
		_ = cmd.Wait() // 143, for the signal
	})
	t.Cleanup(func() {
		n.end()
		if t.Failed() {
			t.Logf("kafka-verifiable-producer said:\n%s", said)
		}
	})
	return n
}

// onlyGateways fails if anybody but a gateway is connected to a broker where clients are, for longer than a moment, until the test ends. Brokers
// have a listener of their own for each other, and the test itself asks whether they are up. It returns how often it has looked.
func onlyGateways(t *testing.T, cluster kafka.Cluster) *atomic.Int64 {
	t.Helper()
	brokers := map[string]bool{}
	for _, s := range cluster {
		maps.Copy(brokers, hexOf(t, s.Addr))
	}
	looked := new(atomic.Int64)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		again := time.NewTicker(100 * time.Millisecond)
		defer again.Stop()
		var before map[string]bool
		ours := map[string]bool{}
		for ctx.Err() == nil {
			now, err := strangers(brokers, ours)
			if err != nil {
				t.Error(err)
				return
			}
			for socket := range now {
				if before[socket] { // else a gateway may have closed it meanwhile
					t.Errorf("somebody who is no gateway is connected to a broker, by the %s", socket)
					return
				}
			}
			before = now
			looked.Add(1)
			select {
			case <-again.C:
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return looked
}

// hexOf is an address as the kernel writes it: the second is Java's way.
func hexOf(t *testing.T, addr string) map[string]bool {
	t.Helper()
	host, port, _ := net.SplitHostPort(addr)
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	var little [4]byte
	enc.NativeEndian.PutUint32(little[:], enc.BigEndian.Uint32(net.ParseIP(host).To4()))
	v4 := fmt.Sprintf("%X:%04X", little, n)
	return map[string]bool{v4: true, "0000000000000000FFFF0000" + v4: true}
}

// socketsTo returns those to some addresses that are in a state.
func socketsTo(to map[string]bool, state string) (map[string]bool, error) {
	v4, err4 := os.ReadFile("/proc/net/tcp")
	v6, err6 := os.ReadFile("/proc/net/tcp6")
	if err := errors.Join(err4, err6); err != nil {
		return nil, err
	}
	all := map[string]bool{}
	for line := range strings.Lines(string(v4) + string(v6)) {
		const remote, is, inode = 2, 3, 9
		if f := strings.Fields(line); len(f) > inode && to[f[remote]] && f[is] == state {
			all["socket:["+f[inode]+"]"] = true
		}
	}
	return all, nil
}

// strangers returns the sockets that are connected to a broker, and neither a gateway's nor this process's. It adds those that are to ours: while a
// process ends, its last connections stand and nobody is shown to hold them.
func strangers(brokers, ours map[string]bool) (map[string]bool, error) {
	all, err := socketsTo(brokers, "01") // ESTABLISHED
	if err != nil {
		return nil, err
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	for _, p := range processes { // each may have ended
		if exe, _ := os.Readlink(filepath.Join(p, "exe")); exe != binary && p != fmt.Sprintf("/proc/%d", os.Getpid()) {
			continue
		}
		files, _ := os.ReadDir(filepath.Join(p, "fd"))
		for _, f := range files {
			if to, _ := os.Readlink(filepath.Join(p, "fd", f.Name())); all[to] {
				ours[to] = true
			}
		}
	}
	for socket := range ours {
		if !all[socket] {
			delete(ours, socket) // closed
		}
		delete(all, socket)
	}
	return all, nil
}
