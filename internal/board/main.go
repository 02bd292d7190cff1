package board

import (
	"bytes"
	"context"
	"encoding/json"
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

// Main is the command: it parses args, runs the board, prints the table to out
// and writes scoreboard.json and README.md. It returns the exit code.
func Main(args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("scoreboard", flag.ContinueOnError)
	flags.SetOutput(errs)
	dir := flags.String("out", filepath.Join("docs", "scoreboard"), "directory to write to; empty: print only")
	rows := flags.String("rows", "", "only these scenarios, such as S1,S9")
	backends := flags.String("backends", "", "only these backends, such as B1,B2")
	columns := flags.String("controllers", "", "only these columns, such as default,oracle; all are "+strings.Join(Controllers, ", "))
	seeds := flags.String("seeds", "", "these seeds instead of the scenarios' 1 to 5, such as 1,2")
	detail := flags.Bool("detail", false, "print each run's report as well: every figure, over each goal's stretch")
	plot := flags.Bool("plot", false, "print each first run over time as well")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	opts := Options{Rows: list(*rows), Backends: list(*backends), Controllers: list(*columns)}
	if err := opts.check(*seeds); err != nil {
		fmt.Fprintln(errs, "scoreboard:", err)
		return 2
	}
	part := *rows+*backends+*columns+*seeds != ""
	if part {
		opts.Known = readKnown(*dir)
	}
	if *detail || *plot {
		opts.Look = look(out, *detail, *plot)
	}
	if part && *dir != "" {
		fmt.Fprintln(errs, "scoreboard: a part of the board is printed only, not written")
		*dir = ""
	}
	opts.Progress = func(scenario, backend string, done, of int) {
		fmt.Fprintf(errs, "%3d of %d: %s on %s\n", done, of, scenario, backend)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	start := time.Now()
	cells, err := Run(ctx, opts)
	if err == nil && len(cells) == 0 {
		err = fmt.Errorf("nothing to run: the scenarios are %s", strings.Join(Rows, ", "))
	}
	if err == nil && *dir != "" {
		err = write(*dir, cells)
	}
	if err != nil {
		fmt.Fprintln(errs, "scoreboard:", err)
		return 1
	}
	fmt.Fprintf(out, "%s\n%s\n%v\n", Table(cells), Tally(cells), time.Since(start).Round(time.Second))
	return 0
}

// check reads the seeds and looks for columns that there are not.
func (o *Options) check(seeds string) error {
	for _, text := range list(seeds) {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return fmt.Errorf("-seeds %q: must be whole numbers with commas between them", seeds)
		}
		o.Seeds = append(o.Seeds, seed)
	}
	for _, c := range o.Controllers {
		if !slices.Contains(Controllers, c) {
			return fmt.Errorf("-controllers %q: there is no such column; there are %s", c, strings.Join(Controllers, ", "))
		}
	}
	return nil
}

// readKnown reads the board that was written last. Without one, what is relative
// to the oracle costs a sweep.
func readKnown(dir string) []Cell {
	data, err := os.ReadFile(filepath.Join(dir, "scoreboard.json"))
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
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(out, "## %s on %s: %s\n", r.Scenario.Name, backend, controller)
		if detail {
			fmt.Fprintf(out, "%s\n%s", r, r.Stretches())
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

// intro heads the page: what the columns and figures are.
const intro = `# Scoreboard

Written by ` + "`make scoreboard`" + `; the same figures are in scoreboard.json, one object a cell. Virtual time, 5 seeds: the median, with the least and the
largest in brackets. A cross marks a missed goal. The scenarios and backends are the files in scenarios/, with their deadlines: 100 ms on B1,
500 ms on B2, 1 s on B3, 5 s on B4.

- none: no gate.
- oracle: the best fixed limit for the very scenario and backend, found by a sweep, newest first while a queue stands.
- fixed: a limit tuned once for the backend.
- aimd: threshold at half the deadline, starting from 20.

A refusal costs nothing in virtual time, so the bound in S2 is 1. goodput is good answers over the capacity in force; settle is the time until goodput holds
.95 (S7: .9) of load or capacity, whichever is less; calm the time until less than 1 % is refused. The least that settle can tell apart from chance is
the time of 400 requests.

Where even the oracle misses: after a step back (S3 calm) the room still holds work that newest-first left behind until its longest wait is over; and with
exponential service times at a fifth of the capacity (S4b) a tenth of the requests on B2, and more on B4, need longer than their deadline inside a
full backend, however short the wait.
AIMD adds one slot a second and starts from 20: the 100 that B3 wants are 80 s away, longer than these runs.
The fixed limit on B1 waits in order of arrival, which refuses less near saturation (S9b) and pays for it with a latency of half the deadline under
overload; newest first does the reverse.

`

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
	page := intro + Table(cells) + "\n" + Tally(cells)
	return os.WriteFile(filepath.Join(dir, "README.md"), []byte(page), 0o644)
}
