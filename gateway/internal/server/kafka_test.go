package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/kafka"
	"github.com/weir-go/weir/internal/testbed/freeport"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// brokers starts a cluster in this process.
func brokers(t *testing.T, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

var nodePorts = freeport.Range{First: 23_500, Size: 1400}

// portsFor returns the first of n ports in a row where nobody listens.
func portsFor(t *testing.T, n uint32) int {
	t.Helper()
	first, err := nodePorts.Ports(n)
	if err != nil {
		t.Fatal(err)
	}
	return int(first)
}

// awaitNode waits until g listens at an address for a node: it may know one before that.
func awaitNode(t *testing.T, g *running, address string) string {
	t.Helper()
	eventually(t, "the gateway listens for a node at "+address, func() bool {
		return slices.ContainsFunc(g.cluster().Nodes, func(n kafka.NodeStatus) bool { return n.Address == address })
	})
	return address
}

// beforeKafka is a configuration for clients of a cluster, with nodes from the port first on.
func beforeKafka(t *testing.T, seeds []string, first, n int, listen string) *config.Config {
	t.Helper()
	cfg, err := config.Parse("weir.yaml", fmt.Appendf(nil, `
kafka:
  orders:
    bootstrap: [%s]
    listen: {address: "%s"}
    nodes: {ports: %d-%d, advertise: 127.0.0.1}
admin: {address: "off"}
shutdown: {grace: 1m, lame_duck: 0s}
`, `"`+strings.Join(seeds, `", "`)+`"`, listen, first, first+n-1))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// client is a client of Kafka that remembers where it has connected to.
type client struct {
	*kgo.Client
	mu     sync.Mutex
	dialed []string
}

func clientOf(t *testing.T, seed string, opts ...kgo.Opt) *client {
	t.Helper()
	c := new(client)
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		c.mu.Lock()
		c.dialed = append(c.dialed, address)
		c.mu.Unlock()
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	var err error
	if c.Client, err = kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(seed), kgo.Dialer(dial)}, opts...)...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseAllowingRebalance)
	return c
}

func (c *client) addresses() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.dialed)
}

// cluster is what the gateway shows of its only cluster.
func (g *running) cluster() kafka.Snapshot { return g.Kafka()[0] }

// asked sends requests on a connection of its own, as they are, and returns it.
func asked(t *testing.T, address string, requests ...[]byte) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(await.Patience)); err != nil {
		t.Fatal(err)
	}
	for _, r := range requests {
		if _, err := c.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// kafkaRequest is a request as it is sent.
func kafkaRequest(correlation int32, version int16, req kmsg.Request) []byte {
	req.SetVersion(version)
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("raw")).AppendRequest(nil, req, correlation)
}

// nextAnswer reads the next answer: its correlation id, and what follows.
func nextAnswer(t *testing.T, c net.Conn) (int32, []byte) {
	t.Helper()
	id, body, err := tryAnswer(c)
	if err != nil {
		t.Fatal(err)
	}
	return id, body
}

func tryAnswer(c net.Conn) (int32, []byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return 0, nil, err
	}
	answer := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(c, answer); err != nil {
		return 0, nil, err
	}
	return int32(binary.BigEndian.Uint32(answer)), answer[4:], nil
}

// nodesIn asks for the nodes, and returns their addresses as a client is told them.
func nodesIn(t *testing.T, address string) (all []string) {
	t.Helper()
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	c := asked(t, address, kafkaRequest(1, 8, req))
	defer c.Close()
	_, body := nextAnswer(t, c)
	resp := kmsg.NewPtrMetadataResponse()
	resp.SetVersion(8)
	if err := resp.ReadFrom(body); err != nil {
		t.Fatal(err)
	}
	for _, b := range resp.Brokers {
		all = append(all, net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port))))
	}
	slices.Sort(all)
	return all
}

