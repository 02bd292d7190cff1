package admin

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
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
	m.byTenant.setMost(1)
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
	m.KeepOnly(compiled(t, nil, policy.Options{}), 0)
	if text := ask(m.Handler(), http.MethodGet, "/metrics").Body.String(); strings.Contains(text, `weir_gate_wait_seconds_count{class="high"`) {
		t.Error("a gate that is gone still has series by class")
	}
}

// The pools that are used most have a capacity and a level each, whatever their
// keys look like, and their number is bounded.
func TestKeyMetrics(t *testing.T) {
	p := compiled(t, map[string]policy.GateSpec{
		"db": {Limit: &policy.LimitSpec{Limit: 3}, Each: &policy.EachSpec{MaxKeys: 500, Overrides: map[string]policy.OverrideSpec{"big": {Limit: 9}}}},
	}, policy.Options{})
	cut := strings.Repeat("\u00e4", 40) // is cut in the middle of a letter
	for _, tenant := range []string{"big", "big", "big", "small", "small", cut, "few"} {
		hold(t, p.Gate("db"), weir.Work{Tenant: tenant})
	}
	m := NewMetrics(still{p}, "v0")
	m.KeepOnly(p, 2)
	has(t, m,
		`weir_gate_limit{gate="db"} 3`,
		`weir_gate_in_flight{gate="db"} 7`,
		`weir_gate_keys{gate="db"} 4`,
		`weir_gate_keys_max{gate="db"} 500`,
		`weir_gate_keys_busy{gate="db"} 4`,
		`weir_gate_keys_evicted_total{gate="db"} 0`,
		`weir_key_limit{gate="db",key="big"} 9`,
		`weir_key_in_flight{gate="db",key="big"} 3`,
		`weir_key_limit{gate="db",key="small"} 3`,
		`weir_key_waiting{gate="db",key="small"} 0`,
	)
	m.KeepOnly(p, 10)
	w := ask(m.Handler(), http.MethodGet, "/metrics")
	if n := strings.Count(w.Body.String(), "\nweir_key_limit{"); w.Code != http.StatusOK || n != 4 {
		t.Errorf("%d, %d keys; want 4", w.Code, n)
	}
}

// Pools have a histogram of their waits each, those that most is admitted of, and a
// capacity beside it though they hold nothing; the others share one. A reload keeps
// what was counted, and drops what is of gates that are gone.
func TestKeyWaits(t *testing.T) {
	for _, own := range []bool{false, true} {
		t.Run(fmt.Sprintf("own %v", own), func(t *testing.T) {
			keyWaits(t, map[string]policy.GateSpec{"db": {Limit: &policy.LimitSpec{Limit: 3}, Each: &policy.EachSpec{By: "route", Own: own}}})
		})
	}
}

func keyWaits(t *testing.T, gates map[string]policy.GateSpec) {
	p := compiled(t, gates, policy.Options{})
	for _, op := range []string{"a", "b", "c"} {
		permit, err := p.Gate("db").TryAdmit(weir.Work{Op: op})
		if err != nil {
			t.Fatal(err)
		}
		permit.Done(weir.OK)
	}
	m := NewMetrics(still{p}, "v0")
	m.KeepOnly(p, 2)
	for _, op := range []string{"a", "a", "b", "c", "d", "other"} {
		for _, waited := range []time.Duration{0, 20 * time.Millisecond, 100 * time.Millisecond, 11 * time.Second} {
			m.Admitted("db", weir.Work{Op: op, Tenant: "x"}, waited)
		}
	}
	lines := []string{
		`weir_key_wait_seconds_bucket{gate="db",key="a",le="0.001"} 2`,
		`weir_key_wait_seconds_bucket{gate="db",key="a",le="0.01"} 2`,
		`weir_key_wait_seconds_bucket{gate="db",key="a",le="0.1"} 6`,
		`weir_key_wait_seconds_bucket{gate="db",key="a",le="10"} 6`,
		`weir_key_wait_seconds_bucket{gate="db",key="a",le="+Inf"} 8`,
		`weir_key_wait_seconds_count{gate="db",key="a"} 8`,
		`weir_key_wait_seconds_sum{gate="db",key="a"} 22.24`,
		`weir_key_wait_seconds_count{gate="db",key="b"} 4`,
		`weir_key_wait_seconds_count{gate="db",key="other"} 12`,
		`weir_gate_wait_seconds_count{class="normal",gate="db"} 24`,
	}
	has(t, m, append(lines, `weir_key_limit{gate="db",key="a"} 3`, `weir_key_limit{gate="db",key="b"} 3`)...)
	next := compiled(t, gates, policy.Options{Previous: p})
	p.Replace(next)
	m.KeepOnly(next, 2)
	has(t, m, lines...)
	m.KeepOnly(compiled(t, nil, policy.Options{}), 0)
	if text := ask(m.Handler(), http.MethodGet, "/metrics").Body.String(); strings.Contains(text, "weir_key_wait_seconds") {
		t.Error("a gate that is gone still has series by key")
	}
}

