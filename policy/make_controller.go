package policy

import (
	"time"

	"github.com/weir-go/weir/control"
)

// made keeps a nil pointer from becoming a controller that is not nil.
func made[C control.Controller](c C, err error) (control.Controller, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (l *LimitSpec) fixed() (control.Controller, error) { return control.Fixed(l.Limit), nil }

func (l *LimitSpec) knee() (control.Controller, error) {
	return made(control.NewKnee(control.KneeConfig{Initial: l.Limit, Min: l.Min, Max: l.Max}))
}

func (l *LimitSpec) aimd() (control.Controller, error) {
	return made(control.NewAIMD(control.AIMDConfig{
		Initial: l.Limit, Min: l.Min, Max: l.Max,
		Threshold: time.Duration(l.Threshold), Backoff: l.Backoff,
		Take: control.Take(l.Take), Percentile: l.Percentile,
		Window: time.Duration(l.Window), MinSamples: l.MinSamples,
	}))
}

func (l *LimitSpec) vegas() (control.Controller, error) {
	v := l.Vegas
	return made(control.NewVegas(control.VegasConfig{
		Initial: l.Limit, Min: l.Min, Max: l.Max,
		Alpha: v.Alpha, Beta: v.Beta, Backoff: l.Backoff, Smoothing: v.Smoothing, ProbeMultiplier: v.ProbeMultiplier,
		Take: control.Take(l.Take), Percentile: l.Percentile,
		Window: time.Duration(l.Window), MinSamples: l.MinSamples,
	}))
}

func (l *LimitSpec) gradient2() (control.Controller, error) {
	g := l.Gradient2
	return made(control.NewGradient2(control.Gradient2Config{
		Initial: l.Limit, Min: l.Min, Max: l.Max,
		Smoothing: g.Smoothing, Queue: g.Queue, RootQueue: g.RootQueue, LongWindow: g.LongWindow, Tolerance: g.Tolerance,
		Shipped: g.Shipped, Rise: g.Rise, Recheck: g.Recheck, Backoff: l.Backoff,
		Take: control.Take(l.Take), Percentile: l.Percentile,
		Window: time.Duration(l.Window), MinSamples: l.MinSamples,
	}))
}

// probe makes the one of a pair that ticks, where there are two; the gate makes both.
func (l *LimitSpec) probe() (control.Controller, error) {
	if l.Probe.ReadWrite {
		if pair, err := control.NewProbePair(l.probeConfig()); err == nil {
			return pair.Read(), nil
		}
	}
	return made(control.NewProbe(l.probeConfig()))
}

func (l *LimitSpec) lag() (control.Controller, error) {
	g := l.Lag
	return made(control.NewLagMap(control.LagMapConfig{
		Initial: l.Limit, Min: l.Min, Max: l.Max,
		Target: g.Target, Critical: g.Critical, Interval: time.Duration(g.Interval),
		Signal: g.Signal, Hold: g.Hold, Safe: g.Safe,
		Smoothing: g.Smoothing, MaxChange: g.MaxChange, Hysteresis: g.Hysteresis,
	}))
}

func (l *LimitSpec) drain() (control.Controller, error) {
	d := l.Drain
	return made(control.NewDrain(control.DrainConfig{
		Initial: l.Limit, Min: l.Min, Max: l.Max,
		Target: d.Target, Threshold: d.Threshold, Interval: time.Duration(d.Interval),
		Fudge: d.Fudge, Decay: d.Decay, Adder: d.Adder, Multiplier: d.Multiplier, PerWork: d.PerWork,
		Signal: d.Signal, Hold: d.Hold, Safe: d.Safe,
	}))
}

func (l *LimitSpec) resource() (control.Controller, error) {
	return made(control.NewResource(control.ResourceConfig{
		Initial: l.Limit, Min: l.Min, Max: l.Max,
		Window: time.Duration(l.Window), Backoff: l.Backoff, Growth: l.Resource.Growth,
	}))
}
