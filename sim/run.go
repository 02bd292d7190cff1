package sim

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// Options are how to run a scenario. The zero value is fine.
type Options struct {
	// Seeds replace the scenario's.
	Seeds []uint64
	// Outside, if set, makes the gate of each run, in place of the scenario's
	// policy and its gateways.
	Outside func(seed uint64) (Outside, error)
	// Anonymous keeps from the gates who asks: work has no tenant, user,
	// priority, exemption or declared cost, and nested calls are calls like any
	// other. The figures tell them apart all the same.
	Anonymous bool
	// Progress, if set, is told how far the run is, about a hundred times a
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
	// Took is the real time it took.
	Took time.Duration

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
		hold:     s.OnAbandon != "release",
		requests: s.Requests,
		untold:   opts.Anonymous,
		fair:     &s.Fair,
	}
	if s.Requests == 0 {
		w.requests = -1
	}
	w.stats = newStatistics(w.expectedEnd(), cmp.Or(max(0, opts.Columns), textColumns), s.windows(), s.Backend.Service.mean(), func(scale float64) float64 { return full * s.Backend.left(scale) })
	if s.tellsApart() {
		w.ledger = newLedger(s)
	}
	w.addClasses(s, full, seed)
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
		spans := layOut(s.Phases, s.Repeat, full, spec.left()*share(spec.share(), shares))
		if len(spec.Phases) > 0 {
			spans = layOut(spec.Phases, 1, full, spec.left())
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
		if w.requests >= 0 && offered >= left {
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

// play runs the world and takes down what it was.
func (w *world) play(ctx context.Context, s *Scenario, seed uint64) (*Result, error) {
	start := time.Now()
	err := w.run(ctx)
	for _, f := range w.fronts {
		f.close()
	}
	if err != nil {
		return nil, err
	}
	r := &Result{
		Seed: seed, Took: time.Since(start), binWidth: w.stats.binWidth,
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
// one for just its stretch.
func (r *Result) window(g *Goal) *Summary {
	for i := range r.Windows[1:] {
		s := &r.Windows[i+1]
		if s.From == time.Duration(g.From) && (g.To == 0 || s.To == time.Duration(g.To)) {
			return s
		}
	}
	return &r.Windows[0]
}
