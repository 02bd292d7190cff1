package sim

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
)

// Options are how to run a scenario. The zero value is fine.
type Options struct {
	// Seeds replace the scenario's.
	Seeds []uint64
	// Outside, if set, makes the gate of each run, instead of the scenario's
	// policy and its gateways.
	Outside func(seed uint64) (Outside, error)
	// Anonymous keeps from the gates who asks: work has no tenant, user,
	// priority, exemption or declared cost, and nested calls are calls like any
	// other. The figures distinguish them all the same.
	Anonymous bool
	// Progress, if set, is called with how far the run is, about a hundred times a
	// seed.
	Progress func(Progress)
	// Columns is into how many stretches the latencies over time are cut, for
	// [Report.Series]. Default 72.
	Columns int
}

// Progress is how far a run is.
type Progress struct {
	// Run is the number of the present run, from 1, of Runs.
	Run, Runs int
	// Now is the virtual time reached, of End.
	Now, End time.Duration
}

// Result is one run: one seed.
type Result struct {
	// Seed of the run.
	Seed uint64
	// Windows sum it up: the whole run first, then each stretch that a goal of
	// the scenario is about.
	Windows []Summary

	binWidth time.Duration
	bins     []bin
	columns  []column
	spans    []span
}

// Run plays a scenario, once for each seed, and reports. The same scenario and
// seed give the same report, figure by figure. It stops early, with an error,
// when ctx ends.
func Run(ctx context.Context, s *Scenario, opts Options) (*Report, error) {
	seeds := opts.Seeds
	if len(seeds) == 0 {
		seeds = s.Seeds
	}
	r := &Report{Scenario: s, Seeds: seeds}
	r.Capacity, r.Best = s.Backend.Capacity()
	for i, seed := range seeds {
		w, err := newWorld(s, seed, &opts)
		if err != nil {
			return nil, err
		}
		if opts.Progress != nil {
			w.report(opts.Progress, i+1, len(seeds))
		}
		result, err := w.play(ctx, s, seed)
		if err != nil {
			return nil, fmt.Errorf("sim: scenario %q, seed %d, at %v: %w", s.Name, seed, w.now, err)
		}
		r.Runs = append(r.Runs, result)
	}
	return r, nil
}

// newWorld prepares a run.
func newWorld(s *Scenario, seed uint64, opts *Options) (*world, error) {
	full, _ := s.Backend.Capacity()
	w := &world{
		end:      s.Duration(),
		server:   s.Backend.newServer(),
		spread:   stream(seed, streamGateway, 0),
		phases:   layOut(s.Phases, s.Repeat, full, 1),
		leaving:  cmp.Or(s.OnAbandon, "hold"),
		requests: cmp.Or(s.Requests, maxRequests),
		counted:  s.Requests > 0,
		untold:   opts.Anonymous,
	}
	w.stats = newStatistics(w.expectedEnd(), cmp.Or(max(0, opts.Columns), textColumns), s.windows(), s.Backend.Service.mean(), func(scale float64) float64 { return full * s.Backend.capacityLeft(scale) })
	if s.Consumer != nil {
		w.consumer = newConsumer(s.Consumer, func() time.Duration { return w.now })
	}
	if s.tellsApart() {
		w.ledger = newLedger(s, w.stats.windows)
	}
	w.addClasses(s, full, seed)
	if err := w.addProcesses(s, seed); err != nil {
		return nil, err
	}
	if opts.Outside != nil {
		o, err := opts.Outside(seed)
		if err != nil {
			return nil, err
		}
		w.outside, w.fronts = o, []*front{outsideFront(o, len(w.classes))}
		return w, nil
	}
	for range max(1, s.Gateways) {
		f, err := newFront(w, s)
		if err != nil {
			return nil, err
		}
		w.fronts = append(w.fronts, f)
	}
	return w, nil
}

