package cost_test

import (
	"fmt"
	"time"

	"github.com/weir-go/weir/bench/internal/cost"
)

// Measuring the first group on one core.
func ExampleMeasure() {
	figures, err := cost.Measure(cost.Groups()[0], cost.Plan{Procs: 1, Rounds: 3, Turns: 3, Turn: time.Millisecond})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, f := range figures {
		fmt.Printf("%s: %.1f ns, %.2f times the floor\n", f.Name, f.NS.Median, f.Ratio.Median)
	}
}
