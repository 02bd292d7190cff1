//go:build integration

package weirredis

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/quota"
)

// clusterRights are those that the package's documentation lists for a cluster.
const clusterRights = rights + " +cluster|slots +cluster|shards +asking"

// startCluster starts three nodes that share the slots. None is given up while the machine is busy, or while a test has it stand
// still.
func startCluster(t *testing.T, start func(...string) *server, options ...string) []*server {
	t.Helper()
	nodes := make([]*server, 3)
	for i := range nodes {
		nodes[i] = start(append([]string{"--cluster-enabled", "yes", "--cluster-node-timeout", "60000"}, options...)...)
		nodes[i].ask(t, "CLUSTER ADDSLOTS"+slotList(i*5461, min(i*5461+5460, slots-1)))
	}
	nodes[0].ask(t, "CLUSTER SET-CONFIG-EPOCH 1")
	nodes[1].ask(t, "CLUSTER SET-CONFIG-EPOCH 2")
	nodes[2].ask(t, "CLUSTER SET-CONFIG-EPOCH 3")
	nodes[2].ask(t, "CLUSTER ADDSLOTS 16383")
	for _, n := range nodes[1:] {
		nodes[0].ask(t, "CLUSTER MEET 127.0.0.1 "+n.port())
	}
	for _, n := range nodes {
		n.grant(t, clusterRights)
		eventually(t, "the cluster is whole", func() bool {
			return strings.Contains(n.ask(t, "CLUSTER INFO"), "cluster_state:ok") &&
				strings.Contains(n.ask(t, "CLUSTER INFO"), "cluster_known_nodes:3")
		})
	}
	return nodes
}

// slotList is the slots from first to last: Redis before 7.0 has no word for a range.
func slotList(first, last int) string {
	var b strings.Builder
	for slot := first; slot <= last; slot++ {
		fmt.Fprintf(&b, " %d", slot)
	}
	return b.String()
}

// nodeOf returns the node that holds a key, by the slots of startCluster.
func nodeOf(nodes []*server, key string) *server {
	return nodes[min(int(slotOf("weir:", keyOf("weir:", key)))/5461, 2)]
}

func TestCluster(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start func(...string) *server) {
		nodes := startCluster(t, start)
		s := open(t, Config{URL: "redis://weir:secret@" + nodes[0].addr})
		keys := strangeKeys()
		limits := []quota.Window{quota.Per(3, time.Hour), quota.Per(100, 24*time.Hour)}
		eventually(t, "the client knows all nodes", func() bool {
			for i := range 100 {
				_, err := s.Decide(context.Background(), &quota.Request{Key: fmt.Sprint(i), Windows: limits, Mode: quota.DryRun})
				if err != nil {
					return false
				}
			}
			return true
		})
		for _, key := range keys {
			for i := range 4 {
				r, err := s.Decide(context.Background(), &quota.Request{Key: key, Windows: limits, Cost: 1})
				if err != nil || r.OK != (i < 3) {
					t.Fatalf("%.20q, take %d: %+v, %v", key, i, r, err)
				}
			}
		}
		if want, got := nodes[0].slot(t, keyOf("weir:", "a")), slotOf("weir:", keyOf("weir:", "a")); want != got {
			t.Errorf("slot %d, want %d", got, want)
		}
	})
}

func (s *server) slot(t *testing.T, key string) (n uint16) {
	t.Helper()
	answer := s.ask(t, "CLUSTER KEYSLOT "+key)
	if _, err := fmt.Sscanf(answer, ":%d", &n); err != nil {
		t.Fatalf("%q: %v", answer, err)
	}
	return n
}