// addClasses brings in the traffic, before a backend of that full capacity.
func (w *world) addClasses(s *Scenario, full float64, seed uint64) {
	var shares float64
	for i := range s.Traffic {
		shares += s.Traffic[i].share()
	}
	for i := range s.Traffic {
		spec := &s.Traffic[i]
		spans := layOut(s.Phases, s.Repeat, full, spec.ratePart()*share(spec.share(), shares))
		if len(spec.Phases) > 0 {
			spans = layOut(spec.Phases, 1, full, spec.ratePart())
		}
		w.classes = append(w.classes, newClass(i, spec, &s.Backend.Backend, spans, seed))
	}
}

// expectedEnd is about when the run will end: when the phases do, or when the
// requests are used up at their rates.
func (w *world) expectedEnd() time.Duration {
	left := float64(w.requests)
	for _, p := range w.phases {
		offered := p.rate * (p.to - p.from).Seconds()
		if offered >= left {
			return p.from + time.Duration(left/p.rate*1e9) + 1
		}
		left -= offered
	}
	return w.end
}

// share is the part of the common rate that is for this class.
func (c *Class) share() float64 {
	switch {
	case len(c.Phases) > 0 || len(c.At) > 0 || c.Clients > 0:
		return 0
	case c.Share == 0:
		return 1
	}
	return c.Share
}

// windows are the stretches that the goals are about.
func (s *Scenario) windows() []*window {
	var list []*window
	seen := map[[2]time.Duration]bool{}
	for i := range s.Goals {
		from, to := s.Goals[i].Stretch(s)
		if key := [2]time.Duration{from, to}; !seen[key] && !s.Goals[i].whole(s) {
			seen[key] = true
			list = append(list, &window{from: from, to: to})
		}
	}
	return list
}

// Stretch returns the part of the run that the goal is about.
func (g *Goal) Stretch(s *Scenario) (from, to time.Duration) {
	from, to = time.Duration(g.From), time.Duration(g.To)
	if to == 0 {
		to = s.Duration()
	}
	return from, to
}

func (g *Goal) whole(s *Scenario) bool {
	from, to := g.Stretch(s)
	return from == 0 && to == s.Duration()
}

func (w *world) report(tell func(Progress), run, runs int) {
	p := Progress{Run: run, Runs: runs, End: w.end}
	step := w.end / 100
	w.progress = func(now time.Duration) {
		if now-p.Now >= step {
			p.Now = now
			tell(p)
		}
	}
}

// play runs the world and sums it up.
func (w *world) play(ctx context.Context, s *Scenario, seed uint64) (*Result, error) {
	err := w.run(ctx)
	for _, f := range w.fronts {
		f.close()
	}
	if err != nil {
		return nil, err
	}
	r := &Result{
		Seed: seed, binWidth: w.stats.binWidth,
		bins: w.stats.bins, columns: w.stats.columns, spans: w.phases,
	}
	for i, win := range w.stats.windows {
		sum := win.summary()
		if w.ledger != nil {
			w.ledger.sumUp(i, w, &sum)
		}
		r.Windows = append(r.Windows, sum)
	}
	return r, nil
}

// window finds the summary that a goal is about: the whole run unless there is
// one for just its stretch. A run that ended early has cut its stretches there.
func (r *Result) window(g *Goal) *Summary {
	end := r.Windows[0].To
	from, to := time.Duration(g.From), min(cmp.Or(time.Duration(g.To), end), end)
	for i := range r.Windows {
		if s := &r.Windows[i]; s.From == from && s.To == to {
			return s
		}
	}
	return &r.Windows[0]
}

// epoch is what virtual time counts from, for deadlines.
var epoch = weir.VirtualEpoch

func standstill() time.Duration { return 0 }

// newFront compiles the scenario's policy for one gateway of a run.
func newFront(w *world, s *Scenario) (*front, error) {
	watched := concurrencyGate(s)
	opts := s.options(func() time.Duration { return w.now }, w.consumer)
	opts.Hooks.LimitChanged = func(gate string, from, to int64, _ string) {
		if gate == watched {
			w.stats.addLimit(w.now, to-from)
		}
	}
	p, err := policy.Compile(s.Policy.Spec, opts)
	if err != nil {
		return nil, err
	}
	f := &front{next: p.Next, step: p.Step, close: p.Close, setCost: p.SetCost, limit: unlimited}
	if g := p.Gate(watched); g != nil {
		f.limit = func() int64 { return g.Snapshot().Limit }
		w.stats.addLimit(w.now, g.Snapshot().Limit)
	}
	for i, c := range w.classes {
		rt := route(p, s, i)
		gate, ok := rt.Gate().(weir.Arriver)
		if !ok {
			p.Close()
			return nil, fmt.Errorf("sim: route %q: its gates cannot be driven on virtual time", rt.Name())
		}
		f.gates = append(f.gates, gate)
		c.inherit(rt)
	}
	return f, nil
}