// A client that knows the gateway alone produces to three brokers and reads from them in a group. No address of a broker reaches it.
func TestKafkaThroughTheGateway(t *testing.T) {
	t.Parallel()
	cluster := brokers(t, kfake.NumBrokers(3), kfake.SeedTopics(6, "orders"))
	for partition := range int32(6) { // else chance decides who leads, and may leave a broker without work
		if err := cluster.MoveTopicPartition("orders", partition, partition%3); err != nil {
			t.Fatal(err)
		}
	}
	first := portsFor(t, 3)
	g := start(t, beforeKafka(t, cluster.ListenAddrs(), first, 3, "127.0.0.1:0"), Options{})
	c := clientOf(t, g.Addr().String(), kgo.ConsumerGroup("readers"), kgo.ConsumeTopics("orders"), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	const records = 600
	var sent []*kgo.Record
	for i := range records {
		sent = append(sent, &kgo.Record{Topic: "orders", Value: fmt.Appendf(nil, "%d %s", i, strings.Repeat("x", 1000))})
	}
	if err := c.ProduceSync(t.Context(), sent...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for len(seen) < records {
		fetches := c.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) { seen[string(r.Value)] = true })
	}
	if err := c.CommitUncommittedOffsets(t.Context()); err != nil {
		t.Fatal(err)
	}
	own := []string{g.Addr().String()}
	for i := range 3 {
		own = append(own, fmt.Sprintf("127.0.0.1:%d", first+i))
	}
	for _, address := range c.addresses() {
		if !slices.Contains(own, address) {
			t.Errorf("the client connected to %s, and the gateway is at %v", address, own)
		}
	}
	if got := nodesIn(t, g.Addr().String()); !slices.Equal(got, own[1:]) {
		t.Errorf("a client is told of %v, not %v", got, own[1:])
	}
	s := g.cluster()
	for i, n := range s.Nodes {
		if n.Address != own[1+i] || n.Accepted == 0 || n.Trouble != "" || n.Broker != cluster.ListenAddrs()[i] {
			t.Errorf("%+v", n)
		}
	}
	if len(s.Nodes) != 3 || s.Connections == 0 {
		t.Errorf("%+v", s)
	}
	c.CloseAllowingRebalance()
	eventually(t, "no connection is left of a client that has gone", func() bool { return g.cluster().Connections == 0 })
}

// A node whose port somebody else has is in no answer, and the log says why.
func TestKafkaNodeWithoutPort(t *testing.T) {
	t.Parallel()
	cluster := brokers(t, kfake.NumBrokers(3))
	first := portsFor(t, 2)
	taken, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+1))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	g := start(t, beforeKafka(t, cluster.ListenAddrs(), first, 2, "127.0.0.1:0"), Options{}) // and the third is beyond the range
	if got, want := nodesIn(t, g.Addr().String()), []string{fmt.Sprintf("127.0.0.1:%d", first)}; !slices.Equal(got, want) {
		t.Errorf("a client is told of %v, not %v", got, want)
	}
	nodes := g.cluster().Nodes
	if len(nodes) != 3 || !strings.Contains(nodes[1].Trouble, "another process uses that port") || !strings.Contains(nodes[2].Trouble, "its port would be") {
		t.Errorf("%+v", nodes)
	}
	for _, n := range []int{1, 2} {
		if want := fmt.Sprintf("clients cannot reach it through this gateway\" cluster=orders node=%d ", n); !strings.Contains(g.log.String(), want) {
			t.Errorf("the log has no line about node %d", n)
		}
	}
}

// A node that comes while the gateway runs has its listener before a client hears of it.
func TestKafkaNodeComes(t *testing.T) {
	t.Parallel()
	cluster := brokers(t, kfake.NumBrokers(1))
	first := portsFor(t, 2)
	g := start(t, beforeKafka(t, cluster.ListenAddrs(), first, 2, "127.0.0.1:0"), Options{})
	if got := nodesIn(t, g.Addr().String()); len(got) != 1 {
		t.Fatalf("%v", got)
	}
	if _, _, err := cluster.AddNode(1, 0); err != nil {
		t.Fatal(err)
	}
	got := nodesIn(t, g.Addr().String())
	if len(got) != 2 {
		t.Fatalf("%v", got)
	}
	if again := nodesIn(t, got[1]); !slices.Equal(again, got) {
		t.Errorf("the new node says %v, not %v", again, got)
	}
}

