package config

// controllerFields documents the groups of settings that belong to one controller.
var controllerFields = map[string]field{
	"LimitSpec.vegas":     {doc: "Settings of the controller vegas.", example: "{alpha: 3, beta: 6}"},
	"LimitSpec.gradient2": {doc: "Settings of the controller gradient2.", example: "{tolerance: 2}"},
	"LimitSpec.probe":     {doc: "Settings of the controller probe.", example: "{step: 0.1}"},
	"LimitSpec.lag":       {doc: "Settings of the controller lag.", example: "{signal: behind, target: 10000}"},
	"LimitSpec.drain":     {doc: "Settings of the controller drain.", example: "{signal: behind, target: 10000}"},
	"LimitSpec.resource":  {doc: "Settings of the controller resource.", example: "{growth: 1.2}"},

	"VegasSpec.alpha":            {doc: "Shortest queue in the upstream, in decimal logarithms of the limit; below it the limit grows.", def: "3", least: "0.001"},
	"VegasSpec.beta":             {doc: "Longest queue, in the same unit; above it the limit shrinks.", def: "6", least: "0.001"},
	"VegasSpec.smoothing":        {doc: "Weight of the new limit against the old.", def: "1", least: "0.001", most: "1"},
	"VegasSpec.probe_multiplier": {doc: "The latency without load is learned anew after about three quarters of this times the limit of observations.", def: "30", least: "1"},

	"Gradient2Spec.smoothing":   {doc: "Weight of the new limit against the old.", def: "0.2", least: "0.001", most: "1"},
	"Gradient2Spec.queue":       {doc: "How much may stand in the upstream's queue.", def: "4", least: "1"},
	"Gradient2Spec.root_queue":  {doc: "Let it be the square root of the limit where that is more.", def: "false"},
	"Gradient2Spec.long_window": {doc: "Over how many observations the baseline latency is averaged.", def: "600", least: "1"},
	"Gradient2Spec.tolerance":   {doc: "How many times the baseline latency may be before the limit shrinks.", def: "1.5", least: "1"},
	"Gradient2Spec.rise":        {doc: "How many times the latency at min the baseline may be.", def: "1.2", least: "1"},
	"Gradient2Spec.recheck":     {doc: "After how many windows of too high latency in a row the latency at min is measured anew.", def: "60", least: "1"},
	"Gradient2Spec.shipped":     {doc: "Behave as concurrency-limits ships it: the baseline follows any load that lasts, and drops are ignored. For comparison.", def: "false"},

	"ProbeSpec.step":     {doc: "By how much a probe goes up or down, as a share.", def: "0.1", least: "0.01", most: "0.5"},
	"ProbeSpec.weight":   {doc: "Weight of a successful probe's size in the moving average that is kept.", def: "0.2", least: "0.001", most: "1"},
	"ProbeSpec.interval": {doc: "The time between two probes.", def: "100ms", least: "10ms"},

	"ProbeSpec.read_write": {
		doc: "Two pools, one for reads and one for writes, sized together by what both get done. limit is that of both at first; min and max are for each. " +
			"A route's access says which one its work needs. With each and own: true, two for each key.",
		def: "false",
	},
	"ProbeSpec.read_ratio": {doc: "The part of the slots that is for reads, with read_write.", def: "0.5", least: "0.001", most: "0.999"},

	"LagSpec.signal":     {doc: "The signal whose value is the lag. Required for the controller lag.", example: "behind"},
	"LagSpec.target":     {doc: "Lag up to which the limit is max.", def: "10000", least: "0.000001"},
	"LagSpec.critical":   {doc: "Lag from which on the limit is min. Above target.", def: "100000", least: "0.000001"},
	"LagSpec.interval":   {doc: "How often the lag is looked at.", def: "5s", least: "10ms"},
	"LagSpec.hold":       {doc: "How many intervals the limit stays while the lag is unknown. 0 means the default.", def: "3", least: "0", minusOne: "none"},
	"LagSpec.safe":       {doc: "The limit while the lag is unknown for longer (default: min).", example: "10", least: "1"},
	"LagSpec.smoothing":  {doc: "Weight of the limit that the lag calls for against the present one.", def: "1", least: "0.001", most: "1"},
	"LagSpec.max_change": {doc: "How far the limit moves at most in one interval, as a share of max − min.", def: "1", least: "0.001", most: "1"},
	"LagSpec.hysteresis": {doc: "By which share of the present limit another one must differ to be worth a change.", def: "0", least: "0", most: "0.999"},

	"DrainSpec.signal":     {doc: "The signal whose value is the lag. Required for the controller drain.", example: "behind"},
	"DrainSpec.target":     {doc: "Lag that is not to be exceeded.", def: "10000", least: "0.000001"},
	"DrainSpec.threshold":  {doc: "Share of target from which on the limit follows what was drained.", def: "0.5", least: "0.001", most: "1"},
	"DrainSpec.interval":   {doc: "How often the lag is looked at.", def: "5s", least: "10ms"},
	"DrainSpec.fudge":      {doc: "Share of what was drained that is let in at the threshold.", def: "0.95", least: "0.001", most: "1"},
	"DrainSpec.decay":      {doc: "What that is multiplied by for every threshold × target of lag above.", def: "0.5", least: "0.001", most: "1"},
	"DrainSpec.adder":      {doc: "Slots added in an interval below the threshold (default: a hundredth of max).", example: "10", least: "0"},
	"DrainSpec.multiplier": {doc: "What the limit is multiplied by in an interval below the threshold.", def: "1.05", least: "1"},
	"DrainSpec.per_work":   {doc: "How many slots a piece of drained work stands for.", def: "1", least: "0.000001"},
	"DrainSpec.hold":       {doc: "As in lag.", def: "3", least: "0", minusOne: "none"},
	"DrainSpec.safe":       {doc: "As in lag.", example: "10", least: "1"},

	"ResourceSpec.growth": {doc: "What the limit is multiplied by at most in one window.", def: "1.1", least: "1.001", most: "2"},
}
