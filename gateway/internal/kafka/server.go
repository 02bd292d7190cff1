// Package kafka stands before a cluster of Kafka. Clients bootstrap at one listener, and find each node of the cluster at a
// listener of its own. For each answer that names a node names that listener instead.
//
// Each connection of a client has one to a broker, shared by nobody. So rights, sessions, transactions and the
// order of answers stay the broker's. Of requests and answers only what has to be known is decoded ([Server] says what); the rest
// is copied.
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
	"github.com/weir-go/weir/gateway/internal/quotas"
)

// Options are what a [Server] needs. All but TLS, SASL, Quotas, Rules, Charged and Previous are required.
type Options struct {
	// Cluster is the name of the cluster in the file, and Config what the file says of it.
	Cluster string
	Config  config.Kafka
	// TLS is how the gateway connects to brokers, nil for plain TCP. SASL is how it logs in itself, to ask for
	// nodes.
	TLS  *tls.Config
	SASL []sasl.Mechanism
	// Conns are the connections of the listener where clients bootstrap.
	Conns *accept.Listener
	// Open opens the listener of a node. In shares the socket of another listener there, nil for none.
	Open func(address string, in *accept.Listener) (*accept.Listener, error)
	// Previous is the server that this one takes the place of. Its nodes are known from the beginning, and both have the same sockets.
	Previous *Server
	// Quotas returns the quotas in force. nil is none, ever.
	Quotas func() Quotas
	// Rules keeps the quotas that clients set for its gates. With nil they can set none.
	Rules *quotas.Book
	// Charged is told of each charge of a quota, and of each wait for one.
	Charged func(Charge)
	// Failed is told of each connection that a broker did not take.
	Failed func(broker, failure string, err error)
	Logger *slog.Logger
}

// Server is the gateway before one cluster: a listener where clients bootstrap, and one for each node. It is safe for
// concurrent use.
//
// Most of what passes is copied. Decoded are answers that name nodes: to Metadata, FindCoordinator, DescribeCluster, ShareFetch,
// ShareAcknowledge, and to Produce from version 10 on. So are answers to Produce while the client owes, ApiVersions, and logins. Where
// quotas count, mutations, requests that set or read quotas, and requests for metadata are decoded too. Of Fetch only the wait in its
// first bytes is read.
//
// What clients are offered ends where answers would name nodes in a place that is not known here. A request beyond that ends its
// connection, as brokers do it.
type Server struct {
	opts  Options
	log   *slog.Logger
	nodes *nodes
	asks  *kgo.Client // for itself
	owns  *owners

	stopping context.Context // ended by StopAccepting
	stop     context.CancelFunc
	draining atomic.Bool
	next     atomic.Uint32 // of the bootstrap brokers

	serving sync.WaitGroup // Serve, and what it has begun
	relays  sync.WaitGroup

	mu        sync.Mutex
	ready     bool // nodes are served
	bootstrap node
	open      map[*relay]struct{}
	closed    bool

	logins    struct{ ok, unnamed, failed atomic.Uint64 }
	throttled struct{ produce, fetch, mutations throttles }
	moved     traffic

	defaults struct {
		topicDefaults
		asked  time.Time
		asking bool // a connection does
	}
	made made

	overlap overlap

	memory *budgets
	crowd  time.Time // when the log last said that connections wait for memory

	complaints int
	complained time.Time
	unnamed    time.Time // when the log last said that the owner of a token cannot be told
}

// New returns a server that accepts nobody before [Server.Serve]. It connects to nothing yet.
func New(o Options) (*Server, error) {
	s := &Server{opts: o, log: o.Logger.With("cluster", o.Cluster), nodes: newNodes(&o.Config), memory: newBudgets(), open: map[*relay]struct{}{}}
	s.bootstrap.id = -1
	s.throttled.produce.quota, s.throttled.fetch.quota, s.throttled.mutations.quota = countedBy(keyProduce), countedBy(keyFetch), countedBy(keyCreateTopics)
	if o.Quotas == nil {
		s.opts.Quotas = func() Quotas { return Quotas{} }
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.nodes.log = s.log
	s.nodes.serve = s.serveNode
	s.nodes.open = s.openNode
	opts := []kgo.Opt{
		kgo.SeedBrokers(o.Config.Bootstrap...), kgo.ClientID("weir"), kgo.SASL(o.SASL...), kgo.RequestRetries(2),
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
	if p := o.Previous; p != nil && slices.Equal(p.opts.Config.Bootstrap, o.Config.Bootstrap) {
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
			} // it has just closed, so the port is free
		}
	}
	return s.opts.Open(address, nil)
}