// Answers come in the order of the requests, the gateway's own among them.
func TestKafkaKeepsTheOrder(t *testing.T) {
	t.Parallel()
	cluster := brokers(t, kfake.NumBrokers(1))
	g := start(t, beforeKafka(t, cluster.ListenAddrs(), portsFor(t, 1), 1, "127.0.0.1:0"), Options{})
	metadata := kmsg.NewPtrMetadataRequest()
	metadata.Topics = []kmsg.MetadataRequestTopic{}
	tooNew := kafkaRequest(2, 4, kmsg.NewPtrApiVersionsRequest())
	binary.BigEndian.PutUint16(tooNew[6:], 9) // a version that nobody knows
	c := asked(t, g.Addr().String(), slices.Concat(kafkaRequest(1, 9, metadata), tooNew, kafkaRequest(3, 9, metadata), tooNew, kafkaRequest(5, 3, kmsg.NewPtrApiVersionsRequest())))
	for i, want := range []int32{1, 2, 3, 2, 5} {
		id, body := nextAnswer(t, c)
		if id != want {
			t.Fatalf("answer %d is to request %d, not %d", i, id, want)
		}
		if id == 2 {
			resp := kmsg.NewPtrApiVersionsResponse()
			if err := resp.ReadFrom(body); err != nil || resp.ErrorCode != 35 {
				t.Errorf("%v: %+v", err, resp)
			}
		}
		if id == 5 {
			resp := kmsg.NewPtrApiVersionsResponse()
			resp.SetVersion(3)
			if err := resp.ReadFrom(body); err != nil {
				t.Fatal(err)
			}
			for _, k := range resp.ApiKeys {
				if k.ApiKey == 1 && k.MaxVersion > 15 || k.ApiKey == 27 || k.ApiKey == 80 {
					t.Errorf("%+v is offered", k)
				}
			}
		}
	}
}

// What breaks the protocol ends its connection with a line in the log, and nothing else.
func TestKafkaBadInput(t *testing.T) {
	t.Parallel()
	cluster := brokers(t, kfake.NumBrokers(1))
	g := start(t, beforeKafka(t, cluster.ListenAddrs(), portsFor(t, 1), 1, "127.0.0.1:0"), Options{})
	fetch16 := kafkaRequest(1, 16, kmsg.NewPtrFetchRequest())
	for name, bytes := range map[string][]byte{
		"minus one": {0xff, 0xff, 0xff, 0xff}, "nothing": {0, 0, 0, 0}, "three": {0, 0, 0, 3, 1, 2, 3}, "2 GiB": {0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0, 0, 0, 0, 0, 1},
		"HTTP": []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "TLS": {0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 0},
		"an API between brokers": {0, 0, 0, 10, 0, 27, 0, 0, 0, 0, 0, 1, 0xff, 0xff}, "a version that is not offered": fetch16,
	} {
		if id, _, err := tryAnswer(asked(t, g.Addr().String(), bytes)); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: answer %d, %v", name, id, err)
		}
	}
	if got := nodesIn(t, g.Addr().String()); len(got) != 1 {
		t.Errorf("%v", got)
	}
	eventually(t, "a line in the log", func() bool {
		return strings.Contains(g.log.String(), `"the gateway ended a connection of Kafka" cluster=orders peer=127.0.0.1:`)
	})
}

// held is a cluster that keeps the answer to one request for a topic until it is told.
func held(t *testing.T) (cluster *kfake.Cluster, request []byte, asked <-chan struct{}, let func()) {
	t.Helper()
	cluster = brokers(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"))
	came, go_ := make(chan struct{}), make(chan struct{})
	var once sync.Once
	let = sync.OnceFunc(func() { close(go_) })
	t.Cleanup(let)
	cluster.ControlKey(int16(kmsg.DeleteTopics), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.SleepControl(func() { once.Do(func() { close(came) }); <-go_ })
		return nil, nil, false
	})
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TopicNames = []string{"none"}
	return cluster, kafkaRequest(7, 1, req), came, let
}

