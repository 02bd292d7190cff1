package board

import (
	_ "embed"
	"fmt"
)

// lagRows are the scenario files of the board about a consumer's lag, in order.
var lagRows = []string{"S16", "S16b", "S16c", "S16d"}

// lagColumns are its columns, policies of the backends, in order:
//
//	lag          one limit for all, a straight line between two lags
//	damped       the same, and each step goes a quarter of the way
//	lag-first    the line, and the keys that hold most shrink first
//	drain        one limit for all, by what was drained
//	drain-first  the same, and the keys that hold most shrink first
var lagColumns = []string{"lag", "damped", "lag-first", "drain", "drain-first"}

// lagReadme heads docs/scoreboard/lag.md. The verbs are the tally, what is missed and the table.
//
//go:embed lag.md.tmpl
var lagReadme string

// lagPage is docs/scoreboard/lag.md.
func lagPage(cells []Cell) string {
	return fmt.Sprintf(lagReadme, lagTally(cells), missed(cells, lagColumns...), table(cells, lagColumns))
}

func lagTally(cells []Cell) string { return plainTally(cells, lagColumns) }