// What is counted on the path of each request allocates nothing.
func TestCountingAllocatesNothing(t *testing.T) {
	p := compiled(t, map[string]policy.GateSpec{"db": {Limit: &policy.LimitSpec{Limit: 3}, Each: &policy.EachSpec{}}}, policy.Options{})
	m := NewMetrics(still{p}, "v0")
	m.KeepOnly(p, 5)
	if n := testing.AllocsPerRun(100, func() {
		m.Admitted("db", weir.Work{Tenant: "a"}, time.Millisecond)
		m.Tenant("a", proxy.ByUpstream, time.Millisecond)
		m.Done("db", weir.OK, time.Millisecond)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// However many keys come, however they are called, series are bounded in number.
func TestKeyWaitsAreBounded(t *testing.T) {
	p := compiled(t, map[string]policy.GateSpec{"db": {Limit: &policy.LimitSpec{Limit: 3}, Each: &policy.EachSpec{}}}, policy.Options{})
	m := NewMetrics(still{p}, "v0")
	m.KeepOnly(p, 5)
	for i := range 10_000 {
		m.Admitted("db", weir.Work{Tenant: fmt.Sprint("\xff", i)}, 0)
	}
	w := ask(m.Handler(), http.MethodGet, "/metrics")
	if n := strings.Count(w.Body.String(), "\nweir_key_wait_seconds_count{"); w.Code != http.StatusOK || n != 6 {
		t.Errorf("%d, %d histograms; want 6", w.Code, n)
	}
}

// A gate that sheds shows what it goes by, once it is known.
func TestShedMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := compiled(t, map[string]policy.GateSpec{
			"front": {Shed: &policy.ShedSpec{LoadOf: "db"}}, "db": {Limit: &policy.LimitSpec{Limit: 4}},
		}, policy.Options{})
		for range 3 {
			hold(t, p.Gate("db"), weir.Work{})
		}
		time.Sleep(time.Second)
		m := NewMetrics(still{p}, "v0")
		has(t, m, `weir_gate_pressure{gate="front"} 0.75`)
		if text := ask(m.Handler(), http.MethodGet, "/metrics").Body.String(); strings.Contains(text, `weir_gate_pressure{gate="db"}`) {
			t.Error("a limit has no pressure")
		}
	})
}

