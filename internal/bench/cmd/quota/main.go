// Command quota prints what a decision of a quota costs beside the least it could
// cost, as ratios taken in one run.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/weir-go/weir/internal/bench"
)

func main() {
	plan := bench.Plan{}
	flag.IntVar(&plan.Procs, "procs", 1, "cores, and goroutines at work")
	plan.Flags(flag.CommandLine)
	only := flag.String("group", "", "measure only the groups whose name contains this")
	flag.Parse()
	if err := decisions(plan, *only); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if *only != "" {
		return
	}
	if err := footprint(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func decisions(plan bench.Plan, only string) error {
	plan.Head(os.Stdout)
	for _, g := range bench.QuotaGroups(bench.Million) {
		if !strings.Contains(g.Name, only) {
			continue
		}
		figures, err := bench.Measure(g, plan)
		if err != nil {
			return err
		}
		if err := bench.Print(os.Stdout, g, figures, plan.Procs); err != nil {
			return err
		}
	}
	return nil
}

func footprint() error {
	f, err := bench.QuotaFootprint()
	if err != nil {
		return err
	}
	fmt.Printf("\na million buckets: %.1f bytes each at worst while there came to be a million, %.1f in the end\n", f.WorstBytes, f.Bytes)
	fmt.Printf("garbage collection: %.2f %% of the CPU time with them, %.2f %% without, each decision making 1 KiB of garbage; their own share %.2f %%\n", 100*f.GC, 100*f.Without, 100*f.Tables)
	return nil
}