// A node that stands still takes its own keys with it, and no others.
func TestClusterNodeStandsStill(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t, func(o ...string) *server { return startRedis(t, o...) },
		"--cluster-require-full-coverage", "no")
	s := open(t, Config{Addrs: []string{nodes[0].addr}, Deadline: 200 * time.Millisecond, MaxInFlight: 20})
	take := func(key string) error {
		_, err := s.Decide(context.Background(), &quota.Request{Key: key, Windows: []quota.Window{vast}, Cost: 1})
		return err
	}
	var gone, there string
	for i := 0; gone == "" || there == ""; i++ {
		key := fmt.Sprint(i)
		eventually(t, "a decision", func() bool { return take(key) == nil })
		if nodeOf(nodes, key) == nodes[2] {
			gone = key
		} else {
			there = key
		}
	}
	nodes[2].signal(t, syscall.SIGSTOP)
	eventually(t, "its keys are down", func() bool {
		var e *Error
		return errors.As(take(gone), &e) && e.Reason == Down
	})
	short := s.cfg.Deadline
	s.cfg.Deadline = 10 * time.Second // what is down is so at once, and what is there may be late
	eventually(t, "the other nodes are there", func() bool { return take(there) == nil })
	for range 200 {
		_ = take(gone)
		if err := take(there); err != nil {
			t.Fatalf("a key of another node: %v", err)
		}
	}
	s.cfg.Deadline = short
	nodes[2].signal(t, syscall.SIGCONT)
	eventually(t, "its keys are back", func() bool { return take(gone) == nil })
}

// A slot that moves to another node takes its buckets along, and no decision is
// lost on the way.
func TestClusterSlotMoves(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t, func(o ...string) *server { return startRedis(t, o...) })
	s := open(t, Config{URL: "redis://weir:secret@" + nodes[0].addr})
	key, l := keyOf("weir:", "k"), quota.Window{Rate: 1e-9, Burst: 100}
	eventually(t, "a decision", func() bool {
		_, err := s.Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{l}, Mode: quota.DryRun})
		return err == nil
	})
	takeOne(t, s, l)
	slot, from := slotOf("weir:", key), nodeOf(nodes, "k")
	to := nodes[0]
	if to == from {
		to = nodes[1]
	}
	fromID, toID := from.id(t), to.id(t)
	to.ask(t, fmt.Sprintf("CLUSTER SETSLOT %d IMPORTING %s", slot, fromID))
	from.ask(t, fmt.Sprintf("CLUSTER SETSLOT %d MIGRATING %s", slot, toID))
	takeOne(t, s, l)
	from.ask(t, "MIGRATE 127.0.0.1 "+to.port()+" "+key+" 0 5000")
	takeOne(t, s, l) // by way of ASK
	for _, n := range []*server{to, from} {
		n.ask(t, fmt.Sprintf("CLUSTER SETSLOT %d NODE %s", slot, toID))
	}
	if r := takeOne(t, s, l); math.Round(r.Remaining) != 96 { // by way of MOVED
		t.Errorf("%+v, want 96 left of 100 after 4", r)
	}
}

// id returns the node's name in its cluster.
func (s *server) id(t *testing.T) string {
	t.Helper()
	_, id, _ := strings.Cut(s.ask(t, "CLUSTER MYID"), "\r\n")
	return strings.TrimSpace(id)
}

// One node that could drop buckets is enough to refuse the cluster.
func TestClusterEviction(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t, func(o ...string) *server { return startRedis(t, o...) })
	nodes[1].ask(t, "CONFIG SET maxmemory-policy allkeys-lfu")
	eventually(t, "refused", func() bool {
		s, err := New(Config{Addrs: []string{nodes[0].addr}, DialTimeout: patient})
		if err == nil {
			s.Close()
		}
		return errors.Is(err, errUnfit) && strings.Contains(err.Error(), nodes[1].addr)
	})
}

// stack is two quotas that each work needs, of a user and of a tenant, whose keys are on
// two nodes of a cluster. Nothing comes back by itself, so what the user's bucket lacks
// is what it was charged.
type stack struct {
	users, tenants *quota.Quota
	both           weir.Gate
	work           weir.Work
	userNode       *server
	tenantNode     *server
	admitted       atomic.Int64
}

const userBurst, tenantBurst = 1e6, 50

