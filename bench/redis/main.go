// Command redis compares the decisions of weirredis with those of redis_rate on one server,
// in one run:
//
//	go run ./bench/redis
//
// It starts a redis-server of its own on a free port. The subjects take turns in short
// rounds, each in front in its turn; a figure is the median of its rounds, with the least
// and the greatest, and a ratio is that of two rounds played one after the other. Both
// clients may have as many connections as there are callers. The server, the client and
// the callers share the machine, so what the figures compare is what each costs on both
// sides together.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	server := flag.String("server", ".cache/bin/redis-server", "path of the `program` to start")
	rounds := flag.Int("rounds", 15, "rounds of each subject")
	length := flag.Duration("length", 100*time.Millisecond, "length of a round")
	flag.Parse()
	if err := run(*server, *rounds, *length); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(program string, rounds int, length time.Duration) error {
	addr, stop, err := startServer(program)
	if err != nil {
		return err
	}
	defer stop()
	subjects, closeAll, err := newSubjects(addr)
	if err != nil {
		return err
	}
	defer closeAll()
	fmt.Println("| load | callers | subject | decisions/s | p50, µs | p99, µs | let through |")
	fmt.Println("| --- | --- | --- | --- | --- | --- | --- |")
	for _, l := range loads {
		for _, n := range callers {
			results, err := compare(subjects, l, n, rounds, length)
			if err != nil {
				return err
			}
			for i, s := range subjects {
				passed := sorted(results[i], func(r result) float64 { return 100 * r.passed })
				show(l, n, s.name, results[i], [3]string{"%.0f", "%.1f", "%.0f"}, fmt.Sprintf("%.1f %%", passed[len(passed)/2]))
			}
			show(l, n, "weirredis over redis_rate", over(results[0], results[1]), [3]string{"%.2f", "%.2f", "%.2f"}, "")
		}
	}
	return costs(addr, subjects)
}

// compare lets the subjects take turns, and returns the rounds of each.
func compare(subjects []subject, l load, callers, rounds int, length time.Duration) ([][]result, error) {
	results := make([][]result, len(subjects))
	for round := range rounds {
		for i := range subjects {
			i = (round + i) % len(subjects)
			r, err := play(context.Background(), subjects[i], l, callers, length)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", subjects[i].name, err)
			}
			results[i] = append(results[i], r)
		}
	}
	return results, nil
}