// unlimited is the limit of no gate at all.
func unlimited() int64 { return math.MaxInt32 }

// route is the route of a class, the first one where it names none.
func route(p *policy.Policy, s *Scenario, class int) *policy.Route {
	if name := s.Traffic[class].Route; name != "" {
		return p.Route(name)
	}
	for rt := range p.Routes() {
		return rt
	}
	return nil
}

// concurrencyGate is the name of the gate for the limits in reports: the last one with a limit on the
// route of the first class. One that is off limits nothing.
func concurrencyGate(s *Scenario) string {
	for _, r := range s.Policy.Spec.Routes {
		if name := s.Traffic[0].Route; (name == "" || name == routeName(&r)) && len(r.Gates) > 0 {
			for _, name := range slices.Backward(r.Gates) {
				if g := s.Policy.Spec.Gates[name]; g.Limit != nil && g.Mode != policy.Off {
					return name
				}
			}
			return ""
		}
	}
	return ""
}

// inherit copies what a route says about its work, where the class itself
// says nothing.
func (c *class) inherit(rt *policy.Route) {
	c.route = rt
	base := rt.Work()
	c.template.Op = base.Op
	c.template.MaxWait = base.MaxWait
	c.template.Write = base.Write
	c.template.Exempt = c.template.Exempt || base.Exempt
	if c.template.Cost == 0 {
		c.template.Cost = base.Cost
	}
	if !c.ranked {
		c.template.Priority = base.Priority
	}
	if t := rt.Timeout(); t > 0 && (c.told == 0 || t < c.told) {
		c.told = t
	}
}

// Outside is a gate outside the scenario's policy, with a clock of its own. An example is another
// library's limiter in a testing/synctest bubble. It replaces the policy, for all classes, and
// decides how time moves on.
type Outside interface {
	weir.Arriver
	// Wait lets time pass until then, or until there is news if that is sooner,
	// and returns the time reached with the news. News are calls of the wake
	// functions given to Arrive, which must not be called from other goroutines;
	// the run calls them in order.
	Wait(until time.Duration) (now time.Duration, news []func())
	// Close ends the run. Nothing is called after it.
	Close()
}

// outsideFront puts an Outside where a policy's gates would be.
func outsideFront(o Outside, classes int) *front {
	f := &front{
		limit:   unlimited,
		next:    func() (time.Duration, bool) { return 0, false },
		step:    func() {},
		close:   o.Close,
		setCost: func(set func(string, int64), units int64) { set("", units) },
	}
	for range classes {
		f.gates = append(f.gates, o)
	}
	return f
}

// pass lets the time until the next event pass by an Outside's clock. It reports whether
// there was news first.
func (w *world) pass(until time.Duration) bool {
	if w.outside == nil || until <= w.now {
		return false
	}
	now, news := w.outside.Wait(until)
	w.now = max(w.now, min(now, until))
	for _, tell := range news {
		tell()
	}
	return len(news) > 0 || w.now < until
}

// delayed is what has happened to a suspended process that it does not know of
// yet: an attempt that came, or one that was answered.
type delayed struct {
	attempt  *attempt
	answered bool
}

// resume processes what a suspended process has missed. Answers come first, because they give slots
// back before requests ask for them.
func (w *world) resume() {
	missed := w.delayed
	w.delayed = nil
	for _, d := range missed {
		if d.answered {
			w.answered(d.attempt)
		}
	}
	for _, d := range missed {
		switch {
		case d.answered:
		case d.attempt.left:
			w.recycle(d.attempt)
		default:
			w.arrive(d.attempt)
		}
	}
}
