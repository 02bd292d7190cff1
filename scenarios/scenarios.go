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

// PlainNames are the names of scenarios that the scoreboards know by a code, by that code. The
// others have one name, that of their file.
var PlainNames = map[string]string{
	"S1":   "steady-overload",
	"S2":   "flood",
	"S3":   "step",
	"S4":   "half-capacity",
	"S4b":  "fifth-capacity",
	"S5":   "retry-storm",
	"S5b":  "retry-after-timeout",
	"S5c":  "retry-storm-budget",
	"S5d":  "retry-storm-mixed",
	"S6":   "cache-flush",
	"S7":   "cold-start",
	"S8":   "long-overload",
	"S8b":  "quiet-hour",
	"S9":   "false-refusals",
	"S9b":  "false-refusals-busy",
	"S10":  "bursts",
	"S11":  "heavy-unknown",
	"S11c": "heavy-told",
	"S11d": "heavy-told-late",
	"S12":  "critical-over-bulk",
	"S12b": "background-share",
	"S13":  "noisy-neighbour",
	"S13b": "noisy-neighbours",
	"S13c": "many-tenants",
	"S14":  "tenant-weights",
	"S14b": "invented-tenants",
	"S14c": "long-requests",
	"S15":  "chained-calls",
	"S15b": "chained-calls-retried",
	"S15c": "chained-calls-budget",
	"S15d": "chained-calls-mixed",
	"S16":  "lag-loop",
	"S16b": "noisy-database",
	"S16c": "noisy-databases",
	"S16d": "consumer-stops",
	"S17":  "clients-leave",
	"S18":  "standstill",
	"S21":  "batch-beside-users",
	"S22":  "health-checks",
	"S23":  "nested-calls",
	"S24":  "quota-debt",
	"S27":  "suspended-gateway",
	"S28":  "little-patience",
	"S28b": "little-patience-half-capacity",
	"S28c": "little-patience-uneven-work",
}
