package control_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

// processor is a closed loop on virtual time: cores shared by what a limiter has
// admitted, Poisson arrivals, and a signal that follows the jobs in the
// processor with a lag.
type processor struct {
	cores float64
	curve func(jobs float64) float64 // the pressure that so many jobs make in the end
	lag   time.Duration              // of the signal, first order

	now      time.Duration
	pressure float64
	jobs     []job
	random   *rand.Rand
	gate     *limit.Limiter
}

type job struct {
	left   float64 // ms of work
	permit weir.Permit
}

// Readings implements [control.Source].
func (p *processor) Readings(into []control.Reading) []control.Reading {
	return append(into, control.Reading{Name: "load", Value: p.pressure, Known: true})
}

func (p *processor) start(t *testing.T, c control.Controller) {
	t.Helper()
	p.random = rand.New(rand.NewPCG(1, 2))
	gate, err := limit.New(limit.Config{
		Name: "cpu", Controller: c, Signals: p, Queue: limit.Queue{Len: -1},
		Now: func() time.Duration { return p.now },
	})
	if err != nil {
		t.Fatal(err)
	}
	p.gate = gate
}

// seen is what came of a stretch of time.
type seen struct {
	limit, pressure, busy float64 // means
	lowest, highest       int64   // limits
}

// run lets jobs of 2 ms, exponential, come at so many times the capacity.
func (p *processor) run(length time.Duration, load float64) seen {
	const mean = 2.0
	s := seen{lowest: math.MaxInt64}
	steps := 0
	for end := p.now + length; p.now < end; {
		for at := p.random.ExpFloat64(); at < load*p.cores/mean; at += p.random.ExpFloat64() {
			if permit, err := p.gate.TryAdmit(weir.Work{}); err == nil {
				p.jobs = append(p.jobs, job{mean * p.random.ExpFloat64(), permit})
			}
		}
		s.busy += min(1, float64(len(p.jobs))/p.cores)
		p.now += time.Millisecond
		p.work()
		p.gate.Step()
		now := p.gate.Snapshot().Limit
		s.limit += float64(now)
		s.pressure += p.pressure
		s.lowest, s.highest = min(s.lowest, now), max(s.highest, now)
		steps++
	}
	s.limit, s.pressure, s.busy = s.limit/float64(steps), s.pressure/float64(steps), s.busy/float64(steps)
	return s
}

// work lets a millisecond pass.
func (p *processor) work() {
	n := float64(len(p.jobs))
	p.pressure += (p.curve(n) - p.pressure) / (1 + float64(p.lag/time.Millisecond))
	each := min(1, p.cores/max(1, n))
	left := p.jobs[:0]
	for _, j := range p.jobs {
		if j.left -= each; j.left > 0 {
			left = append(left, j)
			continue
		}
		j.permit.Done(weir.OK)
	}
	p.jobs = left
}

// linear is a pressure of 1 at so many jobs.
func linear(wanted float64) func(float64) float64 {
	return func(jobs float64) float64 { return jobs / wanted }
}

// late is what scheduler latency looks like on two cores: nothing up to 7 jobs,
// 1 at 8, and at 17 all it can ever say.
func late(jobs float64) float64 { return min(10, max(0, jobs-7)) }

// share is a processor share over 85 %, on 16 cores: it ends at 1.18.
func share(jobs float64) float64 { return min(1, jobs/16) / 0.85 }

