package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/sim"
)

// simOptions are the settings of weir sim.
type simOptions struct {
	File     string
	Seeds    []uint
	Limits   []string // in place of the policy's: auto, none or a number
	Plot     bool
	JSON     bool
	Out, Err io.Writer
	Progress io.Writer // nil: nobody watches
}

// NewSimCommand returns weir sim, which plays a scenario in virtual time.
func NewSimCommand() *cobra.Command {
	var o simOptions
	cmd := &cobra.Command{
		Use:   "sim FILE",
		Short: "Run a policy on simulated traffic, in virtual time",
		Long: `Sim plays a scenario: a backend of known capacity, traffic by phases, and a policy
in between. It runs the same gates as the gateway, on virtual time. A minute of
overload takes well under a second. The same seed gives the same figures again.

--limit puts another limit in the place of the policy's: a number, auto for one that is
found, or none. Given several times, or with commas, it compares them on the same
requests, one a row.

FILE is YAML or JSON. If there is no file of that name, it is the name or the code of a
built-in scenario:`,
		Example: "  weir sim scenario.yaml --plot\n  weir sim retry-storm --seed 7\n  weir sim cold-start --limit auto,20,none",
		Args:    needs(cobra.ExactArgs(1)),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			names := sim.Names()
			for i, name := range names {
				names[i] = sim.PlainName(name)
			}
			return names, cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := apart(cmd, "json", "plot"); err != nil {
				return err
			}
			if seed, again := twice(o.Seeds); again {
				return usage("--seed %d is given twice; the same seed gives the same run", seed)
			}
			if limit, again := twice(o.Limits); again {
				return usage("--limit %s is given twice; the same limit gives the same row", limit)
			}
			o.File, o.Out, o.Err = args[0], cmd.OutOrStdout(), cmd.ErrOrStderr()
			if isTerminal(o.Err) {
				o.Progress = o.Err
			}
			return runSim(cmd.Context(), o)
		},
	}
	cmd.Flags().UintSliceVar(&o.Seeds, "seed", nil, "run with this seed instead of the scenario's; may be repeated")
	cmd.Flags().Lookup("seed").DefValue = "" // not "(default [])"
	cmd.Flags().StringSliceVar(&o.Limits, "limit", nil, "auto, none or a number, in place of the policy's limits; several are compared")
	completeFlag(cmd, "limit", "auto", "none")
	cmd.Flags().BoolVar(&o.Plot, "plot", false, "draw load, goodput, latency and limit over time")
	cmd.Flags().BoolVar(&o.JSON, "json", false, "print the figures as JSON")
	return cmd
}

// twice returns the first value that a list has again; again is false if it has none.
func twice[T comparable](list []T) (value T, again bool) {
	for i, v := range list {
		if slices.Contains(list[:i], v) {
			return v, true
		}
	}
	return value, false
}

const simHelp = `
docs/howto/simulate.md says how to write one and how to read the report.
The exit code is 1 if the scenario has goals and one was missed.`

// builtIn lists the built-in scenarios, a line each.
func builtIn() string {
	var b strings.Builder
	for _, code := range sim.Names() {
		about, name := "", sim.PlainName(code)
		if s, err := sim.Load(code); err == nil {
			about = s.About
		}
		if name == code {
			code = ""
		}
		fmt.Fprintf(&b, "  %-29s %-5s %s\n", name, code, about)
	}
	return b.String()
}

func runSim(ctx context.Context, o simOptions) error {
	scenario, err := readScenario(o.File)
	var faults *sim.Faults
	if errors.As(err, &faults) {
		fmt.Fprintln(o.Err, faults)
		return &ExitError{Code: 1, Err: fmt.Errorf("%s cannot be used", o.File)}
	}
	if err != nil {
		return err
	}
	for _, note := range scenario.Notes() {
		fmt.Fprintln(o.Err, "warning:", note)
	}
	if len(o.Limits) > 0 {
		return o.underLimits(ctx, scenario)
	}
	report, err := o.play(ctx, scenario)
	if err != nil {
		return err
	}
	return o.finish(report)
}

// play runs a scenario.
func (o *simOptions) play(ctx context.Context, scenario *sim.Scenario) (*sim.Report, error) {
	opts := sim.Options{}
	for _, s := range o.Seeds {
		opts.Seeds = append(opts.Seeds, uint64(s))
	}
	if o.Progress != nil {
		opts.Progress = progressLine(o.Progress)
		defer fmt.Fprint(o.Progress, clearLine)
	}
	return sim.Run(ctx, scenario, opts)
}

// finish prints a report. Its error is that of goals that were missed.
func (o *simOptions) finish(report *sim.Report) error {
	if err := writeReport(*o, report); err != nil {
		return err
	}
	return missedError(missedGoals(report), len(report.Goals()))
}

