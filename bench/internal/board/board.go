// Package board is the scoreboard: rows of scenarios, on several backends,
// under several controllers, as one table of figures beside their goals.
//
// The columns are
//
//	none     no gate at all
//	oracle   what somebody could have who knew everything beforehand: the best
//	         fixed limit for the very scenario and backend, found by a sweep. Its
//	         wait room serves the newest first while a queue stands, and knows
//	         the deadline
//	fixed    a fixed limit that was tuned once for the backend
//	aimd     additive increase, multiplicative decrease, with half the deadline
//	         as its threshold
//	default  what a gate does when nobody configures it: [defaultPolicy], the
//	         same for every backend
//
// A quota that a scenario's own policy has stands before the gate of each column but
// none.
//
// Every cell is the median over the seeds, with the least and the largest.
package board

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/sim"
)

// rows are the scenario files on the board, in order.
var rows = []string{
	"S1", "S2", "S3", "S4", "S4b", "S5", "S5b", "S6", "S7", "S8", "S8b", "S9", "S9b", "S10", "S11",
	"S17", "S18", "S24", "S27", "S28", "S28b", "S28c",
	"slower", "faster", "mix", "brownout", "brownout-slow", "failfast", "failhalf",
	"steps-800", "steps-1500",
	"T-1x", "T-2x", "T-10x", "T-spike", "T-half", "T-tenth", "T-calm", "T-busy",
	"first-4", "first-128", "first-1000", "conflict", "conflict-4", "conflict-128", "conflict-1000",
}

// controllers are the columns, in order.
var controllers = []string{"none", "oracle", "fixed", "aimd", "default"}

// defaultPolicy is the policy of the column default: the default controller and
// the default wait room, and not one figure.
func defaultPolicy() policy.Spec { return policyOf("") }

// policyOf is the default policy with another controller, or without: with what comes by itself.
func policyOf(controller string) policy.Spec {
	return policy.Spec{
		Gates:  map[string]policy.GateSpec{"backend": {Limit: &policy.LimitSpec{Controller: controller}}},
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
}

// place is where a figure stands, whichever the column.
type place struct{ scenario, backend, metric, class, from, to string }

func (c *Cell) place() place { return place{c.Scenario, c.Backend, c.Metric, c.Class, c.From, c.To} }

// spot is where a cell stands.
type spot struct {
	place
	controller string
}

func (c *Cell) spot() spot { return spot{c.place(), c.Controller} }

// board is rows of scenarios and columns of controllers.
type board struct {
	// Rows are the scenario files, in order.
	Rows []string
	// Columns are the controllers, in order.
	Columns []string

	data, page string // names of its files
	text       func([]Cell) string
	tally      func([]Cell) string
}

// Limits is the board of limits, order the one about who goes first, lags the one about a
// consumer's lag.
var (
	Limits = &board{rows, controllers, "scoreboard.json", "README.md", limitPage, limitTally}
	order  = &board{orderRows, orderColumns, "order.json", "order.md", orderPage, orderTally}
	lags   = &board{lagRows, lagColumns, "lag.json", "lag.md", lagPage, lagTally}
)

// Read returns the cells that were written to a directory last, none if there are
// none.
func (b *board) Read(dir string) (cells []Cell, err error) {
	return cells, kit.Read(filepath.Join(dir, b.data), &cells)
}

// Write writes the figures to a directory, as data and as a page.
func (b *board) Write(dir string, cells []Cell) error {
	data, err := kit.Lines(cells)
	if err != nil {
		return err
	}
	return kit.Write(dir, map[string][]byte{b.data: data, b.page: []byte(b.text(cells))})
}

// Options are what to put on the board. The zero value is all of it.
type Options struct {
	// Rows, Backends and Controllers restrict the board to these.
	Rows, Backends, Controllers kit.Names
	// Seeds replace those of the scenarios.
	Seeds []uint64
	// Default, if set, is another controller for the column default.
	Default string
	// Requests, if not 0, ends each run when so many have been offered. It is for a
	// quick look at rows that do not depend on the time of the run.
	Requests int
	// Known are cells of an earlier board, of the same seeds. Goals that are relative
	// to the oracle take its figures from there. So the sweep that finds the oracle is
	// needed only for the column oracle.
	Known []Cell
	// Report, if set, is given each report, to print more of it than a cell holds.
	// It is called from several goroutines.
	Report func(backend, controller string, r *sim.Report)
	// Progress, if set, hears when a group of cells, one scenario on one backend,
	// is done. It is called from one goroutine at a time.
	Progress func(scenario, backend string, done, all int)
}

// Run fills the board. Groups of cells run in parallel, one on each processor.
func (b *board) Run(ctx context.Context, opts Options) ([]Cell, error) {
	groups, err := b.groups(&opts)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		mu    sync.Mutex
		cells []Cell
		done  int
		wg    sync.WaitGroup
	)
	work := make(chan group)
	for range min(len(groups), runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for g := range work {
				filled, err := g.fill(ctx, b, &opts)
				if err != nil {
					cancel(err)
					continue
				}
				mu.Lock()
				cells = append(cells, filled...)
				if done++; opts.Progress != nil {
					opts.Progress(g.scenario.Name, g.backend, done, len(groups))
				}
				mu.Unlock()
			}
		})
	}
	for _, g := range groups {
		work <- g
	}
	close(work)
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return b.merged(cells)
}

