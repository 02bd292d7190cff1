package cost

import (
	"flag"
	"fmt"
	"io"
	"runtime"
	"text/tabwriter"
	"time"
)

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
func Print(w io.Writer, g Group, figures []Figure, procs int) error {
	cores := "one core"
	if procs > 1 {
		cores = fmt.Sprintf("%d cores", procs)
	}
	fmt.Fprintf(w, "\n%s, %s\n", g.Name, cores)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "  \tns/op\tratio\tns above\tallocs\tgoal\treached")
	void := 0
	for _, f := range figures {
		verdict := ""
		if reached, goal := f.Reached(procs); goal {
			verdict = map[bool]string{true: "yes", false: "NO"}[reached]
		}
		fmt.Fprintf(table, "  %s\t%s\t%s\t%+.1f\t%.2f\t%s\t%s\n", f.Name,
			f.NS.text("%.1f"), f.Ratio.text("%.2f"), f.Extra.Median, f.Allocs, f.Goal.Text(procs), verdict)
		void += f.Void
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if void > 0 {
		fmt.Fprintf(w, "  %d turns were repeated because there were not %d cores for them: this machine is busy\n", void, procs)
	}
	return nil
}

func (s Spread) text(verb string) string {
	return fmt.Sprintf(verb+" ("+verb+"–"+verb+")", s.Median, s.Min, s.Max)
}
