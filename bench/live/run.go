package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/bench/rig"
	"github.com/weir-go/weir/internal/loadgen"
)

// lane is a system under test for one run: what the load is sent to, and the
// backend, which may be the same process.
type lane struct {
	guard string
	front *process
	app   *process
}

func (l *lane) stop() {
	l.front.stop()
	if l.app != l.front {
		l.app.stop()
	}
}

// runner runs the cells of a plan and collects what they came to.
type runner struct {
	plan       Plan
	test, rest int // cores
	results    *Results
	log        io.Writer
}

// trial is one row on one backend: all lanes at the same time.
type trial struct {
	row      *Row
	law      *Law
	backend  string // name in the report
	unit     time.Duration
	patience time.Duration
	capacity float64
	part     string
	round    int
	bound    func(load float64) float64 // of goodput; nil: 1
	procs    int
}

// try runs the trial until it is not void, and collects its figures.
func (r *runner) try(ctx context.Context, t *trial, start func() ([]*lane, error)) error {
	begun := time.Now()
	for attempt := 1; ; attempt++ {
		lanes, err := start()
		if err != nil {
			return err
		}
		figures, err := r.run(ctx, t, lanes)
		for _, l := range lanes {
			l.stop()
		}
		if err != nil {
			return fmt.Errorf("%s on %s: %w", t.row.ID, t.backend, err)
		}
		why := void(figures)
		r.logRun(t, lanes, figures, why, time.Since(begun))
		if why == "" || attempt > r.plan.Retries {
			r.collect(t, lanes, figures, why != "")
			return nil
		}
	}
}

// ForeignAbove is the share of the core of the systems under test that others may
// use in a stage; above it the run is void.
const ForeignAbove = 0.05

// void says why a run's figures mean nothing; empty if they do. What was no fault
// of the system under test is: a generator that fell behind, or a core that was
// not its own.
func void(figures [][]Figures) string {
	behind, foreign := 0.0, 0.0
	for _, stages := range figures {
		for _, f := range stages {
			behind, foreign = max(behind, f.Behind), max(foreign, f.Foreign)
		}
	}
	switch {
	case behind > loadgen.VoidAbove:
		return fmt.Sprintf("%.0f %% of the sends late", 100*behind)
	case foreign > ForeignAbove:
		return fmt.Sprintf("others used %.0f %% of the core", 100*foreign)
	}
	return ""
}

// run sends the row's load to all lanes at once and returns the figures of each
// lane's stages.
func (r *runner) run(ctx context.Context, t *trial, lanes []*lane) ([][]Figures, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	epoch := time.Now().Add(50 * time.Millisecond)
	records := make([][]Record, len(lanes))
	var wg sync.WaitGroup
	for i, l := range lanes {
		load := Load{
			Addr: l.front.addr, Phases: t.row.phases(t.unit), Capacity: t.capacity,
			Patience: t.patience, Mean: t.law.Service, Dist: t.row.Dist, Seed: uint64(t.round) + 1,
		}
		wg.Go(func() { records[i] = load.run(ctx, epoch) })
	}
	marks, err := r.mark(ctx, t, lanes, epoch)
	if err != nil {
		cancel()
	}
	wg.Wait()
	if err = errors.Join(err, context.Cause(ctx)); err != nil {
		return nil, err
	}
	all := make([][]Figures, len(lanes))
	for i := range lanes {
		all[i] = t.figures(records[i], marks[i])
	}
	return all, nil
}

