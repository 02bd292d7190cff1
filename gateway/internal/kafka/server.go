// Package kafka stands before a cluster of Kafka. Clients bootstrap at one listener, and each node of the cluster has a listener of its
// own. Answers that name a node name its listener instead.
//
// Each connection of a client has its own connection to a broker. So rights, sessions, transactions and the order of answers stay with the
// broker. Only the necessary parts of requests and answers are decoded (see [Server]); the rest is copied.
package kafka

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/eventlog"
	"github.com/weir-go/weir/gateway/internal/quotas"
)

// Options are what a [Server] needs. All but TLS, SASL, Quotas, Rules, Charged and Previous are required.
type Options struct {
	// Cluster is the name of the cluster in the file, and Config its settings.
	Cluster string
	Config  config.Kafka
	// TLS is for the connections to brokers; nil means plain TCP. SASL is the gateway's own login, to ask for
	// nodes.
	TLS  *tls.Config
	SASL []sasl.Mechanism
	// Conns are the connections of the listener where clients bootstrap.
	Conns *accept.Listener
	// Open opens the listener of a node. If in is not nil, the listener shares the socket of in.
	Open func(address string, in *accept.Listener) (*accept.Listener, error)
	// Previous is the server that this one replaces. Both servers share sockets. If both bootstrap at a broker in common, its nodes are known
	// from the beginning. If it has the same name of a cluster, its counters go on.
	Previous *Server
	// Early says that other listeners of the process may still have ports of nodes, and will close them. The log has nothing about nodes
	// without a listener until [Server.TryPorts] is called.
	Early bool
	// Quotas returns the quotas in force. With nil there are never any.
	Quotas func() Quotas
	// Rules keeps the quotas that clients set for its gates. With nil, clients can set none.
	Rules *quotas.Book
	// Charged is called for each charge of a quota, and for each wait because of a quota.
	Charged func(Charge)
	// Failed is called for each connection that a broker did not accept.
	Failed func(broker, failure string, err error)
	Logger *slog.Logger
}

// Server is the gateway before one cluster: a listener where clients bootstrap, and one for each node. It is safe for
// concurrent use.
//
// Most bytes are copied. The server decodes answers that name nodes: to Metadata, FindCoordinator, DescribeCluster, ShareFetch,
// ShareAcknowledge, and to Produce from version 10 on. It also decodes answers to Produce while the client has a debt, ApiVersions, and
// logins. If quotas count, it decodes mutations, requests that set or read quotas, and requests for metadata, too. In an answer to Fetch it
// reads only the throttle time in the first bytes.
//
// Clients are not offered versions whose answers might name nodes in an unknown place. A request of such a version ends its connection, as
// with brokers.
type Server struct {
	opts  Options
	log   *slog.Logger
	nodes *nodes
	asks  *kgo.Client // for the gateway's own requests
	owns  *owners

	stopping context.Context // ended by StopAccepting
	stop     context.CancelFunc
	draining atomic.Bool
	away     atomic.Bool   // the cluster has not named its nodes, and has failed to once; clients that bootstrap are reset
	next     atomic.Uint32 // of the bootstrap brokers

	serving sync.WaitGroup // Serve, and the goroutines that it has started
	relays  sync.WaitGroup

	mu        sync.Mutex
	ready     bool // nodes are served
	bootstrap node
	open      map[*relay]struct{}
	closed    bool

	counts *counters

	defaults struct {
		topicDefaults
		asked  time.Time
		asking bool // a connection asks now
	}
	made made

	overlap overlap

	lookEvery time.Duration // the constant, unless a test has changed it

	memory *budgets
	crowd  time.Time // of the last line about connections that wait for memory
	full   time.Time // of the last line about a client that could not be accepted

	complaints int
	complained time.Time
	unnamed    time.Time // of the last line about a token with an unknown owner
}

// counters are those of a cluster. A server shares them with the one that it replaces, because connections of that one may still drain.
type counters struct {
	logins    struct{ ok, unnamed, failed atomic.Uint64 }
	throttled struct{ produce, fetch, mutations throttles }
	moved     traffic
	bootstrap nodeCounters

	mu    sync.Mutex
	nodes map[int32]*nodeCounters // those that were ever known, at most mostNodes
}

