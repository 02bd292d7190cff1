package sim_test

import (
	"testing"

	"github.com/weir-go/weir/sim"
)

// A limit that is far too high, a demand that is a fifth too much, and a gate that
// knows the deadlines: all that is admitted comes too late, and all that might
// wait is refused. The default gets out of that by itself.
func TestTheDefaultIsNotFrozen(t *testing.T) {
	for _, limit := range []string{"1300", "10000"} {
		s, err := sim.ParseScenario([]byte(`{
			"name": "frozen", "backend": "B3",
			"policy": {
				"gates": {"backend": {"limit": {"controller": "knee", "limit": ` + limit + `}}},
				"routes": [{"name": "all", "match": ["/"], "gates": ["backend"]}]
			},
			"phases": [{"for": "90s", "load": 1.2}], "seeds": [1, 2],
			"goals": [{"metric": "goodput", "from": "60s", "to": "90s", "min": 0.9}]
		}`))
		if err != nil {
			t.Fatal(err)
		}
		r, err := sim.Run(t.Context(), s, sim.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if !r.Reached() {
			t.Errorf("from a limit of %s:\n%s", limit, r)
		}
	}
}
