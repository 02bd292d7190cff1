package config

// readings are the words of policy.SignalKinds.
var readings = []string{
	"sched_latency", "runnable", "cpu", "cpu_throttling", "memory", "heap", "goroutines", "file", "http",
	"psi_cpu", "psi_io", "psi_memory", "psi_io_full", "psi_memory_full",
	"cgroup_psi_cpu", "cgroup_psi_io", "cgroup_psi_memory", "cgroup_psi_cpu_full", "cgroup_psi_io_full", "cgroup_psi_memory_full",
}

// signalFields documents the keys of signals.
var signalFields = map[string]field{
	"SignalSpec.read": {
		doc: "What is read. Left out, it is the signal's name. See docs/guides/controllers.md for each, and for when it is blind.", enum: readings, example: "cpu",
	},
	"SignalSpec.threshold": {
		doc: "The most that is wanted: the value at which the pressure is 1. A share for most signals (defaults: sched_latency 0.1, cpu 0.85, cpu_throttling 0.25, memory 0.9, heap 0.8, psi_memory 0.1, psi_cpu and psi_io 0.5); " +
			"for runnable a number for each processor (32), for goroutines a number (required), for file and http a value (1).",
		example: "0.8", least: "0.000001",
	},
	"SignalSpec.wait": {doc: "sched_latency: a wait for a processor that counts as long (default 10ms).", example: "10ms", least: "1us"},
	"SignalSpec.over": {doc: "How long a time it is measured over (defaults: sched_latency 50ms, cpu 500ms, cpu_throttling and psi 1s).", example: "1s", least: "1ms", most: "1m"},
	"SignalSpec.path": {form: "the name of a file", doc: "file: the file that holds the number, relative to this file.", example: "lag.txt"},
	"SignalSpec.url":  {form: "a URL such as http://127.0.0.1:8000/lag", doc: "http: what to ask for the number, with GET.", example: "http://127.0.0.1:8000/lag"},
	"SignalSpec.field": {
		doc: "file and http: where in a JSON document the number is, with dots. Left out, the text is the number.", example: "lag.total",
	},
	"SignalSpec.interval":   {doc: "The time from one reading to the next (default 100ms; sched_latency and runnable 10ms).", example: "1s", least: "1ms", most: "1h"},
	"SignalSpec.timeout":    {doc: "How long a reading may take (default: hold).", example: "500ms", least: "1ms", most: "1h"},
	"SignalSpec.hold":       {doc: "How long the last good value stands in while readings fail (default: ten intervals, at least 1s).", example: "5s", least: "1ms", most: "24h"},
	"SignalSpec.smooth":     {doc: "Time constant of an exponential average over the readings. 0 means none.", def: "0s", least: "0s", most: "1h"},
	"SignalSpec.then":       {doc: "What holds after that: ignore goes by the other signals, safe puts safe_value in its place.", def: "ignore", enum: []string{"ignore", "safe"}},
	"SignalSpec.safe_value": {doc: "The pressure, or the lag, with then: safe, which needs it. Above 1 shrinks the limit, 1 keeps it.", def: "0", least: "0"},
}
