// Command scoreboard runs the scenarios under every controller, prints the
// table, and writes it with all figures to docs/scoreboard.
package main

import (
	"os"

	"github.com/weir-go/weir/bench/internal/board"
)

func main() {
	os.Exit(board.Main(os.Args[1:], os.Stdout, os.Stderr))
}
