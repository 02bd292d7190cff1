package cost

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
)

// Main is the command. Without flags it prints the ratios of admissions, on one
// core and on two. With -quota it prints those of a quota's decisions. With -ops
// it does a number of operations of one subject and nothing else, for tools that
// count instructions: see callgrind.sh.
func Main(args []string, out io.Writer) error {
	var plan Plan
	flags := flag.NewFlagSet("cost", flag.ContinueOnError)
	plan.Flags(flags)
	only := flags.String("group", "", "measure only the groups whose name contains this")
	quotas := flags.Bool("quota", false, "measure decisions of a quota, and the memory of its buckets")
	flags.IntVar(&plan.Procs, "procs", 0, "cores, and goroutines at work; 0: first one, then two")
	ops := flags.Int("ops", 0, "only do so many operations of one subject")
	subject := flags.Int("subject", 0, "with -ops: number of the subject in the list")
	list := flags.Bool("list", false, "print the numbers and names of all subjects")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	}
	switch {
	case *list:
		for i, s := range subjects() {
			fmt.Fprintf(out, "%d\t%s: %s\n", i, s.group, s.Name)
		}
		return nil
	case *ops > 0:
		return operate(*subject, *ops)
	case *quotas:
		return decisions(out, plan, *only)
	}
	admissions(out, plan, *only)
	return nil
}

// admissions prints the ratios of admissions.
func admissions(out io.Writer, plan Plan, only string) {
	procs := []int{1, 2}
	if plan.Procs > 0 {
		procs = []int{plan.Procs}
	}
	plan.Head(out)
	failed := 0
	for _, plan.Procs = range procs {
		if plan.Procs > runtime.NumCPU() {
			fmt.Fprintf(out, "\nnot measured on %d cores: this machine has %d\n", plan.Procs, runtime.NumCPU())
			continue
		}
		failed += compare(out, Groups(), plan, only)
	}
	if failed > 0 {
		fmt.Fprintf(out, "\n%d groups could not be measured\n", failed)
	}
}

// compare prints the figures of the groups whose names contain a text, and returns how many could
// not be measured.
func compare(out io.Writer, groups []group, plan Plan, only string) (failed int) {
	for _, g := range groups {
		if !strings.Contains(g.Name, only) {
			continue
		}
		figures, err := Measure(g, plan)
		if err != nil {
			fmt.Fprintf(out, "\nnot measured on %d cores: %v\n", plan.Procs, err)
			failed++
			continue
		}
		Print(out, g, figures, plan.Procs)
	}
	return failed
}

// decisions prints the ratios of a quota's decisions, and without a choice of
// groups also what its buckets cost.
func decisions(out io.Writer, plan Plan, only string) error {
	plan.Procs = max(1, plan.Procs)
	plan.Head(out)
	if compare(out, quotaGroups(million), plan, only); only != "" {
		return nil
	}
	f, err := quotaFootprint()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\na million buckets: %.1f bytes each at worst while there came to be a million, %.1f in the end\n", f.WorstBytes, f.Bytes)
	fmt.Fprintf(out, "garbage collection: %.2f %% of the CPU time with them, %.2f %% without, each decision making 1 KiB of garbage; their own share %.2f %%\n",
		100*f.GC, 100*f.Without, 100*f.Tables)
	return nil
}

// listed is a subject with the name of its group.
type listed struct {
	Subject
	group string
}

// subjects lists those of all groups of admissions, in order.
func subjects() (all []listed) {
	for _, g := range Groups() {
		for _, s := range g.All() {
			all = append(all, listed{s, g.Name})
		}
	}
	return all
}

// operate does n operations of a subject.
func operate(subject, n int) error {
	all := subjects()
	if subject < 0 || subject >= len(all) {
		return fmt.Errorf("subject %d: must be from 0 to %d, see -list", subject, len(all)-1)
	}
	debug.SetGCPercent(-1) // a collection would count as the subject's
	loop, stop := all[subject].New()
	defer stop()
	return counted(loop, n)
}

// counted is the function whose instructions are counted.
//
//go:noinline
func counted(loop Loop, n int) error { return loop(n) }