func newCounters() *counters {
	c := &counters{nodes: map[int32]*nodeCounters{}}
	c.throttled.produce.quota, c.throttled.fetch.quota, c.throttled.mutations.quota = countedBy(keyProduce), countedBy(keyFetch), countedBy(keyCreateTopics)
	return c
}

// of returns the counters of a node.
func (c *counters) of(id int32) *nodeCounters {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[id]
	if n == nil {
		n = new(nodeCounters)
		if len(c.nodes) < mostNodes {
			c.nodes[id] = n
		}
	}
	return n
}

// New returns a server. It accepts no client and makes no connection before [Server.Serve].
func New(o Options) (*Server, error) {
	counts := newCounters()
	if p := o.Previous; p != nil && p.opts.Cluster == o.Cluster {
		counts = p.counts
	}
	s := &Server{
		opts: o, log: o.Logger.With("cluster", o.Cluster), nodes: newNodes(&o.Config, counts), counts: counts, bootstrap: node{id: -1, nodeCounters: &counts.bootstrap},
		memory: newBudgets(), open: map[*relay]struct{}{}, lookEvery: lookEvery,
	}
	if o.Quotas == nil {
		s.opts.Quotas = func() Quotas { return Quotas{} }
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.nodes.log = s.log
	s.nodes.serve = s.serveNode
	s.nodes.open = s.openNode
	s.nodes.early = o.Early
	opts := []kgo.Opt{
		kgo.SeedBrokers(o.Config.Bootstrap...), kgo.ClientID("weir"), kgo.SASL(o.SASL...), kgo.RequestRetries(2),
		// A machine that is gone leaves time for another, and one that is far away has time to answer.
		kgo.DialTimeout(max(leastDial, askWithin/time.Duration(len(o.Config.Bootstrap)+1))),
	}
	if o.TLS != nil {
		opts = append(opts, kgo.DialTLSConfig(o.TLS))
	}
	var err error
	if s.asks, err = kgo.NewClient(opts...); err != nil {
		return nil, fmt.Errorf("kafka.%s: %w", o.Cluster, err)
	}
	s.owns = newOwners(func(ctx context.Context) (*kmsg.DescribeDelegationTokenResponse, error) {
		return kmsg.NewPtrDescribeDelegationTokenRequest().RequestWith(ctx, s.asks)
	})
	if p := o.Previous; p != nil && slices.ContainsFunc(p.opts.Config.Bootstrap, func(b string) bool { return slices.Contains(o.Config.Bootstrap, b) }) {
		s.nodes.opening.Lock()
		for id, address := range p.nodes.addresses() {
			s.nodes.learn(id, address)
		}
		s.nodes.opening.Unlock()
	}
	return s, nil
}

// openNode opens the listener of a node, in the socket that the previous server has there.
func (s *Server) openNode(address string) (*accept.Listener, error) {
	if p := s.opts.Previous; p != nil {
		if in := p.nodes.at(address); in != nil {
			if l, err := s.opts.Open(address, in); err == nil {
				return l, nil
			} // the listener has just closed, so the port is free
		}
	}
	return s.opts.Open(address, nil)
}

// TryPorts opens the listeners of nodes that have none, where it can. Call it when other listeners of the process have closed their sockets.
func (s *Server) TryPorts() { s.nodes.tryPorts() }

// Serve accepts clients at the listeners of known nodes, and at the bootstrap listener once the cluster has named its nodes. If the cluster
// does not answer within a second, clients that bootstrap are reset until it does. Serve returns when the listener ends, or after
// [Server.StopAccepting].
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.stopping.Err() != nil {
		s.mu.Unlock()
		return net.ErrClosed
	}
	s.serving.Add(1) // before anybody waits for it, because StopAccepting takes mu
	s.mu.Unlock()
	defer s.serving.Done()
	s.away.Store(true)
	s.serveNodes()
	asked := make(chan struct{})
	s.serving.Go(func() {
		err := s.nodes.ask(s.stopping, s.asks)
		s.away.Store(err != nil)
		s.forgetPrevious()
		close(asked)
		if s.awaitNodes(err) {
			s.follow()
		}
	})
	late := time.NewTimer(awayAfter)
	defer late.Stop()
	select {
	case <-asked:
	case <-late.C:
	}
	if s.stopping.Err() != nil {
		return net.ErrClosed
	}
	return s.accept(l, &s.bootstrap)
}

