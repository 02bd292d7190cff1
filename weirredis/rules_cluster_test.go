//go:build integration

package weirredis

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/quota"
)

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
		r.Limits = []quota.Limit{{Rate: 1e-9, Burst: burst}}
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
		_, user := s.users.Key(s.work)
		_, tenant := s.tenants.Key(s.work)
		s.userNode, s.tenantNode = nodeOf(nodes, user), nodeOf(nodes, tenant)
	}
	eventually(t, 10*time.Second, "both answer", func() bool {
		_, user := s.users.Peek(t.Context(), s.work)
		_, tenant := s.tenants.Peek(t.Context(), s.work)
		return user == nil && tenant == nil
	})
	return s
}

// lacks is how much the user's bucket has been charged, and not been given back.
func (s *stack) lacks(t *testing.T) float64 {
	t.Helper()
	var d quota.Decision
	eventually(t, 10*time.Second, "the user's bucket", func() (ok bool) {
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
		"--cluster-require-full-coverage", "no", "--cluster-node-timeout", "60000")
	s := newStack(t, nodes)
	s.play(t, callers, func() {
		for range 200 {
			lacks := s.lacks(t)
			if most := float64(s.admitted.Load()) + callers + s.vain(); lacks > most {
				t.Errorf("the first bucket lacks %.0f with %d callers, at most %.0f", lacks, callers, most)
			}
		}
		eventually(t, 10*time.Second, "the second bucket is spent", func() bool { return s.admitted.Load() == tenantBurst })
	})
	for what, node := range map[string]*server{"second": s.tenantNode, "first": s.userNode} {
		gate := s.tenants
		if node == s.userNode {
			gate = s.users
		}
		errors := gate.Faults().StoreErrors
		s.play(t, callers, func() {
			node.signal(t, syscall.SIGSTOP)
			eventually(t, 10*time.Second, "errors of the "+what+" node", func() bool { return gate.Faults().StoreErrors >= errors+100 })
			node.signal(t, syscall.SIGCONT)
			eventually(t, 10*time.Second, "the "+what+" node is back", func() bool { return !gate.Store().(*Store).Stats().Down })
		})
	}
	if n := s.admitted.Load(); n > tenantBurst {
		t.Errorf("%d admitted of %d", n, tenantBurst)
	}
}