// Serve accepts clients on the listener where they bootstrap, and on those of the nodes, once the cluster has said which nodes there
// are. It returns when the listener ends, or after [Server.StopAccepting].
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.stopping.Err() != nil {
		s.mu.Unlock()
		return net.ErrClosed
	}
	s.serving.Add(1) // before anybody waits for it, because StopAccepting takes mu
	s.mu.Unlock()
	defer s.serving.Done()
	if !s.awaitNodes() {
		return net.ErrClosed
	}
	s.serving.Go(s.follow)
	s.serveNodes()
	return s.accept(l, &s.bootstrap)
}

// awaitNodes asks the cluster for its nodes until it answers. It returns false if nobody waits for that any more.
func (s *Server) awaitNodes() bool {
	said := ""
	for {
		err := s.nodes.ask(s.stopping, s.asks)
		if s.stopping.Err() != nil {
			return false
		}
		if err == nil {
			return true
		}
		if err.Error() != said {
			said = err.Error()
			s.log.Error("Kafka does not say which nodes there are; nobody is accepted until it does", "bootstrap", s.opts.Config.Bootstrap, "error", err)
		}
		if !s.pause(askAgain) {
			return false
		}
	}
}

// follow asks the cluster for its nodes again and again.
func (s *Server) follow() {
	said := ""
	s.look(s.stopping)
	for s.pause(askEvery) {
		err := s.nodes.ask(s.stopping, s.asks)
		s.look(s.stopping)
		switch {
		case s.stopping.Err() != nil:
		case err == nil && said != "":
			s.log.Info("Kafka says again which nodes there are")
			said = ""
		case err != nil && err.Error() != said:
			said = err.Error()
			s.log.Warn("Kafka does not say which nodes there are; the known ones stay in use", "error", err)
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
	s.nodes.opening.Lock() // openNode reads Previous
	defer s.nodes.opening.Unlock()
	s.nodes.mu.Lock()
	defer s.nodes.mu.Unlock()
	s.mu.Lock()
	s.ready = true
	s.mu.Unlock()
	s.opts.Previous = nil // or it would be kept for ever
	for _, n := range s.nodes.known {
		if n.conns != nil {
			s.serveNode(n)
		}
	}
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

// accept takes clients until the listener ends. A moment without memory or descriptors ends nothing.
func (s *Server) accept(l net.Listener, n *node) error {
	pause := time.Duration(0)
	for {
		c, err := l.Accept()
		var passing interface{ Temporary() bool }
		switch {
		case err == nil:
			pause = 0
			n.accepted.Add(1)
			s.relay(c, n)
		case errors.As(err, &passing) && passing.Temporary() && !errors.Is(err, net.ErrClosed):
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			s.log.Warn("cannot accept a client of Kafka; trying again. If files are short, raise the limit of the process (ulimit -n) or lower max_connections", "node", n.id, "error", err, "in", pause.String())
			if !s.pause(pause) {
				return err
			}
		default:
			return err
		}
	}
}

// StopAccepting closes the listeners of nodes. What is waiting in the kernel's queue is accepted first, for drain; 0 leaves it to a server that has
// the same sockets.
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
			_ = l.Close() // it is closed either way
		})
	}
	all.Wait()
}

// Shutdown ends each connection as soon as nothing is in flight on it, and waits until all have ended. When ctx ends first it returns
// its error. Call [Server.StopAccepting] before.
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

