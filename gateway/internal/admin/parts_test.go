package admin

import (
	"net/http"
	"strings"
	"testing"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
)

// Reads and writes have a size and a level each, and the gate has both together.
func TestPartMetrics(t *testing.T) {
	p, err := policy.Compile(policy.Spec{Gates: map[string]policy.GateSpec{
		"tickets": {Limit: &policy.LimitSpec{Controller: "probe", Limit: 20, Probe: policy.ProbeSpec{ReadWrite: true, ReadRatio: 0.75}}},
		"plain":   {Limit: &policy.LimitSpec{Limit: 4}},
	}}, policy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, write := range []bool{false, false, true} {
		permit, err := p.Gate("tickets").TryAdmit(weir.Work{Write: write})
		if err != nil {
			t.Fatal(err)
		}
		defer permit.Done(weir.OK)
	}
	m := NewMetrics(still{p}, "v0")
	m.Tenants(10)
	has(t, m,
		`weir_gate_limit{gate="tickets"} 20`,
		`weir_gate_in_flight{gate="tickets"} 3`,
		`weir_part_limit{gate="tickets",part="read"} 15`,
		`weir_part_limit{gate="tickets",part="write"} 5`,
		`weir_part_in_flight{gate="tickets",part="read"} 2`,
		`weir_part_in_flight{gate="tickets",part="write"} 1`,
		`weir_part_waiting{gate="tickets",part="write"} 0`,
		`weir_part_admitted_total{gate="tickets",part="read"} 2`,
	)
	text := ask(m.Handler(), http.MethodGet, "/metrics").Body.String()
	for _, not := range []string{`part="read",gate="plain"`, `weir_part_limit{gate="plain"`, `weir_key_limit{gate="tickets"`, `weir_gate_keys{gate="tickets"`} {
		if strings.Contains(text, not) {
			t.Errorf("there is %s", not)
		}
	}
}
