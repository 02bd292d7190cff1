package kafka

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// A replaced server is freed, however many servers follow each other.
func TestReplacedServerIsForgotten(t *testing.T) {
	r := newRig(t, policy.Off, time.Minute)
	o := r.server.opts
	o.Open = func(string, *accept.Listener) (*accept.Listener, error) { return nil, net.ErrClosed }
	var replaced []weak.Pointer[Server]
	last := r.server
	for range 3 {
		o.Previous = last
		next, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		next.nodes.advertised(1, "127.0.0.1", 9092)
		next.serveNodes()
		next.forgetPrevious()
		replaced = append(replaced, weak.Make(next))
		if err := last.Close(); err != nil {
			t.Fatal(err)
		}
		last = next
	}
	o.Previous = nil
	await.That(t, "the servers before the last are forgotten", func() bool {
		runtime.GC()
		return replaced[0].Value() == nil && replaced[1].Value() == nil
	})
	if replaced[2].Value() != last {
		t.Error("and so is the last")
	}
	_ = last.Close()
}

// Nodes are known from the beginning if the servers before and now bootstrap at a broker in common. Otherwise it may be another cluster.
func TestNodesStayKnown(t *testing.T) {
	for _, c := range []struct {
		now   []string
		known int
	}{{[]string{"a:1", "b:1"}, 1}, {[]string{"c:1", "b:1"}, 1}, {[]string{"c:1"}, 0}} {
		r := newRig(t, policy.Off, time.Minute)
		r.server.opts.Config.Bootstrap = []string{"a:1", "b:1"}
		r.server.nodes.advertised(7, "127.0.0.1", 9092)
		o := r.server.opts
		o.Config.Bootstrap, o.Previous = c.now, r.server
		next, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(next.nodes.addresses()); got != c.known {
			t.Errorf("with %v behind %v, %d nodes are known, want %d", c.now, r.server.opts.Config.Bootstrap, got, c.known)
		}
		_ = next.Close()
	}
}

// The counters of a cluster go on in the server that replaces another, also by what the other still does. Another cluster has its own.
func TestCountersGoOn(t *testing.T) {
	for name, want := range map[string]uint64{"orders": 2, "another": 0} {
		r := newRig(t, policy.Off, time.Minute)
		o := r.server.opts
		o.Cluster, o.Previous = name, r.server
		o.Open = func(string, *accept.Listener) (*accept.Listener, error) { return nil, net.ErrClosed }
		was := r.server.counts
		count := func() {
			was.logins.ok.Add(1)
			was.throttled.produce.times.Add(1)
			was.moved[keyFetch].requests.Add(1)
			r.server.bootstrap.accepted.Add(1)
			was.of(7).failed.Add(1)
			was.of(7).open.Add(1)
		}
		count()
		next, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		next.nodes.advertised(7, "127.0.0.1", 9092)
		count()
		s := next.Snapshot()
		var fetches uint64
		for _, a := range s.APIs {
			fetches += a.Requests
		}
		i := slices.IndexFunc(s.Nodes, func(n NodeStatus) bool { return n.Node == 7 })
		for what, got := range map[string]uint64{
			"logins": s.Logins, "delays": s.ThrottledProduce.Times, "fetches": fetches, "clients accepted": s.Bootstrap.Accepted,
			"clients failed at a node": s.Nodes[i].Failed, "connections": uint64(s.Connections),
		} {
			if got != want {
				t.Errorf("cluster %s: %d %s, not %d", name, got, what, want)
			}
		}
		_ = next.Close()
	}
}

// However many nodes come and go, no more than mostNodes have counters that outlast them.
func TestCountersAreBounded(t *testing.T) {
	c := newCounters()
	for id := range int32(mostNodes + 100) {
		c.of(id).accepted.Add(1)
	}
	if n := c.of(mostNodes + 7).accepted.Load(); len(c.nodes) != mostNodes || c.of(3).accepted.Load() != 1 || n != 0 {
		t.Errorf("%d nodes have counters, one too many has counted %d", len(c.nodes), n)
	}
}

