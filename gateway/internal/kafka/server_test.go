package kafka

import (
	"log/slog"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// A server that another one has taken the place of is forgotten, however many follow each other.
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
		next.nodes.Advertised(1, "127.0.0.1", 9092)
		next.serveNodes()
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

// A listener may take long to open, because its name is looked up. Answers that name other nodes go on meanwhile. Those that name this one wait
// for it, so nobody is sent to a port that is not open, or is not told of a broker that is there.
func TestSlowListener(t *testing.T) {
	k := config.Kafka{Listen: &config.KafkaListen{Address: "127.0.0.1:8999"}, Nodes: &config.KafkaNodes{Ports: "9000-9009", Advertise: "gateway"}}
	k.Listen.SetDefaults()
	ns := newNodes(&k)
	ns.log, ns.serve = slog.New(slog.DiscardHandler), func(*node) {}
	begun, goOn := make(chan struct{}), make(chan struct{})
	ns.open = func(address string) (*accept.Listener, error) {
		if strings.HasSuffix(address, ":9002") {
			close(begun)
			<-goOn
		}
		return accept.Open(accept.Options{Config: k.Listen.Listener("127.0.0.1:0"), Bare: true})
	}
	defer func() {
		for _, l := range ns.close() {
			_ = l.Close()
		}
	}()
	known := func(id int32) bool {
		host, port, ok := ns.Advertised(id, "broker", 9092)
		return ok && host == "gateway" && port == 9000+id
	}
	if !known(1) {
		t.Fatal("the first node is not known")
	}
	named := make(chan bool, 2)
	for range cap(named) {
		go func() { named <- known(2) }()
	}
	<-begun
	others := make(chan bool, 1)
	go func() {
		others <- known(1) && len(ns.status()) == 2 && ns.one() == 1 && len(ns.addresses()) == 2
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
