// Bench compares the decisions of weirredis with those of redis_rate on one server,
// in one run:
//
//	go run ./weirredis/bench
//
// It starts a redis-server of its own on a free port. The subjects take turns, in
// short rounds; a figure is the median of its rounds. The server, the client
// and the callers share the machine, so what the figures compare is what each costs
// on both sides together.
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
	fmt.Println("| load | callers | subject | decisions/s | p50 | p99 | let through |")
	fmt.Println("| --- | --- | --- | --- | --- | --- | --- |")
	for _, l := range loads {
		for _, callers := range []int{1, 16, 128} {
			results := make([][]result, len(subjects))
			for range rounds {
				for i, s := range subjects {
					r, err := play(context.Background(), s, l, callers, length)
					if err != nil {
						return fmt.Errorf("%s: %w", s.name, err)
					}
					results[i] = append(results[i], r)
				}
			}
			for i, s := range subjects {
				fmt.Printf("| %s | %d | %s | %s |\n", l.name, callers, s.name, median(results[i]))
			}
		}
	}
	return costs(addr, subjects)
}
