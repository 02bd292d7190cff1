// Command quota prints what a decision of a quota costs beside the least it could
// cost, as ratios taken in one run.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weir-go/weir/internal/bench"
)

func main() {
	plan := bench.Plan{}
	flag.IntVar(&plan.Procs, "procs", 1, "cores, and goroutines at work")
	flag.IntVar(&plan.Rounds, "rounds", 9, "values each figure is made of")
	flag.IntVar(&plan.Turns, "turns", 5, "timings in a round; the shortest counts on one core, the median on two")
	flag.DurationVar(&plan.Turn, "turn", 4*time.Millisecond, "about how long one timing lasts")
	only := flag.String("group", "", "measure only the groups whose name contains this")
	flag.Parse()
	fmt.Printf("%s, %s/%s; %d rounds of %d timings of about %v on %d cores\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, plan.Rounds, plan.Turns, plan.Turn, plan.Procs)
	for _, g := range bench.QuotaGroups(bench.Million) {
		if !strings.Contains(g.Name, *only) {
			continue
		}
		figures, err := bench.Measure(g, plan)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		show(g, figures, plan.Procs)
	}
	if *only != "" {
		return
	}
	f, err := bench.QuotaFootprint()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("\na million buckets: %.1f bytes each at worst while there came to be a million, %.1f in the end\n", f.WorstBytes, f.Bytes)
	fmt.Printf("garbage collection: %.2f %% of the CPU time with them, %.2f %% without, each decision making 1 KiB of garbage; their own share %.2f %%\n", 100*f.GC, 100*f.Without, 100*f.Tables)
}

func show(g bench.Group, figures []bench.Figure, procs int) {
	fmt.Printf("\n%s\n", g.Name)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprintln(w, "  \tns/op\tratio\tallocs\tgoal\treached")
	for _, f := range figures {
		verdict := ""
		if reached, goal := f.Reached(procs); goal {
			verdict = map[bool]string{true: "yes", false: "NO"}[reached]
		}
		fmt.Fprintf(w, "  %s\t%.1f (%.1f–%.1f)\t%.2f (%.2f–%.2f)\t%.2f\t%s\t%s\n", f.Name,
			f.NS.Median, f.NS.Min, f.NS.Max, f.Ratio.Median, f.Ratio.Min, f.Ratio.Max, f.Allocs, f.Goal.Text(procs), verdict)
	}
}