// Who is refused by a quota has series of its own, as many as tenants have; a reload keeps
// them, and takes those of gates that are gone.
func TestRefusedBuckets(t *testing.T) {
	const most = 3
	by := policy.GateSpec{Quota: &policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: "1/h", Burst: 2}, By: []string{"user"},
		Rules: []policy.QuotaRuleSpec{{Rule: quota.Rule{Name: "banned", User: "mallory", Blocked: true}}}}}
	slots := policy.GateSpec{Limit: &policy.LimitSpec{Limit: 1}}
	src := &still{}
	m := NewMetrics(src, "v0")
	opts := policy.Options{Hooks: weir.Hooks{Rejected: m.Rejected}}
	load := func(gates map[string]policy.GateSpec) *policy.Policy {
		opts.Previous = src.policy
		src.policy = compiled(t, gates, opts)
		if opts.Previous != nil {
			opts.Previous.Replace(src.policy)
		}
		m.KeepOnly(src.policy, most)
		return src.policy
	}
	p := load(map[string]policy.GateSpec{"api": by, "slots": slots})
	ask := func(user string, cost int64, times int) {
		for range times {
			_, _ = p.Gate("api").TryAdmit(weir.Work{User: user, Cost: cost})
		}
	}
	ask("alice", 1, 2+5)
	ask("mallory", 1, 4)
	ask("bob\xff", 3, 1)
	for i := range 9 {
		ask("u"+strconv.Itoa(i), 3, 1)
	}
	_, _ = p.Gate("slots").TryAdmit(weir.Work{User: "alice", Cost: 9})

	want := []Refused{{"api/user=alice", 5}, {"api/banned", 4}, {"api/user=bob\xff", 1}, {Rest, 9}}
	if got := m.mostRefused("api"); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := m.mostRefused("slots"); got != nil {
		t.Errorf("a gate without a quota has refused %v", got)
	}
	shown := func() string {
		rec := httptest.NewRecorder()
		m.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
		return rec.Body.String()
	}
	text := shown()
	for _, line := range []string{
		`weir_quota_refused_total{bucket="api/user=alice",gate="api"} 5`,
		"weir_quota_refused_total{bucket=\"api/user=bob\ufffd\",gate=\"api\"} 1",
		`weir_quota_refused_total{bucket="other",gate="api"} 9`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no %s", line)
		}
	}

	load(map[string]policy.GateSpec{"api": by})
	if got := m.mostRefused("api"); !slices.Equal(got, want) {
		t.Errorf("after a reload: %v, want %v", got, want)
	}
	load(map[string]policy.GateSpec{"slots": slots})
	if got := m.mostRefused("api"); got != nil || strings.Contains(shown(), "weir_quota_refused_total") {
		t.Errorf("of a gate that is gone: %v", got)
	}
}

// Refusals are counted by priority and reason. A reload keeps the counts, unless it puts another gate in the place of this one.
func TestRefusalsByClass(t *testing.T) {
	for _, r := range weir.Reasons() {
		if int(r) >= reasons {
			t.Fatalf("reason %v is %d, and there is room for %d: raise reasons", r, r, reasons)
		}
	}
	src := &still{}
	m := NewMetrics(src, "v0")
	load := func(g policy.GateSpec) { src.load(t, m, g) }
	limit := policy.GateSpec{Limit: &policy.LimitSpec{Limit: 1}}
	load(limit)
	refuse := func(p weir.Priority, r weir.Reason) {
		m.Rejected(weir.Work{Priority: p}, &weir.Rejection{Gate: "api", Reason: r})
	}
	refuse(weir.Critical, weir.ReasonDeadline)
	refuse(weir.Normal, weir.ReasonDeadline)
	load(limit)
	refuse(weir.Normal, weir.ReasonDeadline)
	refuse(weir.Normal, weir.ReasonLimit)
	refuse(weir.Normal, weir.ReasonCanceled)
	want := map[weir.Priority]map[weir.Reason]uint64{
		weir.Critical: {weir.ReasonDeadline: 1}, weir.Normal: {weir.ReasonDeadline: 2, weir.ReasonLimit: 1},
	}
	if got := m.Status().Gates[0].RefusedByClass; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	text, err := json.Marshal(m.Status().Gates[0])
	if err != nil || !strings.Contains(string(text), `"refused_by_class":{"critical":{"deadline":1},"normal":{"deadline":2,"limit":1}}`) {
		t.Errorf("%v %s", err, text)
	}
	load(policy.GateSpec{Limit: limit.Limit, Each: &policy.EachSpec{By: "tenant"}})
	if got := m.Status().Gates[0].RefusedByClass; len(got) > 0 {
		t.Errorf("another gate of that name begins with %v", got)
	}
}