// missedError is the error of so many missed goals of all, nil for none.
func missedError(missed, all int) error {
	if missed == 0 {
		return nil
	}
	return &ExitError{Code: 1, Err: fmt.Errorf("%d of %s missed", missed, count(all, "goal"))}
}

func writeReport(o simOptions, r *sim.Report) error {
	if o.JSON {
		return printJSON(o.Out, figuresOf(r))
	}
	text := r.String()
	if classes := r.Classes(); classes != "" {
		text += "\n" + classes
	}
	if o.Plot {
		text += "\n" + r.Plot()
	}
	_, err := io.WriteString(o.Out, text)
	return err
}

func missedGoals(r *sim.Report) int {
	n := 0
	for _, g := range r.Goals() {
		if !g.Reached {
			n++
		}
	}
	return n
}

// simFigures is the report as JSON.
type simFigures struct {
	Scenario string                `json:"scenario"`
	Backend  string                `json:"backend,omitempty"` // empty: the file's own
	Capacity float64               `json:"capacity_rps"`
	Best     int                   `json:"best_concurrency"`
	Seeds    []uint64              `json:"seeds"`
	Metrics  map[string]sim.Spread `json:"metrics"`
	Goals    []goalFigures         `json:"goals"`
	Runs     []runFigures          `json:"runs"`
}

type goalFigures struct {
	Goal    sim.Goal   `json:"goal"`
	Value   sim.Spread `json:"value"`
	Empty   bool       `json:"nothing_measured,omitempty"`
	Reached bool       `json:"reached"`
}

type runFigures struct {
	Seed    uint64      `json:"seed"`
	Summary sim.Summary `json:"summary"`
}

func figuresOf(r *sim.Report) simFigures {
	f := simFigures{
		Scenario: r.Scenario.Name, Backend: r.Scenario.Backend.Name,
		Capacity: r.Capacity, Best: r.Best, Seeds: r.Seeds,
		Metrics: map[string]sim.Spread{}, Goals: []goalFigures{},
	}
	for name := range sim.Metrics() {
		f.Metrics[name] = r.Spread(sim.Goal{Metric: name})
	}
	for _, g := range r.Goals() {
		f.Goals = append(f.Goals, goalFigures{g.Goal, g.Spread, !g.Measured, g.Reached})
	}
	for _, run := range r.Runs {
		f.Runs = append(f.Runs, runFigures{run.Seed, run.Windows[0]})
	}
	return f
}

// readScenario reads a file, or a built-in scenario by its name.
func readScenario(file string) (*sim.Scenario, error) {
	data, err := config.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) && slices.Contains(sim.Names(), sim.Code(file)) {
		return sim.Load(file)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, noScenario(file)
	}
	if err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	if kindOf(data) == configFile {
		return nil, fmt.Errorf("%s: is a configuration of the gateway, not a scenario; weir check %s checks it, weir run %s runs it", file, file, file)
	}
	root, faults := config.ParseDocument(file, data)
	for i, f := range faults.All() {
		if strings.Contains(f.Instead, config.Minimum[:strings.IndexByte(config.Minimum, '\n')]) { // what a gateway needs
			faults.All()[i].Instead = "the least it needs is:\n" + leastScenario
		}
	}
	return sim.ReadScenario(root, faults)
}

// leastScenario is the shortest scenario that plays.
const leastScenario = `  name: twice the capacity
  backend: {law: pool, workers: 10, service: {dist: exponential, mean: 100ms}, deadline: 1s}
  policy: {gates: {app: {limit: auto}}, routes: [{name: all, match: [/], gates: [app]}]}
  phases: [{for: 30s, load: 2}]`

// noScenario is the error of a name that is neither a file nor a built-in scenario.
func noScenario(name string) error {
	var known []string
	for _, code := range sim.Names() {
		known = append(known, code, sim.PlainName(code))
	}
	near := fault.Nearest(name, known)
	if i := slices.IndexFunc(known, func(one string) bool { return strings.HasPrefix(one, name+"-") }); near == "" && i >= 0 {
		near = known[i]
	}
	instead := "name a scenario file, or one of those that weir sim --help lists"
	if near != "" {
		instead = "did you mean the built-in scenario " + near + "?"
	}
	return fmt.Errorf("sim: there is no file %s; %s", name, instead)
}

// clearLine empties the line that a terminal's cursor is on.
const clearLine = "\r\x1b[K"

func progressLine(w io.Writer) func(sim.Progress) {
	return func(p sim.Progress) {
		done := float64(p.Run-1) + float64(p.Now)/float64(max(p.End, 1))
		fmt.Fprintf(w, "%sseed %d of %d, %v of %v, %.0f %%", clearLine,
			p.Run, p.Runs, p.Now.Round(p.End/100), p.End, 100*done/float64(p.Runs))
	}
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