// A shutdown accepts no more, closes what is idle, and waits for the answer that is under way.
func TestKafkaShutdown(t *testing.T) {
	t.Parallel()
	cluster, request, came, let := held(t)
	first := portsFor(t, 1)
	g := start(t, beforeKafka(t, cluster.ListenAddrs(), first, 1, "127.0.0.1:0"), Options{})
	node := awaitNode(t, g, fmt.Sprintf("127.0.0.1:%d", first))
	idle := asked(t, g.Addr().String(), kafkaRequest(1, 0, kmsg.NewPtrListGroupsRequest()))
	nextAnswer(t, idle)
	busy := asked(t, node, request)
	<-came
	g.cancel()
	if _, _, err := tryAnswer(idle); !errors.Is(err, io.EOF) {
		t.Errorf("an idle connection: %v", err)
	}
	eventually(t, "nobody is accepted", func() bool {
		c, err := net.Dial("tcp", node)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	select {
	case err := <-g.ended:
		t.Fatalf("ended with an answer under way: %v", err)
	default:
	}
	let()
	if id, _ := nextAnswer(t, busy); id != 7 {
		t.Errorf("an answer to request %d", id)
	}
	if _, _, err := tryAnswer(busy); !errors.Is(err, io.EOF) {
		t.Errorf("after the answer: %v", err)
	}
	if err := g.wait(); err != nil {
		t.Errorf("%v", err)
	}
}

// What is in flight at the end of the grace period is cut off.
func TestKafkaShutdownCuts(t *testing.T) {
	t.Parallel()
	cluster, request, came, _ := held(t)
	cfg := beforeKafka(t, cluster.ListenAddrs(), portsFor(t, 1), 1, "127.0.0.1:0")
	cfg.Shutdown.Grace = policy.Duration(time.Millisecond)
	g := start(t, cfg, Options{})
	busy := asked(t, g.Addr().String(), request)
	<-came
	if err := g.stop(); !errors.Is(err, ErrGrace) {
		t.Errorf("%v", err)
	}
	if _, _, err := tryAnswer(busy); err == nil {
		t.Error("an answer")
	}
}

// A reload keeps connections while the cluster's settings stay. Other settings end them between two requests, and the nodes that
// stay keep their sockets.
func TestKafkaReload(t *testing.T) {
	t.Parallel()
	cluster := brokers(t, kfake.NumBrokers(1))
	first, listen := portsFor(t, 2), closedPort(t)
	one := beforeKafka(t, cluster.ListenAddrs(), first, 1, listen)
	next := one
	g := start(t, one, Options{Load: func() (*config.Config, error) { return next, nil }})
	c := asked(t, listen, kafkaRequest(1, 0, kmsg.NewPtrListGroupsRequest()))
	nextAnswer(t, c)

	limited := beforeKafka(t, cluster.ListenAddrs(), first, 1, listen)
	limited.Kafka["orders"].Listen.MaxConnections = 77
	next = limited
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	if got := g.Connections()[0].Limit; got != 77 {
		t.Errorf("%d connections may be open", got)
	}
	if _, err := c.Write(kafkaRequest(2, 0, kmsg.NewPtrApiVersionsRequest())); err != nil {
		t.Fatal(err)
	}
	if id, _ := nextAnswer(t, c); id != 2 {
		t.Errorf("an answer to request %d", id)
	}

	next = beforeKafka(t, cluster.ListenAddrs(), first, 2, listen)
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := tryAnswer(c); !errors.Is(err, io.EOF) {
		t.Errorf("a connection under the old settings: %v", err)
	}
	want := awaitNode(t, g, fmt.Sprintf("127.0.0.1:%d", first))
	if got := nodesIn(t, want); len(got) != 1 || got[0] != want {
		t.Errorf("a client is told of %v, not %s", got, want)
	}
}

// The counters of a cluster go on over a reload to other settings. A connection whose answer is still under way counts as before.
func TestKafkaReloadKeepsCounters(t *testing.T) {
	t.Parallel()
	cluster, request, came, let := held(t)
	first := portsFor(t, 3)
	listen := fmt.Sprintf("127.0.0.1:%d", first+2)
	next := beforeKafka(t, cluster.ListenAddrs(), first, 1, listen)
	g := start(t, next, Options{Load: func() (*config.Config, error) { return next, nil }})
	node := awaitNode(t, g, fmt.Sprintf("127.0.0.1:%d", first))
	busy := asked(t, node, request)
	<-came
	next = beforeKafka(t, cluster.ListenAddrs(), first, 2, listen)
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	if s := g.cluster(); s.Connections != 1 || len(s.APIs) != 1 || s.APIs[0].Requests != 1 || len(s.Nodes) != 1 || s.Nodes[0].Accepted != 1 {
		t.Fatalf("after the reload: %+v", s)
	}
	let()
	if id, _ := nextAnswer(t, busy); id != 7 {
		t.Errorf("an answer to request %d", id)
	}
	eventually(t, "the last answer is counted, and its connection has ended", func() bool {
		s := g.cluster()
		return s.Connections == 0 && s.APIs[0].Answers == 1 && s.Nodes[0].Answers == 1
	})
}

// A reload that moves only the address where clients bootstrap leaves no node out: its listener has the socket that it had.
func TestKafkaReloadMovesListen(t *testing.T) {
	t.Parallel()
	cluster := brokers(t, kfake.NumBrokers(1))
	first := portsFor(t, 3)
	listen, moved := fmt.Sprintf("127.0.0.1:%d", first+1), fmt.Sprintf("127.0.0.1:%d", first+2)
	next := beforeKafka(t, cluster.ListenAddrs(), first, 1, listen)
	g := start(t, next, Options{Load: func() (*config.Config, error) { return next, nil }})
	want := awaitNode(t, g, fmt.Sprintf("127.0.0.1:%d", first))
	old := asked(t, want, kafkaRequest(1, 0, kmsg.NewPtrListGroupsRequest()))
	nextAnswer(t, old)
	next = beforeKafka(t, cluster.ListenAddrs(), first, 1, moved)
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	if nodes := g.cluster().Nodes; len(nodes) != 1 || nodes[0].Address != want {
		t.Errorf("right after the reload: %+v", nodes)
	}
	if _, _, err := tryAnswer(old); !errors.Is(err, io.EOF) {
		t.Errorf("a connection under the old settings: %v", err)
	}
	eventually(t, "the old gateway is gone", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.parting) == 0
	})
	for _, address := range []string{moved, want} {
		if got := nodesIn(t, address); len(got) != 1 || got[0] != want {
			t.Errorf("a client at %s is told of %v, not %s", address, got, want)
		}
	}
	if strings.Contains(g.log.String(), "left out of all answers") {
		t.Error("the log says that the node was left out")
	}
}

