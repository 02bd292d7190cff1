package board

import (
	"bytes"
	"context"
	"encoding/json"
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

	"github.com/weir-go/weir/sim"
)

// command is what the arguments ask for.
type command struct {
	opts Options
	dir  string // to write to, empty: print only
	svg  string // for plots
	part bool   // not the whole board

	order bool // who goes first

	merge, detail, plot bool
}

// columns are those of the board that is asked for.
func (c *command) columns() []string {
	if c.order {
		return OrderColumns
	}
	return Controllers
}

// Main is the command: it parses args, runs the board, prints the table to out
// and writes scoreboard.json, README.md and the plots. It returns the exit code.
func Main(args []string, out, errs io.Writer) int {
	c, err := parse(args, errs)
	if errors.Is(err, errUsage) {
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

// errUsage is arguments that cannot be read, which has been said already.
var errUsage = errors.New("bad arguments")

func parse(args []string, errs io.Writer) (*command, error) {
	c := &command{}
	flags := flag.NewFlagSet("scoreboard", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.StringVar(&c.dir, "out", filepath.Join("docs", "scoreboard"), "directory to write to; empty: print only")
	rows := flags.String("rows", "", "only these scenarios, such as S1,S9")
	backends := flags.String("backends", "", "only these backends, such as B1,B2")
	columns := flags.String("controllers", "", "only these columns, such as default,oracle; all are "+strings.Join(Controllers, ", "))
	seeds := flags.String("seeds", "", "these seeds instead of the scenarios' 1 to 5, such as 1,2; printed only")
	group := flags.String("group", "limit", "which board: limit, or order for the one about who goes first, whose columns are "+strings.Join(OrderColumns, ", "))
	flags.BoolVar(&c.merge, "merge", false, "put the part that is run in place of the same cells of the board that was written last")
	flags.StringVar(&c.svg, "svg", "", "write plots of the part that is run to this directory; the whole board writes its own anyway")
	flags.BoolVar(&c.detail, "detail", false, "print each run's report as well: every figure, over each goal's stretch")
	flags.BoolVar(&c.plot, "plot", false, "print each first run over time as well")
	if flags.Parse(args) != nil {
		return nil, errUsage
	}
	c.opts = Options{Rows: list(*rows), Backends: list(*backends), Controllers: list(*columns)}
	if c.order = *group == "order"; !c.order && *group != "limit" {
		fmt.Fprintf(errs, "scoreboard: -group %q: must be limit or order\n", *group)
		return nil, errUsage
	}
	if err := c.opts.check(*seeds, c.columns()); err != nil {
		fmt.Fprintln(errs, "scoreboard:", err)
		return nil, errUsage
	}
	c.part = *rows+*backends+*columns+*seeds != ""
	if c.order {
		if c.merge || c.svg != "" {
			fmt.Fprintln(errs, "scoreboard: -merge and -svg are for the board of limits")
			return nil, errUsage
		}
		if c.part {
			c.dir = ""
		}
		return c, nil
	}
	if c.part {
		c.opts.Known = readKnown(c.dir)
	}
	if c.part && c.dir != "" && (!c.merge || *seeds != "") {
		fmt.Fprintln(errs, "scoreboard: a part of the board is printed only, not written; -merge writes it, if the seeds are the scenarios'")
		c.dir = ""
	}
	return c, nil
}

func (c *command) run(out, errs io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	drawings := &album{all: c.svg != "", pages: map[string]*page{}}
	reports := look(out, c.detail, c.plot)
	c.opts.Look = func(backend, controller string, r *sim.Report) {
		drawings.add(backend, controller, r)
		reports(backend, controller, r)
	}
	c.opts.Progress = func(scenario, backend string, done, of int) {
		fmt.Fprintf(errs, "%3d of %d: %s on %s\n", done, of, scenario, backend)
	}
	start := time.Now()
	if c.order {
		return c.runOrder(ctx, out)
	}
	cells, err := Run(ctx, c.opts)
	if err != nil {
		return err
	}
	if len(cells) == 0 {
		return fmt.Errorf("nothing to run: the scenarios are %s", strings.Join(Rows, ", "))
	}
	if err := c.write(cells, drawings); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\n%s\ngoals reached: %s\n%v\n", Table(cells), Tally(cells), Reached(cells, "default"), time.Since(start).Round(time.Second))
	return nil
}

// runOrder runs the board about who goes first.
func (c *command) runOrder(ctx context.Context, out io.Writer) error {
	cells, err := OrderRun(ctx, c.opts)
	if err != nil {
		return err
	}
	if len(cells) == 0 {
		return fmt.Errorf("nothing to run: the scenarios are %s", strings.Join(OrderRows, ", "))
	}
	fmt.Fprintf(out, "%s\n%s", tableOf(cells, OrderColumns), orderTally(cells))
	if c.dir == "" {
		return nil
	}
	return writeOrder(c.dir, cells)
}

// write puts down what was asked for. Of a part, only the plots that have all
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
		if cells, err = merged(c.opts.Known, cells); err != nil {
			return err
		}
	}
	drawings.complete()
	if err := drawings.write(filepath.Join(c.dir, "plots")); err != nil {
		return err
	}
	return write(c.dir, cells)
}

// check reads the seeds and looks for columns that there are not.
func (o *Options) check(seeds string, columns []string) error {
	for _, text := range list(seeds) {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return fmt.Errorf("-seeds %q: must be whole numbers with commas between them", seeds)
		}
		o.Seeds = append(o.Seeds, seed)
	}
	for _, c := range o.Controllers {
		if !slices.Contains(columns, c) {
			return fmt.Errorf("-controllers %q: there is no such column; there are %s", c, strings.Join(columns, ", "))
		}
	}
	return nil
}

// readKnown reads the board that was written last. Without one, what is relative
// to the oracle costs a sweep.
func readKnown(dir string) []Cell { return readCells(filepath.Join(dir, "scoreboard.json")) }

func readCells(file string) []Cell {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	var cells []Cell
	if json.Unmarshal(data, &cells) != nil {
		return nil
	}
	return cells
}

// look prints reports as they come.
func look(out io.Writer, detail, plot bool) func(string, string, *sim.Report) {
	var mu sync.Mutex
	return func(backend, controller string, r *sim.Report) {
		if !detail && !plot {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(out, "## %s on %s: %s\n", r.Scenario.Name, backend, controller)
		if detail {
			fmt.Fprintf(out, "%s\n%s%s", r, r.Stretches(), r.Classes())
		}
		if plot {
			fmt.Fprintf(out, "\n%s", r.Plot())
		}
		fmt.Fprintln(out)
	}
}

func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

// write puts the figures into a directory, as data and as a page.
func write(dir string, cells []Cell) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var data bytes.Buffer
	if err := WriteJSON(&data, cells); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "scoreboard.json"), data.Bytes(), 0o644); err != nil {
		return err
	}
	text := fmt.Sprintf(readme, Tally(cells), gallery(), Missed(cells, "default"), Table(cells))
	return os.WriteFile(filepath.Join(dir, "README.md"), []byte(text), 0o644)
}