// awaitNodes asks the cluster for its nodes until it answers. err is the error of the last attempt. It returns false if the server stops
// before.
func (s *Server) awaitNodes(err error) bool {
	for said := error(nil); err != nil; err = s.nodes.ask(s.stopping, s.asks) {
		if s.stopping.Err() != nil {
			return false
		}
		if !eventlog.SameTrouble(said, err) {
			said = err
			s.log.Error("Kafka does not answer which nodes it has; clients that bootstrap are reset until it does", "bootstrap", s.opts.Config.Bootstrap, "error", err)
		}
		if !s.pause(askAgain) {
			return false
		}
	}
	s.away.Store(false)
	return true
}

// follow asks the cluster for its nodes at intervals.
func (s *Server) follow() {
	var said error
	s.look(s.stopping)
	for s.pause(askEvery) {
		err := s.nodes.ask(s.stopping, s.asks)
		s.look(s.stopping)
		switch {
		case s.stopping.Err() != nil:
		case err == nil && said != nil:
			s.log.Info("Kafka answers again which nodes it has")
			said = nil
		case err != nil && !eventlog.SameTrouble(said, err):
			said = err
			s.log.Warn("Kafka does not answer which nodes it has; the known nodes stay in use", "error", err)
		}
	}
}

// pause waits, and returns false if the server stops accepting within d.
func (s *Server) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.stopping.Done():
		return false
	}
}

// serveNodes serves the nodes that were known before [Server.Serve].
func (s *Server) serveNodes() {
	s.nodes.mu.Lock()
	defer s.nodes.mu.Unlock()
	s.mu.Lock()
	s.ready = true
	s.mu.Unlock()
	for _, n := range s.nodes.known {
		if n.conns != nil {
			s.serveNode(n)
		}
	}
}

// forgetPrevious lets the previous server be freed. The first answer of the cluster may still have named nodes that have listeners there.
func (s *Server) forgetPrevious() {
	s.nodes.opening.Lock() // openNode reads Previous
	defer s.nodes.opening.Unlock()
	s.opts.Previous = nil
}

// serveNode accepts clients of a node. Before [Server.Serve] it does nothing. The caller holds nodes.mu.
func (s *Server) serveNode(n *node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ready || s.stopping.Err() != nil {
		return
	}
	l := n.conns
	s.serving.Go(func() {
		if err := s.accept(l, n); s.stopping.Err() == nil && !errors.Is(err, net.ErrClosed) {
			s.nodes.lost(n, err)
		}
	})
}

// accept accepts clients until the listener ends. A lack of memory or descriptors does not end it.
func (s *Server) accept(l net.Listener, n *node) error {
	pause := time.Duration(0)
	for {
		c, err := l.Accept()
		var passing interface{ Temporary() bool }
		switch {
		case err == nil:
			pause = 0
			n.accepted.Add(1)
			if n == &s.bootstrap && s.away.Load() {
				n.failed.Add(1)
				accept.Reset(c)
			} else {
				s.startRelay(c, n)
			}
		case errors.As(err, &passing) && passing.Temporary() && !errors.Is(err, net.ErrClosed):
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			s.notAccepted(n, err)
			if !s.pause(pause) {
				return err
			}
		default:
			return err
		}
	}
}

// due reports whether the last line of a kind was so long ago that another may be logged, and takes note of that one.
func (s *Server) due(last *time.Time, every time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(*last) < every {
		return false
	}
	*last = now
	return true
}

// notAccepted logs that a client could not be accepted, once in a while.
func (s *Server) notAccepted(n *node, err error) {
	if s.due(&s.full, complainEvery) {
		s.log.Warn("cannot accept a client of Kafka; trying again. If there are too many open files, raise the limit of the process (ulimit -n) or lower max_connections", "node", n.id, "error", err)
	}
}

