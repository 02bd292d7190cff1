// Command sql measures limits before a real PostgreSQL:
//
//	go run ./bench/sql                        every workload; hours
//	go run ./bench/sql -workloads point -rounds 1 -length 15s -window 10s
//	go run ./bench/sql -storm                 statements whose contexts end, with both of pgx's handlers
//
// For each workload it tries fixed sizes from 1 to 200, and the controllers that find the size. These
// start at 4 and at 128. All take turns, round by round, under the same two loads.
//
//   - Closed: many more clients than the pool can take. Each has one transaction at a time. They wait in order.
//   - Open: transactions arrive at random, twice as many as the best fixed size gets done. The deadline of each is five times
//     the p95 of a lone client. No more than 20,000 a second can be sent. In seconds in which the load left too late the
//     figures say more about this program than about a limit. So where there are many of them the table has the word void.
//     Where that is so for all, the open load ends after the first round.
//
// Where the work is pgbench's transaction, pgbench makes the tables. It also plays a turn itself, with as many clients as each
// size: what the server can do without a pool and without this program.
//
// Useful is what was committed, in the open load before its deadline. The server has one core for itself, and the clients have another.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/bench/internal/rig"
	"github.com/weir-go/weir/internal/loadgen"
	"github.com/weir-go/weir/internal/testbed/cores"
	"github.com/weir-go/weir/internal/testbed/postgres"
	"github.com/weir-go/weir/weirpgx"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b := &bench{out: os.Stdout}
	var sizes kit.Names
	flag.StringVar(&b.postgres, "postgres", ".cache/bin/postgres", "PostgreSQL's server; initdb and pgbench are beside it")
	flag.Var(&b.workloads, "workloads", "only these, with commas between: point, pgbench, serializable, heavy, locks")
	flag.Var(&b.controllers, "controllers", `beside the sizes only these, with commas between, such as "default from 4,Probe from 128"`)
	flag.Var(&sizes, "sizes", "the fixed sizes; default 1, 2, 4, 8, 16, 32, 64, 128, 200")
	flag.IntVar(&b.rounds, "rounds", 5, "rounds of each subject")
	flag.DurationVar(&b.length, "length", 90*time.Second, "how long a controller runs, at most 10m; a fixed size runs for window and a third of it")
	flag.DurationVar(&b.window, "window", 30*time.Second, "the last part of it, which counts; whole seconds")
	flag.IntVar(&b.clients, "clients", 2000, "clients of the closed load")
	flag.BoolVar(&b.storm, "storm", false, "only the storm of contexts that end, for the length of a window")
	flag.StringVar(&b.plots, "plot", "", "a folder for plots: the sweep of each workload, the storm")
	flag.Parse()
	err := b.choose(sizes)
	if err == nil {
		err = b.run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sql:", err)
		os.Exit(1)
	}
}

// bench is what the command is told.
type bench struct {
	postgres, plots string
	workloads       kit.Names
	controllers     kit.Names
	sizes           []int64
	rounds, clients int
	length, window  time.Duration
	storm           bool
	out             io.Writer
}

// most is the largest size, and the places of the pool.
const most = 200

// choose checks what was told.
func (b *bench) choose(sizes []string) error {
	b.sizes = []int64{1, 2, 4, 8, 16, 32, 64, 128, most}
	if len(sizes) > 0 {
		b.sizes = nil
	}
	var errs []error
	for _, s := range sizes {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 1 || n > most {
			errs = append(errs, fmt.Errorf("-sizes: %q is no size from 1 to %d", s, most))
		}
		b.sizes = append(b.sizes, n)
	}
	slices.Sort(b.sizes)
	b.sizes = slices.Compact(b.sizes)
	for _, name := range b.workloads {
		if !slices.ContainsFunc(workloads, func(w *workload) bool { return w.name == name }) {
			errs = append(errs, fmt.Errorf("-workloads: there is no %q", name))
		}
	}
	for _, name := range b.controllers {
		if !slices.ContainsFunc(found(), func(s *subject) bool { return s.name == name }) {
			errs = append(errs, fmt.Errorf("-controllers: there is no %q", name))
		}
	}
	if b.window < time.Second || b.length < b.window || b.length > 10*time.Minute || b.rounds < 1 || b.clients < 1 {
		errs = append(errs, errors.New("-window is at least 1s, -length at least that and at most 10m, -rounds and -clients at least 1"))
	}
	return errors.Join(errs...)
}

// run starts the server on a core of its own. On shared cores more backends get more of the processor, and so a larger
// size gets more done than before the same database elsewhere.
func (b *bench) run(ctx context.Context) (err error) {
	own, rest, err := cores.Pair()
	if err != nil {
		return err
	}
	if own == rest {
		return errors.New("one core may be used; the database and its clients need one each")
	}
	if err := cores.PinSelf(rest); err != nil {
		return err
	}
	runtime.GOMAXPROCS(1) // two threads on one core would wait for each other's time slices
	var server *postgres.Server
	err = cores.Pinned(own, func() (err error) {
		server, err = postgres.Start(ctx, postgres.Config{Program: b.postgres, Ports: &rig.Ports, Settings: []string{"max_connections=600", "shared_buffers=128MB", "jit=off", "max_parallel_workers_per_gather=0"}})
		return err
	})
	if server != nil {
		defer func() { err = errors.Join(err, server.Stop()) }()
	}
	if err != nil {
		return err
	}
	return b.measure(ctx, server.URL)
}