// A node whose port another listener gives up in the same reload has it as soon as that has closed its socket, without a word in the log.
// The clusters are away by then, so it is no answer of theirs that has the port tried again.
func TestKafkaReloadHandsPortsOver(t *testing.T) {
	t.Parallel()
	type ports struct{ http, orders, bills int } // 0 for none; those of clusters are of their only nodes
	for name, c := range map[string]struct{ before, after ports }{
		"two clusters swap the ports of their nodes": {ports{orders: 1, bills: 2}, ports{orders: 2, bills: 1}},
		"a port of HTTP becomes one of a node":       {ports{orders: 1, http: 2}, ports{orders: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := portsFor(t, 5)
			clusters := map[string]*kfake.Cluster{"orders": brokers(t, kfake.NumBrokers(1)), "bills": brokers(t, kfake.NumBrokers(1))}
			with := func(p ports) *config.Config {
				text := "admin: {address: \"off\"}\nshutdown: {grace: 1m, lame_duck: 0s}\n"
				if p.http > 0 {
					text += fmt.Sprintf("listeners: [{address: \"127.0.0.1:%d\"}]\nupstreams: {app: {targets: [\"http://127.0.0.1:9\"]}}\nroutes: [{match: [/], upstream: app}]\n", first+p.http)
				}
				text += "kafka:\n"
				for i, name := range []string{"orders", "bills"} {
					if port := []int{p.orders, p.bills}[i]; port > 0 {
						text += fmt.Sprintf("  %s: {bootstrap: [\"%s\"], listen: {address: \"127.0.0.1:%d\"}, nodes: {ports: %d-%[4]d, advertise: 127.0.0.1}}\n",
							name, clusters[name].ListenAddrs()[0], first+3+i, first+port)
					}
				}
				cfg, err := config.Parse("weir.yaml", []byte(text))
				if err != nil {
					t.Fatal(err)
				}
				return cfg
			}
			next := with(c.before)
			g := start(t, next, Options{Load: func() (*config.Config, error) { return next, nil }})
			awaitPorts := func(p ports) {
				t.Helper()
				eventually(t, "each node has its listener", func() bool {
					for _, s := range g.Kafka() {
						port := map[string]int{"orders": p.orders, "bills": p.bills}[s.Cluster]
						if len(s.Nodes) != 1 || s.Nodes[0].Address != fmt.Sprintf("127.0.0.1:%d", first+port) {
							return false
						}
					}
					return true
				})
			}
			awaitPorts(c.before)
			next = with(c.after)
			for _, cluster := range clusters {
				cluster.Close()
			}
			if err := g.Reload(); err != nil {
				t.Fatal(err)
			}
			awaitPorts(c.after)
			if strings.Contains(g.log.String(), "left out of all answers") {
				t.Error("the log says that a node was left out")
			}
		})
	}
}

