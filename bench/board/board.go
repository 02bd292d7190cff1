// Package board is the scoreboard: rows of scenarios, on several backends,
// under several controllers, as one table of figures beside their goals.
//
// The columns are
//
//	none     no gate at all
//	oracle   the best fixed limit for the very scenario and backend, found by a
//	         sweep, in front of a wait room that serves the newest first while a
//	         queue stands and knows the deadline: what could be had by somebody
//	         who knew everything beforehand
//	fixed    a fixed limit that was tuned once for the backend
//	aimd     additive increase, multiplicative decrease, with half the deadline
//	         as its threshold
//	default  what a gate does when nobody configures it: [DefaultPolicy], the
//	         same for every backend
//
// A quota that a scenario's own policy has stands before the gate of each column but
// none.
//
// Every cell is the median over the seeds, with the least and the largest.
package board

import (
	"context"
	"slices"

	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/sim"
)

// Rows are the scenario files on the board, in order.
var Rows = []string{
	"S1", "S2", "S3", "S4", "S4b", "S5", "S5b", "S6", "S7", "S8", "S8b", "S9", "S9b", "S10", "S11",
	"S17", "S18", "S24", "S27", "S28", "S28b", "S28c",
	"slower", "faster", "mix", "brownout", "brownout-slow", "failfast", "failhalf",
	"steps-800", "steps-1500",
	"T-1x", "T-2x", "T-10x", "T-spike", "T-half", "T-tenth", "T-calm", "T-busy",
}

// Controllers are the columns, in order.
var Controllers = []string{"none", "oracle", "fixed", "aimd", "default"}

// DefaultPolicy is the policy of the column default: the default controller and
// the default wait room, and not one figure.
func DefaultPolicy() policy.Spec {
	return policy.Spec{
		Gates:  map[string]policy.GateSpec{"backend": {Limit: &policy.LimitSpec{Controller: "knee"}}},
		Routes: []policy.RouteSpec{{Name: "all", Match: []string{"/"}, Gates: []string{"backend"}}},
	}
}

// Cell is one figure: of one scenario, backend and controller.
type Cell struct {
	Scenario   string `json:"scenario"`
	Backend    string `json:"backend"`
	Controller string `json:"controller"`
	// HeldOut says that no default was tuned on this scenario or backend.
	HeldOut bool `json:"held_out,omitempty"`
	// Setting says what the oracle chose; empty for the others, whose policies
	// are in the files of the backends.
	Setting string `json:"setting,omitempty"`

	// Metric is one of sim.Metrics, taken over From to To; with a Class, one of
	// sim.ClassMetrics.
	Metric string   `json:"metric"`
	Class  string   `json:"class,omitempty"`
	From   string   `json:"from"`
	To     string   `json:"to"`
	Seeds  []uint64 `json:"seeds"`
	sim.Spread

	// Goal is what the median should be, in words; empty for a figure that is
	// only reported. Reached is absent then.
	Goal    string `json:"goal,omitempty"`
	Reached *bool  `json:"reached,omitempty"`
	// AtLeast and AtMost are the same goal as figures.
	AtLeast *float64 `json:"at_least,omitempty"`
	AtMost  *float64 `json:"at_most,omitempty"`

	// Alone is what the class has when it is alone under the same column, where
	// the goal compares with that.
	Alone *float64 `json:"alone,omitempty"`

	// Limit is the limit over the same stretch, over all seeds: the lowest, the
	// median of the means, the highest. All 0 without a gate.
	Limit sim.Level `json:"limit"`

	row, line int
}

// place is where a figure stands, whichever the column.
type place struct{ scenario, backend, metric, class, from, to string }

func (c *Cell) place() place { return place{c.Scenario, c.Backend, c.Metric, c.Class, c.From, c.To} }

// Options are what to put on the board. The zero value is all of it.
type Options struct {
	// Rows, Backends and Controllers restrict the board to these.
	Rows, Backends, Controllers []string
	// Seeds replace those of the scenarios.
	Seeds []uint64
	// Requests, if not 0, ends each run when so many have been offered, for a
	// quick look at rows that do not depend on the time of the run.
	Requests int
	// Known are cells of an earlier board. Goals that are relative to the oracle
	// take its figures from there, and the sweep that finds it is spared, where
	// the oracle is not asked for itself. They must have been run with the same
	// seeds to mean the same.
	Known []Cell
	// Look, if set, is given each report, to print more of it than a cell holds.
	// It is called from several goroutines.
	Look func(backend, controller string, r *sim.Report)
	// Progress, if set, is told when a group of cells, one scenario on one
	// backend, is done. It is called from one goroutine at a time.
	Progress func(scenario, backend string, done, of int)
}

func wanted(list []string, name string) bool { return len(list) == 0 || slices.Contains(list, name) }

// Run fills the board. Groups run in parallel, one on each processor.
func Run(ctx context.Context, opts Options) ([]Cell, error) {
	groups, err := opts.load(Rows)
	if err != nil {
		return nil, err
	}
	fill := func(ctx context.Context, g group) ([]Cell, error) { return g.fill(ctx, &opts) }
	cells, err := inParallel(ctx, groups, fill, opts.Progress)
	if err != nil {
		return nil, err
	}
	order(cells)
	return cells, nil
}

// load reads those of the rows that are wanted.
func (o *Options) load(rows []string) ([]group, error) {
	var groups []group
	for i, name := range rows {
		if !wanted(o.Rows, name) {
			continue
		}
		s, err := sim.Load(name)
		if err != nil {
			return nil, err
		}
		if o.Requests > 0 {
			s.Requests = o.Requests
		}
		for _, backend := range s.On {
			if !wanted(o.Backends, backend) {
				continue
			}
			std, err := sim.LoadStandard(backend)
			if err != nil {
				return nil, err
			}
			groups = append(groups, group{i, s, backend, s.HeldOut || std.HeldOut})
		}
	}
	return groups, nil
}
