package admin

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/policy"
)

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
	m.Tenants(2)
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
	m.Tenants(10)
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
	m.Keep(maps.Collect(p.Gates()), nil)
	m.Tenants(2)
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
	m.Keep(maps.Collect(compiled(t, gates, policy.Options{}).Gates()), nil)
	has(t, m, lines...)
	m.Keep(nil, nil)
	if text := ask(m.Handler(), http.MethodGet, "/metrics").Body.String(); strings.Contains(text, "weir_key_wait_seconds") {
		t.Error("a gate that is gone still has series by key")
	}
}

// What is counted on the path of each request allocates nothing.
func TestCountingAllocatesNothing(t *testing.T) {
	p := compiled(t, map[string]policy.GateSpec{"db": {Limit: &policy.LimitSpec{Limit: 3}, Each: &policy.EachSpec{}}}, policy.Options{})
	m := NewMetrics(still{p}, "v0")
	m.Keep(maps.Collect(p.Gates()), nil)
	m.Tenants(5)
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
	m.Keep(maps.Collect(p.Gates()), nil)
	m.Tenants(5)
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
