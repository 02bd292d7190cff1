package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/config"
)

// nodes are the brokers of a cluster, each with a listener of its own. A broker that has none is left out of
// all answers, so that its own address reaches nobody.
type nodes struct {
	host        string // that the listeners bind to
	first, last int    // ports
	advertise   string
	open        func(address string) (*accept.Listener, error)
	serve       func(*node)
	log         *slog.Logger

	// opening is held by whoever learns of a node and opens its listener. The name that it listens at may have to be looked up first, and that
	// takes a while. Only answers wait for it that name this node, or another new one.
	opening sync.Mutex

	mu     sync.RWMutex
	known  map[int32]*node
	closed bool
}

// node is a broker. Its fields but the counters are guarded by nodes.mu.
type node struct {
	id      int32
	port    int              // of its listener; 0 if the range has none for it
	address string           // its own, host:port
	conns   *accept.Listener // nil while there is none
	trouble string           // why there is none
	unseen  int              // how often in a row the cluster has not named it

	open     atomic.Int64 // connections
	accepted atomic.Uint64
	failed   atomic.Uint64 // connections that the broker did not take
	moved    counted
}

// gone is how often in a row the cluster must leave a node out until its listener closes. A broker that restarts is out for
// less.
const gone = 3

func newNodes(k *config.Kafka) *nodes {
	host, _, _ := net.SplitHostPort(k.Listen.Address) // which config has checked
	first, last := k.Nodes.Range()
	return &nodes{host: host, first: first, last: last, advertise: k.Nodes.Advertise, known: map[int32]*node{}}
}

// advertised returns what clients are told of a node that an answer names: where its listener is. It opens that if there is none
// yet, or waits for whoever does. ok is false if the node has to be left out.
func (ns *nodes) advertised(id int32, host string, port int32) (string, int32, bool) {
	address := net.JoinHostPort(host, strconv.Itoa(int(port)))
	ns.mu.RLock()
	n := ns.known[id]
	if n != nil && n.address == address && (n.conns != nil || n.trouble != "") {
		defer ns.mu.RUnlock()
		return ns.advertise, int32(n.port), n.conns != nil
	}
	ns.mu.RUnlock()
	ns.opening.Lock()
	defer ns.opening.Unlock()
	n = ns.learn(id, address)
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	return ns.advertise, int32(n.port), n.conns != nil
}

// learn takes note of a node, and opens its listener if it has none. The caller holds opening.
func (ns *nodes) learn(id int32, address string) *node {
	n, opens := ns.note(id, address)
	if opens {
		ns.listen(n)
	}
	return n
}

// note takes note of a node. opens reports whether its listener is to be opened.
func (ns *nodes) note(id int32, address string) (n *node, opens bool) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	n = ns.known[id]
	switch {
	case n == nil && len(ns.known) >= mostNodes:
		return &node{id: id, address: address}, false // nobody is that large; the address must not get through either way
	case n == nil:
		n = &node{id: id, address: address}
		if port := int64(ns.first) + int64(id); id >= 0 && port <= int64(ns.last) {
			n.port = int(port)
		}
		ns.known[id] = n
	case n.address != address:
		ns.log.Info("a node of Kafka has another address", "node", id, "broker", address, "was", n.address)
		n.address = address
	}
	return n, n.conns == nil && !ns.closed
}

// mostNodes bounds the nodes that are known, those without a listener included.
const mostNodes = 2000

// listen opens the listener of a node, and says why if it cannot, once. The caller holds opening.
func (ns *nodes) listen(n *node) {
	var trouble string
	var conns *accept.Listener
	if n.port == 0 {
		trouble = fmt.Sprintf("its port would be %d, and nodes.ports is %d-%d; widen nodes.ports", int64(ns.first)+int64(n.id), ns.first, ns.last)
	} else if opened, err := ns.open(net.JoinHostPort(ns.host, strconv.Itoa(n.port))); err != nil {
		trouble = err.Error()
	} else {
		conns = opened
	}
	ns.mu.Lock()
	defer ns.mu.Unlock()
	switch {
	case conns != nil && ns.closed: // meanwhile
		_ = conns.Close() // nobody has used it
		return
	case conns != nil:
		n.conns, n.trouble = conns, ""
		ns.log.Info("listening for a node of Kafka", "node", n.id, "address", conns.Addr().String(), "broker", n.address)
		ns.serve(n)
		return
	}
	if n.trouble != trouble {
		ns.log.Error("a node of Kafka is left out of all answers: clients cannot reach it through this gateway", "node", n.id, "broker", n.address, "error", trouble)
	}
	n.trouble = trouble
}