// mark changes the backends' capacity when a stage begins, and notes the state
// of all lanes between stages.
func (r *runner) mark(ctx context.Context, t *trial, lanes []*lane, epoch time.Time) ([][]mark, error) {
	marks := make([][]mark, len(lanes))
	var at time.Duration
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := 0; i <= len(t.row.Stages); i++ {
		timer.Reset(time.Until(epoch.Add(at)))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		var cmd command
		if i < len(t.row.Stages) {
			cmd.Scale = t.row.Stages[i].scale()
			at += t.row.Stages[i].length(t.unit)
		}
		states := make([]mark, len(lanes))
		var ours time.Duration
		for j, l := range lanes {
			s, err := l.app.ask(cmd)
			if err != nil {
				return nil, err
			}
			if l.front.limits != nil {
				s.LimitLeast, s.LimitMean, s.LimitMost = l.front.limits.read()
			}
			states[j] = mark{at: time.Since(epoch), app: s, front: l.front.Usage()}
			ours += states[j].front.CPU
		}
		all := rig.Busy(r.test)
		for j := range lanes {
			states[j].busy, states[j].ours = all, ours
			marks[j] = append(marks[j], states[j])
		}
	}
	return marks, nil
}

// figures computes the figures of each stage of one lane.
func (t *trial) figures(records []Record, marks []mark) []Figures {
	var all []Figures
	var from time.Duration
	for i, stage := range t.row.Stages {
		to := from + stage.length(t.unit)
		s := stretch{
			records: due(records, from, to), all: records, from: from, to: to,
			load: stage.Load, scale: stage.scale(), capacity: t.capacity, mean: t.law.Service,
			byWork: t.row.Dist != "", before: marks[i], after: marks[i+1],
		}
		f := s.figures()
		f.Round = t.round
		if t.bound != nil {
			f.Bound = t.bound(stage.Load / stage.scale())
		}
		all = append(all, f)
		from = to
	}
	return all
}

// collect adds the figures of the stages that are judged.
func (r *runner) collect(t *trial, lanes []*lane, figures [][]Figures, void bool) {
	for i, stage := range t.row.Stages {
		if stage.Name == "" {
			continue
		}
		for j, l := range lanes {
			cell := r.results.cell(t, i, l.guard)
			if void {
				cell.Void++
				continue
			}
			cell.Rounds = append(cell.Rounds, figures[j][i])
		}
	}
}

// logRun writes a line about a run that has ended.
func (r *runner) logRun(t *trial, lanes []*lane, figures [][]Figures, why string, took time.Duration) {
	for j, l := range lanes {
		fmt.Fprintf(r.log, "%s %-14s %-14s %-18s", t.part, t.row.ID, t.backend, l.guard)
		for i, stage := range t.row.Stages {
			if f := figures[j][i]; stage.Name != "" {
				fmt.Fprintf(r.log, "  %s %.2f p99 %.0f refused %.0f%% in %.0f limit %.0f", stage.Name, f.Goodput, f.P99, 100*f.Refused, f.RefusalP99, f.LimitMean)
			}
		}
		if why != "" {
			fmt.Fprintf(r.log, "  VOID: %s", why)
		}
		fmt.Fprintf(r.log, "  %.0fs\n", took.Seconds())
	}
}

// closedRun is what a closed loop came to.
type closedRun struct {
	before, after Stats
	answers       int64
	foreign       float64 // share of the core under test that others used
}

// rate is the work done a second, in requests of mean work.
func (c *closedRun) rate(mean time.Duration) float64 {
	return (c.after.Work - c.before.Work) / c.seconds() / mean.Seconds()
}

func (c *closedRun) seconds() float64 { return (c.after.At - c.before.At).Seconds() }

// cpu is the CPU time of an answer.
func (c *closedRun) cpu() time.Duration {
	return (c.after.CPU - c.before.CPU) / time.Duration(max(1, c.answers))
}

// closed keeps n clients busy, each with one request at a time, for a run-up and
// then for d, which is what counts.
func (r *runner) closed(ctx context.Context, p *process, n int, mean, runUp, d time.Duration) (c closedRun, err error) {
	ctx, cancel := context.WithTimeout(ctx, runUp+d+time.Minute)
	var count atomic.Int64
	var all sync.WaitGroup
	all.Go(func() {
		_ = loadgen.Closed(ctx, n, func(i int) (func() error, func()) { return oneByOne(p.addr, uint64(i), mean, &count) })
	})
	defer all.Wait()
	defer cancel()
	if err = loadgen.Pause(ctx, runUp); err != nil {
		return c, err
	}
	if c.before, err = p.ask(command{}); err != nil {
		return c, err
	}
	first, core := count.Load(), rig.Busy(r.test)
	if err = loadgen.Pause(ctx, d); err != nil {
		return c, err
	}
	c.answers = count.Load() - first
	if c.after, err = p.ask(command{}); err != nil {
		return c, err
	}
	others := rig.Busy(r.test) - core - (c.after.CPU - c.before.CPU)
	c.foreign = max(0, others.Seconds()/c.seconds())
	return c, nil
}

