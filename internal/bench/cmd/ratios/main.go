// Command ratios prints what an admission costs beside the least it could cost
// and beside what others charge, as ratios taken in one run.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/weir-go/weir/internal/bench"
)

func main() {
	plan := bench.Plan{}
	plan.Flags(flag.CommandLine)
	only := flag.String("group", "", "measure only the groups whose name contains this")
	flag.Parse()
	if err := ratios(plan, *only); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func ratios(plan bench.Plan, only string) error {
	plan.Head(os.Stdout)
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
			if err := bench.Print(os.Stdout, g, figures, procs); err != nil {
				return err
			}
		}
	}
	if failed > 0 {
		fmt.Printf("\n%d groups could not be measured\n", failed)
	}
	return nil
}
