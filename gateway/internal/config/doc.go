// Package config reads the gateway's file: YAML in, a checked [Config] out.
//
// [Load] and [Parse] either return a configuration that can run as it is, or a [*fault.Faults].
// That is everything that is wrong with the file at once, in the order of its lines. Each fault
// says what to write instead:
//
//	weir.yaml:7:36: gates.api.limit.min: 50 is above max (10); write a min that is not above max, or a higher max
//
// There are three steps. yaml.go makes a tree of the text; every node knows its line. Package
// setting decodes the tree into the structs of config.go, and reports unknown and repeated fields,
// wrong types, and values out of bounds. check.go checks the meaning: names that do not exist,
// missing files, and the faults that policy.Compile reports.
//
// A new setting is a field of a struct, with tags and a comment. The schema and
// docs/reference/config.md are made from those by go test . -update. What names the setting by hand is
// starter-full.yaml.
//
// No file can exhaust the gateway, because the input is bounded: [MaxSize] bytes,
// [setting.MaxDepth] levels, and a fixed number of values once aliases are followed.
package config
