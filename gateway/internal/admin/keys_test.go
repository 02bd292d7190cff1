package admin

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
)

// The pools that are used most have a capacity and a level each, whatever their
// keys look like, and their number is bounded.
func TestKeyMetrics(t *testing.T) {
	p, err := policy.Compile(policy.Spec{Gates: map[string]policy.GateSpec{
		"db": {Limit: &policy.LimitSpec{Limit: 3}, Each: &policy.EachSpec{Overrides: map[string]policy.OverrideSpec{"big": {Limit: 9}}}},
	}}, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	cut := strings.Repeat("\u00e4", 40) // is cut in the middle of a letter
	for _, tenant := range []string{"big", "big", "big", "small", "small", cut, "few"} {
		permit, err := p.Gate("db").TryAdmit(weir.Work{Tenant: tenant})
		if err != nil {
			t.Fatal(err)
		}
		defer permit.Done(weir.OK)
	}
	m := NewMetrics(still{p}, "v0")
	m.Tenants(2)
	has(t, m,
		`weir_gate_limit{gate="db"} 3`,
		`weir_gate_in_flight{gate="db"} 7`,
		`weir_gate_keys{gate="db"} 4`,
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

// A gate that sheds shows what it goes by, once it is known.
func TestShedMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := policy.Compile(policy.Spec{Gates: map[string]policy.GateSpec{
			"front": {Shed: &policy.ShedSpec{LoadOf: "db"}}, "db": {Limit: &policy.LimitSpec{Limit: 4}},
		}}, policy.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		for range 3 {
			permit, err := p.Gate("db").TryAdmit(weir.Work{})
			if err != nil {
				t.Fatal(err)
			}
			defer permit.Done(weir.OK)
		}
		time.Sleep(time.Second)
		m := NewMetrics(still{p}, "v0")
		has(t, m, `weir_gate_pressure{gate="front"} 0.75`)
		if text := ask(m.Handler(), http.MethodGet, "/metrics").Body.String(); strings.Contains(text, `weir_gate_pressure{gate="db"}`) {
			t.Error("a limit has no pressure")
		}
	})
}
