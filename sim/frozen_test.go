package sim_test

import (
	"testing"

	"github.com/weir-go/weir/sim"
)

// A limit that is far too high, a demand that is a fifth too much, and a gate that
// knows the deadlines: all that is admitted comes too late, and all that might
// wait is refused. Controllers that find the limit get out of that by themselves.
func TestTheDefaultIsNotFrozen(t *testing.T) {
	if testing.Short() {
		t.Skip("eight simulations of 90 s")
	}
	for _, tt := range []struct{ controller, limit string }{{"belief", "1300"}, {"belief", "10000"}, {"knee", "1300"}, {"knee", "10000"}} {
		mustReach(t, `{
			"name": "frozen", "backend": "B3",
			"policy": {
				"gates": {"backend": {"limit": {"controller": "`+tt.controller+`", "limit": `+tt.limit+`}}},
				"routes": [{"name": "all", "match": ["/"], "gates": ["backend"]}]
			},
			"phases": [{"for": "90s", "load": 1.2}], "seeds": [1, 2],
			"goals": [{"metric": "goodput", "from": "60s", "to": "90s", "min": 0.9}]
		}`)
	}
}

// A limit that is far too high before a database that gives statements up at their deadline. What is given up leaves its slot,
// so the limit is never reached. All the same, more is inside than can be done in time.
func TestALimitThatNobodyReachesComesDown(t *testing.T) {
	for _, tt := range []struct{ cores, deadline, thrash, service, load, useful string }{
		{"2", "4ms", "0.0013", `"bimodal", "modes": [{"time": "700us", "weight": 97}, {"time": "4ms", "weight": 3}]`, "2", "0.95"},
		// The deadline is so near that what is given up looks hardly slower than what is not. A first limit at which nothing was in time
		// is nothing to come back to.
		{"2", "30ms", "0.002", `"erlang", "k": 10, "mean": "10ms"`, "3", "0.8"},
		// The limit is nearly reached, with two of three late, and free for a moment after each.
		{"4", "30ms", "0.02", `"exponential", "mean": "10ms"`, "3", "0.8"},
	} {
		mustReach(t, `{
			"name": "unreached", "on_abandon": "cancel",
			"backend": {"law": "cores", "cores": `+tt.cores+`, "discipline": "ps", "thrash": `+tt.thrash+`, "deadline": "`+tt.deadline+`", "service": {"dist": `+tt.service+`}},
			"policy": {
				"gates": {"database": {"limit": {"controller": "belief", "limit": 128, "min": 1, "max": 200}}},
				"routes": [{"name": "all", "gates": ["database"]}]
			},
			"phases": [{"for": "20s", "load": `+tt.load+`}], "traffic": [{"leaves": true}], "seeds": [1, 2],
			"goals": [{"metric": "goodput", "from": "3s", "to": "20s", "min": `+tt.useful+`}]
		}`)
	}
}

// mustReach plays a scenario, whose goals have to be reached.
func mustReach(t *testing.T, scenario string) {
	t.Helper()
	s, err := sim.ParseScenario([]byte(scenario))
	if err != nil {
		t.Fatal(err)
	}
	r, err := sim.Run(t.Context(), s, sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !r.Reached() {
		t.Errorf("%s\n%s", scenario, r)
	}
}
