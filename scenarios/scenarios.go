// Package scenarios holds the scenario files that every layer shares: the
// simulator, the loopback runs, and the examples in the guides. Only data; what
// the fields mean is documented by package sim.
//
// The files in backends/ are the standard backends B1 to B5, each with the
// policies that suit it. The S files are rows of the scoreboard.
package scenarios

import "embed"

// Files are the scenario files: NAME.json, and backends/NAME.json.
//
//go:embed *.json backends/*.json
var Files embed.FS
