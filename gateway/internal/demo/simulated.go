package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/sim"
)

// simulated plays the same load in virtual time, where no machine is too busy, and returns
// the results of each step. The gate is the same code that the gateway runs.
func (o *Options) simulated(ctx context.Context, a *account) ([]figures, error) {
	gated, err := o.configure("http://127.0.0.1:1", DefaultListen)
	if err != nil {
		return nil, err
	}
	with, err := o.simulate(ctx, sim.PolicyRef{Spec: policy.Spec{
		Gates:  gated.Gates,
		Routes: []policy.RouteSpec{{Match: []string{"/"}, Gates: []string{gateName}}},
	}})
	if err != nil {
		return nil, err
	}
	without, err := o.simulate(ctx, sim.PolicyRef{Name: "none"})
	if err != nil {
		return nil, err
	}
	var all []figures
	length := int(o.virtualStep() / time.Second)
	for i, load := range steps {
		all = append(all, figures{
			load: load, first: i*length + 1, last: (i + 1) * length, limit: int64(math.Round(with[i].Limit.Mean)),
			with: a.simulatedSide(&with[i]), without: a.simulatedSide(&without[i]),
		})
	}
	return all, nil
}

// virtualStep is the length of a step in virtual time. In long steps the work that is left
// over from the step before hardly shows.
func (o *Options) virtualStep() time.Duration { return max(o.step(), 20*time.Second) }

// simulate runs the load against a model of the upstream. It returns the results of each
// step.
func (o *Options) simulate(ctx context.Context, gates sim.PolicyRef) ([]sim.Summary, error) {
	workers := workersFor(o.Capacity)
	s := sim.Scenario{
		Name: "demo",
		Backend: sim.BackendRef{Backend: sim.Backend{
			Law: "pool", Workers: workers, Deadline: policy.Duration(patience),
			Service: sim.Dist{Dist: "exponential", Mean: policy.Duration(float64(workers) / o.Capacity * float64(time.Second))},
		}},
		Policy:  gates,
		Traffic: []sim.Class{{Leaves: true}},
	}
	for i, load := range steps {
		begin, lasts := o.virtualStep()*time.Duration(i), o.virtualStep()
		s.Phases = append(s.Phases, sim.Phase{For: policy.Duration(lasts), Load: load})
		s.Goals = append(s.Goals, sim.Goal{Metric: "goodput", From: policy.Duration(begin), To: policy.Duration(begin + lasts)})
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	checked, err := sim.ParseScenario(text)
	if err != nil {
		return nil, fmt.Errorf("the demo as a scenario: %w", err)
	}
	report, err := sim.Run(ctx, checked, sim.Options{Seeds: []uint64{1}})
	if err != nil {
		return nil, err
	}
	return report.Runs[0].Windows[1:], nil
}

func (a *account) simulatedSide(s *sim.Summary) side {
	seconds, offered := (s.To - s.From).Seconds(), float64(max(1, s.Offered))
	var refused uint64
	for _, n := range s.Refused {
		refused += n
	}
	admitted := offered - float64(refused)
	late := max(0, admitted-float64(s.Good))
	return side{
		offered: offered / seconds, goodput: s.Goodput,
		refused: 100 * float64(refused) / offered, gaveUp: 100 * late / offered, p99: a.p99(s.P99, late, admitted),
	}
}