// measure measures on a server that runs.
func (b *bench) measure(ctx context.Context, url string) error {
	if b.storm {
		return b.storms(ctx, url)
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	cfg.MaxConns = 2*128 + 8 // what ProbePair may ask for
	weirpgx.CancelRequests(cfg.ConnConfig)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	for _, w := range workloads {
		if !b.workloads.Has(w.name) {
			continue
		}
		own, err := beside(b.postgres, cfg.ConnConfig)
		if err != nil {
			return err
		}
		if err := b.sweep(ctx, pool, own, w); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	return nil
}

// sweep measures one workload and prints its table.
func (b *bench) sweep(ctx context.Context, pool *pgxpool.Pool, own *pgbench, w *workload) error {
	if err := w.fill(ctx, pool, own); err != nil {
		return err
	}
	alone, err := b.alone(ctx, pool, w)
	if err != nil {
		return err
	}
	all := b.subjects()
	for round := range b.rounds {
		for _, s := range kit.Turned(all, round) {
			f, err := b.closed(ctx, pool, w, s)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			s.closed.add(f)
		}
		if w.isolation == "" {
			continue
		}
		pool.Reset() // pgbench has connections of its own, and those of the pool are no burden to it
		if err := own.round(ctx, w, b.sizes, b.window); err != nil {
			return err
		}
	}
	best := bestFixed(all, func(s *subject) *figures { return &s.closed })
	rate := min(2*kit.SpreadOf(best.closed.useful).Median, loadgen.MaxRate)
	for round := range b.rounds {
		for _, s := range kit.Turned(all, round) {
			f, err := b.open(ctx, pool, w, s, rate, 5*alone)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			s.opened.add(f)
		}
		if !slices.ContainsFunc(all, (*subject).sent) {
			break // it cannot be sent here, however often
		}
	}
	fmt.Fprintf(b.out, "\n## %s\n\n%s. A lone client's p95 is %v.\n\n", w.name, w.about, alone.Round(10*time.Microsecond))
	b.print(all, best, rate, alone)
	if w.isolation != "" {
		fmt.Fprint(b.out, "\n", own.table(b.sizes, best).Plain(kit.Figures(4)))
	}
	return b.draw(w, all)
}

// bestFixed returns the fixed size with the most useful work, nil if no figure of one counts.
func bestFixed(all []*subject, of func(*subject) *figures) (best *subject) {
	for _, s := range all {
		if s.size > 0 && len(of(s).useful) > 0 && (best == nil || kit.SpreadOf(of(s).useful).Median > kit.SpreadOf(of(best).useful).Median) {
			best = s
		}
	}
	return best
}

// smallest returns the smallest fixed size that gets 0.95 of the best done.
func smallest(all []*subject, best float64) int64 {
	for _, s := range all { // in ascending order
		if s.size > 0 && kit.SpreadOf(s.closed.useful).Median >= 0.95*best {
			return s.size
		}
	}
	return 0
}

func (b *bench) print(all []*subject, best *subject, rate float64, alone time.Duration) {
	bestOpen := bestFixed(slices.DeleteFunc(slices.Clone(all), func(s *subject) bool { return !s.sent() }), func(s *subject) *figures { return &s.opened })
	enough := smallest(all, kit.SpreadOf(best.closed.useful).Median)
	table := kit.Table{{"size", "closed: useful/s", "of the best", "failed/s", "mean size", "of the smallest that suffices", "open: useful/s", "of the best", "mean size"}}
	for _, s := range all {
		row := []string{
			s.name, text("%.0f", s.closed.useful), text("%.2f", kit.Over(s.closed.useful, best.closed.useful)), text("%.0f", s.closed.failed),
			text("%.1f", s.closed.size), fmt.Sprintf("%.1fx", kit.SpreadOf(s.closed.size).Median/float64(max(1, enough))),
			"void", "", "",
		}
		if s.sent() {
			row[6], row[8] = text("%.0f", s.opened.useful), text("%.1f", s.opened.size)
		}
		if s.sent() && bestOpen != nil {
			row[7] = text("%.2f", kit.Over(s.opened.useful, bestOpen.opened.useful))
		}
		table = append(table, row)
	}
	fmt.Fprint(b.out, table.Plain(kit.Figures(len(table[0]))))
	fmt.Fprintf(b.out, "\nThe open load is %.0f transactions a second with a deadline of %v. The smallest fixed size with 0.95 of the best is %d.\n", rate, (5 * alone).Round(10*time.Microsecond), enough)
	if twice := 2 * kit.SpreadOf(best.closed.useful).Median; rate < twice {
		fmt.Fprintf(b.out, "That is %.1f times what the best fixed size gets done, and not twice: no more than %d can be sent.\n", 2*rate/twice, loadgen.MaxRate)
	}
	for _, s := range all {
		switch {
		case !s.sent():
			fmt.Fprintf(b.out, "%s: the open load is void. In %d of %d seconds it left too late: this machine cannot send so much beside the server.\n", s.name, s.void, s.seconds)
		case s.void > 0:
			fmt.Fprintf(b.out, "%s: %d of %d seconds of the open load are left out, because it left too late.\n", s.name, s.void, s.seconds)
		}
	}
}

func text(verb string, values []float64) string { return kit.Text(kit.SpreadOf(values), verb) }
