// Command ratios prints what an admission costs beside the least it could cost
// and beside what others charge, as ratios taken in one run.
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
	flag.IntVar(&plan.Rounds, "rounds", 9, "values each figure is made of")
	flag.IntVar(&plan.Turns, "turns", 5, "timings in a round; the shortest counts on one core, the median on two")
	flag.DurationVar(&plan.Turn, "turn", 4*time.Millisecond, "about how long one timing lasts")
	only := flag.String("group", "", "measure only the groups whose name contains this")
	flag.Parse()
	if err := ratios(plan, *only); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func ratios(plan bench.Plan, only string) error {
	fmt.Printf("%s, %s/%s, %d cores; %d rounds, each the shortest (on two cores the median) of %d timings of about %v\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), plan.Rounds, plan.Turns, plan.Turn)
	fmt.Println("figures are median (min–max) over the rounds; ratios are to the first line of each group, in the same round")
	failed := 0
	for _, procs := range []int{1, 2} {
		if procs > runtime.NumCPU() {
			fmt.Printf("\nnot measured on %d cores: this machine has %d\n", procs, runtime.NumCPU())
			continue
		}
		plan.Procs = procs
		for _, g := range bench.Groups() {
			if !strings.Contains(g.Name, only) {
				continue
			}
			figures, err := bench.Measure(g, plan)
			if err != nil {
				fmt.Printf("\nnot measured on %d cores: %v\n", procs, err)
				failed++
				continue
			}
			if err := show(g, figures, procs); err != nil {
				return err
			}
		}
	}
	if failed > 0 {
		fmt.Printf("\n%d groups could not be measured\n", failed)
	}
	return nil
}

func show(g bench.Group, figures []bench.Figure, procs int) error {
	cores := "one core"
	if procs > 1 {
		cores = fmt.Sprintf("%d cores", procs)
	}
	fmt.Printf("\n%s, %s\n", g.Name, cores)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  \tns/op\tratio\tns above\tallocs\tgoal\treached")
	for _, f := range figures {
		verdict := ""
		if reached, goal := f.Reached(procs); goal {
			verdict = map[bool]string{true: "yes", false: "NO"}[reached]
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%+.1f\t%.2f\t%s\t%s\n", f.Name,
			text(f.NS, "%.1f"), text(f.Ratio, "%.2f"), f.Extra.Median, f.Allocs, f.Goal.Text(procs), verdict)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	void := 0
	for _, f := range figures {
		void += f.Void
	}
	if void > 0 {
		fmt.Printf("  %d turns were repeated because there were not %d cores for them: this machine is busy\n", void, procs)
	}
	return nil
}

func text(s bench.Spread, verb string) string {
	return fmt.Sprintf(verb+" ("+verb+"–"+verb+")", s.Median, s.Min, s.Max)
}