// named is told of all nodes that the cluster has.
func (ns *nodes) named(all []kmsg.MetadataResponseBroker) {
	ns.opening.Lock()
	defer ns.opening.Unlock()
	seen := map[int32]bool{}
	for _, b := range all {
		ns.learn(b.NodeID, net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port))))
		seen[b.NodeID] = true
	}
	ns.mu.Lock()
	defer ns.mu.Unlock()
	for id, n := range ns.known {
		if n.unseen++; seen[id] {
			n.unseen = 0
		}
		if n.unseen < gone {
			continue
		}
		ns.log.Info("a node of Kafka has gone", "node", id, "broker", n.address)
		if n.conns != nil {
			_ = n.conns.Close() // it accepts no more either way
		}
		delete(ns.known, id)
	}
}

// addressOf returns where the broker of a node is, empty if it has gone.
func (ns *nodes) addressOf(n *node) string {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	return n.address
}

// lost is told that the listener of a node has ended by itself.
func (ns *nodes) lost(n *node, err error) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.closed || n.conns == nil || ns.known[n.id] != n {
		return
	}
	_ = n.conns.Close() // it has failed
	n.conns, n.trouble = nil, err.Error()
	ns.log.Error("the listener for a node of Kafka failed; it is opened again when Kafka next names its nodes, within about 30 s if Kafka answers", "node", n.id, "error", err)
}

// close returns the listeners of all nodes, and lets no more be opened.
func (ns *nodes) close() (all []*accept.Listener) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	ns.closed = true
	for _, n := range ns.known {
		if n.conns != nil {
			all = append(all, n.conns)
		}
	}
	return all
}

// at returns the listener at an address, nil if there is none. It waits for one that is being opened.
func (ns *nodes) at(address string) *accept.Listener {
	ns.opening.Lock()
	defer ns.opening.Unlock()
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	for _, n := range ns.known {
		if n.conns != nil && net.JoinHostPort(ns.host, strconv.Itoa(n.port)) == address {
			return n.conns
		}
	}
	return nil
}

// addresses returns where all nodes are, by their ids.
func (ns *nodes) addresses() map[int32]string {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	all := make(map[int32]string, len(ns.known))
	for id, n := range ns.known {
		all[id] = n.address
	}
	return all
}

// NodeStatus is a broker of a cluster as clients see it.
type NodeStatus struct {
	Node        int32  `json:"node"`
	Broker      string `json:"broker"`  // its own address
	Address     string `json:"address"` // what clients are told; empty while it is left out of answers
	Trouble     string `json:"trouble,omitempty"`
	Connections int64  `json:"connections"`
	Accepted    uint64 `json:"accepted"`
	Failed      uint64 `json:"failed"` // connections of clients that the broker did not take
	Traffic
}

// counts returns what has been counted of a node.
func (n *node) counts() NodeStatus {
	return NodeStatus{Node: n.id, Connections: n.open.Load(), Accepted: n.accepted.Load(), Failed: n.failed.Load(), Traffic: n.moved.snapshot()}
}

// status returns all nodes, by their ids.
func (ns *nodes) status() []NodeStatus {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	all := make([]NodeStatus, 0, len(ns.known))
	for _, id := range slices.Sorted(maps.Keys(ns.known)) {
		n := ns.known[id]
		s := n.counts()
		s.Broker, s.Trouble = n.address, n.trouble
		if n.conns != nil {
			s.Address = net.JoinHostPort(ns.advertise, strconv.Itoa(n.port))
		}
		all = append(all, s)
	}
	return all
}

// one returns the id of a node, the same as long as it is there; -1 if none is known.
func (ns *nodes) one() int32 {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	least := int32(-1)
	for id := range ns.known {
		if least < 0 || id < least {
			least = id
		}
	}
	return least
}

// How often the cluster is asked for its nodes, how soon again if it does not answer, and how long an answer may take.
const (
	askEvery  = 30 * time.Second
	askAgain  = time.Second
	askWithin = 10 * time.Second
)

// ask asks the cluster for its nodes, by the gateway's own principal.
func (ns *nodes) ask(ctx context.Context, client *kgo.Client) error {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // none; nil would be all
	resp, err := req.RequestWith(ctx, client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return err
	}
	ns.named(resp.Brokers)
	return nil
}
