//go:build linux

// Command gateway compares the gateway with a bare [httputil.ReverseProxy] on the
// same transport, before the same upstream, in one run:
//
//	go run ./bench/gateway
//
// Each proxy is a process of its own on one core (GOMAXPROCS=1). The client and
// the upstream are one more, and do as little as a client and an upstream can
// (fixed bytes over kept connections), so that the proxy is what limits the
// throughput. The proxies take turns; the order moves on by one each round, and
// ratios are taken within a round. CPU time is the kernel's account of the
// proxy's process: it scatters far less than throughput on a machine that does
// other things too.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"
)

func main() {
	var p plan
	flag.IntVar(&p.rounds, "rounds", 25, "values each figure is made of")
	flag.DurationVar(&p.turn, "turn", 250*time.Millisecond, "how long a proxy works in each round")
	flag.IntVar(&p.conns, "conns", 32, "client connections, each with one request at a time")
	flag.StringVar(&p.weir, "weir", "bin/weir", "the gateway's binary; make build builds it")
	serve := flag.String("serve", "", "be the bare proxy at that address (used by the command itself)")
	upstream := flag.String("upstream", "", "upstream of that proxy")
	flag.Parse()
	var err error
	if *serve != "" {
		err = serveBare(*serve, *upstream)
	} else {
		err = compare(p)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// plan is how often, how long and how hard.
type plan struct {
	rounds, conns int
	turn          time.Duration
	weir          string
}

// goal is the share of the bare proxy's throughput that the gateway must keep,
// and so the inverse of the CPU time a request may take.
const goal = 0.95

// saturated is the share of its core a proxy must have used for its throughput
// to say something about it, and not about what it waited for.
const saturated = 0.9

func compare(p plan) error {
	if p.rounds < 1 || p.conns < 1 || p.conns > 1000 || p.turn < 100*time.Millisecond || p.turn > time.Minute {
		return fmt.Errorf("rounds must be positive, connections from 1 to 1000, turns from 100ms to 1m")
	}
	stub, err := startStub()
	if err != nil {
		return err
	}
	defer stub.Close()
	var subjects []*subject
	defer func() {
		for _, s := range subjects {
			s.stop()
		}
	}()
	for _, name := range proxyNames {
		s, err := start(name, p.weir, "http://"+stub.Addr().String(), p.conns)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		subjects = append(subjects, s)
		if _, err := s.work(p.turn / 2); err != nil { // connections, caches, heap
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	for round := range p.rounds {
		for i := range subjects {
			s := subjects[(round+i)%len(subjects)]
			v, err := s.work(p.turn)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			s.values = append(s.values, v)
			select {
			case <-interrupted:
				return fmt.Errorf("interrupted in round %d of %d", round+1, p.rounds)
			default:
			}
		}
	}
	fmt.Printf("%s, %d cores, %d connections, %d rounds of %v each; median (min–max); ratios to the first line, within a round\n\n",
		runtime.Version(), runtime.NumCPU(), p.conns, p.rounds, p.turn)
	return report(subjects)
}

func report(subjects []*subject) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\trequests/s\tratio\t≥ %.2fx\tcore used\tCPU µs/request\tratio\t≤ %.2fx\n", goal, 1/goal)
	floor := subjects[0].values
	for i, s := range subjects {
		var rate, rates, cpu, cpus, used []float64
		for r, v := range s.values {
			rate, rates = append(rate, v.rate), append(rates, v.rate/floor[r].rate)
			cpu, cpus = append(cpu, v.cpu), append(cpus, v.cpu/floor[r].cpu)
			used = append(used, v.rate*v.cpu/1e6)
		}
		byRate, byCPU := "", ""
		if i > 0 {
			byRate, byCPU = verdict(median(rates) >= goal), verdict(median(cpus) <= 1/goal)
			if median(used) < saturated {
				byRate = "void"
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.0f %%\t%s\t%s\t%s\n", s.name,
			spread(rate, "%.0f"), spread(rates, "%.3f"), byRate, 100*median(used),
			spread(cpu, "%.1f"), spread(cpus, "%.3f"), byCPU)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Printf("\nA throughput is void where the proxy used less than %.0f %% of its core: then something else was the limit.\n", 100*saturated)
	return nil
}

func verdict(reached bool) string {
	if reached {
		return "yes"
	}
	return "NO"
}

func median(v []float64) float64 { return slices.Sorted(slices.Values(v))[len(v)/2] }

func spread(v []float64, verb string) string {
	return fmt.Sprintf(verb+" ("+verb+"–"+verb+")", median(v), slices.Min(v), slices.Max(v))
}
