package board_test

import (
	"context"
	"fmt"

	"github.com/weir-go/weir/bench/internal/board"
)

// How does AIMD do at twice the load on the slow database, beside no gate at
// all?
func Example() {
	cells, err := board.Limits.Run(context.Background(), board.Options{
		Rows: []string{"S1"}, Backends: []string{"B4"}, Controllers: []string{"none", "aimd"}, Seeds: []uint64{1},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range cells {
		if c.Metric == "goodput" {
			fmt.Printf("%s: goodput %s, reached: %v\n", c.Controller, c.Goal, *c.Reached)
		}
	}
	// Output:
	// none: goodput >= 0.950, reached: false
	// aimd: goodput >= 0.950, reached: true
}