// nodesOf are nodes that are not served, with advertised ports from 9000 on. Before a listener is opened, its address is passed to the
// test.
func nodesOf(t *testing.T, opens func(address string) error) *nodes {
	k := config.Kafka{Listen: &config.KafkaListen{Address: "127.0.0.1:8999"}, Nodes: &config.KafkaNodes{Ports: "9000-9009", Advertise: "gateway"}}
	k.Listen.SetDefaults()
	ns := newNodes(&k, newCounters())
	ns.log, ns.serve = slog.New(slog.DiscardHandler), func(*node) {}
	ns.open = func(address string) (*accept.Listener, error) {
		if err := opens(address); err != nil {
			return nil, err
		}
		return accept.Open(accept.Options{Config: k.Listen.Listener("127.0.0.1:0"), Bare: true})
	}
	t.Cleanup(func() {
		for _, l := range ns.close() {
			_ = l.Close()
		}
	})
	return ns
}

// reached reports whether answers name a node, and at which address.
func (ns *nodes) reached(id int32) bool {
	host, port, ok := ns.advertised(id, "broker", 9092)
	return ok && host == "gateway" && port == 9000+id
}

// A listener may take long to open, because its name is looked up. Answers that name other nodes go on meanwhile. Answers that name this
// node wait for it. So no client gets a closed port, or misses a broker that exists.
func TestSlowListener(t *testing.T) {
	begun, goOn := make(chan struct{}), make(chan struct{})
	ns := nodesOf(t, func(address string) error {
		if strings.HasSuffix(address, ":9002") {
			close(begun)
			<-goOn
		}
		return nil
	})
	if !ns.reached(1) {
		t.Fatal("the first node is not known")
	}
	named := make(chan bool, 2)
	for range cap(named) {
		go func() { named <- ns.reached(2) }()
	}
	<-begun
	others := make(chan bool, 1)
	go func() {
		others <- ns.reached(1) && len(ns.status()) == 2 && ns.one() == 1 && len(ns.addresses()) == 2
	}()
	select {
	case ok := <-others:
		if !ok {
			t.Error("the first node is not as it was")
		}
	case <-time.After(await.Patience):
		t.Error("a listener that is being opened holds up an answer that names another node")
	}
	if len(named) > 0 {
		t.Error("an answer names a node whose listener is not open")
	}
	close(goOn)
	for range cap(named) {
		if !<-named {
			t.Error("the second node is not known")
		}
	}
}

// A node whose listener cannot be opened, or fails later, is in no answer. After the next answer of the cluster the listener is tried
// again. A node that the cluster no longer names stays for some answers, and then its listener is closed.
func TestListenerThatFails(t *testing.T) {
	taken := true
	var said logs
	ns := nodesOf(t, func(string) error {
		if taken {
			return syscall.EADDRINUSE
		}
		return nil
	})
	ns.log = slog.New(slog.NewTextHandler(&said, nil))
	cluster := []kmsg.MetadataResponseBroker{{NodeID: 1, Host: "broker", Port: 9092}}
	ns.named(cluster)
	ns.named(cluster)
	if n := strings.Count(said.String(), "left out of all answers"); n != 1 {
		t.Errorf("the same trouble is logged %d times", n)
	}
	if ns.reached(1) || ns.status()[0].Trouble == "" {
		t.Errorf("its port is taken: %+v", ns.status())
	}
	taken = false
	if ns.reached(1) {
		t.Error("each answer tries again")
	}
	ns.named(cluster)
	if !ns.reached(1) || ns.status()[0].Trouble != "" {
		t.Errorf("its port is free: %+v", ns.status())
	}
	was := ns.known[1]
	ns.lost(was, net.ErrClosed)
	if ns.reached(1) {
		t.Error("a listener that has failed is named")
	}
	ns.named(cluster)
	if !ns.reached(1) || ns.known[1] != was {
		t.Errorf("it is not opened again: %+v", ns.status())
	}
	for range gone {
		if len(ns.known) != 1 {
			t.Error("a node that restarts has gone")
		}
		ns.named(nil)
	}
	if _, err := was.conns.Accept(); len(ns.known) != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("%d nodes are left, %v", len(ns.known), err)
	}
	ns.lost(was, net.ErrClosed) // too late
	if was.trouble != "" {
		t.Errorf("the listener of a node that has gone failed: %s", was.trouble)
	}
}