// A reload to other settings while the cluster is away leaves no client waiting, at no listener: each is reset.
func TestKafkaReloadWhileAway(t *testing.T) {
	t.Parallel()
	cluster := brokers(t, kfake.NumBrokers(1))
	first, listen := portsFor(t, 2), closedPort(t)
	next := beforeKafka(t, cluster.ListenAddrs(), first, 2, listen)
	g := start(t, beforeKafka(t, cluster.ListenAddrs(), first, 1, listen), Options{Load: func() (*config.Config, error) { return next, nil }})
	node := awaitNode(t, g, fmt.Sprintf("127.0.0.1:%d", first))
	cluster.Close()
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{listen, node} {
		if err := lists(address); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a client at %s: %v", address, err)
		}
	}
}

// A client that a reload meets between ApiVersions and its first request comes back. An end in order would tell franz-go that a login is
// missing, and it would not try again.
func TestKafkaReloadMeetsANewClient(t *testing.T) {
	t.Parallel()
	cluster := brokers(t, kfake.NumBrokers(1))
	first, listen := portsFor(t, 2), closedPort(t)
	next := beforeKafka(t, cluster.ListenAddrs(), first, 2, listen)
	g := start(t, beforeKafka(t, cluster.ListenAddrs(), first, 1, listen), Options{Load: func() (*config.Config, error) { return next, nil }})
	var reload sync.Once
	dial := func(ctx context.Context, network, address string) (c net.Conn, err error) {
		c, err = new(net.Dialer).DialContext(ctx, network, address)
		reload.Do(func() { c = &hesitant{Conn: c, until: g.Reload} })
		return c, err
	}
	if _, err := kmsg.NewPtrMetadataRequest().RequestWith(t.Context(), clientOf(t, listen, kgo.Dialer(dial)).Client); err != nil {
		t.Error(err)
	}
}

// hesitant is a connection that writes its first request but ApiVersions when something has ended it. It goes on to read that end.
type hesitant struct {
	net.Conn
	until func() error
	wrote bool
	ended error
}

func (h *hesitant) Write(b []byte) (int, error) {
	if !h.wrote && binary.BigEndian.Uint16(b[4:]) != uint16(kmsg.ApiVersions) {
		if err := h.until(); err != nil {
			return 0, err
		}
		h.wrote = true
		_, h.ended = h.Conn.Read(make([]byte, 1))
	}
	return h.Conn.Write(b)
}

func (h *hesitant) Read(b []byte) (int, error) {
	if h.ended != nil {
		return 0, h.ended
	}
	return h.Conn.Read(b)
}

