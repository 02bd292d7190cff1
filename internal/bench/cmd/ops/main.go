// Command ops does a number of operations of one subject and nothing else, for
// tools that count instructions. Run it with N and with 2N: the difference is
// what N operations take, whatever the start-up takes. See callgrind.sh.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/weir-go/weir/internal/bench"
)

func main() {
	n := flag.Int("n", 20000, "operations")
	group := flag.Int("group", 0, "index of the group")
	subject := flag.Int("subject", 0, "index of the subject; 0 is the floor")
	list := flag.Bool("list", false, "print indexes and names of all subjects")
	flag.Parse()
	if *list {
		for g, group := range bench.Groups() {
			for s, subject := range group.All() {
				fmt.Printf("%d\t%d\t%s: %s\n", g, s, group.Name, subject.Name)
			}
		}
		return
	}
	if err := ops(*group, *subject, *n); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func ops(group, subject, n int) error {
	groups := bench.Groups()
	if group < 0 || group >= len(groups) {
		return fmt.Errorf("ops: no group %d: there are %d, see -list", group, len(groups))
	}
	all := groups[group].All()
	if subject < 0 || subject >= len(all) {
		return fmt.Errorf("ops: no subject %d in group %d: there are %d, see -list", subject, group, len(all))
	}
	debug.SetGCPercent(-1) // a collection would count as the subject's
	loop, stop, err := all[subject].New()
	if err != nil {
		return err
	}
	defer stop()
	return measured(loop, n)
}

// measured is the function whose instructions are counted.
//
//go:noinline
func measured(loop bench.Loop, n int) error { return loop(n) }