func newStack(t *testing.T, nodes []*server) *stack {
	t.Helper()
	gate := func(name string, r quota.Rule, burst float64) *quota.Quota {
		r.Windows = []quota.Window{{Rate: 1e-9, Burst: burst}}
		s := open(t, Config{Addrs: []string{nodes[0].addr}, Deadline: 200 * time.Millisecond, DialTimeout: 300 * time.Millisecond})
		q, err := quota.New(quota.Config{Name: name, Store: s, OnStoreError: quota.Closed, Rules: []quota.Rule{r}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(q.Close)
		return q
	}
	s := &stack{
		users:   gate("users", quota.Rule{User: quota.Every}, userBurst),
		tenants: gate("tenants", quota.Rule{Tenant: quota.Every}, tenantBurst),
	}
	s.both = weir.All(s.users, s.tenants)
	for i := 0; s.userNode == s.tenantNode; i++ {
		s.work = weir.Work{User: fmt.Sprint("u", i), Tenant: "t"}
		user, _ := s.users.Peek(t.Context(), s.work)
		tenant, _ := s.tenants.Peek(t.Context(), s.work)
		s.userNode, s.tenantNode = nodeOf(nodes, user.Key), nodeOf(nodes, tenant.Key)
	}
	eventually(t, "both answer", func() bool {
		_, user := s.users.Peek(t.Context(), s.work)
		_, tenant := s.tenants.Peek(t.Context(), s.work)
		return user == nil && tenant == nil
	})
	return s
}

// lacks is how much the user's bucket has been charged, and not been given back.
func (s *stack) lacks(t *testing.T) float64 {
	t.Helper()
	var d quota.Answer
	eventually(t, "the user's bucket", func() (ok bool) {
		var err error
		d, err = s.users.Peek(context.Background(), s.work)
		return err == nil
	})
	return math.Round(userBurst - d.Remaining)
}

// vain is how much it may lack for good besides what was admitted: charges that nobody
// was told of, and refunds that were lost.
func (s *stack) vain() float64 {
	st := s.users.Store().(*Store).Stats()
	return float64(st.Failed[Timeout] + st.Failed[Broken] + s.users.Faults().Unsettled)
}

// play asks with so many callers while during runs, and looks at the bound.
func (s *stack) play(t *testing.T, callers int, during func()) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for ctx.Err() == nil {
				if p, err := s.both.Admit(context.Background(), s.work); err == nil {
					s.admitted.Add(1)
					p.Done(weir.OK)
				}
			}
		})
	}
	during()
	stop()
	all.Wait()
	lacks, admitted := s.lacks(t), float64(s.admitted.Load())
	t.Logf("%.0f admitted; the first bucket lacks %.0f, and may lack %.0f more than that", admitted, lacks, s.vain())
	if lacks < admitted || lacks > admitted+s.vain() {
		t.Errorf("the first bucket lacks %.0f, want %.0f and at most %.0f more", lacks, admitted, s.vain())
	}
}

// Quotas whose keys are on several nodes are charged one after the other. While work is
// on its way, the first bucket lacks what the second may yet refuse, no more than is
// under way; afterwards it lacks what was admitted, and what was lost with a node.
func TestRulesOnSeveralNodes(t *testing.T) {
	t.Parallel()
	const callers = 8
	nodes := startCluster(t, func(o ...string) *server { return startRedis(t, o...) },
		"--cluster-require-full-coverage", "no")
	s := newStack(t, nodes)
	s.play(t, callers, func() {
		for range 200 {
			lacks := s.lacks(t)
			if most := float64(s.admitted.Load()) + callers + s.vain(); lacks > most {
				t.Errorf("the first bucket lacks %.0f with %d callers, at most %.0f", lacks, callers, most)
			}
		}
		eventually(t, "the second bucket is spent", func() bool { // not all by who was admitted: an answer may have been late
			_, err := s.tenants.Peek(context.Background(), s.work)
			rej := weir.AsRejection(err)
			return rej != nil && rej.Reason == weir.ReasonQuota
		})
	})
	for what, node := range map[string]*server{"second": s.tenantNode, "first": s.userNode} {
		gate := s.tenants
		if node == s.userNode {
			gate = s.users
		}
		errors := gate.Faults().StoreErrors
		s.play(t, callers, func() {
			node.signal(t, syscall.SIGSTOP)
			eventually(t, "errors of the "+what+" node", func() bool { return gate.Faults().StoreErrors >= errors+100 })
			node.signal(t, syscall.SIGCONT)
			eventually(t, "the "+what+" node is back", func() bool { return !gate.Store().(*Store).Stats().Down })
		})
	}
	if n := s.admitted.Load(); n > tenantBurst {
		t.Errorf("%d admitted of %d", n, tenantBurst)
	}
}