// TLS is on the listeners of nodes too, whatever it is to the brokers. All of them get a new certificate with a reload, and a shutdown ends
// what is idle.
func TestKafkaTLS(t *testing.T) {
	t.Parallel()
	brokerCert, brokerKey := certificate(t)
	pair, err := tls.LoadX509KeyPair(brokerCert, brokerKey)
	if err != nil {
		t.Fatal(err)
	}
	cluster := brokers(t, kfake.NumBrokers(1), kfake.TLS(&tls.Config{Certificates: []tls.Certificate{pair}}))
	_, port, err := net.SplitHostPort(cluster.ListenAddrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	cert, key := certificate(t)
	first := portsFor(t, 1)
	cfg := beforeKafka(t, []string{"localhost:" + port}, first, 1, "127.0.0.1:0")
	k := cfg.Kafka["orders"]
	k.TLS = &config.StoreTLS{CA: brokerCert}
	k.Listen.TLS = &config.TLS{Cert: cert, Key: key}
	cfg.Kafka["orders"] = k
	cluster.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		resp := kmsg.NewPtrMetadataResponse()
		number, _ := strconv.Atoi(port)
		resp.Brokers = []kmsg.MetadataResponseBroker{{Host: "localhost", Port: int32(number)}} // the name in the certificate
		resp.SetVersion(req.GetVersion())
		return resp, nil, true
	})
	g := start(t, cfg, Options{Load: func() (*config.Config, error) { return cfg, nil }})
	node := awaitNode(t, g, fmt.Sprintf("127.0.0.1:%d", first))
	trusting := func(cert string) *tls.Conn {
		t.Helper()
		pem, err := os.ReadFile(cert)
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		raw := asked(t, node)
		c := tls.Client(raw, &tls.Config{RootCAs: pool, ServerName: "localhost"})
		if _, err := c.Write(kafkaRequest(1, 0, kmsg.NewPtrListGroupsRequest())); err != nil {
			t.Fatal(err)
		}
		if id, _ := nextAnswer(t, c); id != 1 {
			t.Errorf("an answer to request %d", id)
		}
		return c
	}
	old := trusting(cert)
	newCert, newKey := certificate(t)
	for from, to := range map[string]string{newCert: cert, newKey: key} {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	trusting(cert)
	if err := g.stop(); err != nil {
		t.Errorf("%v", err)
	}
	if _, _, err := tryAnswer(old); !errors.Is(err, io.EOF) {
		t.Errorf("an idle connection: %v", err)
	}
}

// lists lists the groups of a cluster, on a connection of its own that may be reset at any time.
func lists(address string) error {
	c, err := net.DialTimeout("tcp", address, await.Patience)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(await.Patience)); err != nil {
		return err
	}
	if _, err := c.Write(kafkaRequest(1, 0, kmsg.NewPtrListGroupsRequest())); err != nil {
		return err
	}
	_, _, err = tryAnswer(c)
	return err
}

// A cluster that is away at the start lets nobody in: clients are reset at once, and come back or go on to another gateway. The gateway
// stops all the same, and serves clients if the cluster comes.
func TestKafkaAway(t *testing.T) {
	t.Parallel()
	for name, comes := range map[string]bool{"it stays away": false, "it comes": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			port := portsFor(t, 2) + 1
			g := start(t, beforeKafka(t, []string{fmt.Sprintf("127.0.0.1:%d", port)}, port-1, 1, "127.0.0.1:0"), Options{})
			eventually(t, "a line in the log", func() bool { return strings.Contains(g.log.String(), "Kafka does not answer which nodes it has") })
			if err := lists(g.Addr().String()); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("a client without a cluster: %v", err)
			}
			if b := g.cluster().Bootstrap; b.Accepted != 1 || b.Failed != 1 {
				t.Errorf("%+v", b)
			}
			if comes {
				brokers(t, kfake.NumBrokers(1), kfake.Ports(port))
				eventually(t, "a client is served", func() bool { return lists(g.Addr().String()) == nil })
			}
			if err := g.stop(); err != nil {
				t.Errorf("%v", err)
			}
		})
	}
}

