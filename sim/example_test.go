package sim_test

import (
	"context"
	"fmt"

	"github.com/weir-go/weir/sim"
)

const scenario = `{
  "name": "twice the load",
  "backend": {
    "law": "usl", "sigma": 0.05, "kappa": 0.0005,
    "service": {"dist": "exponential", "mean": "10ms"},
    "deadline": "500ms"
  },
  "policy": {
    "gates": {"db": {"limit": {"limit": 44, "queue": {"max_wait": "250ms"}}}},
    "routes": [{"name": "all", "match": ["/"], "gates": ["db"]}]
  },
  "phases": [{"for": "10s", "load": 0.5}, {"for": "30s", "load": 2}],
  "goals": [{"metric": "goodput", "from": "15s", "to": "40s", "min": 0.95}]
}`

func Example() {
	s, err := sim.ParseScenario([]byte(scenario))
	if err != nil {
		fmt.Println(err)
		return
	}
	report, err := sim.Run(context.Background(), s, sim.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("the backend does %.0f requests/s at best, with %d at once\n", report.Capacity, report.Best)
	for _, g := range report.Goals() {
		fmt.Printf("%s %s: %.2f, reached: %v\n", g.Goal.Metric, g.Goal.Bounds(), g.Spread.Median, g.Reached)
	}
	// Output:
	// the backend does 1074 requests/s at best, with 44 at once
	// goodput >= 0.950: 1.00, reached: true
}

// All faults of a scenario come at once, each with its place.
func ExampleParseScenario_faults() {
	_, err := sim.ParseScenario([]byte(`{
	  "name": "mistakes",
	  "backend": "B1",
	  "phases": [{"for": "10s", "load": 2, "rps": 100}],
	  "traffic": [{"priority": "urgent"}]
	}`))
	fmt.Println(err)
	// Output:
	// line 4: phases[0].rps: load and rps are both given; write one of them
	// line 5: traffic[0].priority: "urgent" is not known; write one of background, normal, high, critical
}