// However many nodes a cluster names, no more than mostNodes are known. The addresses of the others are in no answer either.
func TestNodesAreBounded(t *testing.T) {
	ns := nodesOf(t, func(string) error { return nil })
	for id := range int32(mostNodes + 100) {
		if host, _, ok := ns.advertised(id, "broker", 9092); ok != (id < 10) || host != "gateway" {
			t.Errorf("node %d: %s, %v", id, host, ok)
		}
	}
	if _, _, ok := ns.advertised(-1, "broker", 9092); ok || len(ns.known) != mostNodes {
		t.Errorf("%d are known", len(ns.known))
	}
}

// A listener that is opened after the server has stopped accepting is closed again.
func TestListenerTooLate(t *testing.T) {
	ns := nodesOf(t, func(string) error { return nil })
	open := ns.open
	var opened *accept.Listener
	ns.open = func(address string) (l *accept.Listener, err error) {
		ns.close()
		opened, err = open(address)
		return opened, err
	}
	if ns.reached(1) {
		t.Error("clients are told of a node that is not served")
	}
	if _, err := opened.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// full is a listener that lacks descriptors for a while, and then accepts one client.
type full struct {
	net.Listener
	left int
	then net.Conn
}

func (l *full) Accept() (net.Conn, error) {
	if l.left--; l.left >= 0 {
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	} else if l.left == -1 {
		return l.then, nil
	}
	return nil, net.ErrClosed
}

// A process without descriptors accepts again when it has some, and neither spins meanwhile nor fills the log.
func TestNoDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said logs
		s := &Server{log: slog.New(slog.NewTextHandler(&said, nil)), bootstrap: node{nodeCounters: new(nodeCounters)}, closed: true} // so that no broker is needed
		s.stopping, s.stop = context.WithCancel(t.Context())
		other, client := net.Pipe()
		begun := time.Now()
		if err := s.accept(&full{left: 10, then: other}, &s.bootstrap); !errors.Is(err, net.ErrClosed) || s.bootstrap.accepted.Load() != 1 {
			t.Errorf("%v, %d accepted", err, s.bootstrap.accepted.Load())
		}
		if _, err := client.Read(make([]byte, 1)); err != io.EOF {
			t.Error(err)
		}
		// 5, 10, 20 ... 640 ms, and then a second twice
		if passed, lines := time.Since(begun), strings.Count(said.String(), "trying again"); passed != 3275*time.Millisecond || lines != 1 {
			t.Errorf("%d lines in %v", lines, passed)
		}
	})
}

// single is a listener that accepts one client.
type single struct {
	net.Listener
	client net.Conn
	closed context.Context
}

func (l *single) Accept() (net.Conn, error) {
	if c := l.client; c != nil {
		l.client = nil
		return c, nil
	}
	<-l.closed.Done()
	return nil, net.ErrClosed
}

// A cluster that accepts connections and says nothing holds nobody up for the time-out of a question. Known nodes are served at once, and
// a client that bootstraps is reset after a second.
func TestSilentCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := config.Kafka{Bootstrap: []string{"broker:9092"}, Listen: new(config.KafkaListen), Nodes: &config.KafkaNodes{Ports: "1-1"}}
		s, err := New(Options{Cluster: "orders", Config: k, Logger: slog.New(slog.DiscardHandler), Previous: new(Server)})
		if err != nil {
			t.Fatal(err)
		}
		s.asks.Close()
		silent := func(ctx context.Context, _, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
		if s.asks, err = kgo.NewClient(kgo.Dialer(silent)); err != nil {
			t.Fatal(err)
		}
		other, client := net.Pipe()
		go s.Serve(&single{client: other, closed: s.stopping})
		synctest.Wait()
		if !s.ready || s.opts.Previous == nil {
			t.Error("known nodes wait for the answer, or those in the answer find no sockets")
		}
		begun := time.Now()
		if _, err := client.Read(make([]byte, 1)); err != io.EOF || time.Since(begun) != awayAfter {
			t.Errorf("a client that bootstraps gets %v after %v", err, time.Since(begun))
		}
		if err := s.Close(); err != nil || s.opts.Previous != nil {
			t.Errorf("%v, or the previous server is not freed", err)
		}
	})
}
