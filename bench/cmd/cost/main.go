// Command cost prints what a decision costs beside the least that it could cost:
// see package cost.
package main

import (
	"fmt"
	"os"

	"github.com/weir-go/weir/bench/internal/cost"
)

func main() {
	if err := cost.Main(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "cost:", err)
		os.Exit(1)
	}
}
