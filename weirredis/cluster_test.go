//go:build integration

package weirredis

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
)

// clusterRights are those that the package's documentation lists for a cluster.
const clusterRights = rights + " +cluster|slots +cluster|shards +asking"

// startCluster starts three nodes that share the slots.
func startCluster(t *testing.T, start func(...string) *server, options ...string) []*server {
	t.Helper()
	nodes := make([]*server, 3)
	for i := range nodes {
		nodes[i] = start(append([]string{"--cluster-enabled", "yes", "--cluster-node-timeout", "1000"}, options...)...)
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
		eventually(t, 20*time.Second, "the cluster is whole", func() bool {
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
	eventually(t, 10*time.Second, "refused", func() bool {
		s, err := New(Config{Addrs: []string{nodes[0].addr}, DialTimeout: patient})
		if err == nil {
			s.Close()
		}
		return errors.Is(err, errUnfit) && strings.Contains(err.Error(), nodes[1].addr)
	})
}