// pair is a master, its replica and a sentinel that watches them.
type pair struct{ master, replica, sentinel *server }

// sentinelRights are those that the package's documentation lists for a user at the
// sentinels.
const sentinelRights = "allchannels -@all +sentinel|sentinels +sentinel|get-master-addr-by-name +subscribe +unsubscribe +hello +ping"

// startPair starts them, with TLS throughout if id is not nil. Then the sentinel knows
// the user watch, and does not know weir.
func startPair(t *testing.T, id *identity) pair {
	t.Helper()
	var p pair
	options := []string{"--repl-diskless-sync-delay", "0"}
	start := func(more ...string) *server { return startRedis(t, append(options, more...)...) }
	if id != nil {
		options = append(options, "--tls-replication", "yes")
		start = func(more ...string) *server { return startTLS(t, id, append(options, more...)...) }
	}
	p.master = start()
	p.replica = start("--replicaof", "127.0.0.1", p.master.port())
	for _, n := range []*server{p.master, p.replica} {
		n.grant(t, rights+" +role")
	}
	// A sentinel looks for replicas at its start, and then after ten seconds.
	eventually(t, "the replica follows", func() bool {
		return strings.Contains(p.master.ask(t, "INFO replication"), "state=online")
	})
	p.sentinel = startSentinel(t, p.master, id, 1)
	return p
}

// startSentinel starts a sentinel that gives a master up when so many sentinels think it gone.
// Until [pair.lose] they have patience: a busy machine makes a master late.
func startSentinel(t *testing.T, master *server, id *identity, quorum int) *server {
	t.Helper()
	s := &server{program: master.program, dir: t.TempDir(), addr: freeAddr(t), tls: id}
	config := fmt.Sprintf("bind 127.0.0.1\ndir %s\nsentinel monitor main 127.0.0.1 %s %d\n"+
		"sentinel down-after-milliseconds main 60000\nsentinel failover-timeout main 3000\n", s.dir, master.port(), quorum)
	if id == nil {
		config += "port " + s.port() + "\n"
	} else {
		config += fmt.Sprintf("port 0\ntls-port %s\ntls-cert-file %s\ntls-key-file %s\ntls-ca-cert-file %s\ntls-auth-clients no\ntls-replication yes\n",
			s.port(), id.cert, id.key, id.cert)
		if !master.before62(t) { // sentinels have no users yet
			config += "user watch on >theirs " + sentinelRights + "\n"
		}
	}
	file := filepath.Join(s.dir, "sentinel.conf")
	writeFile(t, file, config)
	s.launch(t, []string{file, "--sentinel"})
	return s
}

// lose kills the master. The sentinels think it gone after 300 ms.
func (p pair) lose(t *testing.T, sentinels ...*server) {
	t.Helper()
	p.master.kill(t)
	for _, s := range sentinels {
		s.ask(t, "SENTINEL SET main down-after-milliseconds 300")
	}
}

