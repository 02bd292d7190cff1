package config

// gateFields are those of the mechanisms beside the plain limit.
var gateFields = map[string]field{
	"EachSpec.by": {doc: "Whose pool it is.", def: "tenant", enum: []string{"tenant", "user", "client", "route"}},
	"EachSpec.own": {
		doc: "A controller of its own for each key, any of them, instead of one size for all: for keys that differ in what they carry, hundreds of them. " +
			"queue.len is for all keys together, of which one takes a quarter at most.",
		def: "false",
	},
	"EachSpec.max_keys": {
		doc: "Keys that are known at a time, 64 bytes each; with own 1024 unless said, 10000 at most, and up to 64 KiB each. " +
			"Idle ones make room for newcomers; a key in use keeps its place. 0 means the default.",
		def: "65536", least: "0", most: "16777215",
	},
	"EachSpec.overrides": {doc: "Keys with a limit of their own.", example: "{acme: {limit: 50}}", anyName: true},

	"OverrideSpec.limit": {doc: "The key's limit.", example: "50", least: "1", most: "1000000"},
	"OverrideSpec.scale": {doc: "How many times the limit of the others the key has, instead of a limit; not with own.", example: "2", least: "0", most: "1000000"},

	"ShedSpec.signals":    {doc: "Signals whose pressure counts, the highest of them. They are those of the gateway's own machine.", example: "[cpu, memory]"},
	"ShedSpec.load_of":    {doc: "A gate with a limit, whose pressure is what is in flight and waiting over its limit, instead of signals. Where work may wait there, it is at 1 whenever all slots are taken: write thresholds above 1.", example: "api"},
	"ShedSpec.wait_of":    {doc: "A gate with a limit, whose pressure is what a newcomer is expected to wait there over wait, instead of signals.", example: "api"},
	"ShedSpec.wait":       {doc: "The longest wait that is wanted there. 0 means the default.", def: "20ms", least: "0s"},
	"ShedSpec.thresholds": {doc: "Pressures from which each priority is refused.", example: "{background: 0.75}"},
	"ShedSpec.cursor":     {doc: "Find out which priority, and which share of its users, is let through, instead of thresholds (DAGOR).", example: "{window: 1s}"},
	"ShedSpec.interval":   {doc: "Time between two readings of the pressure. 0 means the default.", def: "10ms", least: "0s", most: "1m"},
	"ShedSpec.hold":       {doc: "How long the last pressure stands in while none is known. 0 means the default.", def: "1s", least: "0s"},
	"ShedSpec.blind":      {doc: "What holds after that: open lets everything through, keep leaves it as it is.", def: "open", enum: []string{"open", "keep"}},
	"ShedSpec.resalt":     {doc: "How long users keep their place in the order in which users of one priority are refused. 0 means the default.", def: "1h", least: "0s", minusOne: "for ever"},

	"ThresholdsSpec.background": {doc: "Pressure from which background is refused.", def: "0.75"},
	"ThresholdsSpec.normal":     {doc: "Pressure from which normal is refused.", def: "0.9"},
	"ThresholdsSpec.high":       {doc: "Pressure from which high is refused.", def: "0.95"},
	"ThresholdsSpec.critical":   {doc: "Pressure from which everything is refused but exempt work.", def: "1"},

	"CursorSpec.window":   {doc: "How long arrivals are counted before the level moves.", def: "1s", least: "10ms", most: "1m"},
	"CursorSpec.requests": {doc: "Arrivals that end a window early.", def: "200", least: "0", minusOne: "only time ends it"},
	"CursorSpec.overload": {doc: "Pressure from which a window counts as overloaded.", def: "1"},
	"CursorSpec.alpha":    {doc: "By how much of what was admitted an overloaded window cuts at least.", def: "0.05"},
	"CursorSpec.beta":     {doc: "By how much of what arrived a window without overload grows at least.", def: "0.01"},
	"CursorSpec.max_cut":  {doc: "The most that a window cuts.", def: "0.9"},
	"CursorSpec.max_grow": {doc: "The most that a window grows.", def: "0.16"},
	"CursorSpec.plain":    {doc: "Only alpha down and beta up, as the paper has it.", def: "false"},
}
