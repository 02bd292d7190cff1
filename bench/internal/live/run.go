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

	"github.com/weir-go/weir/bench/internal/rig"
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

	// A dry runner runs nothing, and adds up how long it would take.
	dry   bool
	spent time.Duration
}

// trial is one row on one backend, for one round: all lanes at the same time.
type trial struct {
	part, row, backend string // its names in the log
	phases             []phase
	clients            []clients // one for each class
	// collect is given each lane's outcome of the last run.
	collect func(o *outcome, void bool)
}

// clients are those of one class: a [Load], or a [batch].
type clients interface {
	// run returns the requests in the order in which they were due, since epoch.
	run(ctx context.Context, addr string, epoch time.Time) []record
}

// length is about how long a run takes.
func (t *trial) length() time.Duration {
	d := startUp
	for _, p := range t.phases {
		d += p.For
	}
	return d
}

// outcome is what a run of a trial came to in one lane.
type outcome struct {
	guard   string
	records [][]record // by class
	marks   []mark     // the state before, between and after the phases
	last    stats      // of the backend, when all requests had ended
}

// parts are the requests by phase and class.
func (o *outcome) parts(phases []phase) [][][]record {
	all := make([][][]record, len(phases))
	var from time.Duration
	for i, p := range phases {
		for _, records := range o.records {
			all[i] = append(all[i], due(records, from, from+p.For))
		}
		from += p.For
	}
	return all
}

// try runs the trial until it is not void, and has its outcomes collected.
func (r *runner) try(ctx context.Context, t *trial, start func() ([]*lane, error)) error {
	if r.dry {
		r.spent += t.length()
		return nil
	}
	var outcomes []outcome
	begun := time.Now()
	why, err := r.repeat(func() (string, error) {
		lanes, err := start()
		if err != nil {
			return "", err
		}
		outcomes, err = r.run(ctx, t, lanes)
		for _, l := range lanes {
			l.stop()
		}
		if err != nil {
			return "", err
		}
		why := t.void(outcomes)
		r.logRun(t, outcomes, why, time.Since(begun))
		return why, nil
	})
	if err != nil {
		return fmt.Errorf("%s on %s: %w", t.row, t.backend, err)
	}
	for i := range outcomes {
		t.collect(&outcomes[i], why != "")
	}
	return nil
}

// repeat runs something until nothing says why it is void, or often enough.
func (r *runner) repeat(run func() (why string, err error)) (why string, err error) {
	for range r.plan.Retries + 1 {
		if why, err = run(); err != nil || why == "" {
			break
		}
	}
	return why, err
}

// foreignAbove is the share of the core of the systems under test that others may
// use in a phase. Above it the run is void.
const foreignAbove = 0.05

// void says why figures mean nothing; empty if they do not. The system under test is
// not at fault if the generator fell behind, or if others used its core.
func void(behind, foreign float64) string {
	switch {
	case behind > loadgen.VoidAbove:
		return fmt.Sprintf("%.0f %% of the sends late", 100*behind)
	case foreign > foreignAbove:
		return fmt.Sprintf("others used %.0f %% of the core", 100*foreign)
	}
	return ""
}

// void looks at each phase of each lane.
func (t *trial) void(outcomes []outcome) string {
	behind, foreign := 0.0, 0.0
	for _, o := range outcomes {
		for i, classes := range o.parts(t.phases) {
			behind, foreign = max(behind, late(classes...)), max(foreign, o.marks[i].foreign(&o.marks[i+1]))
		}
	}
	return void(behind, foreign)
}

// run sends the loads of all classes to all lanes at once.
func (r *runner) run(ctx context.Context, t *trial, lanes []*lane) ([]outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	epoch := time.Now().Add(50 * time.Millisecond)
	outcomes := make([]outcome, len(lanes))
	var wg sync.WaitGroup
	for i, l := range lanes {
		outcomes[i] = outcome{guard: l.guard, records: make([][]record, len(t.clients))}
		for j, c := range t.clients {
			wg.Go(func() { outcomes[i].records[j] = c.run(ctx, l.front.addr, epoch) })
		}
	}
	err := r.mark(ctx, t, lanes, outcomes, epoch)
	if err != nil {
		cancel()
	}
	wg.Wait()
	for i := 0; i < len(lanes) && err == nil; i++ {
		outcomes[i].last, err = lanes[i].app.ask(command{})
	}
	return outcomes, errors.Join(err, context.Cause(ctx))
}

// mark changes the backends' capacity when a phase begins, and notes the state of
// all lanes before, between and after the phases.
func (r *runner) mark(ctx context.Context, t *trial, lanes []*lane, outcomes []outcome, epoch time.Time) error {
	var at time.Duration
	for i := 0; i <= len(t.phases); i++ {
		if err := loadgen.Pause(ctx, time.Until(epoch.Add(at))); err != nil {
			return err
		}
		var cmd command
		if i < len(t.phases) {
			cmd.Scale = t.phases[i].Scale
			at += t.phases[i].For
		}
		var ours time.Duration
		for j, l := range lanes {
			s, err := l.app.ask(cmd)
			if err != nil {
				return err
			}
			if l.front.limits != nil {
				s.LimitLeast, s.LimitMean, s.LimitMost = l.front.limits.read()
			}
			m := mark{at: time.Since(epoch), app: s, front: l.front.usage()}
			ours += m.front.CPU
			outcomes[j].marks = append(outcomes[j].marks, m)
		}
		all := rig.Busy(r.test)
		for j := range outcomes {
			m := &outcomes[j].marks[i]
			m.busy, m.ours = all, ours
		}
	}
	return nil
}