// merged puts the cells of later lists over those of earlier ones, in the order
// of the board. Cells that the board no longer has are dropped.
func (b *board) merged(lists ...[]Cell) ([]Cell, error) {
	groups, err := b.groups(&Options{})
	if err != nil {
		return nil, err
	}
	var spots []spot
	for _, g := range groups {
		for i := range g.scenario.Goals {
			goal := &g.scenario.Goals[i]
			if !goal.AppliesTo(g.backend) {
				continue
			}
			for _, column := range b.Columns {
				spots = append(spots, spot{g.place(goal), column})
			}
		}
	}
	return kit.Merge(spots, (*Cell).spot, lists...), nil
}

// groups reads those of the rows that are wanted, on each of their backends.
func (b *board) groups(opts *Options) ([]group, error) {
	var groups []group
	for _, name := range opts.Rows.Of(b.Rows) {
		s, err := sim.Load(name)
		if err != nil {
			return nil, err
		}
		if opts.Requests > 0 {
			s.Requests = opts.Requests
		}
		for _, backend := range opts.Backends.Of(slices.Sorted(slices.Values(s.On))) {
			std, err := sim.LoadStandard(backend)
			if err != nil {
				return nil, err
			}
			groups = append(groups, group{s, backend, s.HeldOut || std.HeldOut})
		}
	}
	return groups, nil
}

// group is one scenario on one backend: the cells that are compared.
type group struct {
	scenario *sim.Scenario
	backend  string
	heldOut  bool
}

// place is where a goal of the scenario stands.
func (g *group) place(goal *sim.Goal) place {
	from, to := goal.Stretch(g.scenario)
	return place{g.scenario.Name, g.backend, goal.Metric, goal.Class, from.String(), to.String()}
}

// fill runs the group under each column.
func (g *group) fill(ctx context.Context, b *board, opts *Options) (cells []Cell, err error) {
	ref := reference{known: opts.Known}
	if slices.Contains(b.Columns, "oracle") && (g.wants(opts, "oracle") || !ref.suffices(g)) {
		best, err := findOracle(ctx, g.scenario, g.backend)
		if err != nil {
			return nil, err
		}
		if ref.run, err = g.play(ctx, best.scenario, opts, false); err != nil {
			return nil, err
		}
		ref.setting = best.setting
	}
	for _, column := range b.Columns {
		if !g.wants(opts, column) {
			continue
		}
		r, setting := ref.run, ref.setting
		if column != "oracle" {
			setting = ""
			s, err := g.under(column, opts.Default)
			if err != nil {
				return nil, err
			}
			if r, err = g.play(ctx, s, opts, column == "untold"); err != nil {
				return nil, err
			}
		}
		if opts.Report != nil {
			opts.Report(g.backend, column, r.report)
		}
		for _, goal := range g.scenario.Goals {
			if !goal.AppliesTo(g.backend) {
				continue
			}
			if oracle, ok := ref.of(g, &goal); ok {
				goal = goal.Against(oracle)
			}
			c, err := r.cell(ctx, g, goal)
			if err != nil {
				return nil, err
			}
			c.Controller, c.Setting = column, setting
			cells = append(cells, c)
		}
	}
	return cells, nil
}

// wants reports whether a column is run.
func (g *group) wants(opts *Options, column string) bool {
	return opts.Controllers.Has(column) && kit.Names(g.scenario.Under).Has(column)
}

// under is the scenario as a column runs it.
func (g *group) under(column, controller string) (*sim.Scenario, error) {
	named, byDefault := column, column == "default" || column == "untold"
	if byDefault {
		named = "none"
	}
	s, err := g.scenario.With(g.backend, named)
	if err == nil && byDefault {
		p := policyOf(controller)
		if first := firstLimit(&g.scenario.Policy.Spec); first > 0 {
			p = policyOf(cmp.Or(controller, "belief")) // a limit alone would be a fixed one
			p.Gates["backend"].Limit.Limit = first
		}
		s, err = s.WithPolicy(p)
	}
	if err == nil && column != "none" {
		s, err = behindQuotas(&g.scenario.Policy.Spec, s)
	}
	return s, err
}