// limitedKafka is beforeKafka with a quota of bytes for each user, in the words of the file.
func limitedKafka(t *testing.T, seeds []string, first int, listen, settings string) *config.Config {
	t.Helper()
	cfg, err := config.Parse("weir.yaml", fmt.Appendf(nil, `
kafka:
  orders:
    bootstrap: ["%s"]
    listen: {address: "%s"}
    nodes: {ports: %d-%[3]d, advertise: 127.0.0.1}
    quotas: {produce: in, max_throttle: 1h}
gates:
  in: {quota: {%s, by: [user]}}
admin: {address: "127.0.0.1:0"}
shutdown: {grace: 1m, lame_duck: 0s}
`, seeds[0], listen, first, settings))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// produceRequest is a request to produce that has no answer, with so many bytes that are no records.
func produceRequest(correlation int32, n int) []byte {
	req := kmsg.NewPtrProduceRequest()
	topic, part := kmsg.NewProduceRequestTopic(), kmsg.NewProduceRequestTopicPartition()
	part.Records = make([]byte, n)
	topic.Topic, topic.Partitions = "orders", append(topic.Partitions, part)
	req.Acks, req.Topics = 0, append(req.Topics, topic)
	return kafkaRequest(correlation, 9, req)
}

// A reload keeps connections, what is owed, and who waits for it. The new settings hold for what comes then: at a higher rate a debt is
// paid back sooner, and who waits already waits as long as was said.
func TestKafkaReloadKeepsDebts(t *testing.T) {
	t.Parallel()
	cluster := brokers(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"))
	first, listen := portsFor(t, 1), closedPort(t)
	next := limitedKafka(t, cluster.ListenAddrs(), first, listen, "rate: 10/s, burst: 1000")
	g := start(t, next, Options{Load: func() (*config.Config, error) { return next, nil }})
	c := asked(t, listen, produceRequest(1, 20_000))
	eventually(t, "the client is not read", func() bool { return g.cluster().Muted == 1 })
	before := g.cluster().MutedLongest[0]
	ask := func() quota.Answer {
		t.Helper()
		a, _ := g.Policy().Gate("in").Quota().Peek(t.Context(), weir.Work{User: "ANONYMOUS", Client: "raw"})
		return a
	}
	if left := ask().Remaining; left > -18_000 {
		t.Fatalf("%v tokens left", left)
	}
	next = limitedKafka(t, cluster.ListenAddrs(), first, listen, "rate: 5/s, burst: 2000")
	next.Kafka["orders"].Listen.MaxConnections = 77
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	if a := ask(); a.Remaining > -18_000 || a.Windows[0].Rate != 5 {
		t.Errorf("after the reload: %+v", a)
	}
	s := g.cluster()
	if s.Muted != 1 || s.MutedLongest[0].From != before.From || !s.MutedLongest[0].Until.Equal(before.Until) || s.Connections != 1 || g.Connections()[0].Limit != 77 {
		t.Errorf("after the reload: %+v, and before %+v", s, before)
	}
	if _, err := c.Write(kafkaRequest(2, 0, kmsg.NewPtrApiVersionsRequest())); err != nil {
		t.Errorf("the connection has ended: %v", err)
	}
	if got := g.log.String(); strings.Count(got, "a quota begins to delay clients") != 1 || !strings.Contains(got, `cluster=orders quota=produce gate=in rule="user=*" bucket="in/user=ANONYMOUS" user=ANONYMOUS client=raw wait=`) {
		t.Error("not one line about the delay")
	}
	if _, metrics := get(t, "http://"+g.AdminAddr().String()+"/metrics"); !strings.Contains(metrics, `weir_kafka_delays_total{bucket="in/user=ANONYMOUS",gate="in"} 1`) {
		t.Error("no delay in the metrics")
	}
	if _, answer := get(t, "http://"+g.AdminAddr().String()+"/explain?kafka=orders&api=Produce"); !strings.Contains(answer, `"says": "delays"`) {
		t.Errorf("%s", answer)
	}

	// The wait of somebody who owes little is over while the other still waits, on a gate with other settings.
	next = limitedKafka(t, cluster.ListenAddrs(), first, listen, "rate: 100000/s, burst: 1000")
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	other := asked(t, listen, produceRequest(1, 500), kafkaRequest(2, 0, kmsg.NewPtrApiVersionsRequest()))
	if id, _ := nextAnswer(t, other); id != 2 {
		t.Errorf("an answer to request %d", id)
	}
	if s := g.cluster(); s.Muted != 1 || !s.MutedLongest[0].Until.Equal(before.Until) {
		t.Errorf("%+v", s)
	}
	if err := g.stop(); err != nil { // who waits ends at once, with the request that it has sent
		t.Error(err)
	}
}
