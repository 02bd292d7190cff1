package policy

// SignalSpec is a signal that gates may go by. The zero value reads what the
// signal is named after, at its defaults.
type SignalSpec struct {
	// Read is what is read: one of the words of [SignalKinds], or a name of
	// Options.Signals. Default: the signal's own name.
	Read string `json:"read,omitempty"`
	// Threshold is the most that is wanted, the value at which the pressure is
	// 1: a share for most signals, a number for goroutines, runnable (for each
	// processor), file, http and those of Options.Signals. Defaults: those of
	// package signal; required for goroutines; 1 for file, http and
	// Options.Signals, whose value then is the pressure.
	Threshold float64 `json:"threshold,omitempty"`
	// Wait is sched_latency's: the wait for a processor that counts as long.
	Wait Duration `json:"wait,omitempty"`
	// Over is the time that is looked back over, for sched_latency, cpu,
	// cpu_throttling and the pressure stall signals.
	Over Duration `json:"over,omitempty"`
	// Path is the file to read, for file.
	Path string `json:"path,omitempty"`
	// URL is what to ask, for http.
	URL string `json:"url,omitempty"`
	// Field leads to the number in a JSON document, with dots: lag.orders.0.
	// Without it the text is the number. For file and http.
	Field string `json:"field,omitempty"`

	// Interval, Timeout, Hold and Smooth say how to poll it; see signal.Watch.
	Interval Duration `json:"interval,omitempty"`
	Timeout  Duration `json:"timeout,omitempty"`
	Hold     Duration `json:"hold,omitempty"`
	Smooth   Duration `json:"smooth,omitempty"`
	// Then is what holds once nothing good was read for longer than Hold:
	// ignore (default) or safe, which puts SafeValue, above 0, in its place.
	Then      string  `json:"then,omitempty"`
	SafeValue float64 `json:"safe_value,omitempty"`
}