// firstLimit is where the default begins, if the scenario's own policy says it; 0 if not.
func firstLimit(own *policy.Spec) int64 {
	if l := own.Gates["backend"].Limit; l != nil && l.Controller == "belief" {
		return l.Limit
	}
	return 0
}

// behindQuotas puts the quotas that the scenario's own policy has before the gates of the
// column. They are a promise that the scenario is about, not a way to protect a backend.
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

// run is what a scenario came to.
type run struct {
	scenario *sim.Scenario
	opts     sim.Options
	report   *sim.Report
}

func (g *group) play(ctx context.Context, s *sim.Scenario, opts *Options, anonymous bool) (*run, error) {
	r := &run{scenario: s, opts: sim.Options{Seeds: opts.Seeds, Columns: columns(s, g.backend), Anonymous: anonymous}}
	var err error
	r.report, err = sim.Run(ctx, s, r.opts)
	return r, err
}

// cell is a goal of the scenario and what became of it. The goal may be relative to
// what a class has when it is alone.
func (r *run) cell(ctx context.Context, g *group, goal sim.Goal) (Cell, error) {
	from, to := goal.Stretch(g.scenario)
	c := Cell{
		Scenario: g.scenario.Name, Backend: g.backend, HeldOut: g.heldOut,
		Metric: goal.Metric, Class: goal.Class, From: from.String(), To: to.String(), Seeds: r.report.Seeds,
		Spread: r.report.Spread(goal), Limit: limitOf(r.report, goal),
	}
	if goal.TimesAlone != nil {
		report, err := sim.Run(ctx, r.scenario.Only(goal.Class, goal.AloneAt), r.opts)
		if err != nil {
			return c, err
		}
		alone := report.Spread(goal).Median
		c.Alone, goal = &alone, goal.Beside(alone)
	}
	c.AtLeast, c.AtMost = goal.Min, goal.Max
	switch {
	case c.Alone != nil:
		c.Goal = fmt.Sprintf("<= %g x alone", *goal.TimesAlone)
	case c.fine():
		c.Goal = fineBounds(&goal)
	default:
		c.Goal = goal.Bounds()
	}
	if c.Goal != "" {
		reached := goal.Holds(c.Median)
		c.Reached = &reached
	}
	return c, nil
}

// limitOf is the limit over a goal's stretch.
func limitOf(r *sim.Report, goal sim.Goal) sim.Level {
	over := func(metric string) sim.Spread {
		goal.Metric, goal.Class = metric, ""
		return r.Spread(goal)
	}
	return sim.Level{Min: over("limit_min").Min, Mean: over("limit_mean").Median, Max: over("limit_max").Max}
}

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
	limitFactors = []float64{0.5, 0.7, 0.85, 1, 1.2, 1.5, 2, 4, 8, 20}
	waitFactors  = []float64{0.25, 0.5, 0.8}
)

// sweepSeeds are none of the seeds that scenarios run with, so that the oracle
// is not fitted to the chance it is judged by.
var sweepSeeds = []uint64{1001}

// chance bounds how far below the most good answers a setting may stay to be chosen
// for its lower latency. It is a part of what even the best setting cannot serve: with
// everything served nothing is left to chance.
const chance = 0.006

// findOracle finds the best fixed limit for a scenario on a standard backend.
func findOracle(ctx context.Context, s *sim.Scenario, backend string) (*oracle, error) {
	onBackend, err := s.With(backend, "none")
	if err != nil {
		return nil, err
	}
	return bestFixed(ctx, onBackend)
}

// bestFixed sweeps the limit at the middle wait, then the wait at the best
// limit.
func bestFixed(ctx context.Context, onBackend *sim.Scenario) (*oracle, error) {
	_, best := onBackend.Backend.Capacity()
	useful := onBackend.Traffic[0].Useful(&onBackend.Backend.Backend)
	var limits []int64
	for _, f := range limitFactors {
		if l := max(1, int64(math.Round(f*float64(best)))); !slices.Contains(limits, l) {
			limits = append(limits, l)
		}
	}
	if onBackend.Phases[0].Errors != nil && onBackend.Phases[0].Errors.Conflict > 0 {
		limits = slices.Compact(slices.Sorted(slices.Values(append(limits, 1, 2, 3)))) // whatever the backend could do
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

// aim is what the oracle is best at. It is the first goal that is a part of what it
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
	run     *run
	setting string
	known   []Cell
}

// of returns the oracle's median for a goal.
func (r *reference) of(g *group, goal *sim.Goal) (median float64, ok bool) {
	if r.run != nil {
		return r.run.report.Spread(*goal).Median, true
	}
	wanted := g.place(goal)
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
