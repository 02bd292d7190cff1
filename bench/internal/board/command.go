package board

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weir-go/weir/bench/internal/kit"
	"github.com/weir-go/weir/sim"
)

// Main is the command: it parses args, runs the board, prints the table to out
// and writes the figures, the page and the plots. It returns the exit code.
func Main(args []string, out, errs io.Writer) int {
	c, err := parse(args, errs)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		return 2
	}
	if err == nil {
		err = c.run(out, errs)
	}
	if err != nil {
		fmt.Fprintln(errs, "scoreboard:", err)
		return 1
	}
	return 0
}

// command is what the arguments ask for.
type command struct {
	board *board
	opts  Options
	dir   string // to write to, empty: print only
	svg   string // for plots
	part  bool   // not the whole board

	goodput string // for the README's picture alone
	belief  string // for the picture of a belief alone
	drawn   int    // how many scenarios to draw, instead of the board

	merge, detail, plot bool
}

// errUsage is returned for arguments that cannot be read, after saying so.
var errUsage = errors.New("bad arguments")

func parse(args []string, errs io.Writer) (*command, error) {
	c := &command{}
	flags := flag.NewFlagSet("scoreboard", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.StringVar(&c.dir, "out", filepath.Join("docs", "scoreboard"), "directory to write to; empty: print only")
	flags.Var((*kit.Scenarios)(&c.opts.Rows), "rows", "only these scenarios, such as S1,S9 or retry-storm; weir sim --help lists them")
	flags.Var((*kit.Names)(&c.opts.Backends), "backends", "only these backends, such as B1,B2")
	flags.Var((*kit.Names)(&c.opts.Controllers), "controllers", "only these columns, such as default,oracle; all are "+strings.Join(controllers, ", "))
	var seeds kit.Names
	flags.Var(&seeds, "seeds", "these seeds instead of the scenarios' 1 to 5, such as 1,2; printed only")
	flags.StringVar(&c.opts.Default, "default", "", "another controller for the column default, such as belief; printed only")
	group := flags.String("group", "limit", "which board: limit; order for the one about who goes first, whose columns are "+strings.Join(orderColumns, ", ")+"; or lag for the one about a consumer's lag, whose columns are "+strings.Join(lagColumns, ", "))
	flags.BoolVar(&c.merge, "merge", false, "put the part that is run in place of the same cells of the board that was written last")
	flags.StringVar(&c.svg, "svg", "", "write plots of the part that is run to this directory; the whole board writes its own anyway")
	flags.StringVar(&c.goodput, "goodput", "", "only draw the README's picture, goodput.svg, into this directory")
	flags.StringVar(&c.belief, "belief", "", "only draw the picture of a belief that narrows, belief.svg, into this directory")
	flags.IntVar(&c.drawn, "drawn", 0, "instead of the board, draw so many scenarios by chance and write drawn.md: the default beside the best fixed limit")
	flags.BoolVar(&c.detail, "detail", false, "print each run's report as well: every figure, over each goal's stretch")
	flags.BoolVar(&c.plot, "plot", false, "print each first run over time as well")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		return nil, errUsage
	}
	if err := c.check(*group, seeds); err != nil {
		fmt.Fprintln(errs, "scoreboard:", err)
		return nil, errUsage
	}
	c.part = len(c.opts.Rows)+len(c.opts.Backends)+len(c.opts.Controllers)+len(seeds)+len(c.opts.Default) > 0
	if !c.part {
		return c, nil
	}
	var err error
	if c.opts.Known, err = c.board.Read(c.dir); err != nil {
		return nil, err
	}
	if c.dir != "" && (!c.merge || len(seeds) > 0 || c.opts.Default != "") {
		fmt.Fprintln(errs, "scoreboard: a part of the board is printed only, not written; -merge writes it, if the seeds are the scenarios'")
		c.dir = ""
	}
	return c, nil
}

