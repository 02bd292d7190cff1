package cost

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/bench/internal/rig"
)

// Plan is how often and how long to measure.
type Plan struct {
	// Procs is the number of cores, and of goroutines that do the operations.
	Procs int
	// Rounds is how many values each figure is made of. In each round every
	// subject of a group has its turns; the order moves on by one.
	Rounds int
	// Turns is how often a subject is timed in a round. On one core the
	// shortest counts: what another process took away is no cost of the
	// subject. On several it is the median, because there the shortest is the
	// one in which the workers were least in each other's way.
	Turns int
	// Turn is about how long one timing lasts.
	Turn time.Duration
}

// figure is what was measured of one subject.
type figure struct {
	Subject
	NS     kit.Spread // ns an operation, over the rounds
	Ratio  kit.Spread // to the floor in the same round
	Extra  kit.Spread // ns above the floor in the same round
	Allocs float64    // allocations an operation
	Void   int        // turns thrown away because there was no core for each worker
}

// Verdict says whether the figure meets the goal for the number of cores it was
// taken with, and whether there is one.
func (f *figure) Verdict(procs int) (v kit.Verdict, judged bool) {
	ratio := f.Goal.Ratio
	if procs > 1 && f.Goal.Shared > 0 {
		ratio = f.Goal.Shared
	}
	switch {
	case ratio > 0:
		return (&kit.Goal{What: "ratio", Bound: ratio, AtMost: true}).Judge(f.Ratio), true
	case f.Goal.Extra > 0:
		return (&kit.Goal{What: "ns above", Bound: f.Goal.Extra, AtMost: true}).Judge(f.Extra), true
	}
	return v, false
}

// Measure times the floor and the peers of g in turn. It sets GOMAXPROCS, so
// nothing else should run. The first figure is the floor's.
func Measure(g group, p Plan) ([]figure, error) {
	if p.Procs < 1 || p.Rounds < 1 || p.Turns < 1 || p.Turn <= 0 {
		return nil, fmt.Errorf("cost: plan %+v: every field must be positive", p)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(p.Procs))
	workers := p.Procs
	if g.Pair {
		workers = 1
	}
	var running []*measured
	defer func() {
		for _, m := range running {
			m.stop()
		}
	}()
	for _, s := range g.All() {
		m, err := start(s, p, workers)
		if err != nil {
			return nil, fmt.Errorf("cost: %s: %s: %w", g.Name, s.Name, err)
		}
		running = append(running, m)
	}
	for round := range p.Rounds {
		for turn := range p.Turns {
			for _, m := range kit.Turned(running, round+turn) {
				if err := m.time(); err != nil {
					return nil, fmt.Errorf("cost: %s: %s: %w", g.Name, m.Name, err)
				}
			}
		}
		for _, m := range running {
			m.close()
		}
	}
	return figures(running), nil
}

func figures(running []*measured) []figure {
	floor := running[0].rounds
	fs := make([]figure, len(running))
	for i, m := range running {
		extras := make([]float64, len(floor))
		for r, ns := range m.rounds {
			extras[r] = ns - floor[r]
		}
		fs[i] = figure{m.Subject, kit.SpreadOf(m.rounds), kit.SpreadOf(kit.Over(m.rounds, floor)), kit.SpreadOf(extras), m.allocs, m.void}
	}
	return fs
}

// measured is a subject under measurement.
type measured struct {
	Subject
	loop    Loop
	stop    func()
	workers int
	n       int       // operations a turn
	turns   []float64 // ns an operation, in this round
	rounds  []float64 // the same, one for each round
	allocs  float64
	void    int
}