// relay takes a client on. It returns at once.
func (s *Server) relay(c net.Conn, n *node) {
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
	// Connections are those of clients that are open, at all nodes.
	Connections int64 `json:"connections"`
	// Logins are those by SASL that succeeded, repeated ones included. LoginsUnnamed are those of them whose name cannot be told, as with a delegation
	// token. LoginsFailed are those that the broker refused.
	Logins        uint64 `json:"logins"`
	LoginsUnnamed uint64 `json:"logins_unnamed"`
	LoginsFailed  uint64 `json:"logins_failed"`
	// APIs are those that have been asked, by name.
	APIs []APIStatus `json:"apis,omitempty"`
	// Throttled are the delays by quotas: of requests to produce, of answers to fetch, of mutations (refusals included). Muted are
	// connections that are not read now for one, and MutedLongest those of them that still have longest to wait, at most ten.
	ThrottledProduce   Throttled `json:"throttled_produce"`
	ThrottledFetch     Throttled `json:"throttled_fetch"`
	ThrottledMutations Throttled `json:"throttled_mutations"`
	Muted              int       `json:"muted"`

	MutedLongest []MutedStatus `json:"muted_longest,omitempty"`
	// HeldBytes are those of large requests and answers that are held whole, as they are counted, and HeldWaiting connections that wait for
	// room for theirs.
	HeldBytes   int64 `json:"held_bytes"`
	HeldWaiting int64 `json:"held_waiting"`
	// BrokerQuotas are those that the brokers have for what is counted here, by Kafka's names: both hold. It is nil where nothing is
	// counted, and while the brokers do not tell.
	BrokerQuotas map[string]int `json:"broker_quotas,omitempty"`
	// Bootstrap are those at the listener where clients bootstrap.
	Bootstrap NodeStatus   `json:"bootstrap"`
	Nodes     []NodeStatus `json:"nodes"`
}

// MutedStatus is a connection that is not read.
type MutedStatus struct {
	From   string `json:"from"` // the client's address
	Node   int32  `json:"node"` // -1: it bootstraps
	User   string `json:"user"` // empty if the name cannot be told
	Client string `json:"client"`
	Quota  string `json:"quota"` // produce, fetch or mutations
	// Until is when it is read again, in Seconds from now.
	Until   time.Time `json:"until"`
	Seconds float64   `json:"seconds"`
}

// mostMuted bounds the connections of a snapshot that are named.
const mostMuted = 10

// muted returns how many connections are not read now, and those of them that are last to be read again.
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

// last returns the last to be read again, in that order.
func last(all []MutedStatus) []MutedStatus {
	slices.SortFunc(all, func(a, b MutedStatus) int { return cmp.Or(b.Until.Compare(a.Until), cmp.Compare(a.From, b.From)) })
	return all[:min(len(all), mostMuted)]
}

// Snapshot returns what there is to see.
func (s *Server) Snapshot() Snapshot {
	b := &s.bootstrap
	all := Snapshot{Cluster: s.opts.Cluster, Nodes: s.nodes.status(), Bootstrap: b.counts()}
	all.Bootstrap.Address = s.opts.Config.Listen.Address
	all.Connections = all.Bootstrap.Connections
	all.LoginsUnnamed, all.LoginsFailed = s.logins.unnamed.Load(), s.logins.failed.Load()
	all.Logins = s.logins.ok.Load() + all.LoginsUnnamed
	t := &s.throttled
	all.ThrottledProduce, all.ThrottledFetch, all.ThrottledMutations = t.produce.snapshot(), t.fetch.snapshot(), t.mutations.snapshot()
	all.APIs = s.moved.status()
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

// ownerOf returns who owns a delegation token that a client has logged in with. The log says so if that cannot be told, once in a while.
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
		s.log.Warn("cannot find out who owns a delegation token of Kafka; its clients are not counted as any user. Rules for every user hold, and those that look at no user. The gateway needs sasl, and the right to describe delegation tokens", "error", err)
	}
	return principal{}
}

// complainEvery bounds the lines about clients and brokers that break the protocol.
const complainEvery = 10 * time.Second

// complain logs why a connection was ended. There is at most one line in ten seconds.
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
		s.log.Warn("the gateway ended a connection of Kafka", "client", client.String(), "software", software, "error", why.Error(), "ended_since_the_last_line", n)
	}
}