// check finds the board, reads the seeds, and refuses columns that do not exist.
func (c *command) check(group string, seeds []string) error {
	c.board = map[string]*board{"limit": Limits, "order": order, "lag": lags}[group]
	if c.board == nil {
		return fmt.Errorf("-group %q: must be limit, order or lag", group)
	}
	if c.board != Limits && c.svg != "" {
		return errors.New("-svg is for the board of limits")
	}
	for _, row := range c.opts.Rows {
		switch {
		case slices.Contains(c.board.Rows, row):
		case c.board == Limits && slices.Contains(order.Rows, row):
			return fmt.Errorf("-rows %q: belongs to -group order", row)
		case c.board != Limits && slices.Contains(Limits.Rows, row):
			return fmt.Errorf("-rows %q: belongs to -group limit", row)
		case slices.Contains(lags.Rows, row):
			return fmt.Errorf("-rows %q: belongs to -group lag", row)
		default:
			return fmt.Errorf("-rows %q: there is no such scenario; there are %s", row, strings.Join(c.board.Rows, ", "))
		}
	}
	for _, text := range seeds {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return fmt.Errorf("-seeds %q: must be whole numbers with commas between them", strings.Join(seeds, ","))
		}
		c.opts.Seeds = append(c.opts.Seeds, seed)
	}
	for _, column := range c.opts.Controllers {
		if !slices.Contains(c.board.Columns, column) {
			return fmt.Errorf("-controllers %q: there is no such column; there are %s", column, strings.Join(c.board.Columns, ", "))
		}
	}
	return nil
}

func (c *command) run(out, errs io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if c.goodput != "" {
		return drawGoodput(ctx, c.goodput)
	}
	if c.belief != "" {
		return drawBelief(c.belief)
	}
	if c.drawn > 0 {
		return playDrawn(ctx, c.drawn, c.dir, out, errs)
	}
	drawings := &album{all: c.svg != "", pages: map[string]*page{}}
	var mu sync.Mutex
	c.opts.Report = func(backend, controller string, r *sim.Report) {
		drawings.add(backend, controller, r)
		mu.Lock()
		defer mu.Unlock()
		c.print(out, backend, controller, r)
	}
	c.opts.Progress = func(scenario, backend string, done, all int) {
		fmt.Fprintf(errs, "%3d of %d: %s on %s\n", done, all, scenario, backend)
	}
	start := time.Now()
	cells, err := c.board.Run(ctx, c.opts)
	if err != nil {
		return err
	}
	if len(cells) == 0 {
		return fmt.Errorf("nothing to run: the scenarios are %s", strings.Join(c.board.Rows, ", "))
	}
	if err := c.write(cells, drawings); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s\n%s\n%v\n", c.board.Table(cells), c.board.tally(cells), time.Since(start).Round(time.Second))
	return err
}

// print writes a report as it comes, if that was asked for.
func (c *command) print(out io.Writer, backend, controller string, r *sim.Report) {
	if !c.detail && !c.plot {
		return
	}
	fmt.Fprintf(out, "## %s on %s: %s\n", r.Scenario.Name, backend, controller)
	if c.detail {
		fmt.Fprintf(out, "%s\n%s%s", r, r.Stretches(), r.Classes())
	}
	if c.plot {
		fmt.Fprintf(out, "\n%s", r.Plot())
	}
	fmt.Fprintln(out)
}

// write writes what was asked for. Of a part, only the plots that have all
// their columns replace those of the whole board.
func (c *command) write(cells []Cell, drawings *album) error {
	if c.svg != "" {
		if err := drawings.write(c.svg); err != nil {
			return err
		}
	}
	if c.dir == "" {
		return nil
	}
	if c.part {
		var err error
		if cells, err = c.board.merged(c.opts.Known, cells); err != nil {
			return err
		}
	}
	if c.board == Limits {
		drawings.complete()
		if err := drawings.write(filepath.Join(c.dir, "plots")); err != nil {
			return err
		}
	}
	return c.board.Write(c.dir, cells)
}