// config is that of a store behind the sentinel.
func (p pair) config(t *testing.T, id *identity) Config {
	t.Helper()
	c := Config{
		Addrs: []string{p.sentinel.addr}, Sentinel: Sentinel{Master: "main"}, Username: "weir", Password: "secret",
		Deadline: time.Second, DialTimeout: time.Second,
	}
	if id != nil {
		c.TLS, c.Sentinel.TLS = id.trust(), id.trust()
		if !p.master.before62(t) {
			c.Sentinel.Username, c.Sentinel.Password = "watch", "theirs"
		}
	}
	return c
}

// A master that is killed is followed to where the sentinel says.
func TestSentinel(t *testing.T) {
	t.Parallel()
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		p := startPair(t, nil)
		c := p.config(t, nil)
		c.Sentinel.Master = "mian"
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), "No such master") {
			t.Errorf("a master that is not there: %v", err)
		}
		followed(t, p, p.config(t, nil))
	})
	t.Run("TLS", func(t *testing.T) {
		t.Parallel()
		id := certificate(t)
		p := startPair(t, id)
		c := p.config(t, id)
		c.Sentinel.Username, c.Sentinel.Password = c.Username, c.Password
		if _, err := New(c); !p.master.before62(t) && (err == nil || !strings.Contains(err.Error(), "WRONGPASS")) {
			t.Errorf("the password of the servers at the sentinel: %v", err)
		}
		c = p.config(t, id)
		c.URL, c.Addrs, c.Sentinel.TLS = "rediss://"+p.sentinel.addr+"?master_set=main", nil, nil
		servers, sentinels := c.Password, c.Sentinel.Password // which are asked for by whom they are for
		c.Password, c.PasswordFunc = "", func() (string, error) { return servers, nil }
		c.Sentinel.Password, c.Sentinel.PasswordFunc = "", func() (string, error) { return sentinels, nil }
		followed(t, p, c)
	})
}

// A sentinel that stands still is left for another: the store that was connected to it
// still follows the master.
func TestSentinelStandsStill(t *testing.T) {
	t.Parallel()
	p := startPair(t, nil)
	others := []*server{startSentinel(t, p.master, nil, 1), startSentinel(t, p.master, nil, 1)}
	eventually(t, "the sentinels know each other", func() bool {
		return strings.Contains(p.sentinel.ask(t, "INFO sentinel"), ",sentinels=3")
	})
	s := open(t, p.config(t, nil))
	decides := func() bool { return takeKey(s, "k") == nil }
	eventually(t, "a decision", decides)
	p.sentinel.signal(t, syscall.SIGSTOP)
	eventually(t, "a decision without a sentinel", decides)
	p.lose(t, others...)
	eventually(t, "a decision by the new master", decides)
}

// followed kills the master and waits for decisions by the replica.
func followed(t *testing.T, p pair, c Config) {
	t.Helper()
	s := open(t, c)
	l := quota.Window{Rate: 1e-9, Burst: 100}
	perhaps := 0 // charged to those who were not told
	decides := func(by string, want int) {
		t.Helper()
		var r quota.Decision
		eventually(t, "a decision by the "+by, func() bool {
			var e *Error
			var err error
			r, err = s.Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{l}, Cost: 1})
			if errors.As(err, &e) && e.Charged() {
				perhaps++
			}
			return err == nil
		})
		if left := math.Round(r.Remaining); left > float64(want) || left < float64(want-perhaps) {
			t.Errorf("%+v by the %s, want %d left, less at most %d: what was charged before counts", r, by, want, perhaps)
		}
	}
	decides("master", 99)
	p.ready(t, "weir:{=k}")
	p.lose(t, p.sentinel)
	decides("new master", 98)
}

// ready waits until the replica has a key and could take over.
func (p pair) ready(t *testing.T, key string) {
	t.Helper()
	eventually(t, "the replica has it", func() bool {
		return strings.Contains(p.replica.ask(t, "EXISTS "+key), "1")
	})
	eventually(t, "the sentinel knows the replica", func() bool {
		return strings.Contains(p.sentinel.ask(t, "INFO sentinel"), "status=ok,address="+p.master.addr+",slaves=1")
	})
}