// StopAccepting closes the listeners of nodes. Connections in the kernel's queue are accepted first, for the time drain. With 0 they are
// left to a server that shares the sockets.
func (s *Server) StopAccepting(drain time.Duration) {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	var all sync.WaitGroup
	for _, l := range s.nodes.close() {
		all.Go(func() {
			if drain > 0 {
				l.Drain(drain)
			}
			_ = l.Close() // the listener is closed in any case
		})
	}
	all.Wait()
}

// Shutdown ends each connection as soon as nothing is in flight on it, and waits until all have ended. If ctx ends first, it returns the
// error of ctx. Call [Server.StopAccepting] before.
func (s *Server) Shutdown(ctx context.Context) error {
	s.draining.Store(true)
	for _, r := range s.all() {
		r.drain()
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.serving.Wait()
		s.relays.Wait()
	}()
	select {
	case <-ended:
		s.asks.Close()
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends everything at once.
func (s *Server) Close() error {
	s.StopAccepting(0)
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	for _, r := range s.all() {
		r.close()
	}
	s.serving.Wait()
	s.relays.Wait()
	s.asks.Close()
	return nil
}

func (s *Server) all() []*relay {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*relay, 0, len(s.open))
	for r := range s.open {
		all = append(all, r)
	}
	return all
}

// startRelay starts to serve a client. It returns at once.
func (s *Server) startRelay(c net.Conn, n *node) {
	r := newRelay(s, n, c)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		_ = c.Close()
		return
	}
	s.open[r] = struct{}{}
	s.relays.Add(1)
	s.mu.Unlock()
	n.open.Add(1)
	if s.draining.Load() {
		r.drain()
	}
	go func() {
		defer s.relays.Done()
		defer n.open.Add(-1)
		defer func() {
			s.mu.Lock()
			delete(s.open, r)
			s.mu.Unlock()
		}()
		r.run()
	}()
}

// Snapshot is the gateway before one cluster, as /gates shows it.
type Snapshot struct {
	Cluster string `json:"cluster"`
	// Connections are the open connections of clients, at all nodes. Those that a reload ends are among them.
	Connections int64 `json:"connections"`
	// Logins are the logins by SASL that succeeded, repeated ones included. LoginsUnnamed are those among them with an unknown name, as
	// with some delegation tokens. LoginsFailed are those that the broker refused.
	Logins        uint64 `json:"logins"`
	LoginsUnnamed uint64 `json:"logins_unnamed"`
	LoginsFailed  uint64 `json:"logins_failed"`
	// APIs are the APIs that clients have used, by name.
	APIs []APIStatus `json:"apis,omitempty"`
	// Throttled are the delays by quotas: of requests to produce, of answers to fetch, of mutations (refusals included). Muted is how many
	// connections are not read now because of a delay. MutedLongest are the at most ten that still have to wait longest.
	ThrottledProduce   Throttled `json:"throttled_produce"`
	ThrottledFetch     Throttled `json:"throttled_fetch"`
	ThrottledMutations Throttled `json:"throttled_mutations"`
	Muted              int       `json:"muted"`

	MutedLongest []MutedStatus `json:"muted_longest,omitempty"`
	// HeldBytes is the memory of large requests and answers that are held as a whole. HeldWaiting is how many connections wait for such
	// memory.
	HeldBytes   int64 `json:"held_bytes"`
	HeldWaiting int64 `json:"held_waiting"`
	// BrokerQuotas is how many quotas of the brokers count the same as the gateway, by Kafka's names: both hold. It is nil if the gateway
	// counts nothing, and while the brokers do not answer.
	BrokerQuotas map[string]int `json:"broker_quotas,omitempty"`
	// Bootstrap is the status of the bootstrap listener.
	Bootstrap NodeStatus   `json:"bootstrap"`
	Nodes     []NodeStatus `json:"nodes"`
}

