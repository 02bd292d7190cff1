package policy

// VegasSpec is what only the controller vegas has; see [control.VegasConfig].
type VegasSpec struct {
	Alpha           float64 `json:"alpha,omitempty"`
	Beta            float64 `json:"beta,omitempty"`
	Smoothing       float64 `json:"smoothing,omitempty"`
	ProbeMultiplier int64   `json:"probe_multiplier,omitempty"`
}

// Gradient2Spec is what only the controller gradient2 has; see
// [control.Gradient2Config].
type Gradient2Spec struct {
	Smoothing  float64 `json:"smoothing,omitempty"`
	Queue      int64   `json:"queue,omitempty"`
	RootQueue  bool    `json:"root_queue,omitempty"`
	LongWindow int64   `json:"long_window,omitempty"`
	Tolerance  float64 `json:"tolerance,omitempty"`
	Rise       float64 `json:"rise,omitempty"`
	Recheck    int64   `json:"recheck,omitempty"`
	Shipped    bool    `json:"shipped,omitempty"`
}

// ProbeSpec is what only the controller probe has; see [control.ProbeConfig].
type ProbeSpec struct {
	Step     float64  `json:"step,omitempty"`
	Weight   float64  `json:"weight,omitempty"`
	Interval Duration `json:"interval,omitempty"`
	// ReadWrite makes two pools, one for reads and one for writes (weir.Work.Write),
	// which are sized together by what both get done; see keyed.ReadWrite. Limit is
	// that of both at first, of which ReadRatio is for reads (default 0.5), and Min
	// and Max are for each. With EachSpec.Own there are two for each key.
	ReadWrite bool    `json:"read_write,omitempty"`
	ReadRatio float64 `json:"read_ratio,omitempty"`
}

// LagSpec is what only the controller lag has; see [control.LagMapConfig].
type LagSpec struct {
	// Signal names the signal whose value is the lag. Required.
	Signal     string   `json:"signal,omitempty"`
	Target     float64  `json:"target,omitempty"`
	Critical   float64  `json:"critical,omitempty"`
	Interval   Duration `json:"interval,omitempty"`
	Hold       int      `json:"hold,omitempty"`
	Safe       int64    `json:"safe,omitempty"`
	Smoothing  float64  `json:"smoothing,omitempty"`
	MaxChange  float64  `json:"max_change,omitempty"`
	Hysteresis float64  `json:"hysteresis,omitempty"`
}

// DrainSpec is what only the controller drain has; see [control.DrainConfig].
type DrainSpec struct {
	// Signal names the signal whose value is the lag. Required.
	Signal     string   `json:"signal,omitempty"`
	Target     float64  `json:"target,omitempty"`
	Threshold  float64  `json:"threshold,omitempty"`
	Interval   Duration `json:"interval,omitempty"`
	Fudge      float64  `json:"fudge,omitempty"`
	Decay      float64  `json:"decay,omitempty"`
	Adder      float64  `json:"adder,omitempty"`
	Multiplier float64  `json:"multiplier,omitempty"`
	PerWork    float64  `json:"per_work,omitempty"`
	Hold       int      `json:"hold,omitempty"`
	Safe       int64    `json:"safe,omitempty"`
}

// ResourceSpec is what only the controller resource has; see
// [control.ResourceConfig]. It goes by LimitSpec.Signals.
type ResourceSpec struct {
	Growth float64 `json:"growth,omitempty"`
}
