package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/sim"
)

// underLimits plays a scenario under other limits than its own. One limit has a report, and
// several are compared.
func (o *simOptions) underLimits(ctx context.Context, scenario *sim.Scenario) error {
	if o.JSON && len(o.Limits) > 1 || o.Plot && len(o.Limits) > 1 {
		return usage("--plot and --json show one limit at a time; leave all but one --limit out")
	}
	variants := make([]*sim.Scenario, len(o.Limits))
	for i, limit := range o.Limits {
		var err error
		if variants[i], err = withLimit(scenario, limit); err != nil {
			return err
		}
	}
	if len(variants) == 1 {
		report, err := o.play(ctx, variants[0])
		if err != nil {
			return err
		}
		return o.finish(report)
	}
	return o.compare(ctx, variants)
}

// compare plays each variant and prints a row for it. Its error is that of goals that were missed.
func (o *simOptions) compare(ctx context.Context, variants []*sim.Scenario) error {
	p := newPage(o.Out)
	missed, all := 0, 0
	for i, s := range variants {
		r, err := o.play(ctx, s)
		if err != nil {
			return err
		}
		if i == 0 {
			fmt.Fprintf(p, "%s: %s\n", s.Name, s.About)
			fmt.Fprintf(p, "%.0f requests a second at the best; %s; medians of %s\n", r.Capacity, s.Duration(), count(len(r.Seeds), "seed"))
		}
		figure := func(metric string) string { return sim.Format(metric, r.Spread(sim.Goal{Metric: metric}).Median) }
		mean := ""
		if o.Limits[i] != noLimit {
			mean = fmt.Sprintf("%.1f", r.Spread(sim.Goal{Metric: "limit_mean"}).Median)
		}
		goals := ""
		if n, m := len(r.Goals()), missedGoals(r); n > 0 {
			goals = fmt.Sprintf("%d of %d", n-m, n)
			missed, all = missed+m, all+n
		}
		p.row("LIMIT|GOODPUT / OFFERED|GOODPUT / CAPACITY|LATENCY P50|LATENCY P99|REFUSED|LATE|WASTED WORK|MEAN LIMIT|GOALS",
			o.Limits[i], figure("served"), figure("goodput"), figure("p50"), figure("p99"), figure("refused"), figure("late"), figure("wasted"), mean, goals)
	}
	if err := p.Flush(); err != nil {
		return err
	}
	return missedError(missed, all)
}

// noLimit is the --limit that takes the policy's limits away.
const noLimit = "none"

// withLimit returns the scenario with another limit in the place of those that its policy has.
// Quotas and gates that shed stay, as does what a limit has besides: its queue, for instance.
func withLimit(s *sim.Scenario, limit string) (*sim.Scenario, error) {
	spec := s.Policy.Spec
	var other *policy.LimitSpec
	switch n, err := strconv.ParseInt(limit, 10, 64); {
	case limit == "auto":
		other = &policy.LimitSpec{}
	case err == nil && n > 0:
		other = &policy.LimitSpec{Limit: n}
	case limit != noLimit:
		return nil, usage("--limit %q is neither auto, none nor a number of slots, 1 or more", limit)
	}
	spec.Gates = maps.Clone(spec.Gates)
	found := false
	for name, g := range spec.Gates {
		if g.Limit == nil {
			continue
		}
		found = true
		if g.Each != nil {
			return nil, usage("--limit %s: the gate %s has a limit for each key; put another one into the file", limit, name)
		}
		if other == nil {
			g.Mode = policy.Off
		} else {
			l := g.Limit
			g.Limit = &policy.LimitSpec{Limit: other.Limit, Signals: l.Signals, Queue: l.Queue, Exempt: l.Exempt, Count: l.Count, RefuseOversize: l.RefuseOversize}
		}
		spec.Gates[name] = g
	}
	if !found && other != nil {
		spec = withGate(spec, other)
	}
	return s.WithPolicy(spec)
}

// withGate puts a gate with a limit behind those of each route.
func withGate(spec policy.Spec, limit *policy.LimitSpec) policy.Spec {
	const name = "limit"
	if spec.Gates == nil {
		spec.Gates = map[string]policy.GateSpec{}
	}
	spec.Gates[name] = policy.GateSpec{Limit: limit}
	if spec.Routes = slices.Clone(spec.Routes); len(spec.Routes) == 0 {
		spec.Routes = []policy.RouteSpec{{Name: "all", Match: []string{"/"}}}
	}
	for i := range spec.Routes {
		spec.Routes[i].Gates = append(slices.Clone(spec.Routes[i].Gates), name)
	}
	return spec
}
