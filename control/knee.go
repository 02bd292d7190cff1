package control

import "time"

// KneeConfig configures [NewKnee]. The zero value is meant for everybody.
type KneeConfig struct {
	// Initial is the first limit, clamped to Min and Max. Default 20.
	Initial int64
	// Min and Max bound the limit. Defaults 1 and 10,000.
	Min, Max int64
}

// Knee looks for the knee of the backend's throughput.
type Knee struct {
	cfg   KneeConfig
	limit float64
}

// NewKnee returns a Knee controller, or an error that names every field out of
// range.
func NewKnee(cfg KneeConfig) (*Knee, error) {
	def(&cfg.Initial, 20)
	def(&cfg.Min, 1)
	def(&cfg.Max, 10_000)
	var f faults
	f.check(cfg.Min >= 1, "Min %d: must be at least 1", cfg.Min)
	f.check(cfg.Max >= cfg.Min, "Max %d: must not be below Min %d", cfg.Max, cfg.Min)
	if err := f.err("knee"); err != nil {
		return nil, err
	}
	return &Knee{cfg: cfg, limit: float64(min(max(cfg.Initial, cfg.Min), cfg.Max))}, nil
}

// Name implements [Controller].
func (k *Knee) Name() string { return "knee" }

// Start implements [Controller].
func (k *Knee) Start() Decision {
	return Decision{Limit: int64(k.limit), Next: 100 * time.Millisecond, Reason: "initial"}
}

// Update implements [Controller].
func (k *Knee) Update(w *Window) Decision {
	return Decision{Limit: int64(k.limit), Next: 100 * time.Millisecond}
}
