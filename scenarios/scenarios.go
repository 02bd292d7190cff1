// Package scenarios holds the scenario files that every layer shares: the
// simulator, the loopback runs, and the examples in the guides. Only data; what
// the fields mean is documented by package sim.
//
// The files in backends/ are the standard backends, each with the policies that suit it. B1 to B5
// are those of the scoreboard's rows. Nothing was tuned on H1 to H5. The rest serve one or two rows
// each. A file with on is a row of the scoreboard. held_out marks a row or backend that no default
// was tuned on.
package scenarios

import "embed"

// Files are the scenario files: NAME.json, and backends/NAME.json.
//
//go:embed *.json backends/*.json
var Files embed.FS
