// Package config reads the gateway's file: YAML in, a checked [Config] out.
//
// [Load] and [Parse] either return a configuration that can be run as it is, or
// a [*Faults] with everything that is wrong with the file at once, in the order
// of its lines, each with what to write instead:
//
//	weir.yaml:7:36: gates.api.limit.min: 50 is above max (10); write a min that is not above max, or a higher max
//
// The reading has three steps. The YAML library turns text into nodes that know
// their line (yaml.go rewrites its errors). The decoder (decode.go) walks the
// nodes and the Go types side by side: it knows unknown and repeated fields,
// wrong types, bad durations, and values outside the bounds of fields.go.
// Last come the checks of meaning (check.go): names that do not exist, files that
// are missing, and whatever policy.Compile objects to.
//
// A new key is a field of a struct in config.go and a line in fields.go; the
// schema and the guide follow by go test . -update.
//
// The input is bounded: [MaxSize] bytes, [MaxDepth] levels, and a fixed number of
// values after aliases are followed, so that no file can exhaust the gateway.
package config