// MutedStatus is a connection that is not read.
type MutedStatus struct {
	From   string `json:"from"` // the client's address
	Node   int32  `json:"node"` // -1 for the bootstrap listener
	User   string `json:"user"` // empty if the name is unknown
	Client string `json:"client"`
	Quota  string `json:"quota"` // produce, fetch or mutations
	// Until is when the connection is read again. Seconds is the time from now until then.
	Until   time.Time `json:"until"`
	Seconds float64   `json:"seconds"`
}

// mostMuted bounds the connections of a snapshot that are named.
const mostMuted = 10

// muted returns how many connections are not read now, and those among them with the longest waits.
func (s *Server) muted(now time.Time) (n int, longest []MutedStatus) {
	for _, r := range s.all() {
		r.mu.Lock()
		m, who, left := r.state.muted, r.state.login.principal(), r.state.mutedFor(now)
		r.mu.Unlock()
		if left <= 0 {
			continue
		}
		n++
		longest = append(longest, MutedStatus{r.raw.RemoteAddr().String(), r.node.id, clipped(who.name), m.client, m.quota, m.until, left.Seconds()})
		if len(longest) >= 2*mostMuted {
			longest = last(longest)
		}
	}
	return n, last(longest)
}

// last returns the connections with the longest waits, in that order.
func last(all []MutedStatus) []MutedStatus {
	slices.SortFunc(all, func(a, b MutedStatus) int { return cmp.Or(b.Until.Compare(a.Until), cmp.Compare(a.From, b.From)) })
	return all[:min(len(all), mostMuted)]
}

// Snapshot returns the present state.
func (s *Server) Snapshot() Snapshot {
	b := &s.bootstrap
	all := Snapshot{Cluster: s.opts.Cluster, Nodes: s.nodes.status(), Bootstrap: b.counts()}
	all.Bootstrap.Address = s.opts.Config.Listen.Address
	all.Connections = all.Bootstrap.Connections
	all.LoginsUnnamed, all.LoginsFailed = s.counts.logins.unnamed.Load(), s.counts.logins.failed.Load()
	all.Logins = s.counts.logins.ok.Load() + all.LoginsUnnamed
	t := &s.counts.throttled
	all.ThrottledProduce, all.ThrottledFetch, all.ThrottledMutations = t.produce.snapshot(), t.fetch.snapshot(), t.mutations.snapshot()
	all.APIs = s.counts.moved.status()
	all.Muted, all.MutedLongest = s.muted(time.Now())
	all.HeldBytes, all.HeldWaiting = s.memory.held()
	s.mu.Lock()
	all.BrokerQuotas = s.overlap.quotas
	s.mu.Unlock()
	for _, n := range all.Nodes {
		all.Connections += n.Connections
	}
	return all
}

// ownerOf returns the owner of a delegation token with which a client has logged in. If the owner is unknown, it logs that, at intervals.
func (s *Server) ownerOf(ctx context.Context, token string) principal {
	name, err := s.owns.lookup(ctx, token)
	if err == nil {
		return principal{name: name, known: true}
	}
	s.mu.Lock()
	now := time.Now()
	quiet := now.Sub(s.unnamed) < askEvery || ctx.Err() != nil
	if !quiet {
		s.unnamed = now
	}
	s.mu.Unlock()
	if !quiet {
		s.log.Warn("cannot find the owner of a delegation token of Kafka, so its clients have no user name. Only rules for every user, or without a user, hold for them. The gateway needs sasl, and the right to describe delegation tokens", "error", err)
	}
	return principal{}
}

// complainEvery bounds the lines about clients and brokers that break the protocol, and about clients that cannot be accepted.
const complainEvery = 10 * time.Second

// complain logs why a connection was ended, at most once in ten seconds.
func (s *Server) complain(client net.Addr, software string, why error) {
	s.mu.Lock()
	s.complaints++
	n, now := s.complaints, time.Now()
	quiet := now.Sub(s.complained) < complainEvery
	if !quiet {
		s.complained, s.complaints = now, 0
	}
	s.mu.Unlock()
	if !quiet {
		s.log.Warn("the gateway ended a connection of Kafka", "peer", client.String(), "software", software, "error", why.Error(), "ended_since_the_last_line", n)
	}
}