// start sets a subject up and finds out how many operations fill a turn.
func start(s Subject, p Plan, workers int) (*measured, error) {
	loop, stop := s.New()
	m := &measured{Subject: s, loop: loop, stop: stop, workers: workers}
	for m.n = 64 * workers; ; m.n *= 2 {
		took, _, err := run(loop, m.n, workers)
		if err != nil {
			stop()
			return nil, err
		}
		if took >= p.Turn/2 {
			break
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, _, err := run(loop, m.n, workers); err != nil {
		stop()
		return nil, err
	}
	runtime.ReadMemStats(&after)
	m.allocs = float64(after.Mallocs-before.Mallocs) / float64(m.n)
	return m, nil
}

// tries is how often a turn is repeated that did not have its cores.
const tries = 200

// time takes one turn. On a busy machine the workers may have to share a core and run one
// after the other, never in each other's way. Such a turn would flatter whatever suffers
// from contention. It shows in the CPU time, and is repeated.
func (m *measured) time() error {
	for range tries {
		took, used, err := run(m.loop, m.n, m.workers)
		if err != nil {
			return err
		}
		if m.workers == 1 || m.Parks || used == 0 || float64(used) > 0.85*float64(m.workers)*float64(took) {
			m.turns = append(m.turns, float64(took.Nanoseconds())/float64(m.n))
			return nil
		}
		m.void++
		time.Sleep(2 * time.Millisecond) // let the others have their turn
	}
	return fmt.Errorf("none of %d turns had %d cores to itself; try again when the machine is idle", tries, m.workers)
}

// close makes one value of the turns of a round.
func (m *measured) close() {
	turns := kit.SpreadOf(m.turns)
	value := turns.Min
	if m.workers > 1 {
		value = turns.Median
	}
	m.rounds = append(m.rounds, value)
	m.turns = m.turns[:0]
}

// run shares n operations between workers, each on a core of its own if there
// is one. It returns the time from when the first began until the last was
// through, and the CPU time the process used meanwhile.
func run(loop Loop, n, workers int) (took, used time.Duration, err error) {
	var (
		ready atomic.Int64
		wg    sync.WaitGroup
		epoch = time.Now()
		errs  = make([]error, workers)
		begin = make([]moment, workers)
		end   = make([]moment, workers)
	)
	work := func(i int) {
		// No yielding here: a worker that gives its core away to the next one
		// may get it back only after that one is through.
		for ready.Add(1); ready.Load() < int64(workers); {
		}
		begin[i] = moment{time.Since(epoch), rig.ProcessTime()}
		errs[i] = loop(n / workers)
		end[i] = moment{time.Since(epoch), rig.ProcessTime()}
	}
	for i := range workers - 1 {
		wg.Go(func() { work(i) })
	}
	work(workers - 1)
	wg.Wait()
	first := slices.MinFunc(begin, moment.compare)
	last := slices.MaxFunc(end, moment.compare)
	return last.at - first.at, last.used - first.used, errors.Join(errs...)
}

// moment is a point in time, and the CPU time used up to it.
type moment struct{ at, used time.Duration }

func (m moment) compare(o moment) int { return cmp.Compare(m.at, o.at) }

// Flags has fs set the plan, but for the cores.
func (p *Plan) Flags(fs *flag.FlagSet) {
	fs.IntVar(&p.Rounds, "rounds", 9, "values each figure is made of")
	fs.IntVar(&p.Turns, "turns", 5, "timings in a round; the shortest counts on one core, the median on two")
	fs.DurationVar(&p.Turn, "turn", 4*time.Millisecond, "about how long one timing lasts")
}

// Head writes what the figures to come are: of which machine, and how they are made.
func (p *Plan) Head(w io.Writer) {
	fmt.Fprintf(w, "%s, %s/%s, %d cores; %d rounds, each the shortest (on two cores the median) of %d timings of about %v\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), p.Rounds, p.Turns, p.Turn)
	fmt.Fprintln(w, "figures are median (min–max) over the rounds; ratios are to the first line of each group, in the same round")
}

// Print writes the figures of a group as a table.
func Print(w io.Writer, g group, figures []figure, procs int) {
	cores := "one core"
	if procs > 1 {
		cores = fmt.Sprintf("%d cores", procs)
	}
	fmt.Fprintf(w, "\n%s, %s\n", g.Name, cores)
	table := kit.Table{{"", "ns/op", "ratio", "ns above", "allocs", "goal"}}
	void := 0
	for _, f := range figures {
		goal := ""
		if v, judged := f.Verdict(procs); judged {
			goal = v.String()
		}
		table = append(table, []string{f.Name, kit.Text(f.NS, "%.1f"), kit.Text(f.Ratio, "%.2f"),
			fmt.Sprintf("%+.1f", f.Extra.Median), fmt.Sprintf("%.2f", f.Allocs), goal})
		void += f.Void
	}
	fmt.Fprint(w, table.Padded())
	if void > 0 {
		fmt.Fprintf(w, "%d turns were repeated because there were not %d cores for them: this machine is busy\n", void, procs)
	}
}
