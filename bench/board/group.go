package board

import (
	"context"
	"maps"
	"slices"

	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/sim"
)

// group is one scenario on one backend: the cells that are compared.
type group struct {
	row      int
	scenario *sim.Scenario
	backend  string
	heldOut  bool
}

// fill runs the group under each controller.
func (g *group) fill(ctx context.Context, opts *Options) ([]Cell, error) {
	var cells []Cell
	ref := reference{known: opts.Known}
	if g.wants(opts, "oracle") || !ref.suffices(g) {
		best, err := findOracle(ctx, g.scenario, g.backend)
		if err != nil {
			return nil, err
		}
		if ref.report, err = g.play(ctx, best.scenario, opts); err != nil {
			return nil, err
		}
		ref.setting = best.setting
	}
	for _, controller := range Controllers {
		if !g.wants(opts, controller) {
			continue
		}
		report, setting := ref.report, ref.setting
		if controller != "oracle" {
			var err error
			if report, err = g.run(ctx, controller, opts); err != nil {
				return nil, err
			}
			setting = ""
		}
		if opts.Look != nil {
			opts.Look(g.backend, controller, report)
		}
		cells = append(cells, g.cells(controller, setting, report, &ref)...)
	}
	return cells, nil
}

// wants reports whether a column is run.
func (g *group) wants(opts *Options, controller string) bool {
	return wanted(opts.Controllers, controller) && wanted(g.scenario.Under, controller)
}

func (g *group) run(ctx context.Context, controller string, opts *Options) (*sim.Report, error) {
	s, err := g.scenario.With(g.backend, "none")
	if err != nil {
		return nil, err
	}
	if controller == "default" {
		s, err = s.WithPolicy(DefaultPolicy())
	} else {
		s, err = s.With(g.backend, controller)
	}
	if err == nil && controller != "none" {
		s, err = behindQuotas(&g.scenario.Policy.Spec, s)
	}
	if err != nil {
		return nil, err
	}
	return g.play(ctx, s, opts)
}

// behindQuotas puts the quotas that the scenario's own policy has before the gates of the
// column: they are a promise that the scenario is about, not a way to protect a backend.
func behindQuotas(own *policy.Spec, s *sim.Scenario) (*sim.Scenario, error) {
	spec := s.Policy.Spec
	spec.Gates = maps.Clone(spec.Gates)
	var names []string
	for name, g := range own.Gates {
		if g.Quota != nil {
			names = append(names, name)
			spec.Gates[name] = g
		}
	}
	if len(names) == 0 {
		return s, nil
	}
	slices.Sort(names)
	spec.Routes = slices.Clone(spec.Routes)
	for i := range spec.Routes {
		spec.Routes[i].Gates = slices.Concat(names, spec.Routes[i].Gates)
	}
	return s.WithPolicy(spec)
}

func (g *group) play(ctx context.Context, s *sim.Scenario, opts *Options) (*sim.Report, error) {
	return sim.Run(ctx, s, sim.Options{Seeds: opts.Seeds, Columns: columns(s, g.backend)})
}

// cells turns a report into one cell for each goal of the scenario.
func (g *group) cells(controller, setting string, r *sim.Report, ref *reference) []Cell {
	var cells []Cell
	for line, goal := range g.scenario.Goals {
		if !goal.AppliesTo(g.backend) {
			continue
		}
		if oracle, ok := ref.of(g, &goal); ok {
			goal = goal.Against(oracle)
		}
		c := g.cell(line, goal, controller, r)
		c.Setting = setting
		cells = append(cells, c)
	}
	return cells
}

// cell is a goal of the scenario, by its number, and what became of it.
func (g *group) cell(line int, goal sim.Goal, controller string, r *sim.Report) Cell {
	from, to := goal.Stretch(g.scenario)
	c := Cell{
		Scenario: g.scenario.Name, Backend: g.backend, Controller: controller, HeldOut: g.heldOut,
		Metric: goal.Metric, Class: goal.Class, From: from.String(), To: to.String(), Seeds: r.Seeds,
		Spread: r.Spread(goal), Goal: goal.Bounds(), AtLeast: goal.Min, AtMost: goal.Max,
		Limit: limitOf(r, goal), row: g.row, line: line,
	}
	if c.fine() {
		c.Goal = fineBounds(&goal)
	}
	if c.Goal != "" {
		reached := goal.Holds(c.Median)
		c.Reached = &reached
	}
	return c
}

// limitOf is the limit over a goal's stretch.
func limitOf(r *sim.Report, goal sim.Goal) sim.Level {
	over := func(metric string) sim.Spread {
		goal.Metric, goal.Class = metric, ""
		return r.Spread(goal)
	}
	return sim.Level{Min: over("limit_min").Min, Mean: over("limit_mean").Median, Max: over("limit_max").Max}
}
