package admin

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/proxy"
)

// counted returns the requests of each label, and their sum.
func counted(ts *top[tally]) (by map[string]uint64, all uint64) {
	by = make(map[string]uint64)
	ts.each(func(name string, t tally) {
		for _, n := range t.requests {
			by[name] += n
			all += n
		}
	})
	return by, all
}

func asked(ts *top[tally], name string, n int) {
	for range n {
		ts.add(name, func(t *tally) { t.add(proxy.ByUpstream, time.Millisecond) })
	}
}

// The first have series at once; who asks far more takes the place of the rarest,
// and what is counted stays.
func TestTenantsThatAskMost(t *testing.T) {
	ts := newTop[tally](2)
	asked(ts, "a", 100)
	asked(ts, "b", 10)
	asked(ts, "c", 10)
	by, all := counted(ts)
	if all != 120 || by["a"] != 100 || by["b"] != 10 || by[Rest] != 10 || len(by) != 3 {
		t.Errorf("%v", by)
	}
	asked(ts, "c", 11) // 21 are more than twice the 10 of b
	by, _ = counted(ts)
	if _, still := by["b"]; still || by["c"] != 1 || by[Rest] != 20 || len(by) != 3 {
		t.Errorf("%v", by)
	}
	ts.setMost(1)
	if by, _ = counted(ts); by["a"] != 100 || by[Rest] != 20 || len(by) != 2 {
		t.Errorf("fewer: %v", by)
	}
	ts.setMost(0)
	asked(ts, "a", 1)
	if by, _ = counted(ts); by[Rest] != 21 || len(by) != 1 {
		t.Errorf("none: %v", by)
	}
	asked(ts, Rest, 1)
	ts.setMost(3)
	asked(ts, Rest, 1)
	asked(ts, "", 1)
	if by, _ = counted(ts); by[Rest] != 23 || by[""] != 1 || len(by) != 2 {
		t.Errorf("again: %v", by)
	}
}

// A flood of names that come a few times each takes nobody's series, and the
// memory is bounded.
func TestTenantsInAFlood(t *testing.T) {
	const most = 20
	ts := newTop[tally](most)
	for i := range most {
		asked(ts, fmt.Sprint("real", i), 50)
	}
	for i := range 200_000 {
		asked(ts, fmt.Sprint("invented", i), 1)
		if i%100 == 0 {
			asked(ts, fmt.Sprint("real", i/100%most), 1)
		}
	}
	by, _ := counted(ts)
	for i := range most {
		if by[fmt.Sprint("real", i)] != 150 {
			t.Errorf("real%d: %d", i, by[fmt.Sprint("real", i)])
		}
	}
	if by[Rest] != 200_000 || len(by) != most+1 || len(ts.heap) > candidates*most || len(ts.known) != len(ts.heap) {
		t.Errorf("rest %d, %d labels, %d candidates", by[Rest], len(by), len(ts.heap))
	}
}

// Whoever is busiest now has series, though others were busier long ago.
func TestTenantsFollowThePresent(t *testing.T) {
	ts := newTop[tally](4)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 400_000 {
		era := i / 100_000 * 1000
		name := fmt.Sprint("t", era+r.IntN(4))
		if r.IntN(2) == 0 {
			name = fmt.Sprint("t", era+4+r.IntN(500))
		}
		asked(ts, name, 1)
	}
	by, _ := counted(ts)
	for i := range 4 {
		if name := fmt.Sprint("t", 3000+i); by[name] == 0 {
			t.Errorf("%s has no series: %d labels", name, len(by))
		}
	}
	for i, c := range ts.heap {
		if c.at != i || ts.known[c.name] != c || i > 0 && c.count < ts.heap[(i-1)/2].count {
			t.Fatalf("candidate %d is out of order: %+v", i, c)
		}
	}
}

// What is counted by class and by tenant has series, also for priorities that have
// no name.
func TestClassAndTenantMetrics(t *testing.T) {
	m := testMetrics(t)
	m.Tenants(1)
	m.Admitted("api", weir.Work{Priority: weir.High}, time.Second)
	m.Admitted("api", weir.Work{Priority: 100}, time.Second)
	m.Rejected(weir.Work{Priority: -100}, &weir.Rejection{Gate: "api", Reason: weir.ReasonQueueFull})
	m.Rejected(weir.Work{}, &weir.Rejection{Gate: "api", Reason: weir.ReasonCanceled})
	m.Rejected(weir.Work{}, &weir.Rejection{Gate: "gone", Reason: weir.ReasonLimit})
	m.Tenant("acme \"&\" sons", proxy.ByUpstream, time.Second)
	m.Tenant("other", proxy.ByGate, time.Second)
	has(t, m,
		`weir_gate_wait_seconds_count{class="high",gate="api"} 1`,
		`weir_gate_wait_seconds_count{class="critical",gate="api"} 1`,
		`weir_gate_wait_seconds_count{class="normal",gate="api"} 0`,
		`weir_gate_refused_by_class_total{class="background",gate="api"} 1`,
		`weir_gate_refused_by_class_total{class="normal",gate="api"} 0`,
		`weir_tenant_requests_total{by="upstream",tenant="acme \"&\" sons"} 1`,
		`weir_tenant_request_seconds_total{by="upstream",tenant="acme \"&\" sons"} 1`,
		`weir_tenant_requests_total{by="gate",tenant="other"} 1`,
		`weir_ignored_total{what="priority"} 0`,
		`weir_ignored_total{what="timeout"} 0`,
	)
	m.Keep(nil, nil)
	if text := ask(m.Handler(), http.MethodGet, "/metrics").Body.String(); strings.Contains(text, `weir_gate_wait_seconds_count{class="high"`) {
		t.Error("a gate that is gone still has series by class")
	}
}