// logRun writes a line for each lane of a run that has ended.
func (r *runner) logRun(t *trial, outcomes []outcome, why string, took time.Duration) {
	for _, o := range outcomes {
		fmt.Fprintf(r.log, "%s %-14s %-14s %-18s", t.part, t.row, t.backend, o.guard)
		for _, classes := range o.parts(t.phases) {
			for _, records := range classes {
				served, refused, p99 := fates(records)
				fmt.Fprintf(r.log, "  served %.4f refused %.0f%% p99 %.0f", served, 100*refused, p99)
			}
		}
		if why != "" {
			fmt.Fprintf(r.log, "  VOID: %s", why)
		}
		fmt.Fprintf(r.log, "  %.0fs\n", took.Seconds())
	}
}

// staged is a row of parts one and two, which has one class of clients.
type staged struct {
	row      *Row
	law      *Law
	part     string
	backend  string // name in the report
	unit     time.Duration
	patience time.Duration
	capacity float64
	round    int
	bound    func(load float64) float64 // of goodput; nil: 1
}

// trial runs the row and adds its figures to the results.
func (s *staged) trial(results *Results) *trial {
	load := &Load{
		Phases: s.row.phases(s.unit), Capacity: s.capacity, Patience: s.patience,
		Mean: s.law.Service, Dist: s.row.Dist, Seed: uint64(s.round) + 1,
	}
	return &trial{
		part: s.part, row: s.row.ID, backend: s.backend, phases: load.Phases, clients: []clients{load},
		collect: func(o *outcome, void bool) {
			for i, f := range s.figures(o) {
				if s.row.Stages[i].Name != "" {
					results.cell(s, i, o.guard).add(f, void)
				}
			}
		},
	}
}

// figures computes those of each stage.
func (s *staged) figures(o *outcome) (all []figures) {
	records, phases := o.records[0], s.row.phases(s.unit)
	var from time.Duration
	for i, part := range o.parts(phases) {
		p := &phases[i]
		one := stretch{
			records: part[0], all: records, from: from, to: from + p.For,
			load: p.Load, scale: p.Scale, capacity: s.capacity, mean: s.law.Service,
			byWork: s.row.Dist != "", before: o.marks[i], after: o.marks[i+1],
		}
		f := one.figures()
		f.Round = s.round
		if s.bound != nil {
			f.Bound = s.bound(p.Load / p.Scale)
		}
		all = append(all, f)
		from = one.to
	}
	return all
}

// closedRun is what a closed loop came to.
type closedRun struct {
	before, after stats
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

// closedOn is closed on a server of its own.
func (r *runner) closedOn(ctx context.Context, server role, n int, mean, runUp, d time.Duration) (c closedRun, err error) {
	p, err := startRole(r.test, server)
	if err != nil {
		return c, err
	}
	defer p.stop()
	return r.closed(ctx, p, n, mean, runUp, d)
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
	if r.dry {
		r.spent += 5 * (r.plan.turn(sweepTurn) + startUp)
		return capacity{rate: 1, clients: 1}, nil
	}
	_, err = r.repeat(func() (string, error) {
		c, err = r.sweep(ctx, law, procs)
		return void(0, c.foreign), err
	})
	return c, err
}

// sweepTurn is how long one number of clients is tried, at pace 1.
const sweepTurn = 800 * time.Millisecond

// sweep tries numbers of clients on a server of its own, with no guard.
func (r *runner) sweep(ctx context.Context, law Law, procs int) (c capacity, err error) {
	p, err := startRole(r.test, role{Kind: "server", Procs: procs, Law: law, Guard: Guard{Name: guardNone, Kind: "none"}})
	if err != nil {
		return c, err
	}
	defer p.stop()
	levels := []int{1, 2, 4}
	if !law.Burns {
		n, _ := law.best()
		levels = []int{n / 2, n * 3 / 4, n, n * 3 / 2}
	}
	turn := max(r.plan.turn(sweepTurn), 3*law.Service)
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
	if law.Burns {
		all := role{Kind: "server", Procs: procs, Law: law, Guard: Guard{Name: "refuse", Kind: "refuse"}}
		refusals, err := r.closedOn(ctx, all, 8, law.Service, 100*time.Millisecond, turn)
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

// bound is the share of the capacity that can be reached, as each refusal costs CPU
// time. The load is in multiples of the capacity.
func (c capacity) bound(load float64) float64 {
	if c.request <= 0 || load <= 1 {
		return 1
	}
	return 1 / (1 + (load-1)*c.refusal.Seconds()/c.request.Seconds())
}
