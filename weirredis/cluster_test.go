//go:build integration

package weirredis

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
)

// clusterUser has the rights that the package's documentation lists, and no others.
const clusterUser = "ACL SETUSER weir on >secret ~weir:* resetchannels -@all " + rights + " +cluster|slots +cluster|shards +asking"

// startCluster starts three nodes that share the slots.
func startCluster(t *testing.T, start func(...string) *server, options ...string) []*server {
	t.Helper()
	nodes := make([]*server, 3)
	for i := range nodes {
		// The bus has a port of its own: by default 10,000 above, which may be none.
		_, bus, _ := net.SplitHostPort(freeAddr(t))
		nodes[i] = start(append([]string{"--cluster-enabled", "yes", "--cluster-port", bus, "--cluster-node-timeout", "1000"}, options...)...)
		nodes[i].ask(t, fmt.Sprintf("CLUSTER ADDSLOTSRANGE %d %d", i*5461, min(i*5461+5460, 16383)))
	}
	nodes[0].ask(t, "CLUSTER SET-CONFIG-EPOCH 1")
	nodes[1].ask(t, "CLUSTER SET-CONFIG-EPOCH 2")
	nodes[2].ask(t, "CLUSTER SET-CONFIG-EPOCH 3")
	nodes[2].ask(t, "CLUSTER ADDSLOTS 16383")
	for _, n := range nodes[1:] {
		_, port, _ := net.SplitHostPort(n.addr)
		_, bus, _ := strings.Cut(strings.Join(n.args, " "), "--cluster-port ")
		bus, _, _ = strings.Cut(bus, " ")
		nodes[0].ask(t, fmt.Sprintf("CLUSTER MEET 127.0.0.1 %s %s", port, bus))
	}
	for _, n := range nodes {
		n.ask(t, clusterUser)
		eventually(t, 20*time.Second, "the cluster is whole", func() bool {
			return strings.Contains(n.ask(t, "CLUSTER INFO"), "cluster_state:ok") &&
				strings.Contains(n.ask(t, "CLUSTER INFO"), "cluster_known_nodes:3")
		})
	}
	return nodes
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
		limits := []quota.Limit{quota.Per(3, time.Hour), quota.Per(100, 24*time.Hour)}
		eventually(t, 10*time.Second, "the client knows all nodes", func() bool {
			for i := range 100 {
				_, err := s.Take(context.Background(), &quota.Take{Key: fmt.Sprint(i), Limits: limits, Mode: quota.DryRun})
				if err != nil {
					return false
				}
			}
			return true
		})
		for _, key := range keys {
			for i := range 4 {
				r, err := s.Take(context.Background(), &quota.Take{Key: key, Limits: limits, Cost: 1})
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
		"--cluster-require-full-coverage", "no", "--cluster-node-timeout", "60000")
	s := open(t, Config{Addrs: []string{nodes[0].addr}, Deadline: 200 * time.Millisecond, MaxInFlight: 20})
	take := func(key string) error {
		_, err := s.Take(context.Background(), &quota.Take{Key: key, Limits: []quota.Limit{vast}, Cost: 1})
		return err
	}
	var gone, there string
	for i := 0; gone == "" || there == ""; i++ {
		key := fmt.Sprint(i)
		eventually(t, 5*time.Second, "a decision", func() bool { return take(key) == nil })
		if nodeOf(nodes, key) == nodes[2] {
			gone = key
		} else {
			there = key
		}
	}
	nodes[2].signal(t, syscall.SIGSTOP)
	eventually(t, 5*time.Second, "its keys are down", func() bool {
		var e *Error
		return errors.As(take(gone), &e) && e.Reason == Down
	})
	for range 200 {
		_ = take(gone)
		var e *Error
		if err := take(there); errors.As(err, &e) && e.Reason != Timeout { // the machine may be slow
			t.Fatalf("a key of another node: %v", err)
		}
	}
	nodes[2].signal(t, syscall.SIGCONT)
	eventually(t, 10*time.Second, "its keys are back", func() bool { return take(gone) == nil })
}

// A slot that moves to another node takes its buckets along, and no decision is
// lost on the way.
func TestClusterSlotMoves(t *testing.T) {
	t.Parallel()
	nodes := startCluster(t, func(o ...string) *server { return startRedis(t, o...) })
	s := open(t, Config{URL: "redis://weir:secret@" + nodes[0].addr})
	key, l := keyOf("weir:", "k"), quota.Limit{Rate: 1e-9, Burst: 100}
	eventually(t, 10*time.Second, "a decision", func() bool {
		_, err := s.Take(context.Background(), &quota.Take{Key: "k", Limits: []quota.Limit{l}, Mode: quota.DryRun})
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
	_, port, _ := net.SplitHostPort(to.addr)
	from.ask(t, "MIGRATE 127.0.0.1 "+port+" "+key+" 0 5000")
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
	eventually(t, 10*time.Second, "refused", func() bool {
		s, err := New(Config{Addrs: []string{nodes[0].addr}})
		if err == nil {
			s.Close()
		}
		return errors.Is(err, errUnfit) && strings.Contains(err.Error(), nodes[1].addr)
	})
}

// A master that is killed is followed to where the sentinel says.
func TestSentinel(t *testing.T) {
	t.Parallel()
	master := startRedis(t)
	_, port, _ := net.SplitHostPort(master.addr)
	replica := startRedis(t, "--replicaof", "127.0.0.1 "+port)
	config := filepath.Join(t.TempDir(), "sentinel.conf")
	sentinel := startSentinel(t, master, config, port)
	for _, n := range []*server{master, replica} {
		n.ask(t, "ACL SETUSER weir on >secret ~weir:* resetchannels -@all +role "+rights)
	}
	s := open(t, Config{
		Addrs: []string{sentinel.addr}, Sentinel: Sentinel{Master: "main"}, Username: "weir", Password: "secret",
		Deadline: 200 * time.Millisecond, DialTimeout: 300 * time.Millisecond,
	})
	if _, err := New(Config{Addrs: []string{sentinel.addr}, Sentinel: Sentinel{Master: "mian"}}); err == nil || !strings.Contains(err.Error(), "No such master") {
		t.Errorf("a master that is not there: %v", err)
	}
	l := quota.Limit{Rate: 1e-9, Burst: 100}
	if r := takeOne(t, s, l); r.Remaining != 99 {
		t.Fatalf("%+v", r)
	}
	eventually(t, 10*time.Second, "the replica has it", func() bool {
		return strings.Contains(replica.ask(t, "EXISTS weir:{=k}"), "1")
	})
	eventually(t, 10*time.Second, "the sentinel knows the replica", func() bool {
		return strings.Contains(sentinel.ask(t, "SENTINEL MASTER main"), "num-slaves\r\n$1\r\n1")
	})
	master.kill(t)
	var r quota.Result
	perhaps := 0 // charged to those who were not told
	eventually(t, 30*time.Second, "a decision by the new master", func() bool {
		var e *Error
		var err error
		r, err = s.Take(context.Background(), &quota.Take{Key: "k", Limits: []quota.Limit{l}, Cost: 1})
		if errors.As(err, &e) && e.Charged() {
			perhaps++
		}
		return err == nil
	})
	if left := math.Round(r.Remaining); left > 98 || left < float64(98-perhaps) {
		t.Errorf("%+v, want 98 left, less at most %d: what was charged before counts", r, perhaps)
	}
}

func startSentinel(t *testing.T, master *server, config, port string) *server {
	t.Helper()
	s := &server{program: master.program, dir: filepath.Dir(config), out: &said{}, addr: freeAddr(t)}
	_, own, _ := net.SplitHostPort(s.addr)
	writeFile(t, config, fmt.Sprintf("port %s\nbind 127.0.0.1\ndir %s\n"+
		"sentinel monitor main 127.0.0.1 %s 1\nsentinel down-after-milliseconds main 300\nsentinel failover-timeout main 3000\n",
		own, s.dir, port))
	s.args = []string{config, "--sentinel"}
	s.start(t)
	t.Cleanup(func() {
		s.kill(t)
		if t.Failed() {
			t.Logf("sentinel said:\n%s", s.out)
		}
	})
	return s
}