func resource(t *testing.T) control.Controller {
	t.Helper()
	r, err := control.NewResource(control.ResourceConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func capped(t *testing.T, inner control.Controller) *control.Capped {
	t.Helper()
	c, err := control.NewCapped(inner, control.CapConfig{})
	if err != nil {
		t.Fatal(err)
	}
	c.Start()
	return c
}

func capOn(n int64) func(*testing.T) control.Controller {
	return func(t *testing.T) control.Controller {
		t.Helper()
		return capped(t, control.Fixed(n))
	}
}

// Under three times the load, each controller brings the pressure to 1 and keeps
// the processor busy, whether the signal is quick or slow, without falling far
// below on the way.
func TestPressureSettles(t *testing.T) {
	const slow = 500 * time.Millisecond
	for name, tt := range map[string]struct {
		controller func(*testing.T) control.Controller
		wanted     float64
		lag        time.Duration
	}{
		"resource":                    {resource, 16, 0},
		"resource, slow signal":       {resource, 64, slow / 2},
		"capped":                      {capOn(1000), 16, 0},
		"capped, slow signal":         {capOn(1000), 16, 2 * slow},
		"capped, high":                {capOn(1000), 64, slow},
		"capped, few":                 {capOn(1000), 4, slow / 5},
		"capped, inner close to best": {capOn(20), 16, slow},
	} {
		t.Run(name, func(t *testing.T) {
			p := &processor{cores: 2, curve: linear(tt.wanted), lag: tt.lag}
			p.start(t, tt.controller(t))
			defer p.gate.Close()
			p.run(time.Second, 0.5)
			first, then := p.run(8*time.Second, 3), p.run(4*time.Second, 3)
			t.Logf("first %+v, then %+v", first, then)
			if first.lowest < int64(0.7*tt.wanted) && first.lowest < 20 || then.lowest < int64(0.7*tt.wanted) {
				t.Errorf("fell to %d and %d, %v wanted", first.lowest, then.lowest, tt.wanted)
			}
			if then.pressure < 0.9 || then.pressure > 1.1 || then.limit > 1.1*tt.wanted || then.busy < 0.95 {
				t.Errorf("settled at %+v", then)
			}
		})
	}
}

// Signals that are no straight line: one that is steep, one that ends a little
// above 1. The cap moves more, and the processor stays busy.
func TestPressureCurves(t *testing.T) {
	for name, tt := range map[string]struct {
		cores           float64
		curve           func(float64) float64
		lowest, highest int64
		busy            float64
	}{
		"late":  {2, late, 4, 10, 0.97},
		"share": {16, share, 11, 17, 0.75},
	} {
		t.Run(name, func(t *testing.T) {
			p := &processor{cores: tt.cores, curve: tt.curve, lag: 50 * time.Millisecond}
			p.start(t, capOn(100)(t))
			defer p.gate.Close()
			p.run(15*time.Second, 3)
			s := p.run(5*time.Second, 3)
			t.Logf("%+v", s)
			if s.lowest < tt.lowest || s.highest > tt.highest || s.busy < tt.busy {
				t.Errorf("%+v, want limits from %d to %d and at least %v busy", s, tt.lowest, tt.highest, tt.busy)
			}
		})
	}
}

// When the load is gone, so is the cap.
func TestCapIsLifted(t *testing.T) {
	p := &processor{cores: 2, curve: linear(16), lag: 100 * time.Millisecond}
	p.start(t, capOn(200)(t))
	defer p.gate.Close()
	p.run(10*time.Second, 3)
	if s := p.gate.Snapshot(); s.Limit > 20 || s.Signal != "load" {
		t.Errorf("under load: limit %d by %q", s.Limit, s.Signal)
	}
	p.run(5*time.Second, 0.2)
	if s := p.gate.Snapshot(); s.Limit != 200 || s.Signal != "" {
		t.Errorf("5 s later: limit %d by %q", s.Limit, s.Signal)
	}
}

// AIMD takes half of its limit in use for leave to grow. Behind a cap it must
// not, however long that lasts.
func TestInnerDoesNotDrift(t *testing.T) {
	inner, err := control.NewAIMD(control.AIMDConfig{Initial: 20, Threshold: time.Hour, Window: 100 * time.Millisecond, MinSamples: 1})
	if err != nil {
		t.Fatal(err)
	}
	p := &processor{cores: 2, curve: linear(16), lag: 100 * time.Millisecond}
	p.start(t, capped(t, inner))
	defer p.gate.Close()
	p.run(5*time.Second, 3)
	before := inner.Save().Limit
	p.run(20*time.Second, 3)
	if after := inner.Save().Limit; after > before || before > 40 {
		t.Errorf("drifted from %v to %v behind the cap", before, after)
	}
	p.curve = linear(1000)
	p.run(5*time.Second, 3)
	if after := inner.Save().Limit; after < before+20 {
		t.Errorf("without the cap it grows: %v, was %v", after, before)
	}
}

// What Resource's doc says of its blind spot.
func TestResourceIsBlindToWaiting(t *testing.T) {
	p := &processor{cores: 2, curve: linear(math.Inf(1))}
	p.start(t, resource(t))
	defer p.gate.Close()
	p.run(5*time.Second, 3)
	if s := p.gate.Snapshot(); s.Limit < 100 {
		t.Errorf("limit %d where nothing presses, want it to go on growing", s.Limit)
	}
}