// oneByOne is a client of a closed loop, which counts its answers.
func oneByOne(addr string, seed uint64, mean time.Duration, answered *atomic.Int64) (next func() error, end func()) {
	c, random := new(conn), rand.New(rand.NewPCG(seed, 3))
	return func() error {
		work, _ := drawWork(random, "")
		a := c.roundTrip(addr, head("/", ""), time.Duration(work*float64(mean)), time.Now().Add(time.Minute))
		if a == loadgen.OK || a == loadgen.Refused {
			answered.Add(1)
		}
		return nil
	}, c.Close
}

// capacity finds the capacity of a backend. A search during which others used
// the core is repeated as a void run is.
func (r *runner) capacity(ctx context.Context, law Law, procs int) (c capacity, err error) {
	for attempt := 0; attempt <= r.plan.Retries; attempt++ {
		if c, err = r.sweep(ctx, law, procs); err != nil || c.foreign <= ForeignAbove {
			break
		}
	}
	return c, err
}

// sweep tries numbers of clients on a server of its own, with no guard.
func (r *runner) sweep(ctx context.Context, law Law, procs int) (c capacity, err error) {
	p, err := startRole(r.test, role{Kind: "server", Procs: procs, Law: law, Guard: Guard{Name: guardNone, Kind: "none"}})
	if err != nil {
		return c, err
	}
	defer p.stop()
	levels := []int{1, 2, 4}
	if law.Kind != "burn" {
		n, _ := law.best()
		levels = []int{n / 2, n * 3 / 4, n, n * 3 / 2}
	}
	turn := max(r.plan.turn(800*time.Millisecond), 3*law.Service)
	var runs []closedRun
	for _, n := range levels {
		one, err := r.closed(ctx, p, n, law.Service, max(3*law.Service, 100*time.Millisecond), turn)
		if err != nil {
			return c, err
		}
		runs = append(runs, one)
		c.rate = max(c.rate, one.rate(law.Service))
		c.foreign = max(c.foreign, one.foreign)
	}
	for i, one := range runs {
		if one.rate(law.Service) >= 0.95*c.rate {
			c.clients, c.request = levels[i], one.cpu()
			break
		}
	}
	if law.Kind == "burn" {
		refusals, err := r.refusals(ctx, law, procs, turn)
		if err != nil {
			return c, err
		}
		c.refusal, c.foreign = refusals.cpu(), max(c.foreign, refusals.foreign)
	}
	return c, nil
}

// capacity is what a sweep found.
type capacity struct {
	rate    float64 // requests of mean work a second: the largest there was
	clients int     // the fewest that get 95 % of it
	// CPU time of a request, and of a refusal.
	request, refusal time.Duration
	foreign          float64 // share of the core that others used, at most
}

// bound is the share of the capacity that can be reached at a load of so many
// times the capacity, if each refusal costs its CPU time.
func (c capacity) bound(load float64) float64 {
	if c.request <= 0 || load <= 1 {
		return 1
	}
	return 1 / (1 + (load-1)*c.refusal.Seconds()/c.request.Seconds())
}

// refusals has a server refuse all it gets.
func (r *runner) refusals(ctx context.Context, law Law, procs int, turn time.Duration) (c closedRun, err error) {
	p, err := startRole(r.test, role{Kind: "server", Procs: procs, Law: law, Guard: Guard{Name: "refuse", Kind: "refuse"}})
	if err != nil {
		return c, err
	}
	defer p.stop()
	return r.closed(ctx, p, 8, law.Service, 100*time.Millisecond, turn)
}
