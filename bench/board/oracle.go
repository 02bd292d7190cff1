package board

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/sim"
)

// oracle is the best fixed limit for one scenario on one backend.
type oracle struct {
	scenario *sim.Scenario
	setting  string

	served  float64
	latency float64
}

// The sweep: limits around the backend's best concurrency, then longest waits
// as parts of the deadline.
var (
	limitFactors = []float64{.5, .7, .85, 1, 1.2, 1.5, 2, 4, 8, 20}
	waitFactors  = []float64{.25, .5, .8}
)

// sweepSeeds are none of the seeds that scenarios run with, so that the oracle
// is not fitted to the chance it is judged by.
var sweepSeeds = []uint64{1001}

// chance is how far below the most good answers a setting may stay to be chosen
// for its lower latency, in relation to what even the best one cannot serve: with
// everything served nothing is left to chance.
const chance = .006

// findOracle sweeps the limit at the middle wait, then the wait at the best
// limit.
func findOracle(ctx context.Context, s *sim.Scenario, backend string) (*oracle, error) {
	onBackend, err := s.With(backend, "none")
	if err != nil {
		return nil, err
	}
	_, best := onBackend.Backend.Capacity()
	useful := onBackend.Traffic[0].Useful(&onBackend.Backend.Backend)
	var limits []int64
	for _, f := range limitFactors {
		if l := max(1, int64(math.Round(f*float64(best)))); !slices.Contains(limits, l) {
			limits = append(limits, l)
		}
	}
	var tried []*oracle
	try := func(limit int64, wait float64) error {
		o, err := tryFixed(ctx, onBackend, limit, time.Duration(wait*float64(useful)))
		tried = append(tried, o)
		return err
	}
	for _, l := range limits {
		if err := try(l, waitFactors[1]); err != nil {
			return nil, err
		}
	}
	limit := pick(tried).scenario.Policy.Spec.Gates["backend"].Limit.Limit
	for _, f := range waitFactors {
		if f != waitFactors[1] {
			if err := try(limit, f); err != nil {
				return nil, err
			}
		}
	}
	return pick(tried), nil
}

func tryFixed(ctx context.Context, s *sim.Scenario, limit int64, wait time.Duration) (*oracle, error) {
	guarded, err := s.WithPolicy(policy.Spec{
		Gates: map[string]policy.GateSpec{"backend": {Limit: &policy.LimitSpec{
			Limit: limit,
			Queue: policy.QueueSpec{Len: 100_000, MaxWait: policy.Duration(wait), Order: "adaptive"},
		}}},
		Routes: []policy.RouteSpec{{Name: "all", Match: []string{"/"}, Gates: []string{"backend"}}},
	})
	if err != nil {
		return nil, err
	}
	r, err := sim.Run(ctx, guarded, sim.Options{Seeds: sweepSeeds})
	if err != nil {
		return nil, err
	}
	return &oracle{
		scenario: guarded,
		setting:  fmt.Sprintf("limit %d, wait %v", limit, wait),
		served:   r.Spread(aim(s)).Median,
		latency:  r.Spread(sim.Goal{Metric: "p99"}).Median,
	}, nil
}

// aim is what the oracle is best at: the first goal that is a part of what it
// reaches, otherwise good answers over the whole run.
func aim(s *sim.Scenario) sim.Goal {
	for _, g := range s.Goals {
		if g.Part != nil && g.AppliesTo(s.Backend.Name) {
			return g
		}
	}
	return sim.Goal{Metric: "served"}
}

// pick returns the setting with the lowest latency among those that give about
// the most good answers.
func pick(tried []*oracle) *oracle {
	var most float64
	for _, o := range tried {
		most = max(most, o.served)
	}
	var best *oracle
	for _, o := range tried {
		if o.served >= most*(1-chance*max(0, 1-most)) && (best == nil || o.latency < best.latency) {
			best = o
		}
	}
	return best
}

// reference is what the oracle reached: in this run, or in an earlier one.
type reference struct {
	report  *sim.Report
	setting string
	known   []Cell
}

// of returns the oracle's median for a goal.
func (r *reference) of(g *group, goal *sim.Goal) (median float64, ok bool) {
	if r.report != nil {
		return r.report.Spread(*goal).Median, true
	}
	from, to := goal.Stretch(g.scenario)
	wanted := place{g.scenario.Name, g.backend, goal.Metric, goal.Class, from.String(), to.String()}
	for i := range r.known {
		if c := &r.known[i]; c.Controller == "oracle" && c.place() == wanted {
			return c.Median, true
		}
	}
	return 0, false
}

// suffices reports whether no goal of the group needs a new run of the oracle.
func (r *reference) suffices(g *group) bool {
	for i := range g.scenario.Goals {
		goal := &g.scenario.Goals[i]
		if !goal.Relative() || !goal.AppliesTo(g.backend) {
			continue
		}
		if _, ok := r.of(g, goal); !ok {
			return false
		}
	}
	return true
}
