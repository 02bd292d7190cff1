package live

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// Main is the command: it measures what args ask for and writes the report.
func Main(ctx context.Context, args []string, in io.Reader, out, log io.Writer) error {
	flags := flag.NewFlagSet("live", flag.ContinueOnError)
	flags.SetOutput(log)
	spec := flags.String("role", "", "what this process is (used by the command itself)")
	quick := flags.Bool("quick", false, "a minute of it, to see that everything works; prints the report and writes nothing")
	weir := flags.String("weir", "", "the gateway's binary")
	rounds := flags.Int("rounds", 3, "values each figure is made of")
	pace := flags.Float64("pace", 1, "multiplies the length of every run")
	retries := flags.Int("retries", 2, "how often a void run is repeated")
	only := flags.String("parts", strings.Join(hour, ","), "which parts: "+strings.Join(parts, ", "))
	rows := flags.String("rows", "", "which rows, with commas between; empty for all")
	laws := flags.String("backends", "", "which backends, with commas between; empty for all")
	guards := flags.String("guards", "", "which guards, with commas between; empty for all")
	dir := flags.String("o", "", "directory to write the report into; empty to print it")
	merge := flags.Bool("merge", false, "with -parts order and -o: rows and guards that are not measured now stay in the report as they are")
	name := flags.String("name", "live", "name of the report's files, NAME.md and NAME.json")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *spec != "" {
		return serveRole(*spec, in, out)
	}
	plan := Plan{Rounds: *rounds, Pace: *pace, Retries: *retries, Weir: *weir, Parts: list(*only), Rows: list(*rows), Laws: list(*laws), Guards: list(*guards)}
	if *quick {
		plan = quickPlan(*weir)
		*dir = ""
	}
	target := target{dir: *dir, name: *name, merge: *merge}
	if err := target.check(&plan); err != nil {
		return err
	}
	fmt.Fprintf(log, "about %v\n", plan.Duration().Round(time.Second))
	results, err := Measure(ctx, plan, log)
	if results == nil {
		return err
	}
	if err == nil && target.merge {
		err = results.keepOrder(target.dir, target.name)
	}
	if target.dir == "" || err != nil { // what there is of a run that broke off replaces nothing
		results.judge()
		_, werr := io.WriteString(out, results.Markdown())
		return errors.Join(err, werr)
	}
	return results.Write(target.dir, target.name)
}

// target is where the report goes.
type target struct {
	dir, name string // empty: it is printed
	merge     bool
}

func (t *target) check(p *Plan) error {
	if t.dir != "" {
		if info, err := os.Stat(t.dir); err != nil || !info.IsDir() {
			return fmt.Errorf("-o %s: is no directory to write the report into", t.dir)
		}
	}
	if !t.merge {
		return nil
	}
	if t.dir == "" {
		return errors.New("-merge: needs -o, the directory of the report to merge into")
	}
	if len(p.Parts) != 1 || p.Parts[0] != partOrder {
		return errors.New("-merge: only with -parts order; the other parts are measured as a whole")
	}
	_, err := readOrder(t.dir, t.name)
	return err
}

func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}
