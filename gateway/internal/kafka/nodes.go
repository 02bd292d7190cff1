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

// nodes are the brokers of a cluster, each with a listener of its own. A broker without a listener is left out of all answers, so that no
// client gets the broker's own address.
type nodes struct {
	host        string // the listeners bind to it
	first, last int    // ports
	advertise   string
	open        func(address string) (*accept.Listener, error)
	serve       func(*node)
	counts      *counters
	log         *slog.Logger

	// opening is held while a new node is noted and its listener is opened. That may take a while, because the listener's name may have to
	// be looked up. Only answers that name this node, or another new node, wait for it.
	opening sync.Mutex
	early   bool // until tryPorts, because ports may be taken by listeners that are about to close; guarded by opening

	mu     sync.RWMutex
	known  map[int32]*node
	closed bool
}

// node is a broker. Its fields but the counters are guarded by nodes.mu.
type node struct {
	id      int32
	port    int              // of its listener; 0 if the range has no port for it
	address string           // its own, host:port
	conns   *accept.Listener // nil while there is no listener
	trouble string           // why there is no listener
	unseen  int              // how many answers in a row have not named it

	*nodeCounters
}

// nodeCounters are those of one node, or of the bootstrap listener.
type nodeCounters struct {
	open     atomic.Int64 // connections
	accepted atomic.Uint64
	failed   atomic.Uint64 // connections that the broker did not accept
	moved    counted
}

// gone is how many answers in a row must leave a node out before its listener is closed. A broker that restarts is back sooner.
const gone = 3

func newNodes(k *config.Kafka, counts *counters) *nodes {
	host, _, _ := net.SplitHostPort(k.Listen.Address) // which config has checked
	first, last := k.Nodes.Range()
	return &nodes{host: host, first: first, last: last, advertise: k.Nodes.Advertise, counts: counts, known: map[int32]*node{}}
}

// advertised returns the address of the listener of a node, for answers that name the node. If there is no listener yet, it opens one, or
// waits until another goroutine has done so. ok is false if the node must be left out.
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

// learn notes a node, and opens its listener if it has none. The caller holds opening.
func (ns *nodes) learn(id int32, address string) *node {
	n, opens := ns.note(id, address)
	if opens {
		ns.listen(n)
	}
	return n
}

// note notes a node. opens reports whether its listener must be opened.
func (ns *nodes) note(id int32, address string) (n *node, opens bool) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	n = ns.known[id]
	switch {
	case n == nil && len(ns.known) >= mostNodes:
		return &node{id: id, address: address}, false // no cluster is that large; clients must not get the address in any case
	case n == nil:
		n = &node{id: id, address: address, nodeCounters: ns.counts.of(id)}
		if port := int64(ns.first) + int64(id); id >= 0 && port <= int64(ns.last) {
			n.port = int(port)
		}
		ns.known[id] = n
	case n.address != address:
		ns.log.Info("a node of Kafka has a new address", "node", id, "broker", address, "was", n.address)
		n.address = address
	}
	return n, n.conns == nil && !ns.closed
}

// mostNodes bounds the known nodes, including those without a listener.
const mostNodes = 2000

// listen opens the listener of a node. If it cannot, it logs the reason, once. The caller holds opening.
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
		_ = conns.Close() // no client has used it
		return
	case conns != nil:
		n.conns, n.trouble = conns, ""
		ns.log.Info("listening for a node of Kafka", "node", n.id, "address", conns.Addr().String(), "broker", n.address)
		ns.serve(n)
		return
	}
	if n.trouble != trouble && !ns.early {
		ns.log.Error("a node of Kafka is left out of all answers, because clients cannot reach it through this gateway", "node", n.id, "broker", n.address, "error", trouble)
	}
	n.trouble = trouble
}

// tryPorts opens the listeners of nodes that have none.
func (ns *nodes) tryPorts() {
	ns.opening.Lock()
	defer ns.opening.Unlock()
	for _, n := range ns.withoutListener() {
		ns.listen(n)
	}
}

// withoutListener returns the known nodes that have no listener. What was too early to log counts as unknown. The caller holds opening.
func (ns *nodes) withoutListener() (all []*node) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	for _, n := range ns.known {
		if n.conns != nil || ns.closed {
			continue
		}
		if ns.early {
			n.trouble = ""
		}
		all = append(all, n)
	}
	ns.early = false
	return all
}

// named notes all nodes that the cluster has.
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
		ns.log.Info("a node of Kafka is gone", "node", id, "broker", n.address)
		if n.conns != nil {
			_ = n.conns.Close() // in any case it accepts no more
		}
		delete(ns.known, id)
	}
}

// addressOf returns the address of a node's broker, the last known one if the node is gone.
func (ns *nodes) addressOf(n *node) string {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	return n.address
}

// lost notes that the listener of a node has failed.
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

// close returns the listeners of all nodes, and forbids to open more.
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

// at returns the listener at an address, or nil. It waits for a listener that is being opened.
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

// addresses returns the addresses of all nodes, by their ids.
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
	Address     string `json:"address"` // the one in answers to clients; empty while the node is left out
	Trouble     string `json:"trouble,omitempty"`
	Connections int64  `json:"connections"`
	Accepted    uint64 `json:"accepted"`
	Failed      uint64 `json:"failed"` // connections of clients that the broker did not accept
	Traffic
}

// counts returns the counters of a node.
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

// one returns the id of a node, or -1 if none is known. It returns the same node for as long as that exists.
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

// The interval at which the cluster is asked for its nodes, the interval if it does not answer, and the time-out of an answer. awayAfter is
// how long clients that bootstrap wait for the first answer.
const (
	askEvery  = 30 * time.Second
	askAgain  = time.Second
	askWithin = 10 * time.Second
	leastDial = 2 * time.Second // of that, for the connection to one broker, with TLS
	awayAfter = time.Second
)

// ask asks the cluster for its nodes, as the gateway's own principal.
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
